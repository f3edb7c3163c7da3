"""Adapters and models on disk: written as a whole, without this machine's paths, and resumable."""

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

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
RECORD = "training.json"
_SEAL = "complete"


def write_adapter(model: Any, folder: Path, *, base: str) -> None:
    """Write the adapter ``default`` in PEFT's format, and nothing else.

    PEFT's own `save_pretrained` would add a model card, ask the hub about the base model, and
    put the base's path on this machine into both files.

    Args:
        model: A PEFT model.
        folder: Made if needed.
        base: What to call the base model in the adapter's configuration.
    """
    import peft
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = peft.get_peft_model_state_dict(
        model, adapter_name="default", save_embedding_layers=False
    )
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(weights.items())},
        folder / WEIGHTS,
        metadata={"format": "pt"},
    )
    config = model.peft_config["default"].to_dict()
    config["base_model_name_or_path"] = base
    config["inference_mode"] = True
    # Sets come out in another order in every process; the same training gives the same file.
    values = {key: sorted(item) if isinstance(item, set) else item for key, item in config.items()}
    write_json(folder / CONFIG, dict(sorted(values.items())))


def mark_complete(checkpoint: Path) -> None:
    """Say that a checkpoint has been written to its end."""
    for file in checkpoint.iterdir():
        with file.open("rb+") as opened:
            os.fsync(opened.fileno())
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


def finished_report(output: Path, fingerprint: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the training that made ``output`` reported, or None if that was another one.

    Raises:
        ModelError: ``output`` exists and is no adapter, so that it must not be replaced.
    """
    if not output.exists():
        return None
    if not (output / CONFIG).is_file() and (not output.is_dir() or any(output.iterdir())):
        raise ModelError(
            f"{output} cannot become an adapter: it exists and holds no {CONFIG}, so it is not "
            "replaced"
        )
    record = _read(output / RECORD)
    if record is None or record.get("fingerprint") != dict(fingerprint):
        return None
    if not (output / WEIGHTS).is_file():
        return None
    report = record.get("report")
    return report if isinstance(report, dict) else None


def finished_model(output: Path, fingerprint: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the training that made a model in ``output`` reported; None if that was another one."""
    record = _read(output / RECORD)
    if record is None or record.get("fingerprint") != dict(fingerprint):
        return None
    report = record.get("report")
    return report if isinstance(report, dict) else None


def refuse_other(output: Path) -> None:
    """Never replace a folder that is not a model.

    Raises:
        ModelError: ``output`` is a file, or a folder with other things in it.
    """
    if not output.exists() or (output / "config.json").is_file():
        return
    if not output.is_dir() or any(output.iterdir()):
        raise ModelError(
            f"{output} cannot become a model: it exists and holds no config.json, so it is not "
            "replaced"
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
    # Some tokenizers keep their further templates in a folder of their own.
    for path in sorted(built.rglob("*"), reverse=True):
        if path.is_dir():
            _sync_folder(path)
            continue
        with path.open("rb+") as opened:
            os.fsync(opened.fileno())
    _sync_folder(built)
    old = built.with_name(built.name + ".old")
    if old.exists():
        shutil.rmtree(old)
    if output.exists():
        output.rename(old)
    built.rename(output)
    _sync_folder(output.parent)
    if old.exists():
        shutil.rmtree(old)


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
