"""Users and public sets of text for `scripts/experiments/fred_orders.py`, embedded once and kept.

    python -m scripts.experiments.fred_data --corpus DIR --work FOLDER

The corpus is described in `scripts/sample_data/README.md`. Of each part, abstracts and speech, some
people are users, some are tested on, and the text of others stands in for a public corpus that is
near. Who is what is decided by a hash of their ids; nobody is sealed by docs/evaluation.md.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.data import Cut
from flower_privsyn.embedding import load_embedder
from flower_privsyn.evaluation.sealed import sealed

PARTS = ("abstracts", "speech")
GROUPS = ("wikipedia", "openstax", "standardebooks", "usgov", "docs")

#: Users, samples of each, people who are tested on, texts of a near corpus and of a far one.
USERS, SAMPLES, TESTED, NEAR, FAR = 3000, 3, 300, 10_000, 2000
MAX_TOKENS = 64


@dataclass(frozen=True)
class Set:
    """Texts, whose they are, and their embeddings.

    Attributes:
        texts: (n,).
        owners: (n,) nondecreasing; of a public set each text's own.
        embeddings: (n, d) float32; None where nobody needs them.
    """

    texts: list[str]
    owners: npt.NDArray[np.int64]
    embeddings: npt.NDArray[np.float32] | None


def order(text: str) -> str:
    """A fixed pseudo-random order."""
    return hashlib.sha256(text.encode()).hexdigest()


def read(corpus: Path, part: str) -> Iterator[dict[str, Any]]:
    """The documents of a part of the corpus."""
    for shard in sorted(corpus.glob(f"{part}-*.jsonl.gz")):
        with gzip.open(shard, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)


def people(corpus: Path, part: str, tokenizer: Any) -> dict[str, Set]:
    """Users, those who are tested on, and a near corpus, of different people."""
    documents: dict[str, list[str]] = {}
    for row in read(corpus, part):
        documents.setdefault(row["client_id"], []).append(row["text"])
    closed = sealed(list(documents))
    ids = sorted((one for one, shut in zip(documents, closed, strict=True) if not shut), key=order)
    cut = Cut(max_tokens=MAX_TOKENS)

    def pieces(chosen: list[str], most: int) -> Set:
        texts, owners = [], []
        for number, one in enumerate(chosen):
            found = itertools.chain.from_iterable(
                cut.pieces(sorted(documents[one], key=order)[:SAMPLES], tokenizer=tokenizer)
            )
            own = list(itertools.islice(found, SAMPLES))
            texts += own
            owners += [number] * len(own)
            if len(texts) >= most:
                break
        return Set(texts[:most], np.array(owners[:most], dtype=np.int64), None)

    # Of speech there are fewer people: the near corpus takes who is left.
    users = min(USERS, len(ids) // 2)
    return {
        "users": pieces(ids[:users], users * SAMPLES),
        "tested": pieces(ids[users : users + TESTED], TESTED * SAMPLES),
        "near": pieces(ids[users + TESTED :], NEAR),
    }


def groups(corpus: Path, tokenizer: Any, most: int) -> dict[str, Set]:
    """A set of texts of each group of public sources; one text of a document."""
    texts: dict[str, list[str]] = {group: [] for group in GROUPS}
    cut = Cut(max_tokens=MAX_TOKENS)
    for row in read(corpus, "public"):
        held = texts[row["group"]]
        if len(held) < most:
            own = cut.pieces([row["text"]], tokenizer=tokenizer)[0]
            if own:
                held.append(own[int(order(row["doc_id"])[:8], 16) % len(own)])
    return {
        group: Set(found, np.arange(len(found), dtype=np.int64), None)
        for group, found in texts.items()
    }


def load(work: Path, name: str) -> Set:
    """A set that `main` has written.

    Args:
        work: folder of the sets.
        name: "abstracts-users", "speech-near", "public-wikipedia" and the like.
    """
    rows = [json.loads(line) for line in (work / f"{name}.jsonl").read_text().splitlines()]
    file = work / f"{name}.npy"
    return Set(
        texts=[row["text"] for row in rows],
        owners=np.array([row["owner"] for row in rows], dtype=np.int64),
        embeddings=np.load(file) if file.exists() else None,
    )


def store(work: Path, name: str, found: Set, embedder: Any) -> None:
    """Write a set and, but for those who are tested on, its embeddings; one that is there stays."""
    listed, file = work / f"{name}.jsonl", work / f"{name}.npy"
    if listed.exists() and (file.exists() or name.endswith("tested")):
        return
    rows = zip(found.texts, found.owners.tolist(), strict=True)
    listed.write_text(
        "".join(json.dumps({"text": text, "owner": owner}) + "\n" for text, owner in rows)
    )
    if not name.endswith("tested"):
        temporary = file.with_suffix(".writing.npy")
        np.save(temporary, embedder.embed(found.texts))
        temporary.replace(file)
    print(f"{name}: {len(found.texts):,} texts", flush=True)


def main() -> None:
    """Write all sets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    embedder = load_embedder("all-MiniLM-L6-v2", precision="bfloat16")
    for group, found in groups(arguments.corpus, embedder.tokenizer, FAR).items():
        store(arguments.work, f"public-{group}", found, embedder)
    for part in PARTS:
        for role, found in people(arguments.corpus, part, embedder.tokenizer).items():
            store(arguments.work, f"{part}-{role}", found, embedder)


if __name__ == "__main__":
    main()
