"""A key is in the environment, and nowhere else."""

from __future__ import annotations

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation import OpenAIGenerator, load_generator
from flower_privsyn.generation.openai_backend import read_key
from flower_privsyn.strategies import PrivateEvolutionConfig

KEY = "sk-proj-0123456789abcdefXYZ"


@pytest.mark.parametrize(
    "address",
    [
        f"https://{KEY}@host.example:8443/v1#model",
        f"https://user:{KEY}@host.example:8443/v1",
        f"https://host.example:8443/v1?api-key={KEY}#model",
        f"https://host.example:8443/v1#model?key={KEY}",
        f"HTTPS://user:{KEY}@host.example:8443/v1",
        f"https://host.example:8443/v1#m&key={KEY}",
        f"  https://host.example:8443/v1#m;{KEY}",
        f"\thttps://user:{KEY}@host.example:8443/v1",
        f"ht\ntps://user:{KEY}@host.example:8443/v1",
        f"https://host.example/v1;key={KEY}",
        f"https://host.example/key={KEY}",
        f"https:user:{KEY}@host.example",
        f"https:///user:{KEY}@host.example",
        f"https://user:{KEY}@[host.example",
    ],
)
def test_an_address_that_may_hold_a_key_is_refused_and_not_quoted(address: str) -> None:
    for make in (
        lambda: PrivateEvolutionConfig(epsilon=1.0, generator=address),
        lambda: load_generator(address),
        lambda: OpenAIGenerator(address, "model"),
    ):
        with pytest.raises(ConfigError, match="PRIVSYN_API_KEY") as said:
            make()
        assert KEY[:6] not in str(said.value)


def test_what_is_no_secret_is_taken() -> None:
    for name in (
        "privsyn-lm", "org/model", "http://h:1/v1", "HTTP://h:1/v1#org/m:8b-q4", "a@b", "a=b"
    ):  # fmt: skip
        PrivateEvolutionConfig(epsilon=1.0, generator=name)


def test_the_key_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIVSYN_API_KEY", raising=False)
    assert read_key() is None
    for wrong in ("two words", "schlüssel", "a\tb"):
        monkeypatch.setenv("PRIVSYN_API_KEY", wrong)
        with pytest.raises(ConfigError, match="PRIVSYN_API_KEY") as refused:
            read_key()
        assert wrong not in str(refused.value)
    monkeypatch.setenv("PRIVSYN_API_KEY", f" {KEY}\n")
    assert read_key() == KEY
    made = load_generator("http://127.0.0.1:9/v1/#owner/name")
    assert isinstance(made, OpenAIGenerator)
    assert made.name == "owner/name at http://127.0.0.1:9/v1"
    assert made._client.api_key == KEY
