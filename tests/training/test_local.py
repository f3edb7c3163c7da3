"""Local training: plain gradient descent, and nothing of one user in the next one's update."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flower_privsyn.errors import ConfigError
from flower_privsyn.models.bias import LogitBias, bigram_table
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.training.local import LocalModel
from tests.support.parameters import named

STEP = {"learning_rate": 0.5, "epochs": 1, "batch_size": 100}


@pytest.fixture(params=["llama", "gpt2", "lstm"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def local(folder: Path, **changes: Any) -> LocalModel:
    return LocalModel(TrainableModel(name=str(folder), **changes), device="cpu")


def reference(
    folder: Path, batches: list[list[list[int]]], *, learning_rate: float
) -> dict[str, torch.Tensor]:
    """Where torch's own optimiser takes Transformers' own model and loss, in float64."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).double()
    start = {name: value.clone() for name, value in model.named_parameters()}
    model.eval()  # no dropout
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for batch in batches:
        width = max(map(len, batch))
        tokens = torch.full((len(batch), width), 3)
        labels = torch.full((len(batch), width), -100)
        for row, sample in enumerate(batch):
            tokens[row, : len(sample)] = labels[row, : len(sample)] = torch.tensor(sample)
        mask = (labels != -100).long()
        optimiser.zero_grad()
        model(input_ids=tokens, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
        optimiser.step()
    return {name: (value - start[name]).detach() for name, value in model.named_parameters()}


def assert_same(
    found: dict[str, np.ndarray], exact: dict[str, torch.Tensor], *, steps: int
) -> None:
    """Updates are those of float64, but for float32's rounding.

    A sum of n products is off by n x 2^-24 of its size at most, in whatever order a processor adds
    them up; the longest sum of these models goes over their tokens. A batch that is left out, or
    taken in another order, is off by a hundredth.
    """
    assert set(found) == set(exact)
    longest = max(max(value.shape) for value in exact.values())
    size = sum(float((value**2).sum()) for value in exact.values()) ** 0.5
    assert size > 0.05
    for name, value in exact.items():
        off = float(np.linalg.norm(found[name] - value.numpy()))
        assert off < steps * longest * 2.0**-24 * size, name


class TestUpdate:
    def test_one_step_is_a_step_of_gradient_descent(self, folder: Path, texts: list[str]) -> None:
        model = local(folder)
        samples = model.encode(texts[:7])
        update = model.update(samples, **STEP)
        assert update is not None
        exact = reference(folder, [samples], learning_rate=0.5)
        assert_same(named(model, update), exact, steps=1)

    def test_epochs_batches_and_their_order(self, folder: Path, texts: list[str]) -> None:
        model = local(folder)
        samples = model.encode(texts[:5])
        order = np.random.default_rng([4, 2])
        batches = []
        for _ in range(2):
            ranks = order.permutation(5)
            batches += [[samples[rank] for rank in ranks[i : i + 2]] for i in (0, 2, 4)]
        update = model.update(samples, learning_rate=0.2, epochs=2, batch_size=2, seed=[4, 2])
        assert update is not None
        exact = reference(folder, batches, learning_rate=0.2)
        assert_same(named(model, update), exact, steps=6)
        cut = model.update(
            samples, learning_rate=0.2, epochs=2, batch_size=2, max_steps=4, seed=[4, 2]
        )
        assert cut is not None
        exact = reference(folder, batches[:4], learning_rate=0.2)
        assert_same(named(model, cut), exact, steps=4)

    def test_does_not_depend_on_who_was_trained_before(
        self, folder: Path, texts: list[str]
    ) -> None:
        model = local(folder)
        mine = model.encode(texts[:3])
        alone = model.update(mine, **STEP)
        for rate in (1.0, 1e30):  # the second one diverges
            other = model.update(
                model.encode(texts[10:20]), learning_rate=rate, epochs=2, batch_size=3
            )
            assert other is not None
            assert np.isfinite(other).all() == (rate == 1.0)
            assert np.array_equal(model.update(mine, **STEP), alone)  # type: ignore[arg-type]

    def test_a_step_that_fails_leaves_nothing_to_the_next_user(
        self, llama: Path, texts: list[str]
    ) -> None:
        model = local(llama)
        mine = model.encode(texts[:3])
        alone = model.update(mine, **STEP)
        weights = list(model._named.values())

        def fail(gradient: torch.Tensor) -> None:
            raise MemoryError(f"{gradient.numel()} numbers")

        handle = weights[0].register_hook(fail)  # the embeddings' gradient is the last one made
        with pytest.raises(MemoryError, match="numbers"):
            model.update(model.encode(texts[10:20]), **STEP)
        handle.remove()
        assert any(one.grad is not None for one in weights)
        assert np.array_equal(model.update(mine, **STEP), alone)  # type: ignore[arg-type]
        assert all(one.grad is None for one in weights)

    def test_buffers_and_random_numbers_begin_anew_with_every_user(
        self, llama: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from flower_privsyn.models.pretrained import load_pretrained
        from flower_privsyn.training import local as module

        class Changing(torch.nn.Module):
            """Running statistics, random numbers, and another tensor in a buffer's place."""

            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("seen", torch.zeros((), dtype=torch.long))
                self.register_buffer("mean", torch.zeros(()))
                self.register_buffer("level", torch.ones(()))

            def forward(self, hidden: torch.Tensor) -> torch.Tensor:
                self.seen += 1
                self.mean.lerp_(hidden.detach().mean(), 0.5)
                self.level = self.level * 0.5
                return hidden * (1 + self.mean + self.level * torch.rand(())) / (1 + self.seen)

        def load(*args: Any, **kwargs: Any) -> Any:
            model, tokenizer = load_pretrained(*args, **kwargs)
            model.model.norm = torch.nn.Sequential(model.model.norm, Changing())
            return model, tokenizer

        monkeypatch.setattr(module, "load_pretrained", load)
        model = local(llama)
        assert not any(name.endswith(("seen", "mean", "level")) for name in model.shapes)
        mine = model.encode(texts[:3])
        alone = model.update(mine, **STEP)
        state = torch.get_rng_state()
        assert np.array_equal(model.update(mine, **STEP), alone)  # type: ignore[arg-type]
        assert torch.equal(torch.get_rng_state(), state)  # other people's numbers stay theirs
        model.update(model.encode(texts[10:20]), learning_rate=0.1, epochs=2, batch_size=3)
        torch.rand(7)
        assert np.array_equal(model.update(mine, **STEP), alone)  # type: ignore[arg-type]
        other = model.update(mine, **STEP, seed=[1])
        assert not np.array_equal(other, alone)  # type: ignore[arg-type]

    def test_nothing_to_predict_is_no_update(self, folder: Path) -> None:
        model = local(folder)
        assert model.update([], **STEP) is None
        assert model.update([[1]], **STEP) is None
        assert model.update(model.encode([""]), **STEP) is None
        assert model.encode([]) == []

    def test_starts_from_the_parameters_it_is_given(self, llama: Path, texts: list[str]) -> None:
        model = local(llama)
        samples = model.encode(texts[:3])
        public = model.parameters
        first = model.update(samples, **STEP)
        model.start_from(public + first)
        second = model.update(samples, **STEP)
        assert not np.array_equal(first, second)  # type: ignore[arg-type]
        assert np.array_equal(model.parameters, public + first)
        model.start_from(public)
        assert np.array_equal(model.update(samples, **STEP), first)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must have shape"):
            model.start_from(public[:-1])

    def test_bfloat16_is_close_to_float32(self, llama: Path, texts: list[str]) -> None:
        updates = []
        for precision in ("float32", "bfloat16"):
            model = local(llama, precision=precision)
            updates.append(model.update(model.encode(texts[:8]), **STEP))
            assert updates[-1].dtype == np.float32
        exact, rounded = (update.astype(np.float64) for update in updates)
        cosine = exact @ rounded / np.linalg.norm(exact) / np.linalg.norm(rounded)
        assert 0.99 < cosine < 1 - 1e-7

    def test_samples_begin_with_the_first_token_and_fit_the_model(self, llama: Path) -> None:
        model = local(llama)
        begin = model.tokenizer.bos_token_id
        short, long = model.encode(["one river", "one river " * 300])
        assert short[0] == long[0] == begin
        assert model.max_tokens == 255
        assert len(long) == 256
        assert model.tokenizer.decode(short[1:]) == "one river"

    def test_a_token_that_the_model_has_no_row_for_is_left_out(self, llama: Path) -> None:
        """On a GPU one user's would end the training of all."""
        model = LocalModel(TrainableModel(name=str(llama)))
        whole, other = model.encode(["one river", "one <added> river"])
        model.tokenizer.add_tokens(["<added>"])
        rows = len(model._model.get_input_embeddings().weight)
        assert len(model.tokenizer) > rows
        assert model.encode(["one river"]) == [whole]
        assert max(other) < rows
        (found,) = model.encode(["one <added> river"])
        assert max(found) < rows


class TestWhatIsTrained:
    def test_adapters(self, llama: Path, texts: list[str]) -> None:
        before = torch.random.get_rng_state()
        model, again = (local(llama, trainable="lora", lora_rank=2) for _ in range(2))
        assert torch.equal(torch.random.get_rng_state(), before)
        assert np.array_equal(model.parameters, again.parameters)
        assert all("lora_" in name for name in model.shapes)
        assert 0 < model.dimension < 0.05 * local(llama).dimension
        update = model.update(model.encode(texts[:4]), **STEP)
        assert update is not None
        # B is zero at first, so that only B moves in the first step.
        moved = {name for name, value in named(model, update).items() if value.any()}
        assert moved == {name for name in model.shapes if "lora_B" in name}

    def test_layers(self, llama: Path, texts: list[str]) -> None:
        model = local(llama, trainable="model.layers.1.*, model.norm.weight")
        assert all(
            name.startswith("model.layers.1.") or name == "model.norm.weight"
            for name in model.shapes
        )
        whole = local(llama)
        samples = model.encode(texts[:4])
        some, everything = model.update(samples, **STEP), whole.update(samples, **STEP)
        assert some is not None
        assert everything is not None
        expected = named(whole, everything)
        for name, value in named(model, some).items():
            assert np.abs(value - expected[name]).max() < 1e-6

    @pytest.mark.parametrize("trained", [{"trainable": "lora"}, {"trainable": "lm_head.*"}])
    def test_on_another_base(
        self, llama: Path, tmp_path: Path, texts: list[str], trained: dict[str, Any]
    ) -> None:
        """Updates are those of a model that was loaded with that base, and its own come back."""
        whole = local(llama)
        generator = np.random.default_rng(0)
        moved = whole.parameters + generator.normal(0, 0.02, whole.dimension).astype(np.float32)
        whole.save(tmp_path / "moved", moved)
        elsewhere, model = local(tmp_path / "moved", **trained), local(llama, **trained)
        own, fingerprint = model.base, model.fingerprint
        samples = model.encode(texts[:2])

        def update(of: LocalModel) -> np.ndarray:
            of.start_from(elsewhere.parameters)
            found = of.update(samples, **STEP)
            assert found is not None
            return found

        before = update(model)
        model.set_base(elsewhere.base)
        assert np.array_equal(update(model), update(elsewhere))
        assert not np.array_equal(update(model), before)
        assert model.fingerprint == fingerprint  # of what it was loaded with
        model.set_base(None)
        assert np.array_equal(model.base, own)
        assert np.array_equal(update(model), before)
        with pytest.raises(ValueError, match="base must have shape"):
            model.set_base(own[:-1])

    @pytest.mark.parametrize("pairs", [False, True])
    def test_under_a_bias_of_the_logits(
        self, folder: Path, texts: list[str], tmp_path: Path, pairs: bool
    ) -> None:
        """What is trained is what Transformers trains inside the model with the bias around it."""
        from flower_privsyn.training.bias import load_plain, save_biased
        from flower_privsyn.training.tokens import first_token

        model, random = local(folder), np.random.default_rng(4)
        size = int(load_plain(folder)[0].get_output_embeddings().weight.shape[0])
        of_pairs = None
        if pairs:
            first, second = divmod(random.choice(size**2, 500, replace=False), size)
            of_pairs = bigram_table(first, second, random.normal(size=500), vocabulary=size)
        bias = LogitBias(tokens=random.normal(size=size).astype(np.float32), bigrams=of_pairs)
        bias = bias.for_model(size, first_token=first_token(model.tokenizer))
        save_biased(folder, tmp_path / "biased", bias)
        rows = model.encode(texts[:6])
        plain = model.update(rows, **STEP)
        model.set_bias(LogitBias.of_arrays(bias.arrays()))
        update = model.update(rows, **STEP)
        assert update is not None
        assert plain is not None
        expected = reference(tmp_path / "biased", [rows], learning_rate=0.5)
        inside = {name.removeprefix("base."): value for name, value in expected.items()}
        assert_same(named(model, update), inside, steps=1)
        assert np.abs(update - plain).max() > 1e-3
        model.set_bias(None)
        again = model.update(rows, **STEP)
        assert np.array_equal(again, plain)

    def test_a_pattern_that_names_nothing_is_refused(self, llama: Path) -> None:
        with pytest.raises(ConfigError, match=r"named 'layers\.7\.\*'"):
            local(llama, trainable="layers.7.*")


class TestFingerprint:
    def test_is_of_what_an_update_depends_on(self, llama: Path, gpt2: Path, tmp_path: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        copy, other = tmp_path / "copy", tmp_path / "other"
        shutil.copytree(llama, copy)
        model = AutoModelForCausalLM.from_pretrained(llama, torch_dtype=torch.float32)
        with torch.no_grad():
            model.model.norm.weight += 0.5
        model.save_pretrained(other)
        AutoTokenizer.from_pretrained(llama).save_pretrained(other)
        mine = local(llama)
        assert mine.fingerprint == local(llama).fingerprint == local(copy).fingerprint
        # The broadcast brings the trained values, and only those.
        assert local(other).fingerprint == mine.fingerprint
        lora = local(llama, trainable="lora")
        assert local(copy, trainable="lora").fingerprint == lora.fingerprint
        assert local(other, trainable="lora").fingerprint != lora.fingerprint
        different = {
            mine.fingerprint,
            lora.fingerprint,
            local(llama, trainable="lora", lora_alpha=16).fingerprint,
            local(llama, trainable="lm_head.*,model.layers.*").fingerprint,
            local(llama, precision="bfloat16").fingerprint,
            local(gpt2).fingerprint,
        }
        assert len(different) == 6

    def test_a_changed_tokenizer_shows(self, llama: Path, tmp_path: Path) -> None:
        changed = tmp_path / "changed"
        shutil.copytree(llama, changed)
        file = changed / "tokenizer.json"
        tokenizer = json.loads(file.read_text())
        tokenizer["model"]["merges"].pop()
        file.write_text(json.dumps(tokenizer))
        assert local(changed).fingerprint != local(llama).fingerprint


class TestSaving:
    @pytest.mark.parametrize("trainable", ["full", "lora"])
    def test_the_folder_is_the_trained_model(
        self, folder: Path, texts: list[str], tmp_path: Path, trainable: str
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        def loss(model: LocalModel) -> float:
            with torch.no_grad():
                model._weights.copy_(model._start)
                return float(model._loss([(sample, 0) for sample in samples]))

        model = local(folder, trainable=trainable)
        samples = model.encode(texts[:6])
        public = loss(model)
        noise = np.random.default_rng(0).standard_normal(model.dimension)
        scale = 2.0 if trainable == "lora" else 0.2
        trained = (model.parameters + scale * noise).astype(np.float32)
        model.start_from(trained)
        expected = loss(model)
        assert abs(expected - public) > 0.002
        model.save(tmp_path / "final", trained)
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / "final", torch_dtype=torch.float32)
        assert type(saved).__name__ == type(AutoModelForCausalLM.from_pretrained(folder)).__name__
        again = LocalModel(TrainableModel(name=str(tmp_path / "final")), device="cpu")
        assert loss(again) == pytest.approx(expected, abs=1e-4)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "final")
        assert tokenizer.get_vocab() == model.tokenizer.get_vocab()
        assert not [path for path in tmp_path.iterdir() if path.name != "final"]
