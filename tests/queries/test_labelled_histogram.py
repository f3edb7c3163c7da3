"""Votes within classes: exact counts, one vector per user, the declared sensitivity attained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flower_privsyn.messages import wire
from flower_privsyn.queries import Cohort, LabelledHistogram, NearestNeighborHistogram
from flower_privsyn.testing import random_cohort
from tests.support.questions import DATA

CLASSES = np.array([0, 1, 2, 0, 1, 2, 0, 1], dtype=np.int32)


def broadcast(seed: int = 0, classes: np.ndarray = CLASSES, dimension: int = 6) -> dict[str, Any]:
    candidates = np.random.default_rng(seed).standard_normal((len(classes), dimension))
    return {"candidates": candidates.astype(np.float32), "classes": classes}


def labelled(cohort: Cohort, labels: np.ndarray) -> Cohort:
    return Cohort(cohort.records, cohort.owners, cohort.num_users, labels.astype(np.int64))


def randomly_labelled(users: int, *, seed: int, kinds: int = 3) -> Cohort:
    cohort = random_cohort(num_users=users, max_records=7, dimension=6, seed=seed)
    labels = np.random.default_rng(seed).integers(0, kinds, len(cohort.owners))
    return labelled(cohort, labels)


def test_every_record_votes_for_the_nearest_candidate_of_its_class() -> None:
    cohort, asked = randomly_labelled(50, seed=1), broadcast()
    assert cohort.labels is not None
    distances = (
        (cohort.records.astype(float)[:, None] - asked["candidates"].astype(float)[None]) ** 2
    ).sum(axis=-1)
    distances[cohort.labels[:, None] != CLASSES[None]] = np.inf
    expected = np.bincount(distances.argmin(axis=1), minlength=len(CLASSES))
    votes = LabelledHistogram(max_samples=7).answer(cohort, asked)
    assert np.array_equal(votes, expected)
    for label in range(3):  # counts of classes are exact
        assert votes[label == CLASSES].sum() == (cohort.labels == label).sum()


def test_a_record_whose_class_has_no_candidate_does_not_vote() -> None:
    cohort = randomly_labelled(30, seed=3, kinds=5)
    assert cohort.labels is not None
    votes = LabelledHistogram(max_samples=7).answer(cohort, broadcast())
    assert votes.sum() == (cohort.labels < 3).sum()
    nobody = labelled(cohort, np.full(len(cohort.owners), 4))
    assert not LabelledHistogram(max_samples=7).answer(nobody, broadcast()).any()


class TestRefusals:
    def test_records_without_classes(self) -> None:
        cohort = random_cohort(num_users=3, max_records=2, dimension=6, seed=0)
        with pytest.raises(ValueError, match="records that have classes"):
            LabelledHistogram(max_samples=2).answer(cohort, broadcast())
        with pytest.raises(ValueError, match="labels must be"):
            Cohort(cohort.records, cohort.owners, 3, np.zeros(1, np.int64))
        assert not DATA.suits(LabelledHistogram())

    def test_labels_go_with_their_records(self) -> None:
        cohort = randomly_labelled(20, seed=5)
        assert cohort.labels is not None
        cohort = labelled(cohort, np.arange(len(cohort.owners)))
        chosen = np.random.default_rng(0).random(20) < 0.5
        for part in (cohort.select(chosen), cohort.cap(2), *cohort.blocks(7)):
            assert part.labels is not None
            assert np.array_equal(part.records, cohort.records[part.labels])


def test_classes_travel_in_the_request_and_only_where_there_are_any() -> None:
    from dataclasses import replace

    from flower_privsyn.messages.wire import WireError, data_request

    def request_record(data: wire.DataRequest) -> Any:
        return wire.pack_prepare(data).config_records["privsyn.request"]

    with_classes = replace(DATA, classes=("b", "a"))
    assert data_request(request_record(with_classes), wire.Announcement) == with_classes
    assert with_classes.suits(LabelledHistogram())
    assert DATA.suits(NearestNeighborHistogram())
    assert not with_classes.suits(NearestNeighborHistogram())
    assert with_classes.chunking.classes == ("b", "a")
    assert "classes" not in request_record(DATA)
    assert data_request(request_record(DATA), wire.Announcement) == DATA
    most = [f"{n:0200}" for n in range(1000)]
    record = request_record(with_classes)
    record["classes"] = most
    assert data_request(record, wire.Announcement).classes == tuple(most)
    lines = "a\nrun 7 is refused"
    for wrong in (
        ["a", "a"],
        [""],
        "a",
        [lines],
        ["\ud800"],
        ["a" * 201],
        [*most, "a"],
        ["\x1b[2J"],
    ):
        record = request_record(with_classes)
        record["classes"] = wrong
        with pytest.raises(WireError, match="classes are not different names"):
            wire.data_request(record, wire.Announcement)
