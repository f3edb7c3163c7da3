"""`privsyn advise`: which method, by what was measured at such a size."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from flower_privsyn.cli.options import Json, option
from flower_privsyn.errors import ConfigError

if TYPE_CHECKING:
    from flower_privsyn.advice.measured import MeasuredTable

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]?)b?", re.IGNORECASE)


def advise(
    users: Annotated[int | None, option("N", "users that would take part")] = None,
    epsilon: Annotated[float | None, option("E", "budget of the whole run")] = None,
    upload: Annotated[
        str,
        option("SIZE", "most that one user may send in all, as 500kB or 1MB", show_default=False),
    ] = "",
    table: Annotated[
        str,
        option("FILE", "measured cells (default: those of the package)", show_default=False),
    ] = "",
    page: Annotated[
        bool, typer.Option("--page", help="print the whole table, in Markdown")
    ] = False,
    picture: Annotated[
        str,
        option(
            "TEXT", "print one kind of text of the table as a picture (SVG)", show_default=False
        ),
    ] = "",
    as_json: Json = False,
) -> int:
    """Say which method was best at the measured size that is nearest, and by which cells.

    Nothing is interpolated: where nothing was measured nearby, it says so. The figures were
    computed from private text without noise, by `privsyn compare`.
    """
    from flower_privsyn.advice.judge import Need
    from flower_privsyn.advice.judge import advise as judge
    from flower_privsyn.advice.measured import TABLE, MeasuredTable
    from flower_privsyn.advice.page import advice_lines
    from flower_privsyn.advice.page import page as whole_page

    measured = MeasuredTable.read(Path(table) if table else TABLE)
    if page:
        print(whole_page(measured), end="")
        return 0
    if picture:
        print(_picture(measured, picture), end="")
        return 0
    if users is None or epsilon is None:
        raise ConfigError("give --users and --epsilon, or --page for the whole table")
    advice = judge(measured, Need(users=users, epsilon=epsilon, upload=bytes_of(upload)))
    if as_json:
        print(json.dumps({**asdict(advice), "best": advice.best}, ensure_ascii=False, indent=2))
    else:
        print("\n".join(advice_lines(advice)))
    return 0


def _picture(table: MeasuredTable, data: str) -> str:
    from flower_privsyn.advice.picture import picture

    if data not in table.kinds:
        raise ConfigError(
            "--picture must be a kind of text of the table, "
            f"{', '.join(map(repr, table.kinds))}; got {data!r}"
        )
    return picture(table, data)


def bytes_of(size: str) -> int | None:
    """An amount of data in bytes: 1 kB is 1,000 of them; None where nothing is given.

    Args:
        size: as on the command line.

    Raises:
        ConfigError: it is no amount of data.
    """
    if not size:
        return None
    found = _SIZE.fullmatch(size.strip())
    if found is None:
        raise ConfigError(f"--upload must be an amount of data such as 500kB or 1MB, got {size!r}")
    return round(float(found[1]) * _UNITS[found[2].lower()])
