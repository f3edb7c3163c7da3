"""The process of a run's ServerApp: `python -m flower_privsyn.host.serve`, started by the command.

It reads one line of JSON from its standard input, what to run, and calls the ServerApp before the
nodes of this machine, or hands both apps to Flower's own simulation. Whatever is printed goes to
the log; how far it is and how it ended, in lines of JSON, to the command. When its standard input
closes, which the kernel does for it when the command dies, however it dies, it ends with all it has
started.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from flwr.app import Context, RecordDict
from flwr.serverapp import ServerApp

from flower_privsyn.host.grid import LocalGrid, flower_identity, loaded_app
from flower_privsyn.progress import LINES
from flower_privsyn.run.run_format import sentence_of


def serve(asked: Mapping[str, Any]) -> None:
    """Run an app to its end.

    Args:
        asked: `app`, `server` and `client`, the folder and its components; `run-config`; `nodes`
            and `processes`, how many; `ray`, whether Flower simulates the nodes itself.
    """
    run_id = secrets.randbits(62) | 2**62  # drawn, as Flower draws it
    context = Context(
        run_id=run_id,
        node_id=1,
        node_config={},
        state=RecordDict(),
        run_config=dict(asked["run-config"]),
    )
    if asked["ray"]:
        _simulate(asked, context)
        return
    grid = LocalGrid(
        Path(asked["app"]),
        asked["client"],
        num_nodes=asked["nodes"],
        run_config=asked["run-config"],
        run_id=run_id,
        processes=asked["processes"],
    )
    with contextlib.closing(grid), flower_identity(run_id=run_id):
        from flwr.serverapp.server_app import LoadServerAppError

        app = loaded_app(asked["server"], asked["app"], ServerApp, LoadServerAppError)
        app(grid=grid, context=context)


def _simulate(asked: Mapping[str, Any], context: Context) -> None:
    """Flower's own simulation, by what `flwr run` has its process of the simulation call."""
    from flwr.simulation.run_simulation import _run_simulation
    from flwr.supercore.constant import NOOP_FEDERATION_ID
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supercore.telemetry import EventType

    run = Run.create_empty(run_id=context.run_id)
    run.primary_task_id, run.federation_id = 1, NOOP_FEDERATION_ID
    run.override_config = dict(asked["run-config"])
    TaskIdentity.task_id, TaskIdentity.run_id = 1, context.run_id
    TaskIdentity.node_id = context.node_id
    resources: dict[str, Any] = {"init_args": {}, "client_resources": {"num_cpus": 1}}
    with contextlib.ExitStack() as stack:
        if "RAY_ADDRESS" not in os.environ:
            resources["init_args"]["num_cpus"] = asked["processes"]
            # Ray's own folders are open to everybody; the one they lie in is not. Its sockets need
            # a short path.
            short = tempfile.TemporaryDirectory(prefix="privsyn-", dir="/tmp")
            os.environ |= {
                "RAY_TMPDIR": stack.enter_context(short),
                # Nobody else on this machine has work for it.
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": secrets.token_hex(32),
                # It listens on loopback alone where it may not become a cluster; the name comes
                # from the systems where that is the default.
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            }
        _run_simulation(
            num_supernodes=asked["nodes"],
            exit_event=EventType.FLWR_SIMULATION_RUN_LEAVE,
            server_app_attr=asked["server"],
            client_app_attr=asked["client"],
            server_app_context=context,
            app_dir=asked["app"],
            backend_config=resources,
            run=run,
            is_app=True,
        )


class _ToTheCommand(logging.Handler):
    """Passes on how far a run is, and the warnings of this package."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        line, warns = record.getMessage(), record.levelno >= logging.WARNING
        if warns or record.name == LINES:
            self.say(f"warning: {line}" if warns else line)

    def say(self, value: Any) -> None:
        """One line of JSON."""
        with contextlib.suppress(BrokenPipeError):  # the command is dead, and so is this process
            self._stream.write(json.dumps(value) + "\n")
            self._stream.flush()


def _end_with_the_command() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)  # its own group: the nodes, too, and whatever an app has started


def main() -> None:
    """Read what to run, run it, and say how it ended."""
    to_the_command = _ToTheCommand(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # what an app prints is the log's
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_command, daemon=True).start()
    ours, flowers = logging.getLogger("flower_privsyn"), logging.getLogger("flwr.privsyn")
    flowers.addHandler(to_the_command)
    ours.addHandler(to_the_command)
    ours.addHandler(logging.StreamHandler())  # which it had as long as it had none
    sentence, unexpected = "", False
    try:
        serve(asked)
    except BaseException as error:
        traceback.print_exc()
        sentence, unexpected = sentence_of(error)
    to_the_command.say({"sentence": sentence, "unexpected": unexpected})
    if sentence and asked["ray"]:  # where a simulation crashed, its ServerApp waits for the nodes
        os._exit(1)


if __name__ == "__main__":
    main()
