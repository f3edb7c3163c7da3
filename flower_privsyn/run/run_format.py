"""What a run directory states of itself: its format, dates, and why a run ended."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from traceback import extract_tb
from typing import Any, Final

from flower_privsyn.errors import PrivsynError, RunDirectoryError
from flower_privsyn.files import is_disk_full, os_errors_as, quoted, read_json

FORMAT = 2
"""Of run directories."""


LEDGER_KEY = "ledger"
"""Under which a JSON file states the digest of the ledger's last line."""


def how_to_resume(path: Path, **settings: object) -> str:
    """What goes on with a run, as a command to type: `privsyn resume` for what it started alone.

    Args:
        path: the run directory.
        settings: by their names in Python, to go on with otherwise.
    """
    given = [f"{name.replace('_', '-')}={value}" for name, value in settings.items()]
    if was_launched(read_json(path / "config.json")):
        return f"`{' --set '.join([f'privsyn resume {quoted(path)}', *given])}`"
    run_dir = json.dumps(str(path), ensure_ascii=False)
    keys = " ".join([f"run-dir={run_dir}", "resume=true", *given])
    # Not a command of its own: what it leaves out would be the app's, not what the run began with.
    return f"the command that began it, and `{keys}` in its --run-config, or in the app's code"


def was_launched(document: Mapping[str, Any]) -> bool:
    """Whether `privsyn run` started a run, by everything in its `config.json`."""
    return document.get("app") is not None


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run.

    Raises:
        RunDirectoryError: The file cannot be read, or holds something else.
    """
    try:
        with os_errors_as(RunDirectoryError, f"{path} cannot be read"):
            value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunDirectoryError(f"{path} is damaged: it is not JSON.") from error
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{path} is damaged: it is not a JSON object.")
    return value


def hide_dates(path: Path) -> None:
    """Give every file and folder of a run the date of its creation, where that is known.

    The dates of files would say how long each round took. What the operating system keeps beyond
    them (the time of a file's last change of status) cannot be set, and does not travel with a
    copy.

    Args:
        path: the run directory.
    """
    try:
        created = read_json_object(path / "config.json").get("created", "")
        moment = datetime.fromisoformat(str(created)).timestamp()
    except RunDirectoryError:  # what is missing or damaged is named by whoever reads it
        return
    except ValueError:
        moment = 0.0
    for folder, _, names in os.walk(path, topdown=False):
        for entry in (*names, "."):  # each folder after what is in it
            with contextlib.suppress(OSError):
                os.utime(Path(folder, entry), (moment, moment), follow_symlinks=False)


#: Why a run ended that Ctrl-C or a signal ended.
INTERRUPTED = "The run was interrupted."


#: How the sentence begins of a run that ended between two rounds because its owner asked for it.
STOPPED = "Stopped before round"


#: Settings that say where things were on the machine of the run, or how it was started: for the
#: owner alone.
PLACES: Final = frozenset({"run-dir", "resume", "data"})


def without_places(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that stand in a run directory."""
    return {key: value for key, value in settings.items() if key not in PLACES}


def sentence_of(error: BaseException) -> tuple[str, bool]:
    """Why a run ended, in a sentence, and whether that is a fault of the program.

    Args:
        error: one of ours is its own sentence, any other is named by its type and place.
    """
    noticed = error.__cause__ if isinstance(error, PrivsynError) else error
    if is_disk_full(noticed) and "make room" not in str(error):
        return f"{disk_full_sentence()}: {' '.join(str(error).split())[:500]}", False
    if isinstance(error, PrivsynError):
        return str(error), False
    if isinstance(error, SystemExit) and error.code:
        return f"The ServerApp called sys.exit({error.code!r}).", True
    if not isinstance(error, Exception):  # Ctrl-C, or a signal: at `flwr stop` Flower exits with 0
        return INTERRUPTED, False
    place = ""
    for frame in extract_tb(error.__traceback__)[-1:]:
        place = f" in {'/'.join(Path(frame.filename).parts[-2:])} line {frame.lineno}"
    said = " ".join(str(error).split())[:500]
    return f"Unexpected {type(error).__name__}{place}: {said}", True


def was_interrupted(error: str | None) -> bool:
    """Whether somebody ended a run that could have gone on.

    Args:
        error: why it ended, as it was recorded.
    """
    return error is not None and (error == INTERRUPTED or error.startswith(STOPPED))


def disk_full_sentence(folder: Path | None = None) -> str:
    """That a disk is full, and what to do.

    Args:
        folder: where nothing more can be written; None where only a library's words are known.
    """
    where = "A disk" if folder is None else f"The disk of {folder}"
    # The same command would begin a run anew, at a cost of its own.
    then = "go on, with a run by `privsyn resume`, with all else by the same command"
    return f"{where} is full: make room, and {then}"
