"""Users per second that are trained, against other ways and other frameworks.

    python -m benchmarks.local_training [--model privsyn-lm] [--trainable full] [--users 20]

`--model distilgpt2-size` is DistilGPT2's architecture, 82 million parameters, with random weights
and the bundled tokenizer; it takes 7 GiB.

Ways through the same users, samples and settings, interleaved, in one process and one thread:

- cohort: what the client app does: one model, weights put back before each user, the update
  clipped and summed by the query (`LocalModel.update`, `ModelDelta.answer`);
- copies: what is usually written: `copy.deepcopy` of the model and a new `torch.optim.SGD` for
  every user, a dictionary of differences, flattened, clipped and summed with numpy;
- pfl: Apple's simulator, FederatedAveraging with clipping in a SimulatedBackend, if installed;
- floor: forward and backward passes alone, the gradients thrown away.

All of them in a process that keeps the memory it frees, as a node's process does
(`flower_privsyn.models.memory`), from which all of them gain.

Then whole rounds in Flower's simulation engine on two CPUs, server included:

- ours: `DPFedAvg`, two nodes that hold half of the users each;
- Flower's own: a client per user with `fixedclipping_mod`, and
  `DifferentialPrivacyClientSideFixedClipping` around FedAvg.

What the ways make of the users is compared before anything is timed, and stops the benchmark where
it differs. CPU time is that of all processes that take part. `--in-process` leaves Flower out.
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import Ratio
from benchmarks.other_frameworks import (
    PFL_INSTALL,
    Pfl,
    by_flower,
    in_order,
    loss,
    ordinary,
    ours_in_flower,
)
from benchmarks.other_frameworks import batches as padded
from flower_privsyn.data import public_texts
from flower_privsyn.models import resolve_model
from flower_privsyn.queries import Cohort, ModelDelta, TrainableModel
from flower_privsyn.training.local import LocalModel

Samples = Sequence[Sequence[int]]

#: What `distilgpt2_size` makes, as `--model` names it.
LARGE = "distilgpt2-size"


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


def by_copies(model: Any, names: Sequence[str], users: Sequence[Samples], query: ModelDelta) -> Any:
    """Train all users, each with a copy of the model and an optimiser of its own."""
    total: Any = 0.0
    start = dict(model.named_parameters())
    for samples in users:
        mine = copy.deepcopy(model)
        trained = dict(mine.named_parameters())
        optimiser = torch.optim.SGD([trained[name] for name in names], lr=query.learning_rate)
        for tokens, labels in padded(in_order(samples), query.batch_size):
            optimiser.zero_grad()
            loss(mine, tokens, labels).backward()
            optimiser.step()
        delta = {name: (trained[name] - start[name]).detach().numpy() for name in names}
        update = np.concatenate([value.ravel() for value in delta.values()]).astype(np.float64)
        total = total + clipped(update, query)
    return total / query.unit


def clipped(update: Any, query: ModelDelta) -> Any:
    """An update, no longer than the query allows."""
    return update * min(1.0, query.clip_to / float(np.linalg.norm(update)))


def floor(model: LocalModel, users: Sequence[Samples], query: ModelDelta) -> None:
    """The passes that no way of training can avoid."""
    for samples in users:
        for first in range(0, len(samples), query.batch_size):
            batch = samples[first : first + query.batch_size]
            model._loss([(sample, 1) for sample in batch]).backward()
            model._drop_gradients()


def distilgpt2_size(folder: Path) -> str:
    """Write a model of DistilGPT2's architecture with random weights; returns the folder."""
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(n_layer=6)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(resolve_model("privsyn-tiny")).save_pretrained(folder)
    return str(folder)


def operations(model: LocalModel, users: Sequence[Samples], query: ModelDelta) -> float:
    """Floating-point operations of the floor per user: matrix products, forward and backward."""
    with FlopCounterMode(display=False) as counter:
        floor(model, users, query)
    return counter.get_total_flops() / len(users)


