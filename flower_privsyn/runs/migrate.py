"""Converting a run directory of flower-privsyn 0.1 (format 1) into format 2, in place.

What format 1 has and format 2 must not have: releases whose noise was not rounded, from which the
sums below it can be read, and times that depend on private text. The releases are rounded to the
grid, which is post-processing and costs nothing; the times go to the owner's folder.

Rounding does not make the noise of 0.1 what it was accounted as: of two numbers that one draw made,
many pairs are out of its reach, rounded ones as well (`flower_privsyn.privacy.rounded_normal`), and
a million of them can refute a sum. So a converted run is stamped.

Files are converted one by one, each replaced as a whole and each in a way that changes nothing when
it is done again; `config.json` states the new format, and does so last. So a conversion that was
killed is a run of format 1 still, and is finished by the next call.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import LedgerError, RunDirectoryError
from flower_privsyn.files import expanded, leftovers, read_json_lines, replacing, write_json
from flower_privsyn.privacy import PrivacyLedger
from flower_privsyn.privacy.grid import GRID
from flower_privsyn.privacy.ledger_chain import VERSION, Chain, digest, header, read_chain, split
from flower_privsyn.runs import LAUNCH_FILE, RunDirectory, supervisor_lock
from flower_privsyn.runs.owner import write_times
from flower_privsyn.runs.rounds import TRAINING
from flower_privsyn.runs.run_format import FORMAT, LEDGER_KEY, MIGRATED_STAMP

_RENAMED = {"epsilon_server": "epsilon_known_cohorts"}
_TIMES = frozenset(
    {
        *("time", "started", "updated", "pid", "pid_started"),
        *("seconds", "seconds_feedback", "seconds_server", "seconds_finish"),
    }
)
#: Figures of a round, or of a run, that follow from single released numbers.
_RELEASED_FIGURES = ("fraction_within", "squared_mmd")
#: Columns of the rounds' tables that hold released numbers, or such as are computed from them.
_RELEASED_COLUMNS = ("votes", "score")


def migrate(path: str | Path) -> list[str]:
    """Convert a run directory of format 1, finished or not.

    Numbers that many released ones went into, and those stored as float32 (the parameters of
    trained models, with 24 bits where two draws of the old noise had 106), are left: they rule out
    no sum.

    Args:
        path: the run directory.

    Returns:
        What was done, in sentences; none where the run is of format 2 already.

    Raises:
        RunDirectoryError: The folder holds no run or one of a newer format, is in use, or cannot
            be written.
        LedgerError: The ledger is damaged, or lacks the line of a release. Nothing was changed.
    """
    run = RunDirectory(expanded(path).absolute())
    if not run.config_file.is_file():
        raise RunDirectoryError(f"{run.path} is not a run directory: it holds no config.json.")
    document = run.document
    found = document.get("format", 1)
    if found == FORMAT:
        return []
    if found != 1:
        raise RunDirectoryError(f"The run in {run.path} has format {found!r}, which is newer.")
    try:
        with _locked(run):
            chain = _checked_ledger(run)
            done = _convert(run, chain)
            _write_document(run, document)
    except OSError as error:
        raise RunDirectoryError(
            f"{error.filename or run.path} cannot be written: {error.strerror or error}."
        ) from error
    return done


def _convert(run: RunDirectory, chain: Chain | None) -> list[str]:
    """Everything but `config.json`."""
    # First, while the old files still have them; complete or not there at all.
    _keep_times(run)
    rounded = _round_releases(run)
    if chain is not None:
        chain = _write_ledger(run, chain)
    _rewrite_states(run, chain)
    moved = _move_logs(run)
    run.progress_file.unlink(missing_ok=True)
    done = [
        f"{rounded} files of released numbers were rounded to multiples of 2^-30. That hides most "
        "of what their digits said and not all: keep them to yourself. The run says so from now "
        "on wherever its epsilons stand.",
        f"Times, and {moved} files with times, are in {run.owner.path}: they depend on private "
        "text, so keep them to yourself.",
    ]
    if (run.path / "report.html").exists():
        (run.path / "report.html").unlink()
        done.append("The report, which showed times, was removed: `privsyn report` makes it anew.")
    done.append(
        "Copies of the old directory, and whatever was sent from it, are as they were: who has an "
        "unrounded release can read the sum below its noise."
    )
    return done


# -------------------------------------------------------------------- before anything is changed


@contextlib.contextmanager
def _locked(run: RunDirectory) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if (run.path / LAUNCH_FILE).parent.is_dir():
            stack.enter_context(supervisor_lock(run.path))
        run.lock()
        stack.callback(run.unlock)
        yield


def _checked_ledger(run: RunDirectory) -> Chain | None:
    """The ledger of version 1, or of 2 where an earlier conversion was killed; None for none.

    Its chain must be whole, and it must have the line of every release: converting must not make a
    damaged ledger look sound.
    """
    released = {*run.rounds_with_outcome("released")} | {
        number for number, files in run.rounds if files.release.exists()
    }
    if not run.ledger_file.exists():
        if released:
            raise _missing(run, min(released))
        return None
    chain = read_chain(run.ledger_file)
    if not chain.lines or chain.lines[0].get("version") != VERSION:
        header(run.ledger_file, chain.lines, version=1)
    charged = {line.get("round") for line in chain.lines if line.get("event") == "release"}
    if lost := released - charged:
        raise _missing(run, min(lost))
    return chain


def _missing(run: RunDirectory, number: int) -> LedgerError:
    return LedgerError(
        f"{run.ledger_file} has no line for round {number}, which was released: the ledger was "
        "removed or cut, and the run is not converted."
    )


# -------------------------------------------------------------------- times


def _keep_times(run: RunDirectory) -> None:
    """Copy the times of a run to the owner's folder, once."""
    owner = run.owner
    owner.make()
    if owner.times_file.exists():
        return
    lines: list[dict[str, Any]] = []
    state = run.state
    if "started" in state:
        lines.append({"event": "state", "status": "running", "time": state["started"]})
    before = run.rounds.files(0).record("state")
    if "seconds_server" in before:
        lines.append({"event": "begin", **_times_of(before)})
    for line in read_json_lines(run.metrics_file):
        lines.append({"event": "round", "round": line.get("round"), **_times_of(line)})
    summary = state.get("summary") or {}
    if "seconds_finish" in summary:
        lines.append({"event": "finish", "seconds_server": summary["seconds_finish"]})
    with replacing(owner.times_file, for_the_owner=True) as temporary:
        write_times(temporary, lines)


