"""Measure what a condition tells a generator: bits per byte of documents after it.

python scripts/public_models/conditions.py --corpus DIR [--model privsyn-lm]

One passage of every held-out document is read after its own keywords, after those of its topic,
after those of another topic, and after none. A generator that makes nothing of conditions has the
same figure throughout.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from corpus import DOCUMENT_TYPES, is_held_out, read_corpus  # noqa: E402
from topics import passages  # noqa: E402

from flower_privsyn.embedding import load_embedder  # noqa: E402
from flower_privsyn.generation.topics import condition, load_topics  # noqa: E402
from flower_privsyn.models.pretrained import load_pretrained  # noqa: E402


def bits(model: Any, tokenizer: Any, before: list[str], texts: list[str]) -> np.ndarray:
    """(n,) bits of each text after what stands before it; "" is the end of another text."""
    import torch

    found = []
    for condition_, text in zip(before, texts, strict=True):
        given = tokenizer(condition_, add_special_tokens=False)["input_ids"]
        given = given or [tokenizer.eos_token_id]
        row = given + tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens = torch.tensor([row])
        with torch.inference_mode():
            scores = model(input_ids=tokens).logits[0].float().log_softmax(-1)
        places = range(len(given) - 1, len(row) - 1)
        found.append(-float(scores[places, row[len(given) :]].sum()) / math.log(2))
    return np.array(found)


def own_keywords(texts: list[str], frequency: dict[str, int], most: int = 10) -> list[list[str]]:
    """Words of each text that few others have."""
    import re

    found = []
    for text in texts:
        words = {word.lower() for word in re.findall(r"[A-Za-z][a-z]{3,}", text)}
        found.append(sorted(words, key=lambda word: (frequency.get(word, 0), word))[:most])
    return found


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder of public-*.jsonl.gz")
    parser.add_argument("--model", default="privsyn-lm")
    parser.add_argument("--seed", type=int, default=20240602)
    asked = parser.parse_args()

    embedder = load_embedder("all-MiniLM-L6-v2")
    texts = passages(asked.corpus, held_out=True, tokenizer=embedder.tokenizer, seed=asked.seed)
    kinds = [
        DOCUMENT_TYPES[document["group"]]
        for document in read_corpus(asked.corpus)
        if is_held_out(document)
    ]
    vectors = embedder.embed(texts)
    frequency: dict[str, int] = {}
    for words in ({word.lower() for word in text.split()} for text in texts):
        for word in words:
            frequency[word] = frequency.get(word, 0) + 1
    random = np.random.default_rng(asked.seed)
    before = {
        "none": [""] * len(texts),
        "own keywords, type": [
            condition(words, document_type=kind)
            for words, kind in zip(own_keywords(texts, frequency), kinds, strict=True)
        ],
    }
    hierarchy = load_topics()
    for count in hierarchy.counts:
        topics = hierarchy.at(count)
        right = topics.nearest(vectors)
        wrong = (right + random.integers(1, count, len(right))) % count
        told = f"{count} topics"
        before |= {
            f"{told}, right, type": [
                condition(topics.keywords[topic], document_type=kind)
                for topic, kind in zip(right.tolist(), kinds, strict=True)
            ],
            f"{told}, right": [condition(topics.keywords[topic]) for topic in right.tolist()],
            f"{told}, wrong": [condition(topics.keywords[topic]) for topic in wrong.tolist()],
        }
    model, tokenizer = load_pretrained(asked.model, kind="causal", dtype="float32", device=None)
    sizes = np.array([len(text.encode()) for text in texts])
    base = bits(model, tokenizer, before["none"], texts)
    print(f"{asked.model}: {len(texts)} held-out passages, {sizes.sum()} bytes")
    print("| condition | bits per byte | less than without | standard error |")
    print("|---|---|---|---|")
    for name, conditions in before.items():
        found = bits(model, tokenizer, conditions, texts)
        gain = (base - found).sum() / sizes.sum()
        error = np.std((base - found) - gain * sizes) * math.sqrt(len(texts)) / sizes.sum()
        print(f"| {name} | {found.sum() / sizes.sum():.3f} | {gain:+.3f} | {error:.3f} |")


if __name__ == "__main__":
    main()
