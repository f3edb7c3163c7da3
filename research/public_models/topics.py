"""Make the bundled topics: clusters of the public corpus, with keywords.

python research/public_models/topics.py --corpus DIR

One passage of each document that is not held out (`corpus.py`), begun at a word drawn at random
and cut as samples are, is embedded and clustered; the topics go where the package looks for them.
Topics of one's own text are made by `flower_privsyn.generation.topics.make_topics`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from corpus import clean, is_held_out, read_corpus  # noqa: E402

from flower_privsyn.embedding import load_embedder  # noqa: E402
from flower_privsyn.generation.topics import BUNDLED, COUNTS, make_topics  # noqa: E402


def documents(corpus: Path, *, held_out: bool) -> Iterator[str]:
    """The text of each document that is held out, or that is not, in the order of the corpus."""
    for document in read_corpus(corpus):
        if is_held_out(document) == held_out:
            yield clean(document["text"])


def main() -> None:
    """Read the command line and make topics."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder of public-*.jsonl.gz")
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--embedding-model", default="all-MiniLM-L6-v2")
    parser.add_argument("--seed", type=int, default=20240601)
    parser.add_argument("--output", type=Path, default=BUNDLED)
    asked = parser.parse_args()

    made = make_topics(
        documents(asked.corpus, held_out=False),
        embedder=load_embedder(asked.embedding_model),
        counts=asked.counts,
        seed=asked.seed,
    )
    made.save(asked.output)
    for words in made.levels[0].keywords[:8]:
        print(", ".join(words))
    print(f"{asked.output}: {asked.output.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
