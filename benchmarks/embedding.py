"""Texts per CPU second of an embedding model, and what the check of batch invariance costs.

    python -m benchmarks.embedding [--texts 400] [--precision float32] [--starts 2]

Bundled passages cut to 5 to 400 words, embedded by one thread: by the package, and by the library's
own `encode`, in batches of 32 padded to the longest; then few texts at a time, as on nodes that
embed by themselves. The best of three, taken in turn. CPU seconds of the process, since wall
seconds count what else the machine does.

The floor is the products of the model's matrices with the tokens there are, no padding, at the rate
of one large product of the same precision. Between the floor and the package lies, besides the
padding, what is no product: attention's softmax, GELU, norms, the tokenizer.

Then processes of their own start, load the model and embed one text (`--starts`, in turn; the
least). Their floor is a process that imports PyTorch and ends.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import flower_privsyn
from benchmarks import Ratio
from flower_privsyn.embedding import (
    SentenceTransformerEmbedder,
    check_batch_invariance,
    load_embedder,
)
from flower_privsyn.embedding.embedder import ROWS

_PASSAGES = Path(flower_privsyn.__file__).parent / "data" / "passages" / "passages.jsonl.gz"

_START = """
import resource, sys
import torch
if sys.argv[1] != "PyTorch alone":
    from flower_privsyn.embedding import embedder
    embedder.load_embedder(precision=sys.argv[2]).embed(["a text"])
used = resource.getrusage(resource.RUSAGE_SELF)
# Not `ru_maxrss`, which a process inherits from the one that started it.
most = open("/proc/self/status").read().split("VmHWM:")[1].split()[0]
print(used.ru_utime + used.ru_stime, int(most) / 1024)
"""


def passages(count: int) -> list[str]:
    """The first bundled passages, cut to 5 to 400 words."""
    words = np.random.default_rng(0).integers(5, 400, count)
    with gzip.open(_PASSAGES, "rt", encoding="utf-8") as file:
        lines = [json.loads(line)["text"] for line, _ in zip(file, range(count), strict=False)]
    return [" ".join(text.split()[:most]) for text, most in zip(lines, words, strict=True)]


def cpu_seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The least of several."""
    seconds = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return min(seconds)


def operations(embedder: SentenceTransformerEmbedder, texts: Sequence[str]) -> tuple[float, float]:
    """Floating-point operations of the matrices' products: with the tokens there are, and padded.

    For encoders of BERT's form: four square matrices and two of a layer's inner width in each
    layer, and two products of attention.
    """
    config = embedder.model[0].auto_model.config
    wide, inner = config.hidden_size, config.intermediate_size
    lengths = [len(row["input_ids"]) for row in embedder._encode(texts)]
    matrices = config.num_hidden_layers * (8 * wide**2 + 4 * wide * inner)

    def of(tokens: Sequence[int]) -> float:
        each = np.array(tokens, dtype=np.float64)
        return float(matrices * each.sum() + config.num_hidden_layers * 4 * wide * (each**2).sum())

    padded = [width for places, width in embedder._passes(lengths) for _ in range(ROWS)]
    return of(lengths), of(padded)


def product_rate(precision: str) -> float:
    """Floating-point operations per CPU second of one large product."""
    import torch

    left, right = (torch.randn(1024, 1024, dtype=getattr(torch, precision)) for _ in range(2))
    return 2 * 1024**3 / cpu_seconds(lambda: left @ right, repeats=10)


def beside(ways: dict[str, Callable[[], object]], repeats: int = 3) -> dict[str, float]:
    """The least CPU seconds of each, taken in turn."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats):
        for name, work in ways.items():
            best[name] = min(best[name], cpu_seconds(work, repeats=1))
    return best


def starts(count: int, precision: str) -> dict[str, tuple[float, float]]:
    """CPU seconds and the most memory in MiB, of a process that embeds one text; the least."""
    kinds = ("PyTorch alone", "the package")
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for _ in range(count):
        for name, seen in found.items():
            words = [sys.executable, "-c", _START, name, precision]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            seconds, most = map(float, done.stdout.split())
            seen.append((seconds, most))
    return {
        name: (min(s for s, _ in seen), min(m for _, m in seen)) for name, seen in found.items()
    }


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Print one line per way to embed."""
    parser = argparse.ArgumentParser(description="Texts per CPU second of an embedding model.")
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--starts", type=int, default=2, help="processes of each kind")
    arguments = parser.parse_args(given)
    import torch

    torch.set_num_threads(1)
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    embedder = load_embedder(precision=arguments.precision)
    assert isinstance(embedder, SentenceTransformerEmbedder)
    texts = passages(arguments.texts)
    library = embedder.model
    ways: dict[str, Callable[[], object]] = {
        "the package": lambda: embedder.embed(texts),
        "the library": lambda: library.encode(texts, batch_size=32, show_progress_bar=False),
    }
    for size in (1, 3, 30):
        parts = [texts[at : at + size] for at in range(0, min(len(texts), 4 * size), size)]
        number = sum(map(len, parts))
        seconds = cpu_seconds(lambda parts=parts: [embedder.embed(part) for part in parts])  # type: ignore[misc]
        print(f"{arguments.precision}, {size} texts at a time: {number / seconds:.1f} per CPU s")
    found = beside(ways)
    for name, taken in found.items():
        print(f"{arguments.precision}, {name}: {len(texts) / taken:.1f} texts per CPU s")
    needed, padded = operations(embedder, texts)
    floor = needed / product_rate(arguments.precision)
    ours = found["the package"]
    print(
        f"{arguments.precision}, the floor: {len(texts) / floor:.1f} texts per CPU s; the package "
        f"takes {ours / floor:.2f} times as long; padding adds {padded / needed - 1:.0%}"
    )
    check = cpu_seconds(lambda: check_batch_invariance(embedder), repeats=1)
    print(f"{arguments.precision}, the check of batch invariance: {check:.2f} CPU s")
    part = f"embedding, {len(texts)} texts, {arguments.precision}"
    begun = starts(max(1, arguments.starts), arguments.precision)
    for name, (taken, most) in begun.items():
        print(f"{arguments.precision}, a start with {name}: {taken:.1f} CPU s, {most:.0f} MiB")
    least, whole = (seconds for seconds, _ in begun.values())
    alone = "a process that embeds one text"
    return [
        Ratio(alone, "import torch", "floor", whole, least, "CPU s"),
        Ratio(part, "its matrix products", "floor", ours, floor, "CPU s"),
        Ratio(part, "the library's encode", "peer", ours, found["the library"], "CPU s"),
    ]


if __name__ == "__main__":
    main()
