"""What the model libraries print, and what they say when they fail, made fit for a run."""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flower_privsyn.errors import MissingExtraError, PrivsynError


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide the loading bars: a run shows its own progress."""
    transformers_logging: Any = importlib.import_module("transformers.utils.logging")
    shown = transformers_logging.is_progress_bar_enabled()
    level = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity(max(level, logging.ERROR))
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if shown:
            transformers_logging.enable_progress_bar()


@contextmanager
def without_gc() -> Iterator[None]:
    """Do not look for garbage among the million objects that a library makes as it loads.

    Of an import that takes a fifth of the time.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


# Nor does a process look through them once more as it ends: that took a deployed node's, which
# Flower starts for every message, a quarter of its time.
atexit.register(gc.freeze)


@contextmanager
def failures_as(kind: type[PrivsynError], what: str) -> Iterator[None]:
    """Raise whatever a library raises in this block as an error of the package.

    Args:
        kind: of error.
        what: a sentence without its end, such as "model 'x' cannot be loaded"; why is added to it.
    """
    try:
        yield
    except Exception as error:
        raise kind(f"{what}: {shorten(error)}") from error


def import_extra(module: str, *, needed_by: str, extra: str) -> Any:
    """Import a library that comes with an extra of this package.

    Args:
        module: its name.
        needed_by: what needs it, with which the sentence begins.
        extra: that brings it.

    Raises:
        MissingExtraError: it is not installed, or cannot be loaded.
    """
    try:
        with without_gc():
            return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{needed_by} needs {module.partition('.')[0]} ({shorten(error)}): "
            f"pip install 'flower-privsyn[{extra}]'"
        ) from error


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model and its tokenizer as Transformers reads them; what the folder held is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    with quiet_transformers():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def shorten(error: BaseException) -> str:
    """Shorten a library's message to one line: they tend to list every class they know."""
    message = " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= 240 else message[:237].rsplit(" ", 1)[0] + " ..."
