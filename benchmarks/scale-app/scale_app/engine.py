"""What Flower's simulation engine takes of a round, by thread, and a patch that takes less.

See docs/upstream/flower.md. Of Flower 1.41; nothing outside these benchmarks uses it.
"""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path
from queue import Queue
from typing import Any

from flwr.app import Message, RecordDict
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.linkstate import LinkStateFactory, in_memory_linkstate
from flwr.simulation.run_simulation import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.superlink.federation import NoOpFederationManager

from flower_privsyn.testing import RUN_ID, flower_identity

#: What threads are for, by what Python calls them; all others are Ray's and the interpreter's.
_PARTS = {
    "add_messages_to_queue": "looking for messages",
    "add_waiting_messages": "looking for messages",
    "put_message_into_state": "storing replies",
    "ThreadPoolExecutor": "handing messages to Ray",
}


def cpu_by_part() -> dict[str, float]:
    """CPU seconds of this process's threads so far, by what they do.

    The caller's own thread is the server app: requests, sums, noise and ledger.
    """
    seconds: dict[str, float] = {}
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    names[threading.get_native_id()] = "the server app"
    for task in Path("/proc/self/task").iterdir():
        name = names.get(int(task.name), "")
        part = next((part for key, part in _PARTS.items() if key in name), "Ray and the rest")
        part = name if name == "the server app" else part
        try:
            spent = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (OSError, IndexError):  # it has just ended
            continue
        seconds[part] = seconds.get(part, 0.0) + spent
    return seconds


class IndexedLinkState(in_memory_linkstate.InMemoryLinkState):  # type: ignore[misc]
    """Flower's, which knows of each node the messages that it has not been given yet.

    Flower's own goes through every message under way for every node that it is asked for.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waiting: dict[int, dict[str, None]] = {}
        self.arrived = threading.Event()

    def store_message_ins(self, message: Message) -> str | None:
        """Store a message, and note that it waits."""
        with self.lock:
            message_id: str | None = super().store_message_ins(message)
            if message_id is not None:
                self.waiting.setdefault(message.metadata.dst_node_id, {})[message_id] = None
                self.arrived.set()
        return message_id

    def get_message_ins(
        self, node_id: int, limit: int | None, *, run_id: int | None = None
    ) -> list[Message]:
        """A node's messages that wait; only they are looked at."""
        if not self.waiting.get(node_id):
            return []
        everything = self.message_ins_store
        with self.lock:
            names = self.waiting[node_id]
            self.message_ins_store = {n: everything[n] for n in names if n in everything}
            try:
                found: list[Message] = super().get_message_ins(node_id, limit, run_id=run_id)
                gone = names.keys() - self.message_ins_store.keys()
            finally:
                self.message_ins_store = everything
            for name in [*gone, *(message.metadata.message_id for message in found)]:
                names.pop(name, None)
                if name in gone:
                    everything.pop(name, None)
        return found


def add_waiting_messages(
    state: IndexedLinkState,
    queue: Queue[Message],
    nodes_mapping: dict[int, int],
    f_stop: threading.Event,
) -> None:
    """Put messages in the queue as they come, of the nodes that have any."""
    while not f_stop.is_set():
        state.arrived.wait(0.1)
        state.arrived.clear()
        for node_id in [node for node, names in list(state.waiting.items()) if names]:
            if node_id in nodes_mapping:
                for message in state.get_message_ins(node_id=node_id, limit=None):
                    queue.put(message)


def patch(state: Any) -> None:
    """Have this process's engine, whose link state is given, find messages by node.

    Called before the engine's threads start, which is so in a server app's first lines: they wait
    for Ray.
    """
    index(state)
    vce_api.add_messages_to_queue = add_waiting_messages


def index(state: Any) -> None:
    """Turn Flower's link state, which holds no message yet, into one that knows them by node."""
    state.__class__ = IndexedLinkState
    state.waiting, state.arrived = {}, threading.Event()


def link_state(num_nodes: int, *, patched: bool) -> tuple[Any, list[int]]:
    """A simulation's link state with a run and its nodes, and their ids."""
    factory = LinkStateFactory(
        FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
    )
    state: Any = factory.state()
    run = Run.create_empty(run_id=RUN_ID)
    run.federation_id, run.primary_task_id = NOOP_FEDERATION_ID, 1
    state.run_ids[RUN_ID] = in_memory_linkstate.RunRecord(run=run)
    state.task_store[1] = Task(task_id=1, run_id=RUN_ID)
    if patched:
        index(state)
    return state, list(vce_api._register_nodes(num_nodes, factory))


def send(state: Any, node: int, name: str) -> None:
    """Store an empty message to a node, under an id that is new."""
    message = Message(RecordDict(), node, "query.x")
    message.metadata.__dict__["_message_id"] = name
    if state.store_message_ins(message) is None:
        raise RuntimeError("Flower did not take the message.")


def looks(num_nodes: int, messages: int, *, patched: bool) -> tuple[float, float]:
    """CPU seconds to look for all nodes' messages, when there are some, and once more: the median.

    Args:
        num_nodes: that are looked for.
        messages: under way, one to a node, to the first ones.
        patched: with the index.
    """
    found = []
    with flower_identity():
        for _ in range(5):
            state, nodes = link_state(num_nodes, patched=patched)
            for node in nodes[:messages]:
                send(state, node, str(node))
            times = [time.thread_time()]
            for _ in range(2):
                for node in nodes:
                    state.get_message_ins(node_id=node, limit=1)
                times.append(time.thread_time())
            found.append((times[1] - times[0], times[2] - times[1]))
    return statistics.median(f for f, _ in found), statistics.median(e for _, e in found)
