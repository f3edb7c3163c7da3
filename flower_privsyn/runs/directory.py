"""The run directory: everything one run writes, and enough of it to continue after a crash.

```
<run-dir>/config.json      what was asked for, and what a resumed run changed; makes a folder a run
          .flower/         what `privsyn run` was asked to start
          state.json       running, finished or failed, with the sentence that says why
          ledger.jsonl     one line per private release
          metrics.jsonl    one line per round
          synthetic.jsonl  (and .parquet) the result
          progress.json    how far the run is, for whoever follows it
          rounds/0001/     population.parquet, release.npy, state.json; of methods that train a
                           generator candidates.parquet, adapter/, training.json in place of the
                           population
          noise.npz        of DP-FTRL, while rounds are left: the memory of its noise, secret
          refinement/0001/ the same without a release, where rounds follow one release
          models/
```

Beside it, for the owner alone, is `<run-dir>.owner/` with the log and with all times: nothing in
the run directory says when or for how long anything was done after the run was created
(`config.json`), and when work on it ends all files get that date. See `flower_privsyn.runs.owner`.

`config.json` states the format, 2. A run of format 1 (flower-privsyn 0.1) is refused until
`privsyn migrate` has converted it. Every `state.json` and every line of `metrics.jsonl`, and the
report, state the digest of what was the ledger's last line, so that a ledger from which lines are
missing is refused.

Files are replaced as a whole (temporary file, fsync, rename), so a process that is killed at any
moment leaves the old file or the new one, never half of one. A round counts only once its
`state.json` says so, which is the last thing written for it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from flower_privsyn import clock
from flower_privsyn.environment import (
    RESUME,
    RUN_DIRECTORY,
    RUNS_FOLDER,
    SUPERVISOR_PID,
    SUPERVISOR_STARTED,
)
from flower_privsyn.errors import PrivsynError, RunDirectoryError
from flower_privsyn.files import (
    append_json_lines,
    plain,
    read_json_lines,
    replacing,
    write_json,
)
from flower_privsyn.host.processes import is_alive, started_at
from flower_privsyn.host.progress import Progress, Stage
from flower_privsyn.privacy.ledger_chain import Chain, header, read_chain, refuse_cut
from flower_privsyn.runs.owner import OwnerFolder
from flower_privsyn.runs.run_format import (
    FORMAT,
    LEDGER_KEY,
    hide_dates,
    refuse_other_format,
    stated_digests,
)

RESEARCH_STAMP = (
    "research: private text was used outside the budget; the epsilons do not cover the result"
)
"""What marks a run whose settings say `research = true`, wherever its figures are shown."""

LAUNCH_FILE = ".flower/launch.json"
"""What `privsyn run` was asked to start, relative to the run directory."""

_VERSIONED = (
    "flower-privsyn",
    "flwr",
    "numpy",
    "dp-accounting",
    "pyarrow",
    "ray",
    "torch",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "datasets",
)
_LOGGERS = ("flower_privsyn", "flwr.privsyn")
_LOCK_POLL_SECONDS = 0.2
_DEAD_HOLDER_SECONDS = 10.0
_WATCH_SECONDS = 0.5


class RunDirectory:
    """One run on disk. Use `create`, `open` or `start`.

    Attributes:
        path: The folder, absolute.
        owner: The owner's folder beside it, where the times are.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner = OwnerFolder(path)
        self._ledger_digest: Callable[[], str] | None = None
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
            path: The folder. It may hold other files, but no run.
            config: What the run was asked to do, as plain JSON values; stored under
                `config.json` beside the versions of the libraries and, for a run started by
                `privsyn run`, beside that command's own settings.
            strategy: The class that runs it, by name; "" for a run of something else.

        Raises:
            RunDirectoryError: The folder holds a run, cannot be written or is locked.
        """
        run = cls(Path(path).expanduser().absolute())
        if run.path.exists() and not run.path.is_dir():
            raise RunDirectoryError(f"The run directory {run.path} is a file, not a folder.")
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
                    "config": plain(config),
                    "versions": _versions(),
                    "created": clock.now(),
                }
                with contextlib.suppress(FileNotFoundError):  # a run of plain `flwr run`
                    launch = run.path / LAUNCH_FILE
                    document["launch"] = json.loads(launch.read_text(encoding="utf-8"))
                run.owner.begin_times()
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
            RunDirectoryError: The folder does not exist, holds no run or one of another format.
        """
        run = cls(Path(path).expanduser().absolute())
        if not run.path.exists():
            raise RunDirectoryError(f"There is no run directory {run.path}.")
        if not run.config_file.is_file():
            raise RunDirectoryError(f"{run.path} is not a run directory: it holds no config.json.")
        refuse_other_format(run.path, run.document)
        return run

    @classmethod
    def start(
        cls,
        path: str | Path,
        *,
        config: Mapping[str, Any],
        strategy: str = "",
        resume: bool = False,
    ) -> RunDirectory:
        """Create a run, or with `resume` open one that has not finished and lock it.

        Args:
            path: The folder.
            config: As for `create`; of a resumed run the recorded one stays.
            strategy: The same.
            resume: Continue a run instead of making one.

        Raises:
            RunDirectoryError: As for `create` and `open`; or the run to resume has finished.
        """
        if not resume:
            return cls.create(path, config=config, strategy=strategy)
        run = cls.open(path)
        run.refuse_finished()
        run.lock(wait_seconds=10)
        return run

    def refuse_existing(self) -> None:
        """Raise a RunDirectoryError when the folder already holds a run."""
        if self.config_file.exists():
            raise RunDirectoryError(
                f"{self.path} already holds a run; resume it with `privsyn resume {self.path}` "
                "(or resume=True where the app sets run_dir in code), or choose another --run-dir."
            )

    def refuse_finished(self) -> None:
        """Raise a RunDirectoryError when there is nothing left to resume."""
        if self.status == "finished":
            raise RunDirectoryError(
                f"The run in {self.path} has finished; there is nothing to resume."
            )

    # ---------------------------------------------------------------- files

    @property
    def config_file(self) -> Path:
        """What was asked for."""
        return self.path / "config.json"

    @property
    def state_file(self) -> Path:
        """Running, finished or failed."""
        return self.path / "state.json"

    @property
    def ledger_file(self) -> Path:
        """The privacy ledger."""
        return self.path / "ledger.jsonl"

    @property
    def metrics_file(self) -> Path:
        """One line per round."""
        return self.path / "metrics.jsonl"

    @property
    def progress_file(self) -> Path:
        """How far the run is."""
        return self.path / "progress.json"

    @property
    def synthetic_jsonl(self) -> Path:
        """The synthetic texts, one JSON object per line."""
        return self.path / "synthetic.jsonl"

    @property
    def synthetic_parquet(self) -> Path:
        """The synthetic texts as a Parquet table."""
        return self.path / "synthetic.parquet"

    @property
    def document(self) -> dict[str, Any]:
        """Everything in `config.json`: config, versions, created, launch."""
        return _read_json_object(self.config_file)

    @property
    def config(self) -> dict[str, Any]:
        """What the run was asked to do, as given to `create`."""
        config = self.document.get("config")
        if not isinstance(config, dict):
            raise RunDirectoryError(f'{self.config_file} holds no "config" object.')
        return config

    def record_changes(self, changes: Mapping[str, tuple[Any, Any]]) -> None:
        """Record that a resumed run goes on with other settings, and after which round.

        `config` then holds the new values, and `changes` every change, oldest first.

        Args:
            changes: For each key the value before and the one from now on.
        """
        document = self.document
        history = list(document.get("changes", []))
        history.append(
            {
                "after_round": max(self.finished_rounds(), default=0),
                "texts_before": sum(1 for _ in read_json_lines(self.path / "expanded.jsonl")),
                "settings": {
                    key: {"from": plain(before), "to": plain(now)}
                    for key, (before, now) in changes.items()
                },
            }
        )
        config = {**self.config, **{key: plain(now) for key, (_, now) in changes.items()}}
        write_json(self.config_file, {**document, "config": config, "changes": history})

    def changed_settings(self) -> dict[str, Any]:
        """The settings that were changed since the run began, with their last values."""
        return {
            key: change["to"]
            for entry in self.document.get("changes", [])
            for key, change in entry["settings"].items()
        }

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
        return list(self._chain().lines)

    def last_digest(self) -> str | None:
        """The digest of the ledger's last line; None before the first. Raises as `ledger_lines`."""
        return next(reversed(self._chain().digests), None)

    def _chain(self) -> Chain:
        stated = self.stated_digests()
        if not self.ledger_file.exists():
            refuse_cut(self.ledger_file, (), stated)
            return Chain(lines=(), digests=(), torn=b"")
        chain = read_chain(self.ledger_file)
        header(self.ledger_file, chain.lines)
        refuse_cut(self.ledger_file, chain.digests, stated)
        return chain

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add one line to `metrics.jsonl`; it is on disk when the method returns.

        A line torn by an earlier crash is cut off first. Values that JSON cannot say (NaN,
        infinity) become null.
        """
        append_json_lines(self.metrics_file, [{**metrics, **self._stated()}])

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, without a torn last one."""
        return list(read_json_lines(self.metrics_file))

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
        """
        folder = self.round_path(number)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def round_path(self, number: int) -> Path:
        """The folder of one round, which may not exist."""
        if number < 0:
            raise ValueError(f"A round number cannot be negative, got {number}.")
        return self.path / "rounds" / f"{number:04d}"

    def finish_round(self, number: int, state: Mapping[str, Any] | None = None) -> None:
        """Record that everything of a round is on disk; call it last.

        Args:
            number: Round number.
            state: What a resumed run needs beside the other files, as plain JSON values.
        """
        record = {**(state or {}), "round": number, "status": "finished", **self._stated()}
        write_json(self.round_dir(number) / "state.json", record)

    def reopen_round(self, number: int) -> None:
        """Let a finished round be done again; its other files stay until they are replaced."""
        (self.round_path(number) / "state.json").unlink(missing_ok=True)

    def round_state(self, number: int) -> dict[str, Any] | None:
        """What `finish_round` recorded; None while the round has not finished."""
        try:
            state = json.loads((self.round_path(number) / "state.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return state if isinstance(state, dict) and state.get("status") == "finished" else None

    def finished_rounds(self) -> list[int]:
        """Numbers of the finished rounds, ascending; leftovers of an interrupted one are not."""
        folder = self.path / "rounds"
        if not folder.is_dir():
            return []
        numbers = [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()]
        return [number for number in sorted(numbers) if self.round_state(number) is not None]

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
        try:
            return _read_json_object(self.state_file)
        except RunDirectoryError:
            return {}

    @property
    def status(self) -> str:
        """`running`, `finished` or `failed` as last recorded.

        A run that was killed is still recorded as running; `running_process` tells the two apart.
        """
        return str(self.state.get("status", "running"))

    @property
    def error(self) -> str | None:
        """The sentence that says why the run failed; None unless it did."""
        error = self.state.get("error")
        return None if error is None else str(error)

    def running_process(self) -> int | None:
        """Process id of the ServerApp that is working on this run now; None when none is."""
        holder = _read_holder(self.path / ".lock")
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
        sentence, unexpected = _sentence(error)
        self._write_state(
            {**self.state, "status": "failed", "error": sentence, "unexpected": unexpected}
        )

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
        hide_dates(self.path, str(self.document.get("created", "")))

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
            _forget_holder(self._lock_file)
            _hide_dates(self)
            self._lock_file.close()
            self._lock_file = None

    @contextlib.contextmanager
    def session(self) -> Iterator[RunDirectory]:
        """Work on the run: hold its lock, end with the supervisor, record how the work ended.

        Leaving the block normally marks the run finished unless that was done inside; leaving it
        by any exception, `SystemExit` included, marks it failed with that exception's sentence.
        Warnings this package logs inside the block also go to whoever follows the run.

        Raises:
            RunDirectoryError: Another process works on the run.
        """
        self.lock(wait_seconds=10)
        try:
            watch_supervisor()
            self.mark_running()
            try:
                with _warnings_to(self.progress()):
                    yield self
            except BaseException as error:
                self.mark_failed(error)
                raise
            if self.status == "running":
                self.mark_finished()
        finally:
            self.unlock()


@contextlib.contextmanager
def _warnings_to(progress: Progress) -> Iterator[None]:
    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            progress.note(f"warning: {record.getMessage()}")

    handler = Notes(logging.WARNING)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


# -------------------------------------------------------------------- places and processes


def unnamed_run(app_name: str) -> tuple[Path, bool]:
    """Where a strategy that names no run directory runs, and whether it continues a run there.

    Under `privsyn run` and `privsyn resume` that is the directory of the command, else a new one.

    Args:
        app_name: Name for a new folder.
    """
    if path := os.environ.get(RUN_DIRECTORY):
        return Path(path), os.environ.get(RESUME) == "1"
    return default_run_directory(app_name), False


def default_run_directory(app_name: str) -> Path:
    """A new folder for a run that was given none: `$PRIVSYN_RUNS` or `~/privsyn-runs`.

    Args:
        app_name: Name of the app; the folder is `<app>-<UTC time>`.
    """
    base = os.environ.get(RUNS_FOLDER)
    root = Path(base).expanduser() if base else Path.home() / "privsyn-runs"
    return new_run_path(root, app_name)


def new_run_path(root: Path, app_name: str) -> Path:
    """A path below `root` that does not exist yet, `<app>-<UTC time>`; nothing is created."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", app_name).strip("-.") or "run"
    path = root.absolute() / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for number in range(2, 1000):
        if not path.exists():
            break
        path = path.with_name(f"{path.name.split('_')[0]}_{number}")
    return path


