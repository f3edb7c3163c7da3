"""Every source of rows reads the same, and what one user wrote there is that user's affair."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flower_privsyn.cli import main
from flower_privsyn.data import (
    Chunking,
    load_configured,
    load_users,
    read,
)
from flower_privsyn.data.chunking import within_limits
from flower_privsyn.dry_run.people import read_people
from flower_privsyn.errors import DataError, PrivsynError
from flower_privsyn.host.app import load_app
from flower_privsyn.privacy import skipping
from tests.support.data_cases import BAD, SECRET, DataCase, content, folder_of, lines, locked

Row = dict[str, Any]
Make = Callable[[list[Row], Path], Any]

ROWS: list[Row] = [
    {"client_id": "b", "text": 'first, of "b"\nin two lines', "date": "2025-03-18", "label": "x"},
    {"client_id": "a", "text": "of a\u2028with a separator", "date": "2025-03-19", "label": "y"},
    {"client_id": "b", "text": "zweiter von b: \u00fc", "date": "soon", "label": " y "},
    {"client_id": "c", "text": "  ", "date": "2025-03-21", "label": "x"},
]


def columns_of(rows: list[Row]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def file(name: str, text: Callable[[list[Row]], str]) -> Make:
    def make(rows: list[Row], folder: Path) -> Path:
        content(text(rows).encode("utf-8", "surrogateescape"), name)(folder)
        return folder / name

    return make


def delimited(delimiter: str, before: str = "") -> Callable[[list[Row]], str]:
    def text(rows: list[Row]) -> str:
        out = io.StringIO(newline="")
        writer = csv.DictWriter(out, list(columns_of(rows)), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
        return before + out.getvalue()

    return text


def parquet(rows: list[Row], folder: Path) -> Path:
    pq.write_table(pa.table(columns_of(rows)), folder / "u.parquet", row_group_size=2)
    return folder / "u.parquet"


def of_files(rows: list[Row], folder: Path) -> Path:
    """Several files of different kinds, two of them without rows."""
    (folder / "all").mkdir()
    parts = {"1.jsonl": lines(rows[:1]), "2.csv": delimited(",")(rows[1:2] or rows[:1])}
    parts |= {"0.jsonl": "", "._1.csv": "not a row", "README.md": ""}
    parts["4.csv"] = ",".join(columns_of(rows)) + "\n"
    for name, text in parts.items():
        (folder / "all" / name).write_text(text)
    pq.write_table(pa.table(columns_of(rows[2:] or rows[:1])), folder / "all" / "3.parquet")
    return folder / "all"


def saved(rows: list[Row], folder: Path) -> Path:
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(columns_of(rows)).save_to_disk(folder / "saved")
    return folder / "saved"


class Stream:
    """What another library's table is to Arrow."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def views(rows: list[Row], _: Path) -> pa.Table:
    """Texts as Polars has them."""
    table = pa.table(columns_of(rows))
    return table.cast(pa.schema([(name, pa.string_view()) for name in table.column_names]))


FILES: dict[str, Make] = {
    "JSON lines": file("a path/U.JSONL", lines),
    "JSON lines, packed": file("u.jsonl.gz", lines),
    "a JSON array": file("u.json", lambda rows: json.dumps(rows, indent=2)),
    "CSV": file("u.csv", delimited(",")),
    "CSV, packed": file("u.csv.gz", delimited(",")),
    "CSV with a mark": file("u.csv", delimited(",", "\ufeff")),
    "CSV with bars": file("u.csv", delimited("|")),
    "CSV as Excel names its delimiter": file("u.csv", delimited(";", "sep=;\r\n")),
    "CSV that ends in empty rows": file("u.csv", lambda rows: delimited(",")(rows) + ",,,\n ,\n"),
    "TSV": file("u.tsv", delimited("\t")),
}
SOURCES: dict[str, Make] = FILES | {
    "Parquet": parquet,
    "a folder of files": of_files,
    "save_to_disk": saved,
    "a data set": lambda rows, _: datasets.Dataset.from_dict(columns_of(rows)),
    "a table": lambda rows, _: pa.table(columns_of(rows)),
    "batches": lambda rows, _: pa.table(columns_of(rows)).to_reader(),
    "what speaks to Arrow": lambda rows, _: Stream(pa.table(columns_of(rows))),
    "views": views,
    "a frame": lambda rows, _: pd.DataFrame(columns_of(rows)),
    "a frame of objects": lambda rows, _: pd.DataFrame(columns_of(rows), dtype=object),
}
every_source = pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
every_file = pytest.mark.parametrize("make", FILES.values(), ids=FILES)


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


