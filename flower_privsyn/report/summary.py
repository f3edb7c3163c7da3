"""What is known of a run from its directory: the one reading that every command and page shows.

Nothing is read here that is not in the run directory, so whatever a summary holds may be shown to
whoever may read that: settings, what was spent, and what was released or made of it. No file of the
owner's folder is opened, and no model library is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from flower_privsyn.files import read_json, read_json_lines
from flower_privsyn.models.library import import_extra
from flower_privsyn.privacy.ledger import stated_costs
from flower_privsyn.report.sketch_file import SELECTED, SKETCH_FILE, read_sketch
from flower_privsyn.run.directory import TRAINED_MODEL, RunDirectory, round_texts
from flower_privsyn.run.run_format import how_to_resume

if TYPE_CHECKING:
    import pandas as pd

#: Texts that are shown of a run.
_SAMPLES: Final = 9

#: Items of each kind, at each end, that are shown of a joint sketch.
_ITEMS: Final = 20

_COUNTS: Final = ("floats_down", "floats_up", "bytes_down", "bytes_up")


def run_costs(run: RunDirectory) -> dict[str, Any] | None:
    """Add up what a run recorded about its rounds.

    Per-user figures are for a user alone on a node, as on a phone. A node with many users receives
    and sends one message for all of them.

    Returns:
        `rounds`: whose messages were sent and whose replies were waited for; one that was repeated
        after an interruption was sent twice and counts twice. `floats_down` and `floats_up`:
        numbers that a user receives and sends in all rounds, when in all of them; `bytes_down` and
        `bytes_up`: of the packed messages. `expected`: the four counts as a user may expect them:
        each round's, times the share of users who are in it. None where no round has counted its
        messages.
    """
    lines = [line for line in run.metrics() if all(key in line for key in _COUNTS)]
    if not lines:
        return None
    # The expected share of users in a round: public, from the ledger's own description.
    shares = {number: sampling.rate for number, sampling in run.samplings().items()}
    return {
        "rounds": len(lines),
        **{key: sum(int(line[key]) for line in lines) for key in _COUNTS},
        # Rounds differ in size and in who is in them: the product of two averages is another.
        "expected": {
            key: sum(shares.get(int(line["round"]), 1.0) * int(line[key]) for line in lines)
            for key in _COUNTS
        },
    }


@dataclass(frozen=True, kw_only=True, repr=False)
class RunSummary:
    """A run, whatever has become of it.

    Attributes:
        path: the run directory.
        app: that started it; None of one that `privsyn run` did not start.
        strategy: the class that runs it; None of a run of something else.
        status: running, finished, failed or interrupted (killed, or ended by a signal).
        error: the sentence that says why it failed; None unless it did.
        changes: what resumed runs changed, oldest first.
        created: when it was begun, ISO 8601.
        settings: by hyphenated key, with what resumed runs changed, without places.
        versions: of the libraries it was made with.
        rounds_finished: their numbers.
        rounds_lost: those of them that gave no release.
        rounds_open: begun, and neither charged nor discarded.
        rounds: a record for each round that has finished or counted something: its `outcome`, its
            line of `metrics.jsonl`, and under `server` and `training` what these reported.
        releases: how many.
        charged: the ledger's line of each.
        users: in the last release's round; None where that is secret.
        delta: of both epsilons.
        epsilon_release: towards everyone who does not know who took part, of all releases so far;
            None before the first and for a run that is not private.
        epsilon_known_cohorts: towards one who does.
        epsilon_budget: what may be spent.
        ended_early: whether the epsilons are those of all planned rounds, as fewer were asked.
        accountant: which computed them.
        ledger_digest: of the ledger's last line; None before the first.
        costs: what a user receives and sends, by `run_costs`.
        figures: of the result, as the method reported them; empty before there is one. `trust` of a
            sketch, in [0, 1]: below 1 it tells little, and what it adds is as much smaller.
            `ranking` of sets of text by their distance to a release, the nearest first.
        synthetic_texts: how many.
        texts_are: what they are, in words.
        samples: the first of them.
        sketch: what users write more and less often than public text does, as `read_sketch`
            gives it; None where there is no sketch.
    """

    path: str
    app: str | None
    strategy: str | None
    status: str
    error: str | None
    changes: list[dict[str, Any]]
    created: str | None
    settings: dict[str, Any]
    versions: dict[str, str]
    rounds_finished: list[int]
    rounds_lost: list[int]
    rounds_open: list[int]
    rounds: list[dict[str, Any]]
    releases: int
    charged: list[dict[str, Any]]
    users: int | None
    delta: float | None
    epsilon_release: float | None
    epsilon_known_cohorts: float | None
    epsilon_budget: float | None
    ended_early: bool
    accountant: str | None
    ledger_digest: str | None
    costs: dict[str, Any] | None
    figures: dict[str, Any]
    synthetic_texts: int
    texts_are: str
    samples: list[str]
    sketch: dict[str, Any] | None

    @classmethod
    def of(cls, run: RunDirectory) -> Self:
        """Read a run, which is not locked and may go on meanwhile.

        Raises:
            LedgerError: the ledger is damaged, or lacks a line that another file states.
            RunDirectoryError: a file of the run is damaged.
        """
        document, chained = run.document, run.ledger()
        ledger = chained.lines
        opened: dict[str, Any] = next((one for one in ledger if one.get("event") == "opened"), {})
        charged = [line for line in ledger if line.get("event") == "release"]
        last: dict[str, Any] = charged[-1] if charged else {}
        became = {line["round"]: line.get("event") for line in ledger if "round" in line}
        spent, rounds = stated_costs(ledger), _rounds(run)
        sketch = run.path / SKETCH_FILE
        texts = list(read_json_lines(run.synthetic_jsonl))
        # What a sketch chose are real public sentences, with owners.
        chosen = sum(record.get("source") == SELECTED for record in texts)
        return cls(
            path=str(run.path),
            app=document.get("app"),
            strategy=document.get("strategy") or None,
            status=run.standing,
            error=run.error,
            changes=document.get("changes", []),
            created=document.get("created"),
            settings=run.config,
            versions=dict(document.get("versions") or {}),
            rounds_finished=[number for number in run.finished_rounds() if number > 0],
            rounds_lost=run.rounds_with_outcome("lost", "discarded", "interrupted"),
            rounds_open=[number for number, event in became.items() if event == "started"],
            rounds=rounds,
            releases=len(charged),
            charged=charged,
            users=last.get("num_users"),
            delta=last.get("delta", opened.get("delta", run.config.get("delta"))),
            epsilon_release=spent.get("epsilon_release"),
            epsilon_known_cohorts=spent.get("epsilon_known_cohorts"),
            epsilon_budget=opened.get("epsilon_budget", run.config.get("epsilon")),
            ended_early=spent.get("event") == "ended",
            accountant=opened.get("accountant"),
            ledger_digest=next(reversed(chained.digests), None),
            costs=run_costs(run),
            figures=dict(run.state.get("summary") or {}),
            synthetic_texts=len(texts),
            texts_are=_texts_are(len(texts), chosen),
            samples=[str(record.get("text", "")) for record in texts[:_SAMPLES]],
            sketch=read_sketch(sketch, most=_ITEMS) if sketch.is_file() else None,
        )

    def __repr__(self) -> str:
        return f"<run {self.path}: {self.strategy or 'no strategy'}, {self.status}>"

    @property
    def name(self) -> str:
        """Of the run directory's folder."""
        return Path(self.path).name

    @property
    def model(self) -> Path | None:
        """The folder of the model that the run made; None where it made none, or none yet."""
        made = Path(self.path) / TRAINED_MODEL
        return made if made.is_dir() else None

    @property
    def texts(self) -> pd.DataFrame:
        """The synthetic texts, read now: `text`, and `label` where texts have labels.

        Empty before a run has its result, and of methods that write none.
        """
        return _table(read_json_lines(RunDirectory.open(self.path).synthetic_jsonl))

    @property
    def candidates(self) -> pd.DataFrame:
        """Texts that users were asked about, read now, with `round` and noisy votes or scores.

        A round at work may have no votes yet: they are missing there. `survived` of a round that
        keeps texts is above 0 of those that it kept. No embeddings are in the table.
        """
        found = self.round_texts()
        return _table({"round": number, **row} for number, rows in found.items() for row in rows)

    def round_texts(self) -> dict[int, list[dict[str, Any]]]:
        """The same by round."""
        return round_texts(RunDirectory.open(self.path))

    @property
    def go_on(self) -> str | None:
        """What continues a run without a result; None of one that is at work or done."""
        ended = self.status in {"interrupted", "failed"}
        return how_to_resume(Path(self.path)) if ended else None

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it; `go_on` under `continue`."""
        return {**asdict(self), "continue": self.go_on}


def _rounds(run: RunDirectory) -> list[dict[str, Any]]:
    """What became of each round, and what it reported."""
    lines = run.round_lines()
    found = []
    for number in sorted({*lines, *(n for n in run.finished_rounds() if n > 0)}):
        files = run.round_files(number)
        state = run.round_state(number) or {}
        found.append(
            {
                **lines.get(number, {}),
                "round": number,
                "outcome": state.get("outcome"),
                "server": read_json(files.server),
                "training": read_json(files.training),
            }
        )
    return found


def open_run(path: str | Path) -> RunSummary:
    """Read a run: finished, at work, failed or interrupted, of any strategy.

    The run is not locked, and may go on meanwhile.

    Args:
        path: the run directory.

    Raises:
        LedgerError: the ledger is damaged, or lacks a line that another file states.
        RunDirectoryError: the folder does not exist, holds no run or one of another format.
    """
    return RunSummary.of(RunDirectory.open(path))


def _table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a table, missing values where a row lacks a column.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    pandas = import_extra("pandas", needed_by="a table of a run", extra="client")
    return pandas.DataFrame([dict(row) for row in rows])


def _texts_are(count: int, chosen: int) -> str:
    """What texts are, of which some were chosen from public text: all, none or these."""
    if chosen and chosen == count:
        return "public texts that were chosen"
    return "synthetic texts" + (f", {chosen:,} of them chosen from public text" if chosen else "")
