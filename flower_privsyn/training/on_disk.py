"""What a model says of rows, on disk: numbers that are mapped, a header, and how far it has come.

The header says what the numbers depend on, so that a folder of other ones is refused and not used;
what is not finished goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flower_privsyn.errors import ConfigError, ModelError
from flower_privsyn.files import read_json, write_json

_HEADER = "header.json"
_DONE = "done.json"


def rows_done(folder: Path, header: Mapping[str, Any], *, what: str) -> int:
    """For how many rows a folder has its numbers; the header is written where there is none.

    Args:
        folder: of these numbers alone; made if needed.
        header: what they depend on, as JSON can hold it.
        what: they are, in words.

    Raises:
        ConfigError: The folder is of other numbers, or of something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = read_json(folder / _HEADER)
    if not found:
        others = [path.name for path in folder.iterdir() if path.name != _DONE]
        if any(name[0] != "." and not name.endswith(".npy") for name in others):
            raise ConfigError(
                f"{folder} is where {what} go, but it holds other files: give another folder"
            )
        (folder / _DONE).unlink(missing_ok=True)
        write_json(folder / _HEADER, header)
        return 0
    for key, value in header.items():
        if found.get(key) != value:
            raise ConfigError(
                f"{folder} holds {what} that differ in {key}: give another folder, or delete it"
            )
    done = read_json(folder / _DONE).get("rows", 0)
    return done if isinstance(done, int) and done > 0 else 0


def note_rows_done(folder: Path, rows: int) -> None:
    """Note for how many rows the numbers are on the disk."""
    write_json(folder / _DONE, {"rows": rows})


def mapped(
    path: Path, dtype: Any, shape: tuple[int, ...], *, mode: Literal["r", "r+", "w+"]
) -> np.memmap[Any, Any]:
    """A file of numbers as an array.

    Args:
        path: a .npy file.
        dtype: of the numbers.
        shape: of the array.
        mode: "w+" makes it anew; "r" and "r+" take what it holds.

    Raises:
        ModelError: It does not hold what it should.
    """
    if mode == "w+":
        return np.lib.format.open_memmap(path, mode=mode, dtype=dtype, shape=shape)
    try:
        found = np.lib.format.open_memmap(path, mode=mode)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path} cannot be read ({type(error).__name__}): delete its folder"
        ) from error
    if found.shape != shape or found.dtype != dtype:
        raise ModelError(f"{path} is not what its folder says it is: delete the folder")
    return found
