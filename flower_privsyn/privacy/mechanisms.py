"""The Gaussian mechanism on a grid, with the noise added once or in shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import _checks
from flower_privsyn.privacy.grid import GRID, LARGEST_NOISE, LEAST_SHARE, STEPS, from_grid, to_grid
from flower_privsyn.privacy.randomness import RandomSource


@dataclass(frozen=True, kw_only=True)
class GaussianMechanism:
    """Adds normal noise to a sum of contributions of bounded L2 norm.

    The sum lies on the grid of :mod:`flower_privsyn.privacy.grid`, the noise is rounded to it, and
    the two are added as integers. For x on the grid x + rint(N) = rint(x + N): what is released is
    post-processing of the Gaussian mechanism, so its accounting holds as it is, and every point of
    the grid can come out whatever the sum, so no release refutes one.

    *Formal guarantee.* Unit: one user, whose whole contribution to the sum has L2 norm at most
    ``l2_sensitivity``. One :meth:`release` is (epsilon, delta)-differentially private under
    zero-out and add-remove with epsilon(delta) of the Gaussian mechanism at ``noise_multiplier``,
    and at half of it under replace-one. Several releases, sampled cohorts and the two observers
    are the business of :mod:`flower_privsyn.privacy.accounting`.

    Args:
        noise_multiplier: Standard deviation of the noise divided by ``l2_sensitivity``, at least
            0. Zero adds no noise and is not private; it exists for tests and for the comparison
            "without privacy".
        l2_sensitivity: Largest L2 norm of one user's contribution, above 0, in the unit of the
            sum. The sum, never a mean: noise of this size on a mean over n users would have to be
            n times smaller.

    Raises:
        ConfigError: A value is outside its range.

    References:
        Dwork and Roth 2014, "The Algorithmic Foundations of Differential Privacy", appendix A.
        Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy".
    """

    name: ClassVar[str] = "gaussian"

    noise_multiplier: float
    l2_sensitivity: float

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as it stands in messages and in the ledger."""
        return {
            "mechanism": self.name,
            "noise_multiplier": self.noise_multiplier,
            "l2_sensitivity": self.l2_sensitivity,
        }

    def __post_init__(self) -> None:
        multiplier = _checks.real(
            "noise_multiplier", self.noise_multiplier, "a finite number of at least 0", low=0.0
        )
        object.__setattr__(self, "noise_multiplier", multiplier)
        sensitivity = _checks.positive("l2_sensitivity", self.l2_sensitivity)
        object.__setattr__(self, "l2_sensitivity", sensitivity)
        if multiplier and not GRID <= self.standard_deviation <= LARGEST_NOISE:
            raise ConfigError(
                f"noise_multiplier {multiplier:g} times l2_sensitivity {sensitivity:g} must be "
                f"between 2^-30 and 2^28, the noise that the grid can carry, got "
                f"{self.standard_deviation:g}."
            )

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each coordinate, in the unit of the sum."""
        return self.noise_multiplier * self.l2_sensitivity

    def release(self, total: NDArray[Any], *, random: RandomSource) -> NDArray[np.float64]:
        """Add noise to a sum over users.

        Args:
            total: (m,) multiples of the grid. The sum of the contributions, not divided by
                anything.
            random: The source of the noise.

        Returns:
            (m,) float64 multiples of the grid, ``total`` plus independent N(0,
            ``standard_deviation``^2) noise, rounded.

        Raises:
            ConfigError: ``total`` is no finite real vector on the grid.
        """
        return from_grid(self._noised(to_grid("total", total), 1.0, random))

    def share(
        self, partial: NDArray[Any], *, num_shares: int, of: int, random: RandomSource
    ) -> NDArray[np.float64]:
        """Add a part of the noise to a part of the sum.

        The noise is split into ``of`` shares of variance ``standard_deviation``^2 / ``of``. A
        node that answers for k users adds k shares; when at least ``of`` shares meet in the total,
        the total carries at least the noise of :meth:`release`.

        *Formal guarantee.* Only the total over ``of`` shares has this mechanism's guarantee. Every
        share is rounded by itself; from a standard deviation of 2^10 steps of the grid on, the only
        ones that are made, the total's law is a wider one than a rounded normal's by the roundings
        alone, and lattice points in it differ from that by less than a part in 10^300. Who
        sees one partial sum alone, as the server does without secure aggregation, faces the noise
        multiplier :meth:`share_noise_multiplier`, which is smaller by sqrt(``of``).

        Args:
            partial: (m,) multiples of the grid. The sum of the contributions of this node's
                users.
            num_shares: Shares to add, at least 0; one for each user in ``partial``.
            of: Shares that make up the full noise, at least 1: the fewest users whose answers
                will be released.
            random: The source of the noise.

        Returns:
            (m,) float64 multiples of the grid, ``partial`` plus N(0, ``standard_deviation``^2
            ``num_shares`` / ``of``), rounded.

        Raises:
            ConfigError: ``partial`` is no finite real vector on the grid, a count is out of range,
                or a share is smaller than 2^-20.
        """
        num_shares = _checks.whole("num_shares", num_shares, low=0)
        of = _checks.whole("of", of, low=1)
        # A sum of k independent normal shares is one normal draw of k times the variance.
        part = math.sqrt(num_shares / of)
        if 0.0 < self.standard_deviation / math.sqrt(of) < LEAST_SHARE:
            raise ConfigError(
                f"a share of the noise has standard deviation "
                f"{self.standard_deviation / math.sqrt(of):g}, and must have {LEAST_SHARE:g}."
            )
        return from_grid(self._noised(to_grid("partial", partial), part, random))

    def _noised(
        self, steps: NDArray[np.int64], part: float, random: RandomSource
    ) -> NDArray[np.int64]:
        """Add noise of ``part`` times the standard deviation to whole numbers of steps."""
        scale = part * self.standard_deviation
        if scale == 0.0:
            return steps
        return steps + random.rounded_normal(scale * STEPS, len(steps))

    def share_noise_multiplier(self, *, of: int) -> float:
        """Return the noise multiplier faced by an observer of one user's reply.

        Args:
            of: Shares that make up the full noise, at least 1.

        Returns:
            ``noise_multiplier`` / sqrt(``of``).

        Raises:
            ConfigError: ``of`` is not a whole number of at least 1.
        """
        return self.noise_multiplier / math.sqrt(_checks.whole("of", of, low=1))


def mechanism_from_dict(description: Mapping[str, Any]) -> GaussianMechanism:
    """Build the mechanism that `to_dict` described; other keys are left alone.

    Raises:
        ConfigError: The mechanism is unknown or a value is out of range.
    """
    if description.get("mechanism") != GaussianMechanism.name:
        raise ConfigError(f'mechanism must be "gaussian", got {description.get("mechanism")!r}.')
    return GaussianMechanism(
        noise_multiplier=description["noise_multiplier"],
        l2_sensitivity=description["l2_sensitivity"],
    )
