"""What a resumed run may do otherwise; what comes after the last release is tried first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError, GenerationError, ModelError
from flower_privsyn.generation import OpenAIGenerator
from flower_privsyn.report.summary import open_run
from flower_privsyn.run import RunDirectory, changes, directory
from flower_privsyn.run.changes import changes_of_run
from flower_privsyn.strategies import POPri, POPriConfig
from flower_privsyn.testing import EchoGenerator, HashEmbedder
from tests.support.federation import WORDS, is_rehearsal, rounds_asked
from tests.support.generation_server import Server
from tests.support.probe import Killed, Probe, dying_in
from tests.support.run_files import lines
from tests.support.words import WordGenerator, train_words

Builder = Callable[..., Any]


def remote(address: str, model: str = "tiny") -> OpenAIGenerator:
    return OpenAIGenerator(address, model, max_retries=0)


@pytest.fixture
def popri(tmp_path: Path, public_file: Path) -> Callable[..., POPri]:
    def build(writer: Any = None, trainer: Any = train_words, **changes: Any) -> POPri:
        values: dict[str, Any] = {
            "noise_multiplier": 0.0,
            "num_rounds": 2,
            "num_prompts": 3,
            "responses_per_prompt": 3,
            "rejected_rank": 2,
            "public_text": str(public_file),
            "synthetic_samples": 4,
            "run_dir": str(tmp_path / "run"),
            "node_timeout": 0.2,
            **changes,
        }
        return POPri(
            POPriConfig(**values),
            embedder=HashEmbedder(),
            generator=writer or WordGenerator(WORDS),
            trainer=trainer,
        )

    return build


def untouched(strategy: Any, grid: Any) -> bool:
    """Whether a run stopped before anybody was asked for anything."""
    return rounds_asked(grid) == [] and not strategy.run.ledger_file.exists()


class TestTriedBeforeTheFirstRound:
    @pytest.mark.parametrize("strategy", ["evolution", "popri"])
    def test_a_server_that_answers_without_a_text(
        self,
        federation: Builder,
        settings: Builder,
        evolution: Builder,
        popri: Builder,
        server: Server,
        strategy: str,
    ) -> None:
        def silence(path: str, body: dict[str, Any], number: int) -> Any:
            choices = [{"index": index, "text": " \n"} for index in range(body["n"])]
            return 200, {"choices": choices}

        server.misbehave = silence
        writer, grid = remote(server.url), federation()
        built = popri(writer) if strategy == "popri" else evolution(settings(), generator=writer)
        with pytest.raises(GenerationError, match="was asked 4 times for a text and each time"):
            built.start(grid)
        assert untouched(built, grid)
        seeds = [body["seed"] for _, body, _ in server.requests]
        assert len(set(seeds)) == 4  # else a server that honours them answers the same

    def test_a_server_that_loads_no_adapters(
        self, federation: Builder, popri: Builder, server: Server, llama: Path
    ) -> None:
        server.misbehave = lambda path, body, number: (
            (404, {"detail": "Not Found"}) if path.endswith("load_lora_adapter") else None
        )
        grid = federation()
        strategy = popri(remote(server.url), trainer=None, training_model=str(llama))
        with pytest.raises(GenerationError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
            strategy.start(grid)
        assert untouched(strategy, grid)
        assert not (strategy.run.path / ".rehearsal").exists()

    def test_a_model_that_cannot_be_trained(
        self, federation: Builder, popri: Builder, server: Server, llama: Path, tmp_path: Path
    ) -> None:
        broken = tmp_path / "model"
        shutil.copytree(llama, broken)
        (weights,) = broken.glob("*.safetensors")
        os.truncate(weights, 100)
        grid = federation()
        strategy = popri(remote(server.url), trainer=None, training_model=str(broken))
        with pytest.raises(ModelError):
            strategy.start(grid)
        assert untouched(strategy, grid)


class Failing(EchoGenerator):
    """Breaks down when the first text is wanted."""

    def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
        if is_rehearsal(prompts):
            return super().generate(prompts, **kwargs)
        raise GenerationError("the server has gone")


class TestChanges:
    def test_what_comes_after_the_last_release_may_change_and_is_recorded(
        self, federation: Builder, settings: Builder, evolution: Builder, tmp_path: Path
    ) -> None:
        first = evolution(settings(), generator=Failing())
        with pytest.raises(GenerationError, match="has gone"):
            first.start(federation())
        ledger = (tmp_path / "run" / "ledger.jsonl").read_bytes()
        new = {"temperature": 0.5, "synthetic_samples": 5}
        again = evolution(settings(**new, resume=True))
        again.start(federation())
        assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == ledger
        assert len(lines(again.run.synthetic_jsonl)) == 5
        changes = {
            "synthetic-samples": {"from": 12, "to": 5},
            "temperature": {"from": 0.7, "to": 0.5},
        }
        history = [{"after_round": 3, "texts_before": 0, "settings": changes}]
        assert again.run.document["changes"] == open_run(again.run.path).changes == history

    def test_other_libraries_are_recorded(
        self,
        federation: Builder,
        config: Builder,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(directory, "versions", lambda: {"numpy": "1.9", "gone": "3"})
        with pytest.raises(Killed):
            Probe(config(num_rounds=3)).start(federation(tamper=dying_in(2)))
        monkeypatch.setattr(changes, "versions", lambda: {"numpy": "2.0", "new": "1"})
        again = Probe(config(num_rounds=3, resume=True))
        again.start(federation())
        (entry,) = again.run.document["changes"]
        assert (entry["after_round"], entry["settings"]) == (1, {})
        assert entry["versions"]["numpy"] == {"from": "1.9", "to": "2.0"}
        assert again.run.document["versions"] == {"numpy": "2.0", "new": "1"}

    def test_what_a_release_to_come_depends_on_may_not(
        self, federation: Builder, settings: Builder, evolution: Builder
    ) -> None:
        with pytest.raises(Killed):
            evolution(settings()).start(federation(tamper=dying_in(2)))
        for change, said in (
            ({"temperature": 0.5}, "temperature = 0.5 differs from the 0.7"),
            ({"epsilon": 9.0}, "epsilon = 9.0 differs from the 8.0"),
            ({"lookahead": 0}, "lookahead = 0 differs from the 1"),
        ):
            with pytest.raises(ConfigError, match=f"{said} the run in .* was started with"):
                evolution(settings(**change, resume=True)).start(federation())
        again = evolution(settings(node_timeout=0.3, resume=True))
        again.start(federation())
        assert again.run.document["changes"] == [
            {
                "after_round": 1,
                "texts_before": 0,
                "settings": {"node-timeout": {"from": 0.2, "to": 0.3}},
            }
        ]

    def test_what_was_paid_for_stays_when_all_is_released(
        self, federation: Builder, settings: Builder, evolution: Builder
    ) -> None:
        with pytest.raises(GenerationError):
            evolution(settings(), generator=Failing()).start(federation())
        for change in ({"threshold": 2.0}, {"num_rounds": 4}, {"seed": 1}, {"delta": 1e-5}):
            (key,) = change
            with pytest.raises(ConfigError, match=f"{key.replace('_', '-')} = .* differs"):
                evolution(settings(**change, resume=True)).start(federation())

    def test_a_generator_that_writes_candidates_moves_but_stays_the_same(
        self, popri: Builder, tmp_path: Path
    ) -> None:
        def changed(generator: str) -> dict[str, Any]:
            strategy = popri(generator=generator, training_model="privsyn-lm")
            strategy.method.given_writer = None
            return changes_of_run(run, strategy.config, strategy.method, strategy="POPri")

        here = popri(generator="http://a:1/v1#one", training_model="privsyn-lm").config.to_dict()
        run = RunDirectory.create(tmp_path / "begun", config=here, strategy="POPri")
        for other in ("http://a:1/v1#two", "http://a:1/v1", "privsyn-lm"):
            with pytest.raises(ConfigError, match="generator = .* differs"):
                changed(other)
        assert set(changed("http://b:2/v1#one")) == {"generator"}
