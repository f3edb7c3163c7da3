"""Runs whose bytes can be compared: draws and releases that repeat, and a clock that stands."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flower_privsyn import files
from flower_privsyn.privacy import InsecureRandom, correlated_noise
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies import ReleasedSum

CREATED = "2026-01-02T03:04:05+00:00"


CREATED_SECONDS = 1767323045.0


class Repeating(InsecureRandom):
    """The same draws in every run, which the ledger is told are secret."""

    secure = True


@pytest.fixture
def same_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a round releases is a vector of the round's own, whoever wrote what."""
    release = PrivateSumStrategy._release

    def fixed(self: Any, asked: Any, replies: Any) -> tuple[ReleasedSum | None, Any]:
        released, counts = release(self, asked, replies)
        if released is None:
            return None, counts
        values = np.random.default_rng(asked.spec.round).standard_normal(len(released.values))
        return replace(released, values=np.rint(values * 2**30) / 2**30), counts

    monkeypatch.setattr(PrivateSumStrategy, "_release", fixed)
    # The name of the stream of correlated noise, random for nothing but to be another every time.
    monkeypatch.setattr(
        correlated_noise, "secrets", SimpleNamespace(token_hex=lambda n: "5" * 2 * n)
    )


def stop(monkeypatch: pytest.MonkeyPatch, step: float = 0.0) -> None:
    """Stop the clock, or have it jump whenever somebody looks; runs are all created at once."""
    moments: Iterator[float] = itertools.count(0.0, step)
    monkeypatch.setattr(files, "now", lambda: CREATED)
    monkeypatch.setattr(files, "seconds", lambda: next(moments))
