"""CTCL's app: its settings against the paper's, and what they cost."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.catalogue import configuration_of
from flower_privsyn.generation.topics import load_topics
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.run.plan import plan_of
from flower_privsyn.strategies import CTCL

APP = Path(__file__).parents[2] / "baselines" / "ctcl"
NAMES = sorted(file.stem for file in (APP / "conf").glob("*.toml"))
REFERENCE = json.loads((Path(__file__).parents[1] / "data" / "noise_reference.json").read_text())
#: By file name: what table 9 prints for "Ours".
PRINTED = {
    f"{row['dataset'].lower().replace(' ', '-')}-eps-{row['eps_claimed']}": row
    for row in REFERENCE["gaussian_rows"]
    if row["paper"] == "CTCL" and "histogram_noise_multiplier" in row
}
#: The row of table 9 that the reference leaves out.
CHATS = 180_000
PRINTED |= {
    f"chatbot-arena-eps-{epsilon}": {
        "N": CHATS,
        "q": 4096 / CHATS,
        "delta": 1 / (CHATS * math.log(CHATS)),
        "sigma_printed": multiplier,
        "eps_claimed": epsilon,
    }
    for epsilon, multiplier in ((1, 5.08), (2, 2.57), (4, 1.48))
}


def settings(name: str | None = None, *changes: str) -> Any:
    return configuration_of(resolve_config(load_app(APP), config_name=name, settings=changes))


def test_every_cell_of_table_9_has_two_files() -> None:
    assert len(PRINTED) == 15
    assert set(NAMES) == {"cpu", *PRINTED, *(f"{name}-as-printed" for name in PRINTED)}


@pytest.mark.parametrize("name", PRINTED)
def test_the_paper_s_settings(name: str) -> None:
    row = PRINTED[name]
    ours, printed = settings(name), settings(f"{name}-as-printed")
    for config in (ours, printed):
        assert config.num_users == row["N"]
        assert config.delta == pytest.approx(row["delta"], rel=1e-5)
        assert config.sampling_of(row["N"]).rate == pytest.approx(row["q"], rel=1e-7)
        assert (config.num_rounds, config.clip_norm) == (2001, 1.0)
        assert config.first_noise_multiplier == 10.0
        assert config.train_on_eos == "samples"
        assert config.num_topics in load_topics().counts
    assert ours.epsilon == row["eps_claimed"]
    assert printed.noise_multiplier == row["sigma_printed"]


@pytest.mark.parametrize("name", [name for name in PRINTED if name.endswith("1")])
def test_what_table_9_costs_and_the_histogram_s_share_of_it(name: str) -> None:
    """The other cells: tests/privacy/test_published_numbers.py."""
    config = settings(f"{name}-as-printed")
    plan = plan_of(CTCL(config).method, config, population=config.num_users)
    whole = plan.epsilon()
    assert whole == pytest.approx(1.0, rel=0.054 if "yelp" in name else 0.02)
    if "eps_dp_accounting_pld" in PRINTED[name]:
        assert whole == pytest.approx(PRINTED[name]["eps_dp_accounting_pld"], rel=2e-4)
    histogram, training = plan.phases
    assert (histogram.noise_multiplier, training.rounds) == (10.0, 2000)
    alone = type(plan)(
        phases=(training,), delta=plan.delta, relation=plan.relation, accountant="pld"
    ).epsilon()
    assert alone < 0.99 * whole  # without the histogram it would be less