def watch_supervisor() -> bool:
    """End this process within a second once the supervisor named in the environment is gone.

    The processes Flower starts are detached from the command that began the run. Without this, a
    killed command would leave a ServerApp behind that keeps the run locked and goes on spending.

    Returns:
        Whether there is a supervisor to watch; False under a plain `flwr run`.
    """
    text = os.environ.get(SUPERVISOR_PID, "")
    if not text.isdigit():
        return False
    pid, started = int(text), os.environ.get(SUPERVISOR_STARTED, "")

    def watch() -> None:
        while is_alive(pid, started):
            time.sleep(_WATCH_SECONDS)
        # Not sys.exit: this is a thread, and nothing may be written after the supervisor's end.
        os._exit(1)

    threading.Thread(target=watch, name="privsyn-supervisor-watch", daemon=True).start()
    return True


def lock_file(path: Path, *, what: str, wait_seconds: float = 0.0) -> IO[str]:
    """Lock a file for this process.

    Args:
        path: The lock file; created where it does not exist.
        what: What is being locked, for the error message.
        wait_seconds: How long to wait for another process to let go, >= 0. A holder that is
            dead is waited for in any case: the kernel releases the lock when the last thread or
            half-made child of it is gone, moments after the process itself is seen to be dead.

    Returns:
        The open file. Closing it, or the end of the process, releases the lock.

    Raises:
        RunDirectoryError: Another process holds the lock.
    """
    try:
        import fcntl
    except ImportError as error:  # Windows
        raise RunDirectoryError("Runs need a system with file locks: Linux or macOS.") from error

    file = path.open("a+", encoding="utf-8")
    begun = time.monotonic()
    while True:
        try:
            # flock, not lockf: a POSIX record lock is lost when any descriptor of the file is
            # closed in this process, which reading the holder would do.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = _read_holder(path)
            dead = holder is not None and not is_alive(*holder)
            waits = max(wait_seconds, _DEAD_HOLDER_SECONDS) if dead else wait_seconds
            if time.monotonic() >= begun + waits:
                file.close()
                who = f"process {holder[0]}" if holder else "another process"
                raise RunDirectoryError(
                    f"{what[:1].upper()}{what[1:]} is in use by {who}; "
                    "wait for it to end or stop it first."
                ) from None
            time.sleep(_LOCK_POLL_SECONDS)
        except OSError as error:
            file.close()
            raise RunDirectoryError(
                f"The lock file {path} cannot be locked: {error.strerror or error}."
            ) from error
    file.truncate(0)
    file.write(json.dumps({"pid": os.getpid(), "started": started_at(os.getpid())}) + "\n")
    file.flush()
    return file


