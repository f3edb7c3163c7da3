"""The nodes of a simulation on this machine: Flower's Grid before processes that answer for them.

Every process loads the app's ClientApp and calls it with one message and its node's Context at a
time, as a SuperNode does. No SuperLink, no port and no Ray is between them and the ServerApp.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from flower_privsyn.client_apps.guard import simulated
from flower_privsyn.messages.window import WindowedGrid

#: Flower's codes for a ClientApp that cannot be loaded, that raised, and whose process ended.
_NOT_LOADED, _RAISED, _CRASHED = 1, 2, 8

Loaded = TypeVar("Loaded", ClientApp, ServerApp)

#: What the processes of nodes find in the environment: one thread each, as there is one a core, and
#: no accelerator, which is the server's.
_ALONE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@contextlib.contextmanager
def flower_identity(*, run_id: int = 1) -> Iterator[None]:
    """Let `flwr.app.Message` be built outside a running Flower app; its nodes are simulated.

    Flower keeps the identity of the running task in a private class.
    """
    from flwr.supercore.task_identity import TaskIdentity

    before = TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, 1
    try:
        with simulated():
            yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before


def partitions(num_nodes: int) -> list[dict[str, int]]:
    """The configurations of nodes to which users are dealt, as Flower's simulation has them."""
    return [{"partition-id": n, "num-partitions": num_nodes} for n in range(num_nodes)]


def _named(message: Message) -> str:
    """A new id of a message, written into it."""
    # Flower's own Grids write it in the same way: no public setter exists.
    message.metadata.__dict__["_message_id"] = name = uuid4().hex
    return name


