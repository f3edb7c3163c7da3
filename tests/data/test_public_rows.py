"""Public text as rows of tokens on the disk."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from flower_privsyn.data import Chunking, public_corpus
from flower_privsyn.data.chunking import token_ids
from flower_privsyn.data.public_rows import PublicRows
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import DataError

TEXTS = [
    "A first document, long enough to be cut into several rows of a few tokens each.",
    "Zweites Dokument mit Umlauten: äöü und ein halbes Zeichen.",
    "",
    "A third one.",
]


def write(file: Path, texts: list[str]) -> Path:
    content = "\n".join(json.dumps({"text": text}) for text in texts).encode() + b"\n\n"
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
    return file


def rows_of(file: Path, folder: Path, *, max_tokens: int = 8) -> PublicRows:
    tokenizer, _ = load_tokenizer("privsyn-tiny")
    return PublicRows.of(str(file), tokenizer=tokenizer, max_tokens=max_tokens, cache=folder)


@pytest.mark.parametrize("name", ["texts.jsonl", "texts.jsonl.gz"])
@pytest.mark.parametrize("documents", [1, 1024])
def test_are_the_pieces_that_users_text_is_cut_into(
    tmp_path: Path, name: str, documents: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_corpus, "_DOCUMENTS", documents)
    rows = rows_of(write(tmp_path / name, TEXTS), tmp_path / "rows")
    tokenizer, _ = load_tokenizer("privsyn-tiny")
    pieces = Chunking(max_tokens=8).pieces(TEXTS, tokenizer=tokenizer)
    texts = [piece for found in pieces for piece in found]
    assert [rows.text_of(index) for index in range(len(rows))] == texts
    expected = [row[:8] for row in token_ids(tokenizer, texts)]
    assert [rows[index].tolist() for index in range(len(rows))] == expected
    assert [row.tolist() for row in rows] == expected
    chunks = list(rows.chunks(2))
    lengths = [count for chunk in chunks for count in chunk.lengths.tolist()]
    tokens = [token for chunk in chunks for token in chunk.tokens.tolist()]
    assert max(map(len, chunks)) == 2
    assert lengths == [len(row) for row in expected]
    assert tokens == [token for row in expected for token in row]
    found = [document.tolist() for document in rows.documents(most_tokens=10**6)]
    assert len(found) == 3  # an empty document has no row
    assert np.concatenate(found).tolist() == [token for row in expected for token in row]
    assert len(list(rows.documents(most_tokens=1))) == 1


def test_are_made_once_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "texts.jsonl", TEXTS)
    first = rows_of(file, tmp_path / "rows")

    def again(*args: object, **kwargs: object) -> None:
        raise AssertionError("read again")

    with monkeypatch.context() as patch:
        patch.setattr("flower_privsyn.data.public_rows._rows", again)
        assert len(rows_of(file, tmp_path / "rows")) == len(first)
    write(file, TEXTS[:1])
    assert len(rows_of(file, tmp_path / "rows")) < len(first)
    assert len(rows_of(file, tmp_path / "rows", max_tokens=64)) == 1


def test_what_cannot_be_read_halfway_is_read_again(tmp_path: Path) -> None:
    file = write(tmp_path / "texts.jsonl", TEXTS)
    whole = file.read_bytes()
    with pytest.raises(DataError, match="public-text"):
        rows_of(write(tmp_path / "blank.jsonl", [" "]), tmp_path / "rows")
    file.write_bytes(whole + b"{}\n")
    with pytest.raises(DataError, match="line 6"):
        rows_of(file, tmp_path / "rows")
    write(file, TEXTS)
    assert len(rows_of(file, tmp_path / "rows")) > 3
