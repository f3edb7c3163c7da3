"""The table of a comparison, as Markdown and in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from flower_privsyn.report.numbers import bytes_text, epsilon_text

#: Columns: heading, and the text of a row's field.
Column = tuple[str, Callable[[Mapping[str, Any]], str]]


def _figure(key: str, digits: int, scale: float = 1.0) -> Callable[[Mapping[str, Any]], str]:
    def text(row: Mapping[str, Any]) -> str:
        figure = row.get(key)
        if figure is None:
            return "-"
        value = f"{scale * figure['mean']:.{digits}f}"
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

_COLUMNS: Final[tuple[Column, ...]] = (
    ("ε", lambda row: "-" if _is_local(row) else epsilon_text(row["epsilon"])),
    ("next-token accuracy, %", _figure("next_token_accuracy", 2, 100.0)),
    ("gap closed, %", _figure("gap_closed", 0, 100.0)),
    ("bits per byte", _figure("bits_per_byte", 4)),
    ("Fréchet²", _figure("frechet", 3)),
    ("rounds", _value("rounds", "{:.0f}".format)),
    ("up per user", _value("bytes_up", bytes_text)),
    ("down per user", _value("bytes_down", bytes_text)),
    ("CPU s per user", _value("client_cpu_seconds", _seconds)),
    ("server s", _value("server_seconds", _seconds)),
)


def _is_local(row: Mapping[str, Any]) -> bool:
    return row.get("local_epsilon_sample") is not None


def _columns(document: Mapping[str, Any]) -> tuple[Column, ...]:
    """The columns, with one more where a method has an epsilon of its own."""
    first, *others = _COLUMNS
    local = (_LOCAL,) if any(map(_is_local, document["summary"])) else ()
    return (first, *local, *others)


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
    for status, heading in (("failed", "Failed:"), ("left out", "Not run, for want of time:")):
        found = [cell for cell in document["cells"] if cell["status"] == status]
        lines += [heading, ""] if found else []
        for cell in found:
            budget = epsilon_text(cell["epsilon"])
            sentence = " ".join(str(cell["error"]).split())
            lines.append(
                f"- {titles[cell['method']]}, ε = {budget}, seed {cell['seed']}: {sentence}"
            )
        lines += [""] if found else []
    return "\n".join(lines)


def caption(document: Mapping[str, Any]) -> str:
    """What the table is of, in words."""
    data = document["data"]
    seeds = len(document["seeds"])
    once = document.get("embedding_cpu_seconds")
    embedding = "" if once is None else f"; embedding their text, once, takes {once:.2g} s more"
    return (
        f"{document['downstream']} on the text of {data['held_out_users']:,} held-out users of "
        f"{data['name']}; {data['private_users']:,} users took part, δ = {document['delta']:.2g}; "
        f"mean ± standard error over {seeds} seed{'s' if seeds != 1 else ''}. Gap closed: from the "
        "public model (0) to fine-tuning on the private text itself (100). Traffic and CPU time "
        f"are of one user in the whole run{embedding}."
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
    parts = [every] if console.width >= 150 else [every[:5], every[:1] + every[5:]]
    for columns in parts:
        table = Table(pad_edge=False)
        table.add_column("method", overflow="fold")
        for heading, _ in columns:
            table.add_column(heading, justify="right")
        for row in document["summary"]:
            table.add_row(
                Text(document["titles"][row["method"]] + _note(row)),
                *(text(row) for _, text in columns),
            )
        console.print(table)
    console.print(caption(document), markup=False, highlight=False)
