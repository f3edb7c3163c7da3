"""Every app of a method: its settings are its strategy's, all of them, and so is every file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.host.app import load_app, resolve_config, strategies_of
from flower_privsyn.host.launch import run_app
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies import (
    CLIENT_KEYS,
    CTCL,
    DPFTRL,
    AugPE,
    DPFedAvg,
    FreD,
    Hybrid,
    JointSketch,
    POPri,
    PrivateEvolution,
    PublicMidTraining,
)
from tests.support.run_files import releases

ROOT = Path(__file__).parents[2]

#: An app's strategy, and what it states otherwise than the strategy has it by itself; None where
#: that is a lot.
APPS: dict[str, tuple[type[PrivateSumStrategy], dict[str, Any] | None]] = {
    "baselines/aug-pe": (AugPE, None),
    "baselines/ctcl": (CTCL, {"epsilon": 4.0, "num_users": 1250}),
    "baselines/dp-fl": (DPFedAvg, {"epsilon": 1.29, "num_users": 1250}),
    "baselines/fred": (FreD, {"epsilon": 1.0}),
    "baselines/hybrid": (Hybrid, {"epsilon": 1.0}),
    "baselines/joint-sketch": (
        JointSketch,
        {
            **{"epsilon": 1.0, "held_out_fraction": 0.15, "temperature": 1.0, "top_p": 1.0},
            **{"best_of": 2, "generator_steps": 0, "prompt": "pre-text"},
        },
    ),
    "baselines/popri": (
        POPri,
        {"epsilon": 1.0, "num_users": 72_000, "temperature": 1.0, "top_p": 1.0},
    ),
    "baselines/pre-text": (PrivateEvolution, None),
    "baselines/public-mid-training": (PublicMidTraining, {"epsilon": 1.0}),
    "examples/own-data": (PrivateEvolution, None),
    "examples/quickstart": (JointSketch, None),
}
FILES = [
    pytest.param(ROOT / app, file.stem, id=f"{app}/{file.stem}")
    for app in APPS
    for file in sorted((ROOT / app / "conf").glob("*.toml"))
]


@pytest.mark.parametrize("name", APPS)
def test_the_app_declares_all_settings_of_its_strategy_and_no_other(name: str) -> None:
    app, (strategy, stated) = load_app(ROOT / name), APPS[name]
    values = resolve_config(app)
    # Not of another one, all of whose settings it may have as well.
    ((settings, found),) = strategies_of(app, values)
    assert found is strategy
    keys = strategy.config_class.keys()
    keys |= DPFTRL.config_class.keys() if found is DPFedAvg else set()
    assert set(values) - CLIENT_KEYS - {"strategy"} == keys
    if stated is not None:
        assert settings == strategy.config_class(**stated)


@pytest.mark.parametrize(("app", "name"), FILES)
def test_a_file_of_an_app_is_accepted(app: Path, name: str) -> None:
    loaded = load_app(app)
    ((settings, _),) = strategies_of(loaded, resolve_config(loaded, config_name=name))
    assert ("as-printed" in name) <= (settings.epsilon is None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "settings", "query", "result"),
    [
        ("dp-fl", "strategy=dp-fedavg local-steps=1", "model_delta", "models/final"),
        ("dp-fl", "strategy=dp-ftrl local-steps=1 min-separation=2", "model_delta", "models/final"),
        *(
            (
                "popri",
                f"strategy={strategy} generator=privsyn-lm num-prompts=6 responses-per-prompt=3 "
                "rejected-rank=3 training-epochs=1 synthetic-samples=10",
                "mean_similarity",
                "rounds/0002/adapter",
            )
            for strategy in ("popri", "pe-sft")
        ),
    ],
    ids=["dp-fedavg", "dp-ftrl", "popri", "pe-sft"],
)
def test_it_runs_on_the_sample(
    tmp_path: Path, name: str, settings: str, query: str, result: str
) -> None:
    app = load_app(ROOT / "baselines" / name)
    values = resolve_config(app, config_name="cpu", settings=["num-rounds=2", *settings.split()])
    assert run_app(app, tmp_path / "run", values).error is None
    charged = releases(tmp_path / "run")
    assert [line["query"] for line in charged] == [query] * 2
    assert charged[-1]["epsilon_release"] == pytest.approx(7.0, rel=1e-3)
    assert list((tmp_path / "run" / result).glob("*.safetensors"))
    state = json.loads((tmp_path / "run" / "state.json").read_text())
    assert state["status"] == "finished"
