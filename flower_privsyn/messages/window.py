"""Messages to many nodes, few of them under way at a time, through Flower's public Grid alone.

Flower's own `send_and_receive` sends everything at once and keeps every reply until the last one is
there: at one user per node, memory then grows with the federation, and in a simulation so does the
work of finding each node's message among all of them. Here messages are built when there is room
for them, and each reply is handed on and forgotten before the next is looked at.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from flower_privsyn.checks import check_whole

#: Messages under way by default: enough to keep the nodes of one machine busy and a thousand
#: devices from waiting in line for long.
MESSAGES_UNDER_WAY = 128

#: Of them, for each core of a simulation. Flower goes through all of them for every node before it
#: hands out any, and its processes answer fewer of the smallest questions in that time.
_UNDER_WAY_PER_CORE = 16

#: The part of a round's time in which one silent node keeps another from being asked.
_PATIENCE = 1 / 16

#: Seconds between two looks for replies. In between, the part of the time since the last reply by
#: which the next may be seen late.
_SHORTEST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_LATENESS = 1 / 8

#: How often a message is sent again with no other answer in between.
_ATTEMPTS = 3

#: What Ray says of a process that has ended, or whose machine is gone, in Flower's words for an
#: error of its simulation: the error's kind, and after it the name of the process.
_DEAD_PROCESS = (
    ("ActorDiedError", re.compile("actor_id: ([0-9a-f]+)")),
    ("ActorUnavailableError", re.compile("The actor ([0-9a-f]+)")),
)

#: Characters of an error in which that is looked for: Ray says it first. The rest may be long, and
#: in a deployment it is a client's own text.
_ERROR_BEGINNING = 2_000


class WindowedGrid(Grid):
    """A Grid that bounds how many messages are built and under way.

    `send_and_receive` returns an iterator: the first messages go out when it is first asked, and
    what was answered makes room for the next. It ends when everything sent is answered or when the
    time is over; what is answered later is told apart by its message id, counted, and never handed
    out as a reply to another question. A message that stays unanswered for a sixteenth of the time
    no longer keeps others waiting, so that silent nodes cost only their own answers. In a
    simulation no more are under way than keep its processes busy, 16 a core: more would be work for
    Flower.

    In a simulation Flower keeps on giving messages to a process that has ended, each of which comes
    back at once as an error. A message that met such a process was read by nobody and is sent
    again, whenever another answer shows that a living process is free. The first message that names
    a process may be what ended it, and is not.

    Args:
        grid: Flower's connection to the nodes.
        window: messages under way at most, >= 1.

    Raises:
        ConfigError: the window is not a whole number >= 1.
    """

    def __init__(self, grid: Grid, *, window: int = MESSAGES_UNDER_WAY) -> None:
        self._grid = grid
        self._window = check_whole("window", window, ge=1)
        self._overdue: set[str] = set()
        self._late = 0
        self._ended_processes: set[str] = set()

    # ---- what is passed on

    def set_run(self, run: Any) -> None:
        """Passed on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Passed on."""
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Passed on; deprecated by Flower."""
        return self._grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Passed on."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Passed on."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Passed on."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Passed on."""
        return self._grid.pull_messages(message_ids)

    # ---- the window

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages and hand out their replies, each as it comes.

        Args:
            messages: read one at a time, when there is room.
            timeout: seconds from now until no more replies are waited for; None for no limit.

        Returns:
            The replies, in the order of their arrival, each message's own at most; another reply
            to an answered message is handed out too, for the receiver to count.
        """
        seconds = math.inf if timeout is None else timeout
        return self._exchange(iter(messages), time.monotonic() + seconds, seconds * _PATIENCE)

    def take_late(self) -> int:
        """Replies to messages of earlier exchanges that have come since the last call."""
        late, self._late = self._late, 0
        return late

    def _exchange(
        self, messages: Iterator[Message], deadline: float, patience: float
    ) -> Iterator[Message]:
        self._collect_late()
        window, cores = self._window, _simulating_cores()
        if cores is not None:
            window = min(window, _UNDER_WAY_PER_CORE * cores)
        mine: set[str] = set()
        waiting: dict[str, tuple[Message, float]] = {}  # by id; until when it keeps others waiting
        unread: deque[tuple[Message, Message]] = deque()  # met an ended process; and its reply
        attempts, heard = 0, time.monotonic()
        try:
            while True:
                over = (now := time.monotonic()) >= deadline
                room = 0 if over else window - _holding(waiting, now)
                # A list: the grid of a deployment goes through it twice.
                batch = list(islice(messages, max(0, room)))
                if not batch and not waiting:
                    if over or not unread or attempts == _ATTEMPTS:
                        break
                    # Nobody is left whose answer would show that a process is free. Flower takes
                    # the process that was last given back, which may be the ended one for ever:
                    # only beside another message does one get past it.
                    attempts += 1
                    batch = [_again(unread.popleft()[0]) for _ in range(min(room, len(unread)))]
                waiting |= self._pushed(batch, until=now + patience)
                mine |= waiting.keys()
                del batch
                pulled = self._grid.pull_messages(list(waiting)) if waiting else ()
                # Flower returns them in no order; whoever met an ended process first ended it.
                replies = deque(sorted(pulled, key=lambda reply: reply.metadata.created_at))
                del pulled
                if not replies:
                    if over:
                        break  # what had come by then was looked at
                    now = time.monotonic()
                    pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, _LATENESS * (now - heard)))
                    time.sleep(min(pause, max(0.0, deadline - now)))
                    continue
                heard, free = time.monotonic(), 0
                while replies:
                    reply = replies.popleft()
                    answered = reply.metadata.reply_to_message_id
                    if answered not in mine:
                        self._note_late(reply)
                        continue
                    message, _ = waiting.pop(answered, (None, 0.0))
                    process = _ended_process(reply)
                    if process is None:
                        free, attempts = free + 1, 0
                    elif message is not None and process in self._ended_processes:
                        unread.append((message, reply))
                        continue
                    else:
                        self._ended_processes.add(process)
                    yield reply
                # Flower takes the process that was last to become free, which is a living one now.
                free = 0 if over else min(free, len(unread))
                again = [_again(unread.popleft()[0]) for _ in range(free)]
                waiting |= self._pushed(again, until=time.monotonic() + patience)
                mine |= waiting.keys()
            for _, reply in unread:
                yield reply
        finally:
            self._overdue |= waiting.keys()
        self._collect_late()

    def _pushed(self, messages: list[Message], *, until: float) -> dict[str, tuple[Message, float]]:
        """Send messages; what Flower did not take is not waited for, but is told apart."""
        if not messages:
            return {}
        ids = list(self._grid.push_messages(messages))
        if len(ids) < len(messages):  # some Grids leave out the refused, others put None
            taken = set(ids)
            messages = [m for m in messages if m.metadata.message_id in taken]
            ids = [m.metadata.message_id for m in messages]
        self._overdue |= {
            message.metadata.message_id
            for name, message in zip(ids, messages, strict=True)
            if not name
        }
        return {name: (message, until) for name, message in zip(ids, messages, strict=True) if name}

    def _collect_late(self) -> None:
        """Take out replies to earlier exchanges, which else stay in Flower's memory."""
        if self._overdue:
            for reply in self._grid.pull_messages(list(self._overdue)):
                self._note_late(reply)

    def _note_late(self, reply: Message) -> None:
        self._overdue.discard(reply.metadata.reply_to_message_id)
        # An error that Flower makes up for a message it has dropped is not an answer.
        self._late += reply.has_content()