def product_rate() -> float:
    """Floating-point operations per CPU second of one large float32 matrix product."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    rates = []
    for _ in range(10):
        began = time.process_time()
        _ = left @ right
        rates.append(2.0 * 1024**3 / (time.process_time() - began))
    return float(np.median(rates))


def check_equal(name: str, found: np.ndarray, expected: np.ndarray) -> None:
    """Stop where another way made something else of the users."""
    if np.abs(found - expected).max() > 1e-3 * np.abs(expected).max():
        raise SystemExit(f"{name} trains differently")


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Print users per second of all ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="privsyn-lm")
    parser.add_argument("--trainable", default="full", choices=["full", "lora"])
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--in-process", action="store_true", help="without Flower")
    arguments = parser.parse_args(given)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with tempfile.TemporaryDirectory() as folder:
        name = distilgpt2_size(Path(folder)) if arguments.model == LARGE else arguments.model
        return measure(arguments, name)


def measure(arguments: argparse.Namespace, name: str) -> list[Ratio]:
    """Time all ways.

    Args:
        arguments: by `main`.
        name: of the model, as nodes know it.
    """
    spec = TrainableModel(name=name, trainable=arguments.trainable)
    model = LocalModel(spec, device="cpu")
    names = list(model.shapes)
    other = ordinary(LocalModel(spec, device="cpu"))
    texts = public_texts("bundled", tokenizer=model.tokenizer, max_tokens=arguments.max_tokens)
    texts = sorted(texts, key=len)[-arguments.users * arguments.samples :]
    np.random.default_rng(0).shuffle(texts)  # a user's samples differ in length
    tokens = model.encode(texts)
    users = [tokens[i :: arguments.users] for i in range(arguments.users)]
    written = [texts[i :: arguments.users] for i in range(arguments.users)]
    query = ModelDelta(
        clip_to=0.1,
        learning_rate=0.1,
        batch_size=arguments.batch_size,
    )
    ways: dict[str, Callable[[], Any]] = {
        "cohort": lambda: by_cohort(model, users, query),
        "copies": lambda: by_copies(other, names, users, query),
        "floor": lambda: floor(model, users, query),
    }
    average = (ways["cohort"]() * query.unit / len(users)).astype(np.float32)
    check_equal("copies", ways["copies"]() * query.unit / len(users), average)
    try:
        pfl = Pfl(ordinary(LocalModel(spec, device="cpu")), users, query)
    except ImportError:
        print(f"pfl is not installed and is left out: {PFL_INSTALL}")
    else:
        check_equal("pfl", pfl.round(), average)
        ways["pfl"] = pfl.round
    ways["floor"]()
    wall: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(arguments.repeats):  # interleaved, so that a busy moment hits all
        for way, work in ways.items():
            began, used = time.perf_counter(), time.process_time()
            work()
            wall[way].append(time.perf_counter() - began)
            cpu[way].append(time.process_time() - used)
    mean_tokens = sum(map(len, tokens)) / len(tokens)
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch "
        f"{torch.__version__}, {torch.get_num_threads()} threads; {arguments.model} "
        f"({arguments.trainable}, {model.dimension:,} parameters trained), {arguments.users} users "
        f"x {arguments.samples} samples x {mean_tokens:.0f} tokens"
    )
    count, rate = operations(model, users, query), product_rate()
    print(
        f"floor: {count / 1e9:.2f} GFLOP a user in matrix products; at the {rate / 1e9:.0f} "
        f"GFLOP/s of one thread's large product {rate / count:.1f} users per CPU second"
    )
    print("way             users/s  users per CPU second  CPU time against the floor  to cohort")
    base = float(np.median(cpu["floor"]))

    def line(way: str, seconds: float, used: float, against: float) -> None:
        print(
            f"{way:<14} {arguments.users / seconds:>8.2f}  {arguments.users / used:>20.2f}  "
            f"{used / base:>26.2f}  {used / against:>9.2f}"
        )

    ours = float(np.median(cpu["cohort"]))
    for way in ways:
        line(way, float(np.median(wall[way])), float(np.median(cpu[way])), ours)
    part = f"training on a node, {arguments.users} users"
    ratios = [
        Ratio(part, "forward and backward alone", "floor", ours, base, "CPU s"),
        Ratio(part, "a copy per user", "peer", ours, float(np.median(cpu["copies"])), "CPU s"),
    ]
    apples = float(np.median(cpu["pfl"])) if "pfl" in ways else None
    ratios.append(Ratio(part, "pfl", "peer", ours, apples, "CPU s", PFL_INSTALL))
    if arguments.in_process or arguments.trainable != "full":
        return ratios
    theirs, update = by_flower(name, written, users, query)
    check_equal("Flower's own strategy", update, average)
    rounds = {
        "ours in Flower": ours_in_flower(name, written, users, query),
        "Flower's own": theirs,
    }
    for way, taken in rounds.items():
        line(
            way,
            float(np.mean([one.wall for one in taken])),
            float(np.mean([one.cpu for one in taken])),
            ours,
        )
    in_flower, flowers = (
        float(np.mean([one.cpu for one in rounds[way]]))
        for way in ("ours in Flower", "Flower's own")
    )
    part = f"a round of training in Flower, {arguments.users} users"
    return [*ratios, Ratio(part, "Flower's own strategy", "peer", in_flower, flowers, "CPU s")]


if __name__ == "__main__":
    main()
