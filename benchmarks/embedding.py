"""Texts per CPU second of an embedding model, and what the check of company costs.

    python -m benchmarks.embedding [--texts 400] [--precision float32]

Bundled passages cut to 5 to 400 words, embedded by one thread: by the package, whose forward passes
have one shape per width, and by the library's own `encode`, in batches of 32 padded to the longest;
then few texts at a time, as on nodes that embed by themselves. The best of three. CPU seconds of
the process, since wall seconds count what else the machine does.

The floor is the products of the model's matrices with the tokens there are, no padding, at the rate
of one large product of the same precision. Between the floor and the package lies, besides the
padding, what is no product: attention's softmax, GELU, norms, the tokenizer.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import flower_privsyn
from benchmarks import Ratio
from flower_privsyn.embedding import SentenceTransformerEmbedder, check_company, load_embedder
from flower_privsyn.embedding.embedder import ROWS

_PASSAGES = Path(flower_privsyn.__file__).parent / "data" / "passages" / "passages.jsonl.gz"


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
    padded = [width for places, width in embedder._passes(lengths) for _ in range(ROWS)]

    def of(tokens: Sequence[int]) -> float:
        each = np.array(tokens, dtype=np.float64)
        layer = each * (8 * wide**2 + 4 * wide * inner) + 4 * each**2 * wide
        return float(config.num_hidden_layers * layer.sum())

    return of(lengths), of(padded)


def product_rate(precision: str) -> float:
    """Floating-point operations per CPU second of one large product."""
    import torch

    left, right = (torch.randn(1024, 1024, dtype=getattr(torch, precision)) for _ in range(2))
    return 2 * 1024**3 / cpu_seconds(lambda: left @ right, repeats=10)


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Print one line per way to embed."""
    parser = argparse.ArgumentParser(description="Texts per CPU second of an embedding model.")
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    arguments = parser.parse_args(given)
    import torch

    torch.set_num_threads(1)
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    embedder = load_embedder(precision=arguments.precision)
    assert isinstance(embedder, SentenceTransformerEmbedder)
    texts = passages(arguments.texts)
    library = embedder.model
    ways: list[tuple[str, Callable[[], object]]] = [
        ("the package", lambda: embedder.embed(texts)),
        ("the library", lambda: library.encode(texts, batch_size=32, show_progress_bar=False)),
    ]
    for size in (1, 3, 30):
        parts = [texts[at : at + size] for at in range(0, min(len(texts), 4 * size), size)]
        number = sum(map(len, parts))
        seconds = cpu_seconds(lambda parts=parts: [embedder.embed(part) for part in parts])  # type: ignore[misc]
        print(f"{arguments.precision}, {size} texts at a time: {number / seconds:.1f} per CPU s")
    found = {name: cpu_seconds(work) for name, work in ways}
    for name, taken in found.items():
        print(f"{arguments.precision}, {name}: {len(texts) / taken:.1f} texts per CPU s")
    needed, padded = operations(embedder, texts)
    floor = needed / product_rate(arguments.precision)
    ours = found["the package"]
    print(
        f"{arguments.precision}, the floor: {len(texts) / floor:.1f} texts per CPU s; the package "
        f"takes {ours / floor:.2f} times as long; padding adds {padded / needed - 1:.0%}"
    )
    check = cpu_seconds(lambda: check_company(embedder), repeats=1)
    print(f"{arguments.precision}, the check of company: {check:.2f} CPU s")
    part = f"embedding, {len(texts)} texts, {arguments.precision}"
    return [
        Ratio(part, "its matrix products", "floor", ours, floor, "CPU s"),
        Ratio(part, "the library's encode", "peer", ours, found["the library"], "CPU s"),
    ]


if __name__ == "__main__":
    main()
