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
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import read_json_lines
from flower_privsyn.report import require_libraries, svg
from flower_privsyn.report.figures import WIDE, axes_of, settle
from flower_privsyn.report.numbers import bytes_text
from flower_privsyn.report.svg import INK, MUTED, colour, drawing, embedded
from research.compared_cells import cells_of, printed, summary_of
from research.measured_cells import CHOICES

#: What the style sheet begins with: its colours, on a light and on a dark screen.
_COLOURS = re.compile(r":root\{[^}]*\}\s*@media \(prefers-color-scheme:dark\)\{:root\{[^}]*\}\}")

#: What has closed all of the gap.
CEILING = "finetune-private"

#: Where the catalogue's title is one below another's.
_TITLES = {"distill-public": "public text, distilled"}

#: Of a bar, in pixels, and of the space for the axis.
_HIGH, _AXIS = 27, 62


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
            return MUTED
        return colour(0 if self.rounds == 1 else 1)


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
        taught = row.get("distilled_accuracy")
        found.append(
            Bar(
                method=name,
                title=_TITLES.get(name) or CHOICES.get(name, methods[name].title),
                gap=gap["mean"],
                error=gap["standard_error"],
                taught=None if taught is None else (taught["mean"] - floor) / (ceiling - floor),
                bytes_up=round(row["bytes_up"] or 0),
                rounds=round(row["rounds"] or 0),
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
    described = "; ".join(f"{bar.title}: {bar.words}" for bar in bars)
    with drawing():
        figure, axes = axes_of(
            WIDE,
            _AXIS + _HIGH * len(bars),
            ("% of the way; paler: taught by the generator as well", title),
        )
        places = range(len(bars), 0, -1)
        for place, bar in zip(places, bars, strict=True):
            if bar.taught is not None:
                axes.barh(place, 100 * bar.taught, height=0.66, color=bar.shade, alpha=0.35)
            axes.barh(place, 100 * bar.gap, height=0.66, color=bar.shade, alpha=0.8)
            end = 100 * max(0.0, bar.end)
            if bar.error is not None:
                error = 100 * bar.error
                middle = 100 * bar.gap
                axes.plot(
                    [middle - error, middle + error], [place, place], color=INK, linewidth=1.2
                )
                end = max(end, middle + error)
            axes.text(end + 0.8, place - 0.18, bar.words, color=INK, fontsize=11)
        axes.set_yticks(list(places), [bar.title for bar in bars])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        axes.axvline(0, color=MUTED, linewidth=1)
        lowest = min(0.0, *(100 * bar.gap for bar in bars))
        axes.set(xlim=(1.05 * lowest, 100 * max(bar.end for bar in bars) + 24))
        axes.set_ylim(0.3, len(bars) + 0.7)
        settle(figure)
        return standalone(embedded(figure, title, described, "gap"))


def standalone(element: str) -> str:
    """An element of a page as a file of its own, for pages without the style sheet.

    Args:
        element: of `embedded`, with a title.

    Returns:
        SVG with the colours of the style sheet, on paper of their own; dark on a dark screen.
    """
    style = (Path(svg.__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    found = _COLOURS.match(style)
    assert found is not None, "the style sheet begins with its colours"
    root = ElementTree.fromstring(element)
    left, top, width, height = root.attrib["viewBox"].split()
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "width": width, "height": height}
    sheet = ElementTree.Element("style")
    sheet.text = f"{found[0]}text{{font-family:system-ui,sans-serif}}"
    paper = ElementTree.Element(
        "rect", {"x": left, "y": top, "width": width, "height": height, "fill": "var(--paper)"}
    )
    root[2:2] = [sheet, paper]
    return ElementTree.tostring(root, encoding="unicode") + "\n"


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
