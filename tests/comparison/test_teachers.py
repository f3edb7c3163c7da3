"""Who teaches: the model that wrote, with the adapter with which it wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flower_privsyn.comparison.teachers import teaching, writer_of
from flower_privsyn.models.adapters import AdapterSwitch, merge_adapter
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.run.directory import ROUNDS, TRAINED_MODEL, WRITER, Rounds


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=tokens).logits
    return found


def run_of(path: Path, *, generator: str, round_number: int) -> Any:
    """What is read of a finished run: its settings, its texts and its rounds."""
    texts = path / "synthetic.jsonl"
    texts.write_text(json.dumps({"text": "the river waits", "round": round_number}) + "\n")
    return SimpleNamespace(
        path=path,
        config={"generator": generator},
        synthetic_jsonl=texts,
        rounds=Rounds(path / ROUNDS),
    )


TOKENS = torch.tensor([[5, 17, 40, 9, 300]])


class TestWriter:
    def test_the_last_adapter_before_the_texts_is_in_its_weights(
        self, llama: Path, adapters: tuple[Path, Path], tmp_path: Path
    ) -> None:
        run = run_of(tmp_path, generator=str(llama), round_number=3)
        every = Rounds(tmp_path / ROUNDS)
        for number, adapter in ((1, adapters[0]), (2, adapters[1]), (3, adapters[0])):
            shutil.copytree(adapter, every.files(number).adapter)
        folder = tmp_path / "writer"
        assert writer_of(run, student=str(llama), folder=folder) == folder
        merged, _ = load_pretrained(folder, kind="causal", dtype="float32", device="cpu")
        base, _ = load_pretrained(llama, kind="causal", dtype="float32", device="cpu")
        plain = logits(base, TOKENS)
        switch = AdapterSwitch(base, "llama")
        switch.activate(adapters[1])
        torch.testing.assert_close(
            logits(merged, TOKENS), logits(base, TOKENS), rtol=1e-4, atol=1e-4
        )
        assert (logits(merged, TOKENS) - plain).abs().max() > 0.01
        # Again, as after an interruption: what was put together is taken as it is.
        before = (folder / "config.json").stat().st_mtime_ns
        assert writer_of(run, student=str(llama), folder=folder) == folder
        assert (folder / "config.json").stat().st_mtime_ns == before

    def test_without_an_adapter_it_is_the_public_generator(
        self, llama: Path, tmp_path: Path
    ) -> None:
        run = run_of(tmp_path, generator=str(llama), round_number=1)
        assert writer_of(run, student=str(llama), folder=tmp_path / "writer") == str(llama)
        assert not (tmp_path / "writer").exists()

    def test_a_generator_that_was_trained_across_users_is_taken_whole(
        self, llama: Path, tmp_path: Path
    ) -> None:
        run = run_of(tmp_path, generator="privsyn-lm", round_number=1)
        shutil.copytree(llama, tmp_path / TRAINED_MODEL)
        found = writer_of(run, student=str(llama), folder=tmp_path / "writer")
        assert found == tmp_path / TRAINED_MODEL

    def test_of_a_joint_sketch_it_is_the_generator_and_never_the_student(
        self, llama: Path, tmp_path: Path
    ) -> None:
        run = run_of(tmp_path, generator=str(llama), round_number=1)
        run.config["synthesis"] = "written"
        shutil.copytree(llama, tmp_path / TRAINED_MODEL)
        assert writer_of(run, student=str(llama), folder=tmp_path / "writer") == str(llama)
        shutil.copytree(llama, tmp_path / WRITER)
        found = writer_of(run, student=str(llama), folder=tmp_path / "writer")
        assert found == tmp_path / WRITER

    @pytest.mark.parametrize(
        "generator", ["privsyn-lm", "http://localhost:1/v1#some-model", "gguf:writer.gguf", ""]
    )
    def test_one_of_other_tokens_or_of_none_cannot_teach(
        self, llama: Path, tmp_path: Path, generator: str
    ) -> None:
        run = run_of(tmp_path, generator=generator, round_number=1)
        assert writer_of(run, student=str(llama), folder=tmp_path / "writer") == ""


def test_an_adapter_of_another_model_is_refused(lstm: Path, adapters: tuple[Path, Path]) -> None:
    from flower_privsyn.errors import ModelError

    model, _ = load_pretrained(lstm, kind="causal", dtype="float32", device="cpu")
    with pytest.raises(ModelError, match="cannot be loaded onto model 'lstm'"):
        merge_adapter(model, adapters[0], name="lstm")


def test_a_writer_comes_before_the_teacher_that_is_named() -> None:
    assert str(teaching({"teacher": "privsyn-lm"}).teacher) == "privsyn-lm"
    assert teaching({"teacher": ""}, teacher="privsyn-tiny").teacher == "privsyn-tiny"