def _times_of(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key in _TIMES}


def _move_logs(run: RunDirectory) -> int:
    """Move logs, and what a killed SuperLink left, to the owner's folder; count the files."""
    moved = 0
    torn = run.ledger_file.with_name(f"{run.ledger_file.name}.torn")
    for file in (run.path / "flower.log", torn):
        if file.is_file():
            file.chmod(0o600)
            shutil.move(file, run.owner.path / file.name)
            moved += 1
    for folder in ("home", "empty"):
        shutil.rmtree(run.path / Path(LAUNCH_FILE).parent / folder, ignore_errors=True)
    return moved


# -------------------------------------------------------------------- released numbers


def on_grid(values: npt.NDArray[np.float64] | np.float64) -> npt.NDArray[np.float64]:
    """Numbers rounded to the nearest multiples of the grid; a multiple stays as it is."""
    return np.asarray(np.rint(values / GRID) * GRID)


def _round_releases(run: RunDirectory) -> int:
    """Round whatever of the releases is stored; count the files."""
    releases = [round_files.release for _, round_files in run.rounds]
    files = [file for file in (*releases, run.path / "sketch.npy") if file.exists()]
    for file in files:
        with file.open("rb") as stream:
            values = np.load(stream)
            # A release has a header, public, with the noise's standard deviation and the users.
            rest = [np.load(stream)] if file in releases else []
        with replacing(file, for_the_owner=True) as temporary, temporary.open("wb") as stream:
            for array in (on_grid(values), *rest):
                np.save(stream, array)
    folders = [round_files.folder for _, round_files in (*run.rounds, *run.refinement)]
    tables = [table for folder in folders for table in sorted(folder.glob("*.parquet"))]
    return len(files) + sum(_round_table(table) for table in tables)


