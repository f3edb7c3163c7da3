"""Users: grouping, partitions, dates, held-out users."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_privsyn.data import Users
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.privacy import skipping

IDS = st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=30)


def make(counts: dict[str, int]) -> Users:
    return Users.from_rows(
        (user, f"{user} wrote {number}" if number else "")
        for user, count in counts.items()
        for number in range(count + 1)
    )


def documents(users: Users) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {user: [] for user in users.user_ids}
    for owner, text in zip(users.owners, users.texts, strict=True):
        result[users.user_ids[owner]].append(text)
    return result


@given(IDS, st.integers(1, 7))
def test_a_partition_splits_no_user_and_loses_none(ids: list[str], nodes: int) -> None:
    users = make({user: index % 4 for index, user in enumerate(ids)})
    parts = [users.partition(partition_id=node, num_partitions=nodes) for node in range(nodes)]
    assert sorted(user for part in parts for user in part.user_ids) == sorted(ids)
    merged: dict[str, list[str]] = {}
    for node, part in enumerate(parts):
        assert part.user_ids == tuple(ids[node::nodes])
        merged |= documents(part)
    assert merged == documents(users)


@given(IDS, st.randoms(), st.integers(0, 3), st.floats(0, 1))
def test_who_is_held_out_depends_on_seed_and_id_alone(
    ids: list[str], random: object, seed: int, fraction: float
) -> None:
    users = make(dict.fromkeys(ids, 1))
    private, held_out = users.split_held_out(fraction=fraction, seed=seed)
    assert sorted(private.user_ids + held_out.user_ids) == sorted(ids)

    shuffled = list(ids)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    other = make(dict.fromkeys(["a stranger", *shuffled], 2) if shuffled else {})
    again = other.split_held_out(fraction=fraction, seed=seed)[1]
    assert set(again.user_ids) - {"a stranger"} == set(held_out.user_ids) - {"a stranger"}

    dealt = [
        user
        for node in range(3)
        for user in users.partition(partition_id=node, num_partitions=3)
        .split_held_out(fraction=fraction, seed=seed)[1]
        .user_ids
    ]
    assert set(dealt) == set(held_out.user_ids)


def test_held_out_share_and_seeds() -> None:
    users = make({f"user-{number}": 1 for number in range(4000)})
    one = users.split_held_out(fraction=0.25, seed=1)[1]
    two = users.split_held_out(fraction=0.25, seed=2)[1]
    # Five standard deviations of a binomial with 4,000 coins.
    assert abs(len(one) - 1000) < 5 * np.sqrt(4000 * 0.25 * 0.75)
    both = len(set(one.user_ids) & set(two.user_ids))
    assert abs(both - 250) < 5 * np.sqrt(4000 / 16 * 15 / 16)
    assert len(users.split_held_out(fraction=0.0, seed=1)[1]) == 0
    assert len(users.split_held_out(fraction=1.0, seed=1)[0]) == 0
    smaller = set(users.split_held_out(fraction=0.1, seed=1)[1].user_ids)
    assert smaller < set(one.user_ids)


def test_since_counts_its_day_and_keeps_everybody() -> None:
    users = Users(
        user_ids=("a", "b"),
        texts=["old", "same day", "new"],
        owners=np.array([0, 0, 1]),
        dates=[date(2024, 1, 1), date(2025, 3, 1), date(2025, 3, 2)],
    )
    for day in (date(2025, 3, 2), "2025-03-02"):
        newer = users.since(day)
        assert newer.texts == ["new"]
        assert newer.user_ids == ("a", "b")
        assert newer.dates == [date(2025, 3, 2)]
    with pytest.raises(ConfigError, match="min-date must be an ISO date .* got 'March'"):
        users.since("March")


def test_since_without_dates() -> None:
    with pytest.raises(DataError, match="date-column"):
        make({"a": 1}).since(date(2025, 1, 1))
    users = Users(user_ids=("a",), texts=["x", "y"], owners=np.array([0, 0]), dates=[None, None])
    with skipping.counting() as tally:
        newer = users.since(date(2025, 1, 1))
    assert (newer.user_ids, newer.texts, newer.dates) == (("a",), [], [])
    assert (tally.records, tally.users) == (2, {"a"})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"user_ids": ("a", "a")}, "distinct"),
        ({"owners": np.array([0])}, "one entry for each of 2 texts"),
        ({"owners": np.array([1, 0])}, "nondecreasing"),
        ({"owners": np.array([0, 2])}, r"lie in 0\.\.1"),
        ({"dates": [None]}, "one entry for each of 2 texts"),
        ({"labels": []}, "one entry for each of 2 texts"),
    ],
)
def test_inconsistent_users_are_refused(fields: dict[str, object], words: str) -> None:
    good = {"user_ids": ("a", "b"), "texts": ["x", "y"], "owners": np.array([0, 1])}
    with pytest.raises(DataError, match=words):
        Users(**(good | fields))  # type: ignore[arg-type]


def test_rows_may_have_dates_and_labels() -> None:
    rows = [
        ("b", "1", date(2025, 3, 1), "news"),
        ("a", "2", datetime(2025, 3, 1, 23, 30, tzinfo=timezone(timedelta(hours=-2))), 7),
        ("b", "3", "2025-03-03T10:00", None),
        ("b", "4", np.datetime64("20000-01-01", "s"), " news "),
        ("a", "5", "soon", object()),
        ("a", "6"),
        ("a", "7", np.datetime64("2025-03-07"), np.int64(7)),
        ("a", "8", None, True),
        ("a", "9", None, 10**5000),
        ("a", "10", None, "\ud800"),
        ("c", "", "2025-03-08", "news"),
    ]
    users = Users.from_rows(rows)
    assert users.user_ids == ("b", "a", "c")
    assert users.texts == ["1", "3", "4", "2", "5", "6", "7", "8", "9", "10"]
    days = {"1": 1, "3": 3, "2": 2, "7": 7}
    assert users.dates == [
        date(2025, 3, days[text]) if text in days else None for text in users.texts
    ]
    assert users.labels == ["news", None, "news", "7", None, None, "7", None, None, None]
    assert users.of_classes(["7"]).since("2025-03-03").texts == ["7"]


@pytest.mark.parametrize(
    ("row", "got"),
    [
        (("a",), "got a tuple of 1"),
        (("a", "my secret", None, None, 1), "got a tuple of 5"),
        ("ab", "got a str of 2"),
        ({"client_id": "a", "text": "my secret"}, "got a dict of 2"),
        (None, "got a NoneType of 0"),
        (next(pd.DataFrame([("a", "my secret")]).itertuples()), "got a Pandas of 3"),
    ],
)
def test_rows_with_other_fields_are_refused_by_number(row: object, got: str) -> None:
    with pytest.raises(DataError, match="row 2 must be ") as caught:
        Users.from_rows([("a", "x"), row])  # type: ignore[list-item]
    assert str(caught.value).endswith(f"{got}.")
    assert "secret" not in str(caught.value)
