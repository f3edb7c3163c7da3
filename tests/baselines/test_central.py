"""CTCL's baselines with all records in one place: the script, for real, on small data."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest

from flower_privsyn.privacy import PoissonSampling, Release, release_epsilon
from flower_privsyn.testing import HashEmbedder
from tests.support.run_files import lines
from tests.support.topics import documents, write_topics

FILE = Path(__file__).parents[2] / "baselines" / "ctcl" / "central" / "central.py"

#: Of two subjects, of the first twice as many.
RECORDS = [text for n, text in enumerate(documents(60, seed=5, words=3)) if n % 12 in (0, 1, 6)]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """The script's names; here, for Opacus takes seconds to load in every process that collects."""
    pytest.importorskip("opacus")
    return runpy.run_path(str(FILE))


@pytest.mark.parametrize(
    "method",
    [
        "ctcl",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("vanilla", "resampled", "downstream")
        ),
    ],
)
def test_it_trains_writes_and_says_record_level(
    script: dict[str, Any],
    method: str,
    llama: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, output = tmp_path / "records.jsonl", tmp_path / "out"
    rows = [{"client_id": str(n), "text": text} for n, text in enumerate(RECORDS)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [str(data), "--method", method, "--epsilon", "0.5", "--output", str(output)]
    words += ["--model", str(llama), "--downstream", str(llama), "--steps", "3", "--samples", "5"]
    words += ["--batch-size", "4", "--max-new-tokens", "6"]
    measured = method in ("vanilla", "downstream")
    words += ["--held-out", str(data)] if measured else []
    words += ["--topics", str(write_topics(tmp_path)), "--num-topics", "6"]
    asked = script["parser"]().parse_args(words)
    script["run"](asked, HashEmbedder())
    said = capsys.readouterr().out
    assert f"{len(RECORDS)} records, epsilon 0.5; record level" in said
    assert ("next-token accuracy 0." in said) == measured
    privacy = json.loads((output / "privacy.json").read_text())
    assert privacy["level"].startswith("record level")
    assert privacy["delta"] == 1 / (len(RECORDS) * math.log(len(RECORDS)))
    assert privacy["noise_multipliers"]["steps"] > 0.5
    assert (output / "model" / "model.safetensors").read_bytes() != (
        llama / "model.safetensors"
    ).read_bytes()
    if method != "downstream":
        assert len(lines(output / "synthetic.jsonl")) == 5
    with pytest.raises(SystemExit, match="new or empty"):
        script["run"](asked, HashEmbedder())


def test_the_noise_is_what_the_steps_cost_at_opacus_s_rate(script: dict[str, Any]) -> None:
    plan = script["planned"](100, epsilon=0.5, steps=5, rate=1 / 4, histogram=False)
    (steps,) = plan.phases
    sampling = PoissonSampling(rate=0.25, population=100)
    releases = [Release(noise_multiplier=steps.noise_multiplier, sampling=sampling)] * 5
    assert release_epsilon(releases, delta=plan.delta) == pytest.approx(0.5, rel=1e-3)


def test_the_histogram_is_paid_from_the_same_budget(script: dict[str, Any]) -> None:
    plan = script["planned"](100, epsilon=0.5, steps=5, rate=1.0, histogram=True)
    topics, steps = plan.phases
    assert topics.noise_multiplier == 10.0
    together = (topics.noise_multiplier**-2 + 5 * steps.noise_multiplier**-2) ** -0.5
    spent = dp_accounting.get_epsilon_gaussian(together, plan.delta)
    assert spent == pytest.approx(0.5, rel=1e-3)


def test_records_are_clipped_and_one_without_text_adds_zero(
    script: dict[str, Any], llama: Path, tmp_path: Path
) -> None:
    """Without noise one step of AdamW moves by the clipped mean's sign, whatever the scale."""
    common: dict[str, Any] = {"noise_multiplier": 0.0, "steps": 1, "learning_rate": 1e-3}
    texts = ["a river in the valley", "the doctor and the nurse"]
    for name, given in (("two", texts), ("more", [*texts, ""])):
        script["train"](
            llama, [""] * len(given), given, tmp_path / name, batch_size=len(given), **common
        )
    from safetensors.numpy import load_file

    two, more = (load_file(tmp_path / name / "model.safetensors") for name in ("two", "more"))
    before = load_file(llama / "model.safetensors")
    assert any(not np.array_equal(two[key], before[key]) for key in two)
    # AdamW moves by g / (|g| + 1e-8): a third less of g, in the mean over one record more, changes
    # that by a tenth of the learning rate at most, where |g| is about as small, and as much again
    # where the sum of so small a g is rounded otherwise.
    for key in two:
        assert np.abs(two[key] - more[key]).max() <= 0.2 * common["learning_rate"]


def test_texts_are_drawn_again_by_the_histogram(script: dict[str, Any]) -> None:
    texts = [f"text {n}" for n in range(10)]
    topics = np.array([0] * 8 + [1] * 2)
    histogram = np.array([1.0, 3.0, 9.0])  # of the third topic nothing was written
    found = script["resampled"](texts, topics, histogram, count=8, seed=0)
    assert sum(text in texts[:8] for text in found) == 2
    assert sum(text in texts[8:] for text in found) == 6
