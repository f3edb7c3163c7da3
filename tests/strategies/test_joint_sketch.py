"""One release of token counts, and everything that is made of it afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from flwr.app import Message
from transformers import MambaConfig, MambaForCausalLM

from flower_privsyn import environment
from flower_privsyn.cli import main
from flower_privsyn.cli.expand import copy_released
from flower_privsyn.client_apps.guard import NodeGuard
from flower_privsyn.client_apps.policy import NodePolicy
from flower_privsyn.data.chunking import token_ids
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import ConfigError, GenerationError, PrivsynError
from flower_privsyn.generation import OpenAIGenerator
from flower_privsyn.messages import secure as secure_wire
from flower_privsyn.models.bias import LogitBias
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.report.sketch_file import SKETCH_FILE, read_sketch
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import TRAINED_WRITER, WRITTEN, writer_in
from flower_privsyn.strategies import JointSketch, JointSketchConfig, _token_sketch, joint_sketch
from flower_privsyn.testing import EchoGenerator, flower_identity
from flower_privsyn.training.bias import beyond_model, save_biased
from flower_privsyn.training.selection import long_rows
from flower_privsyn.training.tokens import first_token, scored, token_rows
from tests.support.federation import asked, embedding_nodes, make_users
from tests.support.generation_server import Server
from tests.support.launched import launched
from tests.support.models import byte_level, save
from tests.support.probe import Killed
from tests.support.run_files import lines, release, releases
from tests.support.small_runs import small_run

Builder = Callable[..., Any]

COURTS = "The court heard the appeal, and the judge gave her ruling on the tax of the river."
TOPICS = {
    "courts": COURTS,
    "machines": "The engine and the turbine of the rocket ran in orbit until the fuel was gone.",
    "trade": "Markets set the price of trade, and every export is a matter of what others pay.",
    "school": "The teacher spoke to the school about genes, enzymes and the cells of a plant.",
}


def topics_in(folder: Path) -> Path:
    """Public text on four topics, courts among them."""
    file = folder / "topics.jsonl"
    rows = [
        {"text": f"{text} It was the {number}th time that this was said in the year."}
        for number in range(20)
        for text in TOPICS.values()
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def settings_in(folder: Path, topics: Path, **changes: Any) -> JointSketchConfig:
    """Settings of a small run; keyword arguments replace them."""
    build = small_run(
        JointSketchConfig,
        folder / "run",
        num_nodes=2,
        num_bigrams=400,
        public_text=str(topics),
        select_share=0.2,
        least_selected=1,
        least_row_tokens=4,
        most_overlap=1.0,
        student_steps=1,
        training_batch_size=2,
        teacher="",
        generator_steps=0,  # by a writer that is shown lists, where one writes
        prompt="pre-text",
    )
    return build(**changes)


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    return topics_in(tmp_path)


@pytest.fixture
def config(
    tmp_path: Path, topics: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., JointSketchConfig]:
    monkeypatch.setenv(environment.CACHE, str(tmp_path / "cache"))
    return partial(settings_in, tmp_path, topics)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> JointSketch:
    """A run without noise of thirty users, which the tests read and leave as it is."""
    folder = tmp_path_factory.mktemp("joint-sketch")
    strategy = JointSketch(settings_in(folder, topics_in(folder), noise_multiplier=0.0))
    strategy.grid = embedding_nodes(make_users(30), folder)
    with pytest.MonkeyPatch.context() as patched, flower_identity():
        patched.setenv(environment.CACHE, str(folder / "cache"))
        strategy.start(strategy.grid)
    return strategy


class TestARun:
    def test_asks_once_and_makes_the_rest_of_the_release(
        self, finished: JointSketch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = finished.run.path
        charged = releases(run)
        assert [(line["round"], line["query"]) for line in charged] == [(1, "joint_sketch")]
        assert charged[0]["l2_sensitivity"] == 1.0
        messages = asked(finished.grid)
        assert len(messages) == 2  # one per node, once
        assert set(messages[0].content["privsyn.broadcast"]) == {"vocabulary", "bigrams"}
        assert finished.run.status == "finished"
        # The users write about courts, and so does what was chosen for them.
        texts = [record["text"] for record in lines(run / "synthetic.jsonl")]
        assert len(texts) == 16
        assert all("court" in text for text in texts)
        # What the release says, and the command that prints it.
        table = pq.read_table(run / SKETCH_FILE).to_pydict()
        said = dict(zip(table["text"], table["log_ratio"], strict=True))
        assert said[" court"] > 0.5
        assert said[" engine"] < 0.0
        assert main(["inspect", str(run), "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["epsilon_release"] is None  # it was run without noise
        shown, trust = facts["sketch"], facts["figures"]["trust"]
        assert set(shown) == {"token", "bigram"}
        assert shown == read_sketch(run / SKETCH_FILE, most=20)
        assert 0.05 < trust < 1.0
        row = shown["token"]["more"][0]
        assert 1.0 < row["low"] < row["ratio"] < row["high"]
        assert main(["report", str(run)]) == 0
        page = (run / "report.html").read_text(encoding="utf-8")
        assert "What the release says" in page
        assert json.dumps(row["text"]).replace('"', "&#34;") in page
        assert f"The run trusted it by {trust:.2g}" in page
        capsys.readouterr()
        assert main(["inspect", str(run)]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "more often than public" in said
        assert "Not private: 1 release without sufficient noise" in said
        assert f"{trust:.2f} of 1 in the sketch" in said

    def test_is_read_again_with_other_settings_and_nobody_is_asked(
        self, finished: JointSketch, config: Builder, federation: Builder, tmp_path: Path
    ) -> None:
        run, output = finished.run, tmp_path / "again"
        launched(run)
        for_the_owner = tmp_path / "again.owner"
        for_the_owner.mkdir()
        with pytest.raises(ConfigError, match=r"again\.owner exists: name a folder that does not"):
            copy_released(run, output)
        for_the_owner.rmdir()
        assert main(["expand", str(run.path), "--anew", str(output), "--set", "nothing=1"]) == 2
        assert sorted(tmp_path.glob("again*")) == []
        copied = copy_released(run, output)
        assert not (output / "models").exists()
        assert not (output / "synthetic.jsonl").exists()
        gone = federation(num_nodes=1)
        same = {"noise_multiplier": 0.0, "public_text": finished.config.public_text, "resume": True}
        settings = config(**same, run_dir=str(output), student_steps=2, select_share=0.1)
        strategy = JointSketch(settings)
        strategy.start(gone)
        assert gone.requests == []
        assert copied.status == "finished"
        assert copied.ledger_file.read_bytes() == run.ledger_file.read_bytes()
        assert np.array_equal(release(output, 1), release(run.path, 1))
        before, after = (one.state["summary"] for one in (run, RunDirectory.open(output)))
        assert (before["student_steps"], after["student_steps"]) == (1, 2)
        assert after["selected_rows"] < before["selected_rows"]
        # What a release depends on is not for it to change.
        other = copy_released(run, tmp_path / "other")
        with pytest.raises(ConfigError, match="num-bigrams"):
            JointSketch(config(**same, run_dir=str(other.path), num_bigrams=300)).start(gone)
        assert gone.requests == []

    def test_no_copy_is_made_of_a_run_with_a_round_that_could_be_asked_again(
        self,
        config: Builder,
        federation: Builder,
        tmp_path: Path,
        node_state: Path,
    ) -> None:
        """Else every copy would ask the users, each at the price of the one round."""

        def lose(request: Message, reply: Message) -> list[Message]:
            keys = request.metadata.message_type == secure_wire.KEYS
            return (
                []
                if keys and secure_wire.unpack(secure_wire.Asked, request).round == 2
                else [reply]
            )

        secure = {"secure_aggregation": True, "least_nodes": 5, "colluding_nodes": 2}
        strategy = JointSketch(config(num_rounds=2, num_nodes=6, noise_multiplier=1.0, **secure))
        strategy.start(federation(num_nodes=6, tamper=lose))
        run = strategy.run
        assert (run.status, run.rounds_with_outcome("discarded")) == ("finished", [2])
        launched(run)
        with pytest.raises(ConfigError, match="has a round that would be asked again"):
            copy_released(RunDirectory.open(run.path), tmp_path / "new")
        assert not (tmp_path / "new").exists()

    def test_student_is_the_plain_one_with_the_release_in_its_logits(
        self, finished: JointSketch
    ) -> None:
        models = finished.run.path / "models"
        texts = make_users(30).texts
        found = {}
        for name in ("plain", "final"):
            folder = models / name
            network, _ = load_pretrained(folder, kind="causal", dtype="float32", device="cpu")
            found[name] = nats(folder, *texts)
        assert found["final"] < found["plain"]
        # A quarter of the public text is about courts and all that was chosen. Of what users write
        # more than public text, the bias is what they write more than what was chosen, and what the
        # student has not learnt of that; all of it as far as thirty users are to be trusted.
        said = pq.read_table(finished.run.path / SKETCH_FILE).to_pydict()
        court = said["text"].index(" court")
        chosen = [record["text"] for record in lines(finished.run.path / "synthetic.jsonl")]
        rows = [np.array(row) for row in token_ids(load_tokenizer("privsyn-tiny")[0], chosen)]
        nothing = LogitBias(tokens=np.zeros(0, dtype=np.float32))
        not_learnt = beyond_model(nothing, models / "plain", rows).tokens[court]
        trust = finished.run.state["summary"]["trust"]
        assert 0.05 < trust < 1.0
        beyond = float(network.token_bias[court]) / trust - not_learnt
        assert said["log_ratio"][court] - beyond == pytest.approx(np.log(4.0), abs=0.3)


class TestWriting:
    #: A generator with the student's tokens writes two short texts.
    BY_A_MODEL = {  # noqa: RUF012
        "noise_multiplier": 0.0,
        "synthesis": "written",
        "synthetic_samples": 2,
        "generator": "privsyn-tiny",
        "max_new_tokens": 12,
    }

    @pytest.fixture(autouse=True)
    def unpunctuated(self, topics: Path) -> None:
        """Public text without sentences: what is written after it need hold none either."""
        topics.write_text(topics.read_text(encoding="utf-8").replace(".", ""), encoding="utf-8")

    def test_by_a_generator_is_filtered_by_the_same_score(
        self, federation: Builder, config: Builder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found: list[np.ndarray] = []

        def noting(*scored_by: Any) -> Any:
            scorer = long_rows(*scored_by)
            return lambda rows: found.append(scorer(rows)) or found[-1]

        monkeypatch.setattr(joint_sketch, "long_rows", noting)
        settings = config(noise_multiplier=0.0, synthesis="written", synthetic_samples=5, best_of=3)
        strategy = JointSketch(settings, generator=EchoGenerator())
        strategy.start(federation(make_users(20)))
        records = lines(strategy.run.path / "synthetic.jsonl")
        assert {record["source"] for record in records} == {"written"}
        # Of three for each the best, in the order in which they were written.
        written = [record["text"] for record in lines(strategy.run.path / WRITTEN)]
        assert len(written) == len(found[-1]) == 15
        best = sorted(np.argsort(-found[-1], kind="stable")[:5].tolist())
        assert [record["text"] for record in records] == [written[place] for place in best]

    def test_half_of_the_texts_may_be_chosen_ones(
        self, federation: Builder, config: Builder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And the student learns from the written ones as well, where it is to read all twice."""
        learnt: list[Sequence[str]] = []
        real = _token_sketch.fine_tune

        def noted(model: str, texts: Sequence[str], **kwargs: Any) -> Any:
            learnt.append(texts)
            return real(model, texts, **kwargs)

        monkeypatch.setattr(_token_sketch, "fine_tune", noted)
        both = {"noise_multiplier": 0.0, "synthesis": "both", "synthetic_samples": 8}
        settings = config(**both, training_batch_size=100)
        strategy = JointSketch(settings, generator=EchoGenerator())
        strategy.start(federation(make_users(20)))
        texts: dict[str, set[str]] = {"written": set(), "selected": set()}
        for record in lines(strategy.run.path / "synthetic.jsonl"):
            texts[record["source"]].add(record["text"])
        assert texts["written"] == {row["text"] for row in lines(strategy.run.path / WRITTEN)}
        best = JointSketch(
            config(
                run_dir=str(strategy.run.path) + "-chosen",
                synthetic_samples=4,
                noise_multiplier=0.0,
            )
        )
        best.start(federation(make_users(20)))
        assert texts["selected"] == {
            row["text"] for row in lines(best.run.path / "synthetic.jsonl")
        }
        assert [len(found) for found in texts.values()] == [4, 4]
        JointSketch(
            config(**both, run_dir=str(best.run.path) + "-once"), generator=EchoGenerator()
        ).start(federation(make_users(20)))
        assert set(learnt[0]) - set(learnt[1]) == texts["written"]
        assert learnt[2] == learnt[1]

    def test_a_generator_may_learn_from_what_was_chosen_first(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = JointSketch(config(**self.BY_A_MODEL, generator_steps=3))
        strategy.start(federation(make_users(20)))
        run = strategy.run
        assert 0 < len(lines(run.path / "synthetic.jsonl")) <= 2
        assert writer_in(run.path) == run.path / TRAINED_WRITER
        assert nats(run.path / TRAINED_WRITER, COURTS) < nats("privsyn-tiny", COURTS)


class TestTeaching:
    """A teacher that learnt from the chosen text, and was told what it still lacks."""

    def test_by_a_teacher_that_learnt_first(
        self, federation: Builder, config: Builder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taught_by: list[Path] = []

        def noted(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("distillation") is not None:
                taught_by.append(kwargs["distillation"].teacher)
            return real(*args, **kwargs)

        real = _token_sketch.fine_tune
        monkeypatch.setattr(_token_sketch, "fine_tune", noted)
        settings = config(teacher="privsyn-tiny", teacher_steps=3, noise_multiplier=0.0)
        strategy = JointSketch(settings)
        strategy.start(federation(make_users(20)))
        models = strategy.run.path / "models"
        assert taught_by == [models / "teacher-biased"]
        plain = nats(models / "teacher", COURTS)
        assert nats(models / "teacher-biased", COURTS) < plain < nats("privsyn-tiny", COURTS)


def nats(model: str | Path, *texts: str) -> float:
    """What texts cost a model, in nats a token."""
    network, tokenizer = load_pretrained(model, kind="causal", dtype="float32", device="cpu")
    rows = token_rows(tokenizer, texts)
    cost = scored(network, rows, begin=first_token(tokenizer), window=64)[0].sum()
    return float(cost / sum(map(len, rows)))


def a_bias() -> LogitBias:
    """A bias of the bundled student's tokens."""
    size = load_tokenizer("privsyn-tiny")[0].get_vocab_size()
    return LogitBias(tokens=np.ones(size, dtype=np.float32))


class TestResume:
    def test_uses_of_a_release_may_change_until_they_begin(
        self,
        federation: Builder,
        config: Builder,
        topics: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def die(*args: Any, **kwargs: Any) -> None:
            raise Killed

        monkeypatch.setattr(_token_sketch, "choose", die)
        with pytest.raises(Killed):
            JointSketch(config()).start(federation())
        monkeypatch.undo()
        before = len(np.load(tmp_path / "run" / "bigrams.npy"))
        resumed = config(resume=True, select_share=0.1)
        # Other public text than the pairs were counted in: what was asked stays what it was.
        kept = topics.read_text(encoding="utf-8").splitlines(keepends=True)
        topics.write_text("".join(kept[:40]), encoding="utf-8")
        strategy = JointSketch(resumed)
        strategy.start(federation())
        assert len(lines(strategy.run.path / "synthetic.jsonl")) == 4
        assert len(releases(strategy.run.path)) == 1
        table = pq.read_table(strategy.run.path / SKETCH_FILE)
        assert table.column("kind").to_pylist().count("bigram") == before


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "by_object", "writing"),
        [
            ({}, False, (8, "")),
            ({"generator_steps": 3}, False, (3, "")),
            ({"generator_steps": 0}, False, (0, "pre-text")),
            ({"prompt": "pre-text"}, False, (0, "pre-text")),
            ({"prompt": "pre-text", "generator_steps": 3}, False, (3, "pre-text")),
            ({"generator": "gguf:a"}, False, (0, "pre-text")),
            ({"generator": "http://127.0.0.1:8000/v1"}, False, (0, "pre-text")),
            ({"generator_interface": "chat"}, False, (0, "pre-text")),
            ({}, True, (0, "pre-text")),
        ],
    )
    def test_a_writer_that_cannot_learn_is_shown_a_prompt(
        self, changes: dict[str, Any], by_object: bool, writing: tuple[int, str]
    ) -> None:
        settings = JointSketchConfig(epsilon=1.0, synthesis="written", **changes)
        assert settings.writing(by_object=by_object) == writing

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"model": "BIASED"}, "has a bias already: give the model without it"),
            ({"teacher": "LLAMA"}, "teacher must have the tokens of"),
            ({"model": "MAMBA", "teacher": ""}, "no token to begin a text with"),
            ({"model": "QWEN", "teacher": ""}, "other rules than the tokenizer.json"),
            ({"synthesis": "written", "generator": "MAMBA", "generator_steps": 1}, "no LoRA"),
            ({"max_tokens": 600}, 'model = "privsyn-tiny" reads at most 511 tokens .* rows of 600'),
            (
                {"synthesis": "written", "generator": "gguf:a", "generator_steps": 1},
                "which an address, a GGUF file",
            ),
        ],
    )
    def test_that_would_fail_later_are_refused_before_anybody_is_asked(
        self,
        federation: Builder,
        config: Builder,
        llama: Path,
        tmp_path: Path,
        changes: dict[str, Any],
        sentence: str,
    ) -> None:
        made = {"LLAMA": str(llama), "QWEN": shutil.copytree(llama, str(tmp_path / "qwen"))}
        named = tmp_path / "qwen" / "tokenizer_config.json"
        named.write_text(named.read_text("utf-8").replace("TokenizersBackend", "Qwen2Tokenizer"))
        if "BIASED" in changes.values():
            save_biased("privsyn-tiny", tmp_path / "biased", a_bias())
            made["BIASED"] = str(tmp_path / "biased")
        if "MAMBA" in changes.values():
            tokenizer = byte_level(template=False)
            tokenizer.bos_token = tokenizer.eos_token = None
            shape = MambaConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1)
            made["MAMBA"] = str(save(tmp_path / "mamba", MambaForCausalLM(shape), tokenizer))
        changed = {key: made.get(value, value) for key, value in changes.items()}
        federated = federation()
        settings = config(**changed | {"least_row_tokens": 1})
        writer = None if "generator" in changes else EchoGenerator()
        strategy = JointSketch(settings, generator=writer)
        with pytest.raises(PrivsynError, match=sentence):
            strategy.start(federated)
        assert asked(federated) == []

    def test_a_writer_that_does_not_answer_is_found_before_anybody_is_asked(
        self, federation: Builder, config: Builder, server: Server
    ) -> None:
        server.misbehave = lambda path, body, number: (401, {"error": "Incorrect API key"})
        federated = federation()
        strategy = JointSketch(
            config(synthesis="written"),
            generator=OpenAIGenerator(server.url, "tiny", max_retries=0),
        )
        with pytest.raises(GenerationError, match="Incorrect API key"):
            strategy.start(federated)
        assert asked(federated) == []
        assert not strategy.run.ledger_file.exists()


def test_the_owner_of_a_node_allows_a_tokenizer_with_its_model() -> None:
    """A model that may be trained may be counted in, as one that may embed may."""
    guard = NodeGuard(NodePolicy(dataset="d", trained_models={"mine": ""}), {})
    assert guard.trains("mine")
    assert not guard.trains("all-MiniLM-L6-v2")
    assert not guard.trains("")
