"""`privsyn budget`: from epsilon to noise and back, and what is refused."""

from __future__ import annotations

import json

import pytest

from flower_privsyn.cli import main


def _budget(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["budget", *arguments])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_budget_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = _budget(
        capsys,
        *("--noise-multiplier", "5", "--delta", "0.01", "--rounds", "3"),
        *("--sample-size", "10", "--users", "100"),
    )
    assert status == 0
    assert "epsilon_release" in out
    assert "epsilon_known_cohorts" in out
    assert "delta 0.01 is not below 1/users = 0.01" in err


def test_from_epsilon_to_noise_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--delta", "3e-6", "--rounds", "20", "--json")
    report = json.loads(_budget(capsys, "--epsilon", "1", *common)[1])
    assert report["noise_multiplier"] == pytest.approx({"pld": 17.8641, "rdp": 19.2513}, rel=1e-4)
    assert report["epsilon_release"] == pytest.approx({"pld": 1.0, "rdp": 1.0}, rel=1e-4)
    report = json.loads(_budget(capsys, "--noise-multiplier", "2.5", *common)[1])
    assert report["noise_multiplier"] == {"pld": 2.5, "rdp": 2.5}
    assert report["epsilon_release"] == pytest.approx({"pld": 9.2010, "rdp": 9.8303}, abs=1e-4)


def test_what_no_accountant_can_give_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--delta", "3e-6", "--rounds", "20", "--sampling-rate", "0.1", "--json")
    given = (*common, "--relation", "replace-one", "--noise-multiplier", "2")
    report = json.loads(_budget(capsys, *given)[1])
    assert report["epsilon_release"]["rdp"] is None
    assert report["epsilon_known_cohorts"]["rdp"] > report["epsilon_release"]["pld"]
