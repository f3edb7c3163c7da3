"""Adapters and models on disk: written as a whole, and resumable."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flower_privsyn.errors import ModelError
from flower_privsyn.files import write_json
from flower_privsyn.models import stamped

#: The files by which an adapter and a model are known.
ADAPTER = "adapter_config.json"
MODEL = "config.json"
RECORD = "training.json"
_SEAL = "complete"


def mark_complete(checkpoint: Path) -> None:
    """Say that a checkpoint has been written to its end."""
    _sync(checkpoint)
    (checkpoint / _SEAL).touch()
    _sync_folder(checkpoint)


def last_checkpoint(folder: Path, fingerprint: Mapping[str, Any]) -> Path | None:
    """The checkpoint to go on from; whatever belongs to another training is deleted.

    Args:
        folder: The partial folder; it exists afterwards, for this training.
        fingerprint: What the training depends on, as JSON can hold it.

    Raises:
        ModelError: The folder holds something that no training put there.
    """
    record = folder / RECORD
    if _read(record) != {"fingerprint": dict(fingerprint)}:
        discard(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not record.exists():
        write_json(record, {"fingerprint": fingerprint})
    found: dict[int, Path] = {}
    for path in folder.glob("checkpoint-*"):
        number = path.name.rpartition("-")[2]
        if number.isdecimal() and (path / _SEAL).is_file():
            found[int(number)] = path
        else:
            shutil.rmtree(path)
    return found[max(found)] if found else None


def discard(folder: Path) -> None:
    """Delete a partial folder, if there is one.

    Raises:
        ModelError: It holds something that no training put there.
    """
    if not folder.exists():
        return
    if not (folder / RECORD).is_file() and any(
        not path.name.startswith(".") for path in folder.iterdir()
    ):
        raise ModelError(
            f"{folder} is where checkpoints of a training go, but it holds other files: move them"
        )
    shutil.rmtree(folder)


def finished(output: Path, fingerprint: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the training that made ``output`` reported, or None if that was another one."""
    record = _read(output / RECORD)
    if record is None or record.get("fingerprint") != dict(fingerprint):
        return None
    report = record.get("report")
    return report if isinstance(report, dict) else None


def refuse_other(output: Path, *, holds: str) -> None:
    """Never replace a folder that is not what is to be written there.

    Args:
        output: The folder.
        holds: The file by which a model or an adapter is known.

    Raises:
        ModelError: ``output`` is a file, or a folder with other things in it.
    """
    if not output.exists() or (output / holds).is_file():
        return
    if not output.is_dir() or any(output.iterdir()):
        raise ModelError(
            f"{output} cannot be written: it exists and holds no {holds}, so it is not replaced"
        )


def install(
    built: Path,
    output: Path,
    *,
    fingerprint: Mapping[str, Any],
    report: Mapping[str, Any],
    stamp: str = "",
) -> None:
    """Make a built adapter or model the output in one step; an older one there is replaced.

    Args:
        built: The folder with its files, on the same disk as ``output``.
        output: What it is to be called.
        fingerprint: What the training depended on.
        report: What it reported.
        stamp: What is to be said of a model that no epsilon covers; "" of others.
    """
    if stamp:
        stamped.mark(built, stamp)
    write_json(built / RECORD, {"fingerprint": fingerprint, "report": report})
    _sync(built)
    old = built.with_name(built.name + ".old")
    if old.exists():
        shutil.rmtree(old)
    if output.exists():
        output.rename(old)
    built.rename(output)
    _sync_folder(output.parent)
    if old.exists():
        shutil.rmtree(old)


def _sync(folder: Path) -> None:
    """Have a folder and all that it holds on the disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            _sync_folder(path)
            continue
        with path.open("rb+") as opened:
            os.fsync(opened.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
