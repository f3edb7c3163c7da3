"""`config.json` says what ran the models that write, and whether their texts can be had again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError, GenerationError
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.changes import object_of_the_app, record_generators
from flower_privsyn.strategies import (
    JointSketchConfig,
    POPriConfig,
    PrivateEvolution,
    PrivateEvolutionConfig,
)
from flower_privsyn.strategies.joint_sketch import AskedOnce
from flower_privsyn.strategies.popri import PreferencesByScores
from flower_privsyn.strategies.private_evolution import EvolutionByVotes
from flower_privsyn.testing import EchoGenerator, HashEmbedder, ShuffleWords
from tests.support.federation import is_rehearsal

Settings = Callable[..., PrivateEvolutionConfig]


def test_what_is_said_of_generators(settings: Settings, gguf_llama: Path, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", config={})
    for name in ("privsyn-lm", f"gguf:{gguf_llama}", "http://127.0.0.1:9/v1#owner/model"):
        record_generators(run, PrivateEvolution(settings(generator=name)).method)
    said = run.document["generators"]
    assert [one["run_by"] for one in said.values()] == ["Transformers", "llama.cpp", "a server"]
    assert [one["deterministic"] for one in said.values()] == [True, False, False]
    assert all(one["because"] for one in said.values())
    assert len(said[f"gguf:{gguf_llama}"]["sha256"]) == 64
    record_generators(run, PrivateEvolution(settings(expand_samples=0)).method)
    assert run.document["generators"] == said
    assert object_of_the_app(run) is None
    run.unlock()


class Mine(EchoGenerator):
    name = "mine"


def test_an_object_of_the_app_is_named_and_no_setting_stands_for_it(
    settings: Settings, tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path / "run", config={})
    for method in (
        EvolutionByVotes(settings(), generator=Mine()),
        PreferencesByScores(POPriConfig(epsilon=1.0), generator=Mine()),
        AskedOnce(JointSketchConfig(epsilon=1.0, synthesis="written"), generator=Mine()),
    ):
        record_generators(run, method)
        (said,) = run.document["generators"].items()
        assert (said[0], said[1]["run_by"]) == ("mine", "an object of the app")
        assert object_of_the_app(run) == "mine"
        (run.path / "config.json").write_text("{}")
    record_generators(run, EvolutionByVotes(settings(expand_samples=0), generator=Mine()))
    assert "generators" not in run.document
    run.unlock()


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
        go(settings(expand_samples=2), Failing())
    said = (
        "begun with an object of its app as generator, \"mine\", .* generator = 'privsyn-lm' would"
    )
    with pytest.raises(ConfigError, match=said):
        go(settings(expand_samples=2, resume=True), None)
    again = go(settings(expand_samples=2, generator="privsyn-tiny", resume=True), None)
    assert again.run.status == "finished"
    assert list(again.run.document["generators"]) == ["mine", "privsyn-tiny"]
