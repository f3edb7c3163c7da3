"""Next-token figures, against the model's own logits one text at a time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flower_privsyn.evaluation.language_model import _figures, evaluate_language_model
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.training.tokens import first_token, scored, token_rows


def by_hand(folder: Path, text: str, window: int) -> tuple[int, int, float]:
    """Tokens, correct ones and nats of one text, a window at a time without padding."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    row = tokenizer(text, add_special_tokens=False)["input_ids"]
    correct, nats = 0, 0.0
    for start in range(0, len(row), window):
        ids = torch.tensor([[tokenizer.bos_token_id, *row[start : start + window]]])
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].double()
        targets = ids[0, 1:]
        correct += int((logits.argmax(-1) == targets).sum())
        nats -= float(logits.log_softmax(-1).gather(1, targets[:, None]).sum())
    return len(row), correct, nats


@pytest.mark.parametrize(("model", "window"), [("gpt2", 5), ("llama", 64), ("lstm", 5)])
def test_figures_by_token_and_by_user(
    model: str, window: int, request: pytest.FixtureRequest, texts: list[str], tmp_path: Path
) -> None:
    folder, kept = request.getfixturevalue(model), tmp_path / "users.npy"
    given = [*texts[:7], texts[7] + " " + texts[8]]
    owners = [3, 3, 3, 3, 3, 9, 9, 1]
    found = evaluate_language_model(
        folder,
        given,
        owners=owners,
        max_tokens=window,
        device="cpu",
        users_file=kept,
    )
    rows = np.array([by_hand(folder, text, window) for text in given])
    tokens, correct, nats = rows.sum(axis=0)
    assert found.tokens == tokens
    assert found.next_token_accuracy.value == pytest.approx(correct / tokens)
    assert found.in_vocabulary_accuracy == found.next_token_accuracy  # these know every byte
    assert found.cross_entropy.value == pytest.approx(nats / tokens, rel=1e-5)
    assert found.perplexity.value == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    size = sum(len(text.encode()) for text in given)
    assert found.bytes == size
    assert found.bits_per_byte is not None
    assert found.bits_per_byte.value == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    people = [rows[np.array(owners) == user].sum(axis=0) for user in (1, 3, 9)]
    assert found.users == 3
    counted = np.load(kept)
    np.testing.assert_array_equal(counted[:, :2], [row[:2] for row in people])
    np.testing.assert_allclose(counted[:, 2], [row[2] for row in people], rtol=1e-5)
    assert counted[:, 3].sum() == size


def test_padding_and_batches_do_not_matter(llama: Path, texts: list[str]) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(llama)
    rows = token_rows(tokenizer, [*texts[:9], "", texts[9] * 5])
    done: list[int] = []
    how: dict[str, Any] = {"begin": first_token(tokenizer), "window": 64}
    many = scored(model, rows, progress=done.append, **how)
    assert sum(done) == len(rows)
    for place, row in enumerate(rows):
        nats, correct, _ = scored(model, [row], **how)[:, 0]
        assert correct == many[1, place]
        assert nats == pytest.approx(many[0, place], rel=1e-5)
    assert not many[:, 9].any()


class TestIntervals:
    def test_they_cover_the_truth_as_often_as_they_say(self) -> None:
        """Users with shares drawn around 0.4: intervals hold 0.4 in about 95 of 100 cases."""
        generator = np.random.default_rng(0)
        hits = 0
        for case in range(100):
            correct = generator.binomial(50, np.clip(generator.normal(0.4, 0.1, size=60), 0, 1))
            tokens = np.full(60, 50.0)
            table = np.stack([tokens, correct, 2 * tokens, tokens, tokens, correct], axis=1)
            found = _figures(table, resamples=300, seed=case)["next_token_accuracy"]
            assert found.low < found.value < found.high
            hits += found.low <= 0.4 <= found.high
        assert 88 <= hits <= 99

    def test_texts_of_one_user_count_as_one_draw(self, gpt2: Path, texts: list[str]) -> None:
        options: dict[str, Any] = {"resamples": 500, "device": "cpu"}
        many = evaluate_language_model(gpt2, texts[:30], **options).cross_entropy
        owners = [index // 15 for index in range(30)]
        two = evaluate_language_model(gpt2, texts[:30], owners=owners, **options).cross_entropy
        one = evaluate_language_model(gpt2, texts[:30], owners=[0] * 30, **options).cross_entropy
        assert many.value == two.value == one.value
        assert one.low == pytest.approx(one.high)  # one user says nothing about another
        assert many.high > many.low

    def test_a_model_that_is_destroyed_has_figures(self) -> None:
        table = np.array([[10.0, 0.0, 8000.0, 40.0, 10.0, 0.0]])
        found = _figures(table, resamples=2, seed=0)
        assert (found["cross_entropy"].value, found["perplexity"].value) == (800.0, math.inf)


def test_accuracy_of_known_words_counts_neither_unknown_ones_nor_ends(tmp_path: Path) -> None:
    """A model that says "the" after "the", and unknown after everything else."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = {"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3, "the": 4, "river": 5}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    network = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(words),
            n_positions=32,
            n_embd=8,
            n_layer=1,
            n_head=1,
            tie_word_embeddings=False,
            bos_token_id=2,
            eos_token_id=3,
        )
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.transformer.wte.weight[:, 0] = 1.0
        network.transformer.wte.weight[4, 0] = -1.0
        network.transformer.ln_f.weight.fill_(1.0)
        network.lm_head.weight[1, 0] = 1.0
        network.lm_head.weight[4, 0] = -1.0
    folder = tmp_path / "model"
    network.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
    ).save_pretrained(folder)  # which does not say what stands for the unknown
    # Said: unknown, the; unknown, unknown, unknown. Written: the, the; unseen, unseen, river.
    found = evaluate_language_model(folder, ["the the", "unseen unseen river"], device="cpu")
    assert (found.tokens, found.unknown_tokens) == (5, 2)
    assert found.next_token_accuracy.value == pytest.approx(3 / 5)
    assert found.in_vocabulary_accuracy is not None
    assert found.in_vocabulary_accuracy.value == pytest.approx(1 / 3)
    nothing = evaluate_language_model(folder, ["the the", "unseen"], device="cpu")
    assert nothing.in_vocabulary_accuracy is None  # a resample may hold the second text alone


def test_stamped_and_silent_about_the_text(gpt2: Path) -> None:
    record = evaluate_language_model(gpt2, ["a secret letter"], device="cpu")
    assert record.to_dict()["stamp"] == STAMP
    assert "secret" not in str(record.to_dict())
