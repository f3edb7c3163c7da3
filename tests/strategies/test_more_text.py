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


def write(run: RunDirectory, num_samples: int = 20, **changes: Any) -> Written:
    arguments: dict[str, Any] = {"seed": 1, "output": None, "writer": EchoGenerator()}
    arguments |= {key: changes.pop(key) for key in list(changes) if key in arguments}
    return write_more(
        run,
        MoreText.of(run, {"generator": "privsyn-lm", **changes}),
        num_samples=num_samples,
        progress=Progress(),
        seed=arguments["seed"],
        output=arguments["output"],
        generator=arguments["writer"],
    )


def everything(run: RunDirectory) -> dict[str, bytes]:
    return {
        str(file.relative_to(run.path)): file.read_bytes()
        for file in run.path.rglob("*")
        if file.is_file()
    }


def test_writes_a_file_of_its_own_and_nothing_else(finished: RunDirectory) -> None:
    before = everything(finished)
    written = write(finished)
    assert written.path == finished.path / "expanded-privsyn-lm-1.jsonl"
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
    assert {name for name in added if not name.startswith(".")} == {
        "expanded-privsyn-lm-1.jsonl",
        "expanded-privsyn-lm-1.jsonl.settings.json",
    }
    assert {name: after[name] for name in before} == before
    note = json.loads((finished.path / "expanded-privsyn-lm-1.jsonl.settings.json").read_text())
    assert note["generator"] == "privsyn-lm"
    assert note["temperature"] == finished.config["temperature"]


def test_goes_on_after_a_failure_and_to_more_texts(finished: RunDirectory) -> None:
    class Failing(EchoGenerator):
        calls = 0

        def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
            self.calls += 1
            if self.calls == 2:
                raise GenerationError("the server refused: 400")
            return super().generate(prompts, **kwargs)

    with pytest.raises(GenerationError, match="400"):
        write(finished, 100, writer=Failing())
    first = lines(finished.path / "expanded-privsyn-lm-1.jsonl")
    assert 0 < len(first) <= 64
    assert write(finished, 100).texts == 100
    whole = lines(finished.path / "expanded-privsyn-lm-1.jsonl")
    assert whole[: len(first)] == first
    assert len({row["text"] for row in whole}) == 100
    assert write(finished, 50).texts == 100  # there are more than that


def test_a_file_written_otherwise_is_not_added_to(finished: RunDirectory, tmp_path: Path) -> None:
    output = tmp_path / "more.jsonl"
    write(finished, output=output)
    with pytest.raises(ConfigError, match=r"written with temperature = 0.7, not 0.5: give another"):
        write(finished, output=output, temperature=0.5)
    (tmp_path / "mine.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="was not written by `privsyn expand`"):
        write(finished, output=tmp_path / "mine.jsonl")
    with pytest.raises(ConfigError, match="a file of the run itself"):
        write(finished, output=finished.synthetic_jsonl)
    with pytest.raises(ConfigError, match="does not exist"):
        write(finished, output=tmp_path / "nowhere" / "more.jsonl")


def test_parameters_of_the_run_s_server_are_not_sent_to_another_generator(
    finished: RunDirectory,
) -> None:
    document = json.loads(finished.config_file.read_text())
    document["config"] |= {"generator-parameters": '{"top_k": 4}', "generator": "http://a:1/v1#m"}
    del document["writer"]
    finished.config_file.write_text(json.dumps(document))
    finished.owner.remember(settings=document["config"])
    run = RunDirectory.open(finished.path)
    assert MoreText.of(run, {}).generator_parameters == '{"top_k": 4}'
    assert MoreText.of(run, {"generator": "http://b:1/v1#m"}).generator_parameters
    assert MoreText.of(run, {"generator": "privsyn-lm"}).generator_parameters == ""
    with pytest.raises(ConfigError, match='which generator = "privsyn-lm" is not'):
        MoreText.of(run, {"generator": "privsyn-lm", "generator_parameters": "{}"})


def test_a_run_without_survivors_gives_its_synthetic_texts(finished: RunDirectory) -> None:
    for file in finished.path.glob("rounds/*/population.parquet"):
        file.unlink()
    written = write(finished)
    assert (written.kind, written.seeds) == ("synthetic texts", 12)
    finished.synthetic_jsonl.write_text("")
    with pytest.raises(ConfigError, match="holds no texts, only a model"):
        write(finished, seed=2)


def test_a_generator_that_the_run_has_made_is_the_run_s(finished: RunDirectory) -> None:
    with pytest.raises(ConfigError, match='by an object of its app, "echo", which is not at hand'):
        MoreText.of(finished, {})
    document = json.loads(finished.config_file.read_text())
    del document["writer"]
    finished.config_file.write_text(json.dumps(document))
    assert MoreText.of(finished, {}).generator == "smollm2-135m"
    for name in ("models/generator", "models/writer"):  # learnt, and with a bias as well
        (finished.path / name).mkdir(parents=True)
        (finished.path / name / "config.json").write_text("{}")
        assert MoreText.of(finished, {}).generator == str(finished.path / name)
    assert MoreText.of(finished, {"generator": "privsyn-tiny"}).generator == "privsyn-tiny"


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
    file = finished.path / "expanded-privsyn-tiny-0.jsonl"
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
