"""Flower's accounting protocol, against Flower's own types, accountant and strategy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flwr.serverapp import (
    GaussianPrivacyEvent,
    PrivacyAccountant,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp import NeighboringRelation as FlowerRelation
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import (
    FixedSizeSampling,
    FullParticipation,
    NeighboringRelation,
    PoissonSampling,
    Release,
    release_epsilon,
)
from flower_privsyn.privacy.flower_interop import (
    FlowerPLDAccountant,
    from_flower_event,
    to_flower_event,
)

DELTA = 3e-6


def config(method: str, **changes: Any) -> PrivacyConfig:
    relation = "replace-one" if method == "without-replacement" else "add-or-remove-one"
    arguments: dict[str, Any] = {
        "target_delta": DELTA,
        "population_size": 72_000,
        "neighboring_relation": FlowerRelation(relation),
        "sampling_method": SamplingMethod(method),
        **changes,
    }
    return PrivacyConfig(**arguments)


def event(noise_multiplier: float = 1.14, size: int = 1000) -> GaussianPrivacyEvent:
    return GaussianPrivacyEvent(
        noise_multiplier=noise_multiplier, sample_size=size, population_size=72_000
    )


def composed(method: str, kind: Any, **changes: Any) -> PrivacyAccountant:
    accountant: PrivacyAccountant = kind(config(method, **changes))
    accountant.compose(event(), count=20)
    return accountant


@pytest.mark.parametrize("method", ["poisson", "no-amplification"])
def test_it_reports_less_than_the_renyi_accountant(method: str) -> None:
    ours, theirs = composed(method, FlowerPLDAccountant), composed(method, RdpAccountant)
    assert 0.0 < ours.get_epsilon(DELTA) < theirs.get_epsilon(DELTA)
    assert ours.num_releases == theirs.num_releases == 20


def test_without_replacement_it_reports_what_the_relation_costs() -> None:
    """1,000 of 72,000: an instance needs at least 4.42; Flower's accountant reports 1.10."""
    ours = composed("without-replacement", FlowerPLDAccountant)
    theirs = composed("without-replacement", RdpAccountant)
    assert theirs.get_epsilon(DELTA) == pytest.approx(1.10, abs=0.01)
    assert ours.get_epsilon(DELTA) == pytest.approx(4.507, abs=1e-3)


def test_privacy_spent_and_delta() -> None:
    accountant = composed("no-amplification", FlowerPLDAccountant)
    spent = accountant.get_privacy_spent()
    assert spent.delta == DELTA
    assert spent.num_releases == 20
    assert spent.epsilon == accountant.get_epsilon(DELTA)
    assert spent.accounting_method == "privsyn-pld"
    assert accountant.get_privacy_spent(1e-5).epsilon < spent.epsilon
    assert accountant.get_delta(spent.epsilon) == pytest.approx(DELTA, rel=1e-3)


def test_prospective_checks_do_not_compose() -> None:
    accountant = FlowerPLDAccountant(config("no-amplification", max_epsilon=1.0))
    accountant.compose(event(19.3))
    assert not accountant.would_exceed(event(19.3), count=19)
    assert accountant.would_exceed(event(19.3), count=30)
    assert not accountant.would_exceed(event(19.3), max_epsilon=9.0, count=30)
    assert accountant.num_releases == 1
    unlimited = FlowerPLDAccountant(config("no-amplification"))
    with pytest.raises(ConfigError, match="max_epsilon must be given"):
        unlimited.would_exceed(event())


def test_the_state_survives_json() -> None:
    accountant = composed("poisson", FlowerPLDAccountant)
    accountant.compose(event(2.0))
    state = json.loads(json.dumps(accountant.state_dict()))
    again = FlowerPLDAccountant(config("poisson"))
    again.load_state_dict(state)
    assert again.num_releases == 21
    assert again.get_epsilon(DELTA) == accountant.get_epsilon(DELTA)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema_version", 2),
        ("backend", "rdp"),
        ("config", {}),
        ("compositions", None),
        ("compositions", [{"event": {}, "count": 1}]),
        ("compositions", [{"count": 1}]),
    ],
)
def test_other_states_are_refused(key: str, value: object) -> None:
    accountant = composed("poisson", FlowerPLDAccountant)
    with pytest.raises(ConfigError, match=f"^{key} of the accountant state"):
        accountant.load_state_dict({**accountant.state_dict(), key: value})
    assert accountant.num_releases == 20


def test_another_population_is_refused() -> None:
    accountant = FlowerPLDAccountant(config("poisson", population_size=5))
    with pytest.raises(ConfigError, match="population_size of the event must be 5"):
        accountant.compose(event())
    with pytest.raises(ConfigError, match="count must be"):
        composed("poisson", FlowerPLDAccountant).compose(event(), count=0)


def test_a_flower_strategy_takes_it() -> None:
    accountant = FlowerPLDAccountant(
        config("no-amplification", population_size=100, max_epsilon=8.0)
    )
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_train=1.0),
        noise_multiplier=2.0,
        clipping_norm=1.0,
        num_sampled_clients=100,
        accountant=accountant,
    )
    assert strategy.accountant is accountant


@pytest.mark.parametrize(
    ("release", "method", "relation"),
    [
        (
            Release(
                noise_multiplier=1.5,
                sampling=PoissonSampling(0.1, population=10_000),
                relation=NeighboringRelation.ADD_REMOVE,
            ),
            "poisson",
            "add-or-remove-one",
        ),
        (
            Release(
                noise_multiplier=9.0,
                sampling=FixedSizeSampling(1000, population=10_000),
                relation=NeighboringRelation.REPLACE_ONE,
            ),
            "without-replacement",
            "replace-one",
        ),
        (
            Release(
                noise_multiplier=3.0,
                sampling=FullParticipation(500),
                relation=NeighboringRelation.ADD_REMOVE,
            ),
            "no-amplification",
            "add-or-remove-one",
        ),
    ],
)
def test_events_there_and_back(release: Release, method: str, relation: str) -> None:
    flower = to_flower_event(release)
    back = from_flower_event(flower, sampling_method=method, neighboring_relation=relation)
    assert back == release
    enumerated = from_flower_event(
        flower,
        sampling_method=SamplingMethod(method),
        neighboring_relation=FlowerRelation(relation),
    )
    assert enumerated == release


def test_a_rate_that_is_no_whole_number_of_users_is_rounded_up() -> None:
    release = Release(noise_multiplier=1.0, sampling=PoissonSampling(0.15, population=10))
    flower = to_flower_event(release)
    assert (flower.sample_size, flower.population_size) == (2, 10)
    back = from_flower_event(
        flower, sampling_method="poisson", neighboring_relation="add-or-remove-one"
    )
    assert release_epsilon([back], delta=DELTA) >= release_epsilon([release], delta=DELTA)


def test_what_flower_cannot_express_is_refused() -> None:
    with pytest.raises(ConfigError, match="population must be given"):
        to_flower_event(Release(noise_multiplier=1.0, sampling=PoissonSampling(0.1)))
    with pytest.raises(ConfigError, match="noise_multiplier must be"):
        to_flower_event(Release(noise_multiplier=0.0, sampling=FullParticipation(3)))
    with pytest.raises(ConfigError, match="sampling_method must be"):
        from_flower_event(event(), sampling_method="x", neighboring_relation="replace-one")
    with pytest.raises(ConfigError, match="neighboring_relation must be"):
        from_flower_event(event(), sampling_method="poisson", neighboring_relation="x")
