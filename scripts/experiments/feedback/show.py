"""The tables and the plot of docs/feedback_experiment.md, from the results alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_privsyn.errors import ConfigError, MissingExtraError
from scripts.experiments.feedback.methods import LABELS
from scripts.experiments.feedback.protocol import Protocol

#: Which lines the plot shows: colours of Okabe and Ito, told apart by markers as well.
LINES = {
    "popri-none": ("#999999", "x", "-"),
    "popri-all": ("#E69F00", "s", "-"),
    "popri-prompt": ("#D55E00", "o", "-"),
    "popri-prompt-span": ("#D55E00", "o", ":"),
    "pe": ("#CC79A7", "v", "-"),
    "sketch-mean": ("#56B4E9", "D", "-"),
    "sketch-witness": ("#009E73", "^", "-"),
    "sketch-linear": ("#0072B2", "P", "-"),
    "exact": ("#000000", "", "--"),
}

#: What was measured about one method in one setting.
Row = Mapping[str, Any]
#: A column of a table: its heading, and the mean and standard error of a method's row.
Column = tuple[str, Mapping[str, Row], Callable[[Row], list[float] | None]]


def rows_of(results: Sequence[Row], setting: str, prompts: int) -> dict[str, Row]:
    """The rows of a setting and number of prompts, by method.

    Raises:
        ConfigError: There is none.
    """
    found = {
        row["method"]: row
        for row in results
        if (row["setting"], row["prompts"]) == (setting, prompts)
    }
    if not found:
        raise ConfigError(f"the results hold nothing about {setting} with {prompts:,} prompts")
    return found


def right(row: Row, users: int, epsilon: float | None) -> list[float] | None:
    """Share of pairs in the right order and its standard error; None where it was not measured.

    What is not private has the same at every epsilon.
    """
    wanted = None if row["method"] == "exact" else epsilon
    for at, budget, *found in row["right"]:
        if (at, budget) == (users, wanted):
            return list(found)
    return None


def _right(heading: str, rows: Mapping[str, Row], users: int, epsilon: float | None) -> Column:
    return heading, rows, lambda row: right(row, users, epsilon)


def _figure(heading: str, rows: Mapping[str, Row], name: str, part: str = "figures") -> Column:
    def found(row: Row) -> list[float] | None:
        where = "without_noise" if row["method"] == "exact" else part
        value: list[float] | None = row[where].get(name)
        return value

    return heading, rows, found


def tables(results: Sequence[Row], protocol: Protocol) -> Iterator[str]:
    """The tables of the page, in Markdown.

    Raises:
        ConfigError: Something that they show was not measured.
    """
    prompts = sorted({row["prompts"] for row in results})
    users, epsilon = protocol.at
    few, many = f"{prompts[0] * protocol.size:,} candidates", prompts[-1]
    main, fewer = (rows_of(results, "abstracts", count) for count in (many, prompts[0]))
    numbers = sorted({cell[0] for cell in main["exact"]["right"]})
    budgets = sorted({cell[1] for cell in main["pe"]["right"]} - {None, epsilon})
    yield _table(
        *[_right(f"n = {n:,}", main, n, epsilon) for n in numbers],
        _right(f"{few}, n = {users:,}", fewer, users, epsilon),
    )
    yield _table(
        *[_right(f"epsilon = {budget:g}", main, users, budget) for budget in budgets],
        _right("no noise", main, users, None),
        _figure("nearer", main, "nearer"),
        _figure("chosen in domain", main, "chosen_in_domain"),
        _figure("rejected in domain", main, "rejected_in_domain"),
        _figure("numbers up", main, "numbers_up"),
    )
    speech, mixed = (rows_of(results, name, prompts[0]) for name in ("speech", "mixed"))
    yield _table(
        _right("speech", speech, users, epsilon),
        _figure("chosen in domain", speech, "chosen_in_domain"),
        _right("mixed", mixed, users, epsilon),
        _figure("chosen in domain", mixed, "chosen_in_domain"),
        _figure("chosen of the minority", mixed, "chosen_minority"),
        _figure("without noise", mixed, "chosen_minority", part="without_noise"),
    )
    yield arithmetic(main, protocol, prompts=many)


def _table(*columns: Column) -> str:
    """Methods down, columns across."""
    lines = [
        "| method | " + " | ".join(heading for heading, _, _ in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for method, label in LABELS.items():
        found = [value(rows[method]) if method in rows else None for _, rows, value in columns]
        lines.append(f"| {label} | " + " | ".join(map(_cell, found)) + " |")
    return "\n".join(lines)


def _cell(figure: list[float] | None) -> str:
    """Shares with three digits, and their standard error from a hundredth; counts as they are."""
    if figure is None:
        return "-"
    value, error = figure
    if value > 1.0:
        return f"{value:,.0f}"
    return f"{value:.3f}" + (f" ± {error:.2f}" if error >= 0.01 else "")


def arithmetic(rows: Mapping[str, Row], protocol: Protocol, *, prompts: int) -> str:
    """A Markdown table: signal over noise from a few figures, and as measured.

    With s the spread of the mean cosine over a prompt's candidates, r that of one user's cosines, v
    the length of a candidate about its prompt's mean, z the noise multiplier of one release, T
    releases, m candidates of K prompts in d dimensions and n users,

        POPri, per prompt:     n s / (r z sqrt(T (m - K)))   every user's vector has norm 1
        the same in the span:  n s / (r z sqrt(T d))
        linear sketch:         n s / (v z)
    """
    exact, users = rows["exact"]["without_noise"], protocol.at[0]
    names = ("signal", "user_spread", "candidate_spread", "dimension")
    s, r, v, d = (exact[name][0] for name in names)
    z = rows["sketch-linear"]["figures"]["noise_multiplier"][0]
    free = prompts * (protocol.size - 1)
    popri = users * s / (r * z * math.sqrt(protocol.rounds))
    predicted = {
        "popri-prompt": popri / math.sqrt(free),
        "popri-prompt-span": popri / math.sqrt(min(free, d)),
        "sketch-linear": users * s / (v * z),
    }
    lines = [
        f"| s = {s:.3f}, r = {r:.3f}, v = {v:.3f}, z = {z:.2f} | predicted | measured |",
        "|---|---:|---:|",
    ]
    for method, value in predicted.items():
        figures = rows[method]["figures"]
        measured = figures["signal"][0] / figures["noise"][0]
        lines.append(f"| {LABELS[method]} | {value:.2f} | {measured:.2f} |")
    return "\n".join(lines)


def plot(results: Sequence[Row], path: Path) -> None:
    """Share in the right order against the number of users, one panel per epsilon.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtraError("the plot needs matplotlib: pip install matplotlib") from None
    rows = rows_of(results, "abstracts", max(row["prompts"] for row in results))
    users = sorted({cell[0] for cell in rows["exact"]["right"]})
    budgets = sorted({cell[1] for cell in rows["pe"]["right"]} - {None})
    # Narrow and tall with large type: it is read at the width of a phone.
    figure, axes = plt.subplots(
        len(budgets), 1, figsize=(5.2, 3.1 * len(budgets) + 1.9), sharex=True, sharey=True
    )
    for axis, epsilon in zip(axes, budgets, strict=True):
        axis.axhline(0.5, color="#bbbbbb", linewidth=1)
        for method, (colour, marker, line) in LINES.items():
            points = [right(rows[method], n, epsilon) or [math.nan, 0.0] for n in users]
            axis.errorbar(
                users,
                [mean for mean, _ in points],
                yerr=[error for _, error in points],
                color=colour,
                marker=marker or None,
                linestyle=line,
                markersize=7,
                linewidth=2,
                capsize=2,
                label=LABELS[method],
            )
        axis.set_title(f"epsilon = {epsilon:g}", fontsize=13)
        axis.set_xscale("log")
        axis.set_xticks(users, [f"{n:,}" for n in users])
        axis.minorticks_off()
        axis.set_ylim(0.38, 1.02)
        axis.tick_params(labelsize=12)
        axis.grid(axis="y", alpha=0.3)
        axis.set_ylabel("pairs in the right order", fontsize=12)
    axes[-1].set_xlabel("users", fontsize=13)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=1, fontsize=11, frameon=False)
    figure.tight_layout(rect=(0, 2.45 / figure.get_figheight(), 1, 1))
    figure.savefig(path, dpi=160)
    plt.close(figure)
