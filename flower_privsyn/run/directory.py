"""The run directory: everything one run writes, and enough of it to continue after a crash.

```
<run-dir>/config.json      what was asked for, and what a resumed run changed; makes a folder a run
          state.json       running, finished or failed, with the sentence that says why
          ledger.jsonl     one line per private release
          metrics.jsonl    one line per round
          synthetic.jsonl  (and .parquet) the result
          rounds/0001/     population.parquet, release.npy, state.json; of methods that train a
                           generator candidates.parquet, adapter/, training.json in place of the
                           population
          checkpoint-*.npz what the method knew after its last round
          noise.npz        of DP-FTRL, while rounds are left: the memory of its noise, secret
          models/
```

Beside it, for the owner alone, is `<run-dir>.owner/` with the log, all times, and where things are
on the owner's machine: nothing in the run directory says when or for how long anything was done
after the run was created (`config.json`), and when work on it ends all files get that date. See
`OwnerFolder`.

`config.json` states the format, 2; a run of another one is refused. Every `state.json` and every
line of `metrics.jsonl`, and the report, state the digest of what was the ledger's last line, so
that a ledger from which lines are missing is refused.

Files are replaced as a whole (temporary file, fsync, rename), so a process that is killed at any
moment leaves the old file or the new one, never half of one. A round counts only once its
`state.json` says so, which is the last thing written for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hmac
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final, Literal

from flower_privsyn import files
from flower_privsyn.environment import (
    RESUME,
    RUN_DIRECTORY,
    RUNS_FOLDER,
    WORKING_DIRECTORY,
    versions,
)
from flower_privsyn.errors import ConfigError, RunDirectoryError
from flower_privsyn.locks import is_alive, lock_file, read_holder
from flower_privsyn.privacy import Sampling
from flower_privsyn.privacy.ledger import LedgerFile, damaged, header, refuse_cut
from flower_privsyn.progress import LINES, Progress
from flower_privsyn.run.run_format import (
    FORMAT,
    LEDGER_KEY,
    hide_dates,
    how_to_resume,
    read_json_object,
    sentence_of,
    was_interrupted,
    without_places,
)

EXPANDED: Final = "expanded.jsonl"
"""Texts of an expansion, as far as they are written; gone once all are."""


WRITTEN: Final = "written.jsonl"
"""Texts of a generator that a run has made, one by one as they were written."""


TRAINED_MODEL: Final = "models/final"
"""The model that a run has made, below its directory."""


PLAIN_MODEL: Final = "models/plain"
"""The same without a bias of its logits, where that one has one."""


TRAINED_WRITER: Final = "models/generator"
"""The generator that learnt from public text which was chosen, beside a student."""


def writer_in(run: Path) -> Path | None:
    """The generator that a run has made beside its student; None where it made none.

    Args:
        run: its directory.
    """
    made = run / TRAINED_WRITER
    return made if (made / "config.json").is_file() else None


class RoundFiles:
    """Where the files of one round are, whether they exist or not.

    Attributes:
        folder: of the round.
        state: written last: the round is finished.
        release: the released sum.
        population: texts that users were asked about, with their embeddings and votes.
        candidates: the same of a method that trains a generator, with scores.
        adapter: folder of the adapter that the round trained.
        training: what the round's training of the generator reported.
        server: figures of the server's step.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state.json"
        self.release = folder / "release.npy"
        self.population = folder / "population.parquet"
        self.candidates = folder / "candidates.parquet"
        self.adapter = folder / "adapter"
        self.training = folder / "training.json"
        self.server = folder / "server.json"

    @property
    def texts(self) -> Path | None:
        """The file with the round's texts; None of a round that holds none."""
        return next((file for file in (self.candidates, self.population) if file.is_file()), None)


TIMES_STAMP = "not private: times depend on private text, outside the privacy budget"
"""What the first line of `times.jsonl` says."""


#: Under which `own.json` has its seal.
_SEAL: Final = "seal"


_KEY_BYTES: Final = 32


