"""One user on several nodes, with a coin on each: what it costs, and what has no bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import (
    CyclicSampling,
    FixedSizeSampling,
    FullParticipation,
    GaussianMechanism,
    NeighboringRelation,
    PoissonSampling,
    PrivacyLedger,
    Release,
    Sampling,
    both_epsilons,
    release_epsilon,
)
from tests.support.ledgers import begin


def of_nodes(
    nodes: int, *, multiplier: float, rate: float = 0.1, sampling: Sampling | None = None
) -> Release:
    return Release(
        noise_multiplier=multiplier,
        sampling=sampling or PoissonSampling(rate),
        max_nodes_per_user=nodes,
    )


@pytest.mark.parametrize(
    "sampling",
    [
        FullParticipation(),
        PoissonSampling(1.0),
        CyclicSampling(groups=4, rounds=8, salt="0" * 32),
    ],
)
def test_without_coins_the_norm_bound_is_all(sampling: Sampling) -> None:
    alone = release_epsilon({of_nodes(1, multiplier=2.0, sampling=sampling): 5}, delta=1e-6)
    assert release_epsilon({of_nodes(7, multiplier=2.0, sampling=sampling): 5}, delta=1e-6) == alone


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize("name", ["pld", "rdp"])
def test_a_coin_on_each_of_several_nodes_hides_nobody(
    relation: NeighboringRelation, name: str
) -> None:
    def costs(nodes: int, sampling: Sampling) -> dict[str, float | None]:
        release = Release(
            noise_multiplier=1.5, sampling=sampling, relation=relation, max_nodes_per_user=nodes
        )
        return both_epsilons({release: 4}, delta=1e-6, accountant=name)

    everybody = costs(1, FullParticipation())
    assert costs(2, PoissonSampling(0.1)) == costs(2, FullParticipation()) == everybody


def test_what_has_no_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match="max-nodes-per-user must be 1 for fixed-size"):
        of_nodes(2, multiplier=1.0, sampling=FixedSizeSampling(5, population=10))
    for bad in (0, 1001, 1.5, True):
        with pytest.raises(ConfigError, match="max-nodes-per-user"):
            of_nodes(bad, multiplier=1.0)  # type: ignore[arg-type]


def test_the_ledger_states_and_charges_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    mechanism = GaussianMechanism(noise_multiplier=1.0, l2_sensitivity=16.0)
    sampling = PoissonSampling(0.2)
    with PrivacyLedger.create(path, delta=1e-5, epsilon_budget=None) as ledger:
        for number, nodes in ((1, 2), (2, 1)):
            started = begin(
                ledger,
                round=number,
                query="votes",
                mechanism=mechanism,
                sampling=sampling,
                planned_users=10,
                max_nodes_per_user=nodes,
            )
            assert started["max_nodes_per_user"] == nodes
            assert ledger.charge(round=number, num_users=10)["max_nodes_per_user"] == nodes
        wanted = release_epsilon(
            [of_nodes(2, multiplier=1.0, rate=0.2), of_nodes(1, multiplier=1.0, rate=0.2)],
            delta=1e-5,
        )
        assert ledger.spent["epsilon_release"] == pytest.approx(wanted, rel=1e-12)
    assert PrivacyLedger.read(path).spent["epsilon_release"] == ledger.spent["epsilon_release"]
