"""Variations that stay as likely as public text, and whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from flower_privsyn.strategies._variation import Likelihood, LikelyVariation

ENGLISH = "The committee will meet again in the spring to discuss the budget of the school."
SALAD = "hard animals in asthma is a Cambodian landing plant of of budget spring the to"


class Drawn:
    """A variation that gives what is scripted for each text, call after call."""

    name = "drawn"

    def __init__(self, *calls: dict[str, str]) -> None:
        self.calls = list(calls)
        self.seeds: list[int] = []

    def vary(
        self,
        texts: Sequence[str],
        *,
        seed: int,
        progress: Callable[[int], None] | None = None,
        labels: Sequence[str] | None = None,
    ) -> list[str]:
        self.seeds.append(seed)
        if progress is not None:
            progress(len(texts))
        script = self.calls.pop(0)
        return [script[text] for text in texts]


class Lengths:
    """A judge to whom long texts are unlikely."""

    def per_token(self, texts: Sequence[str]) -> np.ndarray:
        return -np.array([float(len(text)) for text in texts])


@pytest.fixture(scope="module")
def likelihood() -> Likelihood:
    return Likelihood("privsyn-tiny")


def test_english_is_likelier_than_the_same_number_of_random_words(likelihood: Likelihood) -> None:
    scores = likelihood.per_token([SALAD, "", ENGLISH, ENGLISH])
    assert scores[2] > scores[0] + 0.5
    assert scores[2] == pytest.approx(scores[3], abs=1e-3)
    assert scores[1] == -np.inf
    assert (scores <= 0).all()


def test_a_text_does_not_depend_on_the_others(likelihood: Likelihood) -> None:
    alone = likelihood.per_token([ENGLISH])
    among = likelihood.per_token([SALAD] * 70 + [ENGLISH])
    assert among[-1] == pytest.approx(alone[0], abs=0.05)


def test_what_is_unlikely_is_drawn_again_and_then_stays() -> None:
    drawn = Drawn(
        {"aaaa": "ab", "bbbb": "b" * 9, "cccc": "c" * 9},
        {"bbbb": "bc", "cccc": "c" * 9},
        {"cccc": "c" * 9},
    )
    careful = LikelyVariation(drawn, likelihood=Lengths(), floor=-4, whole_sentences=False)
    steps: list[int] = []
    result = careful.vary(["aaaa", "bbbb", "cccc"], seed=5, progress=steps.append)
    assert result == ["ab", "bc", "cccc"]
    assert sum(steps) == 3
    assert drawn.seeds[0] == 5
    assert len(set(drawn.seeds)) == 3


def test_whole_sentences_stay_whole() -> None:
    drawn = Drawn({"It rained.": "It rained and", "rained": "snowed"}, {"It rained.": "It snowed."})
    careful = LikelyVariation(drawn, likelihood=None, floor=0, whole_sentences=True)
    assert careful.vary(["It rained.", "rained"], seed=0) == ["It snowed.", "snowed"]
