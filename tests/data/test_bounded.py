"""What a file may expand to while it is read."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flower_privsyn.data import bounded, load_users, public_texts
from flower_privsyn.data.limits import within_limits
from flower_privsyn.errors import DataError

MIB = 2**20


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits a small file can break."""
    monkeypatch.setattr(bounded, "FREE_BYTES", MIB)
    monkeypatch.setattr(bounded, "MAX_LINE_BYTES", 4096)
    monkeypatch.setattr(bounded, "MAX_STRING_BYTES", 2 * 4096)


def line(user: str, text: str, **more: object) -> str:
    return json.dumps({"client_id": user, "text": text, **more}) + "\n"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["u.jsonl.gz", "u.json.gz"])
def test_a_small_file_does_not_become_a_large_one(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(line("a", "a" * 24 * MIB).encode()))
    assert path.stat().st_size < 30_000
    tracemalloc.start()
    with pytest.raises(DataError) as refused:
        load_users(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    limit = bounded.allowance(path.stat().st_size)
    assert str(refused.value) == (
        f"{path} holds more than {limit:,} bytes when it is decompressed; a compressed file may "
        "hold 100 times its own size, or 1,048,576 bytes where that is more, and never above "
        "17,179,869,184."
    )
    assert most < 2 * limit + MIB


@pytest.mark.usefixtures("small")
def test_public_text_is_bounded_too(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"text": "a" * 8 * MIB}).encode()))
    with pytest.raises(DataError, match=r'public-text = ".*": .* holds more than 1,048,576 bytes'):
        public_texts(str(path), tokenizer=None)


def test_what_a_file_may_hold_follows_its_size() -> None:
    assert bounded.allowance(306_000) == 2**25
    assert bounded.allowance(10**6) == 10**8
    assert bounded.allowance(10**12) == 2**34


@pytest.mark.usefixtures("small")
def test_a_parquet_file_that_names_one_string_often(tmp_path: Path) -> None:
    path = tmp_path / "u.parquet"
    rows = 20_000
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["b" * 65_536])
    pq.write_table(pa.table({"client_id": ["u"] * rows, "text": text}), path)
    assert path.stat().st_size < 30_000  # of 1.3 GB of text
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(DataError, match=r"u.parquet holds more than .* bytes when it is decom"):
        load_users(path)
    assert pa.default_memory_pool().max_memory() - before < 16 * MIB


@pytest.mark.usefixtures("small")
def test_parquet_pages_are_counted_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "u.parquet"
    table = pa.table({"client_id": ["u"], "text": ["b" * 8 * MIB]})
    pq.write_table(table, path, compression="zstd")

    def read(*arguments: object, **options: object) -> None:
        raise AssertionError("pages were read")

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read)
    with pytest.raises(DataError, match="holds more than"):
        load_users(path)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("where", ["first", "last"])
def test_a_text_that_is_too_long_is_its_users_problem(tmp_path: Path, where: str) -> None:
    path = tmp_path / "u.jsonl"
    long = {"text": 'x\\"' * 10_000, "client_id": "long"}
    long = long if where == "first" else dict(reversed(long.items()))
    path.write_text(json.dumps(long) + "\n" + line("a", "one") + line("long", "short"))
    # As in a file whose lines Arrow's parser does not take.
    path.write_text(path.read_text() + '{"client_id": 7, "text": null}\n')
    users = within_limits(load_users(path), seed=0)
    assert users.user_ids == ("long", "a", "7")
    assert sorted(zip(users.owners.tolist(), users.texts, strict=True)) == [
        (0, "short"), (1, "one"),
    ]  # fmt: skip


@pytest.mark.usefixtures("small")
def test_a_line_that_is_long_without_its_texts_is_its_users(tmp_path: Path) -> None:
    path = tmp_path / "u.jsonl"
    rubbish = '{"client_id": "a", "text": "b", "more": [' + "[]," * 3000 + "[]]}\n"
    path.write_text(line("a", "one") + rubbish + '{"client_id": 7, "text": "c"}\n')
    users = load_users(path)
    assert (users.user_ids, users.texts) == (("a", "7"), ["one", "b", "c"])
    path.write_text(rubbish.replace("]}", "}}") + line("a", "one"))
    with pytest.raises(DataError, match="line 1: not a JSON object"):
        load_users(path)


def test_ordinary_files_are_read_as_before(tmp_path: Path) -> None:
    rows = "".join(line(f"u{n % 7}", f"text {n} \u2028 é", date="2025-01-02") for n in range(5000))
    plain, packed, parquet = (tmp_path / name for name in ("u.jsonl", "u.jsonl.gz", "u.parquet"))
    plain.write_text(rows)
    packed.write_bytes(gzip.compress(rows.encode()))
    table = pa.Table.from_pylist([json.loads(row) for row in rows.splitlines()])
    pq.write_table(table, parquet, row_group_size=999)
    users = [load_users(path) for path in (plain, packed, parquet)]
    assert len(users[0].texts) == 5000
    for other in users[1:]:
        assert other.user_ids == users[0].user_ids
        assert other.texts == users[0].texts
        assert other.dates == users[0].dates
        assert other.owners.tolist() == users[0].owners.tolist()
    (content,) = [bounded.read_bytes(packed)]
    assert [number for number, _ in bounded.lines(content)] == list(range(1, 5001))
    blank = bytearray(b"\n \na\n\nb")
    assert list(bounded.lines(blank)) == [(3, b"a"), (5, b"b")]
