"""The Gaussian mechanism on a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_number
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy.grid import GRID, LARGEST_NOISE, STEPS, from_grid, to_grid
from flower_privsyn.privacy.randomness import RandomSource


@dataclass(frozen=True, kw_only=True)
class GaussianMechanism:
    """Adds normal noise to a sum of contributions of bounded L2 norm.

    The sum lies on the grid of `flower_privsyn.privacy.grid`, the noise is rounded to it, and
    the two are added as integers. For x on the grid x + rint(N) = rint(x + N): what is released is
    post-processing of the Gaussian mechanism, so its accounting holds as it is, and every point of
    the grid can come out whatever the sum, so no release refutes one.

    Formal guarantee:
        Unit: one user, whose whole contribution to the sum has L2 norm at most ``l2_sensitivity``.
        One `release` is (epsilon, delta)-differentially private under zero-out and add-remove
        with epsilon(delta) of the Gaussian mechanism at ``noise_multiplier``, and at half of it
        under replace-one. Several releases, sampled cohorts and the two observers are the business
        of `flower_privsyn.privacy.accounting`.

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
        multiplier = check_number("noise_multiplier", self.noise_multiplier, ge=0)
        object.__setattr__(self, "noise_multiplier", multiplier)
        sensitivity = check_number("l2_sensitivity", self.l2_sensitivity, gt=0)
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
        return from_grid(self.release_steps(to_grid("total", total), random=random))

    def release_steps(self, total: NDArray[np.int64], *, random: RandomSource) -> NDArray[np.int64]:
        """Add noise to a sum over users in whole steps of the grid, as it is added up.

        Args:
            total: (m,) int64, as `flower_privsyn.privacy.grid.to_grid` returns.
            random: The source of the noise.

        Returns:
            (m,) int64 steps.
        """
        if self.standard_deviation == 0.0:
            return total
        return total + random.rounded_normal(self.standard_deviation * STEPS, len(total))


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
