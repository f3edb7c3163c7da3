"""How good the pairs are that each method makes, held against private text without noise."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.evaluation import STAMP
from flower_privsyn.privacy import (
    FullParticipation,
    GaussianMechanism,
    InsecureRandom,
    NeighboringRelation,
    calibrate_noise_multiplier,
)
from flower_privsyn.queries import Cohort, Query, nearest_candidates
from flower_privsyn.queries.user_means import unit_rows, user_means
from flower_privsyn.strategies.parts.ranking import rank_pairs
from scripts.experiments.feedback.corpus import (
    Candidates,
    Corpus,
    draw_candidates,
    draw_users,
    users_between,
)
from scripts.experiments.feedback.methods import asked_about
from scripts.experiments.feedback.protocol import Protocol

logger = logging.getLogger("feedback")

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def share_greater(values: Float64, chosen: Int64, rejected: Int64) -> float:
    """Share of pairs whose chosen member has the greater value; equal values count half."""
    difference = values[chosen] - values[rejected]
    return float(np.mean(np.where(difference == 0.0, 0.5, difference > 0.0)))


def spread(scores: Float64, size: int) -> float:
    """Standard deviation of scores about their prompt's mean, root mean square over prompts."""
    return math.sqrt(float(np.mean(scores.reshape(-1, size).var(axis=1, ddof=1))))


def candidate_spread(candidates: Candidates) -> float:
    """Length of a unit candidate about its prompt's mean, root mean square."""
    columns = candidates.embeddings.T.astype(np.float64)
    return math.sqrt(sum(spread(column, candidates.size) ** 2 for column in columns))


def user_spread(candidates: Candidates, cohort: Cohort) -> float:
    """Spread of one user's own cosines, root mean square over users."""
    means = user_means(cohort, unit_rows, width=cohort.records.shape[1])
    cosines = means @ unit_rows(candidates.embeddings).T  # (n, m)
    return spread(cosines.reshape(-1), candidates.size)


def mean_cosines(candidates: Float32, cohort: Cohort) -> Float64:
    """Mean over users of the mean cosine to their texts, (m,)."""
    means = user_means(cohort, unit_rows, width=cohort.records.shape[1])
    cosines: Float64 = unit_rows(candidates) @ means.mean(axis=0)
    return cosines


@dataclass(frozen=True, kw_only=True)
class Judge:
    """What private text that took no part says about pairs; never part of a private run.

    Attributes:
        candidates: that the pairs are of.
        held_out: (m,) mean cosine to held-out users.
        distance: (m,) distance to the nearest held-out text.
        rejected_rank: of a pair.
    """

    candidates: Candidates
    held_out: Float64
    distance: Float64
    rejected_rank: int

    @classmethod
    def of(cls, candidates: Candidates, held_out: Cohort, *, rejected_rank: int) -> Judge:
        """Read the held-out text once for all methods."""
        texts = candidates.embeddings
        nearest = held_out.records[nearest_candidates(texts, held_out.records)].astype(np.float64)
        return cls(
            candidates=candidates,
            held_out=mean_cosines(texts, held_out),
            distance=np.linalg.norm(texts - nearest, axis=1),
            rejected_rank=rejected_rank,
        )

    def __call__(self, scores: Float64) -> dict[str, float]:
        """How good the pairs are that these scores make."""
        domain, prompt = self.candidates.domain, self.candidates.prompt
        texts = [str(row) for row in range(len(scores))]  # all different, as within a prompt
        pairs = rank_pairs(scores, prompt, texts, rejected_rank=self.rejected_rank)
        chosen, rejected = pairs.chosen, pairs.rejected
        figures = {
            "right": share_greater(self.held_out, chosen, rejected),
            "nearer": share_greater(-self.distance, chosen, rejected),
            "chosen_in_domain": float(np.mean(domain[chosen] >= 0)),
            "rejected_in_domain": float(np.mean(domain[rejected] >= 0)),
        }
        if domain.max() > 0:
            figures["chosen_minority"] = float(np.mean(domain[chosen] == 1))
        return figures


