"""How a server is asked: what the settings say of it reaches it, whatever the method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError, GenerationError
from flower_privsyn.generation import SamplingParameters
from flower_privsyn.generation.backends import at_once
from flower_privsyn.generation.generator_settings import GeneratorSettings
from flower_privsyn.strategies import (
    AugPEConfig,
    JointSketchConfig,
    POPriConfig,
    PrivateEvolutionConfig,
)
from flower_privsyn.strategies.aug_pe import EvolutionByClass
from flower_privsyn.strategies.joint_sketch import AskedOnce
from flower_privsyn.strategies.more_text import MoreText
from flower_privsyn.strategies.popri import PreferencesByScores
from flower_privsyn.strategies.private_evolution import EvolutionByVotes
from flower_privsyn.testing import EchoGenerator, HashEmbedder, ShuffleWords
from tests.support.generation_server import Server

ASKED = {"generator_timeout": 7.5, "generator_retries": 0, "generator_concurrency": 3}

METHODS: dict[str, Callable[..., Any]] = {
    "private-evolution": lambda parts={}, **values: EvolutionByVotes(
        PrivateEvolutionConfig(num_candidates=8, **values),
        embedder=HashEmbedder(),
        variation=ShuffleWords(),
        **parts,
    ),
    "aug-pe": lambda **values: EvolutionByClass(
        AugPEConfig(num_candidates=14, **values),
        embedder=HashEmbedder(),
        variation=ShuffleWords(),
    ),
    "popri": lambda **values: PreferencesByScores(
        POPriConfig(training_model="privsyn-lm", **values),
        embedder=HashEmbedder(),
        trainer=pytest.fail,
    ),
    "joint-sketch": lambda parts={}, **values: AskedOnce(
        JointSketchConfig(synthesis="written", least_row_tokens=1, **values), **parts
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_settings_reach_the_server_of_a_method(
    name: str, server: Server, public_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flower_privsyn.run import RunDirectory
    from flower_privsyn.run.method import RunContext

    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))
    server.misbehave = lambda path, body, number: (503, {"error": "starting"})
    method = METHODS[name](
        epsilon=1.0, generator=f"{server.url}#tiny", public_text=str(public_file), **ASKED
    )
    run = RunDirectory.create(tmp_path / "run", config={})
    place = RunContext(run=run, progress=run.progress(), released=lambda number: None)
    with pytest.raises(GenerationError, match=r"status 503 \(tried once\): starting"):
        method.setup(place)
    assert len(server.requests) == 1
    run.unlock()


def test_a_server_gets_more_than_it_answers_at_once(server: Server) -> None:
    for requests, expected in ((64, 256), (1, 64)):
        asked = GeneratorSettings(generator=f"{server.url}#tiny", generator_concurrency=requests)
        assert at_once(asked.load_generator()) == expected
    sizes: list[int] = []
    settings = MoreText(generator=f"{server.url}#tiny", generator_concurrency=40)
    result = settings.expansion().run(
        [f"seed {number}" for number in range(20)],
        num_samples=150,
        seed=0,
        on_batch=lambda texts, *_: sizes.append(len(texts)),
    )
    assert len(result.texts) == 150
    assert sizes == [150]


@pytest.mark.parametrize("name", ["private-evolution", "joint-sketch"])
def test_what_expands_asks_a_chat_model_by_messages_before_anything_is_spent(
    name: str, server: Server, public_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flower_privsyn.run import RunDirectory
    from flower_privsyn.run.method import RunContext

    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))
    address = {"generator": f"{server.url}#tiny", "generator_interface": "chat"}
    run = RunDirectory.create(tmp_path / "run", config={})
    place = RunContext(run=run, progress=run.progress(), released=lambda number: None)
    METHODS[name](epsilon=1.0, public_text=str(public_file), **address).setup(place)
    assert [path for path, _, _ in server.requests] == ["/v1/chat/completions"]
    silent = METHODS[name](
        epsilon=1.0,
        public_text=str(public_file),
        generator_interface="chat",
        parts={"generator": EchoGenerator()},
    )
    with pytest.raises(ConfigError, match="echo takes no messages"):
        silent.setup(place)
    run.unlock()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("top_k=20", "generator-parameters must be a JSON object: Expecting value"),
        ("[1]", "must be a JSON object, got a list"),
        ('{"model": "m"}', "must not hold 'model': requests are the package's own"),
        ('{"top_k": NaN}', "must be a JSON object: NaN is no number of JSON"),
        ('{"temperature": 0.5}', "'temperature' but as null.* its value is of temperature"),
        ('{"n": 2}', "'n' but as null.* its value is of the method"),
    ],
)
def test_what_is_not_to_be_sent_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        MoreText(generator="http://a:1/v1#m", generator_parameters=text)


def test_a_key_that_stands_in_its_place_is_not_quoted() -> None:
    with pytest.raises(ConfigError) as refused:
        MoreText(generator="http://a:1/v1#m", generator_parameters="sk-0123456789")
    assert "sk-0" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("settings", [PrivateEvolutionConfig, POPriConfig, JointSketchConfig])
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
