"""Choosing rows: scores by definition, the same rows in any chunks, and what a model likes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flower_privsyn.data.public_rows import TokenRows
from flower_privsyn.training import selection as module
from flower_privsyn.training.selection import (
    NGRAM,
    LogRatioScorer,
    likelihoods,
    long_rows,
    select,
    surprisal_weights,
)
from flower_privsyn.training.tokens import first_token

V = 50

Rows = list[np.ndarray]


def corpus(n: int, seed: int = 0) -> Rows:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, V, size=size) for size in generator.integers(0, 30, size=n)]


def ngrams(row: np.ndarray, length: int) -> set[tuple[int, ...]]:
    size = min(length, len(row))
    return {tuple(row[at : at + size].tolist()) for at in range(len(row) - size + 1)}


def by_definition(
    rows: Rows, scores: np.ndarray, *, count: int, most_overlap: float = 1.0
) -> list[int]:
    """All rows in order, one after another."""
    chosen: list[int] = []
    known: set[tuple[int, ...]] = set()
    for row in sorted(range(len(rows)), key=lambda r: (-scores[r], r)):
        if len(chosen) == count or not np.isfinite(scores[row]):
            continue
        own = ngrams(rows[row], NGRAM)
        if most_overlap < 1:
            if len(own & known) > most_overlap * len(own):
                continue
            known |= own
        chosen.append(row)
    return chosen


class TestScores:
    rows = corpus(40, seed=1)
    ratios = np.random.default_rng(2).normal(size=V)

    def test_a_row_of_few_tokens_scores_below_all_others(self) -> None:
        rows = TokenRows.of(np.arange(count) for count in (3, 4, 9))
        scores = long_rows(lambda rows: -rows.lengths.astype(np.float64), 4)(rows)
        assert scores.tolist() == [-np.inf, -4, -9]

    def test_by_tokens(self) -> None:
        mean = LogRatioScorer(tokens=self.ratios)(TokenRows.of(self.rows))
        assert any(len(row) == 0 for row in self.rows)
        for row, tokens in enumerate(self.rows):
            if not len(tokens):
                assert mean[row] == -np.inf
            else:
                assert mean[row] == pytest.approx(self.ratios[tokens].mean(), abs=1e-12)

    def test_by_tokens_and_bigrams(self) -> None:
        keys = np.arange(0, V * V, 4)
        own = np.random.default_rng(3).normal(size=len(keys))
        counts = np.arange(V)
        trust = surprisal_weights(counts)
        scorer = LogRatioScorer(tokens=self.ratios, bigram_keys=keys, bigrams=own, weights=trust)
        known = dict(zip(keys.tolist(), own.tolist(), strict=True))
        scores = scorer(TokenRows.of(self.rows))
        for row, tokens in enumerate(self.rows):
            if not len(tokens):
                assert scores[row] == -np.inf
                continue
            total = float((trust * self.ratios)[tokens].sum())
            for a, b in zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True):
                if a * V + b in known:
                    pair, alone = known[a * V + b], self.ratios[b]
                    after = min(pair - self.ratios[a], max(alone, pair))
                    total += (after - alone) * trust[b]
            assert scores[row] == pytest.approx(total / len(tokens), abs=1e-12)

    def test_weights_grow_with_rarity(self) -> None:
        counts = np.array([100, 10, 1, 0])
        shares = (counts + 0.5) / (counts + 0.5).sum()
        weights = surprisal_weights(counts)
        assert (np.diff(weights) > 0).all()
        assert shares @ weights == pytest.approx(1.0)
        assert weights[3] / weights[0] == pytest.approx(np.log(shares[3]) / np.log(shares[0]))


RULES: dict[str, dict[str, Any]] = {
    "top": {"count": 30},
    "more than there are": {"count": 10_000},
    "overlap": {"count": 40, "most_overlap": 0.3},
}


class TestSelect:
    rows = corpus(400, seed=6)
    scorer = LogRatioScorer(tokens=np.round(np.random.default_rng(7).normal(size=V), 1))

    def setup_method(self) -> None:
        # Every seventh row shares most of its text with the one before it.
        tokens = list(self.rows)
        for row in range(7, len(tokens), 7):
            tokens[row] = np.concatenate((tokens[row - 1], tokens[row][:2]))
        self.corpus = tokens

    @pytest.mark.parametrize("name", RULES)
    def test_follows_the_definition(self, name: str) -> None:
        rule = RULES[name]
        scores = self.scorer(TokenRows.of(self.corpus))
        expected = by_definition(self.corpus, scores, **rule)
        selection = select(self.corpus, scores, **rule)
        assert selection.indices.tolist() == expected
        assert np.array_equal(selection.scores, scores[expected])
        assert selection.num_rows == 400
        for row, tokens in zip(expected, selection.tokens, strict=True):
            assert np.array_equal(tokens, self.corpus[row])
        if name == "overlap":
            assert selection.overlapping > 0

    def test_copies_are_left_out(self) -> None:
        row = np.arange(20)
        others = [np.arange(20) + 1, np.arange(25, 45), row[::-1].copy()]
        rows = [row, *others, row.copy(), row[2:].copy()]
        scorer = LogRatioScorer(tokens=-np.arange(float(V)))
        scores = scorer(TokenRows.of(rows))
        selection = select(rows, scores, count=6, most_overlap=0.5)
        # The one that begins a token later shares all its n-grams but one.
        assert selection.indices.tolist() == [0, 3, 2]
        assert selection.overlapping == 3
        assert select(rows, scores, count=6).overlapping == 0


@pytest.fixture(scope="module")
def rows(llama: Path, texts: list[str]) -> Rows:
    tokenizer = AutoTokenizer.from_pretrained(llama)
    found = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts[:25]]
    return [np.array(row, dtype=np.int64) for row in [*found[:7], [], *found[7:]]]


def by_hand(model: Path, row: np.ndarray) -> float:
    """The log-probability of one row after the beginning token, by a forward pass of its own."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    begin = first_token(AutoTokenizer.from_pretrained(model))
    tokens = torch.tensor([[begin, *row.tolist()]])
    with torch.no_grad():
        logs = torch.log_softmax(network(tokens).logits[0, :-1].double(), -1)
    return float(logs.gather(-1, tokens[0, 1:, None]).sum())


