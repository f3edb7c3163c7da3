"""The feedback experiment in miniature, and the page that was made from the whole one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.evaluation import STAMP
from flower_privsyn.evaluation.sealed import sealed
from flower_privsyn.files import read_json_lines
from flower_privsyn.testing import HashEmbedder
from scripts.experiments.feedback import __main__ as feedback
from scripts.experiments.feedback.corpus import Corpus, draw_candidates, draw_users, prepare
from scripts.experiments.feedback.measure import share_greater
from scripts.experiments.feedback.methods import LABELS
from scripts.experiments.feedback.protocol import Protocol
from scripts.experiments.feedback.show import arithmetic, rows_of, tables
from scripts.experiments.people import deal
from tests.support.federation import WORDS

DOCS = Path(__file__).parents[2] / "docs"
LAW, SPACE = WORDS[:8], WORDS[12:20]
DIMENSION = 32

SMALL = Protocol(
    users=(30, 120),
    epsilons=(1.0, 7.0),
    at=(30, 7.0),
    held_out=30,
    donors=30,
    generator_prompts=3,
    draws=2,
)


def write_users(path: Path, topic: list[str], count: int, *, texts: int) -> None:
    generator = np.random.default_rng(len(topic[0]))
    with path.open("w") as file:
        for user, text in itertools.product(range(count), range(texts)):
            # A word of one's own, so that no two texts are equal.
            words = [*generator.choice(topic, size=6).tolist(), f"{topic[0]}{user}x{text}"]
            row = {"client_id": f"{topic[0]}-{user}", "text": " ".join(words)}
            file.write(json.dumps(row) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users of two kinds and public text, on disk."""
    path = tmp_path_factory.mktemp("feedback")
    write_users(path / "law.jsonl", LAW, 220, texts=1)
    write_users(path / "space.jsonl", SPACE, 110, texts=3)
    generator = np.random.default_rng(0)
    with (path / "public.jsonl").open("w") as file:
        for number in range(60):
            text = " ".join([*generator.choice(WORDS, size=7).tolist(), f"public{number}"])
            file.write(json.dumps({"text": text}) + "\n")
    return path


def ask(folder: Path, *more: str, protocol: Protocol | None = None) -> None:
    """Measure, and add what was measured to the results of the folder."""
    words = ["measure", "--private", "abstracts", str(folder / "law.jsonl")]
    words += ["--private", "speech", str(folder / "space.jsonl"), "--cache", str(folder / "cache")]
    words += ["--results", str(folder / "results.jsonl"), *more]
    assert feedback.main(words, embedder=HashEmbedder(DIMENSION), protocol=protocol) == 0


@pytest.fixture(scope="module")
def small(folder: Path) -> Protocol:
    return Protocol(**{**vars(SMALL), "public": str(folder / "public.jsonl")})


@pytest.fixture(scope="module")
def results(folder: Path, small: Protocol) -> list[dict[str, Any]]:
    """The results of the whole experiment."""
    main = ("--settings", "abstracts", "--prompts", "24", "--seeds", "2", "--sweep")
    ask(folder, *main, protocol=small)
    others = ("--settings", "abstracts", "speech", "mixed", "--prompts", "12", "--seeds", "1")
    ask(folder, *others, protocol=small)
    return list(read_json_lines(folder / "results.jsonl"))


@pytest.fixture(scope="module")
def corpus(folder: Path, small: Protocol) -> Corpus:
    private = {"abstracts": [folder / "law.jsonl"], "speech": [folder / "space.jsonl"]}
    return prepare(private, small, folder / "cache", embedder=HashEmbedder(DIMENSION))


def test_measures_every_method_in_every_cell(results: list[dict[str, Any]]) -> None:
    main = rows_of(results, "abstracts", 24)
    assert set(main) == set(LABELS)
    cells = {(users, epsilon) for users in (30, 120) for epsilon in (None, 1.0, 7.0)}
    for method, row in main.items():
        found = {(users, epsilon) for users, epsilon, *_ in row["right"]}
        assert found == ({(30, None), (120, None)} if method == "exact" else cells)
    for setting in ("abstracts", "speech", "mixed"):
        for row in rows_of(results, setting, 12).values():
            assert {users for users, *_ in row["right"]} == {30}


def test_without_noise_the_linear_sketch_is_the_exact_score(results: list[dict[str, Any]]) -> None:
    for setting, prompts in (("abstracts", 24), ("speech", 12), ("mixed", 12)):
        rows = rows_of(results, setting, prompts)
        exact, linear = (rows[name]["without_noise"] for name in ("exact", "sketch-linear"))
        assert linear["noise"] == [0.0, 0.0]
        for figure in ("nearer", "chosen_in_domain", "signal"):
            assert linear[figure][0] == pytest.approx(exact[figure][0], rel=1e-4)


def test_in_domain_candidates_are_found(results: list[dict[str, Any]]) -> None:
    """Users who write about one thing prefer donors' text to public text."""
    exact = rows_of(results, "abstracts", 24)["exact"]
    assert exact["right"][-1][2] > 0.9
    assert exact["without_noise"]["chosen_in_domain"][0] > 0.6
    assert exact["without_noise"]["rejected_in_domain"][0] < 0.2


def test_signal_over_noise_follows_from_a_few_figures(
    results: list[dict[str, Any]], small: Protocol
) -> None:
    printed = arithmetic(rows_of(results, "abstracts", 24), small, prompts=24)
    for line in printed.splitlines()[2:]:
        predicted, measured = (float(cell) for cell in line.strip("| ").split(" | ")[1:])
        assert measured == pytest.approx(predicted, rel=0.4)


