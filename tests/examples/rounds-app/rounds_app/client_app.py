"""The nodes: the package's answers, and a line about every message that a process was for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_privsyn import add_handlers
from flower_privsyn.testing import hash_embedder


def told(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """When the process was started, when it began to answer and when it had, in seconds."""
    started, begun, cpu = psutil.Process().create_time(), time.time(), time.process_time()
    reply = call_next(message, context)
    line = {
        "node": context.node_id,
        "message": message.metadata.message_id,
        "started": started,
        "begun": begun,
        "answered": time.time(),
        "cpu_before": cpu,
        "cpu_answer": time.process_time() - cpu,
    }
    path = Path(str(context.run_config["run-dir"])).with_suffix(".nodes.jsonl")
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    return reply


app = ClientApp(mods=[told])
add_handlers(app, embedder=hash_embedder)
