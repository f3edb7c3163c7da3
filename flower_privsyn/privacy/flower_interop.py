"""Bridges to Flower's own privacy accounting types (``flwr.serverapp``, since Flower 1.35)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import _checks
from flower_privsyn.privacy.accounting import PLDAccountant, Release
from flower_privsyn.privacy.relation import NeighboringRelation
from flower_privsyn.privacy.sampling import (
    FixedSizeSampling,
    FullParticipation,
    PoissonSampling,
    Sampling,
)

if TYPE_CHECKING:
    from flwr.serverapp import GaussianPrivacyEvent, PrivacyConfig, PrivacySpent

_STATE_SCHEMA_VERSION = 1
_ACCOUNTING_METHOD = "privsyn-pld"


class FlowerPLDAccountant:
    """An accountant for Flower strategies that composes privacy loss distributions.

    Implements the protocol ``flwr.serverapp.PrivacyAccountant`` and takes the place of Flower's
    ``RdpAccountant``: the same events cost less, and sampling without replacement under
    replace-one is accounted with the doubled sensitivity that relation has. Flower's own leaves
    the doubling out and reports an epsilon that is too small there.

    *Formal guarantee.* That of :class:`~flower_privsyn.privacy.accounting.PLDAccountant`. The
    noise multiplier of an event is over the norm bound of one client, whatever the relation.

    Args:
        config: Flower's configuration: target delta, population, relation, sampling method and,
            if wanted, the largest epsilon.
    """

    def __init__(self, config: PrivacyConfig) -> None:
        self._config = config
        self._compositions: list[tuple[GaussianPrivacyEvent, int]] = []
        self._accountant = PLDAccountant()

    @property
    def config(self) -> PrivacyConfig:
        """The privacy configuration."""
        return self._config

    @property
    def num_releases(self) -> int:
        """The number of releases composed so far."""
        return sum(count for _, count in self._compositions)

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Add equal releases.

        Args:
            event: What one of them released.
            count: How many, at least 1.

        Raises:
            ConfigError: The event belongs to another population or the count is out of range.
        """
        count = _checks.whole("count", count, low=1)
        self._release(event)
        self._compositions.append((event, count))

    def get_epsilon(self, delta: float) -> float:
        """Return the epsilon of everything composed, at a delta between 0 and 1, exclusive."""
        return self._accountant.epsilon(self._releases(), delta=delta)

    def get_delta(self, epsilon: float) -> float:
        """Return the delta of everything composed, at an epsilon of at least 0."""
        return self._accountant.delta(self._releases(), epsilon=epsilon)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """Return epsilon, delta and the number of releases.

        Args:
            delta: Between 0 and 1, exclusive; the target delta of the configuration if None.
        """
        from flwr.serverapp import PrivacySpent

        target = self._config.target_delta if delta is None else delta
        return PrivacySpent(
            epsilon=self.get_epsilon(target),
            delta=target,
            num_releases=self.num_releases,
            accounting_method=_ACCOUNTING_METHOD,
        )

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Say whether adding equal releases would exceed a limit; nothing is added.

        Args:
            event: What one of them would release.
            max_epsilon: The limit, above 0; that of the configuration if None.
            count: How many, at least 1.

        Raises:
            ConfigError: There is no limit, or a value is out of range.
        """
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise ConfigError(
                "max_epsilon must be given, in the configuration or in the call, got None."
            )
        limit = _checks.positive("max_epsilon", limit)
        projected = self._releases()
        projected[self._release(event)] += _checks.whole("count", count, low=1)
        return self._accountant.epsilon(projected, delta=self._config.target_delta) > limit

    def state_dict(self) -> dict[str, object]:
        """Return a JSON-able state for :meth:`load_state_dict`."""
        config = self._config
        return {
            "schema_version": _STATE_SCHEMA_VERSION,
            "backend": _ACCOUNTING_METHOD,
            "config": {
                "target_delta": config.target_delta,
                "population_size": config.population_size,
                "neighboring_relation": config.neighboring_relation.value,
                "sampling_method": config.sampling_method.value,
                "max_epsilon": config.max_epsilon,
            },
            "compositions": [
                {
                    "event": {
                        "noise_multiplier": event.noise_multiplier,
                        "sample_size": event.sample_size,
                        "population_size": event.population_size,
                    },
                    "count": count,
                }
                for event, count in self._compositions
            ],
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take over a state made by :meth:`state_dict` under the same configuration.

        Raises:
            ConfigError: The state is of another kind or configuration, or is damaged.
        """
        from flwr.serverapp import GaussianPrivacyEvent

        for key, expected in (
            ("schema_version", _STATE_SCHEMA_VERSION),
            ("backend", _ACCOUNTING_METHOD),
            ("config", self.state_dict()["config"]),
        ):
            if state.get(key) != expected:
                raise ConfigError(
                    f"{key} of the accountant state must be {expected!r}, got {state.get(key)!r}."
                )
        saved = state.get("compositions")
        if not isinstance(saved, list):
            raise ConfigError("compositions of the accountant state must be a list.")
        compositions: list[tuple[GaussianPrivacyEvent, int]] = []
        for entry in saved:
            try:
                event = GaussianPrivacyEvent(**entry["event"])
                count = _checks.whole("count", entry["count"], low=1)
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"compositions of the accountant state hold a damaged entry: {error}"
                ) from error
            self._release(event)
            compositions.append((event, count))
        self._compositions = compositions

    def _release(self, event: GaussianPrivacyEvent) -> Release:
        if event.population_size != self._config.population_size:
            raise ConfigError(
                f"population_size of the event must be {self._config.population_size} as in the "
                f"configuration, got {event.population_size}."
            )
        return from_flower_event(
            event,
            sampling_method=self._config.sampling_method,
            neighboring_relation=self._config.neighboring_relation,
        )

    def _releases(self) -> Counter[Release]:
        total = Counter[Release]()
        for event, count in self._compositions:
            total[self._release(event)] += count
        return total


