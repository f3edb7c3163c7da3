"""Topics of a made-up public corpus, for the embedder that hashes words."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flower_privsyn.generation.topics import make_topics
from flower_privsyn.testing import HashEmbedder

SUBJECTS = (
    "river mountain valley forest",
    "doctor hospital patient nurse",
    "engine turbine rocket orbit",
    "market price trade export",
    "violin concert melody singer",
    "football league season goal",
)


def documents(count: int = 120, *, seed: int = 0, words: int = 8) -> list[str]:
    """Texts of one subject each, in turn, with words that all have."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        own = SUBJECTS[number % len(SUBJECTS)].split()
        found.append(" ".join([*random.choice(own, words), "today", "again"]))
    return found


def write_topics(folder: Path, counts: tuple[int, ...] = (3, 6), *, seed: int = 0) -> Path:
    """A file of topics, coarse and fine."""
    path = folder / "topics.npz"
    texts = documents(seed=seed)
    make_topics(texts, embedder=HashEmbedder(), counts=counts).save(path)
    return path
