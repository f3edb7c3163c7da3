"""Sampling parameters and the checks every generator shares."""

from __future__ import annotations

import pytest

from flower_privsyn.errors import ConfigError, GenerationError
from flower_privsyn.generation import SamplingParameters
from flower_privsyn.generation.backends import check_texts


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("seed", -1),
        ("seed", True),
        ("max_new_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", None),
        ("stop", "abc"),
        ("stop", ("",)),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(setting: str, value: object):
    settings = {"seed": 0, setting: value}
    with pytest.raises(ConfigError) as caught:
        SamplingParameters(**settings)
    assert setting in str(caught.value)
    assert repr(value) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_texts_must_be_a_sequence_of_strings():
    with pytest.raises(GenerationError, match="one string"):
        check_texts("prompts", "a prompt")
    with pytest.raises(GenerationError, match=r"prompts\[1\] must be a string, got NoneType"):
        check_texts("prompts", ["a", None])
