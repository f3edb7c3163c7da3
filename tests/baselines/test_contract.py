"""Every app of a method: its settings are its strategy's, and so is every file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import get_fused_config_from_dir, parse_config_args

from flower_privsyn.catalogue import configuration_of
from flower_privsyn.host.app import load_app, resolve_config, strategy_of_app
from flower_privsyn.host.launch import run_app
from flower_privsyn.run.method import need
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies import (
    CTCL,
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


#: All that is shipped: each shows what people change, and takes all else in `settings`.
SHIPPED = sorted(
    str(file.parent.relative_to(ROOT))
    for room in ("baselines", "examples")
    for file in (ROOT / room).glob("*/pyproject.toml")
)


@pytest.mark.parametrize("name", SHIPPED)
def test_an_app_shows_at_most_twenty_keys(name: str) -> None:
    app = load_app(ROOT / name)
    assert len(app.defaults) <= 20
    assert app.takes("temperature") or name == "examples/existing-federation"


@pytest.mark.parametrize("name", APPS)
def test_the_app_configures_its_strategy(name: str) -> None:
    app, (strategy, stated) = load_app(ROOT / name), APPS[name]
    settings, found = need(strategy_of_app(app, resolve_config(app)))
    assert found is strategy
    if stated is not None:
        assert settings == strategy.config_class(**stated)


@pytest.mark.parametrize(("app", "name"), FILES)
def test_a_file_of_an_app_is_the_same_run_by_either_command(app: Path, name: str) -> None:
    loaded = load_app(app)
    settings, _ = need(strategy_of_app(loaded, resolve_config(loaded, config_name=name)))
    assert ("as-printed" in name) <= (settings.epsilon is None)
    by_flower = parse_config_args([str(app / "conf" / f"{name}.toml")])
    assert configuration_of(get_fused_config_from_dir(app, by_flower)) == settings


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "settings", "query", "result"),
    [
        ("dp-fl", "local-steps=1", "model_delta", "models/final"),
        ("dp-fl", "strategy=dp-ftrl min-separation=2 local-steps=1", "model_delta", "models/final"),
        *(
            (
                "popri",
                f"loss={loss} generator=privsyn-lm num-prompts=6 responses-per-prompt=3 "
                "rejected-rank=3 training-epochs=1 synthetic-samples=10",
                "mean_similarity",
                "rounds/0002/adapter",
            )
            for loss in ("dpo", "sft")
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
