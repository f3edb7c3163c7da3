"""A phase diagram: in every measured place the best method, and where its upload grows tenfold.

Places are numbers of users by epsilons. Each is drawn as a rectangle that reaches half-way to its
neighbours; a place where nothing was measured stays empty, because nothing is interpolated.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flower_privsyn.report.figures import WIDE, axes_of, settle
from flower_privsyn.report.numbers import Look, bytes_text, epsilon_text
from flower_privsyn.report.svg import INK, colour, embedded

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

#: Of a rectangle, in CSS pixels, and of the text in it.
_HIGH, _CHARACTER, _SIZE = 84, 6.3, 11.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """What won at one number of users and one epsilon.

    Attributes:
        users: that took part.
        epsilon: the budget.
        winner: title of the best method.
        look: of it.
        gained: what it gave, in a word or two.
        bytes_up: that one user sent in the whole run.
        contested: whether the second best is too near to be told apart, or there is none.
        tip: tooltip: every method there, best first.
    """

    users: int
    epsilon: float
    winner: str
    look: Look
    gained: str
    bytes_up: int
    contested: bool
    tip: str


def regions(places: Sequence[Place], title: str, identifier: str) -> Markup:
    """Draw the places that were measured.

    Args:
        places: at most one for every number of users and epsilon; at least one.
        title: of the diagram.
        identifier: unique on the page.

    Returns:
        An element of a page: rectangles filled with the colour of the winner, paler where it is
        contested; a thick line between places whose uploads differ in their power of ten.
    """
    users = sorted({place.users for place in places})
    epsilons = sorted({place.epsilon for place in places})
    height = 80 + _HIGH * len(epsilons)
    figure, axes = axes_of(WIDE, height, ("users", "epsilon"))
    axes.set(xlim=(0, len(users)), ylim=(0, len(epsilons)))
    axes.set_xticks([n + 0.5 for n in range(len(users))], [f"{count:,}" for count in users])
    axes.set_yticks([n + 0.5 for n in range(len(epsilons))], list(map(epsilon_text, epsilons)))
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    settle(figure)
    room = int(axes.get_window_extent().width / len(users) / _CHARACTER)
    tips: dict[str, str] = {}
    there = {(users.index(one.users), epsilons.index(one.epsilon)): one for one in places}
    for number, (corner, place) in enumerate(sorted(there.items())):
        tips[f"place-{number}"] = place.tip
        _draw(axes, corner, place, room, f"place-{number}")
    _draw_contours(axes, there)
    return embedded(figure, title, _described(places), identifier, tips)


def _draw(axes: Axes, corner: tuple[int, int], place: Place, room: int, name: str) -> None:
    from matplotlib.patches import Rectangle

    shade = colour(place.look.colour)
    rectangle = Rectangle((corner[0] + 0.02, corner[1] + 0.02), 0.96, 0.96, gid=name)
    rectangle.set(facecolor=shade, edgecolor=shade, linewidth=1.5)
    rectangle.set_alpha(0.12 if place.contested else 0.35)
    axes.add_patch(rectangle)
    lines = [*textwrap.wrap(place.winner, room), place.gained, f"{bytes_text(place.bytes_up)} up"]
    words: dict[str, Any] = {"ha": "center", "color": INK, "fontsize": _SIZE}
    for line, text in enumerate(lines):
        # Line by line: a text of several lines becomes several elements without a place.
        above = (len(lines) - 1) / 2 - line
        axes.text(corner[0] + 0.5, corner[1] + 0.46 + above * 15 / _HIGH, text, **words)


def _draw_contours(axes: Axes, there: dict[tuple[int, int], Place]) -> None:
    """A line on each side that two places share whose uploads are not of one power of ten."""
    for (x, y), place in there.items():
        for neighbour, side in (
            ((x + 1, y), ((x + 1, x + 1), (y, y + 1))),
            ((x, y + 1), ((x, x + 1), (y + 1, y + 1))),
        ):
            other = there.get(neighbour)
            if other is not None and _power(other) != _power(place):
                axes.plot(*side, color=INK, linewidth=2.5, solid_capstyle="round")


def _power(place: Place) -> int:
    return math.floor(math.log10(max(1, place.bytes_up)))


def _described(places: Sequence[Place]) -> str:
    """The diagram in words."""
    found = (
        f"{place.users:,} users, epsilon {epsilon_text(place.epsilon)}: {place.winner}, "
        f"{place.gained}, {bytes_text(place.bytes_up)} up"
        for place in sorted(places, key=lambda one: (one.users, one.epsilon))
    )
    return "; ".join(found)