class OwnerFolder:
    """The owner's folder of one run.

    Args:
        run_path: the run directory; the folder is beside it, under its name and `.owner`.

    Attributes:
        path: the folder, which may not exist.
        own_file: what the run was given.
        times_file: how long things took.
        log_file: what Flower and the app printed.
        stop_file: there while the owner wants the run to end before its next round.
    """

    def __init__(self, run_path: Path) -> None:
        # Beside the folder itself, whether a link leads to it or `..` does.
        real = run_path.resolve()
        self.path = real.parent / f"{real.name}.owner"
        self.own_file = self.path / "own.json"
        self.times_file = self.path / "times.jsonl"
        self.log_file = self.path / "flower.log"
        self.stop_file = self.path / "stop"

    def ask_to_stop(self) -> None:
        """Ask the process that works on the run to end it before its next round.

        Raises:
            OSError: the folder cannot be written.
        """
        self.make()
        self.stop_file.touch(mode=0o600)

    @property
    def stated(self) -> dict[str, Any]:
        """What `own.json` says, whoever wrote it, to compare with; empty where there is none."""
        return files.read_json(self.own_file)

    @property
    def own(self) -> dict[str, Any]:
        """The same where this user wrote it, to act on; else empty.

        `launch` is what `privsyn run` was asked to start: `app`, `name`, `working-directory` and
        `run-config`. `settings` are all that the run was given last, by hyphenated key.
        """
        stated = self.stated
        seal = stated.pop(_SEAL, None)
        return stated if seal is not None and seal == _seal_of(stated) else {}

    def remember(self, **parts: Mapping[str, Any]) -> None:
        """Keep what this user gives the run in `own.json`; parts that are not named stay.

        Raises:
            OSError: The folder cannot be written.
        """
        kept = files.plain({**self.own, **parts})
        self.make()
        files.write_json(self.own_file, {**kept, _SEAL: _seal_of(kept)}, for_the_owner=True)

    def make(self) -> None:
        """Make the folder, for its owner alone.

        Raises:
            OSError: It cannot be made, or it or something in it is a link to elsewhere.
        """
        for place in (self.path, *self.path.glob("*")):
            if place.is_symlink():
                raise OSError(errno.ELOOP, f"{place} is a link, which no run makes there")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)

    def record(self, event: str, **figures: Any) -> None:
        """Add a line to `times.jsonl`, with the moment it is written.

        Times are for people: where they cannot be written, the run goes on without them.

        Args:
            event: what happened, such as "round".
            figures: durations in seconds and what they belong to, as plain JSON values.
        """
        lines = [{"event": event, "time": files.now(), **figures}]
        with contextlib.suppress(OSError):
            self.make()
            if not self.times_file.exists():
                self.times_file.touch(mode=0o600)
                lines = [{"stamp": TIMES_STAMP}, *lines]
            files.append_json_lines(self.times_file, lines)

    def times(self) -> list[dict[str, Any]]:
        """The lines of `times.jsonl` after the stamp; none where there is no such file."""
        lines = list(files.read_json_lines(self.times_file))
        return [line for line in lines if "stamp" not in line]