def _round_table(file: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowInvalid):
        return False  # half a file is no table, and nobody reads it as one
    names = [name for name in _RELEASED_COLUMNS if name in table.column_names]
    for name in names:
        values = on_grid(table.column(name).to_numpy().astype(np.float64))
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    if names:
        with replacing(file) as temporary:
            pq.write_table(table, temporary)
    return bool(names)


# -------------------------------------------------------------------- ledger and states


def _write_ledger(run: RunDirectory, chain: Chain) -> Chain:
    """Write the ledger in version 2, unless it is of that already."""
    if chain.lines[0].get("version") == VERSION:
        return chain
    lines = [_without_times(line) for line in chain.lines]
    if chain.torn:
        lines.append({"event": "repaired", "torn_bytes": len(chain.torn)})
    data = _chained([{**lines[0], "version": VERSION}, *lines[1:]])
    with replacing(run.ledger_file, for_the_owner=True) as temporary:
        temporary.write_bytes(data)
        try:
            PrivacyLedger.read(temporary)  # says what is wrong before the old one is gone
        except LedgerError as error:
            named = str(error).replace(str(temporary), str(run.ledger_file))
            raise LedgerError(named) from error
    return split(run.ledger_file, data)


def _chained(lines: Sequence[Mapping[str, Any]]) -> bytes:
    previous, written = None, []
    for line in lines:
        written.append(json.dumps({**line, "previous": previous}).encode())
        previous = digest(written[-1])
    return b"".join(raw + b"\n" for raw in written)


def _last_lines(chain: Chain) -> dict[int, str]:
    """The digest of the line that closed each round, the last one of a round begun again."""
    return {
        int(line["round"]): found
        for line, found in zip(chain.lines, chain.digests, strict=True)
        if line.get("event") in ("release", "discarded")
    }


def _without_times(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without its times, under the names of format 2."""
    return {_RENAMED.get(key, key): value for key, value in record.items() if key not in _TIMES}


def _with_rounded_figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record whose figures lie on the grid."""
    return {
        key: float(on_grid(np.float64(value)))
        if key in _RELEASED_FIGURES and isinstance(value, float)
        else value
        for key, value in record.items()
    }


def _rewrite_states(run: RunDirectory, chain: Chain | None) -> None:
    """Take the times out of all JSON files, and have them state the ledger's lines."""
    closed = {} if chain is None else _last_lines(chain)

    def stated(number: Any) -> dict[str, str]:
        if chain is None:
            return {}
        # Round 0 came before the first release, when the ledger had its first line alone.
        return {LEDGER_KEY: closed.get(number, chain.digests[0])}

    for number, files in run.rounds:
        if record := files.record("state"):
            write_json(files.state, {**_without_times(record), **stated(number)})
        if record := files.record("server"):
            write_json(files.server, _with_rounded_figures(record))
    for file in run.path.rglob(TRAINING):
        if record := _read(file):
            report = record.get("report")
            cleaned = {"report": _without_times(report)} if isinstance(report, dict) else {}
            write_json(file, {**_without_times(record), **cleaned})
    if run.metrics_file.exists():
        lines = [
            {**_without_times(line), **stated(line.get("round"))}
            for line in read_json_lines(run.metrics_file)
        ]
        with replacing(run.metrics_file) as temporary:
            temporary.write_text(
                "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines),
                encoding="utf-8",
            )
    state = _without_times(run.state)
    if isinstance(summary := state.get("summary"), dict):
        state["summary"] = _with_rounded_figures(_without_times(summary))
    if chain is not None:
        state[LEDGER_KEY] = chain.digests[-1]
    write_json(run.state_file, state)


def _write_document(run: RunDirectory, document: Mapping[str, Any]) -> None:
    """Take the time out of what was launched, and state the format: last of all."""
    launch_file = run.path / LAUNCH_FILE
    if launch := _read(launch_file):
        write_json(launch_file, _without_times(launch))
    converted = {"format": FORMAT, "stamp": MIGRATED_STAMP, **document}
    if isinstance(launched := document.get("launch"), dict):
        converted["launch"] = _without_times(launched)
    for file in (run.ledger_file, run.config_file, run.metrics_file, run.state_file):
        for leftover in leftovers(file):
            leftover.unlink(missing_ok=True)
    write_json(run.config_file, converted)


def _read(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
