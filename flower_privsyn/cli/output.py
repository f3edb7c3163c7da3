"""Exit statuses, where commands may write, and how they say what they found."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import user_path

FAILED: Final = 1
"""Exit status: something failed unexpectedly."""

REFUSED: Final = 2
"""Exit status: what was asked for cannot be done."""

INTERRUPTED: Final = 130
"""Exit status: a signal or Ctrl-C ended the command."""


def complain(sentence: str, status: int) -> int:
    """Say on the standard error why a command ends with this exit status, and return it."""
    sys.stderr.write(f"privsyn: {sentence}\n")
    return status


def file_to_write(output: Path, *, corpus: str) -> Path:
    """The file that `--output` names, before the work that is to be written there is begun.

    Args:
        output: as it was given.
        corpus: what is read, perhaps a file.

    Raises:
        ConfigError: no file can be written there, or it is the corpus.
    """
    file = user_path(output)
    folder = file.absolute().parent
    if not folder.is_dir() or (file.exists() and not file.is_file()):
        raise ConfigError(f"--output must be a file in a folder that is there, got {output}")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--output {output} cannot be written: {folder} takes no files")
    source = user_path(corpus)
    if file.exists() and source.exists() and file.samefile(source):
        raise ConfigError(f"--output {output} is the corpus: name another file")
    return file


def number(value: float | None, *, none: str = "none") -> str:
    """A figure with four digits; `none` where there is none."""
    return none if value is None else f"{value:.4g}"


def plain_line(text: str, *, most: int = 400) -> str:
    """A text that somebody else wrote as one line for a terminal, without control characters.

    Args:
        text: such as a generator's.
        most: characters that are shown.
    """
    line = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    return line if len(line) <= most else f"{line[:most]} ..."
