"""Strategies that only ask and keep what is released, with their settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from flower_privsyn.messages import wire
from flower_privsyn.queries import NearestNeighborHistogram, Query
from flower_privsyn.run import RunDirectory
from flower_privsyn.strategies import (
    DPFTRLConfig,
    Method,
    PrivateSumConfig,
    PrivateSumStrategy,
    Question,
    RecordSource,
    ReleasedSum,
    RunContext,
    State,
)
from flower_privsyn.testing import HashEmbedder, LoopbackGrid
from tests.support.questions import asked_round
from tests.support.small_runs import small_run


class Killed(BaseException):
    """Stands for SIGKILL: nothing may clean up after it."""


def killed_at(number: int) -> Callable[..., None]:
    """`RunDirectory.finish_round` of a process that dies in it, in one round."""
    finish = RunDirectory.finish_round

    def die(run: RunDirectory, round_number: int, *given: Any) -> None:
        if round_number == number:
            raise Killed
        finish(run, round_number, *given)

    return die


def dying_in(*numbers: int) -> Callable[[Message, Message], list[Message]]:
    """What a process meets that dies while a round is asked; none for any round."""

    def die(request: Message, reply: Message) -> list[Message]:
        number = asked_round(request)
        if number in numbers or not (numbers or number is None):
            raise Killed
        return [reply]

    return die


class ProbeMethod(Method):
    """Asks the same votes in every round and keeps what is released."""

    def __init__(self, config: PrivateSumConfig, *, candidates: int = 20) -> None:
        self.config = config
        generator = np.random.default_rng(0)
        self.candidates = generator.standard_normal((candidates, 32)).astype(np.float32)
        self.released: list[ReleasedSum] = []
        self.before_update: Callable[[], None] = lambda: None

    @property
    def queries(self) -> tuple[Query, ...]:
        return (NearestNeighborHistogram(max_samples=self.config.max_samples),)

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        self.place = place
        embedder = HashEmbedder()
        return (RecordSource(fingerprint=embedder.fingerprint, dimension=embedder.dimension),)

    def ask(self, state: State, number: int) -> Question:
        return Question(self.queries[0], {"candidates": self.candidates})

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:
        self.before_update()
        self.released.append(release)
        return state

    def finish(self, state: State) -> dict[str, Any]:
        return {}


class Probe(PrivateSumStrategy):
    """A strategy around a `ProbeMethod`."""

    method: ProbeMethod

    def __init__(
        self,
        config: PrivateSumConfig,
        *,
        candidates: int = 20,
        method: type[ProbeMethod] = ProbeMethod,
        **parts: Any,
    ) -> None:
        super().__init__(config, method(config, candidates=candidates), **parts)

    @property
    def released(self) -> list[ReleasedSum]:
        return self.method.released


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., PrivateSumConfig]:
    return small_run(PrivateSumConfig, tmp_path / "run", otherwise={"epsilon": 4.0}, num_rounds=3)


ROUNDS, GROUPS = 8, 3


@pytest.fixture
def votes(tmp_path: Path) -> Callable[..., DPFTRLConfig]:
    """Settings of DP-FTRL, which correlate the noise."""

    return small_run(
        DPFTRLConfig,
        tmp_path / "run",
        otherwise={"noise_multiplier": 1.5},
        num_rounds=ROUNDS,
        min_separation=GROUPS,
        max_samples=3,
        server_momentum=0.0,
    )


def cohort_sizes(grid: LoopbackGrid, rounds: int) -> np.ndarray:
    """Users per round as the replies state them: the run directory of a Poisson run does not."""
    sizes = np.zeros(rounds, dtype=int)
    asked = [m for m in grid.requests if m.metadata.message_type != wire.PREPARE]
    replies = [m for m in grid.replies if m.metadata.message_type != wire.PREPARE]
    for request, reply in zip(asked, replies, strict=True):
        number = asked_round(request)
        sizes[number - 1] += reply.content.config_records["privsyn.cohort"]["num_users"]
    return sizes


def killed_in(strategy: Probe, number: int) -> Probe:
    """Let a strategy die while it makes something of a round's release."""

    def die() -> None:
        if len(strategy.released) == number - 1:
            raise Killed

    strategy.method.before_update = die
    return strategy
