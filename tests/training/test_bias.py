"""How strong a bias is to be: the scores of all weights against models that hold them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from flower_privsyn.errors import ConfigError
from flower_privsyn.evaluation.language_model import evaluate_language_model
from flower_privsyn.models.bias import Bigrams, LogitBias
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.training.bias import save_biased, score_bias, unlearnt


def drawn(vocabulary: int) -> LogitBias:
    generator = np.random.default_rng(3)
    codes = generator.choice(vocabulary**2, 30_000, replace=False)
    return LogitBias(
        tokens=generator.standard_normal(vocabulary).astype(np.float32),
        bigrams=Bigrams.of_pairs(
            codes // vocabulary,
            codes % vocabulary,
            generator.standard_normal(len(codes)),
            vocabulary=vocabulary,
        ),
    )


@pytest.mark.parametrize("pairs", [True, False])
def test_every_pair_of_weights_is_the_evaluation_of_that_model(
    llama: Path, texts: list[str], tmp_path: Path, pairs: bool
) -> None:
    bias = drawn(len(AutoTokenizer.from_pretrained(llama)))
    if not pairs:
        bias = bias.scaled(1.0, 0.0)
    given = [text * (1 + place % 3) for place, text in enumerate(texts[:12])]
    scores = score_bias(
        llama,
        bias,
        given,
        token_weights=(0.0, 0.5, 1.5),
        bigram_weights=(0.0, 0.7),
        max_tokens=20,
        device="cpu",
    )
    assert scores.nats.shape == (3, 2 if pairs else 1)
    for place, weights in ((0, (0.0, 0.0)), (1, (0.5, 0.7)), (2, (1.5, 0.0))):
        other = scores.bigram_weights.index(weights[1] if pairs else 0.0)
        save_biased(llama, tmp_path / str(place), bias.scaled(*weights))
        found = evaluate_language_model(
            tmp_path / str(place), given, max_tokens=20, resamples=1, device="cpu"
        )
        assert found.bits_per_byte is not None
        assert scores.bits_per_byte[place, other] == pytest.approx(
            found.bits_per_byte.value, rel=1e-5
        )
        assert scores.tokens == found.tokens


def test_what_is_right_has_the_fewest_bits_at_its_whole_weight(
    llama: Path, texts: list[str]
) -> None:
    """Log-ratios that are right are to be used whole; wrong ones not at all."""
    tokenizer = AutoTokenizer.from_pretrained(llama)
    counts = np.bincount(np.concatenate(tokenizer(texts)["input_ids"]), minlength=len(tokenizer))
    ratios = (np.log(counts + 0.1) - np.log(0.1)).astype(np.float32)
    right = score_bias(llama, LogitBias(tokens=ratios), texts[:20], device="cpu")
    assert right.token_weights[int(right.nats[:, 0].argmin())] >= 0.8
    wrong = score_bias(llama, LogitBias(tokens=-ratios), texts[:20], device="cpu")
    assert wrong.nats[0, 0] == wrong.nats.min()


def test_refusals(llama: Path) -> None:
    bias = LogitBias(tokens=np.zeros(100, dtype=np.float32))
    with pytest.raises(ConfigError, match="token weights .* ascending order, got 1.0, 0.5"):
        score_bias(llama, bias, ["a"], token_weights=(1.0, 0.5))
    with pytest.raises(ConfigError, match="token weights .* got none"):
        score_bias(llama, bias, ["a"], token_weights=())
    with pytest.raises(ConfigError, match="no text has a token"):
        score_bias(llama, bias, [""])


class TestUnlearnt:
    @pytest.fixture
    def rows(self, llama: Path, texts: list[str]) -> list[np.ndarray]:
        tokenizer = AutoTokenizer.from_pretrained(llama)
        found = tokenizer(texts[:30], add_special_tokens=False)["input_ids"]
        return [np.array(row[: 5 + place], dtype=np.int64) for place, row in enumerate(found)]

    def test_follows_the_definition(self, llama: Path, rows: list[np.ndarray]) -> None:
        network, tokenizer = load_pretrained(llama, kind="causal", dtype="float32", device="cpu")
        expected = np.zeros(network.config.vocab_size)
        for row in rows:
            begin = torch.tensor([[tokenizer.bos_token_id, *row.tolist()]])
            with torch.inference_mode():
                logits = network(input_ids=begin).logits[0, :-1]
            expected += torch.softmax(logits.double(), dim=-1).sum(0).numpy()
        counts = np.bincount(np.concatenate(rows), minlength=len(expected))
        told: list[int] = []
        found = unlearnt(llama, [*rows, np.zeros(0, dtype=np.int64)], progress=told.append)
        np.testing.assert_allclose(found, np.log((counts + 2) / (expected + 2)), atol=1e-4)
        assert sum(told) == len(rows)

    def test_is_gone_once_it_is_a_bias(
        self, llama: Path, rows: list[np.ndarray], tmp_path: Path
    ) -> None:
        rows = rows * 20  # so often that no doubt is left
        before = unlearnt(llama, rows)
        save_biased(llama, tmp_path / "biased", LogitBias(tokens=before.astype(np.float32)))
        after = unlearnt(tmp_path / "biased", rows)
        assert np.abs(after).max() < 0.5 * np.abs(before).max()

    def test_reads_as_much_as_it_is_asked_to(self, llama: Path, rows: list[np.ndarray]) -> None:
        told: list[int] = []
        unlearnt(llama, rows, most_tokens=20, progress=told.append)
        assert sum(told) < len(rows)
        with pytest.raises(ConfigError, match="no text has a token"):
            unlearnt(llama, [])
