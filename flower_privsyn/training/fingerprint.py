"""What trained weights depend on besides texts and settings, as JSON can hold it."""

from __future__ import annotations

from pathlib import Path


def weight_files(model: str) -> list[list[str | int]] | str:
    """The files of a model: the name, bytes and time of change (in nanoseconds) of each.

    Hashing gigabytes of weights takes longer than a small training: sizes and times stand for them,
    as in make.

    Args:
        model: A folder, or a name.

    Returns:
        The name as it is where there is no such folder, or no file in it.
    """
    folder = Path(model)
    files = sorted(folder.glob("*")) if folder.is_dir() else []
    found: list[list[str | int]] = [
        [file.name, file.stat().st_size, file.stat().st_mtime_ns]
        for file in files
        if file.is_file()
    ]
    return found or model
