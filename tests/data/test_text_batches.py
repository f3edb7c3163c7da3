"""What a tokenizer is handed at a time, whoever wrote how much; and that nobody's pieces change."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer

from flower_privsyn.data.chunking import Chunking, token_ids
from flower_privsyn.embedding import load_embedder, load_tokenizer
from flower_privsyn.models.text_batches import MOST_CHARACTERS, MOST_TEXTS, text_batches

WORDS = "The court ruled that the budget was, at last, a matter for the senate. "


class Watched:
    """A tokenizer that remembers how many characters and texts it was handed at a time."""

    truncation = padding = None

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.characters: list[int] = []
        self.texts: list[int] = []

    def encode_batch(self, texts: list[str], **options: Any) -> Any:
        self.characters.append(sum(map(len, texts)))
        self.texts.append(len(texts))
        return self._tokenizer.encode_batch(texts, **options)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer("privsyn-tiny")[0]


def of_characters(number: int) -> str:
    return (WORDS * (number // len(WORDS) + 1))[:number]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], []),
        (["a"] * 3, [(0, 3)]),
        (["a"] * (MOST_TEXTS + 1), [(0, MOST_TEXTS), (MOST_TEXTS, MOST_TEXTS + 1)]),
        (["a" * MOST_CHARACTERS, "b", "c"], [(0, 1), (1, 3)]),
        (["a", "b" * (MOST_CHARACTERS + 1), "c"], [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_batches(texts: list[str], expected: list[tuple[int, int]]) -> None:
    assert [(part.start, part.stop) for part in text_batches(texts)] == expected


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param([of_characters(2**19)], id="a long document"),
        pytest.param([of_characters(2**9)] * 1024, id="many documents"),
        pytest.param(["x" * 2**19], id="one word"),
    ],
)
@pytest.mark.parametrize("at_sentences", [False, True])
def test_half_a_megabyte_is_read_in_batches(
    texts: list[str], at_sentences: bool, tokenizer: Tokenizer
) -> None:
    watched = Watched(tokenizer)
    pieces = Chunking(max_tokens=512).pieces(texts, tokenizer=watched, at_sentences=at_sentences)
    assert max(watched.characters) <= MOST_CHARACTERS
    assert max(watched.texts) <= MOST_TEXTS
    for text, found in zip(texts[:2], pieces, strict=False):
        # Nothing is lost but tails and sentences too long for a piece, nothing said twice.
        assert len(text) * 0.95 <= sum(map(len, found)) <= len(text)
        assert all(piece in text for piece in found[:3])


def test_a_document_of_many_sections_is_cut_by_itself(tokenizer: Tokenizer) -> None:
    """Whoever is beside it, and at white space."""
    long, short = of_characters(MOST_CHARACTERS + 999), of_characters(500)
    chunking = Chunking(max_tokens=64)
    alone = chunking.pieces([long], tokenizer=tokenizer)[0]
    together = chunking.pieces([short, long, short], tokenizer=tokenizer)
    assert together == [chunking.pieces([short], tokenizer=tokenizer)[0], alone, together[0]]
    words = set(WORDS.split())
    assert all(set(piece.split()) <= words for piece in alone[:-1])


def test_counted_tokens_are_those_of_all_texts_at_once(tokenizer: Tokenizer) -> None:
    texts = [of_characters(MOST_CHARACTERS // 2 + 7), "a", of_characters(MOST_CHARACTERS), ""]
    watched = Watched(tokenizer)
    expected = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    assert token_ids(watched, texts) == expected
    assert max(watched.characters) <= MOST_CHARACTERS


def test_an_embedder_reads_long_texts_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = load_embedder("all-MiniLM-L6-v2")
    handed: list[int] = []
    encode = type(embedder)._encode

    def watched(self: Any, texts: Any) -> Any:
        handed.append(sum(map(len, texts)))
        return encode(self, texts)

    monkeypatch.setattr(type(embedder), "_encode", watched)
    monkeypatch.setattr("flower_privsyn.models.text_batches.MOST_CHARACTERS", 2000)
    texts = [of_characters(1995), "the river", of_characters(1500)]
    together = embedder.embed(texts)
    assert max(handed) <= 2000
    assert (together == [embedder.embed([text])[0] for text in texts]).all()
