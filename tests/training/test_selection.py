"""Choosing rows: scores by definition, and the same rows in any chunks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.training.selection import (
    NGRAM,
    LogRatioScorer,
    Rows,
    SelectionRule,
    select,
    surprisal_weights,
)

V = 50


def corpus(n: int, seed: int = 0) -> Rows:
    generator = np.random.default_rng(seed)
    tokens = [generator.integers(0, V, size=size) for size in generator.integers(0, 30, size=n)]
    return Rows(tokens=tokens)


def chunks(rows: Rows, size: int) -> Iterator[Rows]:
    for start in range(0, len(rows), size):
        yield Rows(tokens=rows.tokens[start : start + size])


def ngrams(row: np.ndarray, length: int) -> set[tuple[int, ...]]:
    size = min(length, len(row))
    return {tuple(row[at : at + size].tolist()) for at in range(len(row) - size + 1)}


def by_definition(rows: Rows, scores: np.ndarray, rule: SelectionRule) -> list[int]:
    """All rows in order, one after another."""
    chosen: list[int] = []
    known: set[tuple[int, ...]] = set()
    for row in sorted(range(len(rows)), key=lambda r: (-scores[r], r)):
        if len(chosen) == rule.count or not np.isfinite(scores[row]):
            continue
        own = ngrams(rows.tokens[row], NGRAM)
        if rule.most_overlap < 1:
            if len(own & known) > rule.most_overlap * len(own):
                continue
            known |= own
        chosen.append(row)
    return chosen


class TestScores:
    rows = corpus(40, seed=1)
    ratios = np.random.default_rng(2).normal(size=V)

    def test_by_tokens(self) -> None:
        mean = LogRatioScorer(tokens=self.ratios)(self.rows)
        assert any(len(row) == 0 for row in self.rows.tokens)
        for row, tokens in enumerate(self.rows.tokens):
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
        scores = scorer(self.rows)
        for row, tokens in enumerate(self.rows.tokens):
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

    def test_nothing_gains_by_following_what_users_do_not_write(self) -> None:
        ratios = np.zeros(V)
        ratios[:2] = -4.0  # never written by users, and the pair of them neither
        ratios[2:4] = 1.0
        keys = np.array([0 * V + 1, 2 * V + 3])
        pairs = np.array([-2.0, 1.5])  # of what is rare less is known
        scorer = LogRatioScorer(tokens=ratios, bigram_keys=keys, bigrams=pairs)
        absent, present = scorer(Rows(tokens=[np.array([0, 1]), np.array([2, 3])]))
        assert absent == pytest.approx((-4.0 - 2.0) / 2)
        assert present == pytest.approx((1.0 + 0.5) / 2)

    def test_weights_grow_with_rarity(self) -> None:
        counts = np.array([100, 10, 1, 0])
        shares = (counts + 0.5) / (counts + 0.5).sum()
        weights = surprisal_weights(counts)
        assert (np.diff(weights) > 0).all()
        assert shares @ weights == pytest.approx(1.0)
        assert weights[3] / weights[0] == pytest.approx(np.log(shares[3]) / np.log(shares[0]))

    def test_a_matrix_of_rows_is_as_good_as_a_list(self) -> None:
        matrix = np.random.default_rng(4).integers(0, V, size=(9, 12)).astype(np.int32)
        keys = np.arange(0, V * V, 3)
        scorer = LogRatioScorer(tokens=self.ratios, bigram_keys=keys, bigrams=keys / 100)
        assert np.array_equal(scorer(Rows(tokens=matrix)), scorer(Rows(tokens=list(matrix))))
        assert scorer(Rows(tokens=[])).shape == (0,)
        assert scorer(Rows(tokens=[np.zeros(0, int)])).tolist() == [-np.inf]


RULES = {
    "top": SelectionRule(count=30),
    "few": SelectionRule(count=1),
    "more than there are": SelectionRule(count=10_000),
    "overlap": SelectionRule(count=40, most_overlap=0.3),
}


class TestSelect:
    rows = corpus(400, seed=6)
    scorer = LogRatioScorer(tokens=np.round(np.random.default_rng(7).normal(size=V), 1))

    def setup_method(self) -> None:
        # Every seventh row shares most of its text with the one before it.
        tokens = list(self.rows.tokens)
        for row in range(7, len(tokens), 7):
            tokens[row] = np.concatenate((tokens[row - 1], tokens[row][:2]))
        self.corpus = Rows(tokens=tokens)

    @pytest.mark.parametrize("name", RULES)
    def test_follows_the_definition_in_any_chunks(self, name: str) -> None:
        rule = RULES[name]
        scores = self.scorer(self.corpus)
        expected = by_definition(self.corpus, scores, rule)
        for size in (1, 33, 400):
            selection = select(chunks(self.corpus, size), self.scorer, rule)
            assert selection.indices.tolist() == expected
            assert np.array_equal(selection.scores, scores[expected])
            assert selection.num_rows == 400
            for row, tokens in zip(expected, selection.tokens, strict=True):
                assert np.array_equal(tokens, self.corpus.tokens[row])
        if name == "overlap":
            assert selection.overlapping > 0

    def test_equal_rows_go_by_their_place(self) -> None:
        flat = LogRatioScorer(tokens=np.zeros(V))
        for size in (1, 13, 400):
            selection = select(chunks(self.corpus, size), flat, SelectionRule(count=7))
            usable = [row for row, tokens in enumerate(self.corpus.tokens) if len(tokens)]
            assert selection.indices.tolist() == usable[:7]

    def test_copies_are_left_out(self) -> None:
        row = np.arange(20)
        others = [np.arange(20) + 1, np.arange(25, 45), row[::-1].copy()]
        rows = Rows(tokens=[row, *others, row.copy(), row[2:].copy()])
        scorer = LogRatioScorer(tokens=-np.arange(float(V)))
        rule = SelectionRule(count=6, most_overlap=0.5)
        selection = select([rows], scorer, rule)
        # The one that begins a token later shares all its n-grams but one.
        assert selection.indices.tolist() == [0, 3, 2]
        assert selection.overlapping == 3
        assert select([rows], scorer, SelectionRule(count=6)).overlapping == 0

    def test_an_empty_stream(self) -> None:
        for stream in ([], [Rows(tokens=[])]):
            selection = select(stream, self.scorer, SelectionRule(count=3))
            assert selection.indices.shape == selection.scores.shape == (0,)
            assert selection.tokens == []

    def test_shares(self) -> None:
        assert SelectionRule.count_of(0.03, 131_125) == 3934
        assert SelectionRule.count_of(0.001, 10) == 1
        for share in (0.0, 1.1):
            with pytest.raises(ConfigError, match="share"):
                SelectionRule.count_of(share, 10)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"count": 0}, "count"),
        ({"count": 2.0}, "count"),
        ({"most_overlap": 0.0}, "most-overlap"),
        ({"most_overlap": 1.5}, "most-overlap"),
    ],
)
def test_bad_rules_are_named(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SelectionRule(**{"count": 5, **arguments})  # type: ignore[arg-type]