def measure(
    corpus: Corpus,
    setting: str,
    protocol: Protocol,
    *,
    num_prompts: int,
    seed: int,
    bandwidth: float,
    sweep: bool,
) -> Iterator[dict[str, Any]]:
    """All methods on one set of candidates.

    Args:
        corpus: everybody.
        setting: a domain, or "mixed".
        protocol: the sizes.
        num_prompts: K.
        seed: of the candidates, the users, the features and the noise.
        bandwidth: of the sketches.
        sweep: every number of users and epsilon, not only `protocol.at`.

    Yields one row per method, number of users and epsilon (None: no noise), averaged over draws of
    the noise.
    """
    shares = protocol.shares(setting, corpus.domains)
    salt = [seed, num_prompts, *setting.encode()]
    candidates = draw_candidates(
        corpus, shares, protocol, num_prompts, np.random.default_rng([1, *salt])
    )
    cohort = draw_users(
        corpus, shares, "private", max(protocol.users), np.random.default_rng([2, *salt])
    )
    everybody = sum(corpus.users[name, "held_out"].num_users for name in shares)
    held_out = draw_users(corpus, shares, "held_out", everybody, np.random.default_rng([3, *salt]))
    judge = Judge.of(candidates, held_out, rejected_rank=protocol.rejected_rank)
    chosen, budget = protocol.at
    sizes = [
        users for users in (protocol.users if sweep else [chosen]) if users <= cohort.num_users
    ]
    for users in sizes:
        exact = mean_cosines(candidates.embeddings, users_between(cohort, 0, users))
        yield (
            {"method": "exact", "users": users, "epsilon": None}
            | judge(exact)
            | {
                "signal": spread(exact, protocol.size),
                "user_spread": user_spread(candidates, users_between(cohort, 0, min(users, 1000))),
                "candidate_spread": candidate_spread(candidates),
                "dimension": candidates.embeddings.shape[1],
            }
        )
    asked = asked_about(
        candidates,
        rounds=protocol.rounds,
        max_samples=max(protocol.cap(name) for name in shares),
        bandwidth=bandwidth,
        seed=seed,
    )
    for number, question in enumerate(asked):
        total = np.zeros(question.query.answer_length(question.broadcast))
        before = 0
        for users in sizes:
            more = users_between(cohort, before, users)
            total, before = total + question.query.answer(more, question.broadcast), users
            exact_scores = {name: read(total, users) for name, read in question.readers.items()}
            for epsilon in (None, *(protocol.epsilons if sweep else [budget])):
                mechanism = noise_for(question.query, epsilon, users, question.rounds)
                random = _random([4, *salt, number, users, int(1000 * (epsilon or 0))])
                found: dict[str, list[dict[str, float]]] = {name: [] for name in question.readers}
                for _ in range(1 if epsilon is None else protocol.draws):
                    release = mechanism.release(total, random=random)
                    for name, read in question.readers.items():
                        scores = read(release, users)
                        noise = spread(scores - exact_scores[name], protocol.size)
                        found[name].append(judge(scores) | {"noise": noise})
                for name, several in found.items():
                    yield {
                        "method": name,
                        "users": users,
                        "epsilon": epsilon,
                        "signal": spread(exact_scores[name], protocol.size),
                        "numbers_up": len(total) * question.rounds,
                        "noise_multiplier": mechanism.noise_multiplier,
                    } | {key: float(np.mean([one[key] for one in several])) for key in several[0]}


def _random(salt: Sequence[int]) -> InsecureRandom:
    """A seeded source of noise, so that the figures can be made again."""
    return InsecureRandom(int(np.random.SeedSequence(list(salt)).generate_state(1)[0]))


def noise_for(query: Query, epsilon: float | None, users: int, rounds: int) -> GaussianMechanism:
    """The mechanism for a budget; epsilon None for no noise."""
    return GaussianMechanism(
        noise_multiplier=0.0 if epsilon is None else noise_multiplier(epsilon, users, rounds),
        l2_sensitivity=query.sensitivity(NeighboringRelation.ZERO_OUT),
    )


@lru_cache
def noise_multiplier(epsilon: float, users: int, rounds: int) -> float:
    """For releases of all users that share a budget, with delta = 1 / (n ln n)."""
    return calibrate_noise_multiplier(
        epsilon=epsilon,
        delta=1.0 / (users * math.log(users)),
        rounds=rounds,
        sampling=FullParticipation(users),
        accountant="pld",
    )


def summarise(
    rows: Sequence[Mapping[str, Any]], *, setting: str, prompts: int, at: tuple[int, float]
) -> list[dict[str, Any]]:
    """Mean and standard error over seeds: one row per method.

    Args:
        rows: of `measure`, of all seeds.
        setting: that they are of.
        prompts: the number of prompts.
        at: the number of users and the epsilon of all figures but the share in the right order.

    Returns:
        By method "right", a list of [users, epsilon, mean, standard error], and "figures", by name
        [mean, standard error], at that number of users, and the same "without_noise".
    """
    result = []
    for method in dict.fromkeys(row["method"] for row in rows):
        cells: dict[tuple[int, float | None], list[Mapping[str, Any]]] = {}
        for row in rows:
            if row["method"] == method:
                cells.setdefault((row["users"], row["epsilon"]), []).append(row)
        summary: dict[str, Any] = {
            "stamp": STAMP,
            "setting": setting,
            "prompts": prompts,
            "method": method,
        }
        summary["right"] = [
            [*cell, *_mean([row["right"] for row in members])] for cell, members in cells.items()
        ]
        for name, epsilon in (("figures", at[1]), ("without_noise", None)):
            members = cells.get((at[0], epsilon), [])
            summary[name] = {
                figure: _mean([row[figure] for row in members])
                for figure in (members[0] if members else {})
                if figure not in ("method", "users", "epsilon", "right")
            }
        result.append(summary)
    return result


def _mean(values: Sequence[float]) -> list[float]:
    """Mean and standard error, to as many digits as they have."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return [float(f"{np.mean(values):.5g}"), float(f"{error:.2g}")]
