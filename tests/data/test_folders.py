"""Folders of data files: parts without rows, and what the names of folders say."""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from flower_privsyn.data import load_users
from flower_privsyn.data.load import kind_of
from flower_privsyn.errors import DataError
from flower_privsyn.privacy import skipping
from tests.support.data_cases import folder_of, parquet_bytes


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


@pytest.mark.parametrize("journal", ["_delta_log/0.json", ".hoodie/hoodie.properties"])
def test_a_table_that_keeps_deleted_rows_is_refused(tmp_path: Path, journal: str) -> None:
    gone, left = '{"client_id": "ann", "text": "x"}\n', '{"client_id": "ben", "text": "y"}\n'
    removed = '{"remove": {"path": "1.jsonl"}}\n'
    folder_of({"all/1.jsonl": gone, "all/2.jsonl": left, f"all/{journal}": removed})(tmp_path)
    with pytest.raises(DataError, match="hold rows that were deleted or changed"):
        load_users(tmp_path / "all")


class TestWhatOneUserWroteIntoTheirOwnPart:
    """It decides about that user alone, as in a file of everybody's."""

    BEN = '{"text": "hello"}\n'

    def folder(self, tmp_path: Path, name: str, content: str | bytes) -> Path:
        parts: dict[str, str | bytes] = {"client_id=ben/1.jsonl": self.BEN}
        parts[f"client_id=ann/{name}"] = content
        folder_of({f"all/{part}": what for part, what in parts.items()})(tmp_path)
        return tmp_path / "all"

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("1.parquet", parquet_bytes({"text": [float("nan"), 2.5]})),
            ("1.parquet", parquet_bytes({"text": [123]})),
            ("1.parquet", b"PAR1"),
            ("1.csv", 'text\n"no end\n'),
            ("1.csv", "text,other\na,b,c\n"),
            ("1.json", '[{"text": "no end'),
            ("1.jsonl.gz", gzip.compress(b'{"text": "' + b"a" * 2**26 + b'"}\n')),
        ],
        ids=["floats", "numbers", "broken", "quotes", "fields", "array", "unpacks"],
    )
    def test_a_part_that_cannot_be_read(
        self, tmp_path: Path, name: str, content: str | bytes
    ) -> None:
        folder = self.folder(tmp_path, name, content)
        with skipping.counting() as tally:
            users = load_users(folder)
        assert users.user_ids == ("ann", "ben")
        assert users.texts == ["hello"]
        assert tally.users == {"ann"}
        with pytest.raises(DataError, match="client_id=ann"):
            load_users(folder, strict=True)

    @pytest.mark.parametrize("content", ["", "text\n"])
    def test_a_part_without_rows(self, tmp_path: Path, content: str) -> None:
        with skipping.counting() as tally:
            users = load_users(self.folder(tmp_path, "1.csv", content), strict=True)
        assert users.user_ids == ("ann", "ben")
        assert users.texts == ["hello"]
        assert tally.users == set()

    @pytest.mark.parametrize("name", ["all/client_id=ann/1.txt", "all/README.txt"])
    def test_a_text_beside_the_parts_is_none(self, tmp_path: Path, name: str) -> None:
        folder_of({"all/client_id=ben/1.jsonl": self.BEN, name: "a text"})(tmp_path)
        assert load_users(tmp_path / "all").user_ids == ("ben",)
        assert kind_of(str(tmp_path / "all")) == "a folder of 1 files"

    @pytest.mark.parametrize("content", ["", '"no end', "text,date,kind\nx,2025-03-18,a\n"])
    def test_nobody_s_file_says_whether_there_are_dates_and_labels(
        self, tmp_path: Path, content: str
    ) -> None:
        folder_of({"all/client_id=ann/1.csv": content})(tmp_path)
        users = load_users(tmp_path / "all", newer_than="2026-01-01", label_column="kind")
        assert users.user_ids == ("ann",)
        assert users.of_classes(["a"]).texts == []

    def test_a_column_that_is_not_there_is_the_fault_of_whoever_made_the_files(
        self, tmp_path: Path
    ) -> None:
        folder = self.folder(tmp_path, "1.csv", "note\nx\n")
        with pytest.raises(DataError, match=r"1\.csv has no column 'text'"):
            load_users(folder)
