"""What a row of `scripts/experiments/shown_to_the_writer.py` holds, without the writer."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from flower_privsyn.data.cut import token_ids
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.files import append_json_lines
from flower_privsyn.training.selection import LogRatioScorer
from scripts.experiments.shown_to_the_writer import (
    LEAST_TOKENS,
    MOST_BIAS,
    STUDENT,
    Row,
    Told,
    Writer,
    begun,
    made_with,
    mapped,
)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """A writer whose release wants the word "water"."""
    tokenizer, _ = load_tokenizer(STUDENT)
    ratios = np.zeros(tokenizer.get_vocab_size())
    ratios[token_ids(tokenizer, [" water"])[0]] = 1.0
    told = Told(scorer=LogRatioScorer(tokens=ratios), ratios=ratios, texts={})
    return Writer(work=tmp_path, told=told, bias=0.5, times=2, seed=0)


def test_a_filtered_row_keeps_the_best_of_the_same_texts(writer: Writer) -> None:
    dry = [f"The {n} of them went to the house and did not come back. " * 4 for n in ("two", "six")]
    wet = [f"The {n} water of the water is water. " * 8 for n in ("old", "new")]
    texts = [dry[0], "too short", wet[0], dry[0], wet[1], dry[1], wet[0] + "later"]
    lengths = writer.tokens(texts)
    assert lengths[1] < LEAST_TOKENS < lengths.min(where=lengths > LEAST_TOKENS, initial=1000)
    file = writer.work / "domain-nothing-0.jsonl"
    append_json_lines(file, [{"batch": 0, "text": text} for text in texts])
    tokens = int(lengths[0] + lengths[2] - 1)
    alone = Row(shown="nothing", prompt="domain")
    assert writer.corpus(alone, tokens=tokens) == [dry[0], wet[0]]
    filtered = Row(shown="nothing", prompt="domain", kept="best")
    assert set(writer.corpus(filtered, tokens=tokens)) == set(wet)


def test_whole_words_alone_are_mapped(writer: Writer) -> None:
    words = {
        "\u2581water": 0,
        "water": 1,
        "\u2581house": 2,
        "\u2581water2": 3,
        "\u2581": 4,
        "\u2581waterwater": 5,
    }
    tokenizer = Tokenizer(WordLevel(words, unk_token="\u2581"))
    bias = mapped(writer.told.ratios, tokenizer).tokens
    assert bias.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert mapped(100 * writer.told.ratios, tokenizer).tokens[0] == MOST_BIAS


def test_a_passage_begins_with_a_sentence() -> None:
    assert begun("of it. The sea is wide and blue.") == "The sea is wide and blue."
    assert begun("It rained. We stayed.") == "It rained. We stayed."
    assert begun("a long beginning that is nearly all. Yes.").startswith("a long")


def test_a_row_is_known_by_all_that_it_was_made_with() -> None:
    given = argparse.Namespace(
        seed=0, epsilon=1.0, tokens=8500, steps=60, rate=5e-4, bias=0.5, times=4
    )
    plain, biased = made_with("chosen", given), made_with("domain, biased, filtered", given)
    assert plain == {
        **{"row": "chosen", "seed": 0, "epsilon": 1.0},
        **{"tokens": 8500, "steps": 60, "rate": 5e-4},
    }
    assert biased.keys() - plain.keys() == {"bias", "times"}
    for key in ("rate", "bias", "times"):
        other = argparse.Namespace(**{**vars(given), key: 7})
        assert made_with("domain, biased, filtered", other) != biased
