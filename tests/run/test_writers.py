"""`config.json` names an object of the app that wrote, which no setting can name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError, GenerationError
from flower_privsyn.run.changes import object_of_the_app
from flower_privsyn.strategies import PrivateEvolution, PrivateEvolutionConfig
from flower_privsyn.testing import EchoGenerator, HashEmbedder, ShuffleWords
from tests.support.federation import is_rehearsal

Settings = Callable[..., PrivateEvolutionConfig]


class Mine(EchoGenerator):
    name = "mine"


def test_a_run_goes_on_without_its_object_only_where_another_generator_is_named(
    federation: Callable[..., Any], settings: Settings
) -> None:
    def go(config: PrivateEvolutionConfig, generator: Any) -> PrivateEvolution:
        parts = {"embedder": HashEmbedder(), "variation": ShuffleWords()}
        strategy = PrivateEvolution(config, generator=generator, **parts)
        strategy.start(federation())
        return strategy

    class Failing(Mine):
        def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
            if not is_rehearsal(prompts):
                raise GenerationError("it has gone")
            return super().generate(prompts, **kwargs)

    with pytest.raises(GenerationError, match="it has gone"):
        go(settings(synthetic_samples=2), Failing())
    said = r'generator, "mine", .* generator = .smollm2-135m. would write in its place'
    with pytest.raises(ConfigError, match=said):
        go(settings(synthetic_samples=2, resume=True), None)
    again = go(settings(synthetic_samples=2, generator="privsyn-tiny", resume=True), None)
    assert again.run.status == "finished"
    assert object_of_the_app(again.run) is None
