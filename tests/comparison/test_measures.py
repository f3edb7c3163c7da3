"""What is measured of every cell is of the same held-out text."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flower_privsyn.catalogue import compared
from flower_privsyn.comparison import APP, People, measures
from flower_privsyn.comparison.measures import Job, Measures
from flower_privsyn.comparison.plan import Cell, Plan
from flower_privsyn.data import Users
from flower_privsyn.errors import DataError, TrainingError
from flower_privsyn.evaluation.language_model import Interval
from flower_privsyn.host.app import load_app
from flower_privsyn.progress import Progress
from flower_privsyn.testing import HashEmbedder
from flower_privsyn.training.causal import CausalTraining


def people(name: str, *, users: int, texts: int) -> Users:
    return Users.from_rows(
        (f"{name}-{user}", f"{name} {user} wrote text {number} of the river")
        for user in range(users)
        for number in range(texts)
    )


def plan_of(private: Users, held_out: Users) -> Plan:
    return Plan(
        app=load_app(APP),
        configs=("cpu",),
        people=People(source="users.jsonl", groups=(private,), tuning=held_out, held_out=held_out),
        methods=(compared()["pre-text"],),
        epsilons=(1.0,),
        seeds=1,
        delta=1e-3,
        downstream="privsyn-tiny",
        training=CausalTraining(max_steps=2700),
    )


def job_in(folder: Path) -> Job:
    return Job(
        cell=Cell(method=compared()["pre-text"], epsilon=1.0, seed=0),
        values={"embedding-model": "hash", "embedding-precision": "float32", "max-tokens": 64},
        folder=folder,
        progress=Progress(),
    )


def test_held_out_text_is_the_same_for_every_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "load_embedder", lambda *_, **__: HashEmbedder())
    read: list[list[str]] = []

    def evaluate(model: str, texts: list[str], **_: Any) -> Any:
        read.append(list(texts))
        raise DataError("read")

    monkeypatch.setattr(measures, "evaluate_language_model", evaluate)
    found = Measures(plan_of(people("p", users=2, texts=1), people("h", users=3, texts=9)))
    job = job_in(tmp_path)
    for own in (64, 2):
        with pytest.raises(DataError, match="read"):
            found.quality(replace(job, values={**job.values, "max-tokens": own}), "privsyn-tiny")
    assert read[0] == read[1]
    assert len(read[0]) == 27


def test_what_is_copied_stands_beside_what_held_out_text_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "load_embedder", lambda *_, **__: HashEmbedder())
    private = [(f"p-{n}", " ".join(f"w{n}x{word}" for word in range(20))) for n in range(20)]
    others = [(f"h-{n}", " ".join(f"v{n}x{word}" for word in range(20))) for n in range(20)]
    others[3] = ("h-3", private[5][1])  # one of twenty says what a user said
    plan = plan_of(Users.from_rows(private), Users.from_rows(others))
    job = job_in(tmp_path)
    window = " ".join(private[0][1].split()[:13])
    written = [f"text {n} of nobody at all" for n in range(8)] + [
        private[1][1],
        f"new {window} new",
    ]
    found = Measures(plan)._compared(job, written)
    assert found is not None
    assert found["copies"] == pytest.approx(0.2)  # the window too
    assert found["copies_held_out"] == pytest.approx(0.05)


BURST = math.inf


@pytest.mark.parametrize(
    ("nats", "best"),
    [
        ({"100": 3.0, "300": 2.5, "900": 2.7, "300-4x": 2.6}, "300"),
        (
            {"100": 3.0, "300": 2.5, "900": 2.7, "300-4x": 2.4, "900-4x": 2.3, "2700-4x": 2.35},
            "900-4x",
        ),
        ({"100": 3.0, "300": 2.5, "900": 2.4, "2700": 2.3, "2700-4x": 2.2}, "2700-4x"),
        ({"100": 3.0, "300": 3.1, "100-4x": BURST}, "100"),
    ],
)
def test_a_student_has_the_steps_and_the_rate_that_are_best_on_tuning_users(
    nats: dict[str, float], best: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And held-out users are read once, whatever they would have chosen."""
    monkeypatch.setattr(measures, "load_embedder", lambda *_, **__: HashEmbedder())
    tuning, held_out = people("t", users=2, texts=1), people("h", users=3, texts=1)
    plan = plan_of(people("p", users=2, texts=1), held_out)
    plan = replace(plan, people=replace(plan.people, tuning=tuning))
    read: list[tuple[str, bool]] = []

    def evaluate(model: str, texts: list[str], **_: Any) -> Any:
        name = Path(model).name.removeprefix("student-")
        read.append((name, len(texts) == len(held_out)))
        one = Interval(value=nats[name], low=0.0, high=9.0)
        return SimpleNamespace(cross_entropy=one, next_token_accuracy=one, bits_per_byte=one)

    def train(how: CausalTraining, output: Path) -> None:
        name = output.name.removeprefix("student-")
        steps, _, times = name.partition("-")
        assert how.max_steps == int(steps)
        assert how.learning_rate == (4 if times else 1) * plan.training.learning_rate
        if nats[name] is BURST:
            raise TrainingError("the loss is not finite")

    monkeypatch.setattr(measures, "evaluate_language_model", evaluate)
    found = Measures(plan).of_best(job_in(tmp_path), train)
    assert f"student-{best}" == found["student"]
    assert found["bits_per_byte"] == nats[best]
    tried = [name for name in nats if nats[name] is not BURST]
    assert found["tried"] == [f"student-{name}" for name in tried]
    assert read == [*((name, False) for name in tried), (best, True)]


def test_a_training_that_comes_to_nothing_at_the_rate_of_the_plan_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "load_embedder", lambda *_, **__: HashEmbedder())
    some = people("p", users=2, texts=1)
    plan = plan_of(some, some)

    def train(*_: object) -> None:
        raise TrainingError("the loss is not finite")

    with pytest.raises(TrainingError, match="not finite"):
        Measures(replace(plan, people=replace(plan.people, tuning=some))).of_best(
            job_in(tmp_path), train
        )
