"""Embedding of texts, beside its products and the library's own `encode`; the start of a process.

    python -m benchmarks.embedding [--texts 400] [--precision float32] [--repeats 3]

Bundled passages cut to 5 to 400 words, embedded by one thread. The floor is the products of the
model's matrices with the tokens there are, no padding, at the rate of one large product of the same
precision: above it lie the padding, and what is no product (attention's softmax, GELU, norms, the
tokenizer). The library's batches are of 32, padded to the longest.

Then processes of their own start, load the model and embed one text; their floor is a process that
imports PyTorch and ends.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import flower_privsyn
from benchmarks import Ratio, compared, operations_per_second, shown
from flower_privsyn.embedding import SentenceTransformerEmbedder, load_embedder

_PASSAGES = Path(flower_privsyn.__file__).parent / "data" / "passages" / "passages.jsonl.gz"

_START = """
import resource, sys
import torch
if sys.argv[1] == "whole":
    from flower_privsyn.embedding import embedder
    embedder.load_embedder(precision=sys.argv[2]).embed(["a text"])
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime)
"""


def passages(count: int) -> list[str]:
    """The first bundled passages, cut to 5 to 400 words."""
    words = np.random.default_rng(0).integers(5, 400, count)
    with gzip.open(_PASSAGES, "rt", encoding="utf-8") as file:
        lines = [json.loads(line)["text"] for line, _ in zip(file, range(count), strict=False)]
    return [" ".join(text.split()[:most]) for text, most in zip(lines, words, strict=True)]


def operations(embedder: SentenceTransformerEmbedder, texts: Sequence[str]) -> float:
    """Floating-point operations of the matrices' products with the tokens there are.

    For encoders of BERT's form: four square matrices and two of a layer's inner width in each
    layer, and two products of attention.
    """
    config = embedder.model[0].auto_model.config
    wide, inner = config.hidden_size, config.intermediate_size
    lengths = np.array([len(row["input_ids"]) for row in embedder._encode(texts)], dtype=float)
    matrices = (8 * wide**2 + 4 * wide * inner) * lengths.sum()
    return float(config.num_hidden_layers * (matrices + 4 * wide * (lengths**2).sum()))


def start(kind: str, precision: str) -> float:
    """CPU seconds of a process of its own."""
    words = [sys.executable, "-c", _START, kind, precision]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args(given)
    import torch

    torch.set_num_threads(1)
    precision = arguments.precision
    embedder = load_embedder(precision=precision)
    assert isinstance(embedder, SentenceTransformerEmbedder)
    texts, library = passages(arguments.texts), embedder.model
    found = compared(
        f"embedding, {len(texts)} texts, {precision}",
        lambda: embedder.embed(texts),
        {
            ("its matrix products", "floor"): operations(embedder, texts)
            / operations_per_second(precision=precision),
            ("the library's encode", "peer"): lambda: library.encode(
                texts, batch_size=32, show_progress_bar=False
            ),
        },
        repeats=arguments.repeats,
    )
    starts = {
        kind: [start(kind, precision) for _ in range(arguments.repeats)]
        for kind in ("whole", "alone")
    }
    alone = Ratio(
        part="a process that embeds one text",
        other="import torch",
        kind="floor",
        ours=starts["whole"],
        theirs=starts["alone"],
    )
    return shown([alone, *found])


if __name__ == "__main__":
    main()