def test_budget_is_split_over_the_rounds(results: list[dict[str, Any]]) -> None:
    rows = rows_of(results, "abstracts", 24)
    every, once, sketch = (
        rows[name]["figures"]["noise_multiplier"][0]
        for name in ("popri-prompt", "popri-prompt-once", "sketch-mean")
    )
    assert every == pytest.approx(20**0.5 * once, rel=1e-3)
    assert sketch == once


def test_numbers_up_are_those_of_the_queries(results: list[dict[str, Any]]) -> None:
    expected = {
        "popri-none": 20 * 240,
        "popri-prompt-span": 20 * DIMENSION,
        "popri-prompt-span-once": DIMENSION,
        "pe": 20 * 240,
        "sketch-linear": 2 + DIMENSION,
        "sketch-1024": 1024,
        "sketch-witness": 4096,
        "sketch-half": 4096 + DIMENSION,
    }
    rows = rows_of(results, "abstracts", 24)
    for method, numbers in expected.items():
        assert rows[method]["figures"]["numbers_up"] == [numbers, 0.0]


def test_tables_and_plot_come_from_the_results_alone(
    folder: Path,
    small: Protocol,
    results: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    picture = folder / "plot.png"
    words = ("show", "--results", str(folder / "results.jsonl"), "--plot", str(picture))
    assert feedback.main(words, protocol=small) == 0
    printed = capsys.readouterr().out
    (cell,) = [c for c in rows_of(results, "mixed", 12)["sketch-linear"]["right"] if c[1] == 7.0]
    assert f"{cell[2]:.3f}" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_page_shows_what_the_results_hold() -> None:
    page = (DOCS / "feedback_experiment.md").read_text(encoding="utf-8")
    results = list(read_json_lines(DOCS / "feedback_experiment.jsonl"))
    assert all(row["stamp"] == STAMP for row in results)
    found = list(tables(results, Protocol()))
    assert len(found) == 4
    for table in found:
        assert table in page


def test_what_is_measured_again_takes_the_place_of_what_was_before() -> None:
    both = [{"setting": "a", "prompts": 1, "method": "exact", "seed": seed} for seed in (0, 1)]
    assert rows_of(both, "a", 1)["exact"]["seed"] == 1
    with pytest.raises(ConfigError, match="nothing about speech with 7 prompts"):
        rows_of(both, "speech", 7)


def test_groups_share_nobody(folder: Path) -> None:
    names = [f"{LAW[0]}-{user}" for user in range(220)]
    open_to_all = {name for name, closed in zip(names, sealed(names), strict=True) if not closed}
    groups = deal([folder / "law.jsonl"], 20, 10, 300)
    count = len(open_to_all)
    assert [len(group) for group in groups] == [20, 10, count - 30]
    assert {name for group in groups for name in group.user_ids} == open_to_all
    with pytest.raises(DataError, match=f"{count} users, which must be more than the {count} who"):
        deal([folder / "law.jsonl"], count - 20, 20, 100)


def test_every_prefix_of_the_users_holds_the_shares(corpus: Corpus) -> None:
    shares = {"abstracts": 0.9, "speech": 0.1}
    cohort = draw_users(corpus, shares, "private", 120, np.random.default_rng(0))
    speech = {row.tobytes() for row in corpus.users["speech", "private"].records}
    minority = np.zeros(120, dtype=bool)
    for owner, record in zip(cohort.owners, cohort.records, strict=True):
        minority[owner] |= record.tobytes() in speech
    assert abs(minority[:30].sum() - 3) <= 1
    assert minority.sum() == 12
    assert len(np.unique(cohort.owners)) == cohort.num_users == 120
    # They stop when a domain is used up.
    halves = {"abstracts": 0.5, "speech": 0.5}
    cohort = draw_users(corpus, halves, "private", 1000, np.random.default_rng(0))
    assert cohort.num_users == pytest.approx(2 * corpus.users["speech", "private"].num_users, abs=1)


def test_candidates_are_mixed_as_said(corpus: Corpus) -> None:
    protocol = Protocol(size=8, donor_share=0.3, public_share=0.3)
    shares = {"abstracts": 0.9, "speech": 0.1}
    candidates = draw_candidates(corpus, shares, protocol, 300, np.random.default_rng(0))
    assert candidates.embeddings.shape == (2400, DIMENSION)
    assert np.array_equal(candidates.prompt, np.repeat(np.arange(300), 8))
    assert np.mean(candidates.domain >= 0) == pytest.approx(0.3, abs=0.03)
    assert np.mean(candidates.domain == 1) == pytest.approx(0.15, abs=0.03)
    donors = {
        number: {row.tobytes() for row in corpus.users[name, "donors"].records}
        for number, name in enumerate(shares)
    }
    for row, domain in zip(candidates.embeddings, candidates.domain, strict=True):
        of = [number for number, texts in donors.items() if row.tobytes() in texts]
        assert of == ([domain] if domain >= 0 else [])
    for prompt in candidates.embeddings.reshape(300, 8, DIMENSION):
        assert len(np.unique(prompt, axis=0)) == 8


def test_equal_values_count_half() -> None:
    values = np.array([2.0, 1.0, 1.0, 3.0])
    chosen, rejected = np.array([0, 1, 1]), np.array([1, 2, 3])
    assert share_greater(values, chosen, rejected) == pytest.approx((1 + 0.5 + 0) / 3)
