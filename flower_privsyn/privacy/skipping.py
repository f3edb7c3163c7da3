"""Invalid records are skipped: one, or a user, that cannot be processed is left out, no other is.

First the computation runs on a *probe*, a public item, even where there are no records: an error
there is raised. Errors on private records never are, so no error of a node tells whether there was
a record, or what it is. Records are processed all at once, and in halves only where that fails,
down to those that fail on their own.

What is left out is counted (`counting`, `note`). The counts depend on private text: they belong
into the node's own log and nowhere else.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

logger = logging.getLogger("flower_privsyn.client")

T = TypeVar("T")
R = TypeVar("R")

#: What ends the process, and is no record's fault. Everything else may be: a panic of a tokenizer
#: written in Rust is no `Exception`, nor is what a library raises that means to exit.
FATAL = (KeyboardInterrupt,)

#: Public text that every model reads.
PUBLIC_EXAMPLE = "The quick brown fox jumps over the lazy dog."


def map_isolating_errors(
    items: Sequence[T], compute: Callable[[Sequence[T]], Iterable[R]], *, probe: T
) -> list[R | None]:
    """Compute something of many items; None for those on which it fails.

    Formal guarantee:
        Whether this raises, and what, depends on `compute` and the probe alone, but for what ends
        the process.

    Args:
        items: The n items.
        compute: From k items to k results, in order. The result of an item must not depend on the
            others.
        probe: A public item on which only a fault of the computation itself makes it fail. It comes
            first, also where there are no items.

    Returns:
        n results, in order.

    Raises:
        BaseException: Whatever `compute` raises about the probe.
    """
    check(compute, probe=probe)
    return retry_by_halves(items, compute)


def check(compute: Callable[[Sequence[T]], Iterable[R]], *, probe: T) -> None:
    """Raise what a computation raises about a public item.

    Args:
        compute: As for `map_isolating_errors`.
        probe: As for `map_isolating_errors`.
    """
    _counted([probe], compute)


def retry_by_halves(
    items: Sequence[T], compute: Callable[[Sequence[T]], Iterable[R]]
) -> list[R | None]:
    """`map_isolating_errors`, once `check` has been passed: many calls need one probe.

    Args:
        items: The n items.
        compute: As for `map_isolating_errors`.

    Returns:
        n results, in order.
    """
    if not items:
        return []
    try:
        return _counted(items, compute)
    except FATAL:
        raise
    except BaseException:  # the items' own fault, for the probe has passed
        if len(items) == 1:
            return [None]
    half = len(items) // 2
    return [*retry_by_halves(items[:half], compute), *retry_by_halves(items[half:], compute)]


def _counted(items: Sequence[T], compute: Callable[[Sequence[T]], Iterable[R]]) -> list[R]:
    results = list(compute(items))
    if len(results) != len(items):
        raise ValueError(f"{len(items)} items gave {len(results)} results")
    return results


# ---- counts ------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What was left out.

    Attributes:
        records: Documents, those of none of the run's classes included, samples and embeddings.
        users: Whose they are, and those whose answer could not be computed.
    """

    records: int = 0
    users: set[Hashable] = field(default_factory=set)

    def __bool__(self) -> bool:
        """Whether anything was."""
        return bool(self.records or self.users)

    def __repr__(self) -> str:
        """As in words: ids are nobody's to print."""
        return f"Tally({self})"

    def __str__(self) -> str:
        """Counts alone: no id, no text, no label."""
        return (
            f"{self.records} records of {len(self.users)} users are left out, as unusable or of no "
            "class of this run: see `privsyn data`"
        )

    def add(self, other: Tally) -> None:
        """Count what another one counted as well."""
        self.records += other.records
        self.users |= other.users


_tally: ContextVar[Tally | None] = ContextVar("privsyn_skipped", default=None)


@contextlib.contextmanager
def counting() -> Iterator[Tally]:
    """Count what is left out inside the block."""
    tally = Tally()
    token = _tally.set(tally)
    try:
        yield tally
    finally:
        _tally.reset(token)


def note(users: Iterable[Hashable], *, records: int) -> None:
    """Count what is left out; outside of `counting` it is logged at once.

    Args:
        users: Whose it is: ids, or whatever tells users of a node apart.
        records: How many records; 0 where a user's whole answer is left out.
    """
    tally, more = _tally.get(), Tally(records, set(users))
    if tally is None:
        logger.warning("%s", more)
    else:
        tally.add(more)
