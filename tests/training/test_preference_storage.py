"""What preference training keeps, refuses, and goes on from when it was ended."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from flower_privsyn.errors import ModelError, TrainingError
from flower_privsyn.models.adapters import adapter_digest
from flower_privsyn.training import preference
from tests.support.preferences import (
    distance,
    pairs_of_topics,
    quick,
    response_log_probabilities,
    train,
)


class TestTheAdapter:
    def test_the_folder(self, tiny: Path, first: Path):
        assert sorted(path.name for path in first.iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
            "training.json",
        ]
        assert not first.with_name("adapter.partial").exists()
        config = json.loads((first / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == tiny.name
        assert config["peft_type"] == "LORA"
        assert (config["r"], config["lora_alpha"], config["inference_mode"]) == (4, 8, True)
        for file in first.iterdir():
            for place in (tiny.parent, Path.home(), Path.cwd(), first.parent):
                assert str(place).encode() not in file.read_bytes()

    def test_peft_itself_loads_it(self, tiny: Path, first: Path):
        """As vLLM and other programs do: plain PEFT on the plain model gives the same numbers."""
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer

        base = AutoModelForCausalLM.from_pretrained(tiny).eval()
        tokenizer = AutoTokenizer.from_pretrained(tiny)
        pair = pairs_of_topics(1)[0]
        prompt = tokenizer(pair.prompt)["input_ids"]
        response = tokenizer(pair.chosen, add_special_tokens=False)["input_ids"]
        model = PeftModel.from_pretrained(base, first).eval()
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + response])).logits[0]
        steps = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        expected = float(steps.gather(1, torch.tensor(response)[:, None]).sum())
        found = response_log_probabilities(tiny, first, [pair.prompt], [pair.chosen])
        assert found[0] == pytest.approx(expected, rel=1e-5)
        plain = response_log_probabilities(tiny, None, [pair.prompt], [pair.chosen])
        assert abs(plain[0] - expected) > 0.1

    def test_the_same_arguments_give_the_same_bytes(self, tiny: Path, tmp_path: Path):
        """And the random numbers of others are left alone."""

        def draw() -> tuple[float, float, float]:
            return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002

        random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
        expected = draw()
        settings = quick(training_epochs=1)
        for name, seed in (("a", 3), ("b", 3), ("c", 4)):
            random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
            train(tiny, pairs_of_topics(5), tmp_path / name, seed=seed, settings=settings)
            assert draw() == expected
        assert adapter_digest(tmp_path / "a") == adapter_digest(tmp_path / "b")
        assert distance(tmp_path / "a", tmp_path / "c") > 1e-3

    def test_a_damaged_adapter_is_refused(self, tiny: Path, first: Path, tmp_path: Path):
        broken = tmp_path / "broken"
        shutil.copytree(first, broken)
        (broken / "adapter_model.safetensors").write_bytes(b"torn")
        with pytest.raises(ModelError, match="broken cannot be loaded onto the model"):
            train(tiny, pairs_of_topics(4), tmp_path / "a", adapter=broken)
        with pytest.raises(ModelError, match=r"no folder with an adapter_config\.json"):
            train(tiny, pairs_of_topics(4), tmp_path / "a", adapter=tmp_path / "nothing")

    def test_a_foreign_folder_is_not_replaced(self, tiny: Path, tmp_path: Path):
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
        with pytest.raises(ModelError, match="is not replaced"):
            train(tiny, pairs_of_topics(4), tmp_path / "thesis")
        (tmp_path / "thesis").rename(tmp_path / "a.partial")
        with pytest.raises(ModelError, match="it holds other files: move them"):
            train(tiny, pairs_of_topics(4), tmp_path / "a")
        assert (tmp_path / "a.partial" / "chapter.txt").read_text() == "years of work"


class TestFailures:
    def test_a_loss_that_is_no_number(self, tiny: Path, first: Path, tmp_path: Path):
        before = adapter_digest(first)
        with pytest.raises(TrainingError, match="no longer finite: lower learning_rate"):
            train(
                tiny,
                pairs_of_topics(8),
                tmp_path / "a",
                adapter=first,
                settings=quick(learning_rate=1e30),
            )
        assert list(tmp_path.iterdir()) == []
        assert adapter_digest(first) == before

    def test_too_little_memory_is_one_sentence(self, tiny: Path, tmp_path: Path):
        def run_out(_: int) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

        with pytest.raises(
            TrainingError, match="lower training_micro_batch_size = 8 or max_tokens = 512"
        ):
            train(tiny, pairs_of_topics(4), tmp_path / "a", progress=run_out)
        assert not (tmp_path / "a").exists()


SCRIPT = """
import os, signal, socket, sys
def refuse(*args, **kwargs):
    print("asked for the network", args, file=sys.stderr)  # also where the error is swallowed
    raise OSError("no network")
