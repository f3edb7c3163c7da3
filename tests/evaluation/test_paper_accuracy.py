"""The papers' accuracy: what double tokenization does, and what rules without a model reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from flower_privsyn.data import public_texts
from flower_privsyn.evaluation import STAMP
from flower_privsyn.evaluation.language_model import evaluate_language_model
from flower_privsyn.evaluation.paper_accuracy import (
    paper_accuracy,
    rule_accuracy,
    rules_without_model,
)
from flower_privsyn.models import resolve_model
from flower_privsyn.training.causal import fine_tune
from flower_privsyn.training.causal_settings import CausalTraining
from flower_privsyn.training.retokenize import retokenized, space_tokens


@pytest.fixture(scope="module")
def passages() -> list[str]:
    """Public prose in the bundled order, 64 tokens each."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("privsyn-lm"))
    return public_texts("bundled", tokenizer=tokenizer)[:6000]


@pytest.fixture(scope="module")
def tokenizer(passages: list[str]) -> Any:
    """A byte-level tokenizer like GPT-2's: a large vocabulary, and one token for " \u010d".

    GPT-2's was trained on many languages. The letters of some begin with the byte that the letter
    for a space begins with, so that a space and this byte became one token.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    foreign = [" \u0111 \u010d \u0107 \u0101 \u0113 \u0123 \u010da \u0111a"] * 2000
    trained.train_from_iterator(
        [*passages, *foreign],
        trainers.BpeTrainer(
            vocab_size=24_000,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=trained,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        unk_token="<|endoftext|>",
    )


def words_of(tokenizer: Any, row: list[int]) -> list[str]:
    return list(tokenizer.convert_ids_to_tokens(row))


class TestRetokenized:
    def test_a_space_becomes_two_tokens(self, tokenizer: Any) -> None:
        row = words_of(tokenizer, retokenized(tokenizer, ["It will show"])[0])
        assert row[:7] == ["<|endoftext|>", "ĠIt", "ĠÄ", "ł", "will", "ĠÄ", "ł"]
        assert "".join(row[7:-1]) == "show"
        assert row[-1] == "<|endoftext|>"
        assert space_tokens(tokenizer) == tuple(tokenizer.convert_tokens_to_ids(["ĠÄ", "ł"]))

    def test_texts_become_nearly_three_times_longer(
        self, tokenizer: Any, passages: list[str]
    ) -> None:
        """2.7 times with the tokenizer of the papers."""
        once = tokenizer(passages[:500], add_special_tokens=False)["input_ids"]
        twice = retokenized(tokenizer, passages[:500], max_tokens=10**6)
        ratio = sum(map(len, twice)) / sum(len(row) + 2 for row in once)
        assert ratio == pytest.approx(2.8, abs=0.2)


class TestRules:
    def test_three_rules_without_a_model_score_054_to_059(
        self, tokenizer: Any, passages: list[str]
    ) -> None:
        """On plain prose: text of long, rare words (below) has fewer spaces and scores less."""
        plain = [text for text in passages if _mean_word(text) < 4.6]
        half = len(plain) // 2
        assert half > 300
        rules = rules_without_model(
            retokenized(tokenizer, plain[:half]), spaces=space_tokens(tokenizer)
        )
        rows = retokenized(tokenizer, plain[half:])
        found = {name: rule_accuracy(rule, rows) for name, rule in rules.items()}
        assert list(found) == ["space", "space_word", "pair"]
        assert 0.54 <= found["space"] < found["space_word"] < found["pair"] <= 0.59

    def test_by_hand(self) -> None:
        # A space is 1, 2. After it 7 is most frequent; after 7 a 9; 5 is new.
        rules = rules_without_model([[0, 7, 1, 2, 7, 9], [0, 1, 2, 7, 9]], spaces=(1, 2))
        row = [[0, 7, 1, 2, 7, 5, 1, 2, 9]]
        assert rule_accuracy(rules["space"], row) == 4 / 8  # 7>1 1>2 5>1 1>2
        assert rule_accuracy(rules["space_word"], row) == 5 / 8  # and 2>7
        # 1>2 twice, 2>7, 5>1 (unseen); after 0 the smaller of two equally frequent, 1; 7>9.
        assert rule_accuracy(rules["pair"], row) == 4 / 8


class TestPaperAccuracy:
    def test_a_model_that_learns_only_the_spaces_looks_half_right(
        self, gpt2: Path, texts: list[str], tmp_path: Path
    ) -> None:
        settings = CausalTraining.distilgpt2(
            retokenize=True, batch_size=16, epochs=30, learning_rate=1e-2, device="cpu"
        )
        fine_tune(gpt2, texts, settings=settings, output=tmp_path / "tuned", seed=0)
        found = paper_accuracy(tmp_path / "tuned", texts, public=texts, device="cpu")
        rule = found.without_model["space"]
        assert found.space_share > 0.4
        assert found.accuracy > rule - 0.02
        # On the text itself the same model is far worse than it looks.
        honest = evaluate_language_model(tmp_path / "tuned", texts, device="cpu")
        assert honest.next_token_accuracy.value < found.accuracy - 0.2
        assert found.to_dict()["stamp"] == STAMP
        assert found.positions == sum(
            len(row) - 1 for row in retokenized(AutoTokenizer.from_pretrained(gpt2), texts)
        )


def _mean_word(text: str) -> float:
    words = text.split()
    return sum(map(len, words)) / len(words)
