"""Where a command may write what it makes."""

from __future__ import annotations

from pathlib import Path

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import refuses_files, user_path


def file_to_write(output: Path, *, corpus: str, what: str = "the corpus") -> Path:
    """The file that `--output` names, before the work that is to be written there is begun.

    Args:
        output: as it was given.
        corpus: what is read, perhaps a file.
        what: that is, in words.

    Raises:
        ConfigError: no file can be written there, or it is the file that is read.
    """
    file = user_path(output)
    folder = file.absolute().parent
    if not folder.is_dir() or (file.exists() and not file.is_file()):
        raise ConfigError(f"--output must be a file in a folder that is there, got {output}")
    if why := refuses_files(folder):
        raise ConfigError(f"--output {output} cannot be written: {folder} takes no files ({why})")
    source = user_path(corpus)
    if file.exists() and source.exists() and file.samefile(source):
        raise ConfigError(f"--output {output} is {what}: name another file")
    return file
