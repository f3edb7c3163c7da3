"""Training of users on a node, beside its passes.

    python -m benchmarks.local_training [--model privsyn-lm] [--users 20]

In one process and one thread: what the client app does (one model, weights put back before each
user, the update clipped and summed by the query); and the forward and backward passes alone, the
gradients thrown away.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks import Ratio, compared, shown
from flower_privsyn.data import public_texts
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.queries import Cohort, ModelDelta
from flower_privsyn.training.local import LocalModel

Samples = Sequence[Sequence[int]]


def by_cohort(model: LocalModel, users: Sequence[Samples], query: ModelDelta) -> np.ndarray:
    """Train all users with one model, and sum their contributions."""
    broadcast = {"parameters": model.parameters}
    total = np.full(query.answer_length(broadcast), 0.0)
    alone = np.zeros(1, dtype=np.int64)
    moved = np.empty(model.dimension, dtype=np.float32)
    for samples in users:
        update = model.update(
            samples,
            into=moved,
            learning_rate=query.learning_rate,
            epochs=query.epochs,
            batch_size=query.batch_size,
        )
        if update is not None:
            total += query.answer(Cohort(update[None], alone, 1), broadcast)
    return total


def floor(model: LocalModel, users: Sequence[Samples], query: ModelDelta) -> None:
    """The passes that no way of training can avoid."""
    for samples in users:
        for first in range(0, len(samples), query.batch_size):
            batch = samples[first : first + query.batch_size]
            model._loss([(sample, 1) for sample in batch]).backward()
            model._drop_gradients()


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="privsyn-lm")
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args(given)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    count, name = arguments.users, arguments.model
    model = LocalModel(TrainableModel(name=name), device="cpu")
    texts = public_texts("bundled", tokenizer=model.tokenizer, max_tokens=arguments.max_tokens)
    texts = sorted(texts, key=len)[-count * arguments.samples :]
    np.random.default_rng(0).shuffle(texts)  # a user's samples differ in length
    tokens = model.encode(texts)
    users = [tokens[i::count] for i in range(count)]
    query = ModelDelta(clip_to=0.1, learning_rate=0.1, batch_size=arguments.batch_size)
    return shown(
        compared(
            f"training on a node, {name}, {count} users",
            lambda: by_cohort(model, users, query),
            {("forward and backward alone", "floor"): lambda: floor(model, users, query)},
            repeats=arguments.repeats,
        )
    )


if __name__ == "__main__":
    main()
