"""Which method at so many users and such an epsilon: what was measured nearest, and how far off.

Methods are compared where they were measured in the same place alone: on the same text, with the
same users, at the same epsilon. The place is the nearest one on logarithmic scales of users and
epsilon. Nothing is interpolated, and no figure is made up for a place where nothing was run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flower_privsyn.advice.measured import MeasuredCell, MeasuredTable
from flower_privsyn.checks import check_number, check_whole
from flower_privsyn.strategies.catalogue import compared

#: More users than there are people; a number beyond it is a slip.
_EVERYBODY: Final = 10**10


@dataclass(frozen=True, kw_only=True)
class Need:
    """What somebody has.

    Attributes:
        users: 1 to 10^10.
        epsilon: > 0.
        upload: bytes that one user may send in the whole run; None for any number.

    Raises:
        ConfigError: a value is out of range.
    """

    users: int
    epsilon: float
    upload: int | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        check_whole("--users", self.users, ge=1, le=_EVERYBODY)
        check_number("--epsilon", self.epsilon, gt=0)
        if self.upload is not None:
            check_whole("--upload", self.upload, ge=1)

    def distance(self, cell: MeasuredCell) -> float:
        """From a cell: factors of ten in users and in epsilon, added up."""
        return abs(math.log10(self.users / cell.users)) + abs(
            math.log10(self.epsilon / cell.epsilon)
        )


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What one kind of text says.

    Attributes:
        data: the text.
        place: users and epsilon of the nearest measured place.
        ranked: methods that were measured there and send little enough, best first.
        too_large: those that send more.
        unseparated: whether the first two are less than two standard errors apart, or nobody knows.
        between: how the place differs from what is needed, where that lies between measured ones.
        beyond: the same, where it is less or more than all that was measured on this text.
    """

    data: str
    place: tuple[int, float]
    ranked: tuple[MeasuredCell, ...]
    too_large: tuple[MeasuredCell, ...]
    unseparated: bool
    between: tuple[str, ...]
    beyond: tuple[str, ...]

    @property
    def is_comparison(self) -> bool:
        """Whether more than one method was measured there."""
        return len(self.ranked) + len(self.too_large) > 1


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What was measured near to what somebody has.

    Attributes:
        need: what they have.
        judgements: one for each kind of text.
        unmeasured: methods of which no kind of text has a cell in its place.
    """

    need: Need
    judgements: tuple[Judgement, ...]
    unmeasured: tuple[str, ...]

    @property
    def best(self) -> tuple[str, ...]:
        """The method that is first on each kind of text, without repetition; none where none is."""
        first = [one.ranked[0].method for one in self.judgements if one.ranked]
        return tuple(dict.fromkeys(first))


def advise(table: MeasuredTable, need: Need) -> Advice:
    """Judge by the nearest measured place of every kind of text.

    Args:
        table: of measured cells.
        need: users, epsilon and upload.
    """
    judgements = tuple(_judged(table.private(data), need) for data in table.kinds)
    seen = {cell.method for one in judgements for cell in (*one.ranked, *one.too_large)}
    # A strategy was measured where settings of it were.
    seen |= {compared()[name].settings_of for name in seen & compared().keys()}
    unmeasured = tuple(
        name
        for name, method in compared().items()
        if method.asks_users and method.kind != "distances" and name not in seen
    )
    return Advice(need=need, judgements=judgements, unmeasured=unmeasured)


def _judged(cells: Sequence[MeasuredCell], need: Need) -> Judgement:
    # Of two places as near the one with more methods says more.
    sizes = {cell.place: sum(one.place == cell.place for one in cells) for cell in cells}
    nearest = min(cells, key=lambda cell: (round(need.distance(cell), 9), -sizes[cell.place]))
    here = sorted(
        (cell for cell in cells if cell.place == nearest.place),
        key=lambda cell: cell.rank,
        reverse=True,
    )
    fits = [cell for cell in here if need.upload is None or cell.bytes_up <= need.upload]
    return Judgement(
        data=nearest.data,
        place=(nearest.users, nearest.epsilon),
        ranked=tuple(fits),
        too_large=tuple(cell for cell in here if cell not in fits),
        unseparated=unseparated(fits),
        **_differences(cells, nearest, need),
    )


def unseparated(ranked: Sequence[MeasuredCell]) -> bool:
    """Whether the first two are less than two standard errors apart, or nobody knows.

    Args:
        ranked: methods of one place, best first.
    """
    if len(ranked) < 2:
        return False
    first, second = ranked[:2]
    if first.accuracy_error is None or second.accuracy_error is None:
        # Of one seed: seeds of one place have been a tenth of a point apart, and more.
        return first.gain - second.gain < 0.003
    error = math.hypot(first.accuracy_error, second.accuracy_error)
    return first.gain - second.gain < 2.0 * error


def _differences(
    cells: Sequence[MeasuredCell], nearest: MeasuredCell, need: Need
) -> dict[str, tuple[str, ...]]:
    """Sentences on how the place differs: `between` and `beyond` of a judgement."""
    between, beyond = [], []
    for word, wanted, values, here in (
        ("users", float(need.users), [float(cell.users) for cell in cells], float(nearest.users)),
        ("epsilon", need.epsilon, [cell.epsilon for cell in cells], nearest.epsilon),
    ):
        low, high = min(values), max(values)
        if low <= wanted <= high:
            if wanted != here:
                between.append(
                    f"{word} {wanted:,g} is between those measured, {low:,g} to {high:,g}; "
                    f"judged by {here:,g}"
                )
            continue
        side, edge = ("below the least", low) if wanted < low else ("above the most", high)
        beyond.append(f"{word} {wanted:,g} is {side} measured, {edge:,g}; judged by {here:,g}")
    return {"between": tuple(between), "beyond": tuple(beyond)}
