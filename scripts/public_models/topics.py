"""Make the bundled topics: clusters of the public corpus, with keywords.

python scripts/public_models/topics.py --corpus DIR

One passage of each document that is not held out (`corpus.py`), begun at a word drawn at random
and cut as samples are, is embedded and clustered; the topics go where the package looks for them.
Topics of one's own text are made by `privsyn topics`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from corpus import clean, is_held_out, read_corpus  # noqa: E402

from flower_privsyn.embedding import load_embedder  # noqa: E402
from flower_privsyn.generation.topic_model import (  # noqa: E402
    TopicModel,
    passage_of_each,
    supported,
    two_passages_of_each,
)
from flower_privsyn.generation.topics import BUNDLED, load_topics, probe_of  # noqa: E402


def documents(corpus: Path, *, held_out: bool) -> Iterator[str]:
    """The text of each document that is held out, or that is not, in the order of the corpus."""
    for document in read_corpus(corpus):
        if is_held_out(document) == held_out:
            yield clean(document["text"])


def passages(corpus: Path, *, held_out: bool, tokenizer: object, seed: int) -> list[str]:
    """One sample of each document, in the order of the corpus."""
    return passage_of_each(documents(corpus, held_out=held_out), tokenizer=tokenizer, seed=seed)


def main() -> None:
    """Read the command line and make topics."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder of public-*.jsonl.gz")
    parser.add_argument("--counts", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--clustering", choices=["k-means", "hdbscan"], default="k-means")
    parser.add_argument("--embedding-model", default="all-MiniLM-L6-v2")
    parser.add_argument("--seed", type=int, default=20240601)
    parser.add_argument("--vectors", type=Path, help="keep the embeddings in this .npy file")
    parser.add_argument("--output", type=Path, default=BUNDLED)
    asked = parser.parse_args()

    embedder = load_embedder(asked.embedding_model)
    texts = passages(asked.corpus, held_out=False, tokenizer=embedder.tokenizer, seed=asked.seed)
    started = time.process_time()
    if asked.vectors and asked.vectors.exists():
        vectors = np.load(asked.vectors)
    else:
        vectors = embedder.embed(texts)
        if asked.vectors:
            np.save(asked.vectors, vectors)
    embedded = time.process_time()
    model = TopicModel(counts=tuple(asked.counts), clustering=asked.clustering, seed=asked.seed)
    topics = model.fit(
        texts,
        vectors,
        probe=probe_of(embedder),
        about=f"{asked.clustering} of {len(texts)} passages of {asked.corpus.name}",
    )
    topics.save(asked.output)
    print(
        f"{len(texts)} passages, embedded in {embedded - started:.0f} CPU s, clustered in "
        f"{time.process_time() - embedded:.0f} CPU s; {asked.output.stat().st_size / 1e6:.2f} MB"
    )
    report(asked, embedder, clustered=len(texts))


def report(asked: argparse.Namespace, embedder: object, *, clustered: int) -> None:
    """How large topics are, and whether they say something of a document that they were not of.

    Args:
        asked: the command line.
        embedder: of the passages.
        clustered: how many passages the topics are made of.
    """
    pairs = two_passages_of_each(
        list(documents(asked.corpus, held_out=True)),
        tokenizer=embedder.tokenizer,
        seed=asked.seed + 1,
    )
    first, second = (embedder.embed(texts) for texts in pairs)
    hierarchy = load_topics(str(asked.output))
    print("| topics | passages of the smallest / median | same topic, same document | by chance |")
    print("|---|---|---|---|")
    for level in hierarchy.levels:
        row = supported(level, passages=clustered, first=first, second=second)
        print(
            f"| {row.topics} | {row.smallest} / {row.median} | {row.same:.3f} | {row.chance:.3f} |"
        )
    for words in hierarchy.levels[0].keywords[:8]:
        print(", ".join(words))


if __name__ == "__main__":
    main()
