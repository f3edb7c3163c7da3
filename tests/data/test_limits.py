"""within_limits: what is a document, and how many of one user's count."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from flower_privsyn.data import Chunking, Users, chunking
from flower_privsyn.data.chunking import within_limits
from flower_privsyn.privacy import skipping
from flower_privsyn.testing import HashEmbedder


def make(texts: dict[str, list[object]]) -> Users:
    return Users(
        user_ids=tuple(texts),
        texts=[text for own in texts.values() for text in own],  # type: ignore[misc]
        owners=np.repeat(np.arange(len(texts)), [len(own) for own in texts.values()]),
    )


def test_what_is_too_long_is_no_document() -> None:
    bad = "x" * (2**20 + 1)
    with skipping.counting() as tally:
        users = within_limits(make({"a": ["one"], "b": [bad, "two"], "c": [bad]}), seed=1)
    assert (users.user_ids, users.texts, users.owners.tolist()) == (
        ("a", "b", "c"),
        ["one", "two"],
        [0, 1],
    )
    assert (tally.records, tally.users) == (2, {"b", "c"})


def kept_of(users: Users, user: int, *, seed: int = 1) -> list[str]:
    users = within_limits(users, seed=seed)
    return [users.texts[row] for row in np.flatnonzero(users.owners == user)]


def test_a_heavy_users_documents_are_capped_by_that_user_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunking, "MAX_DOCUMENTS", 5)
    many: list[object] = [f"document {number}" for number in range(40)]
    alone = kept_of(make({"h": many}), 0)
    assert len(alone) == 5
    assert kept_of(make({"h": many}), 0, seed=2) != alone
    # Neither other users, nor other heavy ones, nor what is unusable, move the choice.
    crowd = make({"a": ["x"] * 5, "g": many[::-1], "h": ["x" * (2**20 + 1), *many], "z": ["y"]})
    assert kept_of(crowd, 2) == alone
    assert kept_of(crowd, 0) == ["x"] * 5
    assert kept_of(crowd, 3) == ["y"]


def test_characters_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "MAX_CHARACTERS", 100)
    users = make({"h": [f"{number:030d}" for number in range(9)], "a": ["x" * 100]})
    assert len(kept_of(users, 0)) == 3
    assert kept_of(users, 1) == ["x" * 100]


class Breaks:
    """A tokenizer that fails on some texts, as those written in Rust do: not with an Exception."""

    truncation = padding = None

    class Panic(BaseException):
        pass

    def encode_batch(self, texts: list[str], **options: Any) -> Any:
        if any("boom" in text for text in texts):
            raise self.Panic
        return HashEmbedder().tokenizer.encode_batch(texts, **options)


def test_a_document_that_the_tokenizer_fails_on_gives_no_samples(
    caplog: pytest.LogCaptureFixture,
) -> None:
    documents: list[list[object]] = [["a b c d e"], ["boom", "f g h i j"], ["boom"]]
    with skipping.counting() as tally:
        samples = Chunking().samples(
            make(dict(zip("xyz", documents, strict=True))), tokenizer=Breaks()
        )
    assert samples.texts == ["a b c d e", "f g h i j"]
    with caplog.at_level(logging.WARNING):  # nobody counts: one line for all of them
        Chunking().samples(make(dict(zip("xyz", documents, strict=True))), tokenizer=Breaks())
    (said,) = caplog.messages
    assert said.startswith("2 records of 2 users are left out")
    assert samples.owners.tolist() == [0, 1]
    assert (tally.records, tally.users) == (2, {"y", "z"})
