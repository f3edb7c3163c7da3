"""Distribution matching: exact log-probabilities, a share of tokens, and scores that resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flower_privsyn.errors import ConfigError
from flower_privsyn.training import distribution_matching
from flower_privsyn.training.distribution_matching import (
    LanguageModelScorer,
    TokenShare,
    keep_share,
    stored_scores,
)
from flower_privsyn.training.selection import Rows
from flower_privsyn.training.tokens import first_token

Tokens = list[np.ndarray]


@pytest.fixture(scope="module")
def rows(llama: Path, texts: list[str]) -> Tokens:
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


class TestScores:
    def test_they_are_those_of_a_plain_forward_pass(self, llama: Path, rows: Tokens) -> None:
        average = LanguageModelScorer(model=llama)(Rows(tokens=rows))
        assert average[7] == -np.inf
        for index in (0, 6, 8, 25):
            total = by_hand(llama, rows[index])
            assert average[index] == pytest.approx(total / len(rows[index]), rel=1e-5)

    def test_a_row_beyond_the_context_is_scored_in_pieces(self, llama: Path) -> None:
        network = AutoModelForCausalLM.from_pretrained(llama)
        window = network.config.max_position_embeddings - 1
        row = np.random.default_rng(0).integers(5, 100, size=window + 9)
        scored = LanguageModelScorer(model=llama)
        expected = by_hand(llama, row[:window]) + by_hand(llama, row[window:])
        assert scored(Rows(tokens=[row]))[0] == pytest.approx(expected / len(row), rel=1e-5)

    def test_other_tokens_are_refused(self, llama: Path) -> None:
        with pytest.raises(ConfigError, match=r"a token 8,000: they are of another tokenizer"):
            LanguageModelScorer(model=llama)(Rows(tokens=[np.array([3, 8000])]))


class TestStoredScores:
    def test_an_interruption_changes_no_bit(
        self, llama: Path, rows: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(distribution_matching, "BLOCK_ROWS", 7)
        scorer = LanguageModelScorer(model=llama)
        given: dict[str, Any] = {"fingerprint": scorer.fingerprint()}
        whole = stored_scores(rows, scorer, folder=tmp_path / "whole", **given)
        scored: list[int] = []

        class Killed(BaseException):
            """Ends a scoring as a signal would."""

        def watched(chunk: Rows) -> Any:
            if len(scored) == 2:
                raise Killed
            scored.append(len(chunk))
            return scorer(chunk)

        told: list[int] = []
        with pytest.raises(Killed):
            stored_scores(rows, watched, folder=tmp_path / "cut", **given)
        resumed = stored_scores(
            rows,
            scorer,
            folder=tmp_path / "cut",
            progress=lambda done, most: told.append(done),
            **given,
        )
        assert told == [14, 21, 26]
        assert np.array_equal(whole, resumed)
        again = stored_scores(
            rows, lambda _: pytest.fail("scored"), folder=tmp_path / "cut", **given
        )
        assert np.array_equal(whole, again)

    def test_other_scores_are_others(self, llama: Path, rows: Tokens, tmp_path: Path) -> None:
        average, rounded = (
            LanguageModelScorer(model=llama, bfloat16=rough) for rough in (False, True)
        )
        folder = tmp_path / "a"
        first = stored_scores(rows, average, folder=folder, fingerprint=average.fingerprint())
        other = stored_scores(rows, rounded, folder=folder, fingerprint=rounded.fingerprint())
        assert not np.array_equal(first, other)
        fewer = stored_scores(rows[1:], average, folder=folder, fingerprint=average.fingerprint())
        assert fewer == pytest.approx(first[1:], rel=1e-5)


class TestKeepShare:
    def test_the_best_rows_up_to_a_share_of_the_tokens(self) -> None:
        rows = [np.full(length, place) for place, length in enumerate((10, 20, 30, 40))]
        scores = np.array([-3.0, -1.0, -2.0, -4.0])
        found = keep_share(rows, scores, TokenShare(share=0.5))
        assert found.indices.tolist() == [1, 2]
        assert found.scores.tolist() == [-1.0, -2.0]
        assert (found.tokens, found.all_tokens, found.duplicates) == (50, 100, 0)
        # The row that would go beyond it ends it: none further down takes its place.
        assert keep_share(rows, scores, TokenShare(share=0.49)).indices.tolist() == [1]
        assert keep_share(rows, scores, TokenShare(share=1.0)).indices.tolist() == [1, 2, 0, 3]

    def test_ties_go_by_place_and_duplicates_are_kept_once(self) -> None:
        rows = [np.array(row) for row in ([1, 2], [3, 4], [1, 2], [5, 6], [1, 2])]
        scores = np.array([-1.0, -1.0, -1.0, np.nan, -np.inf])
        found = keep_share(rows, scores, TokenShare(share=1.0))
        assert found.indices.tolist() == [0, 1]
        assert found.duplicates == 1
        assert found.all_tokens == 10

    @pytest.mark.parametrize(
        ("scores", "rule", "words"),
        [
            ([-1.0, -2.0], {"share": 0.1}, "0.1 of 10 tokens leaves no row"),
            ([-1.0, -2.0], {"share": 0.5, "least_rows": 2}, "leaves 1 rows, fewer than a batch"),
            ([-np.inf, np.nan], {"share": 0.5}, "no row has a score"),
            ([], {"share": 0.5}, "no row has a score"),
            ([-1.0, -2.0], {"share": 0.0}, "share must be a number above 0 and at most 1"),
            ([-1.0, -2.0], {"share": 1.5}, "share must be a number above 0 and at most 1"),
        ],
    )
    def test_refusals(self, scores: list[float], rule: dict[str, Any], words: str) -> None:
        rows = [np.full(5, place) for place in range(len(scores))]
        with pytest.raises(ConfigError, match=words):
            keep_share(rows, np.array(scores), TokenShare(**rule))
