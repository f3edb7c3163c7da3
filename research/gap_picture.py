r"""Bars of how much of the gap each method closes, with what a user sends for it, as an SVG file.

    python -m research.gap_picture research/results/abstracts.json --epsilon 1 \
        --title "Abstracts of 3,000 authors, epsilon 1" > docs/gap.svg

The gap is in bits per byte, from the public model (0) to fine-tuning on the private text itself
(100), each student at its own best step. Lines at the ends of bars are 95 % intervals over people.
What asks once, what asks in rounds and what asks nobody, below the rest, have a colour each. Needs
the extra `evaluation`.
"""

from __future__ import annotations

import argparse
import io
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_privsyn.files import read_json
from flower_privsyn.report.figures import SETTINGS
from flower_privsyn.report.numbers import bytes_text

#: The ends of the gap.
ENDS = ("public-only", "finetune-private")


@dataclass(frozen=True, kw_only=True)
class Bar:
    """What one method closes.

    Attributes:
        title: how it is called.
        gap: share of the way.
        low: lower end of its interval.
        high: upper end.
        bytes_up: that a user sends in the whole run; 0 where nobody is asked.
        rounds: of the run.
    """

    title: str
    gap: float
    low: float
    high: float
    bytes_up: int
    rounds: int

    @property
    def words(self) -> str:
        """What stands behind it."""
        share = f"{100 * self.gap:z.0f} %"
        if not self.bytes_up:
            return share
        often = "once" if self.rounds == 1 else f"{self.rounds} rounds"
        return f"{share}: {bytes_text(self.bytes_up)}, {often}"

    @property
    def shade(self) -> str:
        """Its colour."""
        if not self.bytes_up:
            return "0.4"
        return "C0" if self.rounds == 1 else "C1"


def bars_of(document: Mapping[str, Any], *, epsilon: float) -> list[Bar]:
    """What was measured, best first, and then what asks nobody.

    Args:
        document: of `compare.json`.
        epsilon: of the methods that ask.
    """
    found = [
        Bar(
            title=row["title"],
            gap=gap["value"],
            low=gap["low"],
            high=gap["high"],
            bytes_up=round((row["bytes_up"] or {"mean": 0.0})["mean"]),
            rounds=round((row["rounds"] or {"mean": 0.0})["mean"]),
        )
        for row in document["summary"]
        if (gap := row["gap_closed"])
        and row["method"] not in ENDS
        and row["epsilon"] in (0.0, epsilon)
    ]
    return sorted(found, key=lambda bar: (not bar.bytes_up, -bar.gap))


def picture(bars: Sequence[Bar], title: str) -> str:
    """The bars as an SVG file.

    Args:
        bars: from the top; at least one.
        title: of the picture.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(9.7, 0.9 + 0.38 * len(bars)), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(textwrap.fill(title, 110), loc="left", fontsize=10)
        axes.set_xlabel("% of the way, by bits per byte", loc="left")
        places = range(len(bars), 0, -1)
        for place, bar in zip(places, bars, strict=True):
            apart = [[100 * (bar.gap - bar.low)], [100 * (bar.high - bar.gap)]]
            axes.barh(place, 100 * bar.gap, xerr=apart, height=0.66, color=bar.shade, alpha=0.8)
            axes.text(max(0.0, 100 * bar.high) + 0.8, place, bar.words, verticalalignment="center")
        axes.set_yticks(list(places), [bar.title for bar in bars])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.axvline(0, color="0.4", linewidth=1)
        lowest = min(0.0, *(100 * bar.low for bar in bars))
        axes.set(xlim=(1.05 * lowest, 100 * max(bar.high for bar in bars) + 24))
        described = "; ".join(f"{bar.title}: {bar.words}" for bar in bars)
        metadata = {"Date": None, "Creator": None, "Title": title, "Description": described}
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata=metadata)
    return file.getvalue()


def main() -> int:
    """Print the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("comparison", type=Path, help="its compare.json")
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--title", required=True)
    options = parser.parse_args()
    title = (
        f"{options.title}: how far from the public model to one that was fine-tuned on the "
        "private text (evaluation, not private)"
    )
    print(picture(bars_of(read_json(options.comparison), epsilon=options.epsilon), title), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
