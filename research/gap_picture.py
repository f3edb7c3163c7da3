r"""Bars of how much of the gap each method closes, with what a user sends for it, as an SVG file.

    python -m research.gap_picture research/results/compare.jsonl \
        --data "abstracts of sealed users" --users 3000 --epsilon 1 > docs/gap.svg

The gap is from the public model (0) to fine-tuning on the private text itself (100), in next-token
accuracy; a second, paler bar is of the student that the generator of the text taught as well. Lines
at their ends are standard errors over seeds, where there are several. What asks once, what asks in
rounds and what asks nobody, below the rest, have a colour each. Needs the extra `evaluation`.
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

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import read_json_lines
from flower_privsyn.report import require_libraries
from flower_privsyn.report.figures import SETTINGS
from flower_privsyn.report.numbers import bytes_text
from research.compared_cells import cells_of, printed, summary_of
from research.measured_cells import CHOICES

#: What has closed all of the gap.
CEILING = "finetune-private"

#: Where the catalogue's title is one below another's.
_TITLES = {"distill-public": "public text, distilled"}

#: What a method that asks nobody sends.
_NONE = {"mean": 0.0}


@dataclass(frozen=True, kw_only=True)
class Bar:
    """What one method closes.

    Attributes:
        method: its name.
        title: how it is called.
        gap: share of the way, of the student that read the text.
        error: its standard error; None of a single seed.
        taught: share of the way, in the same measure, of the student that was taught as well.
        bytes_up: that a user sends in the whole run; 0 where nobody is asked.
        rounds: of the run.
    """

    method: str
    title: str
    gap: float
    error: float | None
    taught: float | None
    bytes_up: int
    rounds: int

    @property
    def asks(self) -> bool:
        """Whether users are asked."""
        return self.bytes_up > 0

    @property
    def end(self) -> float:
        """Where the longer of its bars ends."""
        return max(self.gap, self.gap if self.taught is None else self.taught)

    @property
    def words(self) -> str:
        """What stands behind it."""
        share = f"{100 * self.end:z.0f} %"
        if not self.asks:
            return share
        often = "once" if self.rounds == 1 else f"{self.rounds} rounds"
        return f"{share}: {bytes_text(self.bytes_up)}, {often}"

    @property
    def shade(self) -> str:
        """Its colour."""
        if not self.asks:
            return "0.4"
        return "C0" if self.rounds == 1 else "C1"


def bars_of(
    lines: Sequence[Mapping[str, Any]], *, data: str, users: int, epsilon: float
) -> list[Bar]:
    """What was measured at one place, best first, and then what asks nobody.

    Args:
        lines: cells (`research.compared_cells`).
        data: what the text is.
        users: how many took part.
        epsilon: of the methods that ask.

    Raises:
        ConfigError: as `cells_of`; or no floor and ceiling were measured there.
    """
    cells = cells_of(lines, data=data, users=users)
    methods, rows = summary_of(cells)
    ends = {row["method"]: row for row in rows if row["method"] in ("public-only", CEILING)}
    if len(ends) < 2:
        raise ConfigError(f"public-only and {CEILING} are the ends of a gap: run both")
    floor, ceiling = (
        ends[name]["next_token_accuracy"]["mean"] for name in ("public-only", CEILING)
    )
    found = []
    for row in rows:
        gap, name = row.get("gap_closed"), str(row["method"])
        if gap is None or name in ends or row["epsilon"] not in (0.0, epsilon):
            continue
        taught = row["taught"]
        found.append(
            Bar(
                method=name,
                title=_TITLES.get(name) or CHOICES.get(name, methods[name].title),
                gap=gap["mean"],
                error=gap["standard_error"],
                taught=None if taught is None else (taught - floor) / (ceiling - floor),
                bytes_up=round((row["bytes_up"] or _NONE)["mean"]),
                rounds=round((row["rounds"] or _NONE)["mean"]),
            )
        )
    return sorted(found, key=lambda bar: (not bar.asks, -bar.end))


def picture(bars: Sequence[Bar], title: str) -> str:
    """The bars as an SVG file.

    Args:
        bars: from the top; at least one.
        title: of the picture.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require_libraries()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(9.7, 0.9 + 0.38 * len(bars)), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(textwrap.fill(title, 110), loc="left", fontsize=10)
        axes.set_xlabel("% of the way; paler: taught by the generator as well", loc="left")
        places = range(len(bars), 0, -1)
        for place, bar in zip(places, bars, strict=True):
            if bar.taught is not None:
                axes.barh(place, 100 * bar.taught, height=0.66, color=bar.shade, alpha=0.35)
            error = None if bar.error is None else 100 * bar.error
            axes.barh(place, 100 * bar.gap, xerr=error, height=0.66, color=bar.shade, alpha=0.8)
            end = max(0.0, 100 * bar.end, 100 * bar.gap + (error or 0.0))
            axes.text(end + 0.8, place, bar.words, verticalalignment="center")
        axes.set_yticks(list(places), [bar.title for bar in bars])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.axvline(0, color="0.4", linewidth=1)
        lowest = min(0.0, *(100 * bar.gap for bar in bars))
        axes.set(xlim=(1.05 * lowest, 100 * max(bar.end for bar in bars) + 24))
        described = "; ".join(f"{bar.title}: {bar.words}" for bar in bars)
        metadata = {"Date": None, "Creator": None, "Title": title, "Description": described}
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata=metadata)
    return file.getvalue()


def main(words: Sequence[str] | None = None) -> int:
    """Print the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cells", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--users", type=int, required=True)
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--title", help="of the picture, in place of the data, users and epsilon")
    parser.add_argument("--without", nargs="*", default=[], help="methods that are not drawn")
    options = parser.parse_args(words)

    def drawn() -> str:
        bars = bars_of(
            list(read_json_lines(options.cells)),
            data=options.data,
            users=options.users,
            epsilon=options.epsilon,
        )
        of = f"{options.data}, {options.users:,} users, epsilon {options.epsilon:g}"
        title = (
            f"{options.title or of}: how far from the public model to one that was fine-tuned on "
            "the private text (evaluation, not private)"
        )
        return picture([bar for bar in bars if bar.method not in options.without], title)

    return printed(drawn)


if __name__ == "__main__":
    sys.exit(main())
