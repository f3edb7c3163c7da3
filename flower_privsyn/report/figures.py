"""Figures of a run's page, drawn by matplotlib, small enough to be read on a phone."""

from __future__ import annotations

import base64
import io
import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from markupsafe import Markup

Points = Sequence[tuple[float, float]]
"""Places on both axes."""

#: In inches of 72 pixels: a phone is 5.4 wide, and a wide screen shows it half as large again.
_WIDTH, _HEIGHT, _LEGEND_LINE = 5.2, 3.3, 0.22

_MARKS: Final = "osD^vXP*"

SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # text that can be selected and searched
    "svg.hashsalt": "flower-privsyn",  # equal input, equal bytes
    "text.parse_math": False,  # a "$" in the name of a method is a "$"
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "legend.frameon": False,
    "figure.dpi": 72,
}


def chart(
    title: str,
    series: Mapping[str, Points],
    *,
    y: str,
    levels: Mapping[str, float] | None = None,
    steps: bool = False,
) -> Markup:
    """A chart as an image inside the page, without any reference to another file.

    Args:
        title: what it shows, for those who cannot see it.
        series: points by name, from left to right: the number of a round, and a figure.
        y: of the vertical axis.
        levels: figures without a place on the horizontal axis.
        steps: whether the points are steps that begin at 0.
    """
    import matplotlib
    from markupsafe import Markup
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    names = len(series) + len(levels or {})
    high = _HEIGHT + _LEGEND_LINE * math.ceil(names / 2)
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reader's font may have what the one measured lacks
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        figure = Figure(figsize=(_WIDTH, high), layout="constrained")
        axes = figure.add_subplot()
        axes.set(xlabel="Round", ylabel=y)
        axes.grid(axis="y", alpha=0.3)
        for (name, points), mark in zip(series.items(), itertools.cycle(_MARKS), strict=False):
            xs, ys = zip(*points, strict=True)
            if steps:
                axes.step([0, *xs], [0, *ys], where="post", label=name)
            else:
                axes.plot(xs, ys, marker=mark, label=name)
        for name, level in (levels or {}).items():
            axes.axhline(level, color="0.4", linestyle="--", label=name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside lower left", ncols=2)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    data = base64.b64encode(file.getvalue()).decode()
    return Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">').format(title, data)
