"""What a round of preference training does, on models that really learn."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation.transformers_backend import TransformersGenerator
from flower_privsyn.models.adapters import adapter_digest
from flower_privsyn.training import PreferencePair, TrainingReport, preference
from tests.support.preferences import (
    distance,
    pairs_of_topics,
    quick,
    response_log_probabilities,
    train,
    weights,
)


def scores(model: Path | str, adapter: Path | None, pairs: list[PreferencePair]):
    """(n, 2): log-probabilities of the chosen and the rejected responses with their ends."""
    prompts = [pair.prompt for pair in pairs]
    return np.stack(
        [
            response_log_probabilities(model, adapter, prompts, responses)
            for responses in (
                [pair.chosen + pair.chosen_end for pair in pairs],
                [pair.rejected + pair.rejected_end for pair in pairs],
            )
        ],
        axis=1,
    )


@pytest.fixture(scope="module")
def learned(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, TrainingReport]]:
    """A first round of each loss: its adapter, and what was said of it."""
    folder = tmp_path_factory.mktemp("learned")
    losses: tuple[Literal["dpo", "ipo", "sft"], ...] = ("dpo", "ipo", "sft")
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
        pairs = pairs_of_topics(6)
        report = train(
            tiny,
            pairs,
            tmp_path / "a",
            adapter=first,
            settings=quick(loss=loss, beta=beta, training_batch_size=6, training_epochs=1),
        )
        ratios = torch.from_numpy(scores(tiny, first, pairs) - scores(tiny, None, pairs))
        if loss == "dpo":
            losses = -torch.nn.functional.logsigmoid(beta * (ratios[:, 0] - ratios[:, 1]))
        else:
            generator = TransformersGenerator(tiny, device="cpu", dtype="float32")
            lengths = torch.tensor(
                [
                    [
                        len(generator._tokenizer(text)["input_ids"])
                        for text in (
                            pair.chosen + pair.chosen_end,
                            pair.rejected + pair.rejected_end,
                        )
                    ]
                    for pair in pairs
                ]
            )
            per_token = ratios / lengths
            losses = (per_token[:, 0] - per_token[:, 1] - 1 / (2 * beta)) ** 2
        assert float((ratios[:, 0] - ratios[:, 1]).abs().max()) > 0.1  # there is something to see
        assert report.losses[0] == pytest.approx(float(losses.mean()), rel=1e-4)
        margins = beta * (ratios[:, 0] - ratios[:, 1])
        assert report.margin == pytest.approx(float(margins.mean()), rel=1e-3, abs=1e-4)
        assert report.accuracy == pytest.approx(float((margins > 0).double().mean()))

    def test_supervised_loss_is_the_mean_over_response_tokens(self, tiny: Path, tmp_path: Path):
        pairs = [replace(pair, rejected="", rejected_end="") for pair in pairs_of_topics(6)]
        report = train(
            tiny,
            pairs,
            tmp_path / "a",
            settings=quick(loss="sft", training_batch_size=6, training_epochs=1),
        )
        generator = TransformersGenerator(tiny, device="cpu", dtype="float32")
        texts = [pair.chosen + pair.chosen_end for pair in pairs]
        count = sum(len(row) for row in generator._tokenizer(texts)["input_ids"])
        total = response_log_probabilities(tiny, None, [pair.prompt for pair in pairs], texts).sum()
        assert report.losses == (pytest.approx(-total / count, rel=1e-5),)
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
    settings = quick(reference="previous")
    report = train(tiny, pairs, tmp_path / "previous", adapter=first, settings=settings)
    assert report.losses[0] == pytest.approx(math.log(2), abs=1e-6)
    base = train(tiny, pairs, tmp_path / "base", adapter=first)
    assert abs(base.losses[0] - math.log(2)) > 1e-3
    assert distance(tmp_path / "base", tmp_path / "previous") > 1e-4


class TestLearning:
    @pytest.mark.parametrize("loss", ["dpo", "ipo"])
    def test_the_margin_rises_on_held_out_pairs(self, tiny: Path, learned: Any, loss: str):
        """After one round on hand-made preferences, on pairs never seen."""
        held_out = pairs_of_topics(12, first=600)
        adapter, report = learned[loss]
        gain = scores(tiny, adapter, held_out) - scores(tiny, None, held_out)
        margins = gain[:, 0] - gain[:, 1]
        assert (margins > 0).mean() >= 0.9
        assert margins.mean() > 1.0
        assert report.steps == 12
        assert report.accuracy > 0.9

    def test_other_architectures_learn_too(self, gpt2: Path, tmp_path: Path):
        """GPT-2: learned positions, fused projections stored the other way round."""
        pairs = [
            PreferencePair(
                prompt="The river:\n", chosen=f"music {n} street", rejected=f"winter {n} train"
            )
            for n in range(12)
        ]
        train(gpt2, pairs[:8], tmp_path / "a")
        gain = scores(gpt2, tmp_path / "a", pairs[8:]) - scores(gpt2, None, pairs[8:])
        assert (gain[:, 0] - gain[:, 1]).mean() > 0.5

    def test_supervised_training_raises_the_chosen_responses(self, tiny: Path, learned: Any):
        held_out = pairs_of_topics(12, first=600)
        gain = scores(tiny, learned["sft"][0], held_out) - scores(tiny, None, held_out)
        assert (gain[:, 0] > 1.0).all()
        assert gain[:, 0].mean() > gain[:, 1].mean()

    def test_the_end_is_learned_when_it_is_given(self, tiny: Path, tmp_path: Path, learned: Any):
        bare = [replace(pair, chosen_end="", rejected_end="") for pair in pairs_of_topics(24)]
        held_out = pairs_of_topics(8, first=600)

        def end_given_text(adapter: Path) -> float:
            prompts = [pair.prompt for pair in held_out]
            texts = [pair.chosen for pair in held_out]
            with_end = [pair.chosen + pair.chosen_end for pair in held_out]
            whole = response_log_probabilities(tiny, adapter, prompts, with_end)
            return float((whole - response_log_probabilities(tiny, adapter, prompts, texts)).mean())

        train(tiny, bare, tmp_path / "without", settings=quick(loss="sft"))
        assert end_given_text(learned["sft"][0]) > end_given_text(tmp_path / "without") + 2

    def test_the_models_own_weights_never_change(
        self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        from transformers import AutoModelForCausalLM

        before = AutoModelForCausalLM.from_pretrained(tiny).state_dict()
        after: dict[str, torch.Tensor] = {}
        write = preference._write

        def note(model: Any, folder: Path, name: str) -> None:
            after.update(model.get_base_model().state_dict())
            write(model, folder, name)

        monkeypatch.setattr(preference, "_write", note)
        train(tiny, pairs_of_topics(4), tmp_path / "a", settings=quick(training_epochs=1))
        for name, value in before.items():
            found = after.get(name, after.get(name.replace(".weight", ".base_layer.weight")))
            assert found is not None
            assert torch.equal(found, value)

    @pytest.mark.slow  # where the processor multiplies bfloat16 slowly
    def test_bfloat16_trains_too_and_leaves_float32_as_it_was(self, tiny: Path, tmp_path: Path):
        train(tiny, pairs_of_topics(8), tmp_path / "a")
        low = train(
            tiny, pairs_of_topics(8), tmp_path / "low", settings=quick(precision="bfloat16")
        )
        train(tiny, pairs_of_topics(8), tmp_path / "again", settings=quick())
        assert low.losses[0] == pytest.approx(math.log(2), abs=1e-6)
        assert low.losses[-1] < low.losses[0]
        assert {value.dtype for value in weights(tmp_path / "low").values()} == {torch.float32}
        assert distance(tmp_path / "a", tmp_path / "again") == 0


class TestPairs:
    def test_no_pairs_give_the_adapter_back(self, tiny: Path, first: Path, tmp_path: Path):
        report = train(tiny, [], tmp_path / "a", adapter=first)
        assert (report.steps, report.pairs, report.losses) == (0, 0, ())
        assert adapter_digest(tmp_path / "a") == adapter_digest(first)

    def test_too_long_pairs_are_named(self, tiny: Path, tmp_path: Path):
        pairs = pairs_of_topics(5)
        pairs[1] = replace(pairs[1], chosen="law " * 200)
        pairs[3] = replace(pairs[3], rejected="sea " * 200)
        passed: list[int] = []
        report = train(tiny, pairs, tmp_path / "a", progress=passed.append)
        assert report.too_long == (1, 3)
        assert report.pairs == 3
        assert sum(passed) == 2 * 3
        # An unread rejected response does not make a pair too long.
        assert train(tiny, pairs, tmp_path / "c", settings=quick(loss="sft")).too_long == (1,)

    def test_max_tokens_may_be_less_than_the_context(self, tiny: Path, tmp_path: Path):
        with pytest.raises(ConfigError, match=r"none of the 3 preference pairs fits, the shortest"):
            train(tiny, pairs_of_topics(3), tmp_path / "a", settings=quick(max_tokens=20))
        assert not (tmp_path / "a").exists()
