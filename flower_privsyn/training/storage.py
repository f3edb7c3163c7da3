"""Adapters and models on disk: written as a whole, resumable, known by what they depend on."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flower_privsyn.environment import library_versions
from flower_privsyn.errors import ModelError, TrainingError
from flower_privsyn.files import read_json, sha256_of, sync_folder, write_json
from flower_privsyn.models import provenance, resolve_model

#: The files by which an adapter and a model are known.
ADAPTER = "adapter_config.json"
MODEL = "config.json"
RECORD = "training.json"
_SEAL = "complete"


def once(
    output: Path,
    fingerprint: Mapping[str, Any],
    build: Callable[[Path, Path | None], tuple[Path, Mapping[str, Any]]],
    *,
    holds: str,
    stamp: str = "",
) -> dict[str, Any]:
    """Train into a folder unless that was done, or go on where an earlier attempt ended.

    Checkpoints are kept in ``<output>.partial``, which is deleted at the end and used only for a
    training with the same fingerprint.

    Args:
        output: What the folder is to be called; it appears only when training is finished, and
            replaces an older model or adapter there.
        fingerprint: What the training depends on, as JSON can hold it.
        build: Given the partial folder and the checkpoint to go on from, trains, and returns a
            folder in it with what was made, and the report.
        holds: The file by which a model or an adapter is known.
        stamp: What is to be said of a model that no epsilon covers; "" of others.

    Returns:
        The report, now or of the training that had been finished.

    Raises:
        ModelError: ``output`` holds something that no training put there.
        TrainingError: The training broke down; ``output`` is as it was.
    """
    refuse_other(output, holds=holds)
    partial = output.with_name(output.name + ".partial")
    record = read_json(output / RECORD)
    if record.get("fingerprint") == dict(fingerprint) and isinstance(record.get("report"), dict):
        shutil.rmtree(partial, ignore_errors=True)  # what a crash right after the end left
        known: dict[str, Any] = record["report"]
        return known
    output.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = last_checkpoint(partial, fingerprint)
    try:
        built, report = build(partial, checkpoint)
    except TrainingError:
        shutil.rmtree(partial)  # the same start would break down at the same place
        raise
    install(built, output, fingerprint=fingerprint, report=report, stamp=stamp)
    shutil.rmtree(partial)
    return dict(report)


def mark_complete(checkpoint: Path) -> None:
    """Say that a checkpoint has been written to its end."""
    _sync(checkpoint)
    (checkpoint / _SEAL).touch()
    sync_folder(checkpoint)


def last_checkpoint(folder: Path, fingerprint: Mapping[str, Any]) -> Path | None:
    """The checkpoint to go on from; whatever belongs to another training is deleted.

    Args:
        folder: The partial folder; it exists afterwards, for this training.
        fingerprint: What the training depends on, as JSON can hold it.
    """
    record = folder / RECORD
    if read_json(record) != {"fingerprint": dict(fingerprint)}:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(record, {"fingerprint": fingerprint})
    found: dict[int, Path] = {}
    for path in folder.glob("checkpoint-*"):
        number = path.name.rpartition("-")[2]
        if number.isdecimal() and (path / _SEAL).is_file():
            found[int(number)] = path
        else:
            shutil.rmtree(path)
    return found[max(found)] if found else None


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
    """Make a built adapter or model the output; an older one there is replaced.

    Args:
        built: The folder with its files, on the same disk as ``output``.
        output: What it is to be called.
        fingerprint: What the training depended on.
        report: What it reported.
        stamp: What is to be said of a model that no epsilon covers; "" of others.
    """
    if stamp:
        provenance.mark(built, stamp)
    write_json(built / RECORD, {"fingerprint": fingerprint, "report": report})
    _sync(built)
    if output.exists():
        shutil.rmtree(output)
    built.rename(output)
    sync_folder(output.parent)


def _sync(folder: Path) -> None:
    """Have a folder and all that it holds on the disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            sync_folder(path)
            continue
        with path.open("rb+") as opened:
            os.fsync(opened.fileno())
    sync_folder(folder)


def of_training(
    model: str | Path, texts: Iterable[str], settings: Any, seed: int, *libraries: str
) -> dict[str, Any]:
    """Everything that trained weights depend on, short of the machine, as JSON can hold it.

    Args:
        model: A bundled short name, a folder or a hub name.
        texts: What it is trained on.
        settings: A dataclass.
        seed: Of the training.
        libraries: Whose versions matter, besides those of PyTorch and Transformers.
    """
    return {
        "model": weight_files(model),
        "texts": digest_of(text.encode("utf-8", "surrogatepass") for text in texts),
        "settings": asdict(settings),
        "seed": seed,
        "versions": library_versions("torch", "transformers", *libraries),
    }


def weight_files(model: str | Path) -> list[list[str | int]] | str:
    """The files of a model: name, bytes and digest of each.

    Not their times: a copy is the same model, and there are file systems that forget fractions of
    a second when a file leaves the memory.

    Args:
        model: A bundled short name, a folder or a hub name.

    Returns:
        A hub name as it is.
    """
    resolved = resolve_model(model)
    folder = Path(resolved)
    files = sorted(folder.glob("*")) if folder.is_dir() else []
    found: list[list[str | int]] = [
        [file.name, file.stat().st_size, sha256_of(file)] for file in files if file.is_file()
    ]
    return found or resolved


def digest_of(parts: Iterable[bytes]) -> str:
    """A digest of texts, or of rows of tokens, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
