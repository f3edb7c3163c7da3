"""The page of a comparison: several methods at several budgets, from `compare.json`.

Its figures of quality are computed from held-out private text without noise, so the page carries
the stamp of such figures in its title, at its top, and at every chart and table of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flower_privsyn.errors import DataError
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.report.charts import (
    MARKS,
    PANEL,
    Axes,
    Chart,
    Cloud,
    CloudFrame,
    Point,
    Reference,
    Series,
    Style,
    both_sizes,
    cloud_chart,
    dots,
    draw,
    key,
    mark,
    sign,
    thinned,
)
from flower_privsyn.report.page import (
    Child,
    Html,
    banner,
    details,
    document,
    element,
    facts,
    figure,
    join,
    sample_card,
    section,
    slug,
    table,
    write_page,
)
from flower_privsyn.report.scales import (
    NOTHING,
    Scale,
    bytes_text,
    component_title,
    counted,
    epsilon_text,
    finite,
    fixed,
    linear_scale,
    log_scale,
    number,
    scale_of,
    seconds_text,
    time_text,
    whole,
)
from flower_privsyn.report.style import PALETTE

_STYLES = {
    "popri": Style(colour=0, mark="circle"),
    "pre-text": Style(colour=1, mark="square"),
    "pe-sft": Style(colour=2, mark="triangle"),
    "kernel-sketch": Style(colour=3, mark="diamond"),
    "dp-fedavg": Style(colour=4, mark="cross"),
    "private-evolution": Style(colour=5, mark="wedge"),
    "dp-ftrl": Style(colour=6, mark="star"),
    "public-only": Style(colour=7, mark="plus"),
    "expand-only": Style(colour=7, mark="square"),
    "finetune-private": Style(colour=7, mark="circle"),
}

_TITLES = {
    "popri": "POPri",
    "pre-text": "PrE-Text",
    "pe-sft": "PE + SFT",
    "kernel-sketch": "Kernel sketch",
    "dp-fedavg": "DP-FedAvg",
    "dp-ftrl": "DP-FTRL",
    "private-evolution": "Private evolution",
    "public-only": "Public text only",
    "expand-only": "Expanded public text",
    "finetune-private": "Fine-tuned on private text",
}

_DASHES = {"public-only": "2 3", "expand-only": "7 3 2 3", "finetune-private": "9 4"}
_MORE_DASHES = ("12 3 2 3", "4 4", "14 5", "1 5")

_CLOUD = 350

_MEANING = (
    "Every figure of quality on this page was computed from the text of held-out users without "
    "noise. No epsilon covers it. It is for choosing between methods in research, and must not be "
    "published beside a private result as if the guarantee covered it."
)


def write_comparison_page(document: Mapping[str, Any], path: Path) -> None:
    """Write the page of a comparison.

    Args:
        document: what `privsyn compare` keeps in `compare.json`, finished or not. Cells that have
            not finished are listed with their reason, and methods that this package does not know
            are shown like the others.
        path: where to; replaced as a whole.

    Raises:
        DataError: the document holds no comparison.
    """
    write_page(comparison_page(document), path)


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


def comparison_page(document: Mapping[str, Any]) -> Html:
    """The page of a comparison as text; see `write_comparison_page`."""
    return _Page(document).html()


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A method at a budget: a line of the summary.

    Attributes:
        method: its name.
        epsilon: the budget; 0 for none spent, infinity for no privacy.
        values: the line itself.
    """

    method: str
    epsilon: float
    values: Mapping[str, Any]

    @property
    def is_reference(self) -> bool:
        """Whether the method has no place on an axis of epsilon."""
        return self.epsilon == 0 or math.isinf(self.epsilon)

    def mean(self, name: str) -> float | None:
        """A figure, averaged over seeds; None where there is none."""
        value = self.values.get(name)
        return finite(value.get("mean") if isinstance(value, Mapping) else value)

    def error(self, name: str) -> float | None:
        """The standard error of a figure over seeds; None for a single one."""
        value = self.values.get(name)
        return finite(value.get("standard_error")) if isinstance(value, Mapping) else None

    def shown(self, name: str, decimals: int, *, scale: float = 1.0, unit: str = "") -> str | None:
        """A figure with its standard error."""
        mean, error = self.mean(name), self.error(name)
        if mean is None:
            return None
        after = "" if error is None else f" ± {fixed(scale * error, decimals)}"
        return f"{fixed(scale * mean, decimals)}{after}{unit}"


