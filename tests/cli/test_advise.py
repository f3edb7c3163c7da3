"""`privsyn advise`: which measured place it shows, and in which order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flower_privsyn.cli import main
from flower_privsyn.cli.advise import MeasuredCell, nearest


def cell(method: str, accuracy: float, **changes: Any) -> MeasuredCell:
    values: dict[str, Any] = {
        "data": "letters",
        "users": 1_000,
        "epsilon": 1.0,
        "seeds": 1,
        "accuracy_error": None,
        "bits_per_byte": None,
        "floor": 0.2,
        "ceiling": 0.3,
        "bytes_up": 100,
        "bytes_down": 10,
        "client_cpu_seconds": None,
    }
    return MeasuredCell(method=method, accuracy=accuracy, **{**values, **changes})


def test_methods_are_compared_where_they_were_measured_together() -> None:
    cells = [
        cell("dp-ftrl", 0.21, bytes_up=1_000),
        cell("joint-sketch", 0.24),
        cell("dp-ftrl", 0.28, users=10_000),
        cell("joint-sketch", 0.25, users=10_000),
        cell("joint-sketch", 0.22, epsilon=0.1),  # alone there: compares nothing
        cell("expand-only", 0.23, epsilon=0.0),  # asks nobody
        cell("popri", 0.4, data="novels"),  # alone on its text
    ]
    for users, epsilon, place, best in (
        (2_000, 0.1, 1_000, ["joint-sketch", "dp-ftrl"]),
        (8_000, 2.0, 10_000, ["dp-ftrl", "joint-sketch"]),
    ):
        here, _ = nearest(cells, users=users, epsilon=epsilon)
        assert {(one.data, one.users) for one in here} == {("letters", place)}
        assert [one.method for one in here] == best


def test_of_equal_gains_that_which_sends_less_is_first() -> None:
    cells = [cell("a", 0.25001, bytes_up=200), cell("b", 0.25, bytes_up=100)]
    ((first, second),) = nearest(cells, users=1_000, epsilon=1.0)
    assert (first.method, second.method) == ("b", "a")
    assert first.gap_closed == pytest.approx(0.5)
    assert cell("c", 0.1, ceiling=None).gap_closed is None


def test_it_answers_from_the_table_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["advise", "--users", "5000", "--epsilon", "1"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "by 4,100 users at epsilon 1:" in said
    assert said.splitlines()[0].endswith("--set data=FILE --set epsilon=1")
    assert main([*words, "--json"]) == 0
    places = json.loads(capsys.readouterr().out)
    assert all(len({(one["users"], one["epsilon"]) for one in here}) == 1 for here in places)
    for wrong in (["--users", "1"], ["--epsilon", "0"]):
        assert main([*words, *wrong]) == 2
        assert wrong[0] in capsys.readouterr().err
