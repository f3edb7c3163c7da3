"""More text from a finished run: of what, into which file, and what is never touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.cli import main
from flower_privsyn.errors import ConfigError, GenerationError, RunDirectoryError
from flower_privsyn.progress import Progress
from flower_privsyn.run import RunDirectory
from flower_privsyn.strategies import JointSketchConfig
from flower_privsyn.strategies._population import survivors
from flower_privsyn.strategies.more_text import MoreText, Written, write_more
from flower_privsyn.testing import EchoGenerator
from tests.support.run_files import lines

Builder = Callable[..., Any]


@pytest.fixture
def finished(federation: Builder, settings: Builder, evolution: Builder) -> RunDirectory:
    strategy = evolution(settings(num_rounds=2))
    strategy.start(federation())
    return RunDirectory.open(strategy.run.path)


@pytest.fixture
def echoing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MoreText, "load_generator", lambda settings: EchoGenerator())


def write(run: RunDirectory, num_samples: int = 20, *, seed: int = 1, **changes: Any) -> Written:
    settings = MoreText.of(run, {"generator": "privsyn-lm", **changes})
    return write_more(run, settings, num_samples=num_samples, seed=seed, progress=Progress())


def everything(run: RunDirectory) -> dict[str, bytes]:
    return {
        str(file.relative_to(run.path)): file.read_bytes()
        for file in run.path.rglob("*")
        if file.is_file()
    }


@pytest.mark.usefixtures("echoing")
def test_writes_a_file_of_its_own_and_nothing_else(finished: RunDirectory) -> None:
    before = everything(finished)
    written = write(finished)
    assert written.path.parent == finished.path
    assert written.path.match("expanded-privsyn-lm-*.jsonl")
    texts = lines(written.path)
    assert len(texts) == written.texts == 20
    kept = survivors(finished)
    assert written.seeds == len(set(kept.texts))
    assert written.kind == "survivors of 2 rounds"
    for row in texts:
        assert set(row["parent"]) <= set(kept.ids)
        assert row["source"] == "expanded"
    after = everything(finished)
    added = set(after) - set(before)
    assert {name for name in added if not name.startswith(".")} == {written.path.name}
    assert {name: after[name] for name in before} == before
    # When it was written may say how long the run took.
    assert len({file.stat().st_mtime for file in finished.path.rglob("*")}) == 1
    assert (written.path.parent / f".{written.path.name}.lock").read_bytes() == b""


@pytest.mark.usefixtures("echoing")
def test_other_settings_have_another_file(finished: RunDirectory) -> None:
    files = {
        write(finished, 2, **changes).path
        for changes in ({}, {"temperature": 0.5}, {"seed": 2}, {"generator": "privsyn-tiny"})
    }
    assert len(files) == 4


def test_goes_on_after_a_failure_and_to_more_texts(
    finished: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(EchoGenerator):
        calls = 0

        def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
            self.calls += 1
            if self.calls == 2:
                raise GenerationError("the server refused: 400")
            return super().generate(prompts, **kwargs)

    monkeypatch.setattr(MoreText, "load_generator", lambda settings: Failing())
    with pytest.raises(GenerationError, match="400"):
        write(finished, 100)
    (file,) = finished.path.glob("expanded-*")
    first = lines(file)
    assert 0 < len(first) <= 64
    monkeypatch.setattr(MoreText, "load_generator", lambda settings: EchoGenerator())
    assert write(finished, 100).texts == 100
    whole = lines(file)
    assert whole[: len(first)] == first
    assert len({row["text"] for row in whole}) == 100
    assert write(finished, 50).texts == 100  # there are more than that


def test_parameters_of_the_run_s_server_are_not_sent_to_another_generator(
    finished: RunDirectory,
) -> None:
    document = json.loads(finished.config_file.read_text())
    document["config"] |= {"generator-parameters": '{"top_k": 4}', "generator": "http://a:1/v1#m"}
    finished.config_file.write_text(json.dumps(document))
    finished.owner.remember(settings=document["config"])
    run = RunDirectory.open(finished.path)
    assert MoreText.of(run, {}).generator_parameters == '{"top_k": 4}'
    assert MoreText.of(run, {"generator": "http://b:1/v1#m"}).generator_parameters
    assert MoreText.of(run, {"generator": "privsyn-lm"}).generator_parameters == ""
    with pytest.raises(ConfigError, match='which generator = "privsyn-lm" is not'):
        MoreText.of(run, {"generator": "privsyn-lm", "generator_parameters": "{}"})


@pytest.mark.usefixtures("echoing")
def test_a_run_without_survivors_gives_its_synthetic_texts(finished: RunDirectory) -> None:
    for file in finished.path.glob("rounds/*/population.parquet"):
        file.unlink()
    written = write(finished)
    assert (written.kind, written.seeds) == ("synthetic texts", 12)
    finished.synthetic_jsonl.write_text("")
    with pytest.raises(ConfigError, match="holds no texts, only a model"):
        write(finished, seed=2)


def test_a_generator_that_the_run_has_made_is_the_run_s(finished: RunDirectory) -> None:
    with pytest.raises(ConfigError, match="has no setting generator: name one"):
        MoreText.of(finished, {})
    made = finished.path / "models" / "generator"
    made.mkdir(parents=True)
    (made / "config.json").write_text("{}")
    assert MoreText.of(finished, {}).generator == str(made)
    assert MoreText.of(finished, {"generator": "privsyn-tiny"}).generator == "privsyn-tiny"


def test_a_generator_that_learnt_nothing_is_shown_a_prompt(tmp_path: Path) -> None:
    settings = JointSketchConfig(epsilon=1.0, generator="privsyn-lm")
    run = RunDirectory.create(tmp_path / "run", config=settings.to_dict(), strategy="JointSketch")
    assert settings.prompt == ""
    assert MoreText.of(run, {}).prompt == "pre-text"
    made = run.path / "models" / "generator"
    made.mkdir(parents=True)
    (made / "config.json").write_text("{}")
    assert MoreText.of(run, {}).prompt == ""
    assert MoreText.of(run, {"generator": "privsyn-tiny"}).prompt == "pre-text"


def test_what_is_not_finished_or_names_no_generator_is_refused(
    finished: RunDirectory, tmp_path: Path
) -> None:
    bare = RunDirectory.create(tmp_path / "bare", config={"epsilon": 1.0}, strategy="DPFedAvg")
    with pytest.raises(ConfigError, match="has no setting generator: name one"):
        MoreText.of(bare, {})
    with pytest.raises(ConfigError, match="temperature"):
        MoreText.of(finished, {"generator": "privsyn-lm", "temperature": -1.0})
    with pytest.raises(RunDirectoryError, match="has not finished"):
        write(bare, generator="privsyn-lm")


def test_the_command_says_what_it_used_and_that_nothing_was_spent(
    finished: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = finished.ledger_file.read_bytes()
    words = ["expand", str(finished.path), "--set", "generator=privsyn-tiny", "--samples", "3"]
    assert main([*words, "--set", "temperature=0.7"]) == 0
    shown = capsys.readouterr().out
    (file,) = finished.path.glob("expanded-privsyn-tiny-*.jsonl")
    assert f"Texts: {file} (3), by privsyn-tiny with the prompt pre-text, from " in shown
    assert "Nothing was spent." in shown
    assert "epsilon_known_cohorts" in shown
    assert len(lines(file)) == 3
    assert finished.ledger_file.read_bytes() == ledger
    for wrong in ("generator", "student-steps=5"):
        assert main(["expand", str(finished.path), "--set", wrong]) == 2
        assert wrong.partition("=")[0] in capsys.readouterr().err
    assert main([*words, "--anew", "here"]) == 2
    assert "--anew" in capsys.readouterr().err
    assert main([*words[:-1], "0"]) == 2
    assert "--samples" in capsys.readouterr().err
