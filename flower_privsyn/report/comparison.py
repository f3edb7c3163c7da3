"""A comparison as tables, in Markdown and in a terminal, from `compare.json`.

The figures of quality are computed from held-out private text without noise, so both carry the
stamp of such figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from flower_privsyn.report.numbers import bytes_text, counted, epsilon_text, number, whole

#: Columns: heading, and the text of a row's field.
Column = tuple[str, Callable[[Mapping[str, Any]], str]]


def _figure(key: str, digits: int, scale: float = 1.0) -> Callable[[Mapping[str, Any]], str]:
    def text(row: Mapping[str, Any]) -> str:
        figure = row.get(key)
        if figure is None:
            return "-"
        value = f"{scale * figure['mean']:z.{digits}f}"  # z: no zero has a sign
        error = figure["standard_error"]
        return value if error is None else f"{value} ± {scale * error:.{digits}f}"

    return text


def _value(key: str, shown: Callable[[float | None], str]) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: shown((row.get(key) or {"mean": None})["mean"])


def _interval(key: str, digits: str, scale: float = 1.0) -> Callable[[Mapping[str, Any]], str]:
    def text(row: Mapping[str, Any]) -> str:
        found = row.get(key)
        if found is None:
            return "-"
        value, low, high = (
            format(scale * found[name], digits) for name in ("value", "low", "high")
        )
        return f"{value} [{low}, {high}]"

    return text


#: What a method costs whose epsilon is of a sample on its owner's machine, and of all samples of
#: the user with most of them; not one axis with ε.
_LOCAL: Final[Column] = (
    "local ε of a sample, of a user",
    lambda row: (
        ", ".join(f"{row[f'local_epsilon_{of}']['mean']:,.0f}" for of in ("sample", "user"))
        if _is_local(row)
        else "-"
    ),
)

_EPSILON: Final[Column] = (
    "ε",
    lambda row: "-" if _is_local(row) else epsilon_text(row["epsilon"]),
)

_QUALITY: Final[tuple[Column, ...]] = (
    ("next-token accuracy, %", _figure("next_token_accuracy", 2, 100.0)),
    ("bits per byte", _figure("bits_per_byte", 4)),
    ("gap closed, %", _interval("gap_closed", "z.0f", 100.0)),
    ("from the best floor, %", _interval("from_floor", "z.0f", 100.0)),
    ("steps", _value("steps", whole)),
)

_DIFFERENCES: Final[tuple[Column, ...]] = (
    ("bits below the best floor", _interval("over_floor", "+.4f")),
    ("bits below the best at its ε", _interval("to_best", "+.4f")),
)

_COSTS: Final[tuple[Column, ...]] = (
    ("Fréchet²", _figure("frechet", 3)),
    ("MAUVE", _figure("mauve", 3)),
    ("copies, %", _figure("copies", 2, 100.0)),
    ("rounds", _value("rounds", whole)),
    ("up per user", _value("bytes_up", bytes_text)),
    ("down per user", _value("bytes_down", bytes_text)),
    ("CPU s per user", _value("client_cpu_seconds", number)),
    ("server s", _value("server_seconds", number)),
)


def _is_local(row: Mapping[str, Any]) -> bool:
    return row.get("local_epsilon_sample") is not None


def tables(
    document: Mapping[str, Any],
) -> list[tuple[str, list[str], list[tuple[str, ...]]]]:
    """Title, headings and rows of three tables: quality, differences, and what it costs."""
    local = (_LOCAL,) if any(map(_is_local, document["summary"])) else ()
    return [
        (title, ["method", *(name for name, _ in columns)], _lines(document, columns))
        for title, columns in (
            ("What each method ends with", (_EPSILON, *local, *_QUALITY)),
            ("What two methods differ by on the same people", (_EPSILON, *_DIFFERENCES)),
            ("Text, and what it costs", (_EPSILON, *_COSTS)),
        )
    ]


def markdown(document: Mapping[str, Any]) -> str:
    """`comparison.md`: the table under its stamp, what it is of, and the cells that failed."""
    (_, headings, rows), *others = tables(document)
    for _, more, beside in others:  # which have method and ε first, too
        headings += more[2:]
        rows = [(*row, *cells[2:]) for row, cells in zip(rows, beside, strict=True)]
    lines = [f"> {document['stamp']}", "", _row(headings), "|---|" + "---:|" * (len(headings) - 1)]
    lines += [*map(_row, rows), ""]
    lines += [caption(document), ""]
    found = failures(document)
    lines += ["Failed:", ""] if found else []
    for cell in found:
        sentence = " ".join(str(cell["error"]).split())
        lines.append(f"- {called(cell)}: {sentence}")
    lines += [""] if found else []
    return "\n".join(lines)


def called(cell: Mapping[str, Any]) -> str:
    """A cell in words."""
    local = cell["kind"] == "local text"
    budget = "a local ε" if local else f"ε = {epsilon_text(cell['epsilon'])}"
    return f"{cell['title']}, {budget}, seed {cell['seed']}"


def failures(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The cells that say why they failed."""
    return [cell for cell in document["cells"] if cell.get("error")]


def caption(document: Mapping[str, Any]) -> str:
    """What the table is of, in words."""
    data = document["data"]
    rows = document["summary"]
    seeds = max((row["planned"] for row in rows), default=0)
    copies = ""
    others = [row["copies_held_out"]["mean"] for row in rows if row.get("copies_held_out")]
    if others:
        copies = (
            " Copies: texts that are a user's, share 13 words in a row with one, or half of their "
            f"three-word pieces; of the held-out texts themselves {100 * others[0]:.2f} %."
        )
    people = f"{data['private_users']:,} users took part"
    if data["groups"] > 1:
        people += f" in each of {data['groups']} groups without one in common, a seed each"
    return (
        f"{document['downstream']} on the text of {data['held_out_users']:,} held-out users of "
        f"{data['name']}; {people}, δ = {document['delta']:.2g}; mean ± standard error over "
        f"{counted(seeds, 'seed')}. A student of the server's has the steps and the rate that are "
        f"best on {data['tuning_users']:,} other users. Gap closed: by bits, from the public model "
        "(0), or the best floor, to fine-tuning on the private text itself (100). In brackets 95 % "
        "intervals over held-out users, the same of both that are compared."
        f"{_lost_rounds(document)}{copies} Traffic and CPU time are of one user in the whole run."
    )


def _lost_rounds(document: Mapping[str, Any]) -> str:
    """Which cells had fewer releases than was planned, and would give more without that."""
    found = [
        f"{called(cell)} ({lost})"
        for cell in document["cells"]
        if (lost := (cell.get("costs") or {}).get("rounds_lost"))
    ]
    if not found:
        return ""
    return (
        f" Rounds that were interrupted, or answered by too few, gave nothing: {'; '.join(found)}."
    )


def _note(row: Mapping[str, Any]) -> str:
    if row["seeds"] == row["planned"]:
        return ""
    failed = f", {row['failed']} failed" if row["failed"] else ""
    return f" ({row['seeds']} of {row['planned']} seeds{failed})"


def _row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _lines(document: Mapping[str, Any], columns: Sequence[Column]) -> list[tuple[str, ...]]:
    return [
        (row["title"] + _note(row), *(text(row) for _, text in columns))
        for row in document["summary"]
    ]
