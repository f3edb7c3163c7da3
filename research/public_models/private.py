"""Private corpora the models are tested on, and the proof that they were not trained on them."""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from corpus import ROOT  # noqa: F401  # puts the package on the path

WINDOW = 13  # words; the length with which the corpora were kept apart when they were made
_WORD = re.compile(r"[^\W_]+")
_AT_A_TIME = 4096


@dataclass(frozen=True, kw_only=True)
class PrivateCorpus:
    """Texts of people, in JSONL files outside the repository.

    Attributes:
        name: what tables call it.
        files: `.jsonl` or `.jsonl.gz`, one object with a `text` per line, and whose it is in
            `client_id` where one person wrote several.
    """

    name: str
    files: tuple[Path, ...]

    @classmethod
    def parse(cls, argument: str) -> PrivateCorpus:
        """Read `NAME=PATTERN`; the pattern is the path of the files, with wildcards.

        Raises:
            SystemExit: there is no name, or no file.
        """
        name, equals, pattern = argument.partition("=")
        if not equals or not re.fullmatch(r"[\w-]+", name):
            raise SystemExit(f"--private takes NAME=FILES with a plain name, got {argument!r}")
        files = tuple(Path(found) for found in sorted(glob.glob(pattern)))  # noqa: PTH207
        if not files:
            raise SystemExit(f"--private {name}: no file matches {pattern!r}")
        return cls(name=name, files=files)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield (owner, text) in file order; a line without `client_id` is a person of its own."""
        number = 0
        for file in self.files:
            opener: Any = gzip.open if file.suffix == ".gz" else open
            with opener(file, "rt", encoding="utf-8") as lines:
                for line in lines:
                    row = json.loads(line)
                    number += 1
                    yield str(row.get("client_id", f"line {number}")), row["text"]

    def texts(self) -> Iterator[str]:
        """Yield the texts in file order."""
        return (text for _, text in self.rows())


# --------------------------------------------------------------------------------- unseen by hash


def words_of(text: str) -> list[str]:
    """Letters and digits only, without case: what re-formatting a text does not change."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


@dataclass(kw_only=True)
class Seen:
    """Hashes of a training text.

    Attributes:
        documents: 64-bit hashes of whole documents.
        windows: (n,) uint64, increasing: hashes of every `WINDOW` consecutive words.
        num_windows: how many windows there were, equal ones counted again.
    """

    documents: set[int]
    windows: np.ndarray
    num_windows: int


@dataclass(kw_only=True)
class _Hasher:
    """Hashes words once, and windows of them in one vectorised pass."""

    known: dict[str, int] = field(default_factory=dict)

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, list[int], np.ndarray]:
        """Hash some documents.

        Returns:
            Windows (n,) uint64; a hash of each document; the bounds of each document's windows,
            (documents + 1,).
        """
        known = self.known
        flat: list[int] = []
        lengths, documents = [], []
        for text in texts:
            words = words_of(text)
            for word in words:
                if word not in known:
                    known[word] = _hash64(word)
            flat.extend([known[word] for word in words])
            lengths.append(len(words))
            documents.append(_hash64(" ".join(words)))
        codes = np.asarray(flat, dtype=np.uint64)
        counts = np.maximum(np.asarray(lengths) - WINDOW + 1, 0)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        starts = np.concatenate([[0], np.cumsum(lengths)])[:-1]
        first = np.repeat(starts - bounds[:-1], counts) + np.arange(bounds[-1])
        windows = np.zeros(len(first), dtype=np.uint64)
        for offset in range(WINDOW):
            windows *= np.uint64(0x9E3779B97F4A7C15)  # modulo 2^64, odd: no word is lost
            windows += codes[first + offset]
        return windows, documents, bounds


def _hash64(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == _AT_A_TIME:
            yield batch
            batch = []
    if batch:
        yield batch


def hash_training_text(texts: Iterable[str]) -> Seen:
    """Hash every document and every window of a training text."""
    hasher, documents, pieces = _Hasher(), set(), []
    for batch in _batches(texts):
        windows, hashes, _ = hasher(batch)
        documents.update(hashes)
        pieces.append(windows)
    everything = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.uint64)
    return Seen(documents=documents, windows=np.unique(everything), num_windows=len(everything))