socket.getaddrinfo = refuse
socket.socket.connect = refuse
from pathlib import Path
import torch
torch.set_num_threads(1)
from flower_privsyn.training import preference
from tests.support.preferences import pairs_of_topics, quick, train
preference.CHECKPOINT_SECONDS = 0.0
model, out = map(Path, sys.argv[1:])
train(model, pairs_of_topics(10), out / "whole")
for loss in ("sft", "ipo"):
    train(model, pairs_of_topics(4), out / loss, adapter=out / "whole", settings=quick(loss=loss))
passed = 0
def progress(count):
    global passed
    passed += count
    if passed >= 13:
        os.kill(os.getpid(), signal.SIGKILL)
train(model, pairs_of_topics(10), out / "a", progress=progress)
"""


@dataclass
class Process:
    """One that trained with every loss, and was killed in a training that it had done before.

    Attributes:
        out: what it wrote.
        others: its home, its temporary and its working folder.
        ended: how.
    """

    out: Path
    others: list[Path]
    ended: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def process(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Process:
    """In a bare environment: no offline switch, empty home, temporary and working folders."""
    folder = tmp_path_factory.mktemp("process")
    home, temporary, work, out = others = [folder / name for name in ("h", "t", "w", "out")]
    for place in others:
        place.mkdir()
    kept = {
        key: os.environ[key] for key in ("PATH", "LANG", "OMP_NUM_THREADS") if key in os.environ
    }
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tiny), str(out)],
        cwd=work,
        env={
            **kept,
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
    )
    return Process(out=out, others=others[:-1], ended=ended)


def test_nothing_is_printed_sent_or_left_behind(process: Process):
    assert process.ended.returncode == -signal.SIGKILL, process.ended.stderr
    assert process.ended.stdout == ""
    assert process.ended.stderr == ""
    assert [path for place in process.others for path in place.rglob("*") if path.is_file()] == []
    names = sorted(path.name for path in process.out.iterdir())
    assert names == ["a.partial", "ipo", "sft", "whole"]


class Killed(Exception):
    """Stands for whatever ends a process."""


def kill_after(pairs: int) -> Any:
    passed = 0

    def progress(count: int) -> None:
        nonlocal passed
        passed += count
        if passed >= pairs:
            raise Killed

    return progress


class TestResuming:
    @pytest.fixture(autouse=True)
    def every_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(preference, "CHECKPOINT_SECONDS", 0.0)

    @pytest.mark.parametrize(
        ("changes", "ends"),  # in the first epoch, in the second
        [
            ({"loss": "sft", "learning_rate_schedule": "cosine"}, [13]),
            pytest.param(
                {"training_micro_batch_size": 2, "warmup_steps": 2}, [5, 13], marks=pytest.mark.slow
            ),
            ({"reference": "previous", "loss": "ipo"}, [13]),
        ],
        ids=["sft", "pieces", "previous"],
    )
    def test_a_killed_training_ends_at_the_same_weights(
        self, tiny: Path, first: Path, tmp_path: Path, changes: dict[str, Any], ends: list[int]
    ):
        pairs, output = pairs_of_topics(10), tmp_path / "a"
        how: dict[str, Any] = {"adapter": first, "settings": quick(**changes)}
        whole = train(tiny, pairs, tmp_path / "whole", **how)
        for pairs_passed in ends:
            with pytest.raises(Killed):
                train(tiny, pairs, output, progress=kill_after(pairs_passed), **how)
            assert not output.exists()
            assert any((tmp_path / "a.partial").glob("checkpoint-*"))
        passed: list[int] = []
        report = train(tiny, pairs, output, progress=passed.append, **how)
        assert passed[0] >= 10  # nothing of the first epoch again
        assert sum(passed) == 20
        assert distance(output, tmp_path / "whole") < 1e-5
        assert report.losses == pytest.approx(whole.losses, rel=1e-5)
        assert report.steps == whole.steps == 6
        assert report.margin == (
            None if whole.margin is None else pytest.approx(whole.margin, rel=1e-3, abs=1e-5)
        )
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "whole"]

    @pytest.fixture
    def killed(self, process: Process, tmp_path: Path) -> Path:
        """A copy of what SIGKILL left, where a training would go on from it."""
        shutil.copytree(process.out / "a.partial", tmp_path / "a.partial")
        return tmp_path / "a"

    def _goes_on(self, model: Path, output: Path, **changes: Any) -> int:
        """How many pairs have been passed after the first step of a training that is started."""
        passed: list[int] = []

        def first_step(count: int) -> None:
            passed.append(count)
            raise Killed

        given: dict[str, Any] = {"pairs": pairs_of_topics(10), **changes}
        with pytest.raises(Killed):
            train(model, output=output, progress=first_step, **given)
        return passed[0]

    @pytest.mark.parametrize("what", ["", "pairs", "settings", "seed", "adapter", "model"])
    def test_checkpoints_of_another_training_are_not_used(
        self, tiny: Path, first: Path, killed: Path, tmp_path: Path, what: str
    ):
        model = tmp_path / "model"
        shutil.copytree(tiny, model)
        other: dict[str, Any] = {
            "pairs": [*pairs_of_topics(9), pairs_of_topics(1, first=77)[0]],
            "settings": quick(beta=0.2),
            "seed": 1,
            "adapter": first,
        }
        if what == "model":
            saved = load_file(model / "model.safetensors")
            saved["model.norm.weight"] = saved["model.norm.weight"] * 1.1
            save_file(saved, model / "model.safetensors", metadata={"format": "pt"})
        changes = {what: other[what]} if what in other else {}
        passed = self._goes_on(model, killed, **changes)
        assert passed == 4 if what else passed >= 10  # from the first pair on, or from a checkpoint

    def test_a_finished_training_is_not_run_again(
        self, tiny: Path, process: Process, killed: Path, monkeypatch: pytest.MonkeyPatch
    ):
        shutil.copytree(process.out / "whole", killed)  # as if killed before all was deleted
        monkeypatch.delattr(preference, "_load")
        passed: list[int] = []
        report = train(tiny, pairs_of_topics(10), killed, progress=passed.append)
        assert (report.steps, report.pairs) == (6, 10)
        assert passed == []
        assert not killed.with_name("a.partial").exists()
        with pytest.raises(NameError):
            train(tiny, pairs_of_topics(10), killed, seed=1)

    @pytest.mark.parametrize("torn", [False, True])
    def test_a_killed_process_is_gone_on_with(
        self, tiny: Path, process: Process, killed: Path, torn: bool
    ):
        """SIGKILL: nothing of its own clean-up ran. A checkpoint that is torn is passed over."""
        found = sorted(killed.with_name("a.partial").glob("checkpoint-*"))
        assert len(found) == 2
        if torn:
            (found[-1] / "complete").unlink()
            (found[-1] / "optimizer.pt").write_bytes(b"torn")
        passed: list[int] = []
        train(tiny, pairs_of_topics(10), killed, progress=passed.append)
        assert (passed[0] < 10) == torn
        assert distance(killed, process.out / "whole") < 1e-5