class TestLikelihoods:
    def test_they_are_those_of_plain_forward_passes(
        self, llama: Path, rows: Rows, tmp_path: Path
    ) -> None:
        """Of a row beyond the context in pieces."""
        window = AutoModelForCausalLM.from_pretrained(llama).config.max_position_embeddings - 1
        long = np.random.default_rng(0).integers(5, 100, size=window + 9)
        found = likelihoods([*rows, long], llama, folder=tmp_path)  # type: ignore[arg-type]
        for index in (0, 6, 8, 25):
            total = by_hand(llama, rows[index])
            assert found[index] == pytest.approx(total / len(rows[index]), rel=1e-5)
        expected = by_hand(llama, long[:window]) + by_hand(llama, long[window:])
        assert found[26] == pytest.approx(expected / len(long), rel=1e-5)

    def test_they_are_kept_for_these_rows_and_this_model(
        self, llama: Path, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "BLOCK_ROWS", 7)

        def scored(given: Rows, **kwargs: Any) -> np.ndarray:
            return likelihoods(given, llama, folder=tmp_path, **kwargs)  # type: ignore[arg-type]

        told: list[int] = []
        whole = scored(rows, progress=lambda done, most: told.append(done))
        assert told == [7, 14, 21, 26]
        # Other rows have numbers of their own, beside these.
        assert scored(rows[1:]) == pytest.approx(whole[1:], rel=1e-5)
        monkeypatch.setattr(module, "load_pretrained", lambda *_, **__: pytest.fail("loaded"))
        assert np.array_equal(whole, scored(rows))


class TestShare:
    def test_the_best_rows_up_to_a_share_of_the_tokens(self) -> None:
        rows = [np.full(length, place) for place, length in enumerate((10, 20, 30, 40))]
        scores = np.array([-3.0, -1.0, -2.0, -4.0])
        found = select(rows, scores, share=0.5)
        assert (found.indices.tolist(), found.overlapping) == ([1, 2], 0)
        assert sum(map(len, found.tokens)) == 50
        # The row that would go beyond it ends it: none further down takes its place.
        assert select(rows, scores, share=0.49).indices.tolist() == [1]
        assert select(rows, scores, share=1.0).indices.tolist() == [1, 2, 0, 3]

    def test_ties_go_by_place_and_duplicates_are_kept_once(self) -> None:
        rows = [np.array(row) for row in ([1, 2], [3, 4], [1, 2], [5, 6], [1, 2])]
        scores = np.array([-1.0, -1.0, -1.0, np.nan, -np.inf])
        found = select(rows, scores, share=1.0)
        assert (found.indices.tolist(), found.overlapping) == ([0, 1], 1)
