"""What a method knows between two rounds, as the engine keeps it in the run directory."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from flower_privsyn.errors import RunDirectoryError
from flower_privsyn.files import replacing
from flower_privsyn.runs import RunDirectory

#: Arrays of numbers, and small values that JSON can say, by name. It is read and never changed: a
#: step makes another one.
State: TypeAlias = Mapping[str, Any]

#: In the file, what is no array.
_REST: Final = "json"


def keep_state(run: RunDirectory, number: int, state: State) -> State:
    """Write what is known after a round, and delete what was known before it.

    The file is whole or not there, whenever the process is killed.

    Args:
        run: the run directory.
        number: of the round; 0 is before the first.
        state: what is known.

    Returns:
        The same as a process finds it that goes on with the run, tuples being lists.
    """
    rest = {name: value for name, value in state.items() if not isinstance(value, np.ndarray)}
    arrays = {name: value for name, value in state.items() if name not in rest}
    path, packed = run.path / f"checkpoint-{number:04d}.npz", json.dumps(rest).encode()
    with replacing(path, for_the_owner=True) as temporary, temporary.open("wb") as file:
        np.savez(file, **{**arrays, _REST: np.frombuffer(packed, dtype=np.uint8)})
    for other in set(_kept(run)) - {path}:
        other.unlink(missing_ok=True)
    return {**arrays, **json.loads(packed)}


def last_state(run: RunDirectory) -> tuple[int, State] | None:
    """The last state that was kept, and after which round; None of a run that has none.

    Raises:
        RunDirectoryError: the file is damaged, or cannot be read.
    """
    if not (kept := _kept(run)):
        return None
    path = kept[-1]
    try:
        with np.load(path) as found:
            arrays = {name: found[name] for name in found.files if name != _REST}
            rest = json.loads(found[_REST].tobytes())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RunDirectoryError(
            f"{path} is damaged, or cannot be read: it does not hold what the run had made of its "
            "releases; put back a copy of it."
        ) from error
    return _number_of(path), {**arrays, **rest}


def _kept(run: RunDirectory) -> list[Path]:
    """The states on the disk, the last one last; of a run that was killed there may be two."""
    return sorted(run.path.glob("checkpoint-*.npz"), key=_number_of)


def _number_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])
