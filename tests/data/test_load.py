"""load_users: every kind of source, and every kind of bad input in one sentence."""

from __future__ import annotations

import gzip
import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flower_privsyn.data import Users, json_rows, load_users
from flower_privsyn.errors import DataError
from flower_privsyn.privacy import skipping

SECRET = "the private words nobody may see"
ROWS = [
    {"client_id": "b", "text": "first of b", "date": "2025-03-18", "src": 1},
    {"client_id": "a", "text": "only of a\u2028with a separator", "date": "2025-03-19", "src": 2},
    {"client_id": "b", "text": "zweiter von b: \u00fc", "date": "2025-03-20", "src": 3},
    {"client_id": "c", "text": "  ", "date": "2025-03-21", "src": 4},
]


def write_lines(path: Path, rows: list[Any]) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def check(users: Users, *, dates: bool = True) -> None:
    assert users.user_ids == ("b", "a", "c")
    assert users.texts == [ROWS[0]["text"], ROWS[2]["text"], ROWS[1]["text"]]
    assert users.owners.tolist() == [0, 0, 1]
    if dates:
        assert users.dates == [date(2025, 3, 18), date(2025, 3, 20), date(2025, 3, 19)]
    else:
        assert users.dates is None


def sentence(source: Any, **options: Any) -> str:
    """The message of the DataError that loading ends in: one sentence without private text."""
    with pytest.raises(DataError) as caught:
        load_users(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    assert SECRET not in message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return message


# ---- sources -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["u.jsonl", "u.jsonl.gz", "u.json", "u.json.gz", "U.JSONL"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    path = write_lines(tmp_path / name, ROWS)
    check(load_users(path))
    check(load_users(str(path)))


def test_json_lines_the_fast_and_the_slow_way_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {
            "client_id": f"user {number % 7}",
            "text": f"text {number} \u00e9\U0001f600 \\n" * 3,
            "date": f"2025-0{number % 9 + 1}-01T10:00:00+02:00",
        }
        for number in range(500)
    ]
    path = write_lines(tmp_path / "u.jsonl", rows)
    fast = load_users(path)
    monkeypatch.setattr(json_rows, "_parse_fast", lambda data, columns: None)
    slow = load_users(path)
    assert (fast.user_ids, fast.texts, fast.dates) == (slow.user_ids, slow.texts, slow.dates)
    assert (fast.owners == slow.owners).all()


def test_integer_ids_and_other_columns(tmp_path: Path) -> None:
    rows = [{"who": 7, "said": "x"}, {"who": "7", "said": "y"}, {"who": 8, "said": "z"}]
    path = write_lines(tmp_path / "u.jsonl", rows)
    users = load_users(path, client_column="who", text_column="said")
    assert users.user_ids == ("7", "8")
    assert users.texts == ["x", "y", "z"]
    assert users.dates == [None] * 3  # lines have no columns, so nobody's may decide that


def test_parquet_with_every_type_of_date(tmp_path: Path) -> None:
    days = [datetime.fromisoformat(str(row["date"])) for row in ROWS]
    texts = [str(row["text"]) for row in ROWS]
    clients = [str(row["client_id"]) for row in ROWS]
    for number, dates in enumerate(
        [
            pa.array([day.date() for day in days]),
            pa.array(days, pa.timestamp("us")),
            pa.array(days, pa.timestamp("ns", tz="UTC")),
            pa.array([day.isoformat() for day in days]),
        ]
    ):
        path = tmp_path / f"{number}.parquet"
        ids = pa.array(clients).dictionary_encode() if number % 2 else pa.array(clients)
        pq.write_table(pa.table({"client_id": ids, "text": texts, "date": dates}), path)
        check(load_users(path))


def test_folder_of_files_merges_users_across_files(tmp_path: Path) -> None:
    write_lines(tmp_path / "1.jsonl", ROWS[:2])
    table = pa.table({"client_id": ["b", "c"], "text": [ROWS[2]["text"], ""]})
    pq.write_table(table, tmp_path / "2.parquet")
    (tmp_path / "README.md").write_text("not data")
    users = load_users(tmp_path)
    assert users.user_ids == ("b", "a", "c")
    assert users.texts == [ROWS[0]["text"], ROWS[2]["text"], ROWS[1]["text"]]
    assert users.dates == [date(2025, 3, 18), None, date(2025, 3, 19)]


