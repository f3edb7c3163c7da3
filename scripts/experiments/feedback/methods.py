"""What the methods ask about a set of candidates, and how their scores are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.queries import (
    Broadcast,
    KernelMean,
    MeanSimilarity,
    NearestNeighborHistogram,
    Query,
    expand_scores,
    features,
    mean_features,
)
from scripts.experiments.feedback.corpus import Candidates

Float64 = npt.NDArray[np.float64]

#: Names in tables and the plot, in their order.
LABELS = {
    "exact": "exact mean cosine (not private)",
    "popri-none": "POPri, no centring (paper)",
    "popri-all": "POPri, centred over all, unit norm (authors' code)",
    "popri-prompt": "POPri, centred per prompt",
    "popri-none-span": "POPri, no centring, span",
    "popri-all-span": "POPri, over all, span",
    "popri-prompt-span": "POPri, per prompt, span",
    "popri-prompt-once": "POPri, per prompt, T = 1",
    "popri-prompt-span-once": "POPri, per prompt, span, T = 1",
    "pe": "PE histogram",
    "sketch-linear": "sketch, linear (384)",
    "sketch-1024": "sketch mean, D = 1,024",
    "sketch-mean": "sketch mean, D = 4,096",
    "sketch-half": "sketch mean, D = 4,096 and half linear",
    "sketch-witness": "sketch witness, D = 4,096",
    "sketch-witness-chosen": "sketch witness against what is chosen",
}

#: From a release (or a noise-free sum) and the number of users to one score per candidate.
Reader = Callable[[Float64, int], Float64]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One query, how often it is released, and what is read from a release.

    Attributes:
        query: what users answer.
        broadcast: with what.
        rounds: releases that share the budget.
        readers: scores by name of the method.
    """

    query: Query
    broadcast: Broadcast
    rounds: int
    readers: Mapping[str, Reader]


def asked_about(
    candidates: Candidates, *, rounds: int, max_samples: int, bandwidth: float, seed: int
) -> Iterator[Asked]:
    """Everything that is asked about one set of candidates.

    Args:
        candidates: of one round.
        rounds: T, releases of the methods that ask in every round.
        max_samples: of the histogram.
        bandwidth: of the sketches, from public text.
        seed: of the random features.
    """
    yield from _similarities(candidates, "none", "clip", rounds)
    yield from _similarities(candidates, "all", "unit", rounds)
    yield from _similarities(candidates, "prompt", "clip", rounds)
    yield from _similarities(candidates, "prompt", "clip", 1, suffix="-once")
    yield Asked(
        query=NearestNeighborHistogram(max_samples=max_samples),
        broadcast={"candidates": candidates.embeddings},
        rounds=rounds,
        readers={"pe": _as_released},
    )
    for name, num_features, weight in (
        ("sketch-linear", 2, 1.0),
        ("sketch-1024", 1024, 0.0),
        ("sketch", 4096, 0.0),
        ("sketch-half", 4096, 0.5),
    ):
        query = KernelMean(
            num_features=num_features,
            bandwidth=bandwidth,
            feature_seed=seed,
            embedding_weight=weight,
        )
        yield _sketch(name, query, candidates)


def _as_released(release: Float64, users: int) -> Float64:
    """Scores that are the release itself."""
    del users
    return release


def _similarities(
    candidates: Candidates, centre: Any, scale: Any, rounds: int, suffix: str = ""
) -> Iterator[Asked]:
    """POPri's scores, answered for every candidate and in the span of the candidates."""
    texts = candidates.embeddings
    groups = candidates.prompt if centre == "prompt" else None

    def expanded(release: Float64, users: int) -> Float64:
        del users
        return expand_scores(release, texts, prompt=groups, centre=centre)

    each, span = (
        MeanSimilarity(centre=centre, scale=scale, answer_space=space)
        for space in ("candidates", "span")
    )
    yield Asked(
        query=each,
        broadcast=each.broadcast(texts, prompt=groups),
        rounds=rounds,
        readers={f"popri-{centre}{suffix}": _as_released},
    )
    yield Asked(
        query=span,
        broadcast=span.broadcast(texts, prompt=groups),
        rounds=rounds,
        readers={f"popri-{centre}-span{suffix}": expanded},
    )


def _sketch(name: str, query: KernelMean, candidates: Candidates) -> Asked:
    """One release, read as mean scores and as a witness against two populations.

    The scores are those of `mean_scores` and `witness_scores`; the candidates' features are kept
    over the many releases that are read here.
    """
    rows = features(candidates.embeddings, query=query)  # (m, D')
    covered = rows @ mean_features(candidates.embeddings, query=query).astype(np.float32)
    prompts = np.arange(len(rows)).reshape(-1, candidates.size)

    def mean(release: Float64, users: int) -> Float64:
        return (rows @ (release / users).astype(np.float32)).astype(np.float64)

    def witness(release: Float64, users: int) -> Float64:
        return mean(release, users) - covered

    def witness_of_chosen(release: Float64, users: int) -> Float64:
        scores = mean(release, users)
        total, taken = np.zeros(rows.shape[1]), 0
        # As many rounds as there are (at most 20), each of the prompts next in line.
        for part in np.array_split(prompts, min(20, len(prompts))):
            members = part.reshape(-1)
            if taken:
                scores[members] -= rows[members] @ (total / taken).astype(np.float32)
            else:
                scores[members] -= covered[members]
            best = part[np.arange(len(part)), np.argmax(scores[part], axis=1)]
            total += rows[best].sum(axis=0, dtype=np.float64)
            taken += len(best)
        return scores

    readers: dict[str, Reader] = {name: mean}
    if name == "sketch":
        readers = {
            "sketch-mean": mean,
            "sketch-witness": witness,
            "sketch-witness-chosen": witness_of_chosen,
        }
    dimension = candidates.embeddings.shape[1]
    return Asked(query=query, broadcast=query.broadcast(dimension), rounds=1, readers=readers)