@dataclass(frozen=True, kw_only=True)
class _Measure:
    """A figure of quality.

    Attributes:
        name: what it is called.
        axis: the title of its axis, with the unit.
        meaning: a sentence.
        decimals: it is written with.
    """

    name: str
    axis: str
    meaning: str
    decimals: int = 4


_QUALITY = {
    "next_token_accuracy": _Measure(
        name="Next-token accuracy",
        axis="Next-token accuracy on held-out users (share of tokens)",
        meaning="How often the next token of held-out text is the first choice of the model that a "
        "method ends with, trained on its synthetic text or on the nodes; higher is better.",
    ),
    "frechet": _Measure(
        name="Squared Fréchet distance",
        axis="Squared Fréchet distance to held-out text (no unit)",
        meaning="How far the embeddings of the synthetic text are from those of held-out text; "
        "lower is nearer.",
    ),
}


class _Page:
    def __init__(self, document: Mapping[str, Any]) -> None:
        cells, summary = document.get("cells"), document.get("summary")
        if not isinstance(cells, list) or not isinstance(summary, list):
            raise DataError('the document of a comparison must hold "cells" and "summary" as lists')
        self.document = document
        self.cells: list[Mapping[str, Any]] = [c for c in cells if isinstance(c, Mapping)]
        self.rows = [
            _Row(method=str(line.get("method")), epsilon=_epsilon(line.get("epsilon")), values=line)
            for line in summary
            if isinstance(line, Mapping)
        ]
        named = [str(name) for name in document.get("methods") or []]
        found = [row.method for row in self.rows] + [str(c.get("method")) for c in self.cells]
        self.methods = list(dict.fromkeys([*named, *found]))
        order = {name: place for place, name in enumerate(self.methods)}
        self.rows.sort(key=lambda row: (row.epsilon, order[row.method]))
        self.styles = _styles(self.methods)
        titles = document.get("titles")
        given = titles if isinstance(titles, Mapping) else {}
        self.titles = {
            name: str(given.get(name) or _TITLES.get(name, name)) for name in self.methods
        }
        self.budgets = sorted({row.epsilon for row in self.rows if not row.is_reference})
        stamp = str(document.get("stamp") or STAMP)
        # The stamp is ours to give: a document that lost it is stamped all the same.
        self.stamp = stamp if STAMP in stamp else f"{STAMP}; {stamp}"

    # ---------------------------------------------------------------- the page

    def html(self) -> Html:
        data = self._mapping("data")
        name = str(data.get("name") or "private text")
        heading = f"{counted(len(self.methods), 'method')} on {name}"
        return document(
            f"{heading}: {self.stamp}",
            element("h1", heading),
            element("p", self._subtitle(), class_="subtitle"),
            banner(self.stamp, _MEANING),
            self._unfinished(),
            self._setting(),
            section(
                "Quality against privacy",
                self._by_epsilon("next_token_accuracy"),
                self._quality_table(),
            ),
            section("Quality against communication", self._by_bytes(), self._cost_table()),
            self._texts(),
            self._movement(),
            self._spending(),
            self._samples(),
            section("Every cell", self._cell_table()),
            description=self.stamp,
            footer=join(
                [
                    element("p", self.stamp),
                    element("p", "Made by ", element("code", "privsyn report"), self._versions()),
                ]
            ),
        )

    def _subtitle(self) -> str:
        done = sum(cell.get("status") == "finished" for cell in self.cells)
        seeds = len(self.document.get("seeds") or [])
        budgets = ", ".join(epsilon_text(value) for value in self.budgets)
        parts = [f"{done} of {len(self.cells)} cells finished"]
        if budgets:
            parts.append(f"ε = {budgets}")
        if seeds:
            parts.append(counted(seeds, "seed"))
        created = self.document.get("created")
        if created:
            parts.append(f"begun {time_text(created)}")
        finished = self.document.get("finished")
        parts.append(f"finished {time_text(finished)}" if finished else "not finished")
        return " · ".join(parts)

    def _versions(self) -> str:
        version = self._mapping("versions").get("flower-privsyn")
        return f" of flower-privsyn {version}" if version else ""

    def _unfinished(self) -> Html | None:
        """Cells without figures, each with its reason: a hole in a chart must not look like one."""
        missing = [cell for cell in self.cells if cell.get("status") != "finished"]
        if not missing:
            return None
        failed = [cell for cell in missing if cell.get("status") == "failed"]
        waiting = len(missing) - len(failed)
        parts: list[Child] = []
        if failed:
            rows = [
                (
                    self._title(cell),
                    epsilon_text_of(cell),
                    str(cell.get("seed", NOTHING)),
                    str(cell.get("error") or "failed without a sentence"),
                )
                for cell in failed
            ]
            parts.append(
                table(
                    counted(len(failed), "failed cell"),
                    ("Method", "ε", "Seed", "Why"),
                    rows,
                    text_columns=(0, 3),
                    note="Their figures are missing below; averages are over the seeds that "
                    "finished.",
                )
            )
        if waiting:
            rows = [
                (
                    self._title(cell),
                    epsilon_text_of(cell),
                    str(cell.get("seed", NOTHING)),
                    str(cell.get("status") or "pending"),
                )
                for cell in missing
                if cell.get("status") != "failed"
            ]
            parts.append(
                details(
                    f"{counted(waiting, 'cell')} not finished yet",
                    table(
                        "Cells without a result",
                        ("Method", "ε", "Seed", "Status"),
                        rows,
                        text_columns=(0, 3),
                    ),
                )
            )
        return section("What is missing", *parts)

    def _setting(self) -> Html:
        data = self._mapping("data")
        newer = data.get("newer_than")
        delta = finite(self.document.get("delta"))
        command = self.document.get("command")
        return section(
            "Setting",
            facts(
                [
                    ("Data", data.get("name")),
                    ("Users who took part", _count(data.get("private_users"))),
                    ("Held-out users", _count(data.get("held_out_users"))),
                    ("Their texts", _count(data.get("held_out_texts"))),
                    ("Texts newer than", str(newer) if newer else None),
                    ("Model that is trained", self.document.get("downstream")),
                    ("Longest text, tokens", _count(self.document.get("max_tokens"))),
                    ("δ", None if delta is None else number(delta, 3)),
                    ("Seeds", ", ".join(str(s) for s in self.document.get("seeds") or []) or None),
                    ("Machine", self.document.get("machine")),
                ]
            ),
            details(
                "Command and versions",
                None if not command else element("p", element("code", str(command))),
                facts((str(k), str(v)) for k, v in self._mapping("versions").items()),
            ),
        )

    # ---------------------------------------------------------------- quality

    def _by_epsilon(self, name: str) -> Child:
        what = _QUALITY[name]
        decimals = what.decimals
        rows = [row for row in self.rows if row.mean(name) is not None]
        if not rows:
            return element("p", "No cell with this figure has finished.")
        private = [row for row in rows if not row.is_reference]
        series = tuple(
            Series(
                name=self.titles[method],
                style=self.styles[method],
                points=tuple(
                    Point(
                        x=row.epsilon,
                        y=_known(row.mean(name)),
                        error=row.error(name),
                        text=f"{self.titles[method]}, ε = {epsilon_text(row.epsilon)}: "
                        f"{row.shown(name, decimals)}",
                    )
                    for row in private
                    if row.method == method
                ),
            )
            for method in self.methods
            if any(row.method == method for row in private)
        )
        axis = self._epsilon_scale()
        chart = Chart(
            title=f"{what.name} against ε",
            description=f"{self.stamp}. " + _told(self.titles, rows, name, decimals),
            axes=Axes(
                x=axis,
                y=linear_scale(_extent(rows, name)),
                x_title="ε of what is released"
                + (" (logarithmic axis)" if axis.kind == "log" else ""),
                y_title=what.axis,
            ),
            series=series,
            references=self._references(rows, name, decimals),
            dodge=12.0 if len(series) > 1 else 0.0,
        )
        caption = (
            f"{what.meaning} Error bars and grey bands: standard error over seeds, where there is "
            "more than one. Methods at one ε are moved apart sideways, so that their bars can be "
            "told. "
            "Methods that spend no ε, and training on the private text itself, have no place on "
            "the axis and are levels across the chart."
        )
        return figure(
            both_sizes([(f"by-epsilon-{slug(name)}", chart)])[0],
            caption=caption,
            data=self._figures(rows, name, decimals),
            stamp=self.stamp,
            split=True,
        )

    def _epsilon_scale(self) -> Scale:
        budgets = self.budgets or [1.0]
        return log_scale(budgets) if len(budgets) == 1 else scale_of(budgets)

    def _references(self, rows: Sequence[_Row], name: str, decimals: int) -> tuple[Reference, ...]:
        spare = iter(_MORE_DASHES * (1 + len(rows)))
        return tuple(
            Reference(
                name=self.titles[row.method],
                y=_known(row.mean(name)),
                dash=_DASHES.get(row.method) or next(spare),
                error=row.error(name),
                text=f"{self.titles[row.method]}: {row.shown(name, decimals)}",
            )
            for row in rows
            if row.is_reference
        )

    def _figures(self, rows: Sequence[_Row], name: str, decimals: int) -> Html:
        return table(
            _QUALITY[name].name,
            ("Method", "ε", "Mean", "Standard error", "Seeds"),
            [
                (
                    self.titles[row.method],
                    epsilon_text(row.epsilon),
                    fixed(row.mean(name), decimals),
                    None if row.error(name) is None else fixed(row.error(name), decimals),
                    _count(row.values.get("seeds")),
                )
                for row in rows
            ],
            note=self.stamp,
        )

    def _quality_table(self) -> Html:
        return table(
            "Quality on held-out users of the model that each method ends with",
            (
                "Method",
                "ε",
                "Next-token accuracy",
                "Perplexity",
                "Bits per byte",
                "Gap closed",
                "Seeds",
                "ε release",
                "ε server",
            ),
            [
                (
                    self.titles[row.method],
                    epsilon_text(row.epsilon),
                    row.shown("next_token_accuracy", 4),
                    row.shown("perplexity", 2),
                    row.shown("bits_per_byte", 3),
                    row.shown("gap_closed", 1, scale=100, unit=" %"),
                    self._seeds(row),
                    *self._spent_by(row),
                )
                for row in self.rows
            ],
            note=join(
                [
                    element("span", self.stamp, class_="stamp"),
                    " · ± standard error over seeds. Gap closed: share of the way from public text "
                    "only to fine-tuning on the private text. Two epsilons hold for every private "
                    "run: ε release towards everyone who does not know who took part, ε server "
                    f"towards one who does{self._at_delta()}.",
                ]
            ),
        )

    def _seeds(self, row: _Row) -> str | None:
        seeds, failed = finite(row.values.get("seeds")), finite(row.values.get("failed"))
        if seeds is None:
            return None
        return f"{seeds:.0f} ({failed:.0f} failed)" if failed else f"{seeds:.0f}"

    def _at_delta(self) -> str:
        delta = finite(self.document.get("delta"))
        return "" if delta is None else f"; both at δ = {number(delta, 3)}"

    def _spent_by(self, row: _Row) -> tuple[Child, Child]:
        """The largest of what the seeds spent: what holds for all of them."""
        if row.is_reference:
            return epsilon_text(row.epsilon), epsilon_text(row.epsilon)
        cells = [
            cell
            for cell in self.cells
            if str(cell.get("method")) == row.method
            and _epsilon(cell.get("epsilon")) == row.epsilon
            and cell.get("status") == "finished"
        ]
        found: list[Child] = []
        for name in ("epsilon_release", "epsilon_known_cohorts"):
            values = [v for v in (finite(cell.get(name)) for cell in cells) if v is not None]
            found.append(epsilon_text(max(values)) if values else None)
        return found[0], found[1]

    # ---------------------------------------------------------------- communication

    def _by_bytes(self) -> Child:
        name = "next_token_accuracy"
        what = _QUALITY[name]
        decimals = what.decimals
        rows = [row for row in self.rows if row.mean(name) is not None]
        sent = [row for row in rows if not row.is_reference and (row.mean("bytes_up") or 0) > 0]
        if not sent:
            return element("p", "No private cell with a count of bytes has finished.")
        x = log_scale([_known(row.mean("bytes_up")) for row in sent])
        y = linear_scale(_extent(rows, name))
        references = self._references(rows, name, decimals)
        budgets = sorted({row.epsilon for row in sent})
        charts = []
        for budget in budgets:
            here = [row for row in sent if row.epsilon == budget]
            chart = Chart(
                title=f"{what.name} against bytes uploaded, ε = {epsilon_text(budget)}",
                description=f"{self.stamp}. "
                + "; ".join(
                    f"{self.titles[row.method]}: {bytes_text(row.mean('bytes_up'))} up, "
                    f"{row.shown(name, decimals)}"
                    for row in here
                ),
                axes=Axes(
                    x=x,
                    y=y,
                    x_title="Uploaded by one user in the whole run (bytes, logarithmic axis)",
                    y_title=what.axis,
                    x_texts=tuple(bytes_text(tick) for tick in x.ticks),
                ),
                series=tuple(
                    Series(
                        name=self.titles[row.method],
                        style=self.styles[row.method],
                        points=(
                            Point(
                                x=_known(row.mean("bytes_up")),
                                y=_known(row.mean(name)),
                                error=row.error(name),
                                text=f"{self.titles[row.method]}: "
                                f"{bytes_text(row.mean('bytes_up'))}, "
                                f"{row.shown(name, decimals)}",
                            ),
                        ),
                        line="none",
                    )
                    for row in here
                ),
                references=references,
                names="inside",
            )
            charts.append((f"by-bytes-{slug(epsilon_text(budget))}", chart))
        drawn = both_sizes(charts, wide=520 if len(budgets) > 1 else 700)
        pictures = [
            element("div", element("h3", f"ε = {epsilon_text(budget)}"), picture)
            for budget, picture in zip(budgets, drawn, strict=True)
        ]
        left_out = [
            self.titles[row.method]
            for row in rows
            if not row.is_reference and not (row.mean("bytes_up") or 0) > 0
        ]
        axes = {1: "", 2: "Both charts have the same axes. "}
        caption = (
            f"{what.meaning} Bytes: packed messages of one user who is alone on a node, as on a "
            "phone, in as many rounds as a user is in on average. "
            f"{axes.get(len(budgets), 'All charts have the same axes. ')}"
            "Error bars: standard error over seeds. Levels: methods that upload nothing, and "
            "training on the private text itself. Marks that would cover one another are moved "
            "apart sideways."
        )
        if left_out:
            caption += f" Without a count of bytes, and not shown: {', '.join(left_out)}."
        data = table(
            f"{what.name} and bytes uploaded",
            ("Method", "ε", "Bytes up", what.name, "Standard error"),
            [
                (
                    self.titles[row.method],
                    epsilon_text(row.epsilon),
                    whole(row.mean("bytes_up")),
                    fixed(row.mean(name), decimals),
                    None if row.error(name) is None else fixed(row.error(name), decimals),
                )
                for row in rows
            ],
            note=self.stamp,
        )
        return figure(
            element("div", *pictures, class_="pair" if len(budgets) > 1 else None),
            caption=caption,
            data=data,
            stamp=self.stamp,
            split=len(budgets) == 1,
        )

    def _cost_table(self) -> Html:
        return table(
            "What a run costs",
            (
                "Method",
                "ε",
                "Rounds",
                "Numbers up",
                "Bytes up",
                "Bytes down",
                "CPU per user",
                "Server",
            ),
            [
                (
                    self.titles[row.method],
                    epsilon_text(row.epsilon),
                    whole(row.mean("rounds")),
                    whole(row.mean("floats_up")),
                    bytes_text(row.mean("bytes_up")),
                    bytes_text(row.mean("bytes_down")),
                    seconds_text(row.mean("client_cpu_seconds")),
                    seconds_text(row.mean("server_seconds")),
                )
                for row in self.rows
            ],
            note="Up and down: one user, in as many rounds as a user is in on average; 1 kB is "
            "1,000 bytes. CPU: in which the nodes answered, over the number of users; counted "
            "on the nodes and not private either. Server: wall time on the machine named above.",
        )

    # ---------------------------------------------------------------- text

    def _texts(self) -> Child:
        names = [n for n in ("frechet", "mmd") if any(r.mean(n) is not None for r in self.rows)]
        finished = [c for c in self.cells if isinstance(c.get("texts"), Mapping)]
        if not names and not finished:
            return None
        return section(
            "How near the synthetic text is",
            self._by_epsilon("frechet") if "frechet" in names else None,
            self._text_table(finished),
        )

    def _text_table(self, cells: Sequence[Mapping[str, Any]]) -> Child:
        columns = (
            ("frechet", "Fréchet, squared", 4),
            ("mmd", "MMD, squared", 5),
            ("precision", "Precision", 3),
            ("recall", "Recall", 3),
            ("mauve", "MAUVE", 3),
            ("self_similarity", "Self-similarity", 3),
            ("distinct_2", "Distinct 2-grams", 3),
            ("copies_exact", "Exact copies", 4),
            ("copies_near", "Near copies", 4),
        )
        groups: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
        for cell in cells:
            place = (str(cell.get("method")), _epsilon(cell.get("epsilon")))
            groups.setdefault(place, []).append(cell["texts"])
        if not groups:
            return None
        order = {name: place for place, name in enumerate(self.methods)}
        rows = [
            (
                self.titles[method],
                epsilon_text(budget),
                *[_mean_of(groups[method, budget], name, digits) for name, _, digits in columns],
            )
            for method, budget in sorted(groups, key=lambda place: (place[1], order[place[0]]))
        ]
        return table(
            "Synthetic text beside the text of held-out users",
            ("Method", "ε", *[heading for _, heading, _ in columns]),
            rows,
            note=join(
                [
                    element("span", self.stamp, class_="stamp"),
                    " · means over seeds. Distances are of embeddings, 0 for equal distributions; "
                    "copies are shares of the synthetic texts.",
                ]
            ),
        )

    def _movement(self) -> Child:
        embedding = self.document.get("embedding")
        if not isinstance(embedding, Mapping):
            return None
        held_out = _points(embedding.get("held_out"))
        methods = embedding.get("methods")
        rounds: dict[str, dict[int, list[tuple[float, float]]]] = {}
        for name, found in methods.items() if isinstance(methods, Mapping) else ():
            if isinstance(found, Mapping):
                kept = {int(k): _points(v) for k, v in found.items() if str(k).isdigit()}
                kept = {k: v for k, v in sorted(kept.items()) if v}
                if kept:
                    rounds[str(name)] = kept
        if not rounds:
            return None
        shown = [point for by in rounds.values() for number in by for point in by[number]]
        frame = CloudFrame.around([*held_out, *shown])
        explained = [finite(v) for v in embedding.get("explained") or []]
        titles = tuple(component_title(place, explained) for place in (0, 1))
        order = [name for name in self.methods if name in rounds]
        order += [name for name in rounds if name not in order]
        styles = {**_styles([*self.methods, *order]), **self.styles}
        pictures = []
        rows = []
        for name in order:
            by = rounds[name]
            numbers = sorted(by)
            first, last = numbers[0], numbers[-1]
            colour = styles[name].colour
            clouds = [Cloud(points=thinned(held_out, 2 * _CLOUD), colour=7, size=2.6, opacity=0.3)]
            for number_ in dict.fromkeys((first, last)):
                end = number_ == last
                clouds.append(
                    Cloud(
                        points=thinned(by[number_], _CLOUD),
                        colour=colour,
                        size=3.6 if end else 3.0,
                        opacity=0.85 if end else 0.45,
                        name=f"round {number_}",
                        style=styles[name] if end else Style(colour=7, mark="circle"),
                    )
                )
            centres = [Cloud(points=tuple(by[n]), colour=0).centre for n in numbers]
            title = self.titles.get(name, _TITLES.get(name, name))
            path = [centre for centre in centres if centre is not None]
            rows += [
                (title, str(n), whole(len(by[n])), number(c[0], 3), number(c[1], 3))
                for n, c in zip(numbers, path, strict=True)
            ]
            pictures.append(
                element(
                    "div",
                    element("h3", title),
                    cloud_chart(
                        clouds,
                        frame,
                        titles=(titles[0], titles[1]),
                        title=f"Embeddings of {title} by round",
                        description=f"{self.stamp}. The centre moves from "
                        f"({number(path[0][0], 3)}, {number(path[0][1], 3)}) in round {first} to "
                        f"({number(path[-1][0], 3)}, {number(path[-1][1], 3)}) in round {last}.",
                        identifier=f"movement-{slug(name)}",
                        joined=path,
                    ),
                )
            )
        signs = key(
            [
                (dots(7, 3, 0.4), "text of held-out users"),
                (dots(0, 3, 0.5), "first round, faint in the colour of the method"),
                (dots(0, 4, 0.9), "last round"),
                (mark(Style(colour=7, mark="circle"), 0, 0, 5), "centre of the first round"),
            ]
        )
        return section(
            "How the embeddings moved",
            figure(
                element("div", *pictures, class_="panels"),
                caption="Embeddings on two principal components of held-out text and of what the "
                "methods wrote together, the same for all methods; components have no unit. Of "
                "each method the first and the last round are shown. The line follows the centre "
                "of its text through the rounds and ends with the mark of the method.",
                legend=signs,
                data=table(
                    "Centres of the text of each round",
                    ("Method", "Round", "Texts", titles[0], titles[1]),
                    rows,
                    note=self.stamp,
                ),
                stamp=self.stamp,
            ),
        )

    # ---------------------------------------------------------------- budget

    def _spending(self) -> Child:
        """What was spent by each round: public, from the ledgers."""
        lines: dict[str, dict[float, list[tuple[int, float]]]] = {}
        for cell in self.cells:
            spent = _pairs(cell.get("spent"))
            budget = _epsilon(cell.get("epsilon"))
            if not spent or budget == 0 or math.isinf(budget):
                continue
            by = lines.setdefault(str(cell.get("method")), {})
            # Seeds of one budget spend the same; of unlike ones the longest is shown.
            if len(spent) > len(by.get(budget, [])):
                by[budget] = spent
        if not lines:
            return None
        rounds = max(n for by in lines.values() for spent in by.values() for n, _ in spent)
        top = max(e for by in lines.values() for spent in by.values() for _, e in spent)
        axis = linear_scale([0, rounds], from_zero=True, whole=True)
        axes = Axes(
            # Room at the right for the names of lines that go on to the last round.
            x=replace(axis, high=max(axis.high, 1.22 * rounds)),
            y=linear_scale([0, top], from_zero=True),
            x_title="Round",
            y_title="ε of what is released, all rounds until then",
        )
        charts, rows = [], []
        for method in (name for name in self.methods if name in lines):
            title = self.titles[method]
            series = []
            for budget, spent in sorted(lines[method].items()):
                series.append(
                    Series(
                        name=f"ε = {epsilon_text(budget)}",
                        style=self.styles[method],
                        points=(
                            Point(x=0, y=0),
                            *[
                                Point(x=n, y=e, text=f"round {n}: ε = {number(e)}")
                                for n, e in spent
                            ],
                        ),
                        line="steps",
                        marks="last",
                    )
                )
                rows += [(title, epsilon_text(budget), str(n), number(e)) for n, e in spent]
            chart = Chart(
                title=f"ε spent by {title}",
                description="; ".join(
                    f"budget {epsilon_text(budget)}: {number(spent[-1][1])} after "
                    f"{counted(len(spent), 'release')}"
                    for budget, spent in sorted(lines[method].items())
                ),
                axes=axes,
                series=tuple(series),
                names="inside",
            )
            charts.append((f"spent-{slug(method)}", chart))
        pictures = [
            element("div", element("h3", self.titles[method]), picture)
            for method, picture in zip(
                (name for name in self.methods if name in lines),
                draw(charts, PANEL, 230),
                strict=True,
            )
        ]
        return section(
            "ε spent by each round",
            figure(
                element("div", *pictures, class_="panels"),
                caption="From the ledgers of the runs, which are public. All panels have the same "
                "axes. A step is a release; a method that releases once spends all of its budget "
                "in one step.",
                data=table("ε by round", ("Method", "Budget", "Round", "ε"), rows),
                stamp=None,
            ),
        )

    # ---------------------------------------------------------------- samples and cells

    def _samples(self) -> Child:
        groups: dict[float, list[Html]] = {}
        taken: set[tuple[str, float]] = set()
        for cell in self.cells:
            texts = [str(text) for text in cell.get("samples") or []]
            method, budget = str(cell.get("method")), _epsilon(cell.get("epsilon"))
            if not texts or (method, budget) in taken:
                continue
            taken.add((method, budget))
            groups.setdefault(budget, []).append(
                sample_card(
                    self.titles[method],
                    texts,
                    note=f"seed {cell.get('seed', NOTHING)}",
                    sign=sign(self.styles[method]),
                )
            )
        if not groups:
            return None
        # The private budgets first, the largest of them open: what a reader looks for.
        order = sorted(groups, key=lambda e: (e == 0 or math.isinf(e), math.isinf(e), -e))
        parts = []
        for place, budget in enumerate(order):
            if budget == 0:
                heading = "No private text used (ε = 0)"
            elif math.isinf(budget):
                heading = "Not private (ε = ∞): texts may repeat what a user wrote"
            else:
                heading = f"ε = {epsilon_text(budget)}"
            cards = element("div", *groups[budget], class_="samples")
            parts.append(details(heading, cards, open_=place == 0))
        return section(
            "Sample texts side by side",
            *parts,
            lead="The first texts of the first seed that finished, as the method wrote them.",
        )

    def _cell_table(self) -> Html:
        rows = []
        for cell in self.cells:
            quality, costs = _mapping(cell.get("quality")), _mapping(cell.get("costs"))
            rows.append(
                (
                    self._title(cell),
                    epsilon_text_of(cell),
                    str(cell.get("seed", NOTHING)),
                    str(cell.get("status") or NOTHING),
                    fixed(finite(quality.get("next_token_accuracy")), 4),
                    fixed(finite(quality.get("user_next_token_accuracy")), 4),
                    fixed(finite(quality.get("cross_entropy")), 4),
                    _spent_text(cell.get("epsilon_release")),
                    _spent_text(cell.get("epsilon_known_cohorts")),
                    number(finite(cell.get("delta")), 3),
                    seconds_text(finite(costs.get("wall_seconds"))),
                    None if not cell.get("run") else element("code", str(cell["run"])),
                )
            )
        inner = table(
            "All cells",
            (
                "Method",
                "ε",
                "Seed",
                "Status",
                "Accuracy",
                "Accuracy, mean of users",
                "Nats per token",
                "ε release",
                "ε server",
                "δ",
                "Wall time",
                "Run",
            ),
            rows,
            text_columns=(0, 3, 11),
            note=self.stamp,
        )
        return details(counted(len(rows), "cell"), inner)

    # ---------------------------------------------------------------- small things

    def _mapping(self, name: str) -> Mapping[str, Any]:
        return _mapping(self.document.get(name))

    def _title(self, cell: Mapping[str, Any]) -> str:
        return self.titles[str(cell.get("method"))]


