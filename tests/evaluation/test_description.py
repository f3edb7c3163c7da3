"""What a file of users holds, counted on text that is known."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import numpy as np

from flower_privsyn.data import Chunking, Users
from flower_privsyn.data.chunking import MAX_DOCUMENTS
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.evaluation.description import DataDescription, describe
from flower_privsyn.evaluation.result import STAMP


def people() -> Users:
    """Three users: ten short texts, one of which is another user's too; one long text; none."""
    texts = [f"text number {n}" for n in range(8)] + ["the same", "the same"]
    return Users(
        user_ids=("many", "long", "silent"),
        texts=[*texts, "the same", "word " * 500],
        owners=np.array([0] * 10 + [1] * 2),
        dates=[date(2025, 1, 1 + n) for n in range(11)] + [None],
    )


def described(users: Users, chunking: Chunking) -> DataDescription:
    tokenizer, name = load_tokenizer("all-MiniLM-L6-v2")[0], "all-MiniLM-L6-v2"
    return describe(
        users, source="u.csv", chunking=chunking, tokenizer=tokenizer, tokenizer_name=name
    )


def test_users_texts_and_tokens_are_counted() -> None:
    users = replace(people(), unusable=np.array([0, 1, 1]))
    found = described(users, Chunking(max_tokens=100, max_samples=4))
    assert (found.users, found.users_without_text, found.texts) == (3, 1, 12)
    assert (found.repeated, found.shared, found.no_text) == (2, 1, 2)
    assert (found.first_date, found.last_date, found.undated) == ("2025-01-01", "2025-01-11", 1)
    assert (found.texts_per_user.least, found.texts_per_user.most) == (0, 10)
    assert found.texts_per_user.mean == 4
    assert found.characters_per_user.most == 2500 + len("the same")
    assert (found.tokens_per_user.least, found.tokens_per_user.most) == (0, 502)
    # The first user's ten texts are a sample each; the second one's long text is five.
    assert (found.samples, found.taken, found.users_cut) == (10 + 1 + 5, 4 + 4, 2)
    assert found.unknown == 0
    assert found.to_dict()["stamp"] == STAMP
    assert found.to_dict()["tokens_per_user"]["quantiles"]["50 %"] == 28


def test_what_counts_is_what_a_run_would_count() -> None:
    users = Users(
        user_ids=("a", "b"),
        texts=["x" * (2**20 + 1), "short", "one", "two"],
        owners=np.array([0, 0, 1, 1]),
        dates=[date(2025, 1, 1)] * 3 + [date(2024, 1, 1)],
    )
    found = described(users, Chunking(min_date="2024-06-01"))
    assert (found.texts, found.no_text, found.unusable, found.beyond_limits) == (2, 0, 1, 0)


def test_what_is_beyond_the_limits_of_one_user_is_counted() -> None:
    texts = [f"text {n}" for n in range(MAX_DOCUMENTS + 3)]
    users = Users(
        user_ids=("a", "b"),
        texts=[*texts, "another"],
        owners=np.array([0] * len(texts) + [1]),
    )
    found = described(users, Chunking())
    assert (found.texts, found.unusable, found.beyond_limits) == (MAX_DOCUMENTS + 1, 0, 3)