def test_data_sets(tmp_path: Path) -> None:
    import datasets

    data = datasets.Dataset.from_list(ROWS)
    check(load_users(data))
    # The order of a data set is that of its index mapping, not of its table.
    check(load_users(data.select([3, 1, 2, 0]).select([3, 1, 2, 0])))
    check(load_users(datasets.DatasetDict({"train": data})))
    datasets.disable_progress_bars()
    data.save_to_disk(tmp_path / "one")
    check(load_users(tmp_path / "one"))
    datasets.DatasetDict({"validation": data}).save_to_disk(tmp_path / "several")
    check(load_users(tmp_path / "several", split="validation"))
    assert "no split 'train'; its splits are 'validation'" in sentence(tmp_path / "several")


def test_an_empty_text_keeps_its_user_but_a_newer_one_too(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "u.jsonl", ROWS)
    users = load_users(path, newer_than="2025-03-18")
    assert users.user_ids == ("b", "a", "c")
    assert users.texts == [ROWS[2]["text"], ROWS[1]["text"]]
    assert load_users(path, newer_than=date(2030, 1, 1)).texts == []


# ---- bad input ---------------------------------------------------------------------------------

GOOD = {"client_id": "a", "text": SECRET}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ('{"client_id": "a", "text": "' + SECRET, "not a JSON object"),
        (SECRET, "not a JSON object"),
        (json.dumps(GOOD) + json.dumps(GOOD), "not a JSON object"),
        ({"text": SECRET}, "the key 'client_id' is missing"),
        ({"client_id": 1.5, "text": SECRET}, "'client_id' must be a string or an integer"),
        ({"client_id": "", "text": SECRET}, "'client_id' must not be empty"),
        ('{"client_id": "\\ud800", "text": "x"}', "'client_id' must be text that UTF-8 can hold"),
    ],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_bad_line_is_named(tmp_path: Path, bad: Any, words: str, suffix: str) -> None:
    path = write_lines(tmp_path / f"users{suffix}", [GOOD] * 16 + [bad] + [GOOD] * 3)
    message = sentence(path)
    assert message.startswith(f"{path} line 17: ")
    assert words in message


UNUSABLE = [
    {"client_id": "bad", "body": SECRET},
    {"client_id": "bad", "text": [SECRET]},
    {"client_id": "bad", "text": None},
    {"client_id": "bad", "text": 5},
    '{"client_id": "bad", "text": "\\ud800 half"}',
    '{"client_id": "bad", "text": "a \\u0000 b"}',
    b'{"client_id": "bad", "text": "\xff\xfe"}',
]


@pytest.mark.parametrize("bad", UNUSABLE)
def test_unusable_text_is_no_document_of_its_user(tmp_path: Path, bad: Any) -> None:
    lines = [json.dumps(row) if isinstance(row, dict) else row for row in (GOOD, bad, GOOD)]
    path = tmp_path / "u.jsonl"
    path.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in lines))
    with skipping.counting() as tally:
        users = load_users(path)
    assert users.user_ids == ("a", "bad")
    assert users.texts == [SECRET, SECRET]
    assert users.owners.tolist() == [0, 0]
    assert (tally.records, tally.users) == (1, {"bad"})


def test_unusable_text_in_parquet_and_data_sets(tmp_path: Path) -> None:
    import datasets

    texts = pa.array([b"fine", b"\xff\xfe", None, b"a\0b", b"also"], pa.binary())
    table = pa.table(
        {
            "client_id": ["a", "b", "b", "c", "a"],
            "text": pa.Array.from_buffers(pa.string(), len(texts), texts.buffers()),
        }
    )
    pq.write_table(table, tmp_path / "u.parquet")
    for source in (tmp_path / "u.parquet", datasets.Dataset(table)):
        with skipping.counting() as tally:
            users = load_users(source)
        assert users.user_ids == ("a", "b", "c")
        assert users.texts == ["fine", "also"]
        assert (tally.records, tally.users) == (3, {"b", "c"})