class GridWithoutLink(Grid):
    """Flower's Grid before nodes that no SuperLink knows.

    Args:
        node_configs: of the nodes, which are numbered from 1.
        run_id: of every node's Context.
        run_config: what the nodes see as the run's configuration.
    """

    def __init__(
        self,
        node_configs: Sequence[Mapping[str, Any]],
        *,
        run_id: int,
        run_config: Mapping[str, Any],
    ) -> None:
        self._contexts = {
            node: Context(
                run_id=run_id,
                node_id=node,
                node_config=dict(config),
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for node, config in enumerate(node_configs, start=1)
        }

    def get_node_ids(self) -> Iterable[int]:
        """All nodes, from the first call on."""
        return list(self._contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return the replies that come within `timeout` seconds, None for all."""
        return list(WindowedGrid(self).send_and_receive(messages, timeout=timeout))

    def set_run(self, run: Any) -> None:
        """Accept any run."""

    @property
    def run(self) -> Any:
        """There is no record of the run."""
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Refuse the deprecated way to build a message."""
        raise NotImplementedError("build flwr.app.Message directly")

    def get_nodes(self) -> Iterable[Any]:
        """Refuse: node records need a running SuperLink."""
        raise NotImplementedError("use get_node_ids")


class InProcessGrid(GridWithoutLink):
    """Flower's Grid that calls a ClientApp in this process.

    A reply is kept until it is pulled, a message not at all.

    Args:
        client_app: the app every node runs.
        node_configs: of the nodes, which are numbered from 1.
        run_id: of every node's Context.
        run_config: what the nodes see as the run's configuration.
    """

    def __init__(
        self,
        client_app: ClientApp,
        node_configs: Sequence[Mapping[str, Any]],
        *,
        run_id: int,
        run_config: Mapping[str, Any],
    ) -> None:
        super().__init__(node_configs, run_id=run_id, run_config=run_config)
        self._client_app = client_app
        self._arrived: dict[str, list[Message]] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run the ClientApp on every message and keep the replies until they are pulled."""
        ids: list[Any] = []
        for message in messages:
            name = _named(message)
            for reply in self._replies(message):
                self._arrived.setdefault(reply.metadata.reply_to_message_id, []).append(reply)
            # None is what Flower's Grid of deployments gives for a message that did not arrive.
            ids.append(name if name in self._arrived else None)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies to these messages that have arrived and were not pulled yet."""
        return [reply for name in message_ids for reply in self._arrived.pop(name, [])]

    def _replies(self, message: Message) -> list[Message]:
        """What comes back after a message: the reply of its node."""
        return [self._client_app(message, self._contexts[message.metadata.dst_node_id])]


class LocalGrid(GridWithoutLink):
    """Flower's Grid before nodes of this machine, for which processes of it answer.

    A process that ends answers the one message it had with Flower's error for it; another one takes
    its place. All of them end when this process does, however it ends.

    Args:
        app: folder of the app.
        client_app: its ClientApp, as `[tool.flwr.app.components]` names it.
        num_nodes: nodes, numbered from 1 and given `partition-id` and `num-partitions`.
        run_config: what the nodes see as the run's configuration.
        run_id: of every node's Context.
        processes: that answer, >= 1; they begin to load the app at once.
    """

    #: Whether the nodes are one person's, and as many as it is told each time.
    is_simulation = True
    #: Why no other node will ever come, however long one waits.
    all_there = "num-nodes in the app's pyproject.toml says how many `privsyn run` starts"

    def __init__(
        self,
        app: Path,
        client_app: str,
        *,
        num_nodes: int,
        run_config: Mapping[str, Any],
        run_id: int,
        processes: int,
    ) -> None:
        self._loads = (str(app), client_app, run_id)
        super().__init__(partitions(num_nodes), run_id=run_id, run_config=run_config)
        self._asked: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._arrived: dict[str, Message] = {}
        self._starting = threading.Lock()
        self._processes: list[Any] = []
        self._closed = False
        # Here and not in the threads: what this process loads next must not find `_ALONE`.
        for pipe in [self._process() for _ in range(processes)]:
            threading.Thread(target=self._serve, args=(pipe,), daemon=True).start()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hand messages to the next free processes; returns at once, with the id of each."""
        ids = []
        for message in messages:
            name = _named(message)
            ids.append(name)
            self._asked.put(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies to these messages that have arrived and were not pulled yet."""
        return [self._arrived.pop(name) for name in message_ids if name in self._arrived]

    def close(self) -> None:
        """End the processes; what they were asked stays unanswered."""
        with self._starting:
            self._closed = True
            for process in self._processes:
                process.kill()
                process.join()

    def _serve(self, pipe: Connection | None) -> None:
        """Answer one message after the other by one process, by a new one where that has ended."""
        while pipe is not None:
            message = self._asked.get()
            node = message.metadata.dst_node_id
            try:
                pipe.send((message, self._contexts[node]))
                reply, self._contexts[node] = pipe.recv()
            except Exception as error:  # it has ended, or what it was sent or sent cannot be read
                said = "" if isinstance(error, EOFError | OSError) else f": {type(error).__name__}"
                reply = _error(_CRASHED, f"the process that answered has ended{said}", message)
                pipe.close()  # one that has not ended does so now
                pipe = self._process()
            self._arrived[message.metadata.message_id] = reply

    def _process(self) -> Connection | None:
        """Start a process that answers, and return the pipe to it; None once all are to end."""
        spawning = multiprocessing.get_context("spawn")
        ours, theirs = spawning.Pipe()
        process = spawning.Process(target=_answer, args=(theirs, *self._loads))
        with self._starting, variables(_ALONE):
            if self._closed:
                return None
            process.start()
            self._processes.append(process)
        theirs.close()  # or the end of the process would not close the pipe
        return ours


def _end_with_the_server_app() -> None:
    server_app = multiprocessing.parent_process()
    assert server_app is not None
    server_app.join()
    os._exit(1)  # without a word


def _answer(pipe: Connection, app: str, client_app: str, run_id: int) -> None:
    """Answer messages by a ClientApp until the other end of the pipe closes."""
    threading.Thread(target=_end_with_the_server_app, daemon=True).start()
    from flwr.clientapp.client_app import LoadClientAppError

    with flower_identity(run_id=run_id), contextlib.suppress(EOFError):
        try:
            loaded = loaded_app(client_app, app, ClientApp, LoadClientAppError)
        except Exception:
            traceback.print_exc()
            loaded = None
        while True:
            message, context = pipe.recv()
            if loaded is None:
                reply = _error(_NOT_LOADED, "the ClientApp cannot be loaded", message)
            else:
                try:
                    reply = loaded(message, context)
                except Exception as error:
                    traceback.print_exc()
                    reply = _error(_RAISED, type(error).__name__, message)
            pipe.send((reply, context))


def loaded_app(name: str, app: str, kind: type[Loaded], error: type[Exception]) -> Loaded:
    """The ClientApp or ServerApp of an app, loaded as Flower loads it.

    Args:
        name: as `[tool.flwr.app.components]` has it.
        app: folder of the app.
        kind: what it has to be.
        error: Flower's, for one that cannot be loaded.
    """
    from flwr.supercore.object_ref import load_app

    found = load_app(name, error, app)
    if not isinstance(found, kind):
        raise error(f"{name} is no {kind.__name__}")
    return found


def _error(code: int, reason: str, message: Message) -> Message:
    return Message(Error(code=code, reason=reason), reply_to=message)


@contextlib.contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for what is started in this block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
