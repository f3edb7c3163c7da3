"""What the page of one run shows: its figures and its texts, without any markup.

They are released values and what was made of them and of public text, so the page may lie in the
run directory and be shown to whoever may read that. A run whose noise is too little as printed
(`RESEARCH_STAMP`) says so at the top of its page and at every figure that this touches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from flower_privsyn.errors import DataError
from flower_privsyn.files import read_json_lines
from flower_privsyn.privacy.ledger_file import open_rounds, stated_costs
from flower_privsyn.report.figures import Chart, Level, by_round
from flower_privsyn.report.numbers import (
    Fact,
    Look,
    Row,
    Sample,
    bytes_text,
    epsilon_text,
    finite,
    mapping,
    number,
    setting_text,
    time_text,
    whole,
)
from flower_privsyn.report.rounds import (
    RoundTexts,
    read_round,
    round_files,
    round_records,
)
from flower_privsyn.runs import RunDirectory, how_to_resume
from flower_privsyn.runs.run_format import stamp_of
from flower_privsyn.runs.sketch_file import SELECTED, SKETCH_FILE, telling_items, trust_of
from flower_privsyn.runs.summary import run_costs

_ROUND_SAMPLES, _FINAL_SAMPLES = 3, 9
_SAID = 12

_RELEASE, _SERVER, _CENTRE = Look(0, "circle"), Look(3, "square"), Look(3, "diamond")

_OUTCOMES = {
    "released": "released",
    "discarded": "discarded: too few users, nothing released",
    "lost": "lost: charged, nothing released",
    "interrupted": "interrupted: charged, and its release lost",
}


def _each(values: Iterable[str]) -> str:
    """The different values, in the order of the releases: phases may differ in them."""
    return ", ".join(dict.fromkeys(values))


def _noise_of(line: Mapping[str, Any]) -> str:
    """Who added the noise of a release, and is trusted to have done so."""
    facts = mapping(line.get("extra"))
    if facts.get("noise") != "nodes":
        return "added by the server, which is trusted with raw sums"
    return (
        f"added by the nodes, sums of at least {facts.get('least_nodes')} of them, "
        f"{facts.get('colluding_nodes')} of which may collude with the server (secure aggregation)"
    )


class RunFacts:
    """A run as its page shows it; see `run.html.j2` for what is said beside it.

    Raises:
        LedgerError: the ledger is damaged, or lacks a line that another file states.
        RunDirectoryError: a file of the run is damaged.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.config = run.config
        self.summary = mapping(run.state.get("summary"))
        self.ledger = run.ledger_lines()
        self.digest = run.last_digest()
        self.metrics = run.round_lines()
        self.releases = [line for line in self.ledger if line.get("event") == "release"]
        self.opened: Mapping[str, Any] = next(
            (line for line in self.ledger if line.get("event") == "opened"), {}
        )
        self.heading = f"Run {run.path.name}"
        self.name = run.path.name
        self.status = run.standing

    @property
    def error(self) -> str | None:
        """Why the run ended, as a sentence, with the name of the run in place of its folder."""
        told = (self.run.error or "").replace(str(self.run.path), self.name)
        if not told:
            return None
        return told[0].upper() + told[1:] + ("" if told[-1] in ".!?" else ".")

    @property
    def go_on(self) -> str:
        """The command that goes on with the run, likewise."""
        return how_to_resume(self.run.path).replace(str(self.run.path), self.name)

    @property
    def stamp(self) -> str | None:
        """What must stand at every figure that private text touched; None where none did."""
        stamps = [record.get("stamp") for record in (self.summary, *self.metrics)]
        found = next((str(stamp) for stamp in stamps if stamp), None)
        return found or stamp_of(self.run.document)

    @property
    def subtitle(self) -> list[str]:
        """The method, the app and the moment the run was begun."""
        method = str(self.run.document.get("strategy") or "")
        # The same class is two methods of the literature.
        if method == "POPri" and self.config.get("loss") == "sft":
            method = "PE + SFT"
        queries = [f"query {line['query']}" for line in self.ledger if line.get("query")]
        app = self.run.document.get("app")
        parts = [method or next(iter(queries), ""), f"app {app}" if app is not None else ""]
        return [*filter(None, parts), f"begun {time_text(self.run.document.get('created'))}"]

    # ---------------------------------------------------------------- what was asked

    @cached_property
    def said(self) -> list[tuple[str, list[Row]]]:
        """Tokens and bigrams that a joint sketch is surest of: a caption and rows for each end."""
        file = self.run.path / SKETCH_FILE
        if not file.is_file():
            return []
        found = []
        for kind, ends in telling_items(file, most=_SAID).items():
            for end, items in ends.items():
                rows: list[Row] = [
                    (
                        json.dumps(item["text"], ensure_ascii=False),
                        *(number(item[key], 3) for key in ("ratio", "low", "high")),
                    )
                    for item in items
                ]
                if rows:
                    found.append((f"{kind.capitalize()}s written {end} often", rows))
        return found

    @property
    def trust(self) -> str:
        """How far a joint sketch was trusted; "" where the run has none, or does not say."""
        trust = trust_of(self.run.path)
        return "" if trust is None else number(trust, 2)

    @property
    def ranking(self) -> list[Row]:
        """Sets of text by their distance to what was released, the nearest first."""
        found = self.summary.get("ranking")
        keys = ("texts", "fred", "error", "mean_part", "nearest")
        return [
            (str(one.get("name")), *(number(finite(one.get(key)), 4) for key in keys))
            for one in (map(mapping, found) if isinstance(found, list) else ())
        ]

    @property
    def noise_ratio(self) -> str:
        """The noise of a released covariance over what it says."""
        return number(finite(self.summary.get("noise_ratio")), 2)

    # ---------------------------------------------------------------- privacy

    @property
    def delta(self) -> str:
        """The delta of both epsilons."""
        return number(finite(self.opened.get("delta", self.config.get("delta"))), 3)

    @property
    def budget(self) -> float | None:
        """The epsilon that may be spent."""
        return finite(self.opened.get("epsilon_budget", self.config.get("epsilon")))

    @property
    def spent(self) -> tuple[str, str] | None:
        """`epsilon_release` and `epsilon_known_cohorts` of the run; None where none holds."""
        last = stated_costs(self.ledger)
        if last.get("epsilon_release") is None:
            return None
        known = last.get("epsilon_known_cohorts")
        told = "none" if known is None else epsilon_text(known)
        return epsilon_text(last["epsilon_release"]), told

    @property
    def ended_early(self) -> bool:
        """Whether `spent` is of all planned rounds, as fewer were asked."""
        return stated_costs(self.ledger).get("event") == "ended"

    @property
    def rounds_open(self) -> list[int]:
        """Rounds that were begun, by a run that is at work no more, and are not charged yet."""
        ended = self.status in ("interrupted", "failed")
        return open_rounds(self.ledger) if ended else []

    @property
    def mechanism(self) -> list[Fact]:
        """How the noise was made and who took part."""
        first: Mapping[str, Any] = next(
            (line for line in self.ledger if line.get("event") in ("started", "release")), {}
        )
        lines: Sequence[Mapping[str, Any]] = [*self.releases] or [first]
        sampled = mapping(first.get("sampling"))
        rate = finite(sampled.get("rate"))
        ways = [str(sampled["method"])] if sampled.get("method") else []
        if rate is not None and rate < 1:
            ways.append(f"rate {number(rate, 3)}")
        budget = [("Budget, ε", None if self.budget is None else epsilon_text(self.budget))]
        if not first:
            return [*budget, ("δ", self.delta)]
        return [
            *budget,
            ("δ", None if self.releases else self.delta),
            ("Users", whole(finite(sampled.get("population")))),
            ("Who takes part in a round", ", ".join(ways) or None),
            ("Neighbouring data sets", first.get("relation")),
            ("Query", _each(str(line.get("query")).replace("_", " ") for line in lines) or None),
            ("Mechanism", first.get("mechanism")),
            (
                "Noise multiplier",
                _each(number(finite(line.get("noise_multiplier"))) for line in lines),
            ),
            ("Noise", _each(_noise_of(line) for line in lines)),
            ("Accountant", self.opened.get("accountant")),
        ]

    @cached_property
    def epsilons(self) -> list[tuple[str, list[tuple[int, float]]]]:
        """What was spent until each round, for each epsilon; one entry where both are the same."""
        lines = []
        for name in ("epsilon_release", "epsilon_known_cohorts"):
            found = [(line["round"], finite(line.get(name))) for line in self.releases]
            lines.append([(int(n), e) for n, e in found if e is not None])
        if not lines[0]:
            return []
        if lines[0] == lines[1]:
            return [("both ε", lines[0])]
        return [
            (n, line)
            for n, line in zip(("ε release", "ε known cohorts"), lines, strict=True)
            if line
        ]

    @property
    def spending(self) -> Chart:
        """Both epsilons by round, and the budget."""
        levels = []
        if self.budget is not None:
            tip = f"budget: {number(self.budget)}"
            levels.append(Level(name="budget", y=self.budget, tip=tip))
        looks = (_RELEASE, _SERVER)
        return by_round(
            [(n, look, line) for (n, line), look in zip(self.epsilons, looks, strict=False)],
            steps=True,
            title="ε spent by each round",
            description="; ".join(
                f"{name}: {number(line[-1][1])} after round {line[-1][0]}"
                for name, line in self.epsilons
            ),
            y_title="ε, all rounds until then (no unit)",
            levels=tuple(levels),
        )

    @property
    def spending_rows(self) -> list[Row]:
        """Round and both epsilons of every release."""
        names = ("epsilon_release", "epsilon_known_cohorts")
        return [
            (str(line.get("round")), *[number(finite(line.get(name))) for name in names])
            for line in self.releases
        ]

    # ---------------------------------------------------------------- rounds and costs

    @cached_property
    def rounds_done(self) -> list[int]:
        """Numbers of the finished rounds."""
        return [n for n in self.run.finished_rounds() if n > 0]

    @property
    def rounds_lost(self) -> int:
        """How many of the finished rounds gave no release."""
        return len(self.run.rounds_without_release())

    @property
    def rounds_planned(self) -> str | None:
        """How many the settings ask for."""
        planned = finite(self.config.get("num-rounds"))
        return whole(planned) if planned else None

    @property
    def costs(self) -> list[Fact] | None:
        """What a user receives and sends; None before a round has counted its messages."""
        try:
            costs = run_costs(self.run)
        except DataError:
            return None
        lost = str(costs.lost_rounds) if costs.lost_rounds else None
        return [
            (
                "Down to a user who is in all rounds",
                f"{bytes_text(costs.bytes_down)} ({costs.floats_down:,} numbers)",
            ),
            (
                "Up from such a user",
                f"{bytes_text(costs.bytes_up)} ({costs.floats_up:,} numbers)",
            ),
            ("Rounds a user is in, on average", f"{100 * costs.participation:.3g} %"),
            (
                "Down to and up from a user, on average",
                " and ".join(
                    bytes_text(round(costs.expected[way])) for way in ("bytes_down", "bytes_up")
                ),
            ),
            ("Rounds lost to an interruption", lost),
        ]

    @cached_property
    def round_numbers(self) -> list[int]:
        """Rounds that are finished or have counted something."""
        counted_ = {line["round"] for line in self.metrics}
        return sorted({*counted_, *self.rounds_done})

    @property
    def round_rows(self) -> list[Row]:
        """What became of every round, who was in it and what it cost."""
        rows: list[Row] = []
        lines = {line["round"]: line for line in self.metrics}
        for round_number in self.round_numbers:
            state = self.run.round_state(round_number) or {}
            outcome = str(state.get("outcome") or "not finished")
            values = {name: finite(value) for name, value in lines.get(round_number, {}).items()}
            rows.append(
                (
                    str(round_number),
                    _OUTCOMES.get(outcome, outcome),
                    whole(values.get("num_users")),
                    whole(values.get("missing")),
                    number(values.get("epsilon_release")),
                    number(values.get("epsilon_known_cohorts")),
                    bytes_text(values.get("bytes_down")),
                    bytes_text(values.get("bytes_up")),
                )
            )
        return rows

    # ---------------------------------------------------------------- text

    @cached_property
    def _files(self) -> dict[int, Path]:
        return round_files(self.run)

    def _texts(self) -> list[RoundTexts]:
        """The texts of the first and the last round."""
        files = self._files
        shown = sorted({min(files), max(files)}) if files else []
        return [found for n in shown if (found := read_round(n, files[n])) is not None]

    def _heading(self, texts: RoundTexts) -> str:
        return f"Round {texts.number}" + (", public text" if texts.is_public else "")

    @cached_property
    def distances(self) -> dict[int, float]:
        """Squared distance of each round's text to what was released, where the run looked."""
        found = mapping(self.summary.get("fred"))
        values = {int(n): finite(value) for n, value in found.items() if str(n).isdigit()}
        return {n: value for n, value in sorted(values.items()) if value is not None}

    @property
    def distance_rows(self) -> list[Row]:
        """Round and squared distance."""
        return [(str(n), number(value)) for n, value in self.distances.items()]

    @property
    def distance_chart(self) -> Chart:
        """The distances by round."""
        values = list(self.distances.items())
        (first, before), (last, after) = values[0], values[-1]
        return by_round(
            [("", _RELEASE, values)],
            title="Squared distance to the released mean and covariance",
            description=f"{number(before)} in round {first}, {number(after)} in round {last}.",
            x_title="Round of refinement" if "refine" in self.config else "Round",
            y_title="Squared distance (Fréchet) to the released mean and covariance, no unit",
        )

    # ---------------------------------------------------------------- training

    @cached_property
    def norms(self) -> list[tuple[int, float, float, float | None]]:
        """Round, norm of its released update, of the noise in it, and the clip norm."""
        found = []
        for n, record in sorted(round_records(self.run, "server").items()):
            update, noise = (finite(record.get(f"average_{w}_norm")) for w in ("update", "noise"))
            if update is not None and noise is not None:
                found.append((n, update, noise, finite(record.get("clip_norm"))))
        return found

    @property
    def norm_rows(self) -> list[Row]:
        """Round and its norms."""
        return [(str(n), *map(number, norms)) for n, *norms in self.norms]

    @property
    def norm_chart(self) -> Chart:
        """The released update of each round beside the noise in it."""
        last = self.norms[-1]
        return by_round(
            [
                ("released update", _RELEASE, [(n, u) for n, u, _, _ in self.norms]),
                ("noise in it", _CENTRE, [(n, z) for n, _, z, _ in self.norms]),
            ],
            title="Released updates beside their noise",
            description=f"In the last round the update has norm {number(last[1])}, the noise in it "
            f"{number(last[2])}.",
            y_title="Euclidean norm of the average over users (units of the weights)",
        )

    @property
    def training_rows(self) -> list[Row]:
        """Round, pairs, steps, loss, margin and accuracy of training the generator."""
        rows: list[Row] = []
        for n, record in sorted(round_records(self.run, "training").items()):
            values = {name: finite(value) for name, value in record.items()}
            counts = [whole(values.get(name)) for name in ("pairs", "steps")]
            figures = [number(values.get(name)) for name in ("loss", "margin", "accuracy")]
            rows.append((str(n), *counts, *figures))
        return rows

    # ---------------------------------------------------------------- samples and settings

    @property
    def samples(self) -> list[Sample]:
        """Texts of the first and the last round, and of the result."""
        cards: list[Sample] = []
        before: tuple[str, ...] = ()
        for texts in self._texts():
            # Rounds that released nothing leave the text as it was.
            if texts.texts and texts.texts != before:
                before = texts.texts
                best = "" if texts.scores is None else "; those with the highest scores"
                note = f"{whole(len(texts.texts))} texts{best}"
                cards.append(Sample(self._heading(texts), texts.best(_ROUND_SAMPLES), note))
        final: list[str] = []
        count, chosen = 0, False
        for record in read_json_lines(self.run.synthetic_jsonl):
            count += 1
            chosen = chosen or record.get("source") == SELECTED
            if len(final) < _FINAL_SAMPLES:
                final.append(str(record.get("text", "")))
        if final:
            kind = "public texts that were chosen, as they are" if chosen else "synthetic texts"
            cards.append(Sample("Result", final, f"{whole(count)} {kind}; the first"))
        return cards

    @property
    def settings(self) -> list[Row]:
        """Every setting but the places."""
        return [(name, setting_text(value)) for name, value in self.config.items()]

    @property
    def versions(self) -> list[Fact]:
        """Of the libraries the run used."""
        return [(str(n), str(v)) for n, v in mapping(self.run.document.get("versions")).items()]
