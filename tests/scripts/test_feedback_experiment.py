"""The feedback experiment in miniature: the same steps, seconds instead of an hour."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.privacy import GaussianMechanism, InsecureRandom
from flower_privsyn.queries import Cohort, mean_scores, witness_scores
from flower_privsyn.strategies.parts.ranking import rank_pairs
from flower_privsyn.testing import HashEmbedder
from scripts.experiments import feedback
from tests.support.federation import WORDS

LAW, SPACE = WORDS[:8], WORDS[12:20]
DIMENSION = 32


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
    write_users(path / "space.jsonl", SPACE, 90, texts=3)
    generator = np.random.default_rng(0)
    with (path / "public.jsonl").open("w") as file:
        for number in range(60):
            text = " ".join([*generator.choice(WORDS, size=7).tolist(), f"public{number}"])
            file.write(json.dumps({"text": text}) + "\n")
    return path


def arguments(folder: Path, *more: str) -> list[str]:
    return [
        *("--private", f"law={folder}/law.jsonl", f"space={folder}/space*.jsonl"),
        *("--public", str(folder / "public.jsonl"), "--cache", str(folder / "cache")),
        *("--max-samples", "law=1", "space=2", "--users", "30", "120"),
        *("--held-out", "30", "--donors", "30", "--generator-prompts", "3"),
        *("--prompts", "24", "--seeds", "2", "--draws", "2", "--epsilon", "1", "7"),
        *more,
    ]


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    """The results of the whole experiment."""
    results = folder / "results.json"
    more = ("--results", str(results))
    assert feedback.main(arguments(folder, *more), embedder=HashEmbedder(DIMENSION)) == 0
    loaded: dict[str, Any] = json.loads(results.read_text())
    return loaded


@pytest.fixture(scope="module")
def corpus(folder: Path, document: dict[str, Any]) -> feedback.Corpus:
    del document  # written by then, so taken from the cache
    return feedback.prepare(feedback.parse_options(arguments(folder)), embedder=None)


def rows(document: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    found = [row for row in document["rows"] if all(row.get(key) == wanted[key] for key in wanted)]
    assert found, wanted
    return found


def test_measures_every_method_in_every_cell(document: dict[str, Any]) -> None:
    cells = {(row["setting"], row["users"], row["epsilon"]) for row in document["rows"]}
    for setting, users, epsilon in itertools.product(
        ("law", "space", "mixed"), (30, 120), (None, 1.0, 7.0)
    ):
        if (setting, users) == ("space", 120):  # 90 users less 60 are not enough
            assert (setting, users, epsilon) not in cells
            continue
        if (setting, users) == ("space", 30) or setting != "space":
            found = rows(document, setting=setting, users=users, epsilon=epsilon)
            methods = {row["method"] for row in found}
            # Of users with one text the two histograms are the same.
            absent = {"pe-l2"} if setting == "law" else set()
            assert methods | absent | {"exact", "kernel"} == set(feedback.LABELS)
            assert not methods & absent
            assert all(row["seeds"] == 2 for row in found)


def test_without_noise_every_method_keeps_its_own_order(document: dict[str, Any]) -> None:
    for row in rows(document, epsilon=None):
        if row["method"] not in ("exact", "kernel"):
            # A histogram leaves many candidates without a vote; those ties count half.
            low = 0.6 if row["method"].startswith("pe") else 1.0
            assert low <= row["right_own"] <= 1.0, row
            assert row["noise"] == row["noise_measured"] == 0.0


def test_without_noise_the_linear_sketch_is_the_exact_score(document: dict[str, Any]) -> None:
    for linear in rows(document, epsilon=None, method="sketch-linear"):
        same = {key: linear[key] for key in ("setting", "prompts", "users")}
        (exact,) = rows(document, epsilon=None, method="exact", **same)
        assert linear["right_private"] == exact["right_private"] == 1.0
        for figure in ("right_held_out", "nearer_held_out", "chosen_in_domain"):
            assert linear[figure] == exact[figure]


def test_more_features_are_nearer_to_the_kernel(document: dict[str, Any]) -> None:
    for row in rows(document, epsilon=7.0, method="sketch-mean"):
        same = {key: row[key] for key in ("setting", "users", "epsilon")}
        (fewer,) = rows(document, method="sketch-1024", **same)
        # Both fall as D^-1/2, up to chance.
        assert 1.3 < fewer["feature_error"] / row["feature_error"] < 3.0
        (linear,) = rows(document, method="sketch-linear", **same)
        assert linear["feature_error"] < 1e-5


def test_in_domain_candidates_are_found(document: dict[str, Any]) -> None:
    """Users who write about one thing prefer donors' text to public text."""
    (exact,) = rows(document, setting="law", users=120, method="exact")
    assert exact["right_held_out"] > 0.9
    assert exact["chosen_in_domain"] > 0.6
    assert exact["rejected_in_domain"] < 0.2


