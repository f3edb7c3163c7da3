"""A next-word model small enough to read: bigram logits over the 500 commonest words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
from flwr.app import Context

DATA = Path(__file__).parent / "data" / "users.jsonl"
VOCABULARY = json.loads((Path(__file__).parent / "data" / "vocabulary.json").read_text())
INDEX = {word: index for index, word in enumerate(VOCABULARY)}


def read_rows(context: Context) -> list[tuple[str, str]]:
    """(user, text) of the people of a node."""
    node, nodes = context.node_config["partition-id"], context.node_config["num-partitions"]
    users = [
        user for user in dict.fromkeys(user for user, _ in _everybody()) if user not in _held_out()
    ]
    mine = set(users[int(node) :: int(nodes)])
    return [(user, text) for user, text in _everybody() if user in mine]


def held_out_texts() -> list[str]:
    """Texts of the people who take no part, to compare models by."""
    return [text for user, text in _everybody() if user in _held_out()]


@cache
def _everybody() -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    return [(row["client_id"], row["text"]) for row in rows]


@cache
def _held_out() -> set[str]:
    """Every tenth person."""
    return set(list(dict.fromkeys(user for user, _ in _everybody()))[9::10])


def new_model() -> np.ndarray:
    """All next words equally likely."""
    return np.zeros((len(VOCABULARY), len(VOCABULARY)), dtype=np.float32)


def word_pairs(texts: Iterable[str]) -> list[tuple[int, int]]:
    """The pairs of a known word and the known word behind it."""
    return [
        (INDEX[a], INDEX[b])
        for text in texts
        for a, b in zip(text.lower().split(), text.lower().split()[1:], strict=False)
        if a in INDEX and b in INDEX
    ]


def train(model: np.ndarray, texts: Iterable[str], *, steps: int = 20) -> tuple[np.ndarray, int]:
    """Gradient descent on the next-word cross-entropy; returns the model and the word pairs."""
    pairs = word_pairs(texts)
    counts = np.zeros_like(model)
    np.add.at(counts, tuple(np.array(pairs, dtype=np.int64).reshape(-1, 2).T), 1.0)
    rows = counts.sum(axis=1, keepdims=True)
    for _ in range(steps):
        odds = np.exp(model - model.max(axis=1, keepdims=True))
        gradient = odds / odds.sum(axis=1, keepdims=True) * rows - counts
        model = model - 0.5 * gradient / np.maximum(rows, 1.0)
    return model, len(pairs)


def result(model: np.ndarray) -> str:
    """How many next words of people who took no part a model predicts, trained and untrained."""
    pairs = np.array(word_pairs(held_out_texts()), dtype=np.int64)

    def predicted(by: np.ndarray) -> float:
        return float((by.argmax(axis=1)[pairs[:, 0]] == pairs[:, 1]).mean())

    return (
        f"trained model: predicts {predicted(model):.1%} of {len(pairs)} next words of people who "
        f"took no part; untrained: {predicted(new_model()):.1%}"
    )