@contextlib.contextmanager
def supervisor_lock(run_path: Path, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Be the only command that runs or changes a run; at the end its files get their date.

    Args:
        run_path: The run directory; the folder of `LAUNCH_FILE` must exist in it.
        wait_seconds: How long to wait for another process to let go, >= 0.

    Raises:
        RunDirectoryError: Another process holds the lock.
    """
    file = (run_path / LAUNCH_FILE).with_name("lock")
    with lock_file(file, what=f"the run in {run_path}", wait_seconds=wait_seconds) as held:
        try:
            yield
        finally:
            _forget_holder(held)
            _hide_dates(RunDirectory(run_path))


def _forget_holder(file: IO[str]) -> None:
    """Forget who held a lock, and when that process began; the lock is still held."""
    file.truncate(0)


def _hide_dates(run: RunDirectory) -> None:
    # What is missing or damaged is named by whoever reads it.
    with contextlib.suppress(RunDirectoryError):
        run.hide_dates()


def _read_holder(path: Path) -> tuple[int, str] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return int(record["pid"]), str(record["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise RunDirectoryError(f"{path} is damaged: it is not JSON.") from error
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{path} is damaged: it is not a JSON object.")
    return value


def _sentence(error: str | BaseException) -> tuple[str, bool]:
    if isinstance(error, str):
        return error, False
    if isinstance(error, PrivsynError):
        return str(error), False
    if isinstance(error, SystemExit):
        return f"The ServerApp called sys.exit({error.code!r}) before the run was finished.", True
    if not isinstance(error, Exception):  # Ctrl-C, or a signal that was turned into an exception
        return "The run was interrupted.", False
    name = type(error).__name__
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = ""
    if trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        place = f" in {'/'.join(file.parts[-2:])} line {trace.tb_lineno}"
    return f"Unexpected {name}{place}: {' '.join(str(error).split())[:500]}", True


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": sys.platform}
    for name in _VERSIONED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
