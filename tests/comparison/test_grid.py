"""A grid: a comparison of each number of users, and one table and picture of what was measured."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.advice.judge import Need, advise
from flower_privsyn.advice.measured import MeasuredTable
from flower_privsyn.cli import main
from flower_privsyn.comparison import APP, Grid, People, Plan, make_plans, people
from flower_privsyn.comparison.plan import settings_of
from flower_privsyn.data import Users, load_configured
from flower_privsyn.errors import ConfigError
from flower_privsyn.host.app import load_app

SAMPLE = Path(__file__).parents[2] / "baselines" / "popri" / "popri" / "sample" / "users.jsonl"
METHODS = ("public-only", "joint-sketch", "dp-ftrl")


def plans_of(*users: int) -> list[Plan]:
    return make_plans(
        app=load_app(APP),
        people=People.read([str(SAMPLE)], held_out_users=12),
        epsilons=[1.0, 7.0],
        methods=METHODS,
        seeds=1,
        users=users,
    )


def measured(one: Plan, folder: Path, method: str, epsilon: float, accuracy: float) -> None:
    """A cell as an earlier call left it."""
    (cell,) = (c for c in one.cells() if (c.method, c.epsilon) == (method, epsilon))
    record = {
        **vars(cell),
        "status": "finished",
        "settings": settings_of(one.values(cell, Path("private.jsonl"))),
        "quality": {"next_token_accuracy": accuracy, "perplexity": 9.0, "bits_per_byte": 1.9},
        "costs": {"bytes_up": 98_000 if method == "joint-sketch" else 650_000, "bytes_down": 9},
    }
    place = folder / f"users-{len(one.private)}" / "cells" / cell.name
    place.mkdir(parents=True)
    (place / "cell.json").write_text(json.dumps(record))


def test_the_data_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def load(settings: dict[str, str], *others: Any, **how: Any) -> Users:
        read.append(settings["data"])
        return load_configured(settings, *others, **how)

    monkeypatch.setattr(people, "load_configured", load)
    assert [len(one.private) for one in plans_of(48, 24)] == [48, 24]
    assert read == [str(SAMPLE)]


def test_what_was_measured_is_one_table_and_what_was_not_is_in_no_place(tmp_path: Path) -> None:
    plans = plans_of(48, 24)
    large, small = plans
    said: list[str] = []
    grid = Grid(plans, tmp_path, command="privsyn compare --grid 48 24")
    # A budget of no time runs nothing, and writes what there is.
    nothing = partial(
        grid.run,
        follower=partial(nullcontext, lambda stages: None),
        say=said.append,
        budget_minutes=1e-9,
    )
    nothing()
    for one in plans:
        measured(one, tmp_path, "public-only", 0.0, 0.20)
        measured(one, tmp_path, "joint-sketch", 1.0, 0.24)
    measured(large, tmp_path, "dp-ftrl", 1.0, 0.28)
    measured(small, tmp_path, "joint-sketch", 7.0, 0.26)
    documents = nothing()
    assert [document["data"]["private_users"] for document in documents] == [24, 48]
    left_out = [
        [(c["method"], c["epsilon"]) for c in document["cells"] if c["status"] == "left out"]
        for document in documents
    ]
    assert left_out == [
        [("dp-ftrl", 1.0), ("dp-ftrl", 7.0)],
        [("joint-sketch", 7.0), ("dp-ftrl", 7.0)],
    ]
    # The same people are held out in both.
    assert set(small.held_out.user_ids) == set(large.held_out.user_ids)
    assert set(small.private.user_ids) < set(large.private.user_ids)

    table = MeasuredTable.read(grid.table_file)
    assert {(c.users, c.epsilon, c.method) for c in table.cells} == {
        (24, 1.0, "joint-sketch"),
        (24, 7.0, "joint-sketch"),
        (48, 1.0, "joint-sketch"),
        (48, 1.0, "dp-ftrl"),
    }
    assert advise(table, Need(users=48, epsilon=1.0)).best == ("dp-ftrl",)
    assert "| 48 | **dp-ftrl**" in (tmp_path / "grid.md").read_text()
    drawn = (tmp_path / "grid.svg").read_text()
    assert "24 users, epsilon 7: joint sketch, +6.0 points, 98 kB up" in drawn
    assert "48 users, epsilon 7" not in drawn

    # Asked again for one of them, it keeps what the other has, as after an interruption.
    Grid(plans[1:], tmp_path, command="privsyn compare --grid 24").run(
        follower=partial(nullcontext, lambda stages: None), say=said.append, budget_minutes=1e-9
    )
    assert MeasuredTable.read(grid.table_file).cells == table.cells


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = plans_of(24)
    with pytest.raises(ConfigError, match="different numbers of users, got 24, 24"):
        Grid([one, one], tmp_path / "a")
    (tmp_path / "compare.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds a comparison of one number of users"):
        Grid([one], tmp_path)
    words = ["compare", "--data", str(SAMPLE), "--epsilon", "1", "--grid", "300"]
    for more, sentence in (
        (["--users", "30"], "give either --users or --grid"),
        (["1"], "--grid must be a whole number of at least 2, got 1"),
        (["100000"], "fewer than the"),
    ):
        assert main([*words, *more, "--output", str(tmp_path / "b")]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
