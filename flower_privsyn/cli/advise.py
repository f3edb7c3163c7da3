"""`privsyn advise`: which method was best where something like it was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

from flower_privsyn.cli.options import Json, option
from flower_privsyn.cli.output import show_json

#: The measured cells; `research/measured_cells.py` makes the file.
TABLE: Final = Path(__file__).parent / "measured.json"

#: Variants that are a choice, named by what each sends or begins with, and their settings: files
#: below `conf` of the app of a comparison.
VARIANTS: Final[Mapping[str, str]] = {
    "joint-sketch, tokens alone": "ask-once/without-pairs",
    "joint-sketch, its teacher trained": "ask-once/with-trained-teacher",
    "joint-sketch, 8,000 pairs, its teacher trained": (
        "ask-once/with-8000-pairs-and-trained-teacher"
    ),
    "joint-sketch, text by the generator": "ask-once/joint-sketch-written",
    "joint-sketch, text by a trained generator": "ask-once/written-by-trained-generator",
    "joint-sketch, 8,000 pairs, text by a trained generator": "ask-once/written-from-8000-pairs",
    "hybrid, its teacher trained": "hybrid/hybrid-with-trained-teacher",
    "dp-fedavg, from a taught student": "from-distilled/dp-fedavg-distilled",
    "dp-ftrl, from a taught student": "from-distilled/dp-ftrl-distilled",
}

#: Methods that are shown, best first.
_SHOWN: Final = 6

#: More users than there are people; a number beyond it is a slip.
_EVERYBODY: Final = 10**10


@dataclass(frozen=True, kw_only=True)
class MeasuredCell:
    """One method in one place: a kind of text, a number of users, an epsilon.

    Attributes:
        data: what the text is.
        users: that took part.
        method: its name.
        epsilon: the budget; 0 for methods that see no private text.
        seeds: finished repetitions, >= 1.
        accuracy: mean next-token accuracy on held-out users, in [0, 1].
        accuracy_error: its standard error over seeds; None of one seed.
        bits_per_byte: mean, on the same users; None where a text has unknown tokens.
        floor: accuracy of the public model on them.
        ceiling: accuracy after fine-tuning on the private text itself; None where it was not run.
        bytes_up: one user sends in the whole run.
        bytes_down: one user receives.
        client_cpu_seconds: of one user; None where nobody counted.
    """

    data: str
    users: int
    method: str
    epsilon: float
    seeds: int
    accuracy: float
    accuracy_error: float | None
    bits_per_byte: float | None
    floor: float
    ceiling: float | None
    bytes_up: int
    bytes_down: int
    client_cpu_seconds: float | None

    @property
    def gain(self) -> float:
        """Accuracy above the public model."""
        return self.accuracy - self.floor

    @property
    def gap_closed(self) -> float | None:
        """Share of the way from the floor to the ceiling; None without one above it."""
        if self.ceiling is None or self.ceiling <= self.floor:
            return None
        return self.gain / (self.ceiling - self.floor)


def nearest(
    cells: Sequence[MeasuredCell], *, users: int, epsilon: float
) -> list[list[MeasuredCell]]:
    """The places where methods were compared, nearest first; methods best first.

    Near is by factors of ten in users and in epsilon, added up. Nothing is interpolated.

    Args:
        cells: that were measured.
        users: that would take part.
        epsilon: of the whole run.
    """
    places: dict[tuple[str, int, float], list[MeasuredCell]] = {}
    for cell in sorted(cells, key=lambda cell: (-round(cell.gain, 4), cell.bytes_up)):
        if cell.epsilon > 0:
            places.setdefault((cell.data, cell.users, cell.epsilon), []).append(cell)

    def distance(here: list[MeasuredCell]) -> tuple[float, int]:
        factors = users / here[0].users, epsilon / here[0].epsilon
        return sum(abs(math.log10(factor)) for factor in factors), -len(here)

    # One method alone has nothing to say of others.
    return sorted((here for here in places.values() if len(here) > 1), key=distance)


def advise(
    users: Annotated[int, option("N", "users that would take part")],
    epsilon: Annotated[float, option("E", "budget of the whole run")],
    as_json: Json = False,
) -> int:
    """Say which method was best at a measured size like yours.

    Nothing is interpolated, and another model or public text may change the order: `privsyn
    compare` says it of your own. The figures were computed from private text without noise.
    """
    from flower_privsyn.checks import check_number, check_whole

    check_whole("--users", users, ge=2, le=_EVERYBODY)
    check_number("--epsilon", epsilon, gt=0)
    cells = [MeasuredCell(**cell) for cell in json.loads(TABLE.read_text("utf-8"))["cells"]]
    places = nearest(cells, users=users, epsilon=epsilon)
    if as_json:
        return show_json([[asdict(cell) for cell in here] for here in places])
    here = places[0]
    config = VARIANTS.get(here[0].method, f"cpu/{here[0].method}")
    print(
        f"privsyn new every-method every && privsyn run every --config {config} "
        f"--set data=FILE --set epsilon={epsilon:g}\n"
    )
    print(f"On {here[0].data}, by {here[0].users:,} users at epsilon {here[0].epsilon:g}:")
    width = max(len(cell.method) for cell in here)
    for cell in here[:_SHOWN]:
        print(f"  {cell.method:<{width}}  {_figures(cell)}")
    if others := len(here[_SHOWN:]) + sum(map(len, places[1:])):
        print(f"{others} more, also on other text, by --json.")
    return 0


def _figures(cell: MeasuredCell) -> str:
    """What a method gives, and what a user sends: points above the public model, and the gap."""
    from flower_privsyn.report.numbers import bytes_text

    points = f"{100 * cell.gain:+.2f} points"
    if cell.accuracy_error is not None:
        points += f" \N{PLUS-MINUS SIGN} {100 * cell.accuracy_error:.2f}"
    gap = cell.gap_closed
    closed = "" if gap is None else f", {100 * gap:.0f} % of the gap"
    seeds = f"{cell.seeds} seed{'s' if cell.seeds > 1 else ''}"
    return f"{points}{closed}, {seeds}, {bytes_text(cell.bytes_up)} up"