# ---- of every source ---------------------------------------------------------------------------


@every_source
def test_rows_come_together_by_user_with_dates_and_labels(make: Make, tmp_path: Path) -> None:
    users = load_users(make(ROWS, tmp_path), label_column="label")
    assert users.user_ids == ("b", "a", "c")  # who wrote nothing is there too
    assert users.texts == [ROWS[0]["text"], ROWS[2]["text"], ROWS[1]["text"]]
    assert users.owners.tolist() == [0, 0, 1]
    assert users.dates == [date(2025, 3, 18), None, date(2025, 3, 19)]
    assert users.labels == ["x", "y", "y"]
    assert users.since("2025-03-19").texts == [ROWS[1]["text"]]


@every_source
def test_one_odd_text_takes_nobody_elses_away(make: Make, tmp_path: Path) -> None:
    rows = [ROWS[0], {"client_id": "bad", "text": "a \0 b"}, ROWS[2]]
    rows = [{"client_id": row["client_id"], "text": row["text"]} for row in rows]
    with skipping.counting() as tally:
        users = within_limits(load_users(make(rows, tmp_path)), seed=0)
    assert users.user_ids == ("b", "bad")
    assert users.texts == [ROWS[0]["text"], ROWS[2]["text"]]
    assert (tally.records, tally.users) == (1, {"bad"})


@every_source
def test_several_columns_are_one_text_and_one_class(make: Make, tmp_path: Path) -> None:
    rows = [
        {"client_id": "ann", "title": "A title", "body": "a body", "kind": "x", "stars": "5"},
        {"client_id": "ben", "title": "", "body": "only a body", "kind": "x", "stars": "1"},
        {"client_id": "ann", "title": "only a title", "body": " ", "kind": "y", "stars": "5"},
    ]
    source = make(rows, tmp_path)
    users = load_users(source, text_column="title, body", label_column="kind,stars")
    assert users.texts == ["A title\n\na body", "only a title", "only a body"]
    assert users.labels == ["x | 5", "y | 5", "x | 1"]


@every_source
def test_a_row_or_a_source_that_does_not_say_whose_it_is_is_refused(
    make: Make, tmp_path: Path
) -> None:
    rows = [{"client_id": "a", "text": SECRET}, {"client_id": "", "text": SECRET}]
    assert "'client_id' must not be empty" in sentence(make(rows, tmp_path))
    (tmp_path / "other").mkdir()
    said = sentence(make([{"user": "a", "text": SECRET}], tmp_path / "other"))
    assert "'client_id'" in said


def test_no_name_is_not_the_folder_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "users.jsonl").write_text(json.dumps({"client_id": "a", "text": SECRET}))
    assert "is empty" in sentence("")


# ---- of files ----------------------------------------------------------------------------------


@every_file
def test_bytes_that_are_not_utf8_are_their_users_affair(make: Make, tmp_path: Path) -> None:
    rows = [{"client_id": "ann", "text": "fine"}, {"client_id": "ben", "text": "caf\udce9"}]
    source = make(rows, tmp_path)
    with skipping.counting() as tally:
        users = within_limits(load_users(source), seed=0)
    assert (users.user_ids, users.texts, tally.users) == (("ann", "ben"), ["fine"], {"ben"})
    assert "UTF-8" in sentence(source, strict=True)