def _seal_of(kept: Mapping[str, Any]) -> str | None:
    """The seal of what is kept, by this user's key; None where they can have none.

    The key, 32 random bytes, is made on first use.
    """
    try:
        files.own_folder(files.state_folder())
        descriptor = os.open(files.state_folder() / "owner-key", os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            key = file.read()
            if len(key) != _KEY_BYTES:  # new, or of a process that was killed just here
                key = secrets.token_bytes(_KEY_BYTES)
                file.seek(0)
                file.write(key)
    except (OSError, ConfigError):  # no home, none that can be written, no locks
        return None
    return hmac.new(key, json.dumps(kept, sort_keys=True).encode(), "sha256").hexdigest()


#: How names begin of what a start leaves that was killed before there was a run, which may be half
#: written; and the folder that a disk of its own has for what was lost.
_OF_A_START: Final = ("config.json", "state.json", "lock", "lost+found")


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
        synthetic_jsonl: The synthetic texts, one JSON object per line.
        synthetic_parquet: The synthetic texts as a Parquet table.
        rounds: The folder of the rounds, which may not exist.
        ledger_digest: Gives the digest of the ledger's last line, which whatever is recorded then
            states; None before there is one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner = OwnerFolder(path)
        self.goes_on = False
        self.config_file = path / "config.json"
        self.state_file = path / "state.json"
        self.ledger_file = path / "ledger.jsonl"
        self.metrics_file = path / "metrics.jsonl"
        self.synthetic_jsonl = path / "synthetic.jsonl"
        self.synthetic_parquet = path / "synthetic.parquet"
        self.rounds = path / "rounds"
        self.ledger_digest: Callable[[], str] | None = None
        self._lock_file: IO[str] | None = None

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
        run = cls(files.expanded(path).absolute())
        unwritable = f"The run directory {run.path} cannot be written"
        with files.os_errors_as(RunDirectoryError, unwritable):
            run.refuse_existing()
            run.path.mkdir(parents=True, exist_ok=True)
            run.lock()
            try:
                # Again: another process may have made a run before the lock was ours.
                run.refuse_existing()
                document: dict[str, Any] = {
                    "format": FORMAT,
                    "strategy": strategy,
                    "config": files.plain(without_places(config)),
                    "versions": versions(),
                    "created": files.now(),
                }
                # Of plain `flwr run` there is none, or that of an earlier run of this name.
                started = os.environ.get(RUN_DIRECTORY) == str(run.path)
                launch = run.owner.stated.get("launch", {}) if started else {}
                if launch:
                    document["app"] = launch["name"]
                # Without the owner's folder, where it cannot be written, a run goes on.
                with contextlib.suppress(OSError):
                    run.owner.times_file.unlink(missing_ok=True)  # of an earlier run of this name
                    run.owner.remember(launch=launch, settings=config)
                run._write_state({"status": "running", "error": None})
                files.write_json(run.config_file, document)
            except BaseException:
                run.unlock()
                raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Open an existing run without locking it.

        Raises:
            RunDirectoryError: The folder does not exist, holds no run or one of another format, or
                holds links.
        """
        run = cls(files.expanded(path).absolute())
        if not run.path.exists():
            raise RunDirectoryError(f"There is no run directory {run.path}.")
        if not run.config_file.is_file():
            raise RunDirectoryError(f"{run.path} is not a run directory: it holds no config.json.")
        refuse_links(run.path)
        if (found := run.document.get("format")) != FORMAT:
            raise RunDirectoryError(
                f"The run in {run.path} has format {found!r} where this package reads {FORMAT}: it "
                "was written by another version."
            )
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
        if not (cls(files.expanded(path).absolute()).config_file.is_file() if auto else resume):
            return cls.create(path, config=config, strategy=strategy)
        run = cls.open(path)
        run.goes_on = True
        run.lock()
        try:
            if not auto:
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
        if self.config_file.exists():
            raise RunDirectoryError(
                f"{self.path} already holds a run; choose another run directory, or go on with it: "
                f"{how_to_resume(self.path)}."
            )
        names = [entry.name.lstrip(".") for entry in self.path.glob("*")]
        if others := [name for name in sorted(names) if not name.startswith(_OF_A_START)]:
            raise RunDirectoryError(
                f"{self.path} holds other files ({', '.join(others[:3])}), and a run directory is "
                "new or empty: who gets it gets all that is in it."
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
        return dict(self.document.get("config") or {})

    def progress(self) -> Progress:
        """A reporter whose lines go to Flower's log, and times to the owner's folder."""
        return Progress(
            logging.getLogger(LINES).info,
            ended=lambda stage: self.owner.record("stage", name=stage.name, seconds=stage.seconds),
        )

    def _stated(self) -> dict[str, str]:
        return {} if self.ledger_digest is None else {LEDGER_KEY: self.ledger_digest()}

    def stated_digests(self) -> dict[str, str]:
        """Digests of ledger lines that the run's files state, and for each the name of a file.

        Raises:
            RunDirectoryError: `metrics.jsonl` is damaged.
        """
        states = [*(one.state for _, one in self.all_rounds()), self.state_file]
        page = self.path / "report.html"
        stated = [(files.read_json(file).get(LEDGER_KEY), file) for file in states]
        stated += [(line.get(LEDGER_KEY), self.metrics_file) for line in self.metrics()]
        with contextlib.suppress(OSError):
            text = page.read_text(encoding="utf-8", errors="replace")
            stated += [(digest, page) for digest in _LEDGER_META.findall(text)]
        found: dict[str, str] = {}
        for digest, file in stated:
            if isinstance(digest, str):
                found.setdefault(digest, str(file.relative_to(self.path)))
        return found

    def ledger(self) -> LedgerFile:
        """The lines of the ledger, without a torn last one; none before the first.

        Raises:
            LedgerError: The ledger is damaged, of another version, or lacks a line that another
                file of the run states.
        """
        path = self.ledger_file
        if path.exists():
            ledger = LedgerFile.read(path)
            header(path, ledger.lines)
        else:
            ledger = LedgerFile(path, None)
        refuse_cut(path, ledger.digests, self.stated_digests())
        return ledger

    def samplings(self) -> dict[int, Sampling]:
        """Who was drawn from in each round that was started, by the ledger.

        Raises:
            LedgerError: As `ledger`.
        """
        found = {}
        for number, line in enumerate(self.ledger().lines, start=1):
            try:
                if line["event"] == "started":
                    found[int(line["round"])] = Sampling.from_dict(line["sampling"])
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise damaged(self.ledger_file, number, "it says no sampling") from error
        return found

    def log_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add a round's line to `metrics.jsonl`; it is on the disk when the method returns.

        Values that JSON cannot say (NaN, infinity) become null.
        """
        files.append_json_lines(self.metrics_file, [{**metrics, **self._stated()}])

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, without a torn last one."""
        return list(files.read_json_lines(self.metrics_file))

    def round_lines(self) -> dict[int, dict[str, Any]]:
        """The last line of every round, by its number.

        A round that was discarded and asked again has two in `metrics.jsonl`: both were traffic,
        and the later one says what became of it.
        """
        return {line["round"]: line for line in self.metrics() if type(line.get("round")) is int}

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

        rows = [files.plain(record) for record in records]
        with files.replacing(self.synthetic_jsonl) as file:
            file.write(files.json_lines(rows))
        with files.replacing(self.synthetic_parquet) as file:
            pq.write_table(pa.Table.from_pylist(rows), file)
        return len(rows)

    # ---------------------------------------------------------------- rounds

    def round_files(self, number: int) -> RoundFiles:
        """The files of one round.

        Args:
            number: Round number; 0 is what existed before the first round.
        """
        return RoundFiles(self.rounds / f"{number:04d}")

    def all_rounds(self) -> Iterator[tuple[int, RoundFiles]]:
        """Number and files of every round that has a folder, ascending."""
        entries = self.rounds.iterdir() if self.rounds.is_dir() else ()
        names = (entry.name for entry in entries if entry.is_dir())
        # Other figures than ASCII's are no number here.
        for number in sorted(int(name) for name in names if name.isascii() and name.isdecimal()):
            yield number, self.round_files(number)

    def round_dir(self, number: int) -> Path:
        """The folder of one round, created on first use.

        Args:
            number: Round number; 0 is what existed before the first round.
        """
        folder = self.round_files(number).folder
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def finish_round(self, number: int, state: Mapping[str, Any] | None = None) -> None:
        """Record that everything of a round is on disk; call it last.

        Args:
            number: Round number.
            state: What a resumed run needs beside the other files, as plain JSON values.
        """
        record = {**(state or {}), "round": number, "status": "finished", **self._stated()}
        files.write_json(RoundFiles(self.round_dir(number)).state, record)

    def round_state(self, number: int) -> dict[str, Any] | None:
        """What `finish_round` recorded; None while the round has not finished."""
        state = files.read_json(self.round_files(number).state)
        return state if state.get("status") == "finished" else None

    def finished_rounds(self) -> list[int]:
        """Numbers of the finished rounds, ascending; leftovers of an interrupted one are not."""
        return [number for number, _ in self.all_rounds() if self.round_state(number) is not None]

    def rounds_with_outcome(self, *outcomes: str) -> list[int]:
        """Numbers of the finished rounds whose recorded `outcome` is one of these, ascending."""
        return [
            number
            for number in self.finished_rounds()
            if (self.round_state(number) or {}).get("outcome") in outcomes
        ]

    # ---------------------------------------------------------------- state

    @property
    def state(self) -> dict[str, Any]:
        """Everything in `state.json`; empty when the file is missing or unreadable."""
        return files.read_json(self.state_file)

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

    def refuse_unfinished(self) -> None:
        """Refuse a run that has not finished.

        Raises:
            RunDirectoryError: it has not.
        """
        if self.status != "finished":
            raise RunDirectoryError(
                f"the run in {self.path} has not finished (it is {self.standing}): "
                f"{how_to_resume(self.path)} goes on"
            )

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
        starts = int(self.state.get("starts", 0)) + 1
        begun = {"status": "running", "error": None, "unexpected": False, "starts": starts}
        self._write_state({**self.state, **begun})

    def mark_failed(self, error: BaseException) -> None:
        """Record that the run ended without a result.

        Args:
            error: One of ours is its own sentence, any other is named by its type and place
                and marked as unexpected.
        """
        sentence, unexpected = sentence_of(error)
        end = {"status": "failed", "error": sentence, "unexpected": unexpected}
        self._write_state({**self.state, **end})

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
        files.write_json(self.state_file, {**state, **self._stated()})

    # ---------------------------------------------------------------- one process at a time

    def lock(self) -> None:
        """Make this process the only one that works on the run, until `unlock` or its end.

        The kernel releases the lock when the process dies, so a crash never leaves one behind.

        Raises:
            RunDirectoryError: Another process holds the lock; the message names it.
        """
        if self._lock_file is None:
            self._lock_file = lock_file(self.path / ".lock", what=f"the run in {self.path}")

    def unlock(self) -> None:
        """Let another process work on the run; its files get the date of its creation."""
        if self._lock_file is not None:
            self._lock_file.truncate(0)  # who held it, and since when
            hide_dates(self.path)
            self._lock_file.close()
            self._lock_file = None

    @contextlib.contextmanager
    def session(self, *, failed: Callable[[], None] = lambda: None) -> Iterator[RunDirectory]:
        """Work on the run: hold its lock, and record how the work ended.

        Leaving the block normally marks the run finished unless that was done inside; leaving it
        by any exception, `SystemExit` included, marks it failed with that exception's sentence.

        Args:
            failed: Called once a failure is recorded, while the lock is held; must raise nothing.

        Raises:
            RunDirectoryError: Another process works on the run.
        """
        self.lock()
        try:
            with contextlib.suppress(OSError):
                self.owner.stop_file.unlink(missing_ok=True)  # asked of an earlier start
            self.mark_running()
            try:
                yield self
            except BaseException as error:
                self.mark_failed(error)
                failed()
                raise
            if self.status == "running":
                self.mark_finished()
        finally:
            self.unlock()


@contextlib.contextmanager
def supervisor_lock(run_path: Path, *, file: Path | None = None) -> Iterator[None]:
    """Be the only command that runs or changes a run; at the end its files get their date.

    Args:
        run_path: The run directory.
        file: The one in it that is changed; None for the run, whose owner's folder must exist.

    Raises:
        RunDirectoryError: Another process holds the lock.
    """
    lock, what = OwnerFolder(run_path).path / "lock", f"the run in {run_path}"
    if file is not None:
        lock, what = file.with_name(f".{file.name}.lock"), f"the file {file}"
    with lock_file(lock, what=what) as held:
        try:
            yield
        finally:
            held.truncate(0)  # by whom, and since when
            hide_dates(run_path)


_LEDGER_META = re.compile(r'<meta name="privsyn-ledger" content="([0-9a-f]{64})">')


def refuse_links(path: Path) -> None:
    """Refuse a run directory that leads elsewhere: it may be somebody else's.

    What is read through a link would be shown as the run's, and what is written, appended or locked
    would be written there.

    Raises:
        RunDirectoryError: something in it is a symbolic link.
    """
    for folder, folders, names in os.walk(path):
        for name in (*folders, *names):
            if (link := Path(folder, name)).is_symlink():
                raise RunDirectoryError(
                    f"{link} is a link, and a run directory holds none: what it leads to is not "
                    "the run's."
                )


def round_texts(run: RunDirectory) -> dict[int, list[dict[str, Any]]]:
    """The texts that users were asked about, by round, with their noisy votes or scores.

    Args:
        run: of any strategy; one that trains on the nodes has none. Embeddings are left out, and so
            is a file that cannot be read, as when it is being replaced.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: dict[int, list[dict[str, Any]]] = {}
    for number, one in run.all_rounds():
        if one.texts is not None:
            try:
                names = [name for name in pq.read_schema(one.texts).names if name != "embedding"]
                found[number] = pq.read_table(one.texts, columns=names).to_pylist()
            except (OSError, pa.ArrowException):
                continue
    return found


def named(run: RunDirectory, key: str, *, here: Callable[[str], bool], instead: str) -> str:
    """What a setting of a run names, to act on it.

    Args:
        run: its directory.
        key: of the setting.
        here: whether a name is harmless in anybody's directory, as that of a model that this
            machine has.
        instead: what to do where the directory alone says so, as the end of a sentence.

    Raises:
        ConfigError: the directory alone says so.
    """
    name = str(run.config.get(key, ""))
    if here(name) or name == run.owner.own.get("settings", {}).get(key):
        return name
    raise ConfigError(
        f"{run.path} says {key} = {name!r}, and {run.owner.path} does not show that you ran it so: "
        f"it may be somebody else's; {instead}"
    )


def place_of_run(
    run_dir: str, *, resume: bool | Literal["auto"], app_name: str
) -> tuple[Path, bool | Literal["auto"]]:
    """Where a strategy runs, and whether it continues a run there.

    Where no directory is named, that is the one of `privsyn run` or `privsyn resume` under these
    commands, else a new one.

    Args:
        run_dir: the setting; relative to the folder the command was typed in.
        resume: whether a run is continued in `run_dir`; "auto": or begun.
        app_name: Name for a new folder.

    Raises:
        ConfigError: `resume` is "auto", and where the folder is depends on where Flower was
            started.
    """
    if not run_dir:
        path = os.environ.get(RUN_DIRECTORY)
        continues = os.environ.get(RESUME) == "1"
        return (Path(path), continues) if path else (default_run_directory(app_name), False)
    absolute = files.expanded(run_dir).is_absolute() or os.environ.get(WORKING_DIRECTORY)
    if resume == "auto" and not absolute:
        # With true a run is missing there; here it would be begun, and everybody asked again.
        raise ConfigError(
            f'resume = "auto" needs an absolute run-dir, got {run_dir!r}: from another folder it '
            "would find no run, begin a new one, and charge the same people again"
        )
    return files.user_path(run_dir), resume


def default_run_directory(app_name: str) -> Path:
    """A new folder for a run that was given none: `$PRIVSYN_RUNS` or `~/privsyn-runs`.

    Args:
        app_name: Name of the app; the folder is `<app>-<UTC time>`.
    """
    return new_run_path(files.expanded(os.environ.get(RUNS_FOLDER) or "~/privsyn-runs"), app_name)


def new_run_path(root: Path, app_name: str) -> Path:
    """A path below `root` that does not exist yet, `<app>-<UTC time>`; nothing is created."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", app_name).strip("-.") or "run"
    path = root.absolute() / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    return path if not path.exists() else path.with_name(f"{path.name}-{secrets.token_hex(2)}")
