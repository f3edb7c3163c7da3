"""What POPri takes for settings, refuses before it spends, and lets only research have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import (
    FixedSizeSampling,
    FullParticipation,
    NeighboringRelation,
    PoissonSampling,
    Sampling,
)
from flower_privsyn.privacy.accounting import Release, release_epsilon
from flower_privsyn.strategies import POPriConfig
from flower_privsyn.strategies.popri import PRINTED_NOISE_MULTIPLIERS
from tests.support.popri import small_popri

Builder = Callable[..., Any]
REFERENCE = Path(__file__).parents[1] / "data" / "noise_reference.json"


@pytest.fixture
def config(tmp_path: Path, public_file: Path) -> Callable[..., POPriConfig]:
    """Settings of a small run; keyword arguments replace them."""
    return small_popri(tmp_path / "run", public_file)


def rdp_epsilon(config: POPriConfig, sampling: Sampling) -> float:
    """What the settings cost by Renyi accounting, as the paper has it."""
    release = Release(
        noise_multiplier=float(config.noise_multiplier or 0.0),
        sampling=sampling,
        relation=NeighboringRelation.ZERO_OUT,
    )
    return release_epsilon(
        {release: config.num_rounds}, delta=config.delta, accountant=config.accountant
    )


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"rejected_rank": 6}, "rejected-rank = 6 .*responses-per-prompt = 5"),
            ({"checkpoint": "fred", "num_rounds": 1}, "num-rounds.*at least 2"),
            ({"generator": "http://localhost:8000/v1"}, "training-model"),
            ({"generator": "gguf:model.gguf"}, "loads no adapters"),
        ],
    )
    def test_bad_ones_are_named(self, config: Builder, changes: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            config(**changes)

    def test_the_model_to_train(self, config: Builder) -> None:
        assert config().model_to_train == "privsyn-lm"
        assert config(generator="/models/llama").model_to_train == "/models/llama"
        served = config(generator="http://h:1/v1#m", training_model="/models/llama")
        assert served.model_to_train == "/models/llama"

    def test_presets(self) -> None:
        ours = POPriConfig(epsilon=1.0)
        assert (ours.num_rounds, ours.num_prompts, ours.responses_per_prompt) == (20, 1800, 10)
        printed = POPriConfig.popri_as_printed(epsilon="1")
        assert (printed.centre, printed.scale, printed.answer_space) == (
            "none",
            "clip",
            "candidates",
        )
        assert (printed.lora_rank, printed.lora_alpha, printed.learning_rate) == (4, 8, 8e-7)
        coded = POPriConfig.popri_as_coded(epsilon="7", participation="1000-of-72000")
        assert (coded.sampling, coded.sample_size) == ("fixed-size", 1000)
        assert (coded.centre, coded.scale, coded.beta) == ("all", "unit", 0.01)
        with pytest.raises(ConfigError, match="epsilon and participation"):
            POPriConfig.popri_as_printed(epsilon="3")  # type: ignore[arg-type]

    def test_printed_noise_multipliers_give_the_printed_epsilons(self) -> None:
        rows = [
            row
            for row in json.loads(REFERENCE.read_text())["gaussian_rows"]
            if row["paper"] == "POPri" and row["T"] == 20
        ]
        for (epsilon, participation), multiplier in PRINTED_NOISE_MULTIPLIERS.items():
            config = POPriConfig.popri_as_printed(epsilon=epsilon, participation=participation)  # type: ignore[arg-type]
            population = 72000 if participation == "full" else int(participation.split("-of-")[1])
            cohort = population if participation == "full" else 1000
            row = next(
                row
                for row in rows
                if (row["total_clients"], row["clients_per_round"]) == (population, cohort)
                and row["eps_claimed"] == int(epsilon)
            )
            assert row["sigma_printed"] == multiplier
            sampling = config.sampling_of(population)
            expected = PoissonSampling if cohort < population else FullParticipation
            assert isinstance(sampling, expected)
            assert sampling.expected_users == pytest.approx(cohort)
            found = rdp_epsilon(config, sampling)
            assert found == pytest.approx(row["eps_opacus_rdp"], rel=0.01)

    def test_cohorts_of_a_fixed_size_cost_more_than_printed(self) -> None:
        config = POPriConfig.popri_as_coded(epsilon="1", participation="1000-of-72000")
        sampling = config.sampling_of(72000)
        assert isinstance(sampling, FixedSizeSampling)
        assert rdp_epsilon(config, sampling) > 1.0
