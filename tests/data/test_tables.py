"""Tables in memory: of Arrow, of pandas, and of what speaks to Arrow."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flower_privsyn.data import Users, load_users
from flower_privsyn.privacy import skipping

COLUMNS: dict[str, list[Any]] = {
    "client_id": ["b", "a", "b", "c"],
    "text": ["first of b", "only of a", "zweiter von b: \u00fc", "  "],
    "date": ["2025-03-18", "2025-03-19", "2025-03-20", None],
    "label": ["news", "talk", None, "news"],
}


class Stream:
    """What another library's table is to Arrow."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def views(table: pa.Table) -> pa.Table:
    """The same, its texts as views, as Polars has them."""
    return table.cast(pa.schema([(name, pa.string_view()) for name in table.column_names]))


def check(users: Users) -> None:
    assert users.user_ids == ("b", "a", "c")
    assert users.texts == ["first of b", "zweiter von b: \u00fc", "only of a"]
    assert users.owners.tolist() == [0, 0, 1]
    assert users.dates == [date(2025, 3, 18), date(2025, 3, 20), date(2025, 3, 19)]
    assert users.labels == ["news", None, "talk"]


@pytest.mark.parametrize(
    "source",
    [
        pd.DataFrame(COLUMNS),
        pd.DataFrame(COLUMNS, dtype=object),
        pd.DataFrame(COLUMNS | {"date": pd.to_datetime(COLUMNS["date"])}),
        pd.DataFrame(COLUMNS | {"client_id": pd.Categorical(COLUMNS["client_id"])}),
        # Nobody reads the last one, and Arrow could not.
        pd.DataFrame(COLUMNS | {"other": [object(), 1, "x", None]}),
        pa.table(COLUMNS),
        pa.table(COLUMNS).to_batches()[0],
        pa.table(COLUMNS).to_reader(),
        views(pa.table(COLUMNS)),
        Stream(pa.table(COLUMNS)),
    ],
    ids=lambda source: type(source).__name__,
)
def test_tables_are_read_as_files_are(source: Any) -> None:
    check(load_users(source, label_column="label"))


def test_one_odd_cell_of_a_frame_is_its_users_affair() -> None:
    frame = pd.DataFrame(
        {
            "client_id": ["a", 2, "c", np.int64(2), "d", "e"],
            "text": ["x", "y", 3.5, "z", np.nan, "half \ud800"],
            "date": [date(2025, 3, 18), "2025-03-19", pd.NaT, datetime(2025, 3, 20), 7, None],
            "label": ["news", 1, 2.0, "news", pd.NA, None],
        },
        dtype=object,
    )
    with skipping.counting() as tally:
        users = load_users(frame, label_column="label")
    assert users.user_ids == ("a", "2", "c", "d", "e")
    assert users.texts == ["x", "y", "z"]
    assert users.dates == [date(2025, 3, 18), date(2025, 3, 19), date(2025, 3, 20)]
    assert users.labels == ["news", "1", "news"]
    assert tally.users == {"c", "d", "e"}


class TestOneUsersValues:
    """They do not decide whether everybody's are read: pandas and Arrow infer types from them."""

    @pytest.mark.parametrize(
        ("texts", "kept"),
        [
            ([np.nan, np.nan], []),
            (pd.Series([None, 2.5], dtype=object), []),
            (["hello", b"bytes"], ["hello"]),
            (pd.Series([["a"], None], dtype=object), []),
        ],
    )
    def test_of_texts(self, texts: Any, kept: list[str]) -> None:
        users = load_users(pd.DataFrame({"client_id": ["ann", "ben"], "text": texts}))
        assert users.user_ids == ("ann", "ben")
        assert users.texts == kept

    @pytest.mark.parametrize(
        "dates",
        [
            [np.nan, np.nan],
            pd.Series([7, None], dtype=object),
            pd.Series([b"?", "2020-03-18"], dtype=object),
        ],
    )
    def test_of_dates(self, dates: Any) -> None:
        frame = pd.DataFrame({"client_id": ["ann", "ben"], "text": ["x", "y"], "date": dates})
        users = load_users(frame, newer_than="2025-01-01")
        assert users.user_ids == ("ann", "ben")
        assert users.texts == []

    def test_of_a_day_beyond_the_calendar(self) -> None:
        beyond = pd.Timestamp(np.datetime64("20000-01-01", "s"))
        dates = pd.Series([beyond, "2025-03-18"], dtype=object)
        frame = pd.DataFrame({"client_id": ["ann", "ben"], "text": ["x", "y"], "date": dates})
        assert load_users(frame).dates == [None, date(2025, 3, 18)]
        rows = [("ann", "x", beyond), ("ben", "y", "2025-03-18")]
        assert Users.from_rows(rows).dates == [None, date(2025, 3, 18)]

    def test_of_labels(self) -> None:
        """A whole number of more digits than Python writes is no class."""
        labels = pd.Series([10**5000, "news"], dtype=object)
        frame = pd.DataFrame({"client_id": ["ann", "ben"], "text": ["x", "y"], "label": labels})
        assert load_users(frame, label_column="label").labels == [None, "news"]
        rows = [("ann", "x", None, 10**5000), ("ben", "y", None, "news")]
        assert Users.from_rows(rows).labels == [None, "news"]
