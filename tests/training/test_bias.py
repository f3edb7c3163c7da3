"""What a model lacks of public text, and the folder of one with a bias."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from flower_privsyn.models.bias import LogitBias, bigram_table
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.training.bias import beyond_model, save_biased


class TestBeyondModel:
    @pytest.fixture
    def rows(self, llama: Path, texts: list[str]) -> list[np.ndarray]:
        tokenizer = AutoTokenizer.from_pretrained(llama)
        found = tokenizer(texts[:30], add_special_tokens=False)["input_ids"]
        return [np.array(row[: 5 + place], dtype=np.int64) for place, row in enumerate(found)]

    @pytest.fixture
    def likely(self, llama: Path, rows: list[np.ndarray]) -> list[np.ndarray]:
        """Of each row, what is likely at each of its places."""
        network, tokenizer = load_pretrained(llama, kind="causal", dtype="float32", device="cpu")
        found = []
        for row in rows:
            begun = torch.tensor([[tokenizer.bos_token_id, *row.tolist()]])
            with torch.inference_mode():
                logits = network(input_ids=begun).logits[0, :-1]
            found.append(torch.softmax(logits.double(), dim=-1).numpy())
        return found

    def test_follows_the_definition(
        self, llama: Path, rows: list[np.ndarray], likely: list[np.ndarray]
    ) -> None:
        size = likely[0].shape[1]
        counts = np.bincount(np.concatenate(rows), minlength=size)
        lacks = np.log((counts + 2) / (np.concatenate(likely).sum(0) + 2))
        first, second = int(rows[0][0]), int(rows[0][1])
        table = bigram_table([first], [second], [0.5], vocabulary=size)
        told = LogitBias(tokens=np.full(size, 0.25, dtype=np.float32), bigrams=table)
        found = beyond_model(told, llama, [*rows, np.zeros(0, dtype=np.int64)])
        np.testing.assert_allclose(found.tokens, 0.25 + lacks, atol=1e-4)
        after = [
            (row[place], of_row[place][second])
            for row, of_row in zip(rows, likely, strict=True)
            for place in range(1, len(row))
            if row[place - 1] == first
        ]
        times = sum(token == second for token, _ in after)
        expected = sum(share for _, share in after) * np.exp(lacks[second])
        assert found.bigrams is not None
        np.testing.assert_allclose(
            found.bigrams.toarray()[first, second],
            0.5 + np.log((times + 2) / (expected + 2)),
            atol=1e-4,
        )

    def test_counts_more_text_than_the_model_reads(
        self,
        llama: Path,
        rows: list[np.ndarray],
        likely: list[np.ndarray],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("flower_privsyn.training.bias._MOST_TOKENS", 1)
        counts = np.bincount(np.concatenate(rows), minlength=likely[0].shape[1])
        nothing = LogitBias(tokens=np.zeros(len(counts), dtype=np.float32))
        found = beyond_model(nothing, llama, rows)
        of_each = [
            np.log((counts * len(of_row) / counts.sum() + 2) / (of_row.sum(0) + 2))
            for of_row in likely
        ]
        assert sum(np.allclose(found.tokens, of_row, atol=1e-4) for of_row in of_each) == 1

    def test_is_gone_once_it_is_a_bias(
        self, llama: Path, rows: list[np.ndarray], tmp_path: Path
    ) -> None:
        rows = rows * 20  # so often that no doubt is left
        nothing = LogitBias(tokens=np.zeros(0, dtype=np.float32))
        before = beyond_model(nothing, llama, rows)
        save_biased(llama, tmp_path / "biased", before)
        after = beyond_model(nothing, tmp_path / "biased", rows)
        assert np.abs(after.tokens).max() < 0.5 * np.abs(before.tokens).max()
