"""What labels are worth: classifiers of synthetic text on private text, with errors and floors."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flower_privsyn.cli.evaluate import rows
from flower_privsyn.data import Samples, load_users
from flower_privsyn.evaluation.classification import classify_run, logistic_regression, share
from flower_privsyn.evaluation.run import evaluate_run, held_out_samples, split_users
from flower_privsyn.progress import Progress
from flower_privsyn.run import RunDirectory
from flower_privsyn.testing import HashEmbedder
from flower_privsyn.training.causal import CausalTraining
from tests.support.labelled_runs import NAMES, texts_of


def _rows(samples: Samples) -> list[dict[str, str]]:
    assert samples.labels is not None
    return [
        {"text": text, "label": NAMES[place]}
        for text, place in zip(samples.texts, samples.labels, strict=True)
    ]


def test_labels_that_say_something_are_worth_more_than_every_floor(
    labelled_run: Path, tmp_path: Path
) -> None:
    run = RunDirectory.open(shutil.copytree(labelled_run / "run", tmp_path / "run"))
    run.write_synthetic(_rows(texts_of(120, 2, wrong=0.1)))
    public = pa.Table.from_pylist(_rows(texts_of(120, 3, wrong=0.9)))
    pq.write_table(public, run.round_files(1).population)
    found = classify_run(
        run,
        texts_of(300, 1),
        private=texts_of(120, 4),
        classifier=logistic_regression(HashEmbedder().embed),
        name="logistic regression",
        progress=Progress(),
    )
    assert found is not None
    assert found.public is not None
    assert found.private is not None
    assert found.private.accuracy.value > 0.97
    assert found.synthetic.accuracy.value > 0.9
    assert found.majority.value == pytest.approx(1 / 3, abs=0.08)
    assert found.public.accuracy.value < found.majority.value
    assert found.synthetic.macro_f1 == pytest.approx(found.synthetic.accuracy.value, abs=0.05)
    assert found.test_texts == 300
    assert found.test_users == 100
    assert found.synthetic.training_texts == 120
    record = found.to_dict()
    assert record["synthetic"]["stamp"] == record["stamp"]


def test_the_interval_is_that_of_users_and_not_of_texts() -> None:
    random = np.random.default_rng(0)
    users = 400
    alike = np.repeat(random.random(users) < 0.7, 5)  # all texts of a user are hit, or none
    found = share(alike, np.repeat(np.arange(users), 5))
    assert found.value == alike.mean()
    width = 2 * 1.96 * math.sqrt(0.7 * 0.3 / users)
    assert found.high - found.low == pytest.approx(width, rel=0.1)


class TestRun:
    """A run with classes, measured by `privsyn evaluate`."""

    def test_its_labels_are_measured_beside_the_floors(
        self, labelled_run: Path, tmp_path: Path
    ) -> None:
        run = RunDirectory.open(labelled_run / "run")
        private, held_out = split_users(
            run.config, load_users(labelled_run / "users.jsonl", label_column="label")
        )
        found = evaluate_run(
            run,
            held_out,
            work=tmp_path / "work",
            private=private,
            training=CausalTraining(max_steps=1, train_on_eos=False),
            embedder=HashEmbedder(),
        )
        record = found.classification
        assert record is not None
        assert record.classes == NAMES
        assert record.public is not None
        assert record.private is not None
        assert record.synthetic.accuracy.value > record.public.accuracy.value
        assert record.private.accuracy.value > 0.9
        assert record.synthetic.accuracy.low < record.synthetic.accuracy.high
        assert record.test_users <= len(held_out)
        words = dict(rows(found))
        assert words["classes"].startswith("3; logistic regression on")
        assert "% [" in words["accuracy, synthetic text"]
        assert {"accuracy, the commonest class", "accuracy, private text (no privacy)"} <= set(
            words
        )

    def test_a_run_without_classes_has_no_such_figure(
        self, labelled_run: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(labelled_run / "run", tmp_path / "run")
        config = json.loads((tmp_path / "run" / "config.json").read_text())
        config["config"]["classes"] = ""
        (tmp_path / "run" / "config.json").write_text(json.dumps(config))
        run = RunDirectory.open(tmp_path / "run")
        _, held_out = split_users(
            run.config, load_users(labelled_run / "users.jsonl", label_column="label")
        )
        embedder = HashEmbedder()
        samples = held_out_samples(run.config, held_out, tokenizer=embedder.tokenizer)
        learn = logistic_regression(embedder.embed)
        asked = {"private": None, "classifier": learn, "name": "", "progress": Progress()}
        assert classify_run(run, samples, **asked) is None
