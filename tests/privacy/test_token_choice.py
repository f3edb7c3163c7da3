"""Tokens drawn by clipped logits: what they may tell, and that they tell no more."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from flower_privsyn.privacy import InsecureRandom, SecureRandom
from flower_privsyn.privacy.token_choice import TokenChoice


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
    for _ in range(1000):
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


@pytest.mark.parametrize("epsilon", [0.5, 8.0, 24.0])
def test_the_temperature_of_an_epsilon(epsilon: float) -> None:
    choice = TokenChoice.of_epsilon(epsilon, low=-2.0, high=8.0, vocabulary=8192)
    assert 0.999 * epsilon <= choice.epsilon <= epsilon
    # Never warmer than the paper's rule for an endless vocabulary.
    assert choice.temperature <= 2 * 10 / epsilon * (1 + 1e-5)


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


def test_randomness_of_the_system_is_taken_as_it_is() -> None:
    choice = TokenChoice(low=0.0, high=1.0, temperature=1.0, vocabulary=2)
    drawn = choice.draw(np.zeros((200, 2)), random=SecureRandom())
    assert set(drawn.tolist()) == {0, 1}


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
