"""What a ledger's lines add up to: releases, epsilons, and what the budget has room for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from flower_privsyn.privacy import accounting
from flower_privsyn.privacy.accounting import Release
from flower_privsyn.privacy.correlated_noise import Correlation
from flower_privsyn.privacy.ledger_lines import NoiseStream, PlannedRelease

# The accountants and the calibration are deterministic; the room is for other platforms.
_BUDGET_TOLERANCE = 1e-6


class LedgerBook:
    """The releases of a ledger, and their cost.

    Args:
        header: The first line: ``delta``, ``epsilon_budget`` (None for no limit), ``accountant``.
    """

    def __init__(self, header: Mapping[str, Any]) -> None:
        self._delta = float(header["delta"])
        budget = header["epsilon_budget"]
        self._epsilon_budget = None if budget is None else float(budget)
        self._accountant = str(header["accountant"])
        self._pending: dict[int, PlannedRelease] = {}
        self._streams: dict[str, NoiseStream] = {}
        self._lines: list[dict[str, Any]] = []
        self._charged = Counter[Release]()
        self._private = True
        self._ended: dict[str, float | None] | None = None

    @property
    def delta(self) -> float:
        """The delta of every epsilon."""
        return self._delta

    @property
    def epsilon_budget(self) -> float | None:
        """The most that all releases together may cost; None for no limit."""
        return self._epsilon_budget

    @property
    def accountant(self) -> str:
        """The name of the accountant, "pld" or "rdp"."""
        return self._accountant

    @property
    def private(self) -> bool:
        """Whether every release carried noise from a secure source."""
        return self._private

    @property
    def epsilon_release(self) -> float | None:
        """Epsilon so far for who does not know the cohorts; None when not private."""
        return self._epsilon(self._charged) if self._private else None

    @property
    def epsilon_known_cohorts(self) -> float | None:
        """Epsilon so far of a user in every cohort, when it is known; None when not private."""
        return self._epsilon_known_cohorts(self._charged) if self._private else None

    @property
    def ended(self) -> bool:
        """Whether the rounds ended before the planned ones were over: nothing more is charged."""
        return self._ended is not None

    @property
    def spent(self) -> dict[str, float | None]:
        """Both epsilons so far, by the names that the files of a run give them.

        Of rounds that ended early those of all that were planned; see `PrivacyLedger.end`.
        """
        if self._ended is not None:
            return dict(self._ended)
        return {
            "epsilon_release": self.epsilon_release,
            "epsilon_known_cohorts": self.epsilon_known_cohorts,
        }

    @property
    def releases(self) -> tuple[dict[str, Any], ...]:
        """The release lines so far, oldest first."""
        return tuple(dict(line) for line in self._lines)

    @property
    def num_releases(self) -> int:
        """The number of releases charged, interrupted ones included."""
        return len(self._lines)

    @property
    def rounds_charged(self) -> tuple[int, ...]:
        """The round of every release charged, oldest first; a repeated round stands twice."""
        return tuple(int(line["round"]) for line in self._lines)

    @property
    def rounds_started(self) -> tuple[int, ...]:
        """The rounds that are started and neither charged nor discarded."""
        return tuple(self._pending)

    @property
    def correlations(self) -> dict[Correlation, float]:
        """The correlations of the rounds so far, each with the noise multiplier of its rounds.

        In the order of their first rounds.
        """
        return {
            stream.first.correlation: stream.first.mechanism.noise_multiplier
            for stream in self._streams.values()
            if stream.first.correlation is not None
        }

    def last_started(self, correlation: Correlation) -> int | None:
        """Return the last of correlated rounds that was started, whatever became of it, or None.

        None of the rounds up to it can be started any more.
        """
        stream = self._streams.get(correlation.stream)
        return None if stream is None else max(stream.started)

    def last_released(self, correlation: Correlation) -> int | None:
        """Return the last of correlated rounds that was charged and not interrupted, or None.

        Its sum may be known, so the noise of the rounds to come must take it up.
        """
        stream = self._streams.get(correlation.stream)
        return None if stream is None else stream.released

    def allows(self, releases: Mapping[Release, int]) -> bool:
        """Say whether the budget allows these releases as well; always without a budget.

        Args:
            releases: Each with its count, at least 0.

        Raises:
            ConfigError: The relation is another one than before.
        """
        if self._epsilon_budget is None:
            return True
        cost = self._epsilon(self._committed() + Counter(releases))
        return cost is not None and self._within_budget(cost)

    @property
    def _open_rounds(self) -> tuple[PlannedRelease, ...]:
        return tuple(self._pending.values())

    def _epsilon(self, releases: Mapping[Release, int]) -> float | None:
        value = accounting.release_epsilon(releases, delta=self._delta, accountant=self._accountant)
        return value if math.isfinite(value) else None

    def _epsilon_known_cohorts(self, releases: Mapping[Release, int]) -> float | None:
        value = accounting.known_cohorts_epsilon(
            releases, delta=self._delta, accountant=self._accountant
        )
        return value if math.isfinite(value) else None

    def _within_budget(self, cost: float) -> bool:
        return self._epsilon_budget is None or cost <= self._epsilon_budget * (
            1.0 + _BUDGET_TOLERANCE
        )

    def _committed(self, *, without: int | None = None) -> Counter[Release]:
        """Return what was charged plus every started round, but for one."""
        total = Counter(self._charged)
        for planned in self._open_rounds:
            # Several uncharged rounds of one stream at once would each count: too much, never
            # too little.
            if planned.round != without and not self._is_covered(planned):
                total[planned.release()] += 1
        return total

    def _is_covered(self, planned: PlannedRelease) -> bool:
        """Say whether another round of the same stream was charged for this one."""
        if planned.correlation is None:
            return False
        stream = self._streams.get(planned.correlation.stream)
        return stream is not None and stream.charged is not None

    def _start(self, planned: PlannedRelease) -> None:
        self._pending[planned.round] = planned
        if planned.correlation is not None:
            stream = self._streams.setdefault(
                planned.correlation.stream, NoiseStream(first=planned)
            )
            stream.started.append(planned.round)

    def _settle(
        self,
        planned: PlannedRelease,
        line: dict[str, Any],
        release: Release,
    ) -> None:
        del self._pending[planned.round]
        self._lines.append(line)
        if not self._is_covered(planned):
            self._charged[release] += 1
        if planned.correlation is not None:
            stream = self._streams[planned.correlation.stream]
            if stream.charged is None:
                stream.charged = planned.round
            if not line["interrupted"]:
                stream.released = planned.round
        self._private = self._private and planned.is_private(release)
