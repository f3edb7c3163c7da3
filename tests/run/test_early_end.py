"""A run that is ended early, maybe for what its releases say, costs what all planned rounds do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.cli.inspect import epsilons
from flower_privsyn.errors import LedgerError
from flower_privsyn.privacy import (
    FullParticipation,
    GaussianMechanism,
    PrivacyLedger,
)
from flower_privsyn.report import write_run_page
from flower_privsyn.report.summary import open_run
from flower_privsyn.strategies import State
from tests.support.ledgers import begin
from tests.support.probe import Killed, Probe, ProbeMethod, killed_in
from tests.support.run_files import lines, releases

Builder = Callable[..., Any]
BOTH = ("epsilon_release", "epsilon_known_cohorts")


def planned(federation: Builder, settings: Any, tmp_path: Path) -> dict[str, float]:
    """What the same run costs that asks all of its rounds."""
    whole = Probe(settings(run_dir=str(tmp_path / "whole")))
    whole.start(federation())
    assert [line["event"] for line in lines(whole.run.ledger_file)][-1] == "release"
    last = releases(whole.run.path)[-1]
    return {name: last[name] for name in BOTH}


@pytest.mark.parametrize(
    "given",
    [
        {"epsilon": 4.0},
        {"noise_multiplier": 2.0},
        {"epsilon": 2.0, "sampling": "poisson", "sampling_rate": 0.4, "accountant": "rdp"},
        {"noise_multiplier": 2.0, "sampling": "poisson", "sampling_rate": 0.4},
    ],
)
def test_whoever_ends_the_rounds_leaves_the_cost_of_all(
    federation: Builder, config: Builder, tmp_path: Path, given: dict[str, Any]
) -> None:
    common = {"num_rounds": 5, "num_users": 12, "min_users": 0, **given}

    def settings(**changes: Any) -> Any:
        return config(**common, **changes)

    with pytest.raises(Killed):
        killed_in(Probe(settings()), 2).start(federation())
    strategy = Probe(config(**{**common, "num_rounds": 2, "resume": True}))
    strategy.start(federation(num_nodes=1))
    run = strategy.run
    whole = planned(federation, settings, tmp_path)
    charged, ended = releases(run.path)[-1], lines(run.ledger_file)[-1]
    assert (ended["event"], ended["round"]) == ("ended", 2)
    stated = {name: ended[name] for name in BOTH}
    assert stated == pytest.approx(whole, rel=1e-4)
    for name in BOTH:
        assert charged[name] < 0.8 * whole[name]
    # Wherever the cost of the run is read.
    summary = open_run(run.path)
    assert {name: getattr(summary, name) for name in BOTH} == stated
    assert {name: run.state["summary"][name] for name in BOTH} == stated
    assert {name: PrivacyLedger.read(run.ledger_file).spent[name] for name in BOTH} == stated
    assert "2 releases; it ended early" in epsilons(summary)
    page = write_run_page(run, tmp_path / "page.html").read_text()
    assert "both ε are those of all rounds that were planned" in page


def test_a_run_that_is_killed_after_it_has_ended_states_that_once(
    federation: Builder, config: Builder
) -> None:
    class Dies(ProbeMethod):
        def finish(self, state: State) -> dict[str, Any]:
            raise Killed

    with pytest.raises(Killed):
        killed_in(Probe(config(num_rounds=5)), 2).start(federation())
    settings = config(num_rounds=2, resume=True)
    with pytest.raises(Killed):
        Probe(settings, method=Dies).start(federation())
    again = Probe(settings)
    again.start(federation())
    events = [line["event"] for line in lines(again.run.ledger_file)]
    assert events == ["opened", *["started", "release"] * 2, "ended"]


def test_after_the_end_nothing_begins(tmp_path: Path) -> None:
    mechanism = GaussianMechanism(noise_multiplier=5.0, l2_sensitivity=1.0)
    asked: dict[str, Any] = {
        "query": "votes",
        "mechanism": mechanism,
        "sampling": FullParticipation(10),
        "planned_users": 10,
    }
    path = tmp_path / "ledger.jsonl"
    with PrivacyLedger.create(path, delta=1e-5, epsilon_budget=9.0) as ledger:
        begin(ledger, round=1, **asked)
        with pytest.raises(LedgerError, match="Round 1 is started"):
            ledger.end(round=1, epsilon_release=3.0, epsilon_known_cohorts=4.0)
        spent = ledger.charge(round=1, num_users=10)["epsilon_release"]
        # Never less than was charged.
        ended = ledger.end(round=1, epsilon_release=spent / 2, epsilon_known_cohorts=4.0)
        assert ended["epsilon_release"] == spent
        assert ledger.spent == {"epsilon_release": spent, "epsilon_known_cohorts": 4.0}
    with PrivacyLedger.open(path) as ledger:
        assert ledger.spent == {"epsilon_release": spent, "epsilon_known_cohorts": 4.0}
        with pytest.raises(LedgerError, match="have ended"):
            begin(ledger, round=2, **asked)
