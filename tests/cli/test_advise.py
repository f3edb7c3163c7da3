"""`privsyn advise`: which measured place it shows, and what of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flower_privsyn.cli import main
from flower_privsyn.cli.advise import TABLE, nearest
from flower_privsyn.host.app import load_app, resolve_config, strategy_of_app


def test_the_nearest_place_is_by_factors_of_users_and_epsilon() -> None:
    places = [
        {"users": users, "epsilon": epsilon}
        for users, epsilon in ((1_000, 1.0), (10_000, 1.0), (1_000, 0.1))
    ]
    for users, epsilon, place in ((2_000, 0.5, 0), (8_000, 2.0, 1), (3_000, 0.05, 2)):
        assert nearest(places, users=users, epsilon=epsilon)[0] is places[place]


def test_it_answers_from_the_table_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["advise", "--users", "5000", "--epsilon", "1"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    new, run = lines[0].split(" && ")
    assert new == "privsyn new joint-sketch mine"  # the hybrid is level with it, and sends more
    assert run == "privsyn run mine --set data=FILE --set epsilon=1"
    assert len(lines) <= 10
    # An app that does not accept noise, unlike those that are compared.
    monkeypatch.chdir(tmp_path)
    assert main(new.split()[1:]) == 0
    values = resolve_config(load_app("mine"))
    assert not values.get("accept-noise")
    assert strategy_of_app(load_app("mine"), values) is not None
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(json.loads(TABLE.read_text()))
    for wrong in (["--users", "1"], ["--epsilon", "0"]):
        assert main([*words, *wrong]) == 2
        assert wrong[0] in capsys.readouterr().err


def test_every_place_has_floors_beside_its_methods_best_first() -> None:
    for place in json.loads(TABLE.read_text()):
        shares = [row["gap_closed"]["value"] for row in place["methods"]]
        assert shares == sorted(shares, reverse=True)
        epsilons = {row["epsilon"] for row in place["methods"]}
        assert epsilons == {0.0, place["epsilon"]}
