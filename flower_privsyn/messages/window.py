"""Messages to many nodes, few under way at a time, through Flower's public Grid alone.

Flower's own `send_and_receive` sends everything at once and keeps every reply until the last one is
there: at one user per node, memory then grows with the federation, and in a simulation so does the
work of finding each node's message among all of them. Here messages are built when there is room
for them, and each reply is handed on and forgotten before the next is looked at.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from flwr.app import Message
from flwr.serverapp import Grid

#: Messages under way by default: enough to keep the nodes of one machine busy and a thousand
#: devices from waiting in line for long.
MESSAGES_UNDER_WAY = 128

#: The part of a round's time in which one silent node keeps another from being asked.
_PATIENCE = 1 / 16

#: Seconds between two looks for replies. In between, the part of the time since the last reply by
#: which the next may be seen late.
_SHORTEST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_LATENESS = 1 / 8


class WindowedGrid:
    """Exchanges through a Grid of Flower's, few of whose messages are built and under way.

    `send_and_receive` returns an iterator: the first messages go out when it is first asked, and
    what was answered makes room for the next. It ends when everything sent is answered or when the
    time is over; what is answered later is told apart by its message id, counted, and never handed
    out as a reply to another question. A message that stays unanswered for a sixteenth of the time
    no longer keeps others waiting, so that silent nodes cost only their own answers.

    Args:
        grid: Flower's connection to the nodes.
        window: messages under way at most, >= 1.

    Attributes:
        flower: the Grid.
    """

    def __init__(self, grid: Grid, *, window: int = MESSAGES_UNDER_WAY) -> None:
        self.flower = grid
        self._window = window
        self._overdue: set[str] = set()
        self._late = 0

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
        mine: set[str] = set()
        waiting: dict[str, float] = {}  # by id: until when it keeps others waiting
        heard = time.monotonic()
        try:
            while True:
                over = (now := time.monotonic()) >= deadline
                room = 0 if over else self._window - sum(until > now for until in waiting.values())
                # A list: the grid of a deployment goes through it twice.
                batch = list(islice(messages, max(0, room)))
                if not batch and not waiting:
                    break
                # What Flower did not take is not waited for: some Grids put None for it.
                sent = [*filter(None, self.flower.push_messages(batch))] if batch else []
                waiting |= dict.fromkeys(sent, now + patience)
                self._overdue |= {one.metadata.message_id for one in batch} - set(sent)
                mine |= waiting.keys()
                del batch
                # Flower returns them in no order.
                replies = deque(
                    sorted(
                        self.flower.pull_messages(list(waiting)) if waiting else (),
                        key=lambda reply: reply.metadata.created_at,
                    )
                )
                if not replies:
                    if over:
                        break  # what had come by then was looked at
                    now = time.monotonic()
                    pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, _LATENESS * (now - heard)))
                    time.sleep(min(pause, max(0.0, deadline - now)))
                    continue
                heard = time.monotonic()
                while replies:
                    reply = replies.popleft()
                    answered = reply.metadata.reply_to_message_id
                    if answered not in mine:
                        self._note_late(reply)
                        continue
                    waiting.pop(answered, None)
                    yield reply
        finally:
            self._overdue |= waiting.keys()
        self._collect_late()

    def _collect_late(self) -> None:
        """Take out replies to earlier exchanges, which else stay in Flower's memory."""
        if self._overdue:
            for reply in self.flower.pull_messages(list(self._overdue)):
                self._note_late(reply)

    def _note_late(self, reply: Message) -> None:
        self._overdue.discard(reply.metadata.reply_to_message_id)
        # An error that Flower makes up for a message it has dropped is not an answer.
        self._late += reply.has_content()


def is_of_a_simulation(grid: Grid) -> bool:
    """Whether Flower simulates the nodes behind a grid, and makes as many as it is told each time.

    Args:
        grid: Flower's connection to the nodes.
    """
    # Whoever has such a grid has loaded it; Ray may be begun only later.
    kind = getattr(sys.modules.get("flwr.superlink.grid.inmemory_grid"), "InMemoryGrid", None)
    return bool(getattr(grid, "is_simulation", kind is not None and isinstance(grid, kind)))
