"""Aug-PE end to end in one process: labels from the nodes' text to `synthetic.jsonl`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.data import Users
from flower_privsyn.errors import FederationError, GenerationError
from flower_privsyn.messages import wire
from flower_privsyn.progress import Progress
from flower_privsyn.run import RunDirectory
from flower_privsyn.strategies import AugPE, AugPEConfig
from flower_privsyn.strategies.more_text import MoreText, write_more
from flower_privsyn.testing import (
    EchoGenerator,
    HashEmbedder,
    LoopbackGrid,
    ShuffleWords,
    hash_embedder,
)
from tests.support.federation import embedding_nodes
from tests.support.run_files import lines, releases
from tests.support.small_runs import small_run

Builder = Callable[..., Any]

WORDS = {
    "law": "court judge appeal ruling witness jury verdict statute".split(),
    "river": "water bank bridge fish boat flood current delta".split(),
}
CLASSES = "law; river"


def labelled_users(number: int, *, seed: int = 0) -> Users:
    """Users with one to three texts each, of one class or of both."""
    random = np.random.default_rng(seed)
    texts, owners, labels = [], [], []
    for user in range(number):
        for _ in range(random.integers(1, 4)):
            label = ("law", "river")[int(random.integers(2))]
            texts.append(" ".join(random.choice(WORDS[label], 6)))
            owners.append(user)
            labels.append(label)
    return Users(
        user_ids=tuple(f"u{n}" for n in range(number)),
        texts=texts,
        owners=np.array(owners),
        labels=list(labels),
    )


class Writer(EchoGenerator):
    """Writes words of the class that a prompt names, some number of them alike."""

    def generate(self, prompts: Sequence[str], *, sampling: Any, **kwargs: Any) -> list[list[str]]:
        found = []
        for place, prompt in enumerate(prompts):
            label = next((name for name in WORDS if f'"{name}"' in prompt), "river")
            chooser = np.random.default_rng([sampling.seed % 2**63, place])
            found.append([" ".join(chooser.choice(WORDS[label], 5))])
        return found


@pytest.fixture
def config(tmp_path: Path, public_file: Path) -> Callable[..., AugPEConfig]:
    return small_run(
        AugPEConfig,
        tmp_path / "run",
        otherwise={"noise_multiplier": 0.0},
        classes=CLASSES,
        num_rounds=2,
        num_candidates=24,
        num_variations=3,
        max_samples=2,
        public_text=str(public_file),
    )


def strategy(config: AugPEConfig, **parts: Any) -> AugPE:
    values = {"embedder": HashEmbedder(), "generator": Writer(), **parts}
    return AugPE(config, **values)


def population(run: Path, number: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(
        run / f"rounds/{number:04d}/population.parquet"
    ).to_pylist()
    return rows


class TestLabels:
    def test_the_whole_path_from_file_to_synthetic_text(
        self, config: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "users.jsonl"
        users = labelled_users(20)
        path.write_text(
            "".join(
                json.dumps({"client_id": users.user_ids[owner], "text": text, "kind": label}) + "\n"
                for owner, text, label in zip(
                    users.owners, users.texts, users.labels or [], strict=True
                )
            )
        )
        app = create_client_app(embedder=hash_embedder, cache_directory=tmp_path / "cache")
        settings = {"data": str(path), "label-column": "kind"}
        grid = LoopbackGrid(app, num_nodes=3, run_config=settings)
        method = strategy(config(max_samples=3, num_nodes=3))
        method.start(grid)
        run = method.run.path
        counts = Counter(users.labels)
        for number in (1, 2):
            rows = population(run, number)
            assert Counter(row["label"] for row in rows) == {"law": 12, "river": 12}
            for label in WORDS:  # exact at noise 0: everybody's texts are within the cap
                votes = sum(row["votes"] for row in rows if row["label"] == label)
                assert votes == counts[label]
                assert sum(row["survived"] for row in rows if row["label"] == label) == 4
        synthetic = lines(run / "synthetic.jsonl")
        assert synthetic
        for row in synthetic:
            assert set(row) == {"text", "round", "parent", "source", "label"}
            assert set(row["text"].split()) <= set(WORDS[row["label"]])
        state = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
        assert state["answers"] == 3
        asked = [m.metadata.message_type for m in grid.requests]
        assert asked.count("query.labelled_histogram") == 6
        # More text has the classes of users' text, which the votes told exactly here.
        monkeypatch.setattr(MoreText, "load_generator", lambda settings: EchoGenerator())
        done = RunDirectory.open(run)
        settings = MoreText.of(done, {"generator": "privsyn-lm"})
        more = write_more(done, settings, num_samples=10, seed=0, progress=Progress())
        wanted = round(10 * counts["law"] / counts.total())
        assert more.by_class == {"law": wanted, "river": 10 - wanted}
        for row in lines(more.path):
            others = set().union(*(WORDS[name] for name in WORDS if name != row["label"]))
            assert not set(row["text"].split()) & (others - set(WORDS[row["label"]]))

    def test_another_label_counts_for_nothing_and_its_user_stays(
        self, config: Builder, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        users = labelled_users(8)
        labels = ["secret" if n < 4 else label for n, label in enumerate(users.labels or [])]
        strange = Users(
            user_ids=users.user_ids, texts=users.texts, owners=users.owners, labels=labels
        )
        kept = Counter(labels)
        method = strategy(config(num_rounds=1, max_samples=3))
        grid = embedding_nodes(strange, tmp_path)
        method.start(grid)
        rows = population(method.run.path, 1)
        assert sum(row["votes"] for row in rows) == kept["law"] + kept["river"]
        assert releases(method.run.path)[0]["num_users"] == 8
        # Nothing of it leaves the node, and in a simulation it is in nobody's log.
        assert not any(wire.unexpected_records(reply) for reply in grid.replies)
        assert "secret" not in caplog.text

    def test_nodes_without_labels_are_named_before_anything_is_spent(
        self, config: Builder, tmp_path: Path
    ) -> None:
        users = labelled_users(6)
        bare = Users(user_ids=users.user_ids, texts=users.texts, owners=users.owners)
        with pytest.raises(FederationError, match="could not be loaded"):
            strategy(config()).start(embedding_nodes(bare, tmp_path))
        assert not (tmp_path / "run" / "ledger.jsonl").exists()


class TestTheAlgorithm:
    def test_of_every_class_the_best_survive_and_are_varied(
        self, config: Builder, tmp_path: Path
    ) -> None:
        method = strategy(config(), variation=ShuffleWords())
        method.start(embedding_nodes(labelled_users(30), tmp_path))
        first, second = (population(method.run.path, number) for number in (1, 2))
        assert [row["source"] for row in first] == ["generated"] * 8 + ["variation"] * 16
        assert [row["parent"] for row in first[8:]] == [[row["id"]] for row in first[:8]] * 2
        for label in WORDS:
            own = [row for row in first if row["label"] == label]
            best = sorted(own, key=lambda row: (-row["votes"], own.index(row)))[:4]
            assert [row["text"] for row in own if row["survived"]] == [
                row["text"] for row in own if row in best
            ]
        kept = [row for row in first if row["survived"]]
        assert [row["text"] for row in second[:8]] == [row["text"] for row in kept]
        assert [row["label"] for row in second] == [row["label"] for row in kept] * 3
        last = [row for row in second if row["survived"]]
        synthetic = lines(method.run.path / "synthetic.jsonl")
        assert {row["text"] for row in synthetic} == {row["text"] for row in last}

    def test_with_masks_the_first_texts_of_each_class_are_public(
        self, config: Builder, tmp_path: Path, public_file: Path
    ) -> None:
        method = strategy(
            config(variation="mask-fill", num_rounds=1), variation=ShuffleWords(), generator=None
        )
        method.start(embedding_nodes(labelled_users(6), tmp_path))
        first = population(method.run.path, 1)
        assert Counter(row["label"] for row in first) == {"law": 12, "river": 12}
        public = {row["text"] for row in lines(public_file)}
        assert {row["text"] for row in first if row["source"] == "public"} <= public

    def test_classes_of_blanks_are_none(self, config: Builder, tmp_path: Path) -> None:
        method = strategy(config(classes=" ", num_rounds=1), variation=ShuffleWords())
        method.start(embedding_nodes(labelled_users(6), tmp_path))
        assert "label" not in population(method.run.path, 1)[0]

    def test_a_generator_that_writes_nothing_is_named_before_anything_is_spent(
        self, config: Builder, tmp_path: Path
    ) -> None:
        class Silent(Writer):
            def generate(self, prompts: Sequence[str], **options: Any) -> list[list[str]]:
                silent = ['"river"' in prompt for prompt in prompts]
                found = super().generate(prompts, **options)
                return [[""] if quiet else row for quiet, row in zip(silent, found, strict=True)]

        with pytest.raises(GenerationError, match='wrote no first text of the class "river"'):
            strategy(config(), generator=Silent(), variation=ShuffleWords()).start(
                embedding_nodes(labelled_users(6), tmp_path)
            )
        assert not releases(tmp_path / "run")
