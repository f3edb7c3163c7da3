"""The picture of a run's page, drawn by matplotlib, small enough to be read on a phone."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from markupsafe import Markup

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


def spending(series: Mapping[str, Sequence[tuple[int, float]]], *, budget: float | None) -> Markup:
    """What was spent by each round, as an image inside the page that refers to no other file.

    Args:
        series: by name, the numbers of rounds and what all rounds until then have spent.
        budget: that may be spent; None where there is none.
    """
    import matplotlib
    from markupsafe import Markup
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reader's font may have what the one measured lacks
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        figure = Figure(figsize=(5.2, 3.5), layout="constrained")  # a phone is 5.4 wide
        axes = figure.add_subplot()
        axes.set(xlabel="Round", ylabel="ε, all rounds until then")
        axes.grid(axis="y", alpha=0.3)
        for name, points in series.items():
            rounds, spent = zip(*points, strict=True)
            axes.step([0, *rounds], [0, *spent], where="post", label=name)
        if budget is not None:
            axes.axhline(budget, color="0.4", linestyle="--", label="budget")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside lower left", ncols=3)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    data = base64.b64encode(file.getvalue()).decode()
    return Markup('<img alt="ε spent by each round" src="data:image/svg+xml;base64,{}">').format(
        data
    )
