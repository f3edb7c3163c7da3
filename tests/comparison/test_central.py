"""The central baselines: what each trains on and writes, what it costs, and that it says so."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.cli import main
from flower_privsyn.comparison.central import (
    CENTRAL_METHODS,
    CentralBaseline,
    CentralResult,
    CentralRun,
    resampled,
)
from flower_privsyn.errors import ConfigError, DataError, ModelError
from flower_privsyn.files import read_json_lines
from flower_privsyn.generation.topics import load_topics
from flower_privsyn.host.progress import NullProgress
from flower_privsyn.privacy import InsecureRandom
from flower_privsyn.strategies.parts.topic_texts import TopicWriter
from flower_privsyn.testing import HashEmbedder
from flower_privsyn.training import dp_adam
from flower_privsyn.training.dp_adam import RECORD_LEVEL, DPAdam, RecordModel
from tests.support.probe import Killed
from tests.support.topics import documents, write_topics

#: Of two subjects, of the first twice as many.
RECORDS = [text for n, text in enumerate(documents(60, seed=5, words=3)) if n % 12 in (0, 1, 6)]


@pytest.fixture
def baseline(llama: Path, tmp_path: Path) -> Any:
    topics = write_topics(tmp_path)

    def build(method: str, **changes: Any) -> CentralBaseline:
        values: dict[str, Any] = {
            "epsilon": 2.0,
            "model": str(llama),
            "topics": str(topics),
            "num_topics": 6,
            "synthetic_samples": 12,
            "max_new_tokens": 6,
            "optimiser": DPAdam(steps=2, batch_size=20, warmup_steps=0),
            **changes,
        }
        return CentralBaseline(method=method, **values)  # type: ignore[arg-type]

    return build


def run(baseline: CentralBaseline, output: Path, records: list[str] = RECORDS) -> CentralResult:
    return CentralRun(
        baseline,
        output,
        progress=NullProgress(),
        embedder=HashEmbedder(),
        random=InsecureRandom(1),
    ).run(records)


@pytest.mark.parametrize("method", CENTRAL_METHODS)
def test_a_baseline_says_record_level_and_what_it_spent(
    method: str, baseline: Any, tmp_path: Path
) -> None:
    found = run(baseline(method), tmp_path / "out")
    said = json.loads((tmp_path / "out" / "privacy.json").read_text())
    assert said == json.loads(json.dumps(found.privacy))
    assert (said["unit"], said["says"]) == ("record", RECORD_LEVEL)
    assert said["relation"] == "zero-out"
    assert not said["secure_randomness"]
    assert said["records"] == len(RECORDS)
    assert said["delta"] == pytest.approx(1 / (len(RECORDS) * math.log(len(RECORDS))))
    assert said["epsilon"] == pytest.approx(2.0, rel=1e-3)
    names = [phase["name"] for phase in said["phases"]]
    assert names == (["topics", "steps"] if method in ("ctcl", "resampled") else ["steps"])
    assert (found.model / "config.json").is_file()
    assert len(found.texts) == (0 if method == "downstream" else 12)
    texts = [row["text"] for row in read_json_lines(tmp_path / "out" / "synthetic.jsonl")]
    assert texts == list(found.texts)


def test_without_noise_texts_are_of_topics_as_records_are(baseline: Any, tmp_path: Path) -> None:
    found = run(baseline("ctcl", epsilon=math.inf), tmp_path / "out")
    assert found.privacy["epsilon"] is None
    told = Counter(row["parent"][0] for row in read_json_lines(tmp_path / "out" / "written.jsonl"))
    topics = load_topics(baseline("ctcl").topics).at(6)
    often = Counter(topics.nearest(HashEmbedder().embed(RECORDS)).tolist())
    assert told == {f"topic:{topic}": 12 * n / len(RECORDS) for topic, n in often.items()}


def test_conditions_are_those_of_a_record_s_own_topic(baseline: Any, tmp_path: Path) -> None:
    works = CentralRun(
        baseline("ctcl"), tmp_path / "out", progress=NullProgress(), embedder=HashEmbedder()
    )
    of_records = works._topics_of(RECORDS)
    examples = works._examples(RECORDS, of_records)
    topics = load_topics(baseline("ctcl").topics).at(6)
    for example, topic, text in zip(examples, of_records, RECORDS, strict=True):
        read = works._model.tokenizer.decode(example.tokens[: example.given])
        assert read.endswith(topics.conditions()[topic])
        rest = works._model.tokenizer.decode(example.tokens[example.given :])
        assert rest.startswith(text[:5])
    plain = CentralRun(baseline("vanilla"), tmp_path / "plain", progress=NullProgress())
    (first, *_) = plain._examples(RECORDS, np.zeros(len(RECORDS), dtype=np.int64))
    assert first.given == 1


def test_texts_are_drawn_again_by_the_histogram() -> None:
    texts = [f"{name}{n}" for name, count in (("a", 2), ("b", 5)) for n in range(count)]
    topics = np.array([0, 0, 1, 1, 1, 1, 1])
    found = resampled(texts, topics, np.array([3.0, 1.0, 9.0, -2.0]), count=8, seed=0)
    told = Counter(text[0] for text in found)
    assert told == {"a": 6, "b": 2}  # of the third topic nothing was written
    assert Counter(found)["a0"] == Counter(found)["a1"] == 3
    assert len({text for text in found if text[0] == "b"}) == 2
    assert len(resampled(texts, topics, -np.ones(4), count=8, seed=0)) == 8


def test_documents_without_text_are_counted_and_flip_coins(
    baseline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many there are is public, which of them say something is not."""
    rates, draw = [], dp_adam.poisson_batch

    def seen(records: int, *, rate: float, random: Any) -> Any:
        rates.append((records, rate))
        return draw(records, rate=rate, random=random)

    monkeypatch.setattr(dp_adam, "poisson_batch", seen)
    n, optimiser = len(RECORDS), DPAdam(steps=1, batch_size=5, warmup_steps=0)
    settings = baseline("ctcl", optimiser=optimiser, epsilon=math.inf)
    found = run(settings, tmp_path / "out", [RECORDS[0], " ", *RECORDS[1:], ""])
    assert found.privacy["records"] == n + 2
    assert rates == [(n + 2, pytest.approx(5 / (n + 2)))]
    works = CentralRun(
        settings, tmp_path / "other", progress=NullProgress(), embedder=HashEmbedder()
    )
    examples, topics = works._read([RECORDS[0], " ", *RECORDS[1:], ""])
    assert [example.usable for example in examples] == [True, False] + [True] * (n - 1) + [False]
    assert topics.tolist() == works._topics_of(RECORDS).tolist()


