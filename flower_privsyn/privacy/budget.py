"""What a budget buys, as a table: the content of ``privsyn budget``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flower_privsyn.checks import check_number, check_whole
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import accounting
from flower_privsyn.privacy.accounting import ACCOUNTANTS, Release
from flower_privsyn.privacy.calibration import calibrate_noise_multiplier
from flower_privsyn.privacy.relation import NeighboringRelation
from flower_privsyn.privacy.sampling import Sampling


def budget_report(
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float,
    rounds: int,
    sampling: Sampling,
    relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
    max_nodes_per_user: int = 1,
) -> dict[str, Any]:
    """Return noise multiplier and epsilons of a plan, by both accountants.

    Args:
        epsilon: The budget, above 0; the noise multipliers are computed. Or:
        noise_multiplier: The noise, above 0; the epsilons are computed.
        delta: Between 0 and 1, exclusive.
        rounds: Releases, at least 1.
        sampling: How every cohort is drawn.
        relation: Which collections of users are neighbours.
        max_nodes_per_user: On how many nodes one user may be, k >= 1. The noise multiplier is over
            k times the norm bound on one node.

    Returns:
        A JSON-able dict: ``noise_multiplier``, ``epsilon_release`` and ``epsilon_known_cohorts``,
        each with the keys ``pld`` and ``rdp``, where the last is that of a user in every round and
        has a third key ``by_participations``, from "1", "2", "3" and the number of
        rounds (no more than there are rounds) to ``pld`` and ``rdp``; and ``inputs``. A number
        no accountant can give is None.

    Raises:
        ConfigError: Both or neither of ``epsilon`` and ``noise_multiplier`` are given, or a value
            is out of range.
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise ConfigError(
            "exactly one of epsilon and noise_multiplier must be given, got "
            f"epsilon {epsilon!r} and noise_multiplier {noise_multiplier!r}."
        )
    rounds = check_whole("rounds", rounds, ge=1)
    if noise_multiplier is not None:
        noise_multiplier = check_number("noise_multiplier", noise_multiplier, gt=0)
    counts = sorted({1, 2, 3, rounds})
    counts = [count for count in counts if count <= rounds]

    plan = _Plan(delta, rounds, sampling, relation, max_nodes_per_user)
    multipliers: dict[str, float | None] = {}
    released: dict[str, float | None] = {}
    seen: dict[str, Any] = {}
    by_count: dict[str, dict[str, float | None]] = {str(count): {} for count in counts}
    for name in ACCOUNTANTS:
        multipliers[name] = plan.multiplier(name, epsilon, noise_multiplier)
        released[name], per_count = plan.epsilons(name, multipliers[name], counts)
        for count, value in per_count.items():
            by_count[str(count)][name] = value
        seen[name] = per_count[rounds]
    return {
        "noise_multiplier": multipliers,
        "epsilon_release": released,
        "epsilon_known_cohorts": {**seen, "by_participations": by_count},
        "inputs": {
            "epsilon": epsilon,
            "noise_multiplier": noise_multiplier,
            "delta": delta,
            "rounds": rounds,
            "sampling": sampling.to_dict(),
            "relation": relation.value,
            "max_nodes_per_user": max_nodes_per_user,
        },
    }


@dataclass(frozen=True)
class _Plan:
    """What is asked of each accountant."""

    delta: float
    rounds: int
    sampling: Sampling
    relation: NeighboringRelation
    max_nodes_per_user: int

    def supported_by(self, accountant: str) -> bool:
        """Whether the accountant knows what such releases cost."""
        kind, *_ = accounting.cost(self.release(1.0))
        return accountant == "pld" or kind != "poisson-replace"

    def release(self, multiplier: float) -> Release:
        """What a round releases."""
        return Release(
            noise_multiplier=multiplier,
            sampling=self.sampling,
            relation=self.relation,
            max_nodes_per_user=self.max_nodes_per_user,
        )

    def multiplier(
        self, accountant: str, epsilon: float | None, given: float | None
    ) -> float | None:
        """The noise multiplier of an epsilon; the given one where none is asked for."""
        if epsilon is None or not self.supported_by(accountant):
            return given
        return calibrate_noise_multiplier(
            epsilon=epsilon,
            delta=self.delta,
            rounds=self.rounds,
            sampling=self.sampling,
            accountant=accountant,
            relation=self.relation,
            max_nodes_per_user=self.max_nodes_per_user,
        )

    def epsilons(
        self, accountant: str, multiplier: float | None, counts: Sequence[int]
    ) -> tuple[float | None, dict[int, float | None]]:
        """Epsilon of the releases, and of a user who is known to be in so many of them."""
        if multiplier is None:
            return None, dict.fromkeys(counts)
        release = self.release(multiplier)
        released = None
        if self.supported_by(accountant):
            released = accounting.release_epsilon(
                {release: self.rounds}, delta=self.delta, accountant=accountant
            )
        per_count = {
            count: accounting.known_cohorts_epsilon(
                {release: count}, delta=self.delta, accountant=accountant
            )
            for count in counts
        }
        return (
            None if released is None else _finite(released),
            {count: _finite(value) for count, value in per_count.items()},
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
