"""The table of a comparison, as Markdown and in a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from flower_privsyn.report.numbers import bytes_text, epsilon_text

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


def _value(key: str, shown: Callable[[float], str]) -> Callable[[Mapping[str, Any]], str]:
    def text(row: Mapping[str, Any]) -> str:
        value = row.get(key)
        return "-" if value is None else shown(value)

    return text


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


#: What a method costs whose epsilon is of a sample on its owner's machine, and of all samples of
#: the user with most of them; not one axis with ε.
_LOCAL: Final[Column] = (
    "local ε of a sample, of a user",
    lambda row: (
        ", ".join(f"{row[f'local_epsilon_{of}']:,.0f}" for of in ("sample", "user"))
        if _is_local(row)
        else "-"
    ),
)

_QUALITY: Final[tuple[Column, ...]] = (
    ("ε", lambda row: "-" if _is_local(row) else epsilon_text(row["epsilon"])),
    ("next-token accuracy, %", _figure("next_token_accuracy", 2, 100.0)),
    ("gap closed, %", _figure("gap_closed", 0, 100.0)),
    ("bits per byte", _figure("bits_per_byte", 4)),
)

#: Of a second student, which the writer of the text has taught.
_DISTILLED: Final[tuple[Column, ...]] = (
    ("distilled: accuracy, %", _figure("distilled_accuracy", 2, 100.0)),
    ("bits per byte, distilled", _figure("distilled_bits_per_byte", 4)),
    ("distilled gap closed, %", _figure("distilled_gap", 0, 100.0)),
)

#: Of a classifier that learned from labelled text, and what it is to be held against.
_LABELLED: Final[tuple[Column, ...]] = (
    ("class found, %", _figure("label_synthetic", 1, 100.0)),
    ("commonest, %", _figure("label_majority", 1, 100.0)),
    ("from public text, %", _figure("label_public", 1, 100.0)),
    ("from private text, %", _figure("label_private", 1, 100.0)),
)

_COSTS: Final[tuple[Column, ...]] = (
    ("Fréchet²", _figure("frechet", 3)),
    ("copies, %", _figure("copies", 2, 100.0)),
    ("rounds", _value("rounds", "{:.0f}".format)),
    ("up per user", _value("bytes_up", bytes_text)),
    ("down per user", _value("bytes_down", bytes_text)),
    ("CPU s per user", _value("client_cpu_seconds", _seconds)),
    ("server s", _value("server_seconds", _seconds)),
)


def _is_local(row: Mapping[str, Any]) -> bool:
    return row.get("local_epsilon_sample") is not None


def _columns(document: Mapping[str, Any]) -> tuple[Column, ...]:
    """The columns: more where an epsilon is local, students were taught, or texts have classes."""
    (first, *others), rows = _QUALITY, document["summary"]
    local = (_LOCAL,) if any(map(_is_local, rows)) else ()
    taught = _DISTILLED if any(row.get("distilled_accuracy") for row in rows) else ()
    labelled = _LABELLED if any(row.get("label_synthetic") for row in rows) else ()
    return (first, *local, *others, *taught, *labelled, *_COSTS)


def markdown(document: Mapping[str, Any]) -> str:
    """`comparison.md`: the table under its stamp, what it is of, and the cells that failed."""
    titles, columns = document["titles"], _columns(document)
    lines = [
        f"> {document['stamp']}",
        "",
        "| method | " + " | ".join(heading for heading, _ in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for row in document["summary"]:
        texts = [titles[row["method"]] + _note(row), *(text(row) for _, text in columns)]
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |")
    lines += ["", caption(document), ""]
    for heading, key, found in (
        ("Failed:", "error", of_status(document, "failed")),
        ("Without a second student:", "distilled_error", untaught(document)),
    ):
        lines += [heading, ""] if found else []
        for cell in found:
            sentence = " ".join(str(cell[key]).split())
            lines.append(f"- {_called(document, cell)}: {sentence}")
        lines += [""] if found else []
    return "\n".join(lines)


def _called(document: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    budget = epsilon_text(cell["epsilon"])
    return f"{document['titles'][cell['method']]}, ε = {budget}, seed {cell['seed']}"


def untaught(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Finished cells whose second student failed."""
    return [cell for cell in of_status(document, "finished") if cell.get("distilled_error")]


