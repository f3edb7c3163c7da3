"""A document's paraphrase depends on nothing beside it, and costs what all its tokens cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flower_privsyn.comparison.paraphrase import Paraphraser
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import InsecureRandom
from flower_privsyn.privacy.token_choice import TokenChoice

SHORT = "The court heard the appeal of the miller, and the judge gave her ruling at noon."
LONG = "Markets set the price of every export. " * 60
SIZES = {"max_document_tokens": 24, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def paraphraser() -> Paraphraser:
    return Paraphraser("privsyn-tiny", **SIZES, batch_size=2)


@pytest.fixture(scope="module")
def choice(paraphraser: Paraphraser) -> TokenChoice:
    low, high = paraphraser.logit_bounds([SHORT, LONG])
    assert low < high
    return TokenChoice.of_epsilon(20.0, low=low, high=high, vocabulary=paraphraser.vocabulary)


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
    assert 119 < paraphraser.epsilon(choice) == 6 * choice.epsilon <= 120
    with pytest.raises(ValueError, match=f"among {paraphraser.vocabulary} tokens"):
        paraphraser.epsilon(replace(choice, vocabulary=100))


@pytest.mark.parametrize(
    "wrong", [{"template": "no document"}, {"max_new_tokens": 0}, {"max_document_tokens": 10**6}]
)
def test_what_cannot_be_told_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong)).replace("_", "-")):
        Paraphraser("privsyn-tiny", **{**SIZES, **wrong})
