"""A run in which an object of the app wrote names no generator; it goes on with one that is set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flower_privsyn.errors import GenerationError
from flower_privsyn.strategies import PrivateEvolution, PrivateEvolutionConfig
from flower_privsyn.testing import EchoGenerator, HashEmbedder, ShuffleWords
from tests.support.federation import is_rehearsal


class Failing(EchoGenerator):
    def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
        if not is_rehearsal(prompts):
            raise GenerationError("it has gone")
        return super().generate(prompts, **kwargs)


def test_a_run_whose_object_wrote_names_no_generator_until_one_is_set(
    federation: Callable[..., Any], settings: Callable[..., PrivateEvolutionConfig]
) -> None:
    def made(config: PrivateEvolutionConfig, generator: Any) -> PrivateEvolution:
        parts = {"embedder": HashEmbedder(), "variation": ShuffleWords()}
        return PrivateEvolution(config, generator=generator, **parts)

    first = made(settings(synthetic_samples=2), Failing())
    with pytest.raises(GenerationError, match="it has gone"):
        first.start(federation())
    assert first.run.config["generator"] == ""
    again = made(settings(synthetic_samples=2, generator="privsyn-tiny", resume=True), None)
    again.start(federation())
    assert (again.run.status, again.run.config["generator"]) == ("finished", "privsyn-tiny")