def to_flower_event(release: Release) -> GaussianPrivacyEvent:
    """Describe a release as an event of Flower's accountants.

    The event states sizes, not rates: a Poisson rate that is no whole number of users out of the
    population is rounded up, which overstates the cost and never understates it.

    Args:
        release: A release whose sampling knows its population, with a noise multiplier above 0.

    Raises:
        ConfigError: The population is not known, the release adds no noise, or users are sampled on
            several nodes, which the event cannot say.
    """
    from flwr.serverapp import GaussianPrivacyEvent

    sampling = release.sampling
    if sampling.population is None:
        raise ConfigError("population must be given to describe a release as a Flower event.")
    _checks.positive("noise_multiplier", release.noise_multiplier)
    if release.max_nodes_per_user > 1 and sampling.rate < 1.0:
        raise ConfigError(
            "max_nodes_per_user must be 1 to describe a sampled release as a Flower event, got "
            f"{release.max_nodes_per_user}."
        )
    exact = sampling.expected_users
    # 0.1 of 10,000 is 1000.0000000000001 in floating point.
    size = round(exact) if abs(exact - round(exact)) < 1e-9 * exact else math.ceil(exact)
    if isinstance(sampling, FixedSizeSampling):
        size = sampling.sample_size
    return GaussianPrivacyEvent(
        noise_multiplier=release.noise_multiplier,
        sample_size=max(1, size),
        population_size=sampling.population,
    )


def from_flower_event(
    event: GaussianPrivacyEvent, *, sampling_method: str, neighboring_relation: str
) -> Release:
    """Read an event of Flower's accountants as a release.

    Args:
        event: The event: noise multiplier, sample size and population size.
        sampling_method: A ``flwr.serverapp.SamplingMethod`` or its value: "poisson",
            "without-replacement" or "no-amplification".
        neighboring_relation: A ``flwr.serverapp.NeighboringRelation`` or its value:
            "add-or-remove-one" or "replace-one".

    Raises:
        ConfigError: A name is none of these, or the two do not go together.
    """
    relations: Mapping[str, NeighboringRelation] = {
        "add-or-remove-one": NeighboringRelation.ADD_REMOVE,
        "replace-one": NeighboringRelation.REPLACE_ONE,
    }
    relation = relations.get(_value(neighboring_relation))
    if relation is None:
        raise ConfigError(
            'neighboring_relation must be "add-or-remove-one" or "replace-one", got '
            f"{_value(neighboring_relation)!r}."
        )
    method = _value(sampling_method)
    sampling: Sampling
    if method == "poisson":
        sampling = PoissonSampling(
            event.sample_size / event.population_size, population=event.population_size
        )
    elif method == "without-replacement":
        sampling = FixedSizeSampling(event.sample_size, population=event.population_size)
    elif method == "no-amplification":
        sampling = FullParticipation(event.population_size)
    else:
        raise ConfigError(
            'sampling_method must be "poisson", "without-replacement" or "no-amplification", got '
            f"{method!r}."
        )
    return Release(noise_multiplier=event.noise_multiplier, sampling=sampling, relation=relation)


def _value(name: Any) -> str:
    # str() of Flower's enumerations is "SamplingMethod.POISSON"; the value is what we want.
    return str(getattr(name, "value", name))
