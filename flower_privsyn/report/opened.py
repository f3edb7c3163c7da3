"""A run directory as tables, for notebooks and scripts: what was asked, spent, measured and made.

Nothing is read here that is not in the run directory, so whatever these tables hold may be shown
to whoever may read that. No file of the owner's folder is opened, and no model library is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_privsyn.errors import MissingExtraError
from flower_privsyn.files import read_json_lines
from flower_privsyn.report.summary import RunSummary
from flower_privsyn.run.directory import RunDirectory, round_texts

if TYPE_CHECKING:
    import pandas as pd


#: Files by which a folder is known as a model.
_MODEL_FILES = ("config.json", "adapter_config.json", "model.safetensors")


def open_run(path: str | Path) -> OpenedRun:
    """Open a run for reading: finished, at work, failed or interrupted, of any strategy.

    The run is not locked, and may go on while it is read: every table is read when it is asked
    for, and holds what was on the disk at that moment.

    Args:
        path: the run directory.

    Raises:
        RunDirectoryError: the folder does not exist, holds no run or one of another format.
    """
    return OpenedRun(RunDirectory.open(path))


class OpenedRun:
    """What one run left, as tables of pandas. Made by `open_run`.

    Attributes:
        run: the files.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run

    def __repr__(self) -> str:
        return f"<run {self.path}: {self._strategy or 'no strategy'}, {self.run.standing}>"

    @property
    def _strategy(self) -> str:
        return str(self.run.document.get("strategy") or "")

    @property
    def path(self) -> Path:
        """The run directory, absolute."""
        return self.run.path

    @property
    def summary(self) -> RunSummary:
        """Settings, what was spent, what a user sends and how the run stands, read now.

        Raises:
            LedgerError: the ledger is damaged, or lacks a line that another file states.
        """
        return RunSummary.of(self.run)

    # ---------------------------------------------------------------- tables

    @property
    def metrics(self) -> pd.DataFrame:
        """A row per round, in the order of the rounds: its last line in `metrics.jsonl`."""
        return _table(self.run.round_lines())

    @property
    def ledger(self) -> pd.DataFrame:
        """A row per line of the privacy ledger; nested values stay dictionaries.

        Raises:
            LedgerError: the ledger is damaged, or lacks a line that another file states.
        """
        return _table(self.run.ledger_lines())

    @property
    def releases(self) -> pd.DataFrame:
        """The rows of the ledger that charge a release, with both epsilons until then.

        An interrupted round is charged, too, and its `interrupted` is true. Raises as `ledger`.
        """
        return _table(line for line in self.run.ledger_lines() if line.get("event") == "release")

    @property
    def texts(self) -> pd.DataFrame:
        """The synthetic texts, `text` and `label` among the columns where texts have labels.

        Empty before a run has its result, and of methods that write none.
        """
        return _table(read_json_lines(self.run.synthetic_jsonl))

    @property
    def expanded(self) -> pd.DataFrame:
        """The texts that `privsyn expand` wrote, with the `file` they are from."""
        return _table(
            {**row, "file": file.name}
            for file in sorted(self.path.glob("expanded-*.jsonl"))
            for row in read_json_lines(file)
        )

    @property
    def candidates(self) -> pd.DataFrame:
        """Texts that users were asked about, with `round` and their noisy votes or scores.

        A round at work may have no votes yet: they are missing there. No embeddings are in the
        table.
        """
        found = round_texts(self.run)
        return _table({"round": number, **row} for number, rows in found.items() for row in rows)

    @property
    def survivors(self) -> pd.DataFrame:
        """The candidates that a released round kept, a row for each round that kept it.

        Empty of methods whose rounds keep no texts.
        """
        table = self.candidates
        if "survived" not in table:
            columns = dict.fromkeys([*table.columns, "round", "text", "survived"])
            return table.iloc[0:0].reindex(columns=list(columns))
        released = self.run.rounds_with_outcome("released")
        kept = table["survived"].fillna(0).astype(int) > 0
        return table[kept & table["round"].isin(released)].reset_index(drop=True)

    # ---------------------------------------------------------------- models

    @property
    def models(self) -> dict[str, Path]:
        """Folders of what was trained, by their place in the run directory.

        "models/final" is the model of a finished run; "rounds/0003/adapter" an adapter of a round.
        """
        folders = [*sorted((self.path / "models").glob("*"))]
        folders += [files.adapter for _, files in self.run.rounds]
        return {
            folder.relative_to(self.path).as_posix(): folder
            for folder in folders
            if any((folder / name).is_file() for name in _MODEL_FILES)
        }


def _table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a table, missing values where a row lacks a column.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError(
            "the tables of a run need pandas, which comes with "
            "pip install 'flower-privsyn[client]' and by itself with pip install pandas"
        ) from error
    return pd.DataFrame([dict(row) for row in rows])
