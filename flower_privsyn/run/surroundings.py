"""What a run records about where it ran and why it ended."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flower_privsyn.environment import library_versions
from flower_privsyn.errors import (
    ConfigError,
    DataError,
    MissingExtraError,
    ModelError,
    PrivsynError,
)
from flower_privsyn.files import is_disk_full

#: Why a run ended that Ctrl-C or a signal ended.
INTERRUPTED = "The run was interrupted."

#: How the sentence begins of a run that ended between two rounds because its owner asked for it.
STOPPED = "Stopped before round"

#: Settings that say where things were on the machine of the run, or how it was started: for the
#: owner alone.
PLACES: Final = frozenset({"run-dir", "resume", "data"})

#: What is wrong again as long as nothing is changed.
_ASKED_WRONGLY = (ConfigError, DataError, MissingExtraError, ModelError)

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


def without_places(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that stand in a run directory."""
    return {key: value for key, value in settings.items() if key not in PLACES}


def sentence_of(error: str | BaseException) -> tuple[str, bool]:
    """Why a run ended, in a sentence, and whether that is a fault of the program.

    Args:
        error: the sentence itself, or the exception: one of ours is its own sentence, any other
            is named by its type and place.
    """
    if isinstance(error, str):
        return error, False
    noticed = error.__cause__ if isinstance(error, PrivsynError) else error
    if is_disk_full(noticed) and "make room" not in str(error):
        return f"{disk_full_sentence()}: {' '.join(str(error).split())[:500]}", False
    if isinstance(error, PrivsynError):
        return str(error), False
    if isinstance(error, SystemExit):
        return f"The ServerApp called sys.exit({error.code!r}) before the run was finished.", True
    if not isinstance(error, Exception):  # Ctrl-C, or a signal that was turned into an exception
        return INTERRUPTED, False
    name = type(error).__name__
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = ""
    if trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        place = f" in {'/'.join(file.parts[-2:])} line {trace.tb_lineno}"
    return f"Unexpected {name}{place}: {' '.join(str(error).split())[:500]}", True


def was_interrupted(error: str | None) -> bool:
    """Whether somebody ended a run that could have gone on.

    Args:
        error: why it ended, as it was recorded.
    """
    return error is not None and (error == INTERRUPTED or error.startswith(STOPPED))


def asked_wrongly(error: str | BaseException) -> bool:
    """Whether what was asked for is at fault: the same would end in the same way."""
    return isinstance(error, _ASKED_WRONGLY)


def disk_full_sentence(folder: Path | None = None) -> str:
    """That a disk is full, and what to do.

    Args:
        folder: where nothing more can be written; None where only a library's words are known.
    """
    where = "A disk" if folder is None else f"The disk of {folder}"
    # The same command would begin a run anew, at a cost of its own.
    then = "go on, with a run by `privsyn resume`, with all else by the same command"
    return f"{where} is full: make room, and {then}"


def versions() -> dict[str, str]:
    """Versions of Python, the system and the libraries that decide what a run does."""
    installed = {name: found for name, found in library_versions(*_VERSIONED).items() if found}
    return {"python": platform.python_version(), "platform": sys.platform, **installed}
