"""Wrong settings and pairs are refused with the key, the value and what is allowed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.training.preference_settings import PreferenceTraining


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": "kto"}, 'loss must be one of "dpo", "ipo", "sft", got \'kto\''),
        ({"beta": float("nan")}, "beta must be a number above 0, got nan"),
        ({"lora_alpha": True}, "lora_alpha must be a whole number of at least 1, got True"),
        ({"training_epochs": 1.5}, "training_epochs must be a whole number of at least 1, got 1.5"),
        (
            {"precision": "half"},
            'precision must be one of "auto", "float32", "bfloat16", got \'half\'',
        ),
    ],
)
def test_settings_out_of_range(changes: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        PreferenceTraining(**changes)


def test_the_defaults_are_the_papers():
    settings = PreferenceTraining()
    assert (settings.lora_rank, settings.lora_alpha) == (4, 8)
    assert (
        settings.training_batch_size,
        settings.training_epochs,
        settings.learning_rate_schedule,
    ) == (24, 2, "cosine")
    assert 3e-7 <= settings.learning_rate <= 8e-7
    assert settings.reference == "base"
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.beta = 1.0  # type: ignore[misc]
