"""DP-Adam at record level: gradients by record, Poisson batches, noise, and what it costs."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from flower_privsyn.errors import ConfigError, ModelError
from flower_privsyn.privacy import InsecureRandom, SecureRandom
from flower_privsyn.queries import TrainableModel
from flower_privsyn.training.dp_adam import DPAdam, Example, RecordModel, poisson_batch

SMALL = DPAdam(steps=3, batch_size=4, clip_norm=0.5, warmup_steps=1, micro_batch_size=3)


def examples_of(model: RecordModel, texts: list[str]) -> list[Example]:
    """Texts of several lengths, some after a condition."""
    rows = model.encode(texts)
    return [
        Example(tokens=tuple(row), given=1 if number % 2 else min(4, len(row) - 1))
        for number, row in enumerate(rows)
    ]


@pytest.fixture(scope="module", params=["full", "lora"])
def model(request: pytest.FixtureRequest, llama: Path) -> RecordModel:
    return RecordModel(TrainableModel(name=str(llama), trainable=request.param))


class TestGradients:
    def test_they_are_those_of_records_one_by_one(
        self, model: RecordModel, texts: list[str]
    ) -> None:
        examples = examples_of(model, texts[:7])
        rng = np.random.default_rng(0)
        moved = model.parameters + rng.normal(0, 0.05, model.dimension).astype(np.float32)
        model.start_from(moved)  # adapters begin with zeros, whose gradients are zero
        model._begin_anew()
        together = model.gradients(examples)
        alone = np.stack([model.alone(example) for example in examples])
        assert together.shape == (7, model.dimension)
        lengths = np.linalg.norm(alone, axis=1)
        assert lengths.min() > 0
        assert (np.linalg.norm(together - alone, axis=1) / lengths).max() < 1e-5
        model.check_gradients(examples)

    def test_the_sum_is_a_loop_over_clipped_records(
        self, model: RecordModel, texts: list[str]
    ) -> None:
        examples = examples_of(model, texts[:7])
        expected = np.zeros(model.dimension)
        for example in examples:
            gradient = model.alone(example).astype(np.float64)
            expected += gradient * min(1.0, SMALL.clip_norm / np.linalg.norm(gradient))
        query = SMALL.question()
        found = model.clipped_sum(examples, query, SMALL) * query.unit
        assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)
        assert not model.clipped_sum([], query, SMALL).any()
        nothing = Example(tokens=())
        again = model.clipped_sum([nothing, *examples, nothing], query, SMALL)
        assert np.array_equal(again * query.unit, found)

    def test_no_record_moves_the_sum_by_more_than_the_clip_norm(
        self, model: RecordModel, texts: list[str]
    ) -> None:
        """The other three are computed in another batch, and off by float32's rounding of it."""
        examples = examples_of(model, texts[:4])
        query = DPAdam(clip_norm=1e-3).question()
        longest = max(max(shape) for shape in model.shapes.values())
        whole = model.clipped_sum(examples, query, SMALL)
        for place in range(4):
            rest = examples[:place] + examples[place + 1 :]
            moved = np.linalg.norm(whole - model.clipped_sum(rest, query, SMALL))
            assert 0.999 <= moved / query.clip_norm <= 1 + 3 * longest * 2.0**-24

    def test_other_gradients_are_refused(
        self, model: RecordModel, texts: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right = model.gradients
        other = "lora" if model.spec.trainable == "full" else "full"
        monkeypatch.setattr(model, "gradients", lambda rows: 1.01 * right(rows))
        with pytest.raises(ModelError, match=f'its records: train .* \\(trainable = "{other}"\\)'):
            model.check_gradients(examples_of(model, texts[:3]))

    def test_wrong_gradients_beside_zeros_are_refused(
        self, llama: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What one half of new adapters learns is zero until the other half is not."""
        model = RecordModel(TrainableModel(name=str(llama), trainable="lora"))
        before, examples = model.parameters, examples_of(model, texts[:3])
        wrong = np.concatenate(
            [
                np.full(math.prod(shape), 2.0 if "lora_A" in name else 1.0, dtype=np.float32)
                for name, shape in model.shapes.items()
            ]
        )
        right = model.gradients
        assert not right(examples)[:, wrong == 2.0].any()
        monkeypatch.setattr(model, "gradients", lambda rows: wrong * right(rows))
        with pytest.raises(ModelError, match="Opacus makes other gradients"):
            model.check_gradients(examples)
        monkeypatch.setattr(model, "gradients", lambda rows: np.nan * right(rows))
        with pytest.raises(ModelError, match="Opacus makes other gradients"):
            model.check_gradients(examples)
        # And nothing has moved.
        assert np.array_equal(model.parameters, before)
        assert np.array_equal(model._weights.numpy(), before)

    def test_positions_that_are_looked_up(self, gpt2: Path, texts: list[str]) -> None:
        """Without positions for each record Opacus fails on GPT-2."""
        model = RecordModel(TrainableModel(name=str(gpt2)))
        model.check_gradients(examples_of(model, texts[:3]))

    @pytest.mark.parametrize("kind", ["bart", "t5"])
    def test_adapters_of_an_encoder_decoder(
        self, kind: str, texts: list[str], request: pytest.FixtureRequest
    ) -> None:
        """Both halves padded, and a record after nothing but what its encoder ends with."""
        folder = str(request.getfixturevalue(kind))
        model = RecordModel(TrainableModel(name=folder, trainable="lora"))
        rng = np.random.default_rng(0)
        model.start_from(rng.normal(0, 0.1, model.dimension).astype(np.float32))
        model._begin_anew()
        examples = [
            Example(tokens=tuple(row), given=(3 * place) % 7)
            for place, row in enumerate(model.encode(texts[:5]))
        ]
        together = model.gradients(examples)
        alone = np.stack([model.alone(example) for example in examples])
        lengths = np.linalg.norm(alone, axis=1)
        assert lengths.min() > 0
        assert (np.linalg.norm(together - alone, axis=1) / lengths).max() < 1e-5
        model.check_gradients(examples[1:])

    @pytest.mark.parametrize("kind", ["bart", "t5"])
    def test_all_parameters_of_an_encoder_decoder_are_refused(
        self, kind: str, texts: list[str], request: pytest.FixtureRequest
    ) -> None:
        model = RecordModel(TrainableModel(name=str(request.getfixturevalue(kind))))
        with pytest.raises(ModelError, match=r'train adapters \(trainable = "lora"\), or another'):
            model.check_gradients(examples_of(model, texts[:3]))

    def test_a_layer_of_which_opacus_knows_nothing(self, lstm: Path, texts: list[str]) -> None:
        model = RecordModel(TrainableModel(name=str(lstm)))
        with pytest.raises(ModelError, match="Opacus makes no gradients by record"):
            model.check_gradients(examples_of(model, texts[:3]))


class TestBatches:
    def test_they_are_poisson_draws(self) -> None:
        """Sizes of 4,000 batches against the binomial law, and every record equally often."""
        records, rate = 40, 0.2
        draws = [poisson_batch(records, rate=rate, random=SecureRandom()) for _ in range(4000)]
        sizes = Counter(len(draw) for draw in draws)
        cells = range(4, 13)
        seen = [sum(n for size, n in sizes.items() if size < 4)]
        seen += [sizes[size] for size in cells]
        seen.append(len(draws) - sum(seen))
        law = stats.binom(records, rate)
        wanted = [law.cdf(3), *(law.pmf(size) for size in cells), law.sf(12)]
        assert stats.chisquare(seen, np.array(wanted) * len(draws)).pvalue > 1e-6
        # Batches of one size, as a shuffled pass makes them, are seen at once.
        fixed = [0, *([0] * 4), len(draws), *([0] * 4), 0]
        assert stats.chisquare(fixed, np.array(wanted) * len(draws)).pvalue < 1e-12
        often = np.bincount(np.concatenate(draws), minlength=records)
        spread = ((often - 800.0) ** 2 / (4000 * rate * (1 - rate))).sum()
        assert 1e-6 < stats.chi2(records).sf(spread) < 1 - 1e-6
        for draw in draws[:50]:
            assert (np.diff(draw) > 0).all()

    def test_everybody_at_rate_one(self) -> None:
        assert poisson_batch(5, rate=1.0, random=InsecureRandom(0)).tolist() == [0, 1, 2, 3, 4]


class TestTraining:
    def test_without_noise_it_is_adam_on_clipped_sums(self, llama: Path, texts: list[str]) -> None:
        import torch

        ours = RecordModel(TrainableModel(name=str(llama)))
        examples = examples_of(ours, texts[:4])
        flat = torch.nn.Parameter(torch.from_numpy(ours.parameters))
        optimiser = torch.optim.AdamW([flat], lr=1e-3, weight_decay=0.1)
        reference = RecordModel(TrainableModel(name=str(llama)))
        for share in (1.0, 1.0, 0.5):  # one step of warm-up, and down
            reference.start_from(flat.detach().numpy())
            reference._begin_anew()
            total = np.zeros(ours.dimension)
            for example in examples:
                gradient = reference.alone(example).astype(np.float64)
                total += gradient * min(1.0, 0.5 / np.linalg.norm(gradient))
            flat.grad = torch.from_numpy((total / 4).astype(np.float32))
            optimiser.param_groups[0]["lr"] = 1e-3 * share
            optimiser.step()
        steps: list[int] = []
        ours.fit(examples, SMALL, noise_multiplier=0.0, progress=steps.append)
        assert steps == [1, 1, 1]
        moved = flat.detach().numpy() - RecordModel(TrainableModel(name=str(llama))).parameters
        assert np.linalg.norm(ours.parameters - flat.detach().numpy()) < 1e-3 * np.linalg.norm(
            moved
        )

    def test_the_noise_is_as_large_as_is_accounted(
        self, llama: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from flower_privsyn.privacy import GaussianMechanism

        model = RecordModel(TrainableModel(name=str(llama)))
        examples = examples_of(model, texts[:6])
        noises = []
        release = GaussianMechanism.release

        def seen(self, total, *, random):
            released = release(self, total, random=random)
            noises.append(released - total)
            return released

        monkeypatch.setattr(GaussianMechanism, "release", seen)
        model.fit(examples, SMALL, noise_multiplier=2.0, random=InsecureRandom(3))
        assert len(noises) == 3
        unit = SMALL.question().unit
        for noise in noises:
            # 50,000 numbers or more: four standard errors are 1.3 %.
            error = 4 / math.sqrt(2 * len(noise))
            assert np.std(noise * unit) == pytest.approx(2.0 * SMALL.clip_norm, rel=error)
        assert abs(np.corrcoef(noises[0], noises[1])[0, 1]) < 0.03

    def test_it_begins_where_no_interrupted_training_has_been(
        self, llama: Path, texts: list[str]
    ) -> None:
        """More steps would be in the parameters than were accounted for."""
        found = []
        for interrupted in (False, True):
            model = RecordModel(TrainableModel(name=str(llama)))
            examples = examples_of(model, texts[:4])

            def interrupt(step: int) -> None:
                raise KeyboardInterrupt

            if interrupted:
                with pytest.raises(KeyboardInterrupt):
                    model.fit(examples, SMALL, noise_multiplier=0.0, progress=interrupt)
            model.fit(examples, SMALL, noise_multiplier=0.0)
            found.append(model.parameters)
        assert np.array_equal(*found)

    def test_a_plan_keeps_its_budget_with_the_histogram_in_it(self) -> None:
        settings = DPAdam(steps=20, batch_size=1000)
        alone = settings.plan(1000, delta=1e-5, epsilon=2.0)
        shared = settings.plan(1000, delta=1e-5, epsilon=2.0, histogram_multiplier=10.0)
        for plan in (alone, shared):
            assert plan.epsilon() == pytest.approx(2.0, rel=1e-3)
        assert [phase.name for phase in shared.phases] == ["topics", "steps"]
        first, second = (plan.phases[-1].noise_multiplier or 0.0 for plan in (alone, shared))
        assert first < second
        assert settings.plan(1000, delta=1e-5, epsilon=math.inf).phases[0].noise_multiplier == 0
        with pytest.raises(ConfigError, match="is spent by the releases whose noise is settled"):
            settings.plan(1000, delta=1e-5, epsilon=0.1, histogram_multiplier=10.0)
