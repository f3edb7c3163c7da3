"""Preference training: the papers' losses on models that really learn, and going on after a kill.

What storage promises of a folder and its checkpoints is tested with `fine_tune`, which keeps its
own by the same functions.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from flower_privsyn.errors import ConfigError, ModelError, TrainingError
from flower_privsyn.models.adapters import adapter_digest
from flower_privsyn.training import preference
from flower_privsyn.training.preference_settings import PreferencePair, TrainingReport
from tests.support.preferences import (
    distance,
    pairs_of_topics,
    quick,
    response_log_probabilities,
    train,
)
from tests.support.probe import Killed


def scores(model: Path | str, adapter: Path | None, pairs: list[PreferencePair]):
    """(n, 2): log-probabilities of the chosen and the rejected responses."""
    prompts = [pair.prompt for pair in pairs]
    both = [pair.chosen for pair in pairs], [pair.rejected for pair in pairs]
    return np.stack(
        [response_log_probabilities(model, adapter, prompts, texts) for texts in both], axis=1
    )


def lengths(model: Path, texts: list[str]) -> list[int]:
    from transformers import AutoTokenizer

    return [len(row) for row in AutoTokenizer.from_pretrained(model)(texts)["input_ids"]]


@pytest.fixture(scope="module")
def learned(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, TrainingReport]]:
    """A first round of each loss: its adapter, and what was said of it."""
    folder = tmp_path_factory.mktemp("learned")
    losses: tuple[Literal["dpo", "ipo"], ...] = ("dpo", "ipo")
    return {
        loss: (
            folder / loss,
            train(tiny, pairs_of_topics(24), folder / loss, settings=quick(loss=loss)),
        )
        for loss in losses
    }


class TestLosses:
    @pytest.mark.parametrize(("loss", "start"), [("dpo", math.log(2)), ("ipo", 25.0)])
    def test_a_new_adapter_starts_at_the_reference(self, learned: Any, loss: str, start: float):
        """ln 2 for DPO, (1 / (2 beta))^2 for IPO: whatever the model, its dropout off."""
        report = learned[loss][1]
        assert report.losses[0] == pytest.approx(start, abs=1e-6)
        assert report.losses[1] < start

    @pytest.mark.parametrize(("loss", "beta"), [("dpo", 0.5), ("ipo", 0.1)])
    def test_the_loss_is_the_one_of_the_papers(
        self, tiny: Path, first: Path, tmp_path: Path, loss: Any, beta: float
    ):
        """From the base model, and over the responses as they are: no end is added to them."""
        pairs = pairs_of_topics(6)
        settings = quick(loss=loss, beta=beta, training_batch_size=6, training_epochs=1)
        report = train(tiny, pairs, tmp_path / "a", adapter=first, settings=settings)
        ratios = scores(tiny, first, pairs) - scores(tiny, None, pairs)
        gaps = torch.from_numpy(ratios[:, 0] - ratios[:, 1])
        losses = -torch.nn.functional.logsigmoid(beta * gaps)
        if loss == "ipo":
            of_tokens = [
                lengths(tiny, [getattr(pair, name) for pair in pairs])
                for name in ("chosen", "rejected")
            ]
            chosen, rejected = ratios.T / np.array(of_tokens)
            losses = torch.from_numpy((chosen - rejected - 1 / (2 * beta)) ** 2)
        assert float(gaps.abs().max()) > 0.1  # there is something to see
        assert report.losses[0] == pytest.approx(float(losses.mean()), rel=1e-4)
        assert report.margin == pytest.approx(beta * float(gaps.mean()), rel=1e-3, abs=1e-4)
        assert report.accuracy == pytest.approx(float((gaps > 0).double().mean()))

    def test_supervised_loss_is_the_mean_over_response_tokens(self, tiny: Path, tmp_path: Path):
        pairs = [replace(pair, rejected="") for pair in pairs_of_topics(6)]
        settings = quick(loss="sft", training_batch_size=6, training_epochs=1)
        report = train(tiny, pairs, tmp_path / "a", settings=settings)
        texts = [pair.chosen for pair in pairs]
        total = response_log_probabilities(tiny, None, [pair.prompt for pair in pairs], texts).sum()
        expected = -total / sum(lengths(tiny, texts))
        assert report.losses == (pytest.approx(expected, rel=1e-5),)
        assert report.margin is None
        assert report.accuracy is None

    @pytest.mark.parametrize("loss", ["dpo", "sft"])
    def test_memory_does_not_change_the_result(self, tiny: Path, tmp_path: Path, loss: Any):
        """4 pairs of different lengths at once; then one by one, activations recomputed."""
        settings = quick(loss=loss)
        pairs = pairs_of_topics(4)
        whole = train(tiny, pairs, tmp_path / "a", settings=settings)
        little = replace(settings, training_micro_batch_size=1, gradient_checkpointing=True)
        pieces = train(tiny, pairs, tmp_path / "b", settings=little)
        assert pieces.losses == pytest.approx(whole.losses, rel=1e-5)
        assert distance(tmp_path / "a", tmp_path / "b") < 1e-4


def test_a_reference_is_the_base_or_the_adapter_the_round_began_with(
    tiny: Path, first: Path, tmp_path: Path
):
    pairs = pairs_of_topics(4)
    settings = quick(reference="previous", training_epochs=1)
    report = train(tiny, pairs, tmp_path / "previous", adapter=first, settings=settings)
    assert report.losses[0] == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_the_margin_rises_on_held_out_pairs(tiny: Path, learned: Any, loss: str):
    """After one round on hand-made preferences, on pairs never seen."""
    held_out = pairs_of_topics(12, first=600)
    adapter, report = learned[loss]
    gain = scores(tiny, adapter, held_out) - scores(tiny, None, held_out)
    margins = gain[:, 0] - gain[:, 1]
    assert (margins > 0).mean() >= 0.9
    assert margins.mean() > 1.0
    assert len(report.losses) == 12
    assert report.accuracy > 0.9


class TestPairs:
    def test_no_pairs_give_the_adapter_back(self, tiny: Path, first: Path, tmp_path: Path):
        report = train(tiny, [], tmp_path / "a", adapter=first)
        assert report.losses == ()
        assert adapter_digest(tmp_path / "a") == adapter_digest(first)

    @pytest.mark.parametrize("loss", ["dpo", "sft"])
    def test_too_long_ones_are_cut_or_left_out(self, tiny: Path, tmp_path: Path, loss: Any):
        pairs = pairs_of_topics(5)
        pairs[1] = replace(pairs[1], chosen="law " * 200)
        pairs[3] = replace(pairs[3], prompt="sea " * 200)
        settings = quick(loss=loss, training_batch_size=1, training_epochs=1)
        report = train(tiny, pairs, tmp_path / "a", settings=settings)
        assert len(report.losses) == 4
        with pytest.raises(ConfigError, match="max_tokens is 20 and the model takes 128"):
            train(tiny, pairs, tmp_path / "b", settings=quick(loss=loss, max_tokens=20))
        assert not (tmp_path / "b").exists()


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

    def test_a_damaged_one_is_refused(self, tiny: Path, first: Path, tmp_path: Path):
        broken = tmp_path / "broken"
        shutil.copytree(first, broken)
        (broken / "adapter_model.safetensors").write_bytes(b"torn")
        for reference in ("base", "previous"):
            with pytest.raises(ModelError, match="broken cannot be loaded onto the model"):
                train(
                    tiny,
                    pairs_of_topics(4),
                    tmp_path / "a",
                    adapter=broken,
                    settings=quick(reference=reference),
                )
        with pytest.raises(ModelError, match=r"no folder with an adapter_config\.json"):
            train(tiny, pairs_of_topics(4), tmp_path / "a", adapter=tmp_path / "nothing")


class TestFailures:
    def test_a_loss_that_is_no_number(self, tiny: Path, first: Path, tmp_path: Path):
        before, settings = adapter_digest(first), quick(learning_rate=1e30)
        with pytest.raises(TrainingError, match="no longer finite: lower learning_rate"):
            train(tiny, pairs_of_topics(8), tmp_path / "a", adapter=first, settings=settings)
        assert list(tmp_path.iterdir()) == []
        assert adapter_digest(first) == before

    def test_too_little_memory_is_one_sentence(self, tiny: Path, tmp_path: Path):
        def run_out(*_: int) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

        with pytest.raises(TrainingError, match="lower training_micro_batch_size = 2"):
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
def progress(done, total):
    if done == 5:
        os.kill(os.getpid(), signal.SIGKILL)
train(model, pairs_of_topics(10), out / "a", progress=progress)
"""


