"""What the page of a comparison shows, from `compare.json`: its figures, without any markup.

The figures of quality are computed from held-out private text without noise, so the page carries
the stamp of such figures in its title, at its top, and at every chart and table of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from flower_privsyn.errors import DataError
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.report.figures import Chart, Level, Series, by_round
from flower_privsyn.report.line import Line
from flower_privsyn.report.methods import looks, title
from flower_privsyn.report.numbers import (
    Fact,
    Row,
    Sample,
    bytes_text,
    counted,
    epsilon_text,
    finite,
    fixed,
    mapping,
    number,
    seconds_text,
    time_text,
    whole,
)

#: Figures of quality: name, title of the axis with its unit, decimals.
_QUALITY = {
    "next_token_accuracy": (
        "Next-token accuracy",
        "Next-token accuracy on held-out users (share of tokens)",
        4,
    ),
    "frechet": (
        "Squared Fréchet distance",
        "Squared Fréchet distance to held-out text (no unit)",
        4,
    ),
}

#: Figures of text, with their decimals.
_TEXT = {
    "mmd": 5,
    "precision": 3,
    "recall": 3,
    "mauve": 3,
    "self_similarity": 3,
    "distinct_2": 3,
    "copies_exact": 4,
    "copies_near": 4,
    "copies": 4,
    "copies_held_out": 4,
}

_Point = tuple[float, float]


def read_document(path: Path) -> dict[str, Any]:
    """Read a `compare.json`.

    Args:
        path: the file.

    Raises:
        DataError: it cannot be read, or holds something else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a comparison: {error}") from error
    if not isinstance(document, dict):
        raise DataError(f"{path} holds no comparison: it is not a JSON object")
    return document


