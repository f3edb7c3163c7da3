"""What a model lacks of public text, and the folder of one with a bias."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from flower_privsyn.models.bias import LogitBias
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.training.bias import save_biased, unlearnt


class TestUnlearnt:
    @pytest.fixture
    def rows(self, llama: Path, texts: list[str]) -> list[np.ndarray]:
        tokenizer = AutoTokenizer.from_pretrained(llama)
        found = tokenizer(texts[:30], add_special_tokens=False)["input_ids"]
        return [np.array(row[: 5 + place], dtype=np.int64) for place, row in enumerate(found)]

    @pytest.fixture
    def expected(self, llama: Path, rows: list[np.ndarray]) -> list[np.ndarray]:
        network, tokenizer = load_pretrained(llama, kind="causal", dtype="float32", device="cpu")
        found = []
        for row in rows:
            begin = torch.tensor([[tokenizer.bos_token_id, *row.tolist()]])
            with torch.inference_mode():
                logits = network(input_ids=begin).logits[0, :-1]
            found.append(torch.softmax(logits.double(), dim=-1).sum(0).numpy())
        return found

    def test_follows_the_definition(
        self, llama: Path, rows: list[np.ndarray], expected: list[np.ndarray]
    ) -> None:
        counts = np.bincount(np.concatenate(rows), minlength=len(expected[0]))
        found = unlearnt(llama, [*rows, np.zeros(0, dtype=np.int64)])
        np.testing.assert_allclose(found, np.log((counts + 2) / (sum(expected) + 2)), atol=1e-4)

    def test_counts_more_text_than_the_model_reads(
        self,
        llama: Path,
        rows: list[np.ndarray],
        expected: list[np.ndarray],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("flower_privsyn.training.bias._MOST_TOKENS", 1)
        counts = np.bincount(np.concatenate(rows), minlength=len(expected[0]))
        found = unlearnt(llama, rows)
        of_each = [
            np.log((counts * len(row) / counts.sum() + 2) / (of_row + 2))
            for row, of_row in zip(rows, expected, strict=True)
        ]
        assert sum(np.allclose(found, of_row, atol=1e-4) for of_row in of_each) == 1

    def test_is_gone_once_it_is_a_bias(
        self, llama: Path, rows: list[np.ndarray], tmp_path: Path
    ) -> None:
        rows = rows * 20  # so often that no doubt is left
        before = unlearnt(llama, rows)
        save_biased(llama, tmp_path / "biased", LogitBias(tokens=before.astype(np.float32)))
        after = unlearnt(tmp_path / "biased", rows)
        assert np.abs(after).max() < 0.5 * np.abs(before).max()