def test_noise_is_what_the_arithmetic_says(document: dict[str, Any]) -> None:
    for row in document["rows"]:
        # What is chosen depends on the noise, and the last witness on what is chosen.
        if row["epsilon"] is None or row["method"] == "sketch-witness-chosen":
            continue
        # 4 draws; a sketch has few degrees of freedom, and the span's share is an average.
        tight = not row["method"].startswith("sketch") and "span" not in row["method"]
        assert row["noise_measured"] == pytest.approx(row["noise"], rel=0.15 if tight else 0.5)


def test_signal_over_noise_follows_from_three_figures(document: dict[str, Any]) -> None:
    options = document["about"]["options"]
    printed = feedback.arithmetic(document["rows"], options, "law", 24, 7.0)
    for line in printed.splitlines()[2:]:
        _, _, _, *pairs = (float(cell.replace(",", "")) for cell in line.strip("| ").split(" | "))
        for predicted, measured in zip(pairs[::2], pairs[1::2], strict=True):
            assert measured == pytest.approx(predicted, rel=0.4)


def test_budget_is_split_over_the_rounds(document: dict[str, Any]) -> None:
    same = {"setting": "law", "users": 120, "epsilon": 1.0}
    (every,) = rows(document, method="popri-prompt", **same)
    (once,) = rows(document, method="popri-prompt-once", **same)
    (sketch,) = rows(document, method="sketch-mean", **same)
    assert every["noise_multiplier"] == pytest.approx(20**0.5 * once["noise_multiplier"], rel=1e-4)
    assert sketch["noise_multiplier"] == once["noise_multiplier"]


def test_numbers_up_are_those_of_the_queries(document: dict[str, Any]) -> None:
    same = {"setting": "law", "users": 120, "epsilon": 1.0}
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
    for method, numbers in expected.items():
        assert rows(document, method=method, **same)[0]["numbers_up"] == numbers


def test_tables_and_plot_come_from_the_results_alone(
    folder: Path, document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    picture = folder / "plot.png"
    options = ("--from-results", str(folder / "results.json"), "--plot", str(picture))
    assert feedback.main(options) == 0
    printed = capsys.readouterr().out
    assert "#### mixed, 24 prompts: the minority" in printed
    (row,) = rows(document, setting="law", users=120, epsilon=1.0, method="sketch-linear")
    assert f"{row['right_held_out']:.3f}" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_parts_are_put_together(folder: Path, document: dict[str, Any], tmp_path: Path) -> None:
    paths = []
    for setting in ("law", "mixed"):
        paths.append(tmp_path / f"{setting}.json")
        part = [row for row in document["rows"] if row["setting"] == setting]
        feedback.write_results(paths[-1], document["about"], part)
    whole = tmp_path / "whole.json"
    parts = ("--from-results", *map(str, paths), "--results", str(whole))
    assert feedback.main(parts) == 0
    expected = [row for row in document["rows"] if row["setting"] != "space"]
    assert json.loads(whole.read_text())["rows"] == expected
    with pytest.raises(ConfigError, match="hold the same setting"):
        feedback.read_results([paths[0], paths[0]])
    other = document["about"] | {"options": document["about"]["options"] | {"rounds": 3}}
    feedback.write_results(paths[1], other, [])
    with pytest.raises(ConfigError, match="rounds = 3, .* with 20"):
        feedback.read_results(paths)


def test_nothing_is_measured_twice(folder: Path, document: dict[str, Any]) -> None:
    del document
    before = {path: path.stat().st_mtime_ns for path in (folder / "cache").glob("*.json")}
    assert len(before) == 6
    assert feedback.main(arguments(folder)) == 0
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "cache").glob("*.json")}


def test_the_prepared_corpus_holds_no_text(corpus: feedback.Corpus, folder: Path) -> None:
    assert corpus.domains == ["law", "space"]
    assert sum(map(len, corpus.responses)) > 0
    assert corpus.aimed_at == ["law", "space", ""]
    kept = b"".join(path.read_bytes() for path in (folder / "cache").glob("*.npz"))
    assert b"court" not in kept