class TestKilled:
    @pytest.mark.parametrize("method", ["ctcl", "resampled"])
    def test_what_is_written_stays(
        self, method: str, baseline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("flower_privsyn.strategies.parts.topic_texts._BATCH", 5)
        whole = run(baseline(method), tmp_path / "whole")
        kept, calls = TopicWriter._record, []

        def record(self: Any, text: str, topic: int) -> Any:
            calls.append(text)
            if len(calls) == 7:
                raise Killed
            return kept(self, text, topic)

        with monkeypatch.context() as patch:
            patch.setattr(TopicWriter, "_record", record)
            with pytest.raises(Killed):
                run(baseline(method), tmp_path / "out")
        before = list(read_json_lines(tmp_path / "out" / "written.jsonl"))
        assert 0 < len(before) < 12
        trained = (tmp_path / "out" / "model" / "model.safetensors").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(CentralRun, "_train", None)  # nobody is asked again
            found = run(baseline(method), tmp_path / "out")
        after = list(read_json_lines(tmp_path / "out" / "written.jsonl"))
        assert after[: len(before)] == before
        assert (found.model / "model.safetensors").read_bytes() == trained
        assert (found.texts, found.privacy) == (whole.texts, whole.privacy)
        # And what has finished is read.
        monkeypatch.setattr(CentralRun, "_written", None)
        assert run(baseline(method), tmp_path / "out").texts == whole.texts

    @pytest.mark.parametrize("method", ["vanilla", "ctcl"])
    def test_in_training_it_begins_anew_and_counts_once(
        self, method: str, baseline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def save(self: Any, folder: Path, parameters: Any) -> None:
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(RecordModel, "save", save)
            with pytest.raises(Killed):
                run(baseline(method), tmp_path / "out")
        assert not (tmp_path / "out" / "synthetic.jsonl").exists()
        histogram = tmp_path / "out" / "histogram.json"
        assert histogram.exists() == (method == "ctcl")
        counted = histogram.read_bytes() if method == "ctcl" else b""
        # A second draw would be a second release.
        monkeypatch.setattr(CentralRun, "_histogram", None)
        assert len(run(baseline(method), tmp_path / "out").texts) == 12
        assert (histogram.read_bytes() if method == "ctcl" else b"") == counted

    def test_a_model_is_noted_before_anybody_can_take_it(
        self, baseline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Killed between note and name, the one that waits is taken; nothing is trained again."""
        whole, out = run(baseline("vanilla"), tmp_path / "whole"), tmp_path / "out"
        rename = Path.rename

        def killed(self: Path, target: Path) -> Path:
            if target == out / "model":
                raise Killed
            return rename(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", killed)
            with pytest.raises(Killed):
                run(baseline("vanilla"), out)
        assert not (out / "model").exists()
        assert json.loads((out / "begun.json").read_text())["trained"]
        monkeypatch.setattr(CentralRun, "_train", None)
        assert run(baseline("vanilla"), out).texts == whole.texts
        assert not (out / ".model").exists()

    def test_no_second_model_is_trained_where_the_first_is_gone(
        self, baseline: Any, tmp_path: Path
    ) -> None:
        """Its texts may be out: both models together cost more than is said of the one."""
        texts = run(baseline("vanilla"), tmp_path / "out").texts
        shutil.rmtree(tmp_path / "out" / "model")
        assert run(baseline("vanilla"), tmp_path / "out").texts == texts  # nothing needs it
        (tmp_path / "out" / "synthetic.jsonl").unlink()
        with pytest.raises(DataError, match="model is gone: another model of these records"):
            run(baseline("vanilla"), tmp_path / "out")
        assert not (tmp_path / "out" / "model").exists()

    def test_another_beginning_is_refused(self, baseline: Any, tmp_path: Path) -> None:
        run(baseline("downstream"), tmp_path / "out")
        with pytest.raises(ConfigError, match=r"out was begun with --epsilon = 2.0, got 4.0: name"):
            run(baseline("downstream", epsilon=4.0), tmp_path / "out")
        with pytest.raises(ConfigError, match=r"was begun with --steps = 2, got 3: name another"):
            run(
                baseline("downstream", optimiser=DPAdam(steps=3, batch_size=20, warmup_steps=0)),
                tmp_path / "out",
            )
        with pytest.raises(DataError, match="out was begun with other records"):
            run(baseline("downstream"), tmp_path / "out", RECORDS[1:])
        for name in ("begun.json", "model"):
            assert (tmp_path / "out" / name).exists()
        assert (tmp_path / "out" / "begun.json").stat().st_mode & 0o777 == 0o600

    def test_other_topics_in_the_same_file_are_refused(
        self, baseline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The histogram that was released counts others."""

        def write(self: Any, *_: Any) -> None:
            raise Killed

        asked = baseline("ctcl")
        with monkeypatch.context() as patch:
            patch.setattr(CentralRun, "_write", write)
            with pytest.raises(Killed):
                run(asked, tmp_path / "out")
        write_topics(tmp_path, seed=9)
        with pytest.raises(ConfigError, match="was begun with other topics than those of --topics"):
            run(asked, tmp_path / "out")
        write_topics(tmp_path)
        assert len(run(asked, tmp_path / "out").texts) == 12

    @pytest.mark.parametrize("change", ["settings", "topics", "records"])
    def test_what_another_process_began_meanwhile_is_not_gone_on_with(
        self, change: str, baseline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its histogram has other noise, and what is said would be said of the later settings."""

        def save(self: Any, folder: Path, parameters: Any) -> None:
            raise Killed

        asked = baseline("ctcl", histogram_noise_multiplier=20.0)
        late = CentralRun(
            asked, tmp_path / "out", progress=NullProgress(), embedder=HashEmbedder()
        )  # which looks into a folder that is not there
        if change == "settings":
            asked = baseline("ctcl", histogram_noise_multiplier=5.0)
        elif change == "topics":
            write_topics(tmp_path, seed=9)
        with monkeypatch.context() as patch:
            patch.setattr(RecordModel, "save", save)
            with pytest.raises(Killed):
                run(asked, tmp_path / "out", RECORDS[change == "records" :])
        said = (tmp_path / "out" / "privacy.json").read_bytes()
        told = "other records" if change == "records" else "with (--histogram-noise|other topics)"
        with pytest.raises((ConfigError, DataError), match=told):
            late.run(RECORDS)
        assert (tmp_path / "out" / "privacy.json").read_bytes() == said

    def test_what_is_begun_while_it_waits_for_the_folder_is_looked_at(
        self, baseline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Noise takes long to find: until then nobody holds the folder."""
        late = CentralRun(baseline("vanilla"), tmp_path / "out", progress=NullProgress())
        planned = CentralBaseline.plan

        def plan(self: Any, records: int) -> Any:
            found = planned(self, records)
            with monkeypatch.context() as patch:
                patch.setattr(CentralBaseline, "plan", planned)
                run(baseline("vanilla"), tmp_path / "out", RECORDS[1:])
            return found

        monkeypatch.setattr(CentralBaseline, "plan", plan)
        with pytest.raises(DataError, match="was begun with other records"):
            late.run(RECORDS)

    @pytest.mark.parametrize("fails", ["clipped_sum", "save"])
    def test_what_an_attempt_learned_that_failed_is_not_gone_on_with(
        self, fails: str, baseline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in a notebook, by Ctrl-C or a full disk: its steps would be in no account."""
        asked = baseline("downstream", epsilon=math.inf)
        whole = run(asked, tmp_path / "whole")
        work = CentralRun(asked, tmp_path / "out", progress=NullProgress())
        right, calls = getattr(RecordModel, fails), []

        def failing(self: Any, *arguments: Any) -> Any:
            calls.append(arguments)
            if len(calls) == (2 if fails == "clipped_sum" else 1):
                raise KeyboardInterrupt
            return right(self, *arguments)

        monkeypatch.setattr(RecordModel, fails, failing)
        with pytest.raises(KeyboardInterrupt):
            work.run(RECORDS)
        assert _weights(work.run(RECORDS)) == _weights(whole)


def _weights(found: CentralResult) -> bytes:
    return (found.model / "model.safetensors").read_bytes()


def test_adapters_of_an_encoder_decoder(
    baseline: Any, bart: Path, t5: Path, tmp_path: Path
) -> None:
    asked = {"epsilon": math.inf, "trainable": "lora", "synthetic_samples": 6}
    for name, folder, method in (("bart", bart, "ctcl"), ("t5", t5, "vanilla")):
        found = run(baseline(method, model=str(folder), **asked), tmp_path / name)
        assert len(set(found.texts)) == 6
    with pytest.raises(ModelError, match=r"no next token of a document alone: downstream models"):
        run(baseline("downstream", model=str(bart), **asked), tmp_path / "downstream")
    with pytest.raises(
        ModelError, match=r'train adapters \(trainable = "lora"\), or another model'
    ):
        run(baseline("ctcl", model=str(bart)), tmp_path / "full")
    assert not (tmp_path / "full").exists()


class _Company(HashEmbedder):
    """Gives a text other vectors in other company."""

    def embed(self, texts, *, progress=None):
        return super().embed(texts, progress=progress) * np.float32(1 + 1e-3 * (len(texts) % 2))


def test_refusals_before_anything_is_trained(baseline: Any, tmp_path: Path) -> None:
    def begin(settings: CentralBaseline, embedder: Any = None) -> CentralRun:
        return CentralRun(
            settings,
            tmp_path / "out",
            progress=NullProgress(),
            embedder=embedder or HashEmbedder(),
        )

    with pytest.raises(ConfigError, match=r"--max-new-tokens = 512 and conditions of up to \d+"):
        begin(baseline("vanilla", max_new_tokens=512))
    with pytest.raises(ConfigError, match=r"--max-tokens = 250 and conditions of up to \d+"):
        begin(baseline("ctcl", max_tokens=250))
    with pytest.raises(ConfigError, match="--document-type must be words in one line, got 'a.n'"):
        baseline("ctcl", document_type="a\n")
    with pytest.raises(ModelError, match="gives a text other bits in other company"):
        begin(baseline("ctcl"), _Company())
    begin(baseline("downstream", max_new_tokens=512))  # which writes nothing


def test_refusals(baseline: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 records have text to learn, at least 2"):
        run(baseline("vanilla"), tmp_path / "one", ["the river", " "])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="full is not empty: name another folder"):
        run(baseline("vanilla"), tmp_path / "full")
    with pytest.raises(ConfigError, match='--method must be one of "ctcl", "vanilla"'):
        baseline("other")
    with pytest.raises(ConfigError, match="is spent by the releases whose noise is settled"):
        run(baseline("ctcl", epsilon=0.01), tmp_path / "little")
    assert not (tmp_path / "little").exists()


def test_the_command_has_a_table_of_its_own(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "records.jsonl"
    rows = [{"client_id": str(n), "text": text} for n, text in enumerate(RECORDS)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["central", str(data), "--epsilon", "2", "--methods", "vanilla", "downstream"]
    words += ["--model", str(llama), "--downstream", str(llama), "--steps", "2", "--samples", "5"]
    words += ["--batch-size", "20", "--max-new-tokens", "6", "--output", str(tmp_path / "out")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"{len(RECORDS)} records; {RECORD_LEVEL}." in out
    assert "| vanilla | 2 |" in out
    assert "| downstream | 2 |" in out
    assert "who publishes several spends the sum" in out
    assert main(words) == 0  # all of it is there
    assert capsys.readouterr().out == out
    words[3] = "3"
    assert main(words) == 2
    assert "was begun with --epsilon = 2.0, got 3.0" in capsys.readouterr().err
    assert main([*words[:4], "--methods", "vanilla", "vanilla", *words[-2:]]) == 2
    assert "--methods must name each method once, got vanilla vanilla" in capsys.readouterr().err
    # What the last method lacks is found before the first one is trained.
    words[words.index("--downstream") + 1] = str(tmp_path / "nowhere")
    assert main([*words[:-1], str(tmp_path / "again")]) == 2
    assert not (tmp_path / "again").exists()
