"""What a server is sent beside the settings."""

from __future__ import annotations

from typing import Any

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation import SamplingParameters
from flower_privsyn.generation.extra_parameters import read_extra_parameters
from flower_privsyn.strategies import JointSketchConfig, POPriConfig, PrivateEvolutionConfig
from flower_privsyn.strategies.more_text import MoreText
from tests.support.generation_server import Server

KEY = "generator-parameters"
SETTINGS: tuple[Any, ...] = (PrivateEvolutionConfig, POPriConfig, JointSketchConfig)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("top_k=20", "generator-parameters must be a JSON object: Expecting value"),
        ("[1]", "must be a JSON object, got a list"),
        ('{"model": "m"}', "must not hold 'model': requests are the package's own"),
        ('{"top_k": NaN}', "must be a JSON object: NaN is no number of JSON"),
        ('{"a": "\\ud800"}', "must be a JSON object: half a character in it"),
        ('{"temperature": 0.5}', "'temperature' but as null.* its value is of temperature"),
        ('{"n": 2}', "'n' but as null.* its value is of the method"),
        ('{"api-key": "hidden0"}', "holds 'api-key', and would be written into the run directory"),
        ('{"key": "hidden0"}', "holds 'key'"),
        ('{"a": [{"X_API_Key": "hidden0"}]}', "generator-api-key-env names"),
        ('{"extra_headers": {"Authorization": "hidden0"}}', "holds 'Authorization'"),
    ],
)
def test_what_is_not_to_be_sent_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        read_extra_parameters(KEY, text)
    assert "hidden0" not in str(refused.value)


def test_a_key_that_stands_in_its_place_is_not_quoted() -> None:
    with pytest.raises(ConfigError) as refused:
        read_extra_parameters(KEY, "sk-0123456789")
    assert "sk-0" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_refuse_them_where_no_server_writes(settings: Any) -> None:
    address = "http://a:1/v1#m"
    named = {"training_model": "privsyn-lm"} if settings is POPriConfig else {}
    settings(epsilon=1.0, generator=address, generator_parameters='{"top_k": 1}', **named)
    usual = "smollm2-135m" if settings is JointSketchConfig else "privsyn-lm"
    with pytest.raises(ConfigError, match=f'to a server, which generator = "{usual}" is not'):
        settings(epsilon=1.0, generator_parameters='{"top_k": 1}')
    with pytest.raises(ConfigError, match="must be a JSON object"):
        settings(epsilon=1.0, generator=address, generator_parameters="{", **named)


def test_they_are_sent_and_null_leaves_out(server: Server) -> None:
    server.misbehave = lambda path, body, number: (
        200,
        {"choices": [{"text": " ".join(sorted(body))}]},
    )
    settings = MoreText(
        generator=f"{server.url}#tiny",
        generator_parameters='{"top_k": 7, "seed": null, "stop": null, "max_completion_tokens": 3}',
    )
    generator = settings.load_generator()
    sampling = SamplingParameters(seed=1, stop=("END",))
    ((text,),) = generator.generate(["a"], sampling=sampling)
    assert text == ("max_completion_tokens max_tokens model n prompt temperature top_k top_p")
    (_, body, _) = server.requests[-1]
    assert (body["top_k"], body["max_completion_tokens"]) == (7, 3)
