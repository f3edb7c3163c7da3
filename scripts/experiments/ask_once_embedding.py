"""What a released mean embedding could add to a joint sketch, at most: measured without its noise.

    python -m scripts.experiments.ask_once_embedding --corpus DIR [--kind docstrings]
        [--users 1500] [--epsilon 1] [--weights 0 0.5 1] [--seeds 1]

One kind of public text plays the users, as in `ask_once_tuning.py`. Tokens and pairs are released
with the noise of epsilon. Of the rows that they put first, five times as many as are chosen, the
best are chosen by that score plus `weight` times the cosine to where the users' mean embedding lies
from that of public text, both in standard deviations over public rows. **That mean has no noise**:
a real release of it would have some, and the tokens and pairs more than here, for they would share
the budget. What is printed is more than an embedding block can give. No private text is read.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from flower_privsyn.data import Cut
from flower_privsyn.embedding import Embedder, load_embedder
from flower_privsyn.evaluation.language_model import evaluate_language_model
from flower_privsyn.strategies import JointSketchConfig
from flower_privsyn.training.causal import fine_tune
from flower_privsyn.training.selection import (
    CombinedScorer,
    CosineScorer,
    Rows,
    SelectionRule,
    select,
)
from scripts.experiments.ask_once_tuning import Split

#: Rows that are ranked by their embeddings, for each that is chosen.
_POOL: Final = 5
#: Public rows that say what is usual, and pieces of each user's text that are embedded.
_SAMPLE, _PIECES = 2000, 2


def rows_of(split: Split, indices: list[int], embedder: Embedder) -> Rows:
    """Public rows with their embeddings."""
    return Rows(
        tokens=[split.public.row(index) for index in indices],
        embeddings=embedder.embed([split.public.text_of(index) for index in indices]),
    )


def measure(
    split: Split, config: JointSketchConfig, *, epsilon: float, weights: list[float]
) -> None:
    """Print a line for each weight."""
    broadcast, releases = split.asked(config, epsilon=epsilon)
    sketch = split.read(config, broadcast, releases)
    chunks = (Rows(tokens=chunk) for chunk in split.public.chunks())
    many = replace(config, least_selected=_POOL * config.least_selected)
    pool = many.choose(chunks, sketch, num_rows=len(split.public)).indices.tolist()
    embedder = load_embedder()
    drawn = np.random.default_rng(config.seed).permutation(len(split.public))[:_SAMPLE]
    usual, hopeful = (rows_of(split, found, embedder) for found in (drawn.tolist(), pool))
    pieces = [
        piece
        for user in Cut(max_tokens=64).pieces(split.users, tokenizer=split.tokenizer)
        for piece in user[:_PIECES]
    ]
    assert usual.embeddings is not None
    cosine = CosineScorer(
        released=embedder.embed(pieces).mean(axis=0, dtype=np.float64),
        public=usual.embeddings.mean(axis=0, dtype=np.float64),
    )
    for weight in weights:
        scorer = CombinedScorer.of((config.scorer(sketch), cosine), (1.0, weight), usual)
        rule = SelectionRule(
            count=config.least_selected, most_overlap=config.most_overlap, seed=config.seed
        )
        chosen = select([hopeful], scorer, rule).indices
        with tempfile.TemporaryDirectory(dir=split.work) as folder:
            output = Path(folder) / "student"
            fine_tune(
                config.model,
                [split.public.text_of(pool[place]) for place in chosen.tolist()],
                settings=config.student_training(),
                output=output,
                seed=config.seed,
                distillation=config.distillation(),
            )
            found = evaluate_language_model(output, split.held_out, resamples=1)
        print(
            f"seed {config.seed}, weight {weight:g}: {100 * found.next_token_accuracy.value:.2f} %,"
            f" {found.bits_per_byte.value:.4f} bits per byte",
            flush=True,
        )


def main() -> None:
    """Measure every weight and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--kind", default="docstrings")
    parser.add_argument("--users", type=int, default=1500)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--weights", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--most-public", type=int, default=8000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        split = Split(
            arguments.corpus,
            arguments.kind,
            users=arguments.users,
            most_public=arguments.most_public,
            work=Path(folder),
        )
        for seed in range(arguments.seeds):
            config = JointSketchConfig(epsilon=arguments.epsilon, select_share=1e-9, seed=seed)
            measure(split, config, epsilon=arguments.epsilon, weights=arguments.weights)


if __name__ == "__main__":
    main()
