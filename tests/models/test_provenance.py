"""A model that has learnt private text says so in its folder, and no run begins with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.cli import main
from flower_privsyn.errors import ConfigError
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.models import provenance
from flower_privsyn.run import RunDirectory
from flower_privsyn.training.causal import CausalTraining, fine_tune
from flower_privsyn.training.distillation import Distillation

TEXTS = ["my diagnosis is nobody's business but my doctor's and mine"] * 4
SETTINGS = CausalTraining(max_steps=1, batch_size=2)


def trained(folder: Path, stamp: str) -> Path:
    fine_tune("privsyn-tiny", TEXTS, settings=SETTINGS, output=folder, seed=0, stamp=stamp)
    return folder


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    return trained(tmp_path / "ceiling", STAMP)


def test_only_what_is_marked_is_refused(marked: Path, tmp_path: Path) -> None:
    said = f'initial-model = "{marked}" has learnt private text outside of any budget'
    with pytest.raises(ConfigError, match=said):
        provenance.refuse({"initial-model": str(marked)})
    other = trained(tmp_path / "public", "")
    assert not (other / provenance.FILE).exists()
    texts = ("some/model", "http://127.0.0.1:1/v1", "~nobody-here says hello", "text " * 2000, "")
    for name in (str(other), "privsyn-tiny", *texts):
        provenance.refuse({"epsilon": 1.0, "of-a-method-from-outside": name})


def test_what_is_trained_of_it_is_marked_too(marked: Path, tmp_path: Path) -> None:
    texts, settings = ["a town and its river"] * 20, CausalTraining(max_steps=1)
    student, taught = tmp_path / "student", tmp_path / "taught"
    fine_tune(marked, texts, settings=settings, output=student, seed=0)
    teacher = Distillation(str(marked))
    model = "privsyn-tiny"
    fine_tune(model, texts, settings=settings, output=taught, seed=0, distillation=teacher)
    assert provenance.stamp_of(str(student)) == provenance.stamp_of(str(taught)) == STAMP


def test_a_run_stops_before_anything_is_spent(
    federation: Callable[..., Any],
    settings: Callable[..., Any],
    evolution: Callable[..., Any],
    marked: Path,
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="generator = .* has learnt private text"):
        evolution(settings(generator=str(marked)), generator=None).start(federation())
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_more_text_is_not_written_by_it(
    marked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path / "run", config={"generator": "privsyn-lm"}, strategy="x")
    run.write_synthetic([{"text": "one", "round": 1, "parent": None, "source": "x"}])
    run.mark_running()
    run.mark_finished()
    run.unlock()
    assert main(["expand", str(run.path), "--samples", "2", "--set", f"generator={marked}"]) == 2
    assert f'generator = "{marked}" has learnt private text' in capsys.readouterr().err