def test_a_date_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    rows = [GOOD | {"date": value} for value in ("2025-02-30", SECRET, 20250318, "2025-01-01")]
    users = load_users(write_lines(tmp_path / "u.jsonl", rows))
    assert users.dates == [None, None, None, date(2025, 1, 1)]
    table = pa.table({"client_id": ["a"] * 2, "text": ["x"] * 2, "date": ["2025-01-01", SECRET]})
    pq.write_table(table, tmp_path / "u.parquet")
    assert load_users(tmp_path / "u.parquet").dates == [date(2025, 1, 1), None]


@pytest.mark.parametrize("last", [1, "", None, "a text"])
def test_a_file_without_any_text_is_read(tmp_path: Path, last: object) -> None:
    rows = [{"client_id": "a", "text": 1}, {"client_id": "b", "text": last}]
    users = load_users(write_lines(tmp_path / "u.jsonl", rows))
    assert users.user_ids == ("a", "b")
    assert users.texts == ["a text"] * (last == "a text")
    if last == "a text":
        users.check_documents()
    else:
        with pytest.raises(DataError, match="there is no usable text"):
            users.check_documents()


YEAR_12099 = 3_700_000  # days


@pytest.mark.parametrize(
    "dates",
    [
        pa.array([20_000, YEAR_12099, -800_000, None], pa.int32()).cast(pa.date32()),
        # Wraps around to a day of 1970 in 32 bits.
        pa.array([20_000 * 86_400, 2**32 * 86_400, -(2**32) * 86_400, None], pa.int64()).cast(
            pa.timestamp("s")
        ),
    ],
    ids=lambda dates: str(dates.type),
)
def test_a_day_beyond_the_calendar_is_unknown(tmp_path: Path, dates: Any) -> None:
    import datasets

    table = pa.table({"client_id": list("abcd"), "text": ["x"] * 4, "date": dates})
    pq.write_table(table, tmp_path / "u.parquet")
    for source in (tmp_path / "u.parquet", datasets.Dataset(table)):
        users = load_users(source)
        assert users.user_ids == ("a", "b", "c", "d")
        assert users.dates == [date(2024, 10, 4), None, None, None]
        assert load_users(source, newer_than="2024-01-01").texts == ["x"]


def test_dates_where_newer_than_needs_them(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "u.jsonl", [GOOD, GOOD | {"date": "2025-01-01"}])
    assert load_users(path).dates == [None, date(2025, 1, 1)]
    # A document without a date, among others with one, is left out; its user stays.
    newer = load_users(path, newer_than="2024-12-31")
    assert newer.dates == [date(2025, 1, 1)]
    assert len(newer) == 1
    # And where nobody has one: else a single user's document would decide about the others.
    path = write_lines(tmp_path / "v.jsonl", [GOOD, {"client_id": "b", "date": "2025-01-01"}])
    for rows in (
        [GOOD, {"client_id": "b", "text": "", "date": "2025-01-01"}],
        [GOOD, {"client_id": "b"}],
    ):
        undated = load_users(write_lines(path, rows), newer_than="2024-12-31")
        assert (undated.user_ids, undated.texts) == (("a", "b"), [])
        with pytest.raises(DataError, match="none of these documents has one"):
            load_users(path).check_documents(dated=True)
    # A table without the column is another matter: no user can do that.
    pq.write_table(pa.table({"client_id": ["a"], "text": ["x"]}), tmp_path / "u.parquet")
    said = sentence(tmp_path / "u.parquet", newer_than="2025-01-01")
    assert f"a date per document, but there is no column 'date' ({tmp_path}/u.parquet)." in said
    # So is one of another type, and only where dates are asked for.
    table = pa.table({"client_id": ["a"], "text": ["x"], "date": [5]})
    pq.write_table(table, tmp_path / "u.parquet")
    assert load_users(tmp_path / "u.parquet").texts == ["x"]
    said = sentence(tmp_path / "u.parquet", newer_than="2025-01-01")
    assert "'date' must be an ISO date such as 2025-03-18, but the column holds int64" in said
