"""What is kept of a pool differs in the one thing that its name says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.evaluation.distribution import mean_discrepancy
from flower_privsyn.evaluation.result import STAMP
from scripts.experiments import nearer_or_useful as experiment


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def cloud(random: np.random.Generator, count: int, towards: int) -> np.ndarray:
    rows = random.normal(size=(count, 16))
    rows[:, towards] += 4.0
    return unit(rows)


def test_herding_comes_nearer_than_chance() -> None:
    random = np.random.default_rng(0)
    target = np.concatenate([cloud(random, 500, 0), cloud(random, 500, 1)])[
        random.permutation(1000)
    ]
    pool = np.concatenate([cloud(random, 300, place) for place in range(4)])
    chosen = experiment.herd(pool, target, 150)
    assert len(set(chosen)) == 150
    near = mean_discrepancy(pool[chosen], target).squared
    drawn = mean_discrepancy(pool[random.permutation(len(pool))[:150]], target).squared
    assert near < 0.2 * drawn
    # Both of what the target is made of, and hardly anything else.
    kinds = np.bincount(np.array(chosen) // 300, minlength=4)
    assert min(kinds[:2]) > 50
    assert max(kinds[2:]) < 10


def test_log_ratios_say_whose_words_they_are_and_little_of_rare_ones() -> None:
    public = np.array([50.0, 50.0, 900.0, 0.0])
    found = experiment.log_ratios(np.array([900.0, 50.0, 50.0, 0.0]), public)
    assert found[0] > 2
    assert found[2] < -2
    assert abs(found[3]) < 1e-9
    assert experiment.divergence(public, public) == pytest.approx(0.0)
    assert experiment.divergence(np.array([900.0, 50, 50, 0]), public) > 1


def test_corpora_have_as_many_texts_and_differ_in_what_they_are_called() -> None:
    random = np.random.default_rng(1)
    texts = [f"text number {n} " + "word " * (n % 9) for n in range(80)]
    pool = experiment.Pool(
        texts=texts,
        vectors=cloud(random, 80, 0),
        rows=[np.arange(3 + n % 9) for n in range(80)],
        likelihood=random.normal(size=80),
        words=random.normal(size=80),
    )
    own = [f"one {n} two three four" for n in range(40)]
    found = experiment.corpora(pool, own, cloud(random, 1000, 0), texts=20, seed=0)
    assert {len(corpus) for corpus in found.values()} == {20}
    assert set(found["likeliest words"]) == {texts[n] for n in np.argsort(-pool.words)[:20]}
    assert set(found["most fluent"]) == {texts[n] for n in np.argsort(-pool.likelihood)[:20]}
    assert min(len(text.split()) for text in found["longest"]) >= 9
    assert set(found["users' own"]) < set(own)
    mixed = found["users' own, words in any order"]
    assert [sorted(text.split()) for text in mixed] == [
        sorted(text.split()) for text in found["users' own"]
    ]
    assert mixed != found["users' own"]


def test_the_table_is_stamped_and_says_what_goes_with_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def record(corpus: str, seed: int, **figures: Any) -> str:
        usual = {"mmd": 0.1, "words": 1.0, "likelihood": -4.0, "tokens": 40.0, "bits_per_byte": 2.0}
        return json.dumps({"corpus": corpus, "seed": seed, **usual, **figures}) + "\n"

    file = tmp_path / "results.jsonl"
    file.write_text(
        record("drawn", 0, accuracy=0.17)
        + record("drawn", 1, accuracy=0.18)
        + record("nearest", 0, accuracy=0.16, mmd=0.01)
        + record("own", 0, accuracy=0.22, words=0.1)
    )
    experiment.show(file)
    shown = capsys.readouterr().out
    assert shown.startswith(f"> {STAMP}")
    assert "| drawn | 2 | 0.1000 | 1.000 | -4.00 | 40 | 17.50 ± 0.50 | 2.0000 |" in shown
    assert "rank correlation of mmd with accuracy" in shown
