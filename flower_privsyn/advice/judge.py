"""Which method at so many users and such an epsilon: what was measured nearest, and how far off.

Methods are compared where they were measured in the same place alone: on the same text, with the
same users, at the same epsilon. The place is the nearest one on logarithmic scales of users and
epsilon where more than one was measured; what was measured alone, and nearer, is said beside it.
Nothing is interpolated, and no figure is made up for a place where nothing was run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from flower_privsyn.advice.measured import MeasuredCell, MeasuredTable
from flower_privsyn.checks import check_number, check_whole
from flower_privsyn.strategies.catalogue import compared

#: More users than there are people; a number beyond it is a slip.
_EVERYBODY: Final = 10**10

#: Accuracy by which two cells of one seed must differ.
_SEEDS_APART: Final = 0.003


@dataclass(frozen=True, kw_only=True)
class Need:
    """What somebody has.

    Attributes:
        users: 2 to 10^10, as of a run.
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
        check_whole("--users", self.users, ge=2, le=_EVERYBODY)
        check_number("--epsilon", self.epsilon, gt=0)
        if self.upload is not None:
            check_whole("--upload", self.upload, ge=1)

    def distance(self, users: int, epsilon: float) -> float:
        """From a place: factors of ten in users and in epsilon, added up."""
        return abs(math.log10(self.users / users)) + abs(math.log10(self.epsilon / epsilon))


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What one kind of text says.

    Attributes:
        data: the text.
        place: users and epsilon of the nearest measured place.
        ranked: methods that were measured there and send little enough, best first.
        too_large: those that send more.
        leaders: the first of `ranked`, and those less than two standard errors behind it, or of
            which nobody knows.
        nearer: cells of methods that were measured nearer, each without a rival.
        ahead: cells of methods that send little enough and were not measured there, in places where
            they were ahead of the first of `ranked`; of each method the nearest.
        between: how the place differs from what is needed, where that lies between measured ones.
        beyond: the same, where it is less or more than all that was measured on this text.
    """

    data: str
    place: tuple[int, float]
    ranked: tuple[MeasuredCell, ...]
    too_large: tuple[MeasuredCell, ...]
    leaders: tuple[MeasuredCell, ...]
    nearer: tuple[MeasuredCell, ...]
    ahead: tuple[MeasuredCell, ...]
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
        judgements: one for each kind of text, that of the nearest place first.
        unmeasured: methods of which no kind of text has a cell in its place.
    """

    need: Need
    judgements: tuple[Judgement, ...]
    unmeasured: tuple[str, ...]

    @property
    def best(self) -> tuple[str, ...]:
        """The methods that are first on some kind of text, or not told apart from the first."""
        first = [cell.method for one in self.judgements for cell in one.leaders]
        return tuple(dict.fromkeys(first))


def advise(table: MeasuredTable, need: Need) -> Advice:
    """Judge by the nearest measured place of every kind of text.

    Args:
        table: of measured cells.
        need: users, epsilon and upload.
    """
    judged = (_judged(table.private(data), need) for data in table.kinds)
    judgements = tuple(sorted(judged, key=lambda one: round(need.distance(*one.place), 9)))
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
    sizes = Counter(cell.place for cell in cells)
    # One method alone has nothing to say of others. Of two places as near that with more says more.
    compared_ = [cell for cell in cells if sizes[cell.place] > 1] or cells
    nearest = min(compared_, key=lambda cell: (_distance(cell, need), -sizes[cell.place]))
    here = _ranked(cell for cell in cells if cell.place == nearest.place)
    fits = [cell for cell in here if _fits(cell, need)]
    return Judgement(
        data=nearest.data,
        place=(nearest.users, nearest.epsilon),
        ranked=tuple(fits),
        too_large=tuple(cell for cell in here if cell not in fits),
        leaders=leaders(fits),
        nearer=tuple(cell for cell in cells if _distance(cell, need) < _distance(nearest, need)),
        ahead=_ahead(cells, here, need),
        **_differences(cells, nearest, need),
    )


def _distance(cell: MeasuredCell, need: Need) -> float:
    return round(need.distance(cell.users, cell.epsilon), 9)


def _fits(cell: MeasuredCell, need: Need) -> bool:
    return need.upload is None or cell.bytes_up <= need.upload


def _ranked(cells: Iterable[MeasuredCell]) -> list[MeasuredCell]:
    return sorted(cells, key=lambda cell: cell.rank, reverse=True)


def _ahead(
    cells: Sequence[MeasuredCell], here: Sequence[MeasuredCell], need: Need
) -> tuple[MeasuredCell, ...]:
    """What was not run in a place, fits, and is ahead of the first there in another one."""
    run, found = {cell.method for cell in here}, dict[str, MeasuredCell]()
    first = next((cell.method for cell in here if _fits(cell, need)), None)
    for cell in sorted(cells, key=lambda cell: need.distance(cell.users, cell.epsilon)):
        if cell.method in run or not _fits(cell, need):
            continue
        rival = next((one for one in cells if (one.place, one.method) == (cell.place, first)), None)
        if first is None or (rival is not None and apart(cell, rival)):
            found.setdefault(cell.method, cell)
    return tuple(_ranked(found.values()))


def leaders(ranked: Sequence[MeasuredCell]) -> tuple[MeasuredCell, ...]:
    """The first of some methods, and those that are not told apart from it.

    Args:
        ranked: methods of one place, best first.
    """
    return tuple(cell for cell in ranked if not apart(ranked[0], cell))


def apart(one: MeasuredCell, other: MeasuredCell) -> bool:
    """Whether one method of a place is two standard errors above another, or clearly so.

    Args:
        one: of the place.
        other: of the same place.
    """
    ahead = one.gain - other.gain
    if one.accuracy_error is None or other.accuracy_error is None:
        # Of one seed: seeds of one place have been a tenth of a point apart, and more.
        return ahead >= _SEEDS_APART
    return ahead > 0 and ahead >= 2.0 * math.hypot(one.accuracy_error, other.accuracy_error)


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
                    f"{word} {wanted:,.10g} is between those measured, {low:,g} to {high:,g}; "
                    f"judged by {here:,g}"
                )
            continue
        side, edge = ("below the least", low) if wanted < low else ("above the most", high)
        beyond.append(f"{word} {wanted:,.10g} is {side} measured, {edge:,g}; judged by {here:,g}")
    return {"between": tuple(between), "beyond": tuple(beyond)}
