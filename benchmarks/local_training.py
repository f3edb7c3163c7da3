"""Users per second that one node trains, against a copy of the model for every user.

    python -m benchmarks.local_training [--model privsyn-lm] [--trainable full] [--users 20]

Three ways through the same users, samples and settings, interleaved, in one process:

- cohort: what the client app does: one model, weights put back before each user, the update
  clipped and summed by the query (`LocalModel.update`, `ModelDelta.answer`);
- copies: what is usually written: `copy.deepcopy` of the model and a new `torch.optim.SGD` for
  every user, a dictionary of differences, flattened, clipped and summed with numpy;
- floor: forward and backward passes alone, the gradients thrown away.

The first two sums are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from flower_privsyn.data import public_texts
from flower_privsyn.queries import Cohort, ModelDelta, TrainableModel
from flower_privsyn.training.local import LocalModel

Samples = Sequence[Sequence[int]]


def by_cohort(model: LocalModel, users: Sequence[Samples], query: ModelDelta) -> np.ndarray:
    """Train all users with one model, and sum their contributions."""
    broadcast = {"parameters": model.parameters}
    total = np.zeros(query.answer_length(broadcast))
    alone = np.zeros(1, dtype=np.int64)
    for samples in users:
        update = model.update(
            samples,
            learning_rate=query.learning_rate,
            epochs=query.epochs,
            batch_size=query.batch_size,
        )
        if update is not None:
            total += query.answer(Cohort(update[None], alone, 1), broadcast)
    return total


def by_copies(model: Any, names: Sequence[str], users: Sequence[Samples], query: ModelDelta) -> Any:
    """Train all users, each with a copy of the model and an optimiser of its own."""
    total: Any = 0.0
    start = dict(model.named_parameters())
    for samples in users:
        mine = copy.deepcopy(model)
        trained = dict(mine.named_parameters())
        optimiser = torch.optim.SGD([trained[name] for name in names], lr=query.learning_rate)
        order = np.random.default_rng((0,))
        for _ in range(query.epochs):
            ranks = order.permutation(len(samples))
            for first in range(0, len(samples), query.batch_size):
                batch = [samples[rank] for rank in ranks[first : first + query.batch_size]]
                optimiser.zero_grad()
                loss(mine, batch).backward()
                optimiser.step()
        delta = {name: (trained[name] - start[name]).detach().numpy() for name in names}
        update = np.concatenate([value.ravel() for value in delta.values()]).astype(np.float64)
        norm = np.linalg.norm(update)
        total = total + update * min(1.0, query.clip_to / norm)
    return total / query.unit


def floor(model: LocalModel, users: Sequence[Samples], query: ModelDelta) -> None:
    """The passes that no way of training can avoid."""
    for samples in users:
        for _ in range(query.epochs):
            for first in range(0, len(samples), query.batch_size):
                model._loss(samples[first : first + query.batch_size]).backward()


def loss(model: Any, samples: Samples) -> torch.Tensor:
    """Transformers' own loss of a padded batch."""
    width = max(map(len, samples))
    tokens = torch.zeros((len(samples), width), dtype=torch.long)
    labels = torch.full((len(samples), width), -100)
    for row, sample in enumerate(samples):
        tokens[row, : len(sample)] = labels[row, : len(sample)] = torch.tensor(sample)
    mask = (labels != -100).long()
    result: torch.Tensor = model(
        input_ids=tokens, attention_mask=mask, labels=labels, use_cache=False
    ).loss
    return result


def main() -> None:
    """Print users per second of the three ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="privsyn-lm")
    parser.add_argument("--trainable", default="full", choices=["full", "lora"])
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    spec = TrainableModel(name=arguments.model, trainable=arguments.trainable)
    model = LocalModel(spec, device="cpu")
    other = LocalModel(spec, device="cpu")
    names = list(other.shapes)
    for parameter in other._named.values():  # an ordinary model again, for the copies
        parameter.data, parameter.grad = parameter.data.clone(), None
    texts = public_texts("bundled", tokenizer=model.tokenizer, max_tokens=arguments.max_tokens)
    texts = sorted(texts, key=len)[-arguments.users * arguments.samples :]
    np.random.default_rng(0).shuffle(texts)  # a user's samples differ in length
    tokens = model.encode(texts)
    users = [tokens[i :: arguments.users] for i in range(arguments.users)]
    query = ModelDelta(
        clip_to=0.1,
        learning_rate=0.1,
        epochs=arguments.epochs,
        batch_size=arguments.batch_size,
    )
    ways: dict[str, Callable[[], Any]] = {
        "cohort": lambda: by_cohort(model, users, query),
        "copies": lambda: by_copies(other._model, names, users, query),
        "floor": lambda: floor(model, users, query),
    }
    ours, theirs = ways["cohort"](), ways["copies"]()
    if np.abs(ours - theirs).max() > 1e-4 * np.abs(theirs).max():
        raise SystemExit("the two ways train differently")
    ways["floor"]()
    wall: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.repeats):  # interleaved, so that a busy moment hits all
        for name, work in ways.items():
            began, used = time.perf_counter(), time.process_time()
            work()
            wall[name].append(time.perf_counter() - began)
            cpu[name].append(time.process_time() - used)
    mean_tokens = sum(map(len, tokens)) / len(tokens)
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch "
        f"{torch.__version__}, {torch.get_num_threads()} threads; {arguments.model} "
        f"({arguments.trainable}, {model.dimension:,} parameters trained), {arguments.users} users "
        f"x {arguments.samples} samples x {mean_tokens:.0f} tokens"
    )
    print("way      users/s  users per CPU second  against the floor")
    for name in ways:
        seconds, used = float(np.median(wall[name])), float(np.median(cpu[name]))
        ratio = used / float(np.median(cpu["floor"]))
        print(
            f"{name:<8} {arguments.users / seconds:>7.2f}  {arguments.users / used:>20.2f}  "
            f"{ratio:>17.2f}"
        )


if __name__ == "__main__":
    main()
