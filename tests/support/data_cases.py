"""Files, folders and names of data that are refused, and what is to be said of them.

One table for all that reads what a user names: the library, `privsyn run` and other commands.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

#: Stands in the text of bad data; no sentence may quote it.
SECRET = "the private words nobody may see"

#: Two users, three documents.
ROWS = [
    {"client_id": "ann", "text": 'one "quoted", and\na second line', "date": "2025-03-18"},
    {"client_id": "ben", "text": "zweiter Text: \u00fc", "date": "2025-03-19"},
    {"client_id": "ann", "text": "another one", "date": "2025-03-20"},
]

Make = Callable[[Path], object]


@dataclass(frozen=True)
class DataCase:
    """What a user may name.

    Attributes:
        name: of the case.
        data: what the user names, relative to a folder.
        make: puts it into the folder.
        says: words of the sentence that refuses it.
        settings: beside `data`, by the names of a node's settings.
        locked: the file or folder of it that nobody may read.
    """

    name: str
    data: str
    make: Make
    says: str
    settings: Mapping[str, str] = field(default_factory=dict)
    locked: str = ""

    def __str__(self) -> str:
        return self.name


@contextlib.contextmanager
def locked(path: Path | None, *, mode: int = 0) -> Iterator[None]:
    """A file or a folder that this process may not use inside the block, also if it is root's.

    Args:
        path: the file or folder; None for none.
        mode: what it may: 0 for nothing, 0o555 for all but writing.
    """
    if path is None:
        yield
        return
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        with _without_roots_rights() if os.geteuid() == 0 else contextlib.nullcontext():
            yield
    finally:
        path.chmod(before)


@contextlib.contextmanager
def _without_roots_rights() -> Iterator[None]:
    """Modes of files hold for root too: this thread without CAP_DAC_OVERRIDE and its like."""
    system = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this thread
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 bits

    def call(function: Callable[..., int]) -> None:
        if function(header, sets):
            raise OSError(ctypes.get_errno(), "capabilities")

    call(system.capget)
    effective = sets[0]
    sets[0] = effective & ~0b110
    call(system.capset)
    try:
        yield
    finally:
        sets[0] = effective
        call(system.capset)


# ---- how they are written ----------------------------------------------------------------------


def content(text: str | bytes, name: str) -> Make:
    """A file of this content; packed where its name ends in .gz."""
    raw = text.encode() if isinstance(text, str) else text
    packed = gzip.compress(raw) if name.endswith(".gz") else raw

    def make(folder: Path) -> object:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        return (folder / name).write_bytes(packed)

    return make


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def delimited(rows: list[Any], delimiter: str = ",") -> str:
    import csv

    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def folder_of(files: Mapping[str, str | bytes]) -> Make:
    def make(folder: Path) -> None:
        for name, text in files.items():
            content(text, name)(folder)

    return make


def parquet(table: Mapping[str, Any], name: str) -> Make:
    return lambda folder: pq.write_table(pa.table(dict(table)), folder / name)


def archive(inside: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr(inside, SECRET)
    return file.getvalue()


def _columns(rows: list[Any]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


# ---- the table ---------------------------------------------------------------------------------

_PRETTY = json.dumps(ROWS, indent=2)
_BYTES = b'client_id,text\nann,fine\nben,"caf\xe9"\n'
_FOLDER = {"notes/ann/1.txt": "a", "notes/ann/more/2.txt": "b", "notes/ben/1.txt": "c"}
_GOOD_LINES, _GOOD_CSV = lines(ROWS), delimited(ROWS)
_LEAF = {"users": ["ann"], "num_samples": [1], "user_data": {"ann": {"x": [SECRET], "y": ["o"]}}}
_NUMBERS = [{"client_id": name, "text": number} for name, number in (("a", 1), ("b", 2.5))]
_ONE = [row | {"client_id": "ann"} for row in ROWS]
_BROKEN_QUOTE = f'client_id,text\nann,fine\nben,"{SECRET}\n'
_BARE = f"client_id,text\nann,fine\nben,{SECRET}, and more\n"


def _half(folder: Path) -> None:
    (folder / "u.csv.gz").write_bytes(gzip.compress(_GOOD_CSV.encode())[:-12])


def _file(name: str, file: str, text: str | bytes, says: str, **settings: str) -> DataCase:
    """A single file that is refused."""
    named = {key.replace("_", "-"): value for key, value in settings.items()}
    return DataCase(name, file, content(text, file), says, settings=named)


BAD = [
    DataCase("nothing there", "u.csv", lambda folder: None, "u.csv"),
    DataCase("no home", "~nouser/u.csv", lambda folder: None, "data = ~nouser/u.csv"),
    *(_file(f"empty {name}", name, "", name) for name in ("u.jsonl", "u.csv", "u.parquet")),
    _file("an empty array", "u.json", "[ ]", "u.json"),
    DataCase("an empty folder", "all", lambda f: (f / "all").mkdir(), "all"),
    DataCase(
        "a folder of empty files",
        "all",
        folder_of({"all/1.csv": "client_id,text\n", "all/2.jsonl": "", "all/3.jsonl": " "}),
        "all",
    ),
    _file("a header alone", "u.csv", "client_id,text\n", "u.csv"),
    DataCase("empty texts", "notes", folder_of({"notes/a.txt": "", "notes/b.txt": " \n"}), "notes"),
    _file("one user", "u.jsonl", lines(_ONE), "at least 2 users"),
    _file("not UTF-8 CSV", "u.csv", _BYTES, "u.csv line 3"),
    _file("not UTF-8 JSON lines", "u.jsonl", lines(ROWS).encode("latin-1"), "u.jsonl line 2"),
    DataCase(
        "not UTF-8 texts",
        "notes",
        folder_of({"notes/a.txt": "x", "notes/b.txt": b"caf\xe9"}),
        "b.txt",
    ),
    _file("UTF-16", "u.csv", _GOOD_CSV.encode("utf-16"), "UTF-16"),
    _file("numbers JSON lines", "u.jsonl", lines(_NUMBERS), "text column"),
    _file("numbers CSV", "u.csv", delimited(_NUMBERS), "u.csv"),
    DataCase(
        "numbers Parquet",
        "u.parquet",
        parquet({"client_id": ["a", "b"], "text": [1, 2]}, "u.parquet"),
        "'text'",
    ),
    _file("an array of texts", "u.json", json.dumps([SECRET]), "u.json"),
    _file("a broken array", "u.json", _PRETTY[:-20], "u.json line"),
    _file("LEAF's JSON", "u.json", json.dumps(_LEAF), "LEAF"),
    _file("users by their names", "u.json", json.dumps({"ann": [SECRET], "ben": []}), "LEAF"),
    _file("CSV called JSON lines", "u.jsonl", _GOOD_CSV, "u.jsonl"),
    _file("CSV without a name", "users", "client_id,text\na,b\n", ".csv"),
    _file("a single text", "u.txt", SECRET, "u.txt"),
    _file("a ZIP archive", "u.csv", archive("u.csv"), "ZIP"),
    _file("text called Parquet", "u.parquet", SECRET, "u.parquet"),
    DataCase("half a gzip file", "u.csv.gz", _half, "gzip"),
    *(
        DataCase(
            f"a mistyped user column {name}",
            name,
            make,
            "'client_ids'",
            settings={"client-column": "client_ids"},
        )
        for name, make in (
            ("u.jsonl", content(_GOOD_LINES, "u.jsonl")),
            ("u.csv", content(_GOOD_CSV, "u.csv")),
            ("u.parquet", parquet(_columns(ROWS), "u.parquet")),
        )
    ),
    _file("a mistyped text column lines", "u.jsonl", _GOOD_LINES, "'texts'", text_column="texts"),
    _file("a mistyped text column CSV", "u.csv", _GOOD_CSV, "'texts'", text_column="texts"),
    _file("no names of columns", "u.csv", f'a,"{SECRET}"\nb,"{SECRET}"\n', "'client_id'"),
    _file("half a quote", "u.csv", _BROKEN_QUOTE, "u.csv line 3"),
    _file("a bare comma", "u.csv", _BARE, "u.csv line 3"),
    _file("a user without a name", "u.csv", "client_id,text\n,x\n", "'client_id'"),
    _file("a column twice", "u.csv", "client_id,text,text\na,b,c\n", "'text'"),
    DataCase(
        "texts beside folders of texts",
        "notes",
        folder_of(_FOLDER | {"notes/other.txt": "x"}),
        "notes",
    ),
    *(
        DataCase(f"locked {what}", what, make, locked, locked=locked)
        for what, make, locked in (
            ("u.csv", content(_GOOD_CSV, "u.csv"), "u.csv"),
            ("notes", folder_of(_FOLDER), "notes/ben"),
        )
    ),
    _file(
        "a column of dates mistyped, and needed",
        "u.csv",
        _GOOD_CSV,
        "min-date",
        min_date="2025-01-01",
        date_column="dat",
    ),
    DataCase(
        "dates of texts",
        "notes",
        folder_of(_FOLDER),
        "min-date",
        settings={"min-date": "2025-01-01"},
    ),
]