def test_the_three_groups_share_nobody(folder: Path) -> None:
    groups = feedback.read_domain(
        "law",
        [folder / "law.jsonl"],
        tokenizer=HashEmbedder().tokenizer,
        max_tokens=64,
        max_samples=8,
        num_private=100,
        num_held_out=20,
        num_donors=10,
    )
    assert {part: group.num_users for part, group in groups.items()} == {
        "held_out": 20,
        "donors": 10,
        "private": 100,
    }
    texts = [text for group in groups.values() for text in group.texts]
    assert len(texts) == len(set(texts)) == 130


def test_too_few_users_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="220 users, which must be more than the 200 held out"):
        feedback.read_domain(
            "law",
            [folder / "law.jsonl"],
            tokenizer=HashEmbedder().tokenizer,
            max_tokens=64,
            max_samples=8,
            num_private=100,
            num_held_out=200,
            num_donors=20,
        )


def test_every_prefix_of_the_users_holds_the_shares(corpus: feedback.Corpus) -> None:
    setting = feedback.Setting(name="mixed", shares={"law": 0.9, "space": 0.1})
    cohort = feedback.draw_users(corpus, setting, "private", 120, np.random.default_rng(0))
    space = {row.tobytes() for row in corpus.users["space", "private"].records}
    minority = np.zeros(120, dtype=bool)
    for owner, record in zip(cohort.owners, cohort.records, strict=True):
        minority[owner] |= record.tobytes() in space
    assert abs(minority[:30].sum() - 3) <= 1
    assert minority.sum() == 12
    assert len(np.unique(cohort.owners)) == cohort.num_users == 120


def test_users_stop_when_a_domain_is_used_up(corpus: feedback.Corpus) -> None:
    setting = feedback.Setting(name="mixed", shares={"law": 0.5, "space": 0.5})
    cohort = feedback.draw_users(corpus, setting, "private", 1000, np.random.default_rng(0))
    assert cohort.num_users == pytest.approx(2 * 30, abs=1)


def test_candidates_are_mixed_as_said(corpus: feedback.Corpus) -> None:
    setting = feedback.Setting(name="mixed", shares={"law": 0.9, "space": 0.1})
    candidates = feedback.draw_candidates(
        corpus,
        setting,
        num_prompts=300,
        size=8,
        donor_share=0.3,
        public_share=0.3,
        generator=np.random.default_rng(0),
    )
    assert candidates.embeddings.shape == (2400, DIMENSION)
    assert np.array_equal(candidates.prompt, np.repeat(np.arange(300), 8))
    assert np.mean(candidates.origin == feedback.DONOR) == pytest.approx(0.3, abs=0.03)
    donors = {
        number: {row.tobytes() for row in corpus.users[name, "donors"].records}
        for number, name in enumerate(("law", "space"))
    }
    for row, origin, domain in zip(
        candidates.embeddings, candidates.origin, candidates.domain, strict=True
    ):
        of = [number for number, texts in donors.items() if row.tobytes() in texts]
        assert of == ([domain] if origin == feedback.DONOR else [])
    assert np.mean(candidates.domain == 1) == pytest.approx(0.15, abs=0.03)
    for prompt in candidates.embeddings.reshape(300, 8, DIMENSION):
        assert len(np.unique(prompt, axis=0)) == 8


def test_ranks_are_those_of_the_strategy() -> None:
    generator = np.random.default_rng(0)
    for rank in (2, 5, 10):
        scores = generator.integers(0, 4, size=500).astype(np.float64)  # many ties
        chosen, rejected = feedback.rank_within_prompts(scores, 10, rank)
        expected = rank_pairs(
            scores,
            np.repeat(np.arange(50), 10),
            [str(number) for number in range(500)],
            rejected_rank=rank,
        )
        assert np.array_equal(chosen, expected.chosen)
        assert np.array_equal(rejected, expected.rejected)


def test_equal_values_count_half() -> None:
    values = np.array([2.0, 1.0, 1.0, 3.0])
    chosen, rejected = np.array([0, 1, 1]), np.array([1, 2, 3])
    assert feedback.share_greater(values, chosen, rejected) == pytest.approx((1 + 0.5 + 0) / 3)