def is_of_a_simulation(grid: Grid) -> bool:
    """Whether Flower simulates the nodes behind a grid, and makes as many as it is told each time.

    Args:
        grid: Flower's connection to the nodes, or a `WindowedGrid` around it.
    """
    inner = grid._grid if isinstance(grid, WindowedGrid) else grid
    # Whoever has such a grid has loaded it; Ray may be begun only later.
    kind = getattr(sys.modules.get("flwr.superlink.grid.inmemory_grid"), "InMemoryGrid", None)
    return bool(getattr(inner, "is_simulation", kind is not None and isinstance(inner, kind)))


def _simulator() -> Any | None:
    """Ray, where Flower simulates on it; None elsewhere."""
    ray = sys.modules.get("ray")  # whoever simulates has loaded it, or is about to
    is_initialized = getattr(ray, "is_initialized", None)
    return ray if is_initialized is not None and is_initialized() else None


def _simulating_cores() -> int | None:
    """Cores of the machines that Flower's simulation runs on; None where this is none."""
    ray = _simulator()
    return None if ray is None else max(1, int(ray.cluster_resources().get("CPU", 1)))


def _holding(waiting: dict[str, tuple[Message, float]], now: float) -> int:
    """Messages that keep others waiting."""
    return sum(until > now for _, until in waiting.values())


def _again(message: Message) -> Message:
    return Message(
        message.content,
        dst_node_id=message.metadata.dst_node_id,
        message_type=message.metadata.message_type,
        group_id=message.metadata.group_id,
    )


def _ended_process(reply: Message) -> str | None:
    """The name of the simulation's process that had ended, if that is what the reply says.

    Looks nowhere but in a simulation: elsewhere no such process exists, and the words are a
    client's, who could write anything there. One look costs the same however long they are.
    """
    if not reply.has_error() or _simulator() is None:
        return None
    said = (reply.error.reason or "")[:_ERROR_BEGINNING]
    for kind, name in _DEAD_PROCESS:
        at = said.find(kind)
        found = name.search(said, at) if at >= 0 else None
        if found:
            return found.group(1)
    return None