def epsilon_text_of(cell: Mapping[str, Any]) -> str:
    """The budget of a cell."""
    return epsilon_text(_epsilon(cell.get("epsilon")))


def _spent_text(value: Any) -> str | None:
    found = finite(value)
    return None if found is None else epsilon_text(found)


def _styles(methods: Iterable[str]) -> dict[str, Style]:
    """A style for each method: its own where it is known, else one that nobody else has."""
    names = list(dict.fromkeys(methods))
    found = {name: _STYLES[name] for name in names if name in _STYLES}
    taken = set(_STYLES.values())
    free = iter(
        Style(colour=(place + shift) % len(PALETTE), mark=MARKS[(place + 3) % len(MARKS)])
        for shift in range(len(PALETTE))
        for place in range(len(PALETTE) * len(MARKS))
    )
    for name in names:
        if name not in found:
            style = next((s for s in free if s not in taken), Style(colour=7, mark="diamond"))
            taken.add(style)
            found[name] = style
    return found


def _told(titles: Mapping[str, str], rows: Sequence[_Row], name: str, decimals: int) -> str:
    return "; ".join(
        f"{titles[row.method]}, ε = {epsilon_text(row.epsilon)}: {row.shown(name, decimals)}"
        for row in rows
    )


def _extent(rows: Sequence[_Row], name: str) -> list[float]:
    found = []
    for row in rows:
        mean, error = _known(row.mean(name)), row.error(name) or 0.0
        found += [mean - error, mean + error]
    return found


def _mean_of(texts: Sequence[Mapping[str, Any]], name: str, decimals: int) -> str | None:
    values = [v for v in (finite(each.get(name)) for each in texts) if v is not None]
    return fixed(sum(values) / len(values), decimals) if values else None


def _points(value: Any) -> list[tuple[float, float]]:
    found = []
    for pair in value if isinstance(value, list | tuple) else ():
        if isinstance(pair, list | tuple) and len(pair) >= 2:
            x, y = finite(pair[0]), finite(pair[1])
            if x is not None and y is not None:
                found.append((x, y))
    return found


def _pairs(value: Any) -> list[tuple[int, float]]:
    return [(int(x), y) for x, y in _points(value)]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _known(value: float | None) -> float:
    if value is None:
        raise DataError("a figure of the comparison is missing where one was counted on")
    return value


def _epsilon(value: Any) -> float:
    """The budget of a line or a cell: infinity for null."""
    found = finite(value)
    return math.inf if found is None else found


def _count(value: Any) -> str | None:
    found = finite(value)
    return None if found is None else whole(found)
