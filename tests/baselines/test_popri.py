"""The POPri app: its settings, and the three methods it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flower_privsyn.catalogue import configuration_of
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.strategies import POPriConfig

APP = Path(__file__).parents[2] / "baselines" / "popri"
ROWS = [
    row
    for row in json.loads((APP.parents[1] / "tests/data/noise_reference.json").read_text())[
        "gaussian_rows"
    ]
    if row["paper"] == "POPri" and row["T"] == 20
]
NAMES = sorted(file.stem for file in (APP / "conf").glob("*.toml"))


@pytest.mark.parametrize("name", NAMES)
def test_named_settings_are_accepted(name: str) -> None:
    values = resolve_config(load_app(APP), config_name=name)
    config = configuration_of(values)
    assert isinstance(config, POPriConfig)
    if name.startswith("cpu"):
        assert values["data"] == "sample"
        assert config.generator == ("gemma-3-270m" if name == "cpu-gemma" else "smollm2-135m")
        return
    data, participation, _, epsilon = name.removesuffix("-as-printed").split("-")
    users = {"biorxiv": 72000, "congress": 133000}[data]
    assert (config.num_users, config.num_rounds, config.delta) == (users, 20, 3e-6)
    assert (config.num_prompts, config.responses_per_prompt, config.rejected_rank) == (1800, 10, 5)
    assert config.learning_rate == 8e-7
    expected = users if participation == "full" else 1000
    assert config.sampling_of(users).expected_users == pytest.approx(expected)
    if name.endswith("-as-printed"):
        printed = ("rdp", 0, "none", "clip", "candidates")
        assert printed == (
            config.accountant,
            config.max_samples,
            config.similarity().centre,
            config.scale,
            config.answer_space,
        )
        assert (config.lora_rank, config.lora_alpha, config.training_epochs) == (4, 8, 2)
        # What Table 3 costs: tests/privacy/test_published_numbers.py.
        (row,) = [
            row
            for row in ROWS
            if (row["total_clients"], row["clients_per_round"]) == (users, expected)
            and row["eps_claimed"] == int(epsilon)
        ]
        assert config.noise_multiplier == row["sigma_printed"]
    else:
        assert config.epsilon == float(epsilon)
        assert (config.similarity().centre, config.answer_space) == ("prompt", "span")


def test_every_reported_setting_has_a_file() -> None:
    wanted = {
        f"{data}-{participation}-eps-{epsilon}{reading}"
        for data in ("biorxiv", "congress")
        for participation in ("full", "1000")
        for epsilon in ("1", "7")
        for reading in ("", "-as-printed")
    }
    assert set(NAMES) == wanted | {"cpu", "cpu-gemma"}
