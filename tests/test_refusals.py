"""What a user gets wrong, and the sentence that answers: what it is about, and what is allowed.

Nothing is asked of a node, written to a ledger or left half done by any of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flower_privsyn import PrivsynError, strategy_of
from flower_privsyn.cli import main
from tests.support.federation import asked, make_users, training_nodes

EXAMPLES = Path(__file__).parents[1] / "examples"
COUNT = "whole number of at least 1"

#: Public text of which there is less to read than of all that is bundled.
FEW = {"public-text": "bundled[:2000]"}

#: A run configuration, and what its refusal must name; every type and range: test_checks.py.
SETTINGS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("pre-text", {}, ("strategy", "'pre-text'", '"private-evolution"', '"fred"')),
    ("aug-pe", {"epsilon": 0}, ("epsilon", "got 0", "number above 0")),
    ("aug-pe", {"epsilon": -1.0}, ("epsilon", "noise-multiplier", "above 0")),
    ("aug-pe", {"noise-multiplier": 1.0}, ("epsilon = 1.0", "noise-multiplier = 1.0", "give one")),
    ("aug-pe", {"num-rounds": 0}, ("num-rounds", "got 0", COUNT)),
    ("aug-pe", {"num_rounds": 3}, ('"num_rounds"', '"num-rounds"')),
    ("aug-pe", {"num-round": 3}, ('"num-round"', '"num-rounds"')),
    ("private-evolution", {"generator-parameters": "{"}, ("generator-parameters", "smollm2-135m")),
    ("private-evolution", {"secure-aggregation": True}, ("num-nodes", "got 2", "at least 4 nodes")),
    (
        "ctcl",
        {"sampling": "full", "correlation": "banded"},
        ("correlation", '"banded"', '"cyclic"'),
    ),
    ("dp-fedavg", {"trainable": "some"}, ("trainable", "'some'")),
    # Settings of one method that do not fit together.
    (
        "aug-pe",
        {"num-candidates": 25, "num-variations": 3, "classes": "law; river"},
        ("num-candidates", "multiple", "got 25"),
    ),
    ("aug-pe", {"classes": "law;law"}, ("classes", "different")),
    ("aug-pe", {"num-variations": 1}, ("num-variations",)),
    ("popri", {"rejected-rank": 6, "responses-per-prompt": 5}, ("rejected-rank = 6", "= 5")),
    ("popri", {"checkpoint": "fred", "num-rounds": 1}, ("num-rounds", "at least 2")),
    ("popri", {"generator": "http://localhost:8000/v1"}, ("training-model",)),
    ("popri", {"generator": "gguf:model.gguf"}, ("loads no adapters",)),
    ("private-evolution", {"sampling-rate": 0.5}, ("sampling-rate",)),
    ("private-evolution", {"sample-size": 5}, ("sample-size",)),
    (
        "private-evolution",
        {"sampling": "poisson", "sampling-rate": 0.5, "min-users": 3},
        ("min-users",),
    ),
    (
        "private-evolution",
        {"sampling": "fixed-size", "sample-size": 3, "relation": "add-remove"},
        ("fixed-size", "add-remove"),
    ),
    (
        "joint-sketch",
        {
            "sampling": "poisson",
            "sampling-rate": 0.5,
            "relation": "replace-one",
            "accountant": "rdp",
            **FEW,
        },
        ("accountant", "pld"),
    ),
    ("private-evolution", {"min-date": "March"}, ("min-date",)),
    ("private-evolution", {"resume": True, "run-dir": ""}, ("run-dir",)),
    ("private-evolution", {"epsilon": -1.0, "noise-multiplier": 1e-9}, ("noise-multiplier",)),
    ("joint-sketch", {"num-bigrams": 1}, ("num-bigrams",)),
    ("joint-sketch", {"teacher": "", "teacher-steps": 5}, ("teacher-steps = 5", "a teacher")),
    ("fred", {"estimator": "two-rounds"}, ("num-rounds",)),
    ("fred", {"unit": "record", "max-samples": 0}, ("max-samples",)),
    ("fred", {"candidates": "a.jsonl; ; b.jsonl"}, ("candidates",)),
    (
        "public-mid-training",
        {"num-rounds": 6, "first-rounds": 6},
        ("first-rounds = 6", "num-rounds - 1 = 5"),
    ),
    ("public-mid-training", {"first-rounds": 2, "position": "after"}, ('position = "middle"',)),
    ("public-mid-training", {"position": "before"}, ('public-rows = "matched"',)),
    # Seen when what is named is opened, before any node is asked.
    ("private-evolution", {"resume": True, "run-dir": "nowhere"}, ("run directory", "nowhere")),
    ("private-evolution", {"generator": "no/model", **FEW}, ("'no/model'",)),
    ("private-evolution", {"public-text": "no.jsonl"}, ("public-text", "no.jsonl")),
    ("fred", {"candidates": "no.jsonl"}, ("candidates", "no.jsonl")),
    ("ctcl", {"embedding-model": "no/model"}, ("no/model",)),
    ("dp-fedavg", {"model": "no/model"}, ("'no/model'",)),
    ("public-mid-training", {"teacher": "no/model"}, ("'no/model'",)),
    (
        "dp-ftrl",
        {"model": "privsyn-tiny", "num-nodes": 4, "secure-aggregation": True},
        ("correlated", "secure-aggregation = false"),
    ),
]

#: A command, and what its refusal must name. {data} holds the files of `files`.
COMMANDS: list[tuple[str, tuple[str, ...]]] = [
    ("check nowhere", ("app", "nowhere")),
    ("check {app} --set num-rounds", ("--set", "key=value", "'num-rounds'")),
    ("run {app} --set num-rounds=two", ("num-rounds", "'two'", "whole number")),
    ("run {app} --set student=x", ('"student"', '"student-steps"')),
    ("check {app} --config gpu", ("'gpu'", "quickstart")),
    ("run {app} --set epsilon=0", ("epsilon", "got 0", "above 0")),
    ("run {app} --set epsilon=1e-9", ("epsilon", "noise", "users")),
    ("resume nowhere", ("run directory", "nowhere")),
    ("inspect nowhere", ("run directory", "nowhere")),
    ("expand nowhere --samples 3", ("run directory", "nowhere")),
    ("methods nothing", ("'nothing'", '"popri"')),
    ("new nothing {data}/app", ("nothing", "own-data", "quickstart")),
    ("budget --epsilon 0 --delta 1e-5 --rounds 3", ("epsilon", "got 0", "above 0")),
    ("budget --delta 1e-6 --rounds 3", ("--epsilon", "--noise-multiplier")),
    ("budget --delta 1e-6 --rounds 3 --epsilon 1 --sample-size 3", ("--population",)),
    ("compare --data a.jsonl --epsilon 1 --steps 0", ("--steps", COUNT, "got 0")),
    ("compare --data no.jsonl --epsilon 1 --output {data}/out", ("no.jsonl",)),
    ("node policy {data}/policy.toml", ("max-epsilon", "-1", "above 0", "policy.toml")),
    ("data no.jsonl", ("no.jsonl",)),
    ("data {data}/torn.jsonl", ("torn.jsonl", "line 2")),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an owner has, each file wrong in one way."""
    folder = tmp_path_factory.mktemp("files")
    for name, content in {
        "torn.jsonl": '{"client_id": "a", "text": "b"}\n{"client_id": "a",\n',
        "policy.toml": "max-epsilon = -1\n",
    }.items():
        (folder / name).write_text(content, "utf-8")
    return folder


@pytest.mark.parametrize(("strategy", "values", "named"), SETTINGS)
def test_settings(
    strategy: str,
    values: dict[str, Any],
    named: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {"epsilon": 1.0, "num-users": 16, "run-dir": "run", "strategy": strategy, **values}
    grid = training_nodes(make_users(16))
    with pytest.raises(PrivsynError) as refused:
        strategy_of(config).start(grid)
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert [word for word in named if word not in sentence] == []
    assert asked(grid) == []
    assert not (tmp_path / "run/ledger.jsonl").exists()


@pytest.mark.parametrize(("command", "named"), COMMANDS)
def test_commands(
    command: str,
    named: tuple[str, ...],
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PRIVSYN_RUNS", str(tmp_path / "runs"))
    app = EXAMPLES / "quickstart"
    assert main([word.format(app=app, data=files) for word in command.split()]) == 2
    sentence = capsys.readouterr().err.strip()
    assert "\n" not in sentence
    assert [word for word in named if word not in sentence] == []
    assert not list((tmp_path / "runs").rglob("ledger.jsonl"))