@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
def test_predicted_share_is_that_of_a_simulation(ratio: float) -> None:
    generator = np.random.default_rng(1)
    exact = generator.standard_normal(200_000)
    noised = exact + generator.standard_normal(200_000) / ratio
    pair = feedback.rank_within_prompts(noised, 10, 5)
    measured = feedback.share_greater(exact, *pair)
    predicted = feedback.predicted_share(np.ones(1), 1 / ratio, 10, 5)
    assert predicted == pytest.approx(measured, abs=0.01)
    assert feedback.predicted_share(np.ones(1), 0.0, 10, 5) == 1.0


def test_sketches_are_read_as_the_library_reads_them(corpus: feedback.Corpus) -> None:
    setting = feedback.Setting(name="law", shares={"law": 1.0})
    candidates = feedback.draw_candidates(
        corpus,
        setting,
        num_prompts=20,
        size=6,
        donor_share=0.2,
        public_share=0.3,
        generator=np.random.default_rng(0),
    )
    asked = feedback.questions(candidates, rounds=20, max_samples=1, bandwidth=1.2, seed=3)
    (question,) = [one for one in asked if "sketch-mean" in one.readers]
    cohort = corpus.users["law", "private"]
    total = question.query.answer(cohort, question.broadcast)
    mechanism = GaussianMechanism(noise_multiplier=2.0, l2_sensitivity=1.0)
    release = mechanism.release(total, random=InsecureRandom(0))
    texts, users = candidates.embeddings, cohort.num_users
    query: Any = question.query
    read = {name: reader(release, users) for name, reader in question.readers.items()}
    assert read["sketch-mean"] == pytest.approx(
        mean_scores(texts, release, users, query=query), abs=1e-6
    )
    witness = witness_scores(texts, release, users, texts, query=query)
    assert read["sketch-witness"] == pytest.approx(witness, abs=1e-6)
    # One prompt at a time: the first against the candidates, the next against the first's choice.
    best = int(np.argmax(witness_scores(texts[:6], release, users, texts, query=query)))
    following = witness_scores(texts[6:12], release, users, texts[best : best + 1], query=query)
    assert read["sketch-witness-chosen"][6:12] == pytest.approx(following, abs=1e-6)


def test_parts_of_a_cohort_add_up(corpus: feedback.Corpus) -> None:
    cohort = corpus.users["space", "private"]
    parts = [feedback.users_between(cohort, low, high) for low, high in ((0, 7), (7, 30))]
    assert [part.num_users for part in parts] == [7, 23]
    assert np.array_equal(np.concatenate([part.records for part in parts]), cohort.records)
    means = [feedback.mean_cosines(corpus.public, part) for part in (*parts, cohort)]
    assert (7 * means[0] + 23 * means[1]) / 30 == pytest.approx(means[2])


def test_distance_is_to_the_nearest() -> None:
    points = np.array([[0.0, 0.0], [3.0, 0.0]], dtype=np.float32)
    targets = np.array([[0.0, 1.0], [3.0, 4.0], [9.0, 9.0]], dtype=np.float32)
    expected = [1.0, np.sqrt(9.0 + 1.0)]
    assert feedback.nearest_distances(points, targets) == pytest.approx(expected)


def test_mean_kernels_are_those_of_a_loop(corpus: feedback.Corpus) -> None:
    cohort = corpus.users["space", "private"]
    points = corpus.public[:5]
    expected = np.zeros(5)
    for user in range(cohort.num_users):
        texts = cohort.records[cohort.owners == user]
        squared = ((points[:, None] - texts[None]) ** 2).sum(axis=2)
        expected += np.exp(-squared / (2 * 1.3**2)).mean(axis=1) / cohort.num_users
    assert feedback.mean_kernels(points, cohort, 1.3) == pytest.approx(expected, rel=1e-5)


def test_mean_cosines_weigh_users_not_texts() -> None:
    records = np.array([[2.0, 0.0], [0.0, 3.0], [0.0, 1.0]], dtype=np.float32)
    cohort = Cohort(records, np.array([0, 1, 1]), 2)
    candidates = np.array([[5.0, 0.0]], dtype=np.float32)
    assert feedback.mean_cosines(candidates, cohort) == pytest.approx([0.5])


def test_private_files_are_named(folder: Path) -> None:
    law = f"{folder}/law.jsonl"
    assert feedback.parse_private([f"a={law}", law, f"b={folder}/s*.jsonl"]) == {
        "a": [Path(law), Path(law)],
        "b": [folder / "space.jsonl"],
    }
    with pytest.raises(ConfigError, match="must begin with NAME=FILE"):
        feedback.parse_private([law])
    with pytest.raises(ConfigError, match="no such file or folder"):
        feedback.parse_private([f"a={folder}/none*.jsonl"])
