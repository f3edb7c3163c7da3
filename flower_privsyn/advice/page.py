"""What `privsyn advise` prints, and the page that is made of the whole table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flower_privsyn.advice.judge import Advice, Judgement, leaders
from flower_privsyn.advice.measured import MeasuredCell, MeasuredTable
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.report.numbers import bytes_text
from flower_privsyn.strategies.catalogue import compared

_HEAD = """\
# What was measured, by users and epsilon

Made by {made_by} from the cells that were measured; what was not run is empty. For
one number of users and one epsilon:

    privsyn advise --users 5000 --epsilon 1 --upload 1MB{table}

> {stamp}
"""


def advice_lines(advice: Advice) -> Iterator[str]:
    """What was measured near to what somebody has, in words.

    Args:
        advice: of them.
    """
    need = advice.need
    limit = "" if need.upload is None else f", {bytes_text(need.upload)} up at most"
    yield f"{need.users:,} users, epsilon {need.epsilon:g}{limit}:"
    compared_on = [one.data for one in advice.judgements if one.is_comparison and one.ranked]
    if not advice.best:
        yield "  nothing that was measured nearby sends so little."
    elif not any(one.ranked and one.ranked[0].pays for one in advice.judgements):
        yield "  nothing: the public model as it is predicts better than all of them."
    elif not compared_on:
        yield f"  {' or '.join(advice.best)} alone was measured nearby, and compared with nothing."
    elif len(advice.best) == 1:
        yield f"  {advice.best[0]}: first where it had rivals, on {_listed(compared_on)}."
    else:
        yield from (_first_line(method, advice) for method in advice.best)
    ahead = dict.fromkeys(cell.method for one in advice.judgements for cell in one.ahead)
    if ahead:
        yield f"  Not run in these places, and ahead in others: {_listed(list(ahead))}."
    if all(one.beyond for one in advice.judgements):
        yield "  Extrapolated: nothing like it was measured on any of these texts."
    for judgement in advice.judgements:
        yield ""
        yield from _judgement_lines(judgement)
    if advice.unmeasured:
        yield ""
        yield f"Not measured in these places: {', '.join(advice.unmeasured)}."
    if advice.best:
        yield from _how_to_begin(advice)
    yield "How these were measured: `privsyn advise --page`."
    yield "Another model or public text may change the order: `privsyn compare` on your own."


def _how_to_begin(advice: Advice) -> Iterator[str]:
    """What to type for one of the methods that are first, of those that send least."""
    configs = {
        cell.method: (cell.bytes_up, cell.config)
        for one in advice.judgements
        for cell in one.leaders
        # Others begin with what another cell of a comparison has made.
        if not cell.config.startswith("from-distilled/")
    }
    if not configs:
        return
    method = min(configs, key=lambda name: configs[name][0])
    yield (
        f"To run {method} on your own: `privsyn new every-method every`, then `privsyn run every "
        f"--config {configs[method][1]} --set data=FILE --set epsilon={advice.need.epsilon:g}`."
    )


def _first_line(method: str, advice: Advice) -> str:
    """Of one of several methods that are first, or nearly so: where it had rivals."""
    leads = [
        one
        for one in advice.judgements
        if one.is_comparison and method in (cell.method for cell in one.leaders)
    ]
    first = [one.data for one in leads if len(one.leaders) == 1]
    near = [one.data for one in leads if len(one.leaders) > 1]
    said = (("first on", first), ("not told apart from the first on", near))
    found = ", ".join(f"{what} {_listed(where)}" for what, where in said if where)
    return f"  {method}: {found or 'alone where it was measured'}."


def _listed(names: Sequence[str]) -> str:
    """Names of texts or of methods, which hold commas."""
    return " and ".join(f'"{one}"' for one in names)


def _judgement_lines(judgement: Judgement) -> Iterator[str]:
    users, epsilon = judgement.place
    yield f"On {judgement.data}, by {users:,} users at epsilon {epsilon:g}:"
    for sentence in judgement.beyond:
        yield f"  Extrapolated: {sentence}."
    for sentence in judgement.between:
        yield f"  Not this place: {sentence}."
    width = max(len(cell.method) for cell in (*judgement.ranked, *judgement.too_large))
    for cell in judgement.ranked:
        yield f"  {cell.method:<{width}}  {figures(cell)}, {_cost(cell)}"
    for cell in judgement.too_large:
        yield f"  {cell.method:<{width}}  sends too much: {_cost(cell)} ({figures(cell)})"
    if judgement.ranked and not judgement.ranked[0].pays:
        yield "  Nothing pays there: the public model as it is predicts better."
    if len(judgement.leaders) > 1:
        yield f"  The first {len(judgement.leaders)} are too near to each other to be told apart."
    if not judgement.is_comparison:
        yield "  No other method was measured there: this is no comparison."
    for cell in judgement.ahead:
        yield f"  Not run there, and ahead {_where(cell)}: {cell.method}, {_told(cell)}"
    for cell in judgement.nearer:
        yield f"  Nearer, but without a rival: {cell.method} {_where(cell)}, {_told(cell)}"


def _where(cell: MeasuredCell) -> str:
    return f"by {cell.users:,} users at epsilon {cell.epsilon:g}"


def _told(cell: MeasuredCell) -> str:
    return f"{figures(cell)}, {_cost(cell)}."


def figures(cell: MeasuredCell) -> str:
    """What a method gives: points above the public model, and how much of the gap that is."""
    points = f"{100 * cell.gain:+.2f} points"
    if cell.accuracy_error is not None:
        points += f" \N{PLUS-MINUS SIGN} {100 * cell.accuracy_error:.2f}"
    gap = cell.gap_closed
    closed = "" if gap is None else f", {100 * gap:.0f} % of the gap"
    return f"{points}{closed}, {cell.seeds} seed{'s' if cell.seeds > 1 else ''}"


def _cost(cell: MeasuredCell) -> str:
    return f"{bytes_text(cell.bytes_up)} up"


def page(table: MeasuredTable, *, made_by: str = "`privsyn advise --page`", file: str = "") -> str:
    """The whole table: the best method of every place, then every cell.

    Args:
        table: of measured cells.
        made_by: what the page says it was made by.
        file: of the table, where it is not the package's.
    """
    lines = [_HEAD.format(made_by=made_by, table=f" --table {file}" if file else "", stamp=STAMP)]
    for data in table.kinds:
        lines += [f"## {data[:1].upper()}{data[1:]}", "", *_regions(table.private(data)), ""]
    lines += ["## Every cell", "", *(f"- {sentence}" for sentence in table.setup), ""]
    lines += _every_cell(table.cells)
    return "\n".join(lines) + "\n"


def _regions(cells: Sequence[MeasuredCell]) -> Iterator[str]:
    """A grid of users by epsilon with the best method in each place that was measured."""
    epsilons = sorted({cell.epsilon for cell in cells})
    yield "| users | " + " | ".join(f"\u03b5 = {epsilon:g}" for epsilon in epsilons) + " |"
    yield "|---:|" + "---|" * len(epsilons)
    for users in sorted({cell.users for cell in cells}):
        texts = []
        for epsilon in epsilons:
            here = [cell for cell in cells if (cell.users, cell.epsilon) == (users, epsilon)]
            texts.append(_best(here))
        yield f"| {users:,} | " + " | ".join(texts) + " |"


def _best(here: Sequence[MeasuredCell]) -> str:
    if not here:
        return ""
    best, *others_ = sorted(here, key=lambda cell: cell.rank, reverse=True)
    others = f"of {len(here)} methods" if others_ else "no other method was run"
    near = leaders([best, *others_])[1:]
    if near and best.pays:
        others += f", not told apart from {_listed([cell.method for cell in near])}"
    if not best.pays:
        return f"**nothing: the public model is better**; {best.method}, {gained(best)}; {others}"
    return f"**{best.method}**, {gained(best)}, {_cost(best)}; {others}"


def gained(cell: MeasuredCell) -> str:
    """What a method gives, in one figure: the share of the gap, or points where there is none."""
    gap = cell.gap_closed
    return f"{100 * cell.gain:+.1f} points" if gap is None else f"{100 * gap:.0f} % of the gap"


def _every_cell(cells: Sequence[MeasuredCell]) -> Iterator[str]:
    columns = [
        "text",
        "users",
        "\u03b5",
        "method",
        "seeds",
        "accuracy, %",
        "above the floor",
        "gap closed, %",
        "bits per byte",
        "up per user",
    ]
    yield "| " + " | ".join(columns) + " |"
    yield "|---|---:|---:|---|" + "---:|" * (len(columns) - 4)
    for cell in cells:
        error = cell.accuracy_error
        accuracy = f"{100 * cell.accuracy:.2f}"
        accuracy += "" if error is None else f" \N{PLUS-MINUS SIGN} {100 * error:.2f}"
        gap = cell.gap_closed
        row = (
            cell.data,
            f"{cell.users:,}",
            f"{cell.epsilon:g}",
            compared()[cell.method].title if cell.method in compared() else cell.method,
            str(cell.seeds),
            accuracy,
            f"{100 * cell.gain:+.2f}",
            "-" if gap is None else f"{100 * gap:.0f}",
            "-" if cell.bits_per_byte is None else f"{cell.bits_per_byte:.4f}",
            bytes_text(cell.bytes_up) if cell.is_private else "-",
        )
        yield "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |"