def of_status(document: Mapping[str, Any], status: str) -> list[Mapping[str, Any]]:
    """The cells that have a status."""
    return [cell for cell in document["cells"] if cell["status"] == status]


def caption(document: Mapping[str, Any]) -> str:
    """What the table is of, in words."""
    data = document["data"]
    seeds = len(document["seeds"])
    once = document.get("embedding_cpu_seconds")
    embedding = "" if once is None else f"; embedding their text, once, takes {once:.2g} s more"
    taught = ""
    rows = document["summary"]
    if any(row.get("distilled_accuracy") for row in rows):
        taught = (
            " Distilled: the same student, taught by the generator of the text as well; the gap "
            "is then from random public text (0) to the private text itself (100), both "
            "distilled, and a method that writes none has that of its own student."
        )
    classes = ""
    if any(row.get("label_synthetic") for row in rows):
        classes = (
            " Class found: by logistic regression on embeddings that learned from the labelled "
            "texts, of held-out text; beside it the commonest class, and what is found by public "
            "text before any vote and by the private text itself."
        )
    copies = ""
    others = [row["copies_held_out"]["mean"] for row in rows if row.get("copies_held_out")]
    if others:
        copies = (
            " Copies: texts that are a user's, share 13 words in a row with one, or half of their "
            f"three-word pieces; of the held-out texts themselves {100 * others[0]:.2f} %."
        )
    return (
        f"{document['downstream']} on the text of {data['held_out_users']:,} held-out users of "
        f"{data['name']}; {data['private_users']:,} users took part, δ = {document['delta']:.2g}; "
        f"mean ± standard error over {seeds} seed{'s' if seeds != 1 else ''}. Gap closed: from the "
        "public model (0) to fine-tuning on the private text itself (100)"
        f"{_missing_ends(rows)}.{_above_ceiling(document)}{_lost_rounds(document)}{taught}{classes}"
        f"{copies} Traffic and CPU time are of one user in the whole run{embedding}."
    )


def _missing_ends(rows: Sequence[Mapping[str, Any]]) -> str:
    """Which ends of the gap a table lacks, whose shares are then unknown."""
    measured = {row["method"] for row in rows if row.get("next_token_accuracy")}
    lacking = [end for end in ("public-only", "finetune-private") if end not in measured]
    return f'; unknown ("-") without {" and ".join(lacking)}' if lacking else ""


def _above_ceiling(document: Mapping[str, Any]) -> str:
    """Whose gap is closed by more than all of it, and what that may come from."""
    found = {
        (row["method"], row["epsilon"]): figure["mean"]
        for row in document["summary"]
        if (figure := row.get("next_token_accuracy"))
    }
    ceiling = found.get(("finetune-private", None), math.inf)
    above = dict.fromkeys(method for (method, _), mean in found.items() if mean > ceiling)
    if not above:
        return ""
    return (
        " Above fine-tuning on the private text itself: "
        f"{', '.join(document['titles'][method] for method in above)}; the ceiling may have learnt "
        "little (--steps)."
    )


def _lost_rounds(document: Mapping[str, Any]) -> str:
    """Which cells had fewer releases than was planned, and would give more without that."""
    found = [
        f"{_called(document, cell)} ({lost})"
        for cell in of_status(document, "finished")
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


def show(document: Mapping[str, Any]) -> None:
    """Print the table to standard output, in two parts where the terminal is narrow."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.print(f"[{document['stamp']}]", markup=False, highlight=False)
    every = _columns(document)
    whole, quality = console.width >= 150 and len(every) < 12, len(every) - len(_COSTS)
    parts = [every] if whole else [every[:quality], every[:1] + every[quality:]]
    for columns in parts:
        table = Table(pad_edge=False)
        table.add_column("method", overflow="fold")
        for heading, _ in columns:
            table.add_column(heading, justify="right", overflow="fold")
        for row in document["summary"]:
            table.add_row(
                Text(document["titles"][row["method"]] + _note(row)),
                *(text(row) for _, text in columns),
            )
        console.print(table)
    console.print(caption(document), markup=False, highlight=False)