class ComparisonFacts:
    """A comparison as its page shows it; see `comparison.html.j2` for what is said beside it.

    Raises:
        DataError: the document holds no comparison.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        cells, summary = document.get("cells"), document.get("summary")
        if not isinstance(cells, list) or not isinstance(summary, list):
            raise DataError('the document of a comparison must hold "cells" and "summary" as lists')
        self.document = document
        self.cells: list[Mapping[str, Any]] = [c for c in cells if isinstance(c, Mapping)]
        self.lines = [
            Line(method=str(v.get("method")), epsilon=_epsilon(v.get("epsilon")), values=v)
            for v in summary
            if isinstance(v, Mapping)
        ]
        named = [str(name) for name in document.get("methods") or []]
        named += [line.method for line in self.lines]
        named += [str(cell.get("method")) for cell in self.cells]
        self.methods = list(dict.fromkeys(named))
        self.order = {name: place for place, name in enumerate(self.methods)}
        self.lines.sort(key=lambda line: (line.epsilon, self.order[line.method]))
        self.looks = looks(self.methods)
        given = mapping(document.get("titles"))
        self.titles = {name: title(name, given.get(name)) for name in self.methods}
        stamp = str(document.get("stamp") or STAMP)
        # The stamp is ours to give: a document that lost it is stamped all the same.
        self.stamp = stamp if STAMP in stamp else f"{STAMP}; {stamp}"
        self.data = mapping(document.get("data"))
        self.versions = [(str(n), str(v)) for n, v in mapping(document.get("versions")).items()]
        self.package_version = mapping(document.get("versions")).get("flower-privsyn")
        self.command = document.get("command")
        name = str(self.data.get("name") or "private text")
        self.heading = f"{counted(len(self.methods), 'method')} on {name}"

    @property
    def subtitle(self) -> list[str]:
        """How much of it is finished, and since when."""
        done = sum(cell.get("status") == "finished" for cell in self.cells)
        budgets = sorted({line.epsilon for line in self.lines if not line.is_reference})
        seeds = len(self.document.get("seeds") or [])
        created, finished = self.document.get("created"), self.document.get("finished")
        return [
            f"{done} of {len(self.cells)} cells finished",
            *([f"ε = {', '.join(map(epsilon_text, budgets))}"] if budgets else []),
            *([counted(seeds, "seed")] if seeds else []),
            *([f"begun {time_text(created)}"] if created else []),
            f"finished {time_text(finished)}" if finished else "not finished",
        ]

    def missing(self, *, failed: bool) -> list[Row]:
        """Cells without figures, with what is said of each.

        Args:
            failed: those that failed, with their reason; else the others, with their status.
        """
        found: list[Row] = [
            (
                *self._place(cell),
                str(cell.get("error") or "failed without a sentence")
                if failed
                else str(cell.get("status") or "pending"),
            )
            for cell in self.cells
            if cell.get("status") != "finished" and (cell.get("status") == "failed") is failed
        ]
        found += [
            (*self._place(cell), f"without a second student: {cell['distilled_error']}")
            for cell in self.cells
            if failed and cell.get("status") == "finished" and cell.get("distilled_error")
        ]
        return found

    @property
    def setting(self) -> list[Fact]:
        """What was compared, on what."""
        newer, delta = self.data.get("newer_than"), finite(self.document.get("delta"))
        return [
            ("Data", self.data.get("name")),
            ("Users who took part", _count(self.data.get("private_users"))),
            ("Held-out users", _count(self.data.get("held_out_users"))),
            ("Their texts", _count(self.data.get("held_out_texts"))),
            ("Texts newer than", str(newer) if newer else None),
            ("Model that is trained", self.document.get("downstream")),
            ("Longest text, tokens", _count(self.document.get("max_tokens"))),
            ("δ", self.delta if delta is not None else None),
            ("Seeds", ", ".join(str(s) for s in self.document.get("seeds") or []) or None),
            ("Machine", self.document.get("machine")),
        ]

    @property
    def delta(self) -> str:
        """The delta of all epsilons; a dash for none."""
        return number(finite(self.document.get("delta")), 3)

    # ---------------------------------------------------------------- quality

    def known(self, name: str) -> list[Line]:
        """The lines that have a figure."""
        return [line for line in self.lines if line.mean(name) is not None]

    def by_epsilon(self, name: str) -> Chart:
        """A figure of quality against the budget.

        Args:
            name: "next_token_accuracy" or "frechet"; some line has it.
        """
        what, axis, decimals = _QUALITY[name]
        lines = self.known(name)
        grouped: dict[str, list[Line]] = {}
        for line in sorted(lines, key=lambda line: self.order[line.method]):
            if not line.is_reference:
                grouped.setdefault(line.method, []).append(line)
        told = [
            f"{self.titles[line.method]}, ε = {line.budget}: {line.shown(name, decimals)}"
            for line in lines
        ]
        return Chart(
            title=f"{what} against ε",
            description=f"{self.stamp}. {'; '.join(told)}",
            x="epsilon",
            x_title="ε of what is released (logarithmic axis)",
            y_title=axis,
            series=tuple(
                Series(
                    name=self.titles[method],
                    look=self.looks[method],
                    x=[line.epsilon for line in mine],
                    y=[line.needed(name) for line in mine],
                    errors=[line.error(name) for line in mine],
                    tips=[told[lines.index(line)] for line in mine],
                )
                for method, mine in grouped.items()
            ),
            levels=self._levels(name),
        )

    def _levels(self, name: str) -> tuple[Level, ...]:
        return tuple(
            Level(
                name=self.titles[line.method],
                y=line.needed(name),
                error=line.error(name),
                tip=f"{self.titles[line.method]}: {line.shown(name, _QUALITY[name][2])}",
            )
            for line in self.known(name)
            if line.is_reference
        )

    @property
    def quality_rows(self) -> list[Row]:
        """What every method ends with at every budget, and what it spent."""
        return [
            (
                *self._at(line),
                line.shown("next_token_accuracy", 4),
                line.shown("perplexity", 2),
                line.shown("bits_per_byte", 3),
                line.shown("gap_closed", 1, scale=100, unit=" %"),
                line.seeds,
                *self._spent(line),
            )
            for line in self.lines
        ]

    @property
    def distilled_rows(self) -> list[Row]:
        """What students end with that the writer of their text has taught."""
        return [
            (
                *self._at(line),
                line.shown("distilled_accuracy", 4),
                line.shown("distilled_bits_per_byte", 3),
                line.shown("distilled_gap", 1, scale=100, unit=" %"),
            )
            for line in self.lines
            if line.mean("distilled_accuracy") or line.mean("distilled_gap")
        ]

    @property
    def labelled_rows(self) -> list[Row]:
        """How often a classifier is right that learned from labelled texts, beside its floors."""
        names = ("label_synthetic", "label_majority", "label_public", "label_private")
        return [
            (*self._at(line), *(line.shown(name, 3) for name in names))
            for line in self.known("label_synthetic")
        ]

    def _spent(self, line: Line) -> tuple[str | None, str | None]:
        """The largest of what the seeds spent: what holds for all of them."""
        if line.is_reference:
            return line.budget, line.budget
        cells = [cell for cell in self._cells_of(line) if cell.get("status") == "finished"]
        names = ("epsilon_release", "epsilon_known_cohorts")
        found = [[v for c in cells if (v := finite(c.get(name))) is not None] for name in names]
        release, server = (epsilon_text(max(values)) if values else None for values in found)
        return release, server

    # ---------------------------------------------------------------- communication

    def by_bytes(self) -> dict[str, Chart]:
        """Accuracy against bytes uploaded: a chart for each budget, by what it is called."""
        name = "next_token_accuracy"
        what, axis, decimals = _QUALITY[name]
        found = {}
        for budget in sorted({line.epsilon for line in self.sent}):
            here = [line for line in self.sent if line.epsilon == budget]
            told = [
                f"{self.titles[line.method]}: {bytes_text(line.mean('bytes_up'))} up, "
                f"{line.shown(name, decimals)}"
                for line in here
            ]
            found[f"ε = {epsilon_text(budget)}"] = Chart(
                title=f"{what} against bytes uploaded, ε = {epsilon_text(budget)}",
                description=f"{self.stamp}. {'; '.join(told)}",
                x="bytes",
                x_title="Uploaded by one user in the whole run (bytes, logarithmic axis)",
                y_title=axis,
                series=tuple(
                    Series(
                        name=self.titles[line.method],
                        look=self.looks[line.method],
                        x=[line.needed("bytes_up")],
                        y=[line.needed(name)],
                        errors=[line.error(name)],
                        tips=[tip],
                        line="none",
                    )
                    for line, tip in zip(here, told, strict=True)
                ),
                levels=self._levels(name),
            )
        return found

    @cached_property
    def sent(self) -> list[Line]:
        """The private lines with an accuracy and a count of bytes."""
        lines = self.known("next_token_accuracy")
        return [v for v in lines if not v.is_reference and (v.mean("bytes_up") or 0) > 0]

    @property
    def without_bytes(self) -> list[str]:
        """Titles of the private methods that have an accuracy and no count of bytes."""
        lines = self.known("next_token_accuracy")
        return [self.titles[v.method] for v in lines if not v.is_reference and v not in self.sent]

    @property
    def cost_rows(self) -> list[Row]:
        """What a run of each method costs."""
        return [
            (
                *self._at(line),
                whole(line.mean("rounds")),
                whole(line.mean("floats_up")),
                bytes_text(line.mean("bytes_up")),
                bytes_text(line.mean("bytes_down")),
                seconds_text(line.mean("client_cpu_seconds")),
                seconds_text(line.mean("server_seconds")),
            )
            for line in self.lines
        ]

    # ---------------------------------------------------------------- text

    @property
    def text_rows(self) -> list[Row]:
        """Distances and copies of the synthetic texts, averaged over seeds."""
        rows: list[Row] = []
        for line in self.lines:
            texts = [mapping(cell.get("texts")) for cell in self._cells_of(line)]
            if not any(texts) and line.mean("frechet") is None:
                continue
            means = []
            for name, decimals in _TEXT.items():
                kept = [v for each in texts if (v := finite(each.get(name))) is not None]
                means.append(fixed(sum(kept) / len(kept), decimals) if kept else None)
            rows.append((*self._at(line), line.shown("frechet", 4), *means))
        return rows

    # ---------------------------------------------------------------- budget

    @cached_property
    def _spending(self) -> dict[str, dict[float, list[tuple[int, float]]]]:
        """What was spent until each round: public, from the ledgers; by method and budget."""
        found: dict[str, dict[float, list[tuple[int, float]]]] = {}
        for cell in self.cells:
            spent = [(int(n), e) for n, e in _points(cell.get("spent"))]
            budget = _epsilon(cell.get("epsilon"))
            if spent and budget and math.isfinite(budget):
                by = found.setdefault(str(cell.get("method")), {})
                # Seeds of one budget spend the same; of unlike ones the longest is shown.
                by[budget] = max(by.get(budget, []), spent, key=len)
        return {name: dict(sorted(found[name].items())) for name in self.methods if name in found}

    @property
    def spending(self) -> dict[str, Chart]:
        """A chart of the epsilon spent by each method, by its title."""
        found = {}
        for name, by in self._spending.items():
            told = [
                f"budget {epsilon_text(budget)}: {number(spent[-1][1])} after "
                f"{counted(len(spent), 'release')}"
                for budget, spent in by.items()
            ]
            found[self.titles[name]] = by_round(
                [(f"ε = {epsilon_text(e)}", self.looks[name], spent) for e, spent in by.items()],
                steps=True,
                title=f"ε spent by {self.titles[name]}",
                description="; ".join(told),
                y_title="ε of what is released, all rounds until then",
            )
        return found

    @property
    def spending_rows(self) -> list[Row]:
        """Method, budget, round and epsilon."""
        return [
            (self.titles[name], epsilon_text(budget), str(n), number(e))
            for name, by in self._spending.items()
            for budget, spent in by.items()
            for n, e in spent
        ]

    # ---------------------------------------------------------------- samples and cells

    @property
    def samples(self) -> dict[str, list[Sample]]:
        """Texts of the first seed that finished, by what the budget is called.

        The private budgets come first, the largest of them before the others: what a reader looks
        for.
        """
        groups: dict[float, dict[str, Sample]] = {}
        for cell in self.cells:
            texts = [str(text) for text in cell.get("samples") or []]
            method = str(cell.get("method"))
            group = groups.setdefault(_epsilon(cell.get("epsilon")), {})
            if texts and method not in group:
                seed = f"seed {cell.get('seed', '?')}"
                group[method] = Sample(self.titles[method], texts, seed, self.looks[method])
        names = {
            0.0: "No private text used (ε = 0)",
            math.inf: "Not private (ε = ∞): texts may repeat what a user wrote",
        }
        order = sorted(groups, key=lambda e: (e == 0 or math.isinf(e), math.isinf(e), -e))
        return {
            names.get(budget, f"ε = {epsilon_text(budget)}"): list(groups[budget].values())
            for budget in order
            if groups[budget]
        }

    @property
    def cell_rows(self) -> list[Row]:
        """Every cell with its figures."""
        rows: list[Row] = []
        for cell in self.cells:
            quality = mapping(cell.get("quality"))
            names = ("next_token_accuracy", "user_next_token_accuracy", "cross_entropy")
            spent = [finite(cell.get(f"epsilon_{n}")) for n in ("release", "known_cohorts")]
            rows.append(
                (
                    *self._place(cell),
                    str(cell["status"]) if cell.get("status") else None,
                    *[fixed(finite(quality.get(name)), 4) for name in names],
                    *[None if value is None else epsilon_text(value) for value in spent],
                    number(finite(cell.get("delta")), 3),
                    seconds_text(finite(cell.get("wall_seconds"))),
                    str(cell["run"]) if cell.get("run") else None,
                )
            )
        return rows

    def _cells_of(self, line: Line) -> list[Mapping[str, Any]]:
        return [
            cell
            for cell in self.cells
            if str(cell.get("method")) == line.method
            and _epsilon(cell.get("epsilon")) == line.epsilon
        ]

    def _at(self, line: Line) -> tuple[str, str]:
        return self.titles[line.method], line.budget

    def _place(self, cell: Mapping[str, Any]) -> tuple[str, str, str | None]:
        seed = cell.get("seed")
        budget = epsilon_text(_epsilon(cell.get("epsilon")))
        return self.titles[str(cell.get("method"))], budget, None if seed is None else str(seed)


def _points(value: Any) -> list[_Point]:
    found = []
    for pair in value if isinstance(value, list | tuple) else ():
        if isinstance(pair, list | tuple) and len(pair) >= 2:
            x, y = finite(pair[0]), finite(pair[1])
            if x is not None and y is not None:
                found.append((x, y))
    return found


def _epsilon(value: Any) -> float:
    """The budget of a line or a cell: infinity for null."""
    found = finite(value)
    return math.inf if found is None else found


def _count(value: Any) -> str | None:
    found = finite(value)
    return None if found is None else whole(found)
