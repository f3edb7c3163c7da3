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
    assert report["noise_multiplier"] == pytest.approx(17.8641, rel=1e-4)
    assert report["epsilon_release"] == pytest.approx(1.0, rel=1e-4)
    report = json.loads(_budget(capsys, "--noise-multiplier", "2.5", *common)[1])
    assert report["noise_multiplier"] == 2.5
    assert report["epsilon_release"] == pytest.approx(9.2010, abs=1e-4)


def test_an_option_that_is_out_of_range_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--epsilon", "1", "--delta", "3e-6", "--rounds", "20")
    for option, value in (("--sampling-rate", "2"), ("--sampling-rate", "0")):
        status, _, err = _budget(capsys, *common, option, value)
        assert status == 2
        assert option in err
