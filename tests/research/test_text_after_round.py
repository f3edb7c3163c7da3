"""A POPri run's text after one of its rounds is its generator's, by that round's adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.files import read_json_lines
from flower_privsyn.models import resolve_model
from flower_privsyn.strategies import POPriConfig
from flower_privsyn.training.preference import train_preferences
from flower_privsyn.training.preference_settings import PreferencePair, PreferenceTraining
from research.text_after_round import main


@pytest.mark.slow
def test_each_round_writes_its_own(tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    config = POPriConfig(epsilon=1.0, generator="privsyn-tiny", max_new_tokens=8)
    values = {key.replace("_", "-"): value for key, value in vars(config).items()}
    (run / "rounds" / "0001").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"config": values}))
    pair = PreferencePair(prompt="The town", chosen=" lies on a river.", rejected=" lay")
    train_preferences(
        resolve_model("privsyn-tiny"),
        [pair] * 4,
        adapter=None,
        output=run / "rounds" / "0001" / "adapter",
        settings=PreferenceTraining(
            learning_rate=0.05, training_batch_size=4, training_micro_batch_size=4
        ),
        seed=0,
    )
    found: list[list[str]] = []
    for number in (0, 1, 0):
        output = tmp_path / f"{len(found)}.jsonl"
        assert main([str(run), str(number), "--samples", "3", "--output", str(output)]) == 0
        lines = list(read_json_lines(output))
        assert [line["round"] for line in lines] == [number] * 3
        found.append([line["text"] for line in lines])
    assert found[0] == found[2] != found[1]
    assert f"3 texts after round {number}" in capsys.readouterr().out


def test_a_round_that_was_not_is_named(tmp_path: Path, capsys: Any) -> None:
    config = POPriConfig(epsilon=1.0, generator="privsyn-tiny", max_new_tokens=8)
    values = {key.replace("_", "-"): value for key, value in vars(config).items()}
    (tmp_path / "config.json").write_text(json.dumps({"config": values}))
    words = [str(tmp_path), "7", "--samples", "1", "--output", str(tmp_path / "texts.jsonl")]
    assert main(words) == 2
    assert str(tmp_path / "rounds" / "0007" / "adapter") in capsys.readouterr().err