def test_a_killed_process_is_gone_on_with_and_says_nothing(tiny: Path, tmp_path: Path):
    """In a bare environment: no offline switch, empty home, temporary and working folders."""
    home, temporary, work, out = others = [tmp_path / name for name in ("h", "t", "w", "out")]
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
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert (ended.stdout, ended.stderr) == ("", "")
    assert not [path for place in others[:-1] for path in place.rglob("*") if path.is_file()]
    names = sorted(path.name for path in out.iterdir())
    assert names == ["a.partial", "ipo", "sft", "whole"]
    # What six steps come to: AdamW with a constant rate, dropout off, this order of the pairs.
    whole = json.loads((out / "whole" / "training.json").read_text())["report"]["losses"]
    known = [0.6931472, 0.6934956, 0.6620029, 0.5420759, 0.523299, 0.5408447]
    assert whole == pytest.approx(known, rel=1e-3)
    # A checkpoint that is torn is passed over.
    last = sorted((out / "a.partial").glob("checkpoint-*"))[-1]
    assert last.name == "checkpoint-4"
    (last / "complete").unlink()
    (last / "optimizer.pt").write_bytes(b"torn")
    steps: list[int] = []
    train(tiny, pairs_of_topics(10), out / "a", progress=lambda done, total: steps.append(done))
    assert steps == [4, 5, 6]
    assert distance(out / "a", out / "whole") < 1e-5


def test_a_training_that_was_ended_ends_at_the_same_weights(
    tiny: Path, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(preference, "CHECKPOINT_SECONDS", 0.0)
    pairs, output = pairs_of_topics(10), tmp_path / "a"
    settings = quick(reference="previous", loss="ipo", learning_rate_schedule="cosine")
    how: dict[str, Any] = {"adapter": first, "settings": settings}
    whole = train(tiny, pairs, tmp_path / "whole", **how)

    def kill(done: int, total: int) -> None:
        if done == 5:  # in the second epoch
            raise Killed

    with pytest.raises(Killed):
        train(tiny, pairs, output, progress=kill, **how)
    assert not output.exists()
    steps: list[int] = []
    report = train(tiny, pairs, output, progress=lambda done, total: steps.append(done), **how)
    assert steps == [5, 6]
    assert distance(output, tmp_path / "whole") < 1e-5
    assert report.losses == pytest.approx(whole.losses, rel=1e-5)
    assert report.margin == pytest.approx(whole.margin, rel=1e-3, abs=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "whole"]
    steps.clear()
    train(
        tiny, pairs, output, progress=lambda done, _: steps.append(done), **{**how, "adapter": None}
    )
    assert steps == [1, 2, 3, 4, 5, 6]  # of another adapter: from the start
