"""Every kind of data, good and bad, as a user names it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from pathlib import Path

import pytest

from flower_privsyn.cli import main
from flower_privsyn.data import load_configured, load_users
from flower_privsyn.privacy import skipping
from tests.support.data_cases import BAD, GOOD, ROWS, SECRET, DataCase, content, delimited, locked

OWN_DATA = Path(__file__).parents[2] / "examples" / "own-data"


@pytest.mark.parametrize("case", GOOD, ids=str)
def test_good_data_are_read(
    case: DataCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case.make(tmp_path)
    with skipping.counting() as tally:
        users = load_configured({"data": case.data, **case.settings}, strict=True)
    expected = [ROWS[0]["text"], ROWS[2]["text"], ROWS[1]["text"]]
    assert users.texts == (expected if case.texts is None else case.texts)
    assert len(users) == 2
    assert not tally


@pytest.mark.parametrize("case", BAD, ids=str)
def test_a_run_names_what_is_bad(
    case: DataCase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    case.make(tmp_path)
    settings = {"data": case.data, **case.settings}
    settings["accept-noise"] = "true"  # two users are few
    given = [word for key in settings for word in ("--set", f"{key}={settings[key]}")]
    with locked(tmp_path / case.locked if case.locked else None):
        assert main(["run", str(OWN_DATA), "--run-dir", "run", *given]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert case.says in said[0]
    assert SECRET not in said[0]
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "run.owner").exists()


# ---- what one user wrote is that user's ---------------------------------------------------------


@pytest.mark.parametrize("name", ["u.csv", "u.csv.gz", "u.tsv"])
def test_a_node_leaves_out_what_is_no_text(tmp_path: Path, name: str) -> None:
    rows = b'client_id,text\nann,"fine"\nben,"caf\xe9"\nben,a\0b\nann,"also\nfine"\n'
    content(rows.replace(b",", b"\t") if "tsv" in name else rows, name)(tmp_path)
    with skipping.counting() as tally:
        users = load_users(tmp_path / name)
    assert (users.user_ids, users.texts) == (("ann", "ben"), ["fine", "also\nfine"])
    assert (tally.records, tally.users) == (2, {"ben"})


def test_a_node_leaves_out_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "ann.txt").write_text("fine")
    (tmp_path / "ben.txt").write_bytes(b"caf\xe9")
    (tmp_path / "cem.txt").write_bytes(b"a\0b")
    (tmp_path / ".ann.txt.swp").write_text("passed over")
    with skipping.counting() as tally:
        users = load_users(tmp_path)
    assert (users.user_ids, users.texts) == (("ann", "ben", "cem"), ["fine"])
    assert (tally.records, tally.users) == (2, {"ben", "cem"})
    assert users.dates is None


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "tsv", "csv.gz"])
def test_no_text_decides_what_a_file_is(tmp_path: Path, suffix: str) -> None:
    """What one user wrote must not decide whether the others are asked."""
    form, _, packed = suffix.partition(".")
    marks = [" " * shift + "ustar" * 60 for shift in range(5)]  # of a tar archive, at byte 257
    file = tmp_path / f"users.{suffix}"
    for text in (*marks, "\0" * 400, "<html>", "%PDF", "PK\x03\x04", "[1]", '"\r\n,\t;'):
        file.write_bytes(_written(form, [("a", text), ("b", "hello")], packed=packed))
        assert load_users(file).user_ids == ("a", "b")


def _written(form: str, rows: list[tuple[str, str]], *, packed: str) -> bytes:
    if form in ("csv", "tsv"):
        out = io.StringIO()
        writer = csv.writer(out, delimiter="," if form == "csv" else "\t")
        writer.writerows([("client_id", "text"), *rows])
        content = out.getvalue().encode()
    else:
        objects = [{"client_id": client, "text": text} for client, text in rows]
        lines = [json.dumps(one) for one in objects]
        content = (json.dumps(objects) if form == "json" else "\n".join(lines)).encode()
    return gzip.compress(content) if packed else content


def test_a_document_of_several_columns_is_left_out_whole(tmp_path: Path) -> None:
    rows = [
        {"client_id": "a", "title": 1, "body": SECRET},
        {"client_id": "a", "title": None, "body": "kept"},
        {"client_id": "b", "title": "a\0b", "body": "left out"},
        {"client_id": "c", "other": 1},
    ]
    (tmp_path / "u.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with skipping.counting() as tally:
        users = load_users(tmp_path / "u.jsonl", text_column="title,body")
    assert (users.user_ids, users.texts) == (("a", "b", "c"), ["kept"])
    assert (tally.records, tally.users) == (3, {"a", "b", "c"})


def test_large_csv_is_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "u.csv.gz"
    rows = [
        {"client_id": f"u{n % 9}", "text": f"text {n} " * 20, "note": "x" * 500}
        for n in range(8_000)
    ]
    path.write_bytes(gzip.compress(delimited(rows).encode(), 1))
    del rows
    load_users(path)  # imports and pools
    tracemalloc.start()
    users = load_users(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(users.texts) == 8_000
    held = sum(len(text) + 57 for text in users.texts)
    assert most < 3 * held  # the column that is not read is as large as all others twice
