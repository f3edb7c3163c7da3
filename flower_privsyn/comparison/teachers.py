"""Who teaches the students of a comparison: the model that wrote the texts they learn from."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_privsyn.errors import ConfigError, PrivsynError
from flower_privsyn.files import located, read_json_lines
from flower_privsyn.models.adapters import merge_adapter
from flower_privsyn.models.pretrained import holds_encoder_decoder, load_pretrained, model_folder
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import TRAINED_MODEL, writer_in

if TYPE_CHECKING:
    from flower_privsyn.training.distillation import Distillation


def teaching(values: Mapping[str, Any], *, teacher: str | Path = "") -> Distillation:
    """How a student is taught: by `teacher`.

    Args:
        values: run configuration of a cell.
        teacher: a bundled short name, a folder or a hub name; "" for the one that they name.

    Raises:
        ConfigError: they name none.
    """
    from flower_privsyn.training.distillation import Distillation

    named = values.get("teacher")
    if not (teacher or named):
        raise ConfigError(
            f"a distilled student needs a teacher: the settings have teacher = {named!r}"
        )
    return Distillation(teacher or located(str(named)))


def writer_of(run: RunDirectory, *, student: str, folder: Path) -> str | Path:
    """The model that wrote a run's synthetic texts, if it can teach a student.

    Formal guarantee:
        Post-processing of what the run released: the adapter of a round was trained on ranked
        responses, a generator across the users in rounds that the run's ledger has, and a bias is
        read off a release.

    Args:
        run: a finished run with texts.
        student: the model that is to be taught.
        folder: where a generator is put together with its adapter.

    Returns:
        What the run trained or biased, or the public generator as it is; "" where the writer has
        other tokens than the student, is no model that runs here, or reads conditions by an
        encoder.
    """
    # What a joint sketch ends with is its student, beside the generator that wrote.
    made = writer_in(run.path) if "synthesis" in run.config else run.path / TRAINED_MODEL
    if made is not None and (made / "config.json").is_file():
        return able(made, student)
    generator, adapter = able(str(run.config.get("generator", "")), student), _adapter(run)
    if not generator or adapter is None:
        return generator
    if not (folder / "config.json").is_file():
        network, tokenizer = load_pretrained(
            generator, kind="causal", dtype="float32", device="cpu"
        )
        unfinished = folder.with_name(folder.name + ".partial")
        shutil.rmtree(unfinished, ignore_errors=True)
        merge_adapter(network, adapter, name=str(generator)).save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.replace(folder)
    return folder


def able(writer: str | Path, student: str) -> str | Path:
    """A model that wrote texts, if it can teach a student; "" if it cannot.

    Args:
        writer: a bundled short name, a folder, or any other name of a generator.
        student: the model that is to be taught.
    """
    from flower_privsyn.training.distillation import check_same_tokens

    found = located(writer) if isinstance(writer, str) else writer
    try:
        check_same_tokens(student, found)
        return "" if holds_encoder_decoder(Path(model_folder(found))) else found
    except PrivsynError:
        return ""


def _adapter(run: RunDirectory) -> Path | None:
    """The adapter that wrote: the last one that was trained before the round of the texts."""
    rounds = [int(record.get("round") or 0) for record in read_json_lines(run.synthetic_jsonl)]
    last = max(rounds, default=0)
    found = [
        files.adapter
        for number, files in run.rounds
        if number < last and (files.adapter / "adapter_config.json").is_file()
    ]
    return found[-1] if found else None
