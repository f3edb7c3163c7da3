"""A key is in the environment, and nowhere else."""

from __future__ import annotations

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation import OpenAIGenerator, load_generator
from flower_privsyn.generation.api_key import API_KEY_VARIABLE, check_generator, read_key, redact
from flower_privsyn.strategies import JointSketchConfig, POPriConfig, PrivateEvolutionConfig

KEY = "sk-proj-0123456789abcdefXYZ"


@pytest.mark.parametrize(
    "address",
    [
        f"https://{KEY}@host.example:8443/v1#model",
        f"https://user:{KEY}@host.example:8443/v1",
        f"https://host.example:8443/v1?api-key={KEY}#model",
        f"https://host.example:8443/v1#model?key={KEY}",
        f"HTTPS://user:{KEY}@host.example:8443/v1",
        f"Https://host.example:8443/v1?key={KEY}",
        f"https://host.example:8443/v1#m&key={KEY}",
        f"https://host.example:8443/v1#key={KEY}",
        f"  https://host.example:8443/v1#m;{KEY}",
        f"\thttps://user:{KEY}@host.example:8443/v1",
        f"ht\ntps://user:{KEY}@host.example:8443/v1",
    ],
)
def test_an_address_that_may_hold_a_key_is_refused_and_not_quoted(address: str) -> None:
    messages = []
    for config in (PrivateEvolutionConfig, POPriConfig, JointSketchConfig):
        with pytest.raises(ConfigError) as refused:
            config(epsilon=1.0, generator=address)  # type: ignore[arg-type]
        messages.append(str(refused.value))
    with pytest.raises(ConfigError) as refused:
        load_generator(address)
    messages.append(str(refused.value))
    assert len(set(messages)) == 1
    assert messages[0].startswith("generator = https://host.example:8443/v1 was given with a user")
    assert "PRIVSYN_API_KEY (generator-api-key-env)" in messages[0]
    if "#" not in address or "?" in address.partition("#")[0]:
        with pytest.raises(ConfigError) as direct:
            OpenAIGenerator(address.partition("#")[0], "model")
        messages.append(str(direct.value))
    assert not [message for message in messages if KEY[:6] in message]


@pytest.mark.parametrize(
    "address",
    [
        f"https://host.example/v1;key={KEY}",
        f"https://host.example/v1&{KEY}",
        f"https://host.example/key={KEY}",
        f"https:user:{KEY}@host.example",
        f"https:///user:{KEY}@host.example",
        f"https://user:{KEY}@[host.example",
    ],
)
def test_a_path_that_may_hold_a_key_is_not_shown(address: str) -> None:
    for check in (
        lambda: check_generator(address, API_KEY_VARIABLE),
        lambda: load_generator(address),
    ):
        with pytest.raises(ConfigError, match="which may hold a key") as refused:
            check()
        assert KEY[:6] not in str(refused.value)


def test_what_is_no_secret_is_taken() -> None:
    for name in (
        "privsyn-lm", "org/model", "http://h:1/v1", "HTTP://h:1/v1#org/m:8b-q4", "a@b", "a=b"
    ):  # fmt: skip
        check_generator(name, API_KEY_VARIABLE)


@pytest.mark.parametrize("value", [KEY, "", "lower_case", "A-B", "1A", "A B"])
def test_a_key_in_place_of_a_variables_name_is_refused_and_not_quoted(value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PrivateEvolutionConfig(epsilon=1.0, generator_api_key_env=value)
    message = str(refused.value)
    assert message.startswith("generator-api-key-env must be the name of an environment variable")
    assert not value or value not in message.replace("PRIVSYN_API_KEY", "")


def test_the_key_is_read_from_the_variable_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    monkeypatch.delenv("MY_KEY", raising=False)
    assert read_key(API_KEY_VARIABLE) is None
    with pytest.raises(ConfigError, match="= MY_KEY names an environment variable that is not set"):
        read_key("MY_KEY")
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")
    assert read_key("MY_KEY") == KEY
    for wrong in ("two words", "schlüssel", "a\tb"):
        monkeypatch.setenv("MY_KEY", wrong)
        with pytest.raises(ConfigError, match="MY_KEY holds no API key") as refused:
            read_key("MY_KEY")
        assert wrong not in str(refused.value)


def test_redacting_takes_out_the_key_and_its_pieces() -> None:
    assert redact("no key here", KEY) == "no key here"
    assert redact(f"bad {KEY}!", KEY) == "bad [api key]!"
    assert redact(f"{KEY} and {KEY}", KEY) == "[api key] and [api key]"
    assert redact(f"sent: {KEY[:9]}***{KEY[-7:]}", KEY) == "sent: [api key]***[api key]"
    assert redact(f"cut {KEY[:12]}", KEY) == "cut [api key]"
    assert redact("abc", "abc") == "[api key]"
    assert redact(f"text {KEY}", None) == f"text {KEY}"
