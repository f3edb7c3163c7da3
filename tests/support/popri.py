"""A small POPri with fakes in place of models, and what its rounds kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from flower_privsyn.strategies import POPri, POPriConfig
from flower_privsyn.testing import HashEmbedder
from tests.support.federation import WORDS
from tests.support.words import WordGenerator, train_words


def table(run: Path, number: int) -> list[dict[str, Any]]:
    """The responses of a round, a row each."""
    rows: list[dict[str, Any]] = pq.read_table(
        run / "rounds" / f"{number:04d}" / "candidates.parquet"
    ).to_pylist()
    return rows


def stored(run: Path, number: int) -> tuple[np.ndarray, np.ndarray]:
    """(m, d) embeddings of the responses of a round as they travel, and (m,) their prompts."""
    rows = table(run, number)
    embeddings = np.array([row["embedding"] for row in rows], dtype=np.float32)
    return embeddings, np.array([row["prompt"] for row in rows])


def small_popri(run_dir: Path, public_text: Path) -> Callable[..., POPriConfig]:
    """Settings of a small run, as a function whose keyword arguments replace them."""

    def build(**changes: Any) -> POPriConfig:
        values: dict[str, Any] = {
            "num_rounds": 3,
            "num_nodes": 2,
            "num_prompts": 8,
            "responses_per_prompt": 5,
            "rejected_rank": 4,
            "public_text": str(public_text),
            "synthetic_samples": 20,
            "run_dir": str(run_dir),
            "node_timeout": 0.2,
            "accept_noise": True,
            **changes,
        }
        if "epsilon" not in values and "noise_multiplier" not in values:
            values["epsilon"] = 8.0
        return POPriConfig(**values)

    return build


def popri(config: POPriConfig, **parts: Any) -> POPri:
    """The strategy with fakes in place of models."""
    return POPri(
        config,
        embedder=parts.pop("embedder", HashEmbedder()),
        generator=parts.pop("generator", WordGenerator(WORDS)),
        trainer=parts.pop("trainer", train_words),
        **parts,
    )
