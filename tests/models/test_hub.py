"""hub_unreachable: a reason in a few words, and quickly."""

from __future__ import annotations

import socket
import time

import pytest

from flower_privsyn.models.hub import hub_unreachable


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_ENDPOINT", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("1", "true", "ON", "Yes"):
        monkeypatch.setenv("HF_HUB_OFFLINE", value)
        assert hub_unreachable() == f"HF_HUB_OFFLINE={value}"


def test_no_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(host: str, port: int) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert hub_unreachable() == "huggingface.co does not resolve"
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example:8080/hub")
    assert hub_unreachable() == "mirror.example does not resolve"


def test_a_resolver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: time.sleep(30))
    assert hub_unreachable(timeout=0.05) == "huggingface.co does not resolve"
