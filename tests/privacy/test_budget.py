"""The table behind ``privsyn budget``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import (
    FullParticipation,
    NeighboringRelation,
    PoissonSampling,
    budget_report,
)

PLAN: dict[str, Any] = {"delta": 3e-6, "rounds": 20, "sampling": PoissonSampling(0.1)}


def test_from_an_epsilon() -> None:
    report = budget_report(epsilon=1, **PLAN)
    assert set(report) == {"noise_multiplier", "epsilon_release", "epsilon_known_cohorts", "inputs"}
    assert report["noise_multiplier"] == pytest.approx({"pld": 2.2404, "rdp": 2.4307}, rel=1e-4)
    for name in ("pld", "rdp"):
        assert 0.9999 < report["epsilon_release"][name] <= 1.0
    server = report["epsilon_known_cohorts"]
    assert set(server) == {"pld", "rdp", "by_participations"}
    assert list(server["by_participations"]) == ["1", "2", "3", "20"]
    assert server["by_participations"]["20"] == {"pld": server["pld"], "rdp": server["rdp"]}
    for name in ("pld", "rdp"):
        by_count = [entry[name] for entry in server["by_participations"].values()]
        assert by_count == sorted(by_count)
        assert by_count[0] > 1.0
    assert report["inputs"] == {
        "epsilon": 1,
        "noise_multiplier": None,
        "delta": 3e-6,
        "rounds": 20,
        "sampling": {"method": "poisson", "rate": 0.1, "population": None},
        "relation": "zero-out",
        "max_nodes_per_user": 1,
    }
    json.dumps(report, allow_nan=False)


def test_from_a_noise_multiplier_it_goes_the_other_way() -> None:
    report = budget_report(noise_multiplier=2.5, **PLAN)
    assert report["noise_multiplier"] == {"pld": 2.5, "rdp": 2.5}
    assert report["epsilon_release"] == pytest.approx({"pld": 0.85879, "rdp": 0.96169}, abs=1e-4)


def test_full_participation_shows_the_server_what_everybody_sees() -> None:
    report = budget_report(
        noise_multiplier=11.3, delta=3e-6, rounds=11, sampling=FullParticipation(1000)
    )
    assert report["epsilon_release"] == pytest.approx({"pld": 1.18896, "rdp": 1.28758}, abs=1e-4)
    for name in ("pld", "rdp"):
        assert report["epsilon_known_cohorts"][name] == report["epsilon_release"][name]


def test_what_no_accountant_can_give_is_null() -> None:
    relation = NeighboringRelation.REPLACE_ONE
    report = budget_report(epsilon=2.0, relation=relation, **PLAN)
    assert report["noise_multiplier"]["rdp"] is None
    assert report["epsilon_release"]["rdp"] is None
    assert report["epsilon_known_cohorts"]["by_participations"]["1"]["rdp"] is None
    assert 0.999 < report["epsilon_release"]["pld"] <= 2.0
    report = budget_report(noise_multiplier=2.0, relation=relation, **PLAN)
    assert report["epsilon_release"]["rdp"] is None
    assert report["epsilon_known_cohorts"]["rdp"] > report["epsilon_release"]["pld"]


@pytest.mark.parametrize("given", [{}, {"epsilon": 1.0, "noise_multiplier": 1.0}])
def test_exactly_one_of_epsilon_and_noise_multiplier(given: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="exactly one of epsilon and noise_multiplier"):
        budget_report(**given, **PLAN)
