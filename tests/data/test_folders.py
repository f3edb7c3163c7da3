"""Folders of data files: parts without rows, and what the names of folders say."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from flower_privsyn.data import load_users
from flower_privsyn.data.load import kind_of
from flower_privsyn.errors import DataError
from tests.support.data_cases import content, folder_of


def test_what_arrow_writes_is_read_as_it_was(tmp_path: Path) -> None:
    table = pa.table(
        {
            "client_id": ["ann/x", "ben", "ann/x"],
            "text": ["one", "two", "three"],
            "date": ["2025-03-18", "2025-03-19", None],
            "kind": ["a", "b", "b"],
        }
    )
    for columns in (["client_id"], ["date"], ["kind"], ["kind", "client_id", "date"]):
        folder = tmp_path / "-".join(columns)
        ds.write_dataset(
            table, folder, format="parquet", partitioning=columns, partitioning_flavor="hive"
        )
        users = load_users(folder, label_column="kind")
        assert users.dates is not None
        assert users.labels is not None
        found = zip(users.owners.tolist(), users.texts, users.dates, users.labels, strict=True)
        assert sorted((users.user_ids[user], text, *rest) for user, text, *rest in found) == [
            ("ann/x", "one", date(2025, 3, 18), "a"),
            ("ann/x", "three", None, "b"),
            ("ben", "two", date(2025, 3, 19), "b"),
        ]


def test_the_folder_says_whose_rows_are_though_a_file_says_otherwise(tmp_path: Path) -> None:
    """Else rows that Spark keeps as ann's would be charged to ben."""
    rows = '{"client_id": "ben", "text": "x"}\n'
    folder_of({"all/client_id=ann/1.jsonl": rows, "all/client_id=ben/1.jsonl": rows})(tmp_path)
    users = load_users(tmp_path / "all")
    assert users.user_ids == ("ann", "ben")
    assert users.owners.tolist() == [0, 1]


def test_files_and_texts_of_a_folder_come_before_files_below_it(tmp_path: Path) -> None:
    """As long as there were only these: a copy in a folder below adds nothing to a user."""
    row = '{"client_id": "ann", "text": "x"}\n'
    folder_of({"all/users.jsonl": row, "all/backup/users.jsonl": row})(tmp_path)
    assert load_users(tmp_path / "all").texts == ["x"]
    assert kind_of(str(tmp_path / "all")) == "a folder of 1 files"
    folder_of({"notes/ann/1.txt": "a text", "notes/ann/about.json": row})(tmp_path)
    assert load_users(tmp_path / "notes").texts == ["a text"]
    assert kind_of(str(tmp_path / "notes")) == "a folder of 1 texts"


@pytest.mark.parametrize("name", ["1.jsonl", "1.csv", "1.json", "1.jsonl.gz"])
def test_an_empty_file_by_its_own_name_is_refused(tmp_path: Path, name: str) -> None:
    content("", name)(tmp_path)
    with pytest.raises(DataError, match="is empty"):
        load_users(tmp_path / name)


def test_a_broken_part_is_refused_among_good_ones(tmp_path: Path) -> None:
    folder_of({"all/1.csv": "client_id,text\nann,x\n", "all/2.csv": "no names\n"})(tmp_path)
    with pytest.raises(DataError, match=r"2\.csv has no column 'client_id'"):
        load_users(tmp_path / "all")
