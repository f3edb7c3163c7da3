"""What answering costs a node, in CPU seconds: written on the node, never sent.

How long a node works depends on what its users wrote, so the time is a side channel: in a private
run it must not reach the server, and no message holds it. For research, whoever owns a node may
have it counted by setting `PRIVSYN_CPU_TIME` to a file on that node; in a simulation all nodes
write to one file. The server cannot ask for it. The figures are not private.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator

from flwr.app import Context, Message

from flower_privsyn.environment import CPU_TIME
from flower_privsyn.files import user_path

logger = logging.getLogger("flower_privsyn.client")


@contextlib.contextmanager
def counted(message: Message, context: Context) -> Iterator[None]:
    """Count the CPU seconds of this process while a message is answered.

    All threads of the process count, so messages must be answered one at a time, as Flower's
    simulation and `flwr-clientapp` processes do. Starting the process is not counted; loading a
    model inside the first answer is.

    Args:
        message: what is being answered; its type is recorded.
        context: of the node; its number in a simulation is recorded.
    """
    target = os.environ.get(CPU_TIME)
    if not target:
        yield
        return
    started = time.process_time()
    try:
        yield
    finally:
        line = {
            "message": message.metadata.message_type,
            "node": int(context.node_config.get("partition-id", -1)),
            "cpu_seconds": time.process_time() - started,
        }
        try:
            # One write in append mode: lines of several processes do not mix.
            with open(user_path(target), "a", encoding="utf-8", opener=_for_the_owner) as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            logger.warning("%s = %s cannot be written: %s", CPU_TIME, target, error.strerror)


def _for_the_owner(path: str, flags: int) -> int:
    """Create a file that nobody else can read: it is a side channel, and names who was asked."""
    return os.open(path, flags, 0o600)
