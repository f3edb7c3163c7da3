"""The Aug-PE app: its settings against the authors', and its labelled sample."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.catalogue import configuration_of
from flower_privsyn.comparison.people import sealed
from flower_privsyn.data import load_users
from flower_privsyn.data.users import check_labels
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.privacy import FullParticipation, Release, release_epsilon
from flower_privsyn.strategies import AugPEConfig

APP = Path(__file__).parents[2] / "baselines" / "aug-pe"
SAMPLE = APP / "aug_pe" / "sample" / "users.jsonl"
NAMES = sorted(file.stem for file in (APP / "conf").glob("*.toml"))
DATA = ("pubmed", "openreview", "yelp")


def settings(name: str | None = None) -> AugPEConfig:
    found = configuration_of(resolve_config(load_app(APP), config_name=name))
    assert isinstance(found, AugPEConfig)
    return found


def test_the_app_states_the_authors_settings() -> None:
    found = settings()
    assert (found.num_rounds, found.num_variations, found.lookahead) == (10, 7, 0)
    assert (found.variation, found.max_samples) == ("style", 1)


def test_every_row_has_a_file() -> None:
    kinds = ("", "-gpt-3.5")
    rows = {f"{data}{kind}-eps-{e}" for data in DATA for kind in kinds for e in (1, 2, 4)}
    assert set(NAMES) == rows | {"cpu", "cpu-gemma"}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("epsilon", ["1", "2", "4"])
def test_rows_of_open_models_cost_what_is_printed(data: Any, epsilon: Any) -> None:
    found = settings(f"{data}-eps-{epsilon}")
    assert found.num_candidates == 7 * {"yelp": 5000}.get(data, 2000)
    assert found.delta == pytest.approx(1 / (found.num_users * math.log(found.num_users)), rel=1e-3)
    noise = Release(noise_multiplier=found.noise_multiplier or 0, sampling=FullParticipation())
    spent = release_epsilon({noise: found.num_rounds}, delta=found.delta)
    assert spent == pytest.approx(float(epsilon), rel=0.01)


@pytest.mark.parametrize("data", DATA)
def test_rows_of_gpt_fill_blanks_by_messages(data: str) -> None:
    found, base = settings(f"{data}-gpt-3.5-eps-2"), settings(f"{data}-eps-2")
    assert (found.num_candidates // 4, found.num_variations) == (base.num_candidates // 7, 4)
    assert (found.variation, found.generator_interface) == ("fill-blanks", "chat")
    assert found.noise_multiplier == base.noise_multiplier
    # Their code draws the words about those of the text by the share of blanks times a scale.
    scale = {"yelp": 40, "openreview": 60, "pubmed": 60}[data]
    assert found.word_spread == pytest.approx(found.blank_fraction * scale)


def test_the_classes_of_yelp_are_categories_and_stars() -> None:
    found = settings("yelp-eps-1")
    assert len(found.class_names) == 50
    assert "Business Category: Bars | Review Stars: 4.0" in found.class_names
    assert dict(found.node_settings)["label-column"] == "label1,label2"


@pytest.mark.parametrize("name", ["cpu", "cpu-gemma"])
def test_the_sample_has_every_class_and_nobody_sealed(name: str) -> None:
    users = load_users(SAMPLE, label_column="label")
    assert dict(settings(name).node_settings)["data"] == "sample"
    counts = Counter(users.labels)
    assert set(counts) == set(settings(name).class_names)
    assert set(counts.values()) == {300}
    assert not sealed(users.user_ids).any()
    check_labels([users], settings(name).class_names)
    rows = [json.loads(line) for line in SAMPLE.read_text().splitlines()[:3]]
    assert all(set(row) == {"client_id", "date", "text", "label"} for row in rows)
