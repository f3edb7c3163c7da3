"""`privsyn advise`: which method was best where something like it was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from flower_privsyn.cli.options import Json, option
from flower_privsyn.cli.output import show_json

#: What was measured, by places; `research/measured.py` makes the file.
TABLE: Final = Path(__file__).parent / "measured.json"

#: Methods that are shown, best first.
_SHOWN: Final = 6


def nearest(
    places: Sequence[Mapping[str, Any]], *, users: int, epsilon: float
) -> list[Mapping[str, Any]]:
    """The places where methods were compared, nearest first.

    Near is by factors of ten in users and in epsilon, added up. Nothing is interpolated.

    Args:
        places: with `users` and `epsilon`.
        users: that would take part.
        epsilon: of the whole run.
    """

    def distance(place: Mapping[str, Any]) -> float:
        factors = users / place["users"], epsilon / place["epsilon"]
        return sum(abs(math.log10(factor)) for factor in factors)

    return sorted(places, key=distance)


def advise(
    users: Annotated[int, option("N", "users that would take part")],
    epsilon: Annotated[float, option("E", "budget of the whole run")],
    as_json: Json = False,
) -> int:
    """Say which method was best at a measured size like yours.

    The gap is what fine-tuning on the private text itself gains over the public model; a floor asks
    nobody. Nothing is interpolated, and another model or public text may change the order: `privsyn
    compare` says it of your own. The figures were computed from private text without noise.
    """
    from flower_privsyn.checks import check_number, check_whole

    check_whole("--users", users, ge=2)
    check_number("--epsilon", epsilon, gt=0)
    places = nearest(json.loads(TABLE.read_text("utf-8")), users=users, epsilon=epsilon)
    if as_json:
        return show_json(places)
    here = places[0]
    asking = [row for row in here["methods"] if row["epsilon"]]
    # Of those that the figures do not tell from the best the one that sends least.
    most = asking[0]["gap_closed"]["low"]
    level = [row for row in asking if row["gap_closed"]["high"] >= most]
    best = min(level, key=lambda row: row["bytes_up"])["method"]
    run = f"privsyn run mine --set data=FILE --set epsilon={epsilon:g}"
    print(f"privsyn new {best} mine && {run}\n")
    print(
        f"Nearest measured: {here['data']}, {here['users']:,} users, epsilon {here['epsilon']:g}, "
        f"delta {here['delta']:.2g}:"
    )
    width = max(len(row["title"]) for row in here["methods"][:_SHOWN])
    for row in here["methods"][:_SHOWN]:
        print(f"  {row['title']:<{width}}  {_figures(row)}")
    if others := len(here["methods"][_SHOWN:]) + sum(len(one["methods"]) for one in places[1:]):
        print(f"{others} more, also elsewhere, by --json.")
    return 0


def _figures(row: Mapping[str, Any]) -> str:
    """What a method gives of the gap, by bits, and what a user sends."""
    from flower_privsyn.report.numbers import bytes_text

    shares = [
        f"{100 * share['value']:z.0f} % [{100 * share['low']:z.0f}, {100 * share['high']:z.0f}]"
        for share in (row["gap_closed"], row["from_floor"])
    ]
    sent = f"{bytes_text(row['bytes_up'])} up" if row["bytes_up"] else "asks nobody"
    return f"{shares[0]} of the gap, {shares[1]} from the best floor, {sent}"