def training_texts(work: Path, split: str = "train") -> Iterator[str]:
    """Decode the token stream that the models were trained on back into its documents.

    The tokenizer is byte-level, so nothing is lost; and it is the stream itself that is compared,
    not the files it is said to come from.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(work / "bpe.json"))
    stream = np.load(work / f"{split}.npy", mmap_mode="r")
    bounds = np.load(work / f"{split}_bounds.npy")
    for start in range(0, len(bounds), 1000):
        rows = [stream[begin:end].tolist() for begin, end in bounds[start : start + 1000]]
        yield from tokenizer.decode_batch(rows, skip_special_tokens=False)


def compare(seen: Seen, texts: Iterable[str]) -> dict[str, int]:
    """Count what of a private corpus occurs in a training text.

    Args:
        seen: the training text.
        texts: the private documents; those under 13 words have no window and only count as
            identical documents when they have at least 6 words.

    Returns:
        `documents`; `identical_documents`, whose words all equal those of a training document;
        `half_seen_documents`, half of whose windows or more occur in the training text;
        `documents_with_a_window`, `windows` and `windows_seen`.
    """
    hasher = _Hasher()
    counts = dict.fromkeys(
        (
            "documents",
            "identical_documents",
            "half_seen_documents",
            "documents_with_a_window",
            "windows",
            "windows_seen",
        ),
        0,
    )
    for batch in _batches(texts):
        windows, hashes, bounds = hasher(batch)
        found = np.zeros(len(windows), dtype=np.int64)
        if len(seen.windows) and len(windows):
            place = np.minimum(np.searchsorted(seen.windows, windows), len(seen.windows) - 1)
            found = (seen.windows[place] == windows).astype(np.int64)
        totals = np.diff(bounds)
        matched = np.diff(np.concatenate([[0], np.cumsum(found)])[bounds])
        counts["documents"] += len(batch)
        counts["identical_documents"] += sum(
            digest in seen.documents and len(words_of(text)) >= 6
            for digest, text in zip(hashes, batch, strict=True)
        )
        counts["half_seen_documents"] += int(((totals > 0) & (2 * matched >= totals)).sum())
        counts["documents_with_a_window"] += int((matched > 0).sum())
        counts["windows"] += len(windows)
        counts["windows_seen"] += int(found.sum())
    return counts


def prove_unseen(
    texts: Iterable[str], corpora: list[PrivateCorpus], *, keep: Path | None = None
) -> dict[str, Any]:
    """Compare a training text with private corpora, print the counts, refuse a document in common.

    Args:
        texts: the training documents.
        corpora: the private ones.
        keep: file for the counts.

    Returns:
        `training` and, per corpus, the counts of `compare`.

    Raises:
        SystemExit: a private document, or half of one, stands in the training text.
    """
    seen = hash_training_text(texts)
    report: dict[str, Any] = {
        "training": {
            "documents": len(seen.documents),
            "windows": seen.num_windows,
            "different_windows": len(seen.windows),
        }
    }
    print(f"[unseen] training text: {report['training']}", flush=True)
    for corpus in corpora:
        report[corpus.name] = compare(seen, corpus.texts())
        print(f"[unseen] {corpus.name}: {report[corpus.name]}", flush=True)
    if keep is not None:
        keep.write_text(json.dumps(report, indent=1) + "\n")
    for corpus in corpora:
        counts = report[corpus.name]
        if counts["identical_documents"] or counts["half_seen_documents"]:
            raise SystemExit(
                f"private corpus {corpus.name!r} is not unseen: "
                f"{counts['identical_documents']} of its documents stand in the training text "
                f"as they are, of {counts['half_seen_documents']} at least half of the windows "
                f"of {WINDOW} words"
            )
    return report
