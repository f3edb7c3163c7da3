"""A next-word model small enough to read: bigram logits over the 500 commonest words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data" / "users.jsonl"
VOCABULARY = json.loads((Path(__file__).parent / "data" / "vocabulary.json").read_text())
INDEX = {word: index for index, word in enumerate(VOCABULARY)}


def read_rows() -> list[tuple[str, str]]:
    """(user, text) of everybody."""
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    return [(row["client_id"], row["text"]) for row in rows]


def new_model() -> np.ndarray:
    """All next words equally likely."""
    return np.zeros((len(VOCABULARY), len(VOCABULARY)), dtype=np.float32)


def train(model: np.ndarray, texts: Iterable[str], *, steps: int = 20) -> tuple[np.ndarray, int]:
    """Gradient descent on the next-word cross-entropy; returns the model and the word pairs."""
    pairs = [
        (INDEX[a], INDEX[b])
        for text in texts
        for a, b in zip(text.lower().split(), text.lower().split()[1:], strict=False)
        if a in INDEX and b in INDEX
    ]
    counts = np.zeros_like(model)
    np.add.at(counts, tuple(np.array(pairs, dtype=np.int64).reshape(-1, 2).T), 1.0)
    rows = counts.sum(axis=1, keepdims=True)
    for _ in range(steps):
        odds = np.exp(model - model.max(axis=1, keepdims=True))
        gradient = odds / odds.sum(axis=1, keepdims=True) * rows - counts
        model = model - 0.5 * gradient / np.maximum(rows, 1.0)
    return model, len(pairs)
