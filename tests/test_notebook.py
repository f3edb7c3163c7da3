"""A run in one process, on users in memory."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from flwr.supercore.task_identity import TaskIdentity

from flower_privsyn import DPFedAvg, JointSketch, PrivateSumStrategy, fit
from flower_privsyn.data import Users
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.report.summary import RunSummary
from flower_privsyn.strategies import (
    DPFedAvgConfig,
    JointSketchConfig,
    Method,
    PrivateSumConfig,
    Question,
    State,
)
from tests.support.federation import make_users
from tests.support.run_files import lines
from tests.support.small_runs import small_training
from tests.support.text_lengths import AsksLengths, TextLengths

Fit = Callable[..., RunSummary]

TOPICS = (
    "The court heard the appeal, and the judge gave her ruling on the tax of the river.",
    "The engine and the turbine of the rocket ran in orbit until the fuel was gone.",
    "The teacher spoke to the school about genes, enzymes and the cells of a plant.",
)


def rows(count: int = 30) -> list[tuple[str, str]]:
    """Users who write about courts."""
    users = make_users(count)
    return [
        (users.user_ids[owner], text) for owner, text in zip(users.owners, users.texts, strict=True)
    ]


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("public") / "topics.jsonl"
    texts = [f"{text} It was said in the year {year}." for year in range(20) for text in TOPICS]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return file


@pytest.fixture
def small(tmp_path: Path, public: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of a small joint sketch."""
    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))
    return {
        "epsilon": 8.0,
        "accept_noise": True,
        "num_bigrams": 400,
        "public_text": str(public),
        "select_share": 0.2,
        "least_selected": 1,
        "least_row_tokens": 4,
        "most_overlap": 1.0,
        "student_steps": 1,
        "training_batch_size": 2,
        "teacher": "",
        "synthesis": "selected",
        "run_dir": str(tmp_path / "run"),
    }


def test_a_data_frame_is_asked_once_by_a_joint_sketch(
    small: dict[str, Any], tmp_path: Path
) -> None:
    frame = pd.DataFrame(rows(), columns=["customer", "note"])
    run = fit(frame, client_column="customer", text_column="note", **small)
    assert (run.status, run.strategy, run.users) == ("finished", "JointSketch", 30)
    assert run.epsilon_release == pytest.approx(8.0, abs=0.01)
    started = [line for line in lines(tmp_path / "run" / "ledger.jsonl") if "query" in line]
    assert started[0]["secure_randomness"]
    assert run.texts["text"].str.len().min() > 0
    assert run.model == tmp_path / "run" / "models" / "final"
    assert (run.model / "config.json").is_file()


def test_a_path_is_a_setting_wherever_its_text_is_one(tmp_path: Path) -> None:
    names = ("run_dir", "teacher", "generator")  # the last also takes an object that writes
    found = JointSketch(epsilon=1.0, **dict.fromkeys(names, tmp_path)).config
    assert [getattr(found, name) for name in names] == [str(tmp_path)] * 3


@pytest.mark.parametrize("given", [rows(), iter(rows()), Users.from_rows(rows())])
def test_a_method_of_ones_own_asks_rows_and_users_as_they_are(tmp_path: Path, given: Any) -> None:
    settings = PrivateSumConfig(
        epsilon=8.0, num_rounds=1, max_samples=0, accept_noise=True, run_dir=str(tmp_path / "run")
    )
    run = fit(given, PrivateSumStrategy(settings, AsksLengths()))
    assert run.users == 30
    assert [line["query"] for line in run.charged] == [TextLengths.name]


def test_two_at_once_do_not_cost_each_other_their_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("_task_id", "_run_id", "_node_id"):  # as outside of tests
        monkeypatch.setattr(TaskIdentity, part, None)
    first_asks, second_asks, first_ended = (threading.Event() for _ in range(3))

    class First(AsksLengths):
        def ask(self, state: State, number: int) -> Question:
            first_asks.set()
            second_asks.wait(timeout=0.5)
            return super().ask(state, number)

    class Second(AsksLengths):
        def ask(self, state: State, number: int) -> Question:
            second_asks.set()
            first_ended.wait(timeout=5)
            return super().ask(state, number)

    def run(method: Method) -> RunSummary:
        folder = tmp_path / type(method).__name__
        settings = PrivateSumConfig(
            epsilon=8.0, num_rounds=1, max_samples=0, accept_noise=True, run_dir=str(folder)
        )
        return fit(rows(), PrivateSumStrategy(settings, method))

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, First())
        assert first_asks.wait(timeout=30)
        second = pool.submit(run, Second())
        assert first.result().releases == 1
        first_ended.set()
        assert second.result().releases == 1


def test_models_are_trained_on_the_nodes(lstm: Path, tmp_path: Path) -> None:
    settings = small_training(
        DPFedAvgConfig, tmp_path / "run", model=str(lstm), num_rounds=2, num_nodes=3
    )
    run = fit(rows(6), DPFedAvg(settings(epsilon=50.0)))
    assert (run.releases, run.users) == (2, 6)
    assert run.model is not None


class TestNothingIsSpent:
    @pytest.fixture
    def refused(self, small: dict[str, Any], tmp_path: Path) -> Callable[..., str]:
        def refused(users: Any, *given: Any, kind: type[Exception], **settings: Any) -> str:
            with pytest.raises(kind) as refusal:
                fit(users, *given, **settings)
            assert not (tmp_path / "run" / "ledger.jsonl").exists()
            return str(refusal.value)

        return refused

    def test_for_one_user_alone(self, refused: Fit, small: dict[str, Any]) -> None:
        assert "2 users" in refused(rows(1), kind=DataError, **small)

    def test_for_users_without_text(self, refused: Fit, small: dict[str, Any]) -> None:
        nothing = [(f"user-{number}", " ") for number in range(30)]
        assert "no usable text" in refused(nothing, kind=DataError, **small)

    def test_for_a_table_without_the_column(self, refused: Fit, small: dict[str, Any]) -> None:
        frame = pd.DataFrame(rows(), columns=["client_id", "note"])
        assert "text" in refused(frame, kind=DataError, **small)

    def test_for_public_text_that_is_theirs(
        self, refused: Fit, small: dict[str, Any], public: Path
    ) -> None:
        assert "public-text" in refused(
            os.fspath(public), kind=ConfigError, **small, client_column="text"
        )

    def test_where_settings_and_a_strategy_are_given(
        self, refused: Fit, small: dict[str, Any]
    ) -> None:
        other = JointSketch(JointSketchConfig(**small))
        assert "epsilon" in refused(rows(), other, kind=ConfigError, epsilon=1.0)
        assert "JointSketch" in refused(rows(), JointSketch, kind=ConfigError)


def test_what_is_wrong_with_a_setting_is_said_of_the_keyword(small: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="epsilom"):
        partial(fit, rows(), epsilom=1.0)()
