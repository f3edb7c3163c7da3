"""The phase diagram of a table of measured cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flower_privsyn.advice.judge import leaders
from flower_privsyn.advice.measured import MeasuredCell, MeasuredTable
from flower_privsyn.advice.page import figures, gained
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.report import require_libraries
from flower_privsyn.report.methods import looks, title
from flower_privsyn.report.numbers import Look, bytes_text
from flower_privsyn.report.regions import Place, regions
from flower_privsyn.report.svg import drawing, standalone

#: The stamp without its reason: there is little room in a title.
_STAMP: Final = STAMP.partition(":")[0]


def picture(table: MeasuredTable, data: str) -> str:
    """The best method in each place that was measured on one kind of text, as an SVG file.

    Args:
        table: of measured cells.
        data: one of its kinds of text.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require_libraries()
    cells = table.private(data)
    look = looks(cell.method for cell in table.cells)
    groups: dict[tuple[str, int, float], list[MeasuredCell]] = {}
    for cell in cells:
        groups.setdefault(cell.place, []).append(cell)
    places = [
        _place(sorted(here, key=lambda one: one.rank, reverse=True), look)
        for here in groups.values()
    ]
    with drawing():
        return standalone(regions(places, f"{data}: the best method ({_STAMP})", "regions"))


def _place(ranked: Sequence[MeasuredCell], look: dict[str, Look]) -> Place:
    best = ranked[0]
    told = (
        f"{title(cell.method, '')}: {figures(cell)}, {bytes_text(cell.bytes_up)} up"
        for cell in ranked
    )
    return Place(
        users=best.users,
        epsilon=best.epsilon,
        winner=title(best.method, "") if best.pays else "nothing: the public model",
        look=look[best.method],
        gained=gained(best),
        bytes_up=best.bytes_up,
        contested=not best.pays or len(ranked) < 2 or len(leaders(ranked)) > 1,
        tip="; ".join(told),
    )
