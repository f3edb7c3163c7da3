"""`privsyn data`: what a file of users holds, for its owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from flower_privsyn.cli.options import Json, given, option
from flower_privsyn.cli.output import show_json, show_table

if TYPE_CHECKING:
    from flower_privsyn.evaluation.description import DataDescription, Spread

#: What of a run is counted here, as it is by default.
_RUN: Final[dict[str, Any]] = {
    "max-tokens": 64,
    "max-samples": 8,
    "embedding-model": "all-MiniLM-L6-v2",
}


def data(
    source: Annotated[str, typer.Argument(metavar="FILE", hidden=True)],
    settings: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "a setting of the run that is planned: max-tokens, max-samples, embedding-model, or a "
            "column of FILE, as text-column=title,body; may be given several times",
            "--set",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Count what a file of users holds, for its owner (not private).

    FILE is a file of users, a folder or a data set, as a run's data. Users, texts, tokens and dates
    are counted, and what a run would take of them. The figures are computed from
    private text without noise, for whoever holds it: to choose settings, not to publish or to send
    on. Nothing is written.
    """
    from flower_privsyn.checks import check_whole
    from flower_privsyn.data import Chunking, load_configured
    from flower_privsyn.data.load import COLUMNS
    from flower_privsyn.embedding import load_tokenizer
    from flower_privsyn.evaluation import description

    values = {**_RUN, **given(settings, {**COLUMNS, **_RUN}, "privsyn data")}
    most = check_whole("max-samples", values["max-samples"], ge=0)
    chunking = Chunking(max_tokens=values["max-tokens"], max_samples=most or None)
    users = load_configured({**values, "data": source}, strict=True)
    tokenizer, _ = load_tokenizer(values["embedding-model"])
    found = description.describe(
        users,
        source=source,
        chunking=chunking,
        tokenizer=tokenizer,
        tokenizer_name=values["embedding-model"],
    )
    if as_json:
        return show_json(found.to_dict())
    _show(found)
    return 0


def _show(found: DataDescription) -> None:
    print(f"[{found.stamp}]")
    print("For you, who hold this text: do not publish these figures or send them on.")
    show_table(_rows(found))
    print()
    per_user = {
        "texts": found.texts_per_user,
        "characters": found.characters_per_user,
        "tokens": found.tokens_per_user,
    }
    headings = ("per user", "least", *found.texts_per_user.quantiles, "most", "mean")
    show_table([(name, *_spread(values)) for name, values in per_user.items()], headings)


def _spread(values: Spread) -> list[str]:
    whole = (values.least, *values.quantiles.values(), values.most)
    return [f"{value:,}" for value in whole] + [f"{values.mean:,.1f}"]


def _rows(found: DataDescription) -> list[tuple[str, str]]:
    """The figures with their names, in words."""
    unknown = f"{found.unknown or 0.0:.1%} of the tokens are unknown to {found.tokenizer}"
    most = f"{found.max_samples} of each user" if found.max_samples else "all of each user"
    return [
        ("data", found.source),
        ("users", f"{found.users:,}, {found.users_without_text:,} of them without text"),
        ("texts", f"{found.texts:,}"),
        *((("left out", left_out),) if (left_out := _left_out(found)) else ()),
        (
            "duplicates",
            f"{found.repeated:,} texts are equal to one before; {found.shared:,} distinct texts "
            "are of more than one user",
        ),
        ("dates", _dates(found)),
        *((("unknown", unknown),) if found.unknown else ()),
        (
            "in a run",
            f"max-tokens = {found.max_tokens} cuts the texts into {found.samples:,} samples; "
            f"max-samples = {found.max_samples} ({most}) takes {found.taken:,} and leaves "
            f"{found.samples - found.taken:,} of {found.users_cut:,} users",
        ),
    ]


def _left_out(found: DataDescription) -> str:
    """What counts for nothing, and why; empty where everything counts."""
    from flower_privsyn.data.chunking import MAX_CHARACTERS, MAX_DOCUMENT_CHARACTERS, MAX_DOCUMENTS

    reasons = (
        (found.no_text, "rows without text (null, no string, or a NUL in it; not the blank ones)"),
        (found.unusable, f"texts of more than {MAX_DOCUMENT_CHARACTERS:,} characters"),
        (
            found.beyond_limits,
            f"texts of users with more than {MAX_DOCUMENTS:,} texts or {MAX_CHARACTERS:,} "
            "characters, of which a part drawn at random counts",
        ),
    )
    return "; ".join(f"{count:,} {why}" for count, why in reasons if count)


def _dates(found: DataDescription) -> str:
    if found.undated is None:
        return "no column of dates"
    if found.first_date is None:
        return "none that can be read"
    without = f"; {found.undated:,} texts without" if found.undated else ""
    return f"{found.first_date} to {found.last_date}{without}"
