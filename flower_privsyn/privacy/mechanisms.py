"""The Gaussian mechanism, with the noise added once or in shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import _checks
from flower_privsyn.privacy.randomness import RandomSource


@dataclass(frozen=True, kw_only=True)
class GaussianMechanism:
    """Adds normal noise to a sum of contributions of bounded L2 norm.

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

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each coordinate, in the unit of the sum."""
        return self.noise_multiplier * self.l2_sensitivity

    def release(self, total: NDArray[Any], *, random: RandomSource) -> NDArray[np.float64]:
        """Add noise to a sum over users.

        Args:
            total: (m,) real, finite. The sum of the contributions, not divided by anything.
            random: The source of the noise.

        Returns:
            (m,) float64, ``total`` plus independent N(0, ``standard_deviation``^2) noise.

        Raises:
            ConfigError: ``total`` is not a finite real vector.
        """
        vector = _finite_vector("total", total)
        return vector + self.standard_deviation * random.normal(vector.shape)

    def share(
        self, partial: NDArray[Any], *, num_shares: int, of: int, random: RandomSource
    ) -> NDArray[np.float64]:
        """Add a part of the noise to a part of the sum.

        The noise is split into ``of`` shares of variance ``standard_deviation``^2 / ``of``. A
        node that answers for k users adds k shares; when at least ``of`` shares meet in the total,
        the total carries at least the noise of :meth:`release`.

        *Formal guarantee.* Only the total over ``of`` shares has this mechanism's guarantee. Who
        sees one partial sum alone, as the server does without secure aggregation, faces the noise
        multiplier :meth:`share_noise_multiplier`, which is smaller by sqrt(``of``).

        Args:
            partial: (m,) real, finite. The sum of the contributions of this node's users.
            num_shares: Shares to add, at least 0; one for each user in ``partial``.
            of: Shares that make up the full noise, at least 1: the fewest users whose answers
                will be released.
            random: The source of the noise.

        Returns:
            (m,) float64, ``partial`` plus N(0, ``standard_deviation``^2 ``num_shares`` / ``of``).

        Raises:
            ConfigError: ``partial`` is not a finite real vector, or a count is out of range.
        """
        num_shares = _checks.whole("num_shares", num_shares, low=0)
        of = _checks.whole("of", of, low=1)
        vector = _finite_vector("partial", partial)
        # A sum of k independent normal shares is one normal draw of k times the variance.
        scale = self.standard_deviation * math.sqrt(num_shares / of)
        return vector + scale * random.normal(vector.shape)

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


def _finite_vector(key: str, values: NDArray[Any]) -> NDArray[np.float64]:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise ConfigError(
            f"{key} must be a real vector of one dimension, "
            f"got {array.dtype} of shape {array.shape}."
        )
    vector = array.astype(np.float64)
    if not np.isfinite(vector).all():
        # Which coordinate is not finite is data: the sentence does not say.
        raise ConfigError(f"{key} must be finite, got a vector with NaN or infinite entries.")
    return vector
