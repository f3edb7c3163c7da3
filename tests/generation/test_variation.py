"""Mask-and-fill on real (tiny) masked language models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation import MaskFill, Variation

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")


def _watch_masks(variation: MaskFill) -> list[tuple[list[int], int]]:
    """Record (mask tokens per row, tokens per row) of every forward pass."""
    seen: list[tuple[list[int], int]] = []

    def watch(model: Any, _: Any, inputs: dict[str, Any]) -> None:
        masked = (inputs["input_ids"] == variation._tokenizer.mask_token_id).sum(-1).tolist()
        seen.extend(zip(masked, inputs["attention_mask"].sum(-1).tolist(), strict=True))

    variation._model.register_forward_pre_hook(watch, with_kwargs=True)
    return seen


@pytest.fixture(scope="module")
def fill(roberta: Path) -> MaskFill:
    return MaskFill(roberta, dtype="float32")


def test_every_text_becomes_another_one_by_the_seed(fill: MaskFill, texts: list[str]):
    assert isinstance(fill, Variation)
    varied = fill.vary(texts, seed=1)
    assert len(varied) == len(texts)
    assert all(new != old for new, old in zip(varied, texts, strict=True))
    # 30 % twice still leaves about half of the tokens.
    kept = [
        len(set(new.split()) & set(old.split())) / len(set(old.split()))
        for new, old in zip(varied, texts, strict=True)
    ]
    assert 0.15 < np.mean(kept) < 0.85
    assert fill.vary(texts, seed=1) == varied
    assert sum(a == b for a, b in zip(fill.vary(texts, seed=4), varied, strict=True)) < 5


def test_the_number_of_masks_follows_from_each_text_itself(roberta: Path, texts: list[str]):
    fill = MaskFill(roberta, dtype="float32", num_steps=3)
    seen = _watch_masks(fill)
    fill.vary([*texts, "a"], seed=1)
    assert len(seen) == 3 * (len(texts) + 1)
    for masked, length in seen:
        assert masked == max(1, round(0.3 * (length - 2)))


def test_neither_batch_nor_order_changes_a_text(
    roberta: Path, fill: MaskFill, texts: list[str]
) -> None:
    expected = fill.vary(texts, seed=5)
    assert MaskFill(roberta, dtype="float32", batch_size=7).vary(texts, seed=5) == expected
    assert fill.vary(texts[::-1], seed=5) == expected[::-1]
    assert fill.vary(texts[10:13], seed=5) == expected[10:13]


@pytest.mark.parametrize("name", ["roberta", "bert"])
def test_special_tokens_are_never_written(
    name: str, texts: list[str], request: pytest.FixtureRequest
):
    # At this temperature every token that is not forbidden is about equally likely.
    fill = MaskFill(
        request.getfixturevalue(name), dtype="float32", mask_fraction=1.0, temperature=1e4
    )
    rows = fill._tokenize(texts, range(len(texts)))
    for _ in range(4):
        fill._fill(rows)
        drawn = np.concatenate([row.tokens[row.content] for row in rows])
        assert not set(drawn.tolist()) & set(fill._tokenizer.all_special_ids)
        assert drawn.max() < len(fill._tokenizer)
    varied = " ".join(fill.vary(texts, seed=2))
    assert not any(token in varied for token in (*SPECIAL, "\ufffd", "[unused0]"))
    assert not any(ord(letter) < 32 and letter not in "\t\n\r" for letter in varied)


def test_text_that_is_not_masked_survives_unchanged(roberta: Path):
    """One masked token: everything but that place must be the original, blanks included."""
    with pytest.raises(ConfigError, match="max-tokens = 66"):  # the rest of which it cannot read
        MaskFill(roberta, max_tokens=66)
    fill = MaskFill(roberta, dtype="float32", mask_fraction=0.01, num_steps=1, max_tokens=65)
    text = "The  river walks,\nslowly — «over» naïve 字 🙂 gardens (again)..."
    for seed in range(30):
        varied = fill.vary([text], seed=seed)[0]
        prefix = next(
            (k for k, (a, b) in enumerate(zip(text, varied, strict=False)) if a != b), len(varied)
        )
        rest = text[prefix:]
        suffix = next(k for k in range(len(rest) + 1) if varied.endswith(rest[k:]))
        assert suffix <= 12, (text, varied)


def test_the_bundled_model_prefers_what_fits():
    fill = MaskFill(mask_fraction=0.3, num_steps=1)
    assert fill.name == "mask-fill privsyn-mlm"
    text = "He was born in the city of London in 1850 and lived there until the end of his life."
    varied = fill.vary([text] * 50, seed=0)
    assert len(set(varied)) == 50
    assert not any(token in each for each in varied for token in SPECIAL)
    words = set(text.lower().split())
    kept = np.mean([len(words & set(each.lower().split())) / len(words) for each in varied])
    assert kept > 0.45
