"""Choosing rows: scores by definition, the same rows in any chunks, draws by their weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.training.selection import (
    CombinedScorer,
    CosineScorer,
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
    return Rows(
        tokens=tokens,
        embeddings=generator.standard_normal((n, 6)).astype(np.float32),
        groups=generator.integers(0, 4, size=n),
    )


def chunks(rows: Rows, size: int) -> Iterator[Rows]:
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        yield Rows(
            tokens=rows.tokens[part],
            embeddings=None if rows.embeddings is None else rows.embeddings[part],
            groups=None if rows.groups is None else rows.groups[part],
        )


def ngrams(row: np.ndarray, length: int) -> set[tuple[int, ...]]:
    size = min(length, len(row))
    return {tuple(row[at : at + size].tolist()) for at in range(len(row) - size + 1)}


def by_definition(rows: Rows, scores: np.ndarray, rule: SelectionRule) -> list[int]:
    """All rows in order, one after another."""
    chosen: list[int] = []
    left = {group: rule.limit(group) for group in range(4)}
    known: set[tuple[int, ...]] = set()
    for row in sorted(range(len(rows)), key=lambda r: (-scores[r], r)):
        group = 0 if rows.groups is None else int(rows.groups[row])
        if len(chosen) == rule.count or not np.isfinite(scores[row]) or not left[group]:
            continue
        own = ngrams(rows.tokens[row], rule.ngram)
        if rule.most_overlap < 1:
            if len(own & known) > rule.most_overlap * len(own):
                continue
            known |= own
        left[group] -= 1
        chosen.append(row)
    return chosen


class TestScores:
    rows = corpus(40, seed=1)
    ratios = np.random.default_rng(2).normal(size=V)

    def test_by_tokens(self) -> None:
        mean = LogRatioScorer(tokens=self.ratios)(self.rows)
        total = LogRatioScorer(tokens=self.ratios, average=False)(self.rows)
        assert any(len(row) == 0 for row in self.rows.tokens)
        for row, tokens in enumerate(self.rows.tokens):
            if not len(tokens):
                assert mean[row] == total[row] == -np.inf
            else:
                assert mean[row] == pytest.approx(self.ratios[tokens].mean(), abs=1e-12)
                assert total[row] == pytest.approx(self.ratios[tokens].sum(), abs=1e-12)

    @pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
    def test_by_tokens_and_bigrams(self, weight: float) -> None:
        keys = np.arange(0, V * V, 4)
        own = np.random.default_rng(3).normal(size=len(keys))
        counts = np.arange(V)
        trust = surprisal_weights(counts, power=2.0)
        scorer = LogRatioScorer(
            tokens=self.ratios, bigram_keys=keys, bigrams=own, bigram_weight=weight, weights=trust
        )
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
                    total += weight * (after - alone) * trust[b]
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
        for power in (0.5, 1.0, 2.0):
            weights = surprisal_weights(counts, power=power)
            assert (np.diff(weights) > 0).all()
            assert shares @ weights == pytest.approx(1.0)
            assert weights[3] / weights[0] == pytest.approx(
                (np.log(shares[3]) / np.log(shares[0])) ** power
            )
        assert surprisal_weights(counts, power=0.0).tolist() == [1.0] * 4

    def test_a_matrix_of_rows_is_as_good_as_a_list(self) -> None:
        matrix = np.random.default_rng(4).integers(0, V, size=(9, 12)).astype(np.int32)
        keys = np.arange(0, V * V, 3)
        scorer = LogRatioScorer(tokens=self.ratios, bigram_keys=keys, bigrams=keys / 100)
        assert np.array_equal(scorer(Rows(tokens=matrix)), scorer(Rows(tokens=list(matrix))))
        assert scorer(Rows(tokens=[])).shape == (0,)
        assert scorer(Rows(tokens=[np.zeros(0, int)])).tolist() == [-np.inf]

    def test_by_the_cosine_to_the_released_mean(self) -> None:
        generator = np.random.default_rng(5)
        released, public = generator.normal(size=(2, 6))
        embeddings = np.array(self.rows.embeddings)
        embeddings[3] = 0
        embeddings[4] = np.nan
        rows = Rows(tokens=self.rows.tokens, embeddings=embeddings)
        scores = CosineScorer(released=released, public=public)(rows)
        assert scores[3] == scores[4] == -np.inf
        for row in (0, 1, 2, 5):
            a, b = embeddings[row].astype(float), released - public
            cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            assert scores[row] == pytest.approx(cosine, abs=1e-9)
        same = CosineScorer(released=public, public=public)(rows)
        assert not same[[0, 1, 2, 5]].any()
        with pytest.raises(ValueError, match="embeddings"):
            CosineScorer(released=released, public=public)(Rows(tokens=self.rows.tokens))

    def test_together(self) -> None:
        tokens = LogRatioScorer(tokens=self.ratios)
        cosine = CosineScorer(released=np.eye(6)[0], public=np.zeros(6))
        both = CombinedScorer.of((tokens, cosine), (0.25, 0.75), self.rows)
        parts = [tokens(self.rows), cosine(self.rows)]
        finite = np.isfinite(parts[0])
        expected = 0.25 * parts[0][finite] / parts[0][finite].std()
        expected += 0.75 * parts[1][finite] / parts[1].std()
        assert np.allclose(both(self.rows)[finite], expected)
        assert (both(self.rows)[~finite] == -np.inf).all()
        with pytest.raises(ValueError, match="LogRatioScorer gives all public rows the same"):
            CombinedScorer.of((LogRatioScorer(tokens=np.zeros(V)),), (1.0,), self.rows)

    def test_bad_ones_are_refused(self) -> None:
        with pytest.raises(ValueError, match="keys and log-ratios"):
            LogRatioScorer(tokens=self.ratios, bigrams=self.ratios)
        with pytest.raises(ValueError, match="weights must be"):
            LogRatioScorer(tokens=self.ratios, weights=np.ones(V + 1))
        with pytest.raises(ValueError, match="2 rows have 3 groups"):
            Rows(tokens=[[1], [2]], groups=np.zeros(3, int))
        with pytest.raises(ValueError, match="got scores of shape"):
            select([self.rows], lambda rows: np.zeros(1), SelectionRule(count=1))


RULES = {
    "top": SelectionRule(count=30),
    "few": SelectionRule(count=1),
    "more than there are": SelectionRule(count=10_000),
    "groups": SelectionRule(count=60, most_per_group=20),
    "quotas": SelectionRule(count=40, most_per_group=25, quotas={1: 0, 2: 3}),
    "overlap": SelectionRule(count=40, most_overlap=0.3, ngram=3, spare=20.0),
    "all": SelectionRule(count=40, most_overlap=0.3, ngram=3, spare=20.0, most_per_group=15),
    "scarce": SelectionRule(count=40, most_overlap=0.9, ngram=3, spare=20.0, most_per_group=5),
}


class TestSelect:
    rows = corpus(400, seed=6)
    scorer = LogRatioScorer(tokens=np.round(np.random.default_rng(7).normal(size=V), 1))

    def setup_method(self) -> None:
        # Every seventh row shares most of its text with the one before it.
        tokens = list(self.rows.tokens)
        for row in range(7, len(tokens), 7):
            tokens[row] = np.concatenate((tokens[row - 1], tokens[row][:2]))
        self.corpus = Rows(tokens=tokens, groups=self.rows.groups)

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

    def test_keeps_little(self) -> None:
        from flower_privsyn.training.selection import _Pool

        rule = SelectionRule(count=10)
        pool = _Pool(rule)
        for part in chunks(corpus(3000, seed=8), 50):
            scores = self.scorer(part)
            pool.add(part, scores, scores)
            assert len(pool._tokens) <= 2 * 10 + 50

    def test_shares(self) -> None:
        assert SelectionRule.count_of(0.03, 131_125) == 3934
        assert SelectionRule.count_of(0.001, 10) == 1
        for share in (0.0, 1.1):
            with pytest.raises(ConfigError, match="share"):
                SelectionRule.count_of(share, 10)


class TestResampling:
    def test_draws_by_importance_weights(self) -> None:
        """The first draw has the weights' law; the next has it among those that are left."""
        ratios = np.log(np.array([1.0, 2.0, 3.0, 4.0]))
        scorer = LogRatioScorer(tokens=ratios, average=False)
        rows = Rows(tokens=[np.array([token]) for token in range(4)])
        runs = 1500
        first: Counter[int] = Counter()
        second: Counter[int] = Counter()
        for seed in range(runs):
            rule = SelectionRule(count=2, method="resample", seed=seed)
            one, two = select([rows], scorer, rule).indices.tolist()
            first[one] += 1
            second[two] += 1
        for row in range(4):
            law = (row + 1) / 10
            assert abs(first[row] / runs - law) < 4.5 * np.sqrt(law * (1 - law) / runs)
            rest = sum(
                (other + 1) / 10 * (row + 1) / (10 - other - 1)
                for other in range(4)
                if other != row
            )
            assert abs(second[row] / runs - rest) < 4.5 * np.sqrt(rest * (1 - rest) / runs)

    def test_does_not_depend_on_chunks(self) -> None:
        rows = corpus(300, seed=9)
        scorer = LogRatioScorer(tokens=np.random.default_rng(10).normal(size=V))
        rule = SelectionRule(count=20, method="resample", most_per_group=8, sharpness=2.0, seed=5)
        whole = select([rows], scorer, rule)
        for size in (1, 37):
            found = select(chunks(rows, size), scorer, rule)
            assert np.array_equal(found.indices, whole.indices)
        other = select([rows], scorer, SelectionRule(count=20, method="resample", seed=6))
        assert not np.array_equal(other.indices, whole.indices)

    def test_sharp_draws_are_the_top(self) -> None:
        rows = corpus(200, seed=11)
        scorer = LogRatioScorer(tokens=np.random.default_rng(12).normal(size=V))
        sharp = SelectionRule(count=15, method="resample", sharpness=1e9)
        top = select([rows], scorer, SelectionRule(count=15))
        assert np.array_equal(select([rows], scorer, sharp).indices, top.indices)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"count": 0}, "count"),
        ({"count": 2.0}, "count"),
        ({"method": "best"}, "method"),
        ({"sharpness": 0.0}, "sharpness"),
        ({"most_overlap": 0.0}, "most-overlap"),
        ({"most_overlap": 1.5}, "most-overlap"),
        ({"ngram": 0}, "ngram"),
        ({"spare": 0.5}, "spare"),
        ({"quotas": {3: -1}}, "group 3"),
        ({"most_per_group": -1}, "most-per-group"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_rules_are_named(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SelectionRule(**{"count": 5, **arguments})  # type: ignore[arg-type]
