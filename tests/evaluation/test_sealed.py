"""Who is sealed, by a rule that must never change."""

from __future__ import annotations

import hashlib

import pytest

from flower_privsyn.data import Users
from flower_privsyn.errors import DataError
from flower_privsyn.evaluation.sealed import only_sealed, sealed, without_sealed


def test_one_in_ten_by_the_published_rule() -> None:
    ids = [f"user-{i}" for i in range(5000)]
    found = sealed(ids)
    assert abs(found.mean() - 26 / 256) < 0.015
    for user, closed in zip(ids[:200], found, strict=False):
        digest = hashlib.sha256(f"privsyn-sealed:{user}".encode()).hexdigest()
        assert closed == (int(digest[:2], 16) < 26)
    assert [i for i in range(40) if found[i]] == [0, 2, 9, 35]
    assert sealed([]).shape == (0,)
    assert sealed(["\udc80"]).shape == (1,)  # an id that UTF-8 does not know


def test_both_sides_are_all_users_with_their_texts() -> None:
    users = Users.from_rows((f"user-{i}", f"text of {i}") for i in range(40))
    kept, closed = without_sealed(users, what="a file"), only_sealed(users, what="a file")
    assert closed.texts == ["text of 0", "text of 2", "text of 9", "text of 35"]
    assert sorted([*kept.user_ids, *closed.user_ids]) == sorted(users.user_ids)
    with pytest.raises(DataError, match="all 4 users of a file are sealed"):
        without_sealed(closed, what="a file")
    with pytest.raises(DataError, match="none of the 36 users of a file is sealed"):
        only_sealed(kept, what="a file")
