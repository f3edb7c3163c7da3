"""Wrong settings and pairs are refused with the key, the value and what is allowed."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.training import PreferencePair, PreferenceTraining


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": "kto"}, 'loss must be one of "dpo", "ipo", "sft", got \'kto\''),
        ({"beta": 0.0}, "beta must be a number above 0, got 0.0"),
        ({"beta": float("nan")}, "beta must be a number above 0, got nan"),
        ({"lora_rank": 0}, "lora_rank must be a whole number of at least 1, got 0"),
        ({"lora_alpha": True}, "lora_alpha must be a whole number of at least 1, got True"),
        ({"learning_rate": -1e-6}, "learning_rate must be a number above 0, got -1e-06"),
        ({"schedule": "linear"}, 'schedule must be one of "cosine", "constant", got \'linear\''),
        ({"warmup_steps": -1}, "warmup_steps must be a whole number of at least 0, got -1"),
        ({"epochs": 1.5}, "epochs must be a whole number of at least 1, got 1.5"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"micro_batch_size": 0}, "micro_batch_size must be a whole number of at least 1, got 0"),
        ({"max_tokens": 1}, "max_tokens must be a whole number of at least 2, got 1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1, got 0"),
        ({"reference": "other"}, 'reference must be one of "base", "previous", got \'other\''),
        ({"device": "tpu"}, 'device must be one of "auto", "cpu", "cuda", got \'tpu\''),
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
    assert (settings.batch_size, settings.epochs, settings.schedule) == (24, 2, "cosine")
    assert 3e-7 <= settings.learning_rate <= 8e-7
    assert settings.reference == "base"
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.beta = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": ""}, "prompt must not be empty"),
        ({"chosen": ""}, "chosen must not be empty"),
        ({"rejected": None}, "rejected must be text, got None"),
        ({"rejected": "a"}, "chosen and rejected must differ"),
        ({"chosen_end": 5}, "chosen_end must be text, got 5"),
    ],
)
def test_wrong_pairs(changes: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        PreferencePair(**{"prompt": "p", "chosen": "a", "rejected": "b", **changes})


def test_importing_the_package_loads_no_heavy_library():
    script = (
        "import sys, flower_privsyn.training\n"
        "print(sorted({'torch', 'transformers', 'trl', 'peft', 'datasets'} & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"
