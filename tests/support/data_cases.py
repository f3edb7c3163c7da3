"""Files, folders and names of data, good and bad, and what is to be said of the bad ones.

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

#: What every good source holds: two users, three documents.
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
        says: words of the sentence that refuses it; empty where it is read.
        settings: beside `data`, by the names of a node's settings.
        locked: the file or folder of it that nobody may read.
        texts: that are read, of everybody together; None for those of `ROWS`.
    """

    name: str
    data: str
    make: Make
    says: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    locked: str = ""
    texts: list[str] | None = None

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


def parquet_bytes(table: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(dict(table)), file)
    return file.getvalue()


def archive(inside: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr(inside, SECRET)
    return file.getvalue()


def _columns(rows: list[Any]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


# ---- the table ---------------------------------------------------------------------------------

_PRETTY = json.dumps(ROWS, indent=2)
_CHINESE = [{"client_id": name, "text": "\u4eca\u5929\u5929\u6c14\u5f88\u597d"} for name in "ab"]
_LONG = [*ROWS, {"client_id": "ben", "text": "word " * 200_000, "date": None}]
_TWO = [
    {"client_id": "ann", "title": "A title", "body": "a body"},
    {"client_id": "ben", "title": "", "body": "only a body"},
    {"client_id": "ann", "title": "only a title", "body": " "},
]
_JOINED = ["A title\n\na body", "only a title", "only a body"]
_BYTES = b'client_id,text\nann,fine\nben,"caf\xe9"\n'
_FOLDER = {"notes/ann/1.txt": "a", "notes/ann/more/2.txt": "b", "notes/ben/1.txt": "c"}

GOOD = [
    *(
        DataCase(f"JSON lines {name}", name, content(lines(ROWS), name))
        for name in (
            "u.jsonl",
            "u.jsonl.gz",
            "u.json",
            "u.ndjson",
            "u.data",
            "a path/my users.jsonl",
        )
    ),
    *(
        DataCase(f"JSON array {name}", name, content(_PRETTY, name))
        for name in ("u.json", "u.json.gz", "u.jsonl", "a path/my users.json")
    ),
    *(
        DataCase(f"CSV {name}", name, content(delimited(ROWS), name))
        for name in ("u.csv", "u.csv.gz", "a path/my users.csv")
    ),
    *(
        DataCase(f"TSV {name}", name, content(delimited(ROWS, "\t"), name))
        for name in ("u.tsv", "u.tsv.gz", "u.tab", "u.csv")
    ),
    DataCase("CSV with semicolons", "u.csv", content(delimited(ROWS, ";"), "u.csv")),
    DataCase("CSV with a mark", "u.csv", content("\ufeff" + delimited(ROWS), "u.csv")),
    DataCase("CSV of Unix", "u.csv", content(delimited(ROWS).replace("\r\n", "\n"), "u.csv")),
    DataCase("Parquet", "u.parquet", parquet(_columns(ROWS), "u.parquet")),
    DataCase("Parquet under another name", "u.pq", parquet(_columns(ROWS), "u.pq")),
    DataCase(
        "a folder of files",
        "all",
        folder_of({"all/1.csv": delimited(ROWS[:1]), "all/2.jsonl": lines(ROWS[1:])}),
    ),
    DataCase(
        "a folder with empty parts",
        "all",
        folder_of(
            {
                "all/0.jsonl": "",
                "all/1.csv": delimited(ROWS),
                "all/2.csv": "client_id,text\n",
                "all/3.json": "[]",
                "all/4.parquet": parquet_bytes({"client_id": [], "text": []}),
                "all/_SUCCESS": "",
                "all/.1.csv.crc": "x",
                "all/._1.csv": "not a row",
            }
        ),
    ),
    DataCase(
        "folders of files",
        "all",
        folder_of(
            {
                "all/d=1/p.csv": delimited(ROWS[:1]),
                "all/d=2/deep/p.jsonl": lines(ROWS[1:]),
                "all/_temporary/0/p.csv": "not a row",
                "all/.spark-staging/p.csv": "not a row",
            }
        ),
    ),
    DataCase("a folder of folders of texts", "notes", folder_of(_FOLDER), texts=["a", "b", "c"]),
    DataCase(
        "a folder of texts",
        "my notes",
        folder_of({"my notes/ann.txt": "a\nb", "my notes/ben.txt": "\ufeffc"}),
        texts=["a\nb", "c"],
    ),
    *(
        DataCase(
            f"several columns {name}",
            name,
            content(text, name),
            settings={"text-column": "title, body"},
            texts=_JOINED,
        )
        for name, text in (
            ("u.jsonl", lines(_TWO)),
            ("u.json", json.dumps(_TWO)),
            ("u.csv", delimited(_TWO)),
            ("u.tsv", delimited(_TWO, "\t")),
        )
    ),
    DataCase(
        "several columns Parquet",
        "u.parquet",
        parquet(_columns(_TWO), "u.parquet"),
        settings={"text-column": "title,body"},
        texts=_JOINED,
    ),
    *(
        DataCase(f"Chinese {name}", name, content(text, name), texts=[r["text"] for r in _CHINESE])
        for name, text in (("u.jsonl", lines(_CHINESE)), ("u.csv", delimited(_CHINESE)))
    ),
    *(
        DataCase(
            f"a line of 1 MB {name}",
            name,
            content(text, name),
            texts=[ROWS[0]["text"], ROWS[2]["text"], ROWS[1]["text"], "word " * 200_000],
        )
        for name, text in (
            ("u.jsonl", lines(_LONG)),
            ("u.json", json.dumps(_LONG)),
            ("u.csv", delimited(_LONG)),
            ("u.tsv", delimited(_LONG, "\t")),
        )
    ),
    DataCase(
        "dates that are none",
        "u.parquet",
        parquet(_columns(ROWS) | {"date": [1, 2, 3]}, "u.parquet"),
    ),
    DataCase(
        "dates that cannot be read",
        "u.csv",
        content(delimited([row | {"date": "soon"} for row in ROWS]), "u.csv"),
    ),
]

_GOOD_LINES, _GOOD_CSV = lines(ROWS), delimited(ROWS)
_NUMBERS = [{"client_id": name, "text": number} for name, number in (("a", 1), ("b", 2.5))]
_ONE = [row | {"client_id": "ann"} for row in ROWS]
_BROKEN_QUOTE = f'client_id,text\nann,fine\nben,"{SECRET}\n'
_BARE = f"client_id,text\nann,fine\nben,{SECRET}, and more\n"


def _half(folder: Path) -> None:
    (folder / "u.csv.gz").write_bytes(gzip.compress(_GOOD_CSV.encode())[:-12])


BAD = [
    DataCase("nothing there", "u.csv", lambda folder: None, "u.csv does not exist."),
    DataCase(
        "no home", "~nouser/u.csv", lambda folder: None, "data = ~nouser/u.csv: there is no home"
    ),
    *(
        DataCase(f"empty {name}", name, content("", name), f"{name} is empty.")
        for name in ("u.jsonl", "u.json", "u.csv", "u.tsv", "u.parquet", "u.csv.gz", "u.jsonl.gz")
    ),
    *(
        DataCase(f"blank {name}", name, content(" \n\n ", name), f"{name} is empty.")
        for name in ("u.jsonl", "u.json", "u.csv")
    ),
    DataCase("an empty array", "u.json", content("[ ]", "u.json"), "u.json is empty."),
    DataCase(
        "an empty folder", "all", lambda f: (f / "all").mkdir(), "all holds no data file (.jsonl"
    ),
    DataCase(
        "a folder of empty files",
        "all",
        folder_of({"all/1.csv": "client_id,text\n", "all/d=1/2.jsonl": "", "all/3.jsonl": " "}),
        "all holds no rows: all of its 2 data files are empty",
    ),
    DataCase(
        "a folder that names nobody",
        "all",
        folder_of({"all/client_id=__HIVE_DEFAULT_PARTITION__/1.csv": "text\na\n"}),
        "lies in a folder that names no 'client_id'",
    ),
    DataCase(
        "a header alone", "u.csv", content("client_id,text\n", "u.csv"), "holds no rows below"
    ),
    DataCase(
        "empty texts",
        "notes",
        folder_of({"notes/a.txt": "", "notes/b.txt": " \n"}),
        "notes: there is no usable text",
    ),
    *(
        DataCase(
            f"one user {name}",
            name,
            content(text, name),
            "1 takes part, and a run needs at least 2 users",
        )
        for name, text in (
            ("u.jsonl", lines(_ONE)),
            ("u.json", json.dumps(_ONE)),
            ("u.csv", delimited(_ONE)),
        )
    ),
    DataCase(
        "one user in a folder",
        "notes",
        folder_of({"notes/a.txt": "x"}),
        "1 takes part, and a run needs at least 2",
    ),
    DataCase(
        "not UTF-8 CSV", "u.csv", content(_BYTES, "u.csv"), "u.csv line 3: the text is not UTF-8"
    ),
    DataCase(
        "not UTF-8 TSV",
        "u.tsv",
        content(_BYTES.replace(b",", b"\t"), "u.tsv"),
        "line 3: the text is not UTF-8",
    ),
    DataCase(
        "not UTF-8 JSON lines",
        "u.jsonl",
        content(lines(ROWS).encode("latin-1"), "u.jsonl"),
        "u.jsonl line 2: the text is not UTF-8",
    ),
    DataCase(
        "not UTF-8 JSON array",
        "u.json",
        content(json.dumps(ROWS, ensure_ascii=False).encode("latin-1"), "u.json"),
        "u.json entry 2: the text is not UTF-8",
    ),
    DataCase(
        "not UTF-8 texts",
        "notes",
        folder_of({"notes/a.txt": "x", "notes/b.txt": b"caf\xe9"}),
        "b.txt: the text is not UTF-8",
    ),
    *(
        DataCase(
            f"UTF-16 {name}",
            name,
            content(text.encode("utf-16"), name),
            f"{name} looks like UTF-16 text",
        )
        for name, text in (("u.csv", _GOOD_CSV), ("u.jsonl", _GOOD_LINES))
    ),
    DataCase(
        "UTF-16 unmarked",
        "u.csv",
        content(_GOOD_CSV.encode("utf-16-le"), "u.csv"),
        "looks like UTF-16",
    ),
    *(
        DataCase(
            f"numbers {name}",
            name,
            content(text, name),
            "'text' must be a string, and is one in no row",
        )
        for name, text in (("u.jsonl", lines(_NUMBERS)), ("u.json", json.dumps(_NUMBERS)))
    ),
    DataCase(
        "numbers CSV",
        "u.csv",
        content(delimited(_NUMBERS), "u.csv"),
        "u.csv: every text is a number",
    ),
    DataCase(
        "numbers Parquet",
        "u.parquet",
        parquet({"client_id": ["a", "b"], "text": [1, 2]}, "u.parquet"),
        "'text' must be a string, but the column holds int64",
    ),
    DataCase(
        "an array of numbers",
        "u.json",
        content("[1, 2]", "u.json"),
        "looks like a JSON array of numbers",
    ),
    DataCase(
        "an array of texts",
        "u.json",
        content(json.dumps([SECRET]), "u.json"),
        "a JSON array of texts",
    ),
    DataCase(
        "a broken array",
        "u.json",
        content(_PRETTY[:-20], "u.json"),
        "u.json: the JSON array is broken at its entry 3",
    ),
    DataCase(
        "one object over lines",
        "u.jsonl",
        content(json.dumps(ROWS[0], indent=2), "u.jsonl"),
        "not a JSON object, so nobody knows whose it is; it looks like one object over several",
    ),
    DataCase(
        "CSV called JSON lines",
        "u.jsonl",
        content(_GOOD_CSV, "u.jsonl"),
        "the file looks like comma-sep",
    ),
    DataCase(
        "text called JSON lines",
        "u.jsonl",
        content(SECRET, "u.jsonl"),
        "the file looks like plain text",
    ),
    DataCase(
        "CSV without a name",
        "users",
        content("client_id,text\na,b\n", "users"),
        "give it a name that ends in .csv",
    ),
    DataCase(
        "a single text",
        "u.txt",
        content(SECRET, "u.txt"),
        "u.txt is a single text: name the folder",
    ),
    DataCase(
        "a ZIP archive",
        "u.csv",
        content(archive("u.csv"), "u.csv"),
        "u.csv looks like a ZIP archive",
    ),
    DataCase(
        "an Excel workbook",
        "u.xlsx",
        content(archive("xl/workbook.xml"), "u.xlsx"),
        "u.xlsx looks like an Excel workbook",
    ),
    DataCase(
        "an old Excel file",
        "u.xls",
        content(b"\xd0\xcf\x11\xe0\xa1", "u.xls"),
        "an old Office file (.xls, .doc)",
    ),
    DataCase("a PDF", "u.pdf", content(b"%PDF-1.7 ...", "u.pdf"), "u.pdf looks like a PDF"),
    DataCase(
        "HTML",
        "u.csv",
        content(f"<!DOCTYPE html><p>{SECRET}", "u.csv"),
        "u.csv looks like a page of HTML",
    ),
    DataCase(
        "text called Parquet",
        "u.parquet",
        content(SECRET, "u.parquet"),
        "not a Parquet file: it looks like plain",
    ),
    DataCase("half a gzip file", "u.csv.gz", _half, "not a complete gzip file"),
    *(
        DataCase(
            f"a mistyped user column {name}",
            name,
            make,
            f"'client_ids'{more}",
            settings={"client-column": "client_ids"},
        )
        for name, make, more in (
            (
                "u.jsonl",
                content(_GOOD_LINES, "u.jsonl"),
                " is missing; it has 'client_id', 'text', 'date', and client-column says which key",
            ),
            (
                "u.json",
                content(_PRETTY, "u.json"),
                " is missing; it has 'client_id', 'text', 'date', and client-column says which key",
            ),
            ("u.csv", content(_GOOD_CSV, "u.csv"), " (did you mean 'client_id'?)"),
            ("u.tsv", content(delimited(ROWS, "\t"), "u.tsv"), " (did you mean 'client_id'?)"),
            ("u.parquet", parquet(_columns(ROWS), "u.parquet"), " (did you mean 'client_id'?)"),
        )
    ),
    *(
        DataCase(
            f"a mistyped text column {name}",
            name,
            make,
            f"{name} has no column 'texts' (did you mean 'text'?); its columns are 'client_id', 't",
            settings={"text-column": "texts"},
        )
        for name, make in (
            ("u.jsonl", content(_GOOD_LINES, "u.jsonl")),
            ("u.json", content(_PRETTY, "u.json")),
            ("u.csv", content(_GOOD_CSV, "u.csv")),
            ("u.parquet", parquet(_columns(ROWS), "u.parquet")),
        )
    ),
    DataCase(
        "other names of columns",
        "u.csv",
        content("customer,note\na,some text\nb,other text\n", "u.csv"),
        "u.csv has no column 'client_id'; its columns are 'customer', 'note'; name the one that "
        "says whose a row is: client-column (--client-column).",
    ),
    DataCase(
        "another name of the text's column",
        "u.csv",
        content("client_id,note\na,some text\nb,other text\n", "u.csv"),
        "u.csv has no column 'text'; its columns are 'client_id', 'note'; name the one that "
        "holds the text: text-column (--text-column).",
    ),
    DataCase(
        "no names of columns",
        "u.csv",
        content(f'a,"{SECRET}"\nb,"{SECRET}"\n', "u.csv"),
        "u.csv has no column 'client_id' among its 2; the first row of text must hold their names.",
    ),
    DataCase(
        "one of several columns mistyped",
        "u.csv",
        content(delimited(_TWO), "u.csv"),
        "u.csv has no column 'titel' (did you mean 'title'?)",
        settings={"text-column": "titel,body"},
    ),
    DataCase(
        "half a quote",
        "u.csv",
        content(_BROKEN_QUOTE, "u.csv"),
        "u.csv line 3: the quotes of a field do not match",
    ),
    DataCase(
        "a bare comma",
        "u.csv",
        content(_BARE, "u.csv"),
        "u.csv line 3: 3 fields where the first row has 2",
    ),
    DataCase(
        "a user without a name",
        "u.csv",
        content("client_id,text\n,x\n", "u.csv"),
        "line 2: 'client_id' must not be",
    ),
    DataCase(
        "a column twice",
        "u.csv",
        content("client_id,text,text\na,b,c\n", "u.csv"),
        "u.csv has 2 columns 'text'",
    ),
    DataCase(
        "texts beside folders of texts",
        "notes",
        folder_of(_FOLDER | {"notes/other.txt": "x"}),
        "notes holds .txt files beside folders of .txt files",
    ),
    *(
        DataCase(
            f"locked {what}",
            what,
            make,
            f"{locked} cannot be read (Permission denied)",
            locked=locked,
        )
        for what, make, locked in (
            ("u.csv", content(_GOOD_CSV, "u.csv"), "u.csv"),
            ("u.jsonl", content(_GOOD_LINES, "u.jsonl"), "u.jsonl"),
            ("notes", folder_of(_FOLDER), "notes"),
            ("notes", folder_of(_FOLDER), "notes/ben"),
        )
    ),
    DataCase(
        "dates that are none, and are needed",
        "u.parquet",
        parquet(_columns(ROWS) | {"date": [1, 2, 3]}, "u.parquet"),
        "newer-than needs a date per document, but 'date' must be an ISO date",
        settings={"newer-than": "2025-01-01"},
    ),
    DataCase(
        "a column of dates mistyped, and needed",
        "u.csv",
        content(_GOOD_CSV, "u.csv"),
        "newer-than needs a date per document, but there is no column 'dat' (",
        settings={"newer-than": "2025-01-01", "date-column": "dat"},
    ),
    DataCase(
        "dates of texts",
        "notes",
        folder_of(_FOLDER),
        "but texts in files have none (",
        settings={"newer-than": "2025-01-01"},
    ),
]
