"""Texts per CPU second of an embedding model, and what the check of company costs.

    python -m benchmarks.embedding [--texts 400] [--precision float32]

Bundled passages cut to 5 to 400 words, embedded by one thread: by the package, whose forward passes
have one shape per width, and by the library's own `encode`, in batches of 32 padded to the longest;
then few texts at a time, as on nodes that embed by themselves. The best of three. CPU seconds of
the process, since wall seconds count what else the machine does.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import flower_privsyn
from flower_privsyn.embedding import SentenceTransformerEmbedder, check_company, load_embedder

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


def main() -> None:
    """Print one line per way to embed."""
    parser = argparse.ArgumentParser(description="Texts per CPU second of an embedding model.")
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    arguments = parser.parse_args()
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
    for name, work in ways:
        rate = len(texts) / cpu_seconds(work)
        print(f"{arguments.precision}, {name}: {rate:.1f} texts per CPU s")
    check = cpu_seconds(lambda: check_company(embedder), repeats=1)
    print(f"{arguments.precision}, the check of company: {check:.2f} CPU s")


if __name__ == "__main__":
    main()
