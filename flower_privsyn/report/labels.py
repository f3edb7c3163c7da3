"""Names beside what they name, without covering one another.

Two ways. Names at the right edge of a chart stand in one column, moved up and down as little as
keeps them apart. Names inside a chart each choose one of a few places around their mark; the
choices are improved one by one until none can be bettered. Both say whether everything found room,
so that a chart can be drawn again with more of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Widths of characters in units of the font size, of DejaVu Sans, the widest of the fonts that a
#: page is likely to be shown in; so an estimate errs to the safe side.
_WIDTHS = {
    **dict.fromkeys("ijl'|", 0.28),
    **dict.fromkeys("It.,:;![]()/ ", 0.36),
    **dict.fromkeys('fr-"', 0.42),
    **dict.fromkeys("mMwW%@\N{EM DASH}∞±\N{MULTIPLICATION SIGN}≥≤→", 0.98),
    **dict.fromkeys("ABCDEFGHKNOPQRSTUVXYZ&", 0.74),
}
_OTHER = 0.64


@dataclass(frozen=True)
class Box:
    """A rectangle on a chart, in its units; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """The area that both cover; 0 where they only touch."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return width * height if width > 0 and height > 0 else 0.0

    def outside(self, frame: Box) -> float:
        """How much of the area lies outside a frame."""
        area = (self.right - self.left) * (self.bottom - self.top)
        return area - self.overlap(frame)


def text_width(text: str, size: float) -> float:
    """About how wide a line of text is, in units of the chart; rather too wide than too narrow."""
    return size * sum(_WIDTHS.get(character, _OTHER) for character in text)


def wrap(text: str, width: float, size: float) -> list[str]:
    """A text in lines of at most this width; a longer word stands alone."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def spread(
    wanted: Sequence[float], heights: Sequence[float], low: float, high: float
) -> list[float] | None:
    """Centres of labels in a column, none covering another, as near as can be to the wanted ones.

    The sum of squared distances is least: labels that would collide form blocks, and a block
    stands where its members' mean wish is (pool adjacent violators).

    Args:
        wanted: where each centre would best be.
        heights: of the labels, with the space between them.
        low: upper edge of the column.
        high: lower edge.

    Returns:
        The centres in the order given; None where the labels do not fit.
    """
    if sum(heights) > high - low + 1e-9:
        return None
    order = sorted(range(len(wanted)), key=lambda index: (wanted[index], index))
    # Each block: its members, their total height, and the sum of wishes for its upper edge.
    blocks: list[tuple[list[int], float, float]] = []
    for index in order:
        members, height = [index], heights[index]
        wishes = wanted[index] - heights[index] / 2
        while blocks:
            before, above, earlier = blocks[-1]
            top, edge = wishes / len(members), earlier / len(before) + above
            if _clamped(top, height, low, high) >= _clamped(edge - above, above, low, high) + above:
                break
            blocks.pop()
            # What the members wish for their block's edge, shifted by what now stands above them.
            wishes = earlier + wishes - above * len(members)
            members, height = before + members, above + height
        blocks.append((members, height, wishes))
    centres = [0.0] * len(wanted)
    for members, height, wishes in blocks:
        edge = _clamped(wishes / len(members), height, low, high)
        for index in members:
            centres[index] = edge + heights[index] / 2
            edge += heights[index]
    return centres


def _clamped(edge: float, height: float, low: float, high: float) -> float:
    return min(max(edge, low), high - height)


def place(
    choices: Sequence[Sequence[Box]], obstacles: Sequence[tuple[Box, float]], frame: Box
) -> tuple[list[int], bool]:
    """One place for each label, chosen so that little is covered.

    Args:
        choices: for each label the places it may take, the best first.
        obstacles: what else is drawn, each with how bad it is to cover it; 1 is as bad as covering
            another label, and less than that is allowed where nothing else is left.
        frame: what the labels must stay in.

    Returns:
        The number of the choice of each label; and whether no label covers another one or an
        obstacle of weight 1, or leaves the frame.
    """
    fixed = [
        [
            0.02 * rank * (box.right - box.left)
            + 4 * box.outside(frame)
            + sum(weight * box.overlap(thing) for thing, weight in obstacles)
            for rank, box in enumerate(options)
        ]
        for options in choices
    ]
    chosen = [min(range(len(costs)), key=costs.__getitem__) for costs in fixed]
    for _ in range(20):
        changed = False
        for label, options in enumerate(choices):
            costs = [
                cost
                + sum(
                    box.overlap(choices[other][chosen[other]])
                    for other in range(len(choices))
                    if other != label
                )
                for box, cost in zip(options, fixed[label], strict=True)
            ]
            best = min(range(len(costs)), key=costs.__getitem__)
            if costs[best] < costs[chosen[label]] - 1e-9:
                chosen[label], changed = best, True
        if not changed:
            break
    boxes = [options[choice] for options, choice in zip(choices, chosen, strict=True)]
    clean = all(
        box.outside(frame) <= 1e-6
        and not any(box.overlap(other) for other in boxes[number + 1 :])
        and not any(box.overlap(thing) for thing, weight in obstacles if weight >= 1)
        for number, box in enumerate(boxes)
    )
    return chosen, clean
