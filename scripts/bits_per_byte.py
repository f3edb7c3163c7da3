"""Bits per byte of writers on text they have not seen: the only figure of models with other tokens.

    python -m scripts.bits_per_byte FILE [FILE ...] --models privsyn-lm gemma-3-270m

Each FILE holds JSON lines with `text`, gzipped or not. The same texts for every model, each cut to
so many letters that all models read it at once. Intervals are bootstraps over texts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from pathlib import Path

from flower_privsyn.evaluation.language_model import evaluate_language_model


def texts_of(file: Path, *, count: int, letters: int) -> list[str]:
    """Some of a file's texts that are long enough, at random, the same ones every time.

    Args:
        file: JSON lines with `text`.
        count: how many.
        letters: that are kept of each.
    """
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
        texts = [text for line in lines if len(text := json.loads(line)["text"]) >= letters]
    return [text[:letters] for text in random.Random(0).sample(texts, min(count, len(texts)))]


def main() -> None:
    """Print one line per file and model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--models", nargs="+", default=["privsyn-lm", "gemma-3-270m"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--letters", type=int, default=800)
    arguments = parser.parse_args()
    for file in arguments.files:
        texts = texts_of(file, count=arguments.count, letters=arguments.letters)
        for model in arguments.models:
            found = evaluate_language_model(
                model, texts, max_tokens=480, batch_size=4, precision="auto"
            )
            bits = found.bits_per_byte
            shown = "none: its tokens lose text" if bits is None else f"{bits.value:.3f}"
            interval = "" if bits is None else f" ({bits.low:.3f} to {bits.high:.3f})"
            print(f"{file.name}: {model}: {shown}{interval}, {len(texts)} texts", flush=True)


if __name__ == "__main__":
    main()
