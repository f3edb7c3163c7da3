"""The run directory: everything one run writes, and enough of it to continue after a crash.

```
<run-dir>/config.json      what was asked for, and what a resumed run changed; makes a folder a run
          state.json       running, finished or failed, with the sentence that says why
          ledger.jsonl     one line per private release
          metrics.jsonl    one line per round
          synthetic.jsonl  (and .parquet) the result
          progress.json    how far the run is, for whoever follows it
          rounds/0001/     population.parquet, release.npy, state.json; of methods that train a
                           generator candidates.parquet, adapter/, training.json in place of the
                           population; metrics.json until its line is in metrics.jsonl
          checkpoint-*.npz what the method knew after its last round
          noise.npz        of DP-FTRL, while rounds are left: the memory of its noise, secret
          models/
```

Beside it, for the owner alone, is `<run-dir>.owner/` with the log, all times, and where things are
on the owner's machine: nothing in the run directory says when or for how long anything was done
after the run was created (`config.json`), and when work on it ends all files get that date. See
`flower_privsyn.run.owner`.

`config.json` states the format, 2; a run of another one is refused. Every `state.json` and every
line of `metrics.jsonl`, and the report, state the digest of what was the ledger's last line, so
that a ledger from which lines are missing is refused.

Files are replaced as a whole (temporary file, fsync, rename), so a process that is killed at any
moment leaves the old file or the new one, never half of one. A round counts only once its
`state.json` says so, which is the last thing written for it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, Literal

from flower_privsyn import clock
from flower_privsyn.environment import RUN_DIRECTORY
from flower_privsyn.errors import RunDirectoryError
from flower_privsyn.files import (
    append_json_lines,
    expanded,
    plain,
    quoted,
    read_json_lines,
    replacing,
    write_json,
)
from flower_privsyn.privacy.ledger import LedgerFile, header, refuse_cut
from flower_privsyn.run.locks import (
    forget_holder,
    hide_dates_of,
    is_alive,
    lock_file,
    read_holder,
)
from flower_privsyn.run.owner import OwnerFolder
from flower_privsyn.run.progress import Progress, Stage
from flower_privsyn.run.round_files import ROUNDS, RoundFiles, Rounds
from flower_privsyn.run.run_format import (
    FORMAT,
    LEDGER_KEY,
    how_to_resume,
    others_than_a_start,
    read_json_object,
    refuse_links,
    refuse_other_format,
    stated_digests,
)
from flower_privsyn.run.surroundings import (
    asked_wrongly,
    sentence_of,
    versions,
    was_interrupted,
    without_places,
)

_OWNER_ALONE: Final = "privsyn_owner_alone"

FOR_THE_OWNER: Final[Mapping[str, bool]] = {_OWNER_ALONE: True}
"""`extra` of a warning that depends on who was drawn: it is in the server's log, and in no file of
the run."""

#: Loggers of this package, and of Flower.
_OURS: Final = "flower_privsyn"

_FLOWER: Final = "flwr"


class RunDirectory:
    """One run on disk. Use `create`, `open` or `start`.

    Attributes:
        path: The folder, absolute.
        owner: The owner's folder beside it, where the times are.
        goes_on: Whether `start` found it, to go on with.
        config_file: What was asked for.
        state_file: Running, finished or failed.
        ledger_file: The privacy ledger.
        metrics_file: One line per round.
        progress_file: How far the run is.
        synthetic_jsonl: The synthetic texts, one JSON object per line.
        synthetic_parquet: The synthetic texts as a Parquet table.
        rounds: The files of the rounds, by number.
        refinement: The same of rounds that follow one release.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner = OwnerFolder(path)
        self.goes_on = False
        self.config_file = path / "config.json"
        self.state_file = path / "state.json"
        self.ledger_file = path / "ledger.jsonl"
        self.metrics_file = path / "metrics.jsonl"
        self.progress_file = path / "progress.json"
        self.synthetic_jsonl = path / "synthetic.jsonl"
        self.synthetic_parquet = path / "synthetic.parquet"
        self.rounds = Rounds(path / ROUNDS)
        self._ledger_digest: Callable[[], str] | None = None
        self._failure_told: Callable[[], None] | None = None
        self._lock_file: IO[str] | None = None
        self._progress: Progress | None = None

    # ---------------------------------------------------------------- making and opening

    @classmethod
    def create(
        cls, path: str | Path, *, config: Mapping[str, Any], strategy: str = ""
    ) -> RunDirectory:
        """Make a new run in a folder, which is created where it does not exist.

        The run is locked by this process when the method returns.

        Args:
            path: The folder, new or empty.
            config: What the run was asked to do, as plain JSON values; stored in `config.json`
                beside the versions of the libraries and, for a run started by `privsyn run`, the
                app's name. Places (`PLACES`) are in the owner's folder alone.
            strategy: The class that runs it, by name; "" for a run of something else.

        Raises:
            RunDirectoryError: The folder holds a run or other files, cannot be written or is
                locked.
        """
        run = cls(expanded(path).absolute())
        run.refuse_existing()
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            run.lock()
            try:
                # Again: another process may have made a run before the lock was ours.
                run.refuse_existing()
                document: dict[str, Any] = {
                    "format": FORMAT,
                    "strategy": strategy,
                    "config": plain(without_places(config)),
                    "versions": versions(),
                    "created": clock.now(),
                }
                # Of plain `flwr run` there is none, or that of an earlier run of this name.
                started = os.environ.get(RUN_DIRECTORY) == str(run.path)
                launch = run.owner.stated.get("launch", {}) if started else {}
                if launch:
                    document["app"] = launch["name"]
                run.owner.begin(launch=launch, settings=config)
                run._write_state({"status": "running", "error": None})
                write_json(run.config_file, document)
            except BaseException:
                run.unlock()
                raise
        except OSError as error:
            raise RunDirectoryError(
                f"The run directory {run.path} cannot be written: {error.strerror or error}."
            ) from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Open an existing run without locking it.

        Raises:
            RunDirectoryError: The folder does not exist, holds no run or one of another format, or
                holds links.
        """
        run = cls(expanded(path).absolute())
        if not run.path.exists():
            raise RunDirectoryError(f"There is no run directory {run.path}.")
        if not run.config_file.is_file():
            raise RunDirectoryError(f"{run.path} is not a run directory: it holds no config.json.")
        refuse_links(run.path)
        refuse_other_format(run.path, run.document)
        return run

    @classmethod
    def start(
        cls,
        path: str | Path,
        *,
        config: Mapping[str, Any],
        strategy: str = "",
        resume: bool | Literal["auto"] = False,
    ) -> RunDirectory:
        """Create a run, or with `resume` open one that has not finished; locked in either case.

        Args:
            path: The folder.
            config: As for `create`; of a resumed run the recorded one stays.
            strategy: The same.
            resume: Continue a run instead of making one. "auto": where there is one, which may have
                finished.

        Raises:
            RunDirectoryError: As for `create` and `open`; or the run to resume has finished.
        """
        auto = resume == "auto"
        if not (cls(expanded(path).absolute()).config_file.is_file() if auto else resume):
            return cls.create(path, config=config, strategy=strategy)
        run = cls.open(path)
        run.goes_on = True
        if not auto:
            run.refuse_finished()
        run.lock(wait_seconds=10)
        try:
            if not auto:  # again: the process that was waited for may have finished it
                run.refuse_finished()
        except BaseException:
            run.unlock()
            raise
        return run

    def refuse_existing(self) -> None:
        """Refuse a folder in which no run can begin.

        Whoever gets a run directory gets all of it, and all of it has the date of the run's
        creation. So nothing else is in it; what a start that was killed leaves is no hindrance.

        Raises:
            RunDirectoryError: It is a file, holds a run, holds other files or cannot be read.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunDirectoryError(f"The run directory {self.path} is a file, not a folder.")
        if self.config_file.exists() and self.status == "finished":
            raise RunDirectoryError(
                f"{self.path} already holds a run; choose another run directory. That one has "
                f"finished: `privsyn inspect {quoted(self.path)}` shows it, and "
                'resume = "auto" gives its result.'
            )
        if self.config_file.exists():
            then = f'resume it: {how_to_resume(self.path)}; resume = "auto" does either.'
            if (pid := self.running_process()) not in (None, os.getpid()):
                then = f"wait for process {pid}, which works on it."
            raise RunDirectoryError(
                f"{self.path} already holds a run; choose another run directory, or {then}"
            )
        if others := others_than_a_start(self.path):
            some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
            raise RunDirectoryError(
                f"{self.path} holds other files ({some}), and a run directory is new or empty: "
                "who gets it gets all that is in it."
            )

    def refuse_finished(self) -> None:
        """Raise a RunDirectoryError when there is nothing left to resume."""
        if self.status == "finished":
            raise RunDirectoryError(
                f"The run in {self.path} has finished; there is nothing to resume."
            )

    # ---------------------------------------------------------------- files

    @property
    def document(self) -> dict[str, Any]:
        """Everything in `config.json`: config, versions, created, app."""
        return read_json_object(self.config_file)

    @property
    def config(self) -> dict[str, Any]:
        """What the run was asked to do, as given to `create`, without places."""
        config = self.document.get("config")
        if not isinstance(config, dict):
            raise RunDirectoryError(f'{self.config_file} holds no "config" object.')
        return config

    def progress(self) -> Progress:
        """The reporter that writes this run's `progress.json`; always the same one."""
        if self._progress is None:
            self._progress = Progress(self.progress_file, ended=self._time_stage)
        return self._progress

    def _time_stage(self, stage: Stage) -> None:
        self.owner.record("stage", name=stage.name, seconds=stage.seconds)

    def follow_ledger(self, digest: Callable[[], str]) -> None:
        """State the ledger's last line in whatever is recorded from now on.

        Args:
            digest: Gives the digest of that line; see `PrivacyLedger.digest`.
        """
        self._ledger_digest = digest

    def follow_failure(self, tell: Callable[[], None]) -> None:
        """Tell somebody when a session has ended without a result, while it still has the lock.

        Args:
            tell: Called once that is recorded; must raise nothing.
        """
        self._failure_told = tell

    def _stated(self) -> dict[str, str]:
        return {} if self._ledger_digest is None else {LEDGER_KEY: self._ledger_digest()}

    def stated_digests(self) -> dict[str, str]:
        """Digests of ledger lines that the run's files state, and for each the name of a file."""
        return stated_digests(self.path)

    def ledger_lines(self) -> list[dict[str, Any]]:
        """The lines of the ledger, without a torn last one; none before the first.

        Raises:
            LedgerError: The ledger is damaged, of another version, or lacks a line that another
                file of the run states.
        """
        return self._ledger().lines

    def last_digest(self) -> str | None:
        """The digest of the ledger's last line; None before the first. Raises as `ledger_lines`."""
        return next(reversed(self._ledger().digests), None)

    def _ledger(self) -> LedgerFile:
        path = self.ledger_file
        if path.exists():
            ledger = LedgerFile.read(path)
            header(path, ledger.lines)
        else:
            ledger = LedgerFile(path, None)
        refuse_cut(path, ledger.digests, self.stated_digests())
        return ledger

    def hold_metrics(self, number: int, metrics: Mapping[str, Any]) -> None:
        """Write a round's line beside its release; `settle_metrics` brings it to its place.

        Values that JSON cannot say (NaN, infinity) become null.
        """
        write_json(RoundFiles(self.round_dir(number)).metrics, {**metrics, **self._stated()})

    def settle_metrics(self) -> None:
        """Bring the lines that rounds hold to `metrics.jsonl`, once each, killed or not.

        They are on the disk when the method returns. A line torn by an earlier crash is cut off
        first.
        """
        append_json_lines(self.metrics_file, self._held_metrics())
        for _, files in self.rounds:
            files.metrics.unlink(missing_ok=True)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, without a torn last one, and those that rounds hold."""
        return [*read_json_lines(self.metrics_file), *self._held_metrics()]

    def round_lines(self) -> list[dict[str, Any]]:
        """The last line of every round, in the order of the rounds.

        A round that was discarded and asked again has two in `metrics.jsonl`: both were traffic,
        and the later one says what became of it.
        """
        last = {line["round"]: line for line in self.metrics() if type(line.get("round")) is int}
        return [last[number] for number in sorted(last)]

    def _held_metrics(self) -> list[dict[str, Any]]:
        """Lines that are in a round's folder alone: of rounds that have not ended."""
        held = [files.record("metrics") for _, files in self.rounds if files.metrics.is_file()]
        there = list(read_json_lines(self.metrics_file)) if held else []
        return [line for line in held if line and line not in there]

    def write_synthetic(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Write the synthetic texts as JSON lines and as Parquet, each file as a whole.

        Args:
            records: One mapping per text, all with the same keys, at least `text`, `round`,
                `parent` and `source`.

        Returns:
            The number of texts.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = [plain(record) for record in records]
        with replacing(self.synthetic_jsonl) as temporary, temporary.open("wb") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        with replacing(self.synthetic_parquet) as temporary:
            pq.write_table(pa.Table.from_pylist(rows), temporary)
        return len(rows)

    # ---------------------------------------------------------------- rounds

    def round_dir(self, number: int) -> Path:
        """The folder of one round, created on first use.

        Args:
            number: Round number; 0 is what existed before the first round.

        Raises:
            ValueError: The number is negative.
            RunDirectoryError: There is a file in its place.
        """
        return self.rounds.files(number).make()

    def round_path(self, number: int) -> Path:
        """The folder of one round, which may not exist."""
        return self.rounds.files(number).folder

    def finish_round(self, number: int, state: Mapping[str, Any] | None = None) -> None:
        """Record that everything of a round is on disk; call it last.

        Args:
            number: Round number.
            state: What a resumed run needs beside the other files, as plain JSON values.
        """
        record = {**(state or {}), "round": number, "status": "finished", **self._stated()}
        write_json(RoundFiles(self.round_dir(number)).state, record)

    def reopen_round(self, number: int) -> None:
        """Let a finished round be done again; its other files stay until they are replaced."""
        self.rounds.files(number).state.unlink(missing_ok=True)

    def round_state(self, number: int) -> dict[str, Any] | None:
        """What `finish_round` recorded; None while the round has not finished."""
        state = self.rounds.files(number).record("state")
        return state if state.get("status") == "finished" else None

    def finished_rounds(self) -> list[int]:
        """Numbers of the finished rounds, ascending; leftovers of an interrupted one are not."""
        return [number for number, _ in self.rounds if self.round_state(number) is not None]

    def rounds_with_outcome(self, *outcomes: str) -> list[int]:
        """Numbers of the finished rounds whose recorded `outcome` is one of these, ascending."""
        return [
            number
            for number in self.finished_rounds()
            if (self.round_state(number) or {}).get("outcome") in outcomes
        ]

    def rounds_without_release(self) -> list[int]:
        """Numbers of the finished rounds that asked and gave nothing to work with, ascending."""
        released = {0, *self.rounds_with_outcome("released")}
        return [number for number in self.finished_rounds() if number not in released]

    # ---------------------------------------------------------------- state

    @property
    def state(self) -> dict[str, Any]:
        """Everything in `state.json`; empty when the file is missing or unreadable."""
        try:
            return read_json_object(self.state_file)
        except RunDirectoryError:
            return {}

    @property
    def status(self) -> str:
        """`running`, `finished` or `failed` as last recorded.

        A run that was killed is still recorded as running; `running_process` tells the two apart.
        """
        return str(self.state.get("status", "running"))

    @property
    def standing(self) -> str:
        """`status`, but "interrupted" for a run that was killed or that somebody ended."""
        killed = self.status == "running" and self.running_process() is None
        return "interrupted" if killed or was_interrupted(self.error) else self.status

    @property
    def error(self) -> str | None:
        """The sentence that says why the run failed; None unless it did."""
        error = self.state.get("error")
        return None if error is None else str(error)

    def running_process(self) -> int | None:
        """Process id of the ServerApp that is working on this run now; None when none is."""
        holder = read_holder(self.path / ".lock")
        if holder is None or self.status != "running":
            return None
        pid, started = holder
        return pid if is_alive(pid, started) else None

    def mark_running(self) -> None:
        """Record that this process works on the run."""
        state = self.state
        self._write_state(
            {
                "status": "running",
                "error": None,
                "starts": int(state.get("starts", 0)) + 1,
                **{key: state[key] for key in (LEDGER_KEY,) if key in state},
            }
        )

    def clear_failure(self) -> None:
        """Forget why the run stopped, before it is started again."""
        self._write_state({**self.state, "status": "running", "error": None})

    def mark_failed(self, error: str | BaseException) -> None:
        """Record that the run ended without a result.

        Args:
            error: The sentence to show, or the exception: one of ours is its own sentence,
                any other is named by its type and place and marked as unexpected.
        """
        sentence, unexpected = sentence_of(error)
        end = {"status": "failed", "error": sentence, "unexpected": unexpected}
        self._write_state({**self.state, **end, "asked_wrongly": asked_wrongly(error)})

    def mark_finished(self, summary: Mapping[str, Any] | None = None) -> None:
        """Record that the run has its result.

        Args:
            summary: Figures worth showing at the end, as plain JSON values.
        """
        self._write_state(
            {**self.state, "status": "finished", "error": None, "summary": summary or {}}
        )

    def _write_state(self, state: Mapping[str, Any]) -> None:
        self.owner.record("state", status=state["status"])
        write_json(self.state_file, {**state, **self._stated()})

    def hide_dates(self) -> None:
        """Give all files the date of the run's creation; call it when work on the run has ended."""
        hide_dates_of(self.path)

    # ---------------------------------------------------------------- one process at a time

    def lock(self, *, wait_seconds: float = 0.0) -> None:
        """Make this process the only one that works on the run, until `unlock` or its end.

        The kernel releases the lock when the process dies, so a crash never leaves one behind.

        Args:
            wait_seconds: How long to wait for another process to let go, >= 0.

        Raises:
            RunDirectoryError: Another process holds the lock; the message names it.
        """
        if self._lock_file is None:
            self._lock_file = lock_file(
                self.path / ".lock", what=f"the run in {self.path}", wait_seconds=wait_seconds
            )

    def unlock(self) -> None:
        """Let another process work on the run; its files get the date of its creation."""
        if self._lock_file is not None:
            forget_holder(self._lock_file)
            hide_dates_of(self.path)
            self._lock_file.close()
            self._lock_file = None

    @contextlib.contextmanager
    def session(self) -> Iterator[RunDirectory]:
        """Work on the run: hold its lock, and record how the work ended.

        Leaving the block normally marks the run finished unless that was done inside; leaving it
        by any exception, `SystemExit` included, marks it failed with that exception's sentence.
        Warnings this package logs inside the block also go to whoever follows the run, and to
        Flower's log.

        Raises:
            RunDirectoryError: Another process works on the run.
        """
        self.lock(wait_seconds=10)
        try:
            self.owner.forget_stop()
            self.mark_running()
            try:
                self.rounds.refuse_files()
                with warnings_to(self.progress()):
                    yield self
            except BaseException as error:
                self.mark_failed(error)
                if self._failure_told is not None:
                    self._failure_told()
                raise
            if self.status == "running":
                self.mark_finished()
        finally:
            self.unlock()


class _Warnings(logging.Handler):
    """Passes warnings on to whoever follows the run, and to Flower's log those it would not see.

    Loggers below `flwr` are in Flower's log already. The others have Python's last resort, which
    writes to the same place, and which ends with the first handler that they get: this one.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, _OWNER_ALONE, False):
            self._progress.note(f"warning: {record.getMessage()}")
        flower = logging.getLogger(_FLOWER)
        ours = record.name.partition(".")[0] == _OURS
        if ours and flower.isEnabledFor(record.levelno) and not self._is_heard(record):
            flower.handle(record)

    def _is_heard(self, record: logging.LogRecord) -> bool:
        """Whether an app has set up a log of its own that this is written to."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(one is not self and one.level <= record.levelno for one in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


@contextlib.contextmanager
def warnings_to(progress: Progress) -> Iterator[None]:
    """Pass on the warnings that this package gives inside the block.

    Args:
        progress: Of the run. What is for the owner alone is left out.
    """
    handler = _Warnings(progress)
    loggers = [logging.getLogger(name) for name in (_OURS, f"{_FLOWER}.privsyn")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