@every_file
def test_no_text_decides_what_a_file_is(make: Make, tmp_path: Path) -> None:
    marks = [" " * shift + "ustar" * 60 for shift in range(5)]  # of a tar archive, at byte 257
    for text in (*marks, "\0" * 400, "<html>", "%PDF", "PK\x03\x04", "[1]", '"\r\n,\t;'):
        rows = [{"client_id": "a", "text": text}, {"client_id": "b", "text": "hello"}]
        assert load_users(make(rows, tmp_path)).user_ids == ("a", "b")


@pytest.mark.parametrize("case", BAD, ids=str)
def test_a_run_names_what_is_bad(
    case: DataCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case.make(tmp_path)
    values = {"data": case.data, **case.settings}
    chunking = Chunking(min_date=case.settings.get("min-date", ""))
    with (
        locked(tmp_path / case.locked if case.locked else None),
        pytest.raises(PrivsynError) as caught,
    ):
        read_people(OWN_DATA, values, chunking=chunking, nodes=2)
    said = str(caught.value)
    assert case.says in said
    assert SECRET not in said
    assert "\n" not in said


OWN_DATA = load_app(Path(__file__).parents[2] / "examples" / "own-data")


def test_a_run_of_bad_data_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "u.csv").write_text(f'client_id,text\nann,fine\nben,"{SECRET}\n')
    given = [str(OWN_DATA.path), "--run-dir", "run", "--set", "data=u.csv"]
    assert main(["run", *given, "--set", "accept-noise=true"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "u.csv line 3" in said
    assert SECRET not in said
    assert [path.name for path in tmp_path.iterdir()] == ["u.csv"]


GOOD = {"client_id": "a", "text": SECRET}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ('{"client_id": "a", "text": "' + SECRET, "not a JSON object"),
        (json.dumps(GOOD) + json.dumps(GOOD), "not a JSON object"),
        ({"text": SECRET}, "the key 'client_id' is missing"),
        ({"client_id": 1.5, "text": SECRET}, "'client_id' must be a string or an integer"),
        ('{"client_id": "\\ud800", "text": "x"}', "'client_id' must be text that UTF-8 can hold"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: Any, words: str) -> None:
    path = tmp_path / "users.jsonl"
    rows = [GOOD] * 16 + [bad] + [GOOD] * 3
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    assert words in (message := sentence(path))
    assert message.startswith(f"{path} line 17: ")


@pytest.mark.parametrize("value", [[SECRET], None, 5, "\ud800 half"])
def test_values_of_json_that_are_no_text(tmp_path: Path, value: object) -> None:
    rows = [GOOD, {"client_id": "bad", "text": value}, {"client_id": "7", "text": "x"}, {
        "client_id": 7, "text": "y", "date": 20250318}]  # fmt: skip
    (tmp_path / "u.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with skipping.counting() as tally:
        users = within_limits(load_users(tmp_path / "u.jsonl"), seed=0)
    assert (users.user_ids, users.texts) == (("a", "bad", "7"), [SECRET, "x", "y"])
    assert users.dates == [None] * 3  # lines have no columns, so nobody's may decide that
    assert (tally.records, tally.users) == (1, {"bad"})


def test_a_document_of_several_columns_is_left_out_whole(tmp_path: Path) -> None:
    rows = [
        {"client_id": "a", "title": 1, "body": SECRET},
        {"client_id": "a", "title": None, "body": "kept"},
        {"client_id": "b", "title": "a\0b", "body": "left out"},
        {"client_id": "c", "other": 1},
    ]
    (tmp_path / "u.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with skipping.counting() as tally:
        users = within_limits(load_users(tmp_path / "u.jsonl", text_column="title,body"), seed=0)
    assert (users.user_ids, users.texts) == (("a", "b", "c"), ["kept"])
    assert (tally.records, tally.users) == (3, {"a", "b", "c"})


def test_large_csv_is_read_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_PART_ROWS", 200)
    rows = [
        {"client_id": f"u{n % 9}", "text": f"text {n} " * 20, "note": "x" * 500}
        for n in range(2_000)
    ]
    path = FILES["CSV, packed"](rows, tmp_path)
    del rows
    tracemalloc.start()
    users = load_users(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    held = sum(len(text) + 57 for text in users.texts)
    assert len(users.texts) == 2_000
    assert most < 3 * held  # the column that is not read is as large as all others twice


def test_texts_of_a_folder_are_of_whom_the_names_say(tmp_path: Path) -> None:
    notes = {"notes/ann/1.txt": "a", "notes/ann/more/2.txt": "b", "notes/ben/1.txt": "c"}
    folder_of(notes | {"notes/ben/.2.txt.swp": "passed over"})(tmp_path)
    users = load_users(tmp_path / "notes")
    assert (users.user_ids, users.texts, users.dates) == (("ann", "ben"), ["a", "b", "c"], None)
    files: dict[str, str | bytes] = {"all/ann.txt": "\ufeffa", "all/ben.txt": b"caf\xe9"}
    folder_of(files)(tmp_path)
    with skipping.counting() as tally:
        users = within_limits(load_users(tmp_path / "all"), seed=0)
    assert (users.user_ids, users.texts, tally.users) == (("ann", "ben"), ["a"], {"ben"})


@pytest.mark.parametrize("journal", ["_delta_log/0.json", ".hoodie/hoodie.properties"])
def test_a_table_that_keeps_deleted_rows_is_refused(tmp_path: Path, journal: str) -> None:
    folder_of({"all/1.jsonl": json.dumps(GOOD), f"all/{journal}": "{}"})(tmp_path)
    assert "hold rows that were deleted or changed" in sentence(tmp_path / "all")


# ---- types of Arrow and pandas -----------------------------------------------------------------


@pytest.mark.parametrize(
    "dates",
    [
        pa.array([date(2025, 3, 18), None]),
        pa.array([datetime(2025, 3, 18, 7), None], pa.timestamp("us")),
        pa.array([datetime(2025, 3, 18, 7), None], pa.timestamp("ns", tz="UTC")),
        pa.array([datetime(2025, 3, 18), None], pa.date64()),
        pa.array(["2025-03-18T10:00:00+02:00", SECRET]).dictionary_encode(),
        # A day beyond the calendar is unknown; the third wraps around in 32 bits.
        pa.array([20_165, 3_700_000], pa.int32()).cast(pa.date32()),
        pa.array([20_165 * 86_400, 2**32 * 86_400], pa.int64()).cast(pa.timestamp("s")),
    ],
    ids=lambda dates: str(dates.type),
)
def test_every_type_of_date(tmp_path: Path, dates: Any) -> None:
    table = pa.table({"client_id": pa.array(["a", "b"]).dictionary_encode(), "text": ["x", "y"]})
    pq.write_table(table.append_column("date", dates), tmp_path / "u.parquet")
    assert load_users(tmp_path / "u.parquet").dates == [date(2025, 3, 18), None]


def test_a_column_of_another_type(tmp_path: Path) -> None:
    table = pa.table({"client_id": [1, 2], "text": ["x", "y"], "number": [0.5, 1.5]})
    assert load_users(table).user_ids == ("1", "2")
    assert "'number' must be a string, but the column" in sentence(table, text_column="number")
    said = sentence(table, client_column="number")
    assert "row 1: 'number' must be a string or an integer, not float" in said
    assert "astype('Int64')" in said
    # Of dates and labels it matters only where they are asked for.
    users = load_users(table, date_column="number")
    assert users.dates is None
    with pytest.raises(DataError, match="min-date .* date-column"):
        users.since("2025-01-01")


def test_bad_utf8_in_parquet_and_a_row_by_its_place_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_PART_ROWS", 2)
    texts = pa.array([b"fine", b"\xff\xfe", None, b"a\0b", b"also"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), len(texts), texts.buffers())
    path = tmp_path / "u.parquet"
    pq.write_table(pa.table({"client_id": list("abbca"), "text": texts}), path)
    with skipping.counting() as tally:
        users = within_limits(load_users(path), seed=0)
    assert (users.user_ids, users.texts) == (("a", "b", "c"), ["fine", "also"])
    assert (tally.records, tally.users) == (3, {"b", "c"})
    pq.write_table(pa.table({"client_id": ["a", "b", "b", None, "a"], "text": texts}), path)
    assert "row 4: 'client_id' must be a string or an integer, not null" in sentence(path)


def test_columns_of_a_frame_may_be_numbers() -> None:
    frame = pd.DataFrame([("ann", "court"), ("bob", "tax")])
    assert load_users(frame, client_column=0, text_column=1).user_ids == ("ann", "bob")  # type: ignore
    assert "'0', '1'" in sentence(frame, strict=True)
    assert "['text']" in sentence(frame, client_column="0", text_column=["text"])


def test_a_dict_is_no_source() -> None:
    assert sentence({"client_id": ["ann"], "text": ["court"]}).endswith("got dict.")


def test_one_odd_cell_of_a_frame_is_its_users_affair() -> None:
    frame = pd.DataFrame(
        {
            "client_id": ["a", 2, "c", np.int64(2), "d", "e", "f", "g", "a", "a"],
            "text": ["x", "y", 3.5, "z", np.nan, "half \ud800", b"bytes", ["a list"], "v", "w"],
            "date": [
                date(2025, 3, 18),
                "2025-03-19",
                pd.NaT,
                datetime(2025, 3, 20),
                7,
                None,
                7,
                None,
                pd.Timestamp(np.datetime64("20000-01-01", "s")),
                b"?",
            ],
            "label": ["news", 1, 2.0, 10**5000, pd.NA, None, None, None, None, None],
            "other": [object(), 1, "x", None, 2, 3, 4, 5, 6, 7],  # read by nobody, nor by Arrow
        },
        dtype=object,
    )
    with skipping.counting() as tally:
        users = within_limits(load_users(frame, label_column="label"), seed=0)
    assert users.user_ids == ("a", "2", "c", "d", "e", "f", "g")
    assert users.texts == ["x", "v", "w", "y", "z"]
    assert users.dates == [date(2025, 3, 18), None, None, date(2025, 3, 19), date(2025, 3, 20)]
    assert users.labels == ["news", None, None, "1", None]
    assert tally.users == {"c", "d", "e", "f", "g"}
    nothing = pd.DataFrame({"client_id": ["ann"], "text": [np.nan], "date": [np.nan]})
    assert (load_users(nothing).user_ids, load_users(nothing).texts) == (("ann",), [])


def test_a_column_may_be_called_0(tmp_path: Path) -> None:
    """As pandas calls those of a table without names, and TOML reads a number."""
    table = tmp_path / "u.csv"
    table.write_text("0,client_id,text\nann,x,some text\nben,x,other text\n")
    assert load_configured({"data": str(table), "client-column": 0}).user_ids == ("ann", "ben")


# ---- partitions ---------------------------------------------------------------------------------


def test_a_nodes_users_are_its_part_of_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_PART_ROWS", 64)
    drawn, nodes = np.random.default_rng(1).integers(0, 40, 700).tolist(), 5
    rows = [
        {
            "client_id": f"user {user}",
            "text": "nul \0" if row % 11 == 0 else f"text {row} " + "x" * (row % 60),
            "label": ("a", "b", None)[row % 3],
        }
        for row, user in enumerate(drawn)
    ]
    configuration = {"data": str(parquet(rows, tmp_path))}
    everybody = load_configured(configuration, labels=True)
    parts = [everybody.partition(partition_id=node, num_partitions=nodes) for node in range(nodes)]
    counted = 0
    for part in parts:
        with skipping.counting() as tally:
            within_limits(within_limits(part, seed=0), seed=0)  # once, not twice
        assert tally.users == {f"user {drawn[row]}" for row in range(0, 700, 11)} & {*part.user_ids}
        counted += tally.records
    assert counted == len(range(0, 700, 11))
    assert sum(len(part.texts) for part in parts) == len(everybody.texts) == 700 - counted
