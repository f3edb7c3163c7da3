"""A token tells no more than it costs, and a paraphrase depends on no document beside it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from flower_privsyn.comparison.paraphrase import Paraphraser, TokenChoice
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import InsecureRandom

SHORT = "The court heard the appeal of the miller, and the judge gave her ruling at noon."
LONG = "Markets set the price of every export. " * 60
SIZES = {"max_document_tokens": 24, "max_new_tokens": 6}


def probabilities(choice: TokenChoice, logits: np.ndarray) -> np.ndarray:
    weights = choice.weights(logits[None, :])[0].astype(object)
    total = sum(weights)
    return np.array([float(weight) / float(total) for weight in weights])


@pytest.mark.parametrize(
    ("low", "high", "temperature", "vocabulary"),
    [(0.0, 10.0, 1.0, 8192), (-3.0, 4.0, 0.7, 50), (0.0, 1.0, 2.0, 2)],
)
def test_no_pair_of_documents_is_told_apart_by_more(
    low: float, high: float, temperature: float, vocabulary: int
) -> None:
    choice = TokenChoice(low=low, high=high, temperature=temperature, vocabulary=vocabulary)
    drawn = np.random.default_rng(0)
    printed = 2 * (high - low) / temperature
    largest = 0.0
    for _ in range(100):
        # Also beyond the bounds, and many of them at the bounds.
        one, other = drawn.normal((low + high) / 2, 2 * (high - low), size=(2, vocabulary))
        ratio = np.abs(np.log(probabilities(choice, one) / probabilities(choice, other))).max()
        largest = max(largest, float(ratio))
    assert largest <= choice.epsilon * (1 + 1e-12) <= printed * (1 + 1e-6)


@pytest.mark.parametrize("vocabulary", [2, 50, 8192])
def test_the_worst_pair_attains_the_exact_value(vocabulary: int) -> None:
    choice = TokenChoice(low=0.0, high=10.0, temperature=1.0, vocabulary=vocabulary)
    one = np.full(vocabulary, -1e9)
    one[0] = 1e9
    found = probabilities(choice, one)[0] / probabilities(choice, -one)[0]
    assert math.log(found) == pytest.approx(choice.epsilon, rel=1e-12)
    others = vocabulary - 1
    exact = 10 + math.log((1 + others * math.exp(10)) / (math.exp(10) + others))
    assert choice.epsilon == pytest.approx(exact, rel=1e-6)
    assert choice.epsilon < 20


def test_what_is_no_number_is_the_lower_bound() -> None:
    choice = TokenChoice(low=0.0, high=2.0, temperature=1.0, vocabulary=3)
    weights = choice.weights(np.array([[np.nan, -np.inf, np.inf]]))[0]
    assert weights[0] == weights[1] < weights[2] == 2**40


def test_draws_have_the_law_of_the_weights() -> None:
    choice = TokenChoice(low=0.0, high=4.0, temperature=1.3, vocabulary=12)
    logits = np.linspace(-1, 5, 12)
    many = 100_000
    drawn = choice.draw(np.tile(logits, (many, 1)), random=InsecureRandom(3))
    expected = probabilities(choice, logits)
    counts = np.bincount(drawn, minlength=12)
    assert stats.chisquare(counts, many * expected).pvalue > 1e-6
    # The test sees a temperature that is off by a twentieth.
    other = TokenChoice(low=0.0, high=4.0, temperature=1.3 * 1.05, vocabulary=12)
    assert stats.chisquare(counts, many * probabilities(other, logits)).pvalue < 1e-6


def test_the_last_turn_of_the_dice_is_drawn_again() -> None:
    class Large:
        """Says the largest number first."""

        name, secure = "large", False

        def __init__(self) -> None:
            self.numbers = [2**64 - 1, 0]

        def uint64(self, n: int) -> np.ndarray:
            return np.full(n, self.numbers.pop(0), dtype=np.uint64)

        def rounded_normal(self, standard_deviation: float, size: int) -> np.ndarray:
            raise NotImplementedError

    source = Large()
    choice = TokenChoice(low=0.0, high=1.0, temperature=1.0, vocabulary=3)
    assert choice.draw(np.zeros((1, 3)), random=source).tolist() == [0]
    assert source.numbers == []


@pytest.fixture(scope="module")
def paraphraser() -> Paraphraser:
    return Paraphraser("privsyn-tiny", **SIZES, batch_size=2)


@pytest.fixture(scope="module")
def choice(paraphraser: Paraphraser) -> TokenChoice:
    low, high = paraphraser.logit_bounds()
    assert low < high
    return TokenChoice(
        low=low, high=high, temperature=0.1 * (high - low), vocabulary=paraphraser.vocabulary
    )


def test_no_document_fills_its_row(paraphraser: Paraphraser, choice: TokenChoice) -> None:
    """A model leaves out a mask without a zero, and its neighbours tell by that how long it is."""
    calls, model = [], paraphraser._model

    def watch(_module: Any, _inputs: Any, keywords: dict[str, Any]) -> None:
        calls.append(bool(keywords["attention_mask"].all()))

    watched = model.register_forward_pre_hook(watch, with_kwargs=True)
    with_one, alone = list(paraphraser.paraphrase([LONG] * 3, choice, random=InsecureRandom(1)))
    watched.remove()
    assert (len(with_one), len(alone)) == (2, 1)
    assert len(calls) == 2 * SIZES["max_new_tokens"]
    assert not any(calls)


def test_what_is_written_does_not_depend_on_the_documents_beside_it(
    paraphraser: Paraphraser, choice: TokenChoice
) -> None:
    """With the same dice, to the bit: not on their number, their length or their words."""

    def after(*others: str) -> str:
        class Dice(InsecureRandom):
            """The same number for the same row, however many rows there are."""

            def uint64(self, n: int) -> np.ndarray:
                return np.array([super().uint64(1)[0]] * n)

        texts = [SHORT, *others]
        return next(iter(paraphraser.paraphrase(texts, choice, random=Dice(7))))[0]

    assert after() == after("Other words.") == after(LONG) != ""


def test_all_tokens_are_charged(paraphraser: Paraphraser, choice: TokenChoice) -> None:
    assert 0 < paraphraser.epsilon(choice) == 6 * choice.epsilon < 6 * 20
    other = replace(choice, vocabulary=100)  # whose tokens are not the model's
    with pytest.raises(ValueError, match=r"logits must be \(n, 100\)"):
        next(paraphraser.paraphrase([SHORT], other, random=InsecureRandom(1)))


@pytest.mark.parametrize(
    "wrong", [{"template": "no document"}, {"max_new_tokens": 0}, {"max_document_tokens": 10**6}]
)
def test_what_cannot_be_told_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong)).replace("_", "-")):
        Paraphraser("privsyn-tiny", **{**SIZES, **wrong})
