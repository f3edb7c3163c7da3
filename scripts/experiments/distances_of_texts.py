r"""How near texts that are there are to the text of people who took no part, and how varied.

    python -m scripts.experiments.distances_of_texts COMPARISON --texts NAME=FILE ... --results FILE

COMPARISON is the folder of a comparison, on whose held-out users they are measured; FILE is JSON
lines with `text`. Both sides are drawn down to `--most` texts, so that rows compare. What is in the
results already is not done again.

Everything it writes is computed from private text outside the privacy budget.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flower_privsyn.embedding import load_embedder
from flower_privsyn.errors import PrivsynError
from flower_privsyn.evaluation.distribution import frechet_distance, mean_discrepancy
from flower_privsyn.evaluation.diversity import diversity
from flower_privsyn.files import append_json_lines, located, read_json_lines
from scripts.experiments.students_of_texts import Students


def _drawn(texts: Sequence[str], most: int) -> list[str]:
    order = np.random.default_rng(0).permutation(len(texts))[:most]
    return [texts[index] for index in order]


def main(words: Sequence[str] | None = None) -> int:
    """Measure them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("comparison", type=Path, help="its folder")
    parser.add_argument("--texts", nargs="+", required=True, metavar="NAME=FILE")
    parser.add_argument("--most", type=int, default=1000, help="texts on either side")
    parser.add_argument("--embedding-model", default="all-MiniLM-L6-v2")
    parser.add_argument("--results", type=Path, required=True, help="JSON lines")
    options = parser.parse_args(words)
    try:
        done = {(row["texts"], row["most"]) for row in read_json_lines(options.results)}
        students = Students(
            options.comparison, embedding_model=options.embedding_model, precision="float32"
        )
        embedder = load_embedder(located(options.embedding_model))
        held_out = None
        for word in options.texts:
            name, _, file = word.partition("=")
            if (name, options.most) in done:
                continue
            if held_out is None:
                held_out = embedder.embed(_drawn(students.held_out, options.most))
            texts = _drawn(students.texts(name, file), options.most)
            vectors = embedder.embed(texts)
            found = mean_discrepancy(vectors, held_out)
            varied = diversity(texts, embeddings=vectors)
            row = {
                "texts": name,
                "most": options.most,
                "mmd_squared": found.squared,
                "mmd_squared_error": found.standard_error,
                "frechet_squared": frechet_distance(vectors, held_out).squared,
                "self_similarity": varied.self_similarity,
                "distinct_2": varied.distinct[2],
                "words": float(np.mean([len(text.split()) for text in texts])),
            }
            append_json_lines(options.results, [row])
            print(
                f"{name}: squared MMD {found.squared:.4f} ± {found.standard_error:.4f}, two of its "
                f"texts {varied.self_similarity:.2f} alike, distinct-2 {varied.distinct[2]:.2f}"
            )
    except PrivsynError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
