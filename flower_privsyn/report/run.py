"""The page of one run: what it spent, what its rounds cost, how its text moved.

It holds released values and what was made of them and of public text, so it may lie in the run
directory and be shown to whoever may read that. A run whose settings say `research = true` used
private text outside the budget; its page says so at the top and at every figure that this touches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_privsyn.errors import DataError
from flower_privsyn.evaluation.costs import RunCosts, run_costs
from flower_privsyn.files import read_json_lines
from flower_privsyn.report.charts import (
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
    key,
    mark,
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
    table,
    write_page,
)
from flower_privsyn.report.rounds import (
    principal_plane,
    read_round,
    round_files,
    round_records,
    spread_over,
)
from flower_privsyn.report.scales import (
    bytes_text,
    component_title,
    counted,
    epsilon_text,
    finite,
    linear_scale,
    number,
    time_text,
    whole,
)
from flower_privsyn.runs import RESEARCH_STAMP, RunDirectory

#: Settings that say where things were on the machine of the run, or how it was started.
_PLACES = ("run-dir", "resume", "data")

_PANELS = 3
_DOTS = 500
_ROUND_SAMPLES, _FINAL_SAMPLES = 3, 9

_RELEASE, _SERVER = Style(colour=0, mark="circle"), Style(colour=3, mark="square")

_OUTCOMES = {
    "released": "released",
    "discarded": "discarded: too few users, nothing released",
    "interrupted": "interrupted: charged, and its release lost",
}


def write_run_page(run: RunDirectory, path: Path | None = None) -> Path:
    """Write the page of a run, whatever has become of it.

    Args:
        run: of any strategy, finished or not; it is only read.
        path: where to; by default `report.html` in the run directory, with the date of all files
            there. Replaced as a whole.

    Returns:
        Where the page is.

    Raises:
        LedgerError: the ledger is damaged, or lacks a line that another file states.
        RunDirectoryError: a file of the run is damaged.
    """
    target = run.path / "report.html" if path is None else path
    write_page(run_page(run), target)
    if path is None and run.running_process() is None:
        run.hide_dates()
    return target


def run_page(run: RunDirectory) -> Html:
    """The page of a run as text; see `write_run_page`."""
    return _Page(run).html()


class _Page:
    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.config = run.config
        self.document = run.document
        self.state = run.state
        summary = self.state.get("summary")
        self.summary: Mapping[str, Any] = summary if isinstance(summary, Mapping) else {}
        self.ledger = run.ledger_lines()
        self.metrics = run.metrics()
        self.releases = [line for line in self.ledger if line.get("event") == "release"]
        self.stamp = self._stamp()
        self.status = run.status
        if self.status == "running" and run.running_process() is None:
            self.status = "interrupted"

    def _stamp(self) -> str | None:
        if self.config.get("research"):
            return RESEARCH_STAMP
        stamps = [record.get("stamp") for record in (self.summary, *self.metrics)]
        return next((str(stamp) for stamp in stamps if stamp), None)

    def _strategy(self) -> str:
        name = str(self.document.get("strategy") or "")
        # The same class is two methods of the literature.
        return "PE + SFT" if name == "POPri" and self.config.get("loss") == "sft" else name

    # ---------------------------------------------------------------- the page

    def html(self) -> Html:
        launch = self.document.get("launch")
        app = launch.get("name") if isinstance(launch, Mapping) else None
        heading = f"Run {self.run.path.name}"
        subtitle = [
            element("span", self.status, class_="status"),
            *[
                str(text)
                for text in (
                    self._strategy() or self._query(),
                    None if app is None else f"app {app}",
                    f"begun {time_text(self.document.get('created'))}",
                )
                if text
            ],
        ]
        title = heading if self.stamp is None else f"{heading}: {self.stamp}"
        return document(
            title,
            element("h1", heading),
            element("p", join(subtitle, " · "), class_="subtitle"),
            None
            if self.stamp is None
            else banner(
                self.stamp,
                "The run chose between its own results with private text that was not noised. "
                "Treat this page, and the result, as you would treat that text.",
            ),
            self._ending(),
            self._privacy(),
            self._rounds(),
            self._movement(),
            self._distances(),
            self._updates(),
            self._samples(),
            self._training(),
            self._settings(),
            description=self.stamp or f"{heading}, {self.status}",
            ledger=self.run.last_digest(),
            footer=element(
                "p",
                "Made by ",
                element("code", "privsyn report"),
                " from the files of the run: released values, and what was made of them and of "
                "public text."
                if self.stamp is None
                else f". {self.stamp}",
            ),
        )

    def _query(self) -> str | None:
        names = [line.get("query") for line in self.ledger if line.get("query")]
        return f"query {names[0]}" if names else None

    def _ending(self) -> Html | None:
        command = element("code", f"privsyn resume {self.run.path.name}")
        if self.status == "failed":
            sentence = self.run.error or "It recorded no reason."
            words = join([element("strong", "The run failed."), element("p", sentence)])
        elif self.status == "interrupted":
            words = join(
                [
                    element("strong", "The run was interrupted."),
                    element(
                        "p",
                        "It is recorded as running, and no process works on it. Continue with ",
                        command,
                        ", from the folder it lies in.",
                    ),
                ]
            )
        else:
            return None
        return element("div", words, class_="banner error", role="note")

    # ---------------------------------------------------------------- privacy

    def _privacy(self) -> Html:
        opened = next((line for line in self.ledger if line.get("event") == "opened"), {})
        delta = opened.get("delta", self.config.get("delta"))
        if not self.releases:
            return section(
                "Privacy",
                element(
                    "p",
                    "Nothing has been released.",
                ),
                self._mechanism(delta, opened),
            )
        last = self.releases[-1]
        release, server = last.get("epsilon_release"), last.get("epsilon_known_cohorts")
        if release is None:
            spent: Child = element(
                "p",
                element("strong", "Not private. "),
                f"{counted(len(self.releases), 'release')} without "
                "sufficient noise: no epsilon holds.",
            )
        else:
            spent = element(
                "dl",
                *[
                    element("div", element("dt", name), element("dd", value))
                    for name, value in (
                        (
                            "ε release: towards everyone who does not know who took part",
                            epsilon_text(release),
                        ),
                        (
                            "ε server: towards one who does",
                            "none" if server is None else epsilon_text(server),
                        ),
                        ("δ", number(finite(delta), 3)),
                        ("Releases", str(len(self.releases))),
                    )
                ],
                class_="numbers",
            )
        return section("Privacy", spent, self._mechanism(delta, opened), self._spending(opened))

    def _mechanism(self, delta: Any, opened: Mapping[str, Any]) -> Html:
        first: Mapping[str, Any] = next(
            (line for line in self.ledger if line.get("event") in ("started", "release")), {}
        )
        sampling = first.get("sampling")
        sampled = sampling if isinstance(sampling, Mapping) else {}
        rate = finite(sampled.get("rate"))
        budget = finite(opened.get("epsilon_budget"))
        ways = [str(sampled["method"])] if sampled.get("method") else []
        if rate is not None and rate < 1:
            ways.append(f"rate {number(rate, 3)}")
        noise = {
            "central": "central: the server is trusted with raw sums",
            "shares": "in shares: every node adds its part",
        }
        return facts(
            [
                ("Budget, ε", None if budget is None else epsilon_text(budget)),
                ("δ", None if self.releases else number(finite(delta), 3)),
                ("Users", whole(finite(sampled.get("population")))),
                ("Who takes part in a round", ", ".join(ways) or None),
                ("Neighbouring data sets", first.get("relation")),
                ("Query", first.get("query")),
                ("Mechanism", first.get("mechanism")),
                ("Noise multiplier", number(finite(first.get("noise_multiplier")))),
                ("Noise", noise.get(str(first.get("noise")), first.get("noise"))),
                ("Accountant", opened.get("accountant")),
            ]
            if first
            else [
                ("Budget, ε", None if budget is None else epsilon_text(budget)),
                ("δ", number(finite(delta), 3)),
            ]
        )

    def _spending(self, opened: Mapping[str, Any]) -> Child:
        lines = {
            name: [
                (int(line["round"]), float(line[name]))
                for line in self.releases
                if finite(line.get(name)) is not None
            ]
            for name in ("epsilon_release", "epsilon_known_cohorts")
        }
        spent, seen = lines["epsilon_release"], lines["epsilon_known_cohorts"]
        if not spent:
            return None
        if len(self.releases) == 1:
            return element("p", f"One release, in round {spent[0][0]}, spent all of it.")
        same = spent == seen
        named = [("ε release", _RELEASE, spent)] + ([] if same else [("ε server", _SERVER, seen)])
        if same:
            named = [("both ε", _RELEASE, spent)]
        budget = finite(opened.get("epsilon_budget"))
        last = max(n for _, _, line in named for n, _ in line[-1:] or [(0, 0.0)])
        top = max([e for _, _, line in named for _, e in line] + ([budget] if budget else []))
        chart = Chart(
            title="ε spent by each round",
            description="; ".join(
                f"{name}: {number(line[-1][1])} after round {line[-1][0]}"
                for name, _, line in named
                if line
            ),
            axes=Axes(
                x=linear_scale([0, last], from_zero=True, whole=True),
                y=linear_scale([0, top], from_zero=True),
                x_title="Round",
                y_title="ε, all rounds until then (no unit)",
            ),
            series=tuple(
                Series(
                    name=name,
                    style=style,
                    points=(
                        Point(x=0, y=0),
                        *[Point(x=n, y=e, text=f"round {n}: {number(e)}") for n, e in line],
                    ),
                    line="steps",
                    marks="last",
                )
                for name, style, line in named
                if line
            ),
            references=()
            if budget is None
            else (
                Reference(name="budget", y=budget, dash="6 4", text=f"budget: {number(budget)}"),
            ),
        )
        caption = (
            "A step is a release; the ledger is written before a release is used, so a round "
            "that was interrupted is charged as well. "
        )
        caption += (
            "Both epsilons are the same, as where every user takes part in every round."
            if same
            else "ε release counts on the sampling being secret; ε server does not."
        )
        return figure(
            both_sizes([("spent", chart)], height=330)[0],
            caption=caption,
            stamp=self.stamp,
            data=table(
                "ε by round",
                ("Round", "ε release", "ε server"),
                [
                    (
                        str(line.get("round")),
                        number(finite(line.get("epsilon_release"))),
                        number(finite(line.get("epsilon_known_cohorts"))),
                    )
                    for line in self.releases
                ],
            ),
            split=True,
        )

    # ---------------------------------------------------------------- rounds and costs

    def _rounds(self) -> Html:
        try:
            costs: RunCosts | None = run_costs(self.run)
        except DataError:
            costs = None
        done = [n for n in self.run.finished_rounds() if n > 0]
        planned = finite(self.config.get("num-rounds"))
        lead = f"{len(done)} of {whole(planned)} rounds finished" if planned else None
        if costs is None:
            sums: Child = element("p", "No round has counted its messages.")
        else:
            sums = facts(
                [
                    (
                        "Down to a user who is in all rounds",
                        self._sent(costs.floats_down, costs.bytes_down),
                    ),
                    ("Up from such a user", self._sent(costs.floats_up, costs.bytes_up)),
                    (
                        "Rounds a user is in, on average",
                        f"{100 * costs.participation:.3g} %",
                    ),
                    (
                        "Rounds lost to an interruption",
                        str(costs.lost_rounds) if costs.lost_rounds else None,
                    ),
                ]
            )
        return section(
            "Rounds and what they cost",
            sums,
            self._round_table(done),
            lead=None if lead is None else f"{lead}.",
        )

    def _sent(self, numbers: int, size: int) -> str:
        return f"{bytes_text(size)} ({numbers:,} numbers)"

    def _round_table(self, done: Sequence[int]) -> Child:
        by_round: dict[int, list[dict[str, Any]]] = {}
        for line in self.metrics:
            if isinstance(line.get("round"), int):
                by_round.setdefault(line["round"], []).append(line)
        numbers = sorted({*by_round, *done})
        if not numbers:
            return None
        rows: list[Sequence[Child]] = []
        for number_ in numbers:
            state = self.run.round_state(number_) or {}
            outcome = str(state.get("outcome") or "not finished")
            for line in by_round.get(number_) or [{}]:
                rows.append(
                    (
                        str(number_),
                        _OUTCOMES.get(outcome, outcome),
                        _whole(line.get("num_users")),
                        _whole(line.get("missing")),
                        _figure(line.get("epsilon_release")),
                        _figure(line.get("epsilon_known_cohorts")),
                        _bytes(line.get("bytes_down")),
                        _bytes(line.get("bytes_up")),
                    )
                )
        inner = table(
            "Rounds",
            (
                "Round",
                "Outcome",
                "Users",
                "Nodes without an answer",
                "ε release",
                "ε server",
                "Down",
                "Up",
            ),
            rows,
            text_columns=(0, 1),
            note="Down and up: packed messages of one user who is alone on a node. Where a "
            "round's users are secret, as when they are drawn by coin, their number is not "
            "recorded.",
        )
        return details(counted(len(numbers), "round"), inner, open_=len(rows) <= 12)

    # ---------------------------------------------------------------- text

    def _movement(self) -> Child:
        folder, files = round_files(self.run)
        chosen = spread_over(sorted(files), _PANELS)
        texts = {n: found for n in chosen if (found := read_round(n, files[n])) is not None}
        plane = principal_plane(
            {n: f.embeddings for n, f in texts.items() if f.embeddings is not None}
        )
        if plane is None:
            return None
        word = "Round" if folder == "rounds" else "Refinement round"
        shown = {n: [(float(x), float(y)) for x, y in p] for n, p in plane.points.items()}
        frame = CloudFrame.around([point for points in shown.values() for point in points])
        everything = tuple(p for points in shown.values() for p in thinned(points, _DOTS))
        titles = (component_title(0, plane.explained), component_title(1, plane.explained))
        centres = {n: Cloud(points=tuple(points), colour=0).centre for n, points in shown.items()}
        path: list[tuple[float, float]] = []
        pictures, rows = [], []
        for n, points in shown.items():
            centre = centres[n]
            if centre is None:
                continue
            path.append(centre)
            heading = f"{word} {n}" + (", public text" if texts[n].is_public else "")
            rows.append((str(n), whole(len(points)), number(centre[0], 3), number(centre[1], 3)))
            pictures.append(
                element(
                    "div",
                    element("h3", heading),
                    cloud_chart(
                        [
                            Cloud(points=everything, colour=7, size=2.4, opacity=0.25),
                            Cloud(
                                points=thinned(points, _DOTS),
                                colour=0,
                                size=3.4,
                                opacity=0.85,
                                name="centre",
                                style=Style(colour=3, mark="diamond"),
                            ),
                        ],
                        frame,
                        titles=titles,
                        title=f"Embeddings of the text of {heading.lower()}",
                        description=f"{whole(len(points))} texts; their centre lies at "
                        f"({number(centre[0], 3)}, {number(centre[1], 3)}).",
                        identifier=f"movement-{n}",
                        joined=list(path),
                        path_colour=3,
                        width=PANEL,
                    ),
                )
            )
        return section(
            "How the text moved",
            figure(
                element("div", *pictures, class_="panels"),
                caption="Embeddings of the candidates of some rounds, on two principal components "
                "of these rounds together; components have no unit. "
                f"{'' if self.stamp else 'No private text is in this picture. '}"
                "The line follows the centre from round to round.",
                stamp=self.stamp,
                legend=key(
                    [
                        (dots(0, 4, 0.9), "text of the round"),
                        (dots(7, 3, 0.5), "text of all rounds shown"),
                        (mark(Style(colour=3, mark="diamond"), 0, 0, 5), "centre of the round"),
                    ]
                ),
                data=table("Centres of the text of each round", (word, "Texts", *titles), rows),
            ),
        )

    def _distances(self) -> Child:
        """How far the text of each round is from what was released, where the run looked."""
        found = self.summary.get("squared_mmd")
        values = {
            int(name): figure_
            for name, value in (found.items() if isinstance(found, Mapping) else ())
            if str(name).isdigit() and (figure_ := finite(value)) is not None
        }
        if not values:
            return None
        what = "private validation text" if self.stamp else "the released kernel mean"
        numbers = sorted(values)
        chart = Chart(
            title=f"Squared distance to {what}",
            description=f"{number(values[numbers[0]])} in round {numbers[0]}, "
            f"{number(values[numbers[-1]])} in round {numbers[-1]}.",
            axes=Axes(
                x=linear_scale([0, numbers[-1]], from_zero=True, whole=True),
                y=linear_scale([0, *values.values()], from_zero=True),
                x_title="Round of refinement" if "refine" in self.config else "Round",
                y_title=f"Squared distance (MMD) to {what}, no unit",
            ),
            series=(
                Series(
                    name="",
                    style=_RELEASE,
                    points=tuple(
                        Point(x=n, y=values[n], text=f"round {n}: {number(values[n])}")
                        for n in numbers
                    ),
                ),
            ),
        )
        noise = (
            ""
            if self.stamp
            else " What its noise adds on average was taken off, so that it can fall below 0; text "
            "that was chosen by scores from this very release looks nearer than it is."
        )
        return section(
            "How near the text came",
            figure(
                both_sizes([("distance", chart)], height=330)[0],
                caption=f"Squared distance of the text of each round to {what}; lower is nearer."
                f"{noise}",
                stamp=self.stamp,
                data=table(
                    "Squared distance by round",
                    ("Round", "Squared distance"),
                    [(str(n), number(values[n])) for n in numbers],
                ),
                split=True,
            ),
        )

    # ---------------------------------------------------------------- training on the nodes

    def _updates(self) -> Child:
        """The released update of each round beside the noise in it."""
        records = round_records(self.run, "server")
        found = [
            (n, update, noise, finite(record.get("clip_norm")))
            for n, record in sorted(records.items())
            if (update := finite(record.get("average_update_norm"))) is not None
            and (noise := finite(record.get("average_noise_norm"))) is not None
        ]
        if not found:
            return None
        lines = (
            ("released update", Style(colour=0, mark="circle"), [(n, u) for n, u, _, _ in found]),
            ("noise in it", Style(colour=3, mark="diamond"), [(n, z) for n, _, z, _ in found]),
        )
        chart = Chart(
            title="Released updates beside their noise",
            description=f"In the last round the update has norm {number(found[-1][1])}, the noise "
            f"in it {number(found[-1][2])}.",
            axes=Axes(
                x=linear_scale([0, found[-1][0]], from_zero=True, whole=True),
                y=linear_scale([0, *[v for _, u, z, _ in found for v in (u, z)]], from_zero=True),
                x_title="Round",
                y_title="Euclidean norm of the average over users (units of the weights)",
            ),
            series=tuple(
                Series(
                    name=name,
                    style=style,
                    points=tuple(Point(x=n, y=v, text=f"round {n}: {number(v)}") for n, v in line),
                )
                for name, style, line in lines
            ),
        )
        return section(
            "How the model moved",
            figure(
                both_sizes([("updates", chart)], height=330)[0],
                caption="The norm of each round's released average, which the noise is part of, "
                "and the norm that the noise alone is expected to have. Where both are near, a "
                "round says little about the users.",
                stamp=self.stamp,
                data=table(
                    "Norms by round",
                    ("Round", "Released update", "Noise in it", "Clip norm"),
                    [(str(n), number(u), number(z), number(c)) for n, u, z, c in found],
                ),
                split=True,
            ),
        )

    # ---------------------------------------------------------------- samples

    def _samples(self) -> Child:
        folder, files = round_files(self.run)
        word = "Round" if folder == "rounds" else "Refinement round"
        cards = []
        for n in spread_over(sorted(files), 2):
            found = read_round(n, files[n])
            if found is None or not found.texts:
                continue
            notes = [f"{whole(len(found.texts))} texts"]
            if found.scores is not None:
                notes.append("those with the highest scores")
            cards.append(
                sample_card(
                    f"{word} {n}" + (", public text" if found.is_public else ""),
                    found.best(_ROUND_SAMPLES),
                    note="; ".join(notes),
                )
            )
        final: list[str] = []
        count = 0
        for record in read_json_lines(self.run.synthetic_jsonl):
            count += 1
            if len(final) < _FINAL_SAMPLES:
                final.append(str(record.get("text", "")))
        if final:
            cards.append(
                sample_card("Result", final, note=f"{whole(count)} synthetic texts; the first")
            )
        if not cards:
            return None
        return section("Sample texts", element("div", *cards, class_="samples"))

    def _training(self) -> Child:
        records = round_records(self.run, "training")
        if not records:
            return None
        rows = [
            (
                str(n),
                _whole(record.get("pairs")),
                _whole(record.get("steps")),
                _figure(record.get("loss")),
                _figure(record.get("margin")),
                _figure(record.get("accuracy")),
            )
            for n, record in sorted(records.items())
        ]
        return section(
            "Training of the generator",
            details(
                counted(len(rows), "round"),
                table(
                    "Training by round",
                    ("Round", "Pairs", "Steps", "Loss", "Margin", "Accuracy"),
                    rows,
                    note="Pairs are chosen by released scores. Accuracy: share of pairs whose "
                    "chosen text the trained generator prefers more than its reference does.",
                ),
            ),
        )

    def _settings(self) -> Html:
        versions = self.document.get("versions")
        used = versions if isinstance(versions, Mapping) else {}
        shown = {name: value for name, value in self.config.items() if name not in _PLACES}
        return section(
            "Settings",
            details(
                counted(len(shown), "setting"),
                table(
                    "Settings of the run",
                    ("Key", "Value"),
                    [
                        (element("code", key_), element("code", _setting(value)))
                        for key_, value in shown.items()
                    ],
                    text_columns=(0, 1),
                ),
            ),
            details("Versions", facts((str(name), str(value)) for name, value in used.items()))
            if used
            else None,
        )


def _setting(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    return '""' if value == "" else str(value)


def _whole(value: Any) -> str | None:
    found = finite(value)
    return None if found is None else whole(found)


def _figure(value: Any) -> str | None:
    found = finite(value)
    return None if found is None else number(found)


def _bytes(value: Any) -> str | None:
    found = finite(value)
    return None if found is None else bytes_text(found)
