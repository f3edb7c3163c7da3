"""The app of public mid-training: its settings against the library's, and the paper's rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.catalogue import configuration_of
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.privacy import Release, release_epsilon

APP = Path(__file__).parents[2] / "baselines" / "public-mid-training"
NAMES = sorted(file.stem for file in (APP / "conf").glob("*.toml"))
PRINTED = [name for name in NAMES if name.startswith("table-")]


def settings(name: str | None = None, *changes: str) -> Any:
    return configuration_of(resolve_config(load_app(APP), config_name=name, settings=changes))


def test_every_row_of_the_tables_has_a_file() -> None:
    rows = (
        "none",
        "before-all",
        "before-1-percent-distilled",
        "before-0.08-percent-distilled",
        "middle",
        "middle-distilled",
        "middle-matched",
    )
    wanted = {f"table-2-{row}-{model}" for row in rows for model in ("lstm", "transformer")}
    wanted |= {f"table-3-without-public-{model}" for model in ("lstm", "transformer")}
    # 0 and 800 rounds of Table 4 are those of Tables 5 and 2; Table 1 is of Table 2.
    wanted |= {f"table-4-{number}" for number in (400, 1200, 1600)}
    wanted |= {f"table-5-{number}" for number in (0, 400, 800, 1200)}
    assert {re.sub("-eps-[0-9.]+$", "", name) for name in PRINTED} == wanted
    assert len(PRINTED) == 2 * len(wanted)


@pytest.mark.parametrize("name", PRINTED)
def test_rows_are_as_printed(name: str) -> None:
    config = settings(name)
    printed = name.rpartition("-")[2]
    phase = config.phase(342_000, asks=(config.question(config.clip_norm),))
    assert (phase.rounds, phase.sampling.expected_users) == (1600, 100)
    release = Release(
        noise_multiplier=(phase.noise_multiplier or 0.0) / phase.sensitivity,
        sampling=phase.sampling,
    )
    found = release_epsilon([release], delta=config.delta, accountant=config.accountant)
    assert f"{found:.2f}" == printed
    if name.startswith("table-2-none"):  # the exact cost of what is printed by Rényi
        exact = release_epsilon([release], delta=config.delta, accountant="pld")
        assert exact == pytest.approx({"1.77": 1.6487, "18.71": 17.6668}[printed], rel=2e-3)
    place: dict[str, Any] = {
        "none": None,
        "before": 0,
        "middle": 800,
        "without": 800,
        "400": 400,
        "800": 800,
        "1200": 1200,
        "1600": None,
        "0": 0,
    }
    assert config.rounds_before == place[name.split("-")[2]]
    assert ("1600" in name) == (config.position == "after")
    shared = (config.max_tokens, config.max_samples, config.local_batch_size, config.local_steps)
    assert shared == (20, 256, 16, 0)
    assert config.least_row_tokens == 1
    if config.position != "none" and config.teacher:
        assert config.teacher_top_k == 10
    distilled = "distilled" in name or "matched" in name or re.match("table-[34]", name)
    if config.position != "none":
        assert bool(config.teacher) == bool(distilled)
        share = 1.0 if "all" in name else 0.01 if "1-percent" in name else 0.0008
        assert config.public_rows == "all" or config.select_share == share
        matched = "matched" in name or name.startswith(("table-3", "table-4"))
        assert (config.public_rows == "matched") == matched
        assert config.scores_by_public_model == (matched and "without-public" not in name)
