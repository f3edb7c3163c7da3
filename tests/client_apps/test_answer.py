"""One user's data decide about that user's contribution, and about nothing else on the node."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_privsyn.client_apps.handlers import add_answer, chosen_users, create_client_app
from flower_privsyn.data import Users
from flower_privsyn.embedding.batch_invariance import probe_texts
from flower_privsyn.messages import wire
from flower_privsyn.privacy import FullParticipation, PoissonSampling, skipping
from flower_privsyn.privacy.mechanisms import LARGEST_SUM
from flower_privsyn.queries import (
    Broadcast,
    Cohort,
    MeanSimilarity,
    ModelDelta,
    NearestNeighborHistogram,
    Query,
)
from flower_privsyn.testing import HashEmbedder, flower_identity, random_cohort
from tests.support.answering import prepare, put, read_answer, where
from tests.support.questions import DATA, plain_ask

WORDS = "court judge tax river stone bread salt moon tree lamp glass iron".split()
CANDIDATES = HashEmbedder().embed([" ".join(WORDS[n : n + 4]) for n in range(9)])
SPAN = MeanSimilarity(centre="all", answer_space="span")
QUESTIONS: list[tuple[Query, dict[str, Any]]] = [
    (NearestNeighborHistogram(max_samples=4), {"candidates": CANDIDATES}),
    (NearestNeighborHistogram(max_samples=4, clip="l2"), {"candidates": CANDIDATES}),
    (MeanSimilarity(centre="all"), {"candidates": CANDIDATES}),
    (SPAN, SPAN.broadcast(CANDIDATES)),
]


class Delicate(HashEmbedder):
    """Fails on some texts, in some of the ways in which models fail."""

    def embed(self, texts: Sequence[str], **options: Any) -> Any:
        if any("raise" in text for text in texts):
            raise ValueError("bad text: the secret words")
        if any("panic" in text for text in texts):
            raise BaseException("as PyO3 panics")
        vectors = super().embed(texts, **options)
        if any("shape" in text for text in texts):
            return vectors[1:]
        vectors[[row for row, text in enumerate(texts) if "nan" in text]] = np.nan
        return vectors


def delicate(name: str, precision: str) -> Delicate:
    return Delicate()


class Broken(HashEmbedder):
    """Fails on every text."""

    def embed(self, texts: Sequence[str], **options: Any) -> Any:
        raise OSError("the accelerator is gone")


def rows(bad: list[object]) -> list[tuple[str, object]]:
    generator = np.random.default_rng(7)
    others = [
        (f"user-{number}", " ".join(generator.choice(WORDS, size=6)))
        for number in range(40)
        for _ in range(number % 3)
    ]
    return [*others[:20], *(("bad", text) for text in bad), *others[20:], ("bad", "")]


def app_for(written: list[tuple[str, object]], cache: Path, embedder: Any = delicate) -> ClientApp:
    def load(context: Context) -> Users:
        return Users.from_rows(written)

    return create_client_app(load, embedder=embedder, cache_directory=cache)


def app_of(bad: list[object], cache: Path, embedder: Any = delicate) -> ClientApp:
    return app_for(rows(bad), cache, embedder)


def ask(app: ClientApp, query: Query, broadcast: Broadcast, **changes: Any) -> Message:
    return put(app, plain_ask(query=query, broadcast=broadcast, data=DATA, **changes))


@pytest.mark.parametrize("rate", [2.0**-60, 1.0])
def test_whether_a_question_is_too_large_does_not_hang_on_the_coins(rate: float) -> None:
    """Else a refusal would say how many were drawn, which nobody but the node may know."""
    query = ModelDelta(clip_to=LARGEST_SUM / 2)
    question = plain_ask(query=query, broadcast={}, data=DATA, sampling=PoissonSampling(rate))
    assert len(chosen_users(question, ["a", "b"])) == 2
    with pytest.raises(wire.WireError, match="leave the numbers that are exact"):
        chosen_users(question, ["a", "b", "c"])


def facts(reply: Message) -> tuple[bytes, int]:
    answered = read_answer(reply)
    assert wire.unexpected_records(reply) == []
    return answered.total.tobytes(), answered.num_users


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the node answers when the bad user wrote nothing."""
    app = app_of([], tmp_path_factory.mktemp("empty"))
    with flower_identity():
        answers = [facts(ask(app, *question)) for question in QUESTIONS]
        roster = wire.unpack_roster(prepare(app))
    assert all(np.frombuffer(total).any() for total, _ in answers)
    return {"roster": roster, "answers": answers}


@pytest.mark.parametrize(
    "bad",
    [
        ["half \ud800 of a pair"],
        ["nul \0 byte"],
        ["word " * 300_000],
        [None, 5, b"bytes"],
        ["raise me"],
        ["panic now"],
        ["nan nan nan"],
        ["shape"],
        ["raise", "panic", "nan", "shape", "\ud800", None],
    ],
)
def test_the_others_sum_is_the_same_to_the_bit(
    bad: list[object], empty: dict[str, Any], tmp_path: Path
) -> None:
    app = app_of(bad, tmp_path)
    assert wire.unpack_roster(prepare(app)) == empty["roster"]
    assert [facts(ask(app, *question)) for question in QUESTIONS] == empty["answers"]


def test_a_model_that_fails_on_public_text_is_the_nodes_fault(tmp_path: Path) -> None:
    reply = prepare(app_of([], tmp_path, lambda name, precision: Broken()))
    assert reply.error.code == wire.ClientErrorCode.INTERNAL


def test_who_ends_the_process_ends_it(tmp_path: Path) -> None:
    class Interrupted(HashEmbedder):
        def embed(self, texts: Sequence[str], **options: Any) -> Any:
            raise KeyboardInterrupt

    app = app_of([], tmp_path, lambda name, precision: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        prepare(app)


def test_the_nodes_own_log_counts_and_quotes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad: list[object] = ["raise the secret words", "\ud800", "court judge"]
    # A SuperNode may have a partition too.
    partition = where({"num-partitions": 2, "partition-id": 0})
    monkeypatch.setattr("flower_privsyn.client_apps.handlers.in_simulation", lambda: False)
    with caplog.at_level(logging.INFO):
        reply = prepare(app_of(bad, tmp_path / "deployed"), context=partition)
    (told,) = caplog.messages
    assert told.startswith("2 records of 1 users are left out")
    log = tmp_path / "deployed" / "skipped.log"
    (line,) = log.read_text().splitlines()
    assert line.endswith(f"run 1 node 5: {told}")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert wire.unexpected_records(reply) == []
    caplog.clear()
    # In a simulation whatever a node logs stands in the log of the run.
    monkeypatch.undo()
    prepare(app_of(bad, tmp_path / "simulated"))
    assert not caplog.messages
    assert told in (tmp_path / "simulated" / "skipped.log").read_text()
    prepare(app_of(["court judge"], tmp_path / "fine"))
    assert not caplog.messages
    assert not (tmp_path / "fine" / "skipped.log").exists()


def test_no_users_record_decides_whether_the_node_takes_part(tmp_path: Path) -> None:
    """What was found to: a day of the year 12099, the only date, the only text."""
    where_it_is = where({"data": ""})
    others = [{"client_id": f"u{n}", "text": "court judge"} for n in range(5)]
    dated = [{**row, "date": "2025-05-05"} for row in others]
    alone = [{**row, "text": 5} for row in others]
    cases: list[tuple[str, list[Any], list[Any]]] = [
        (
            "2025-01-01",
            others,
            [{"text": "x", "date": "2025-05-05"}, {"text": "", "date": "2025-05-05"}],
        ),
        ("", alone, [{"text": "x"}, {"text": ""}, {"text": "\ud800"}, {"text": 7}]),
        ("", [], [{"text": "x"}, {"text": ""}, {"text": "\ud800"}]),
        ("2025-01-01", dated, [{"text": "x", "date": "today"}]),
    ]
    for number, (min_date, rest, variants) in enumerate(cases):
        rosters = []
        for variant in variants:
            path = tmp_path / f"{number}-{len(rosters)}.jsonl"
            lines = [json.dumps(row) for row in [*rest, {"client_id": "one", **variant}]]
            path.write_text("\n".join(lines) + "\n")
            where_it_is.node_config["data"] = str(path)
            app = create_client_app(embedder=delicate, cache_directory=tmp_path / "cache")
            rosters.append(
                wire.unpack_roster(prepare(app, replace(DATA, min_date=min_date), where_it_is))
            )
        assert all(roster == rosters[0] for roster in rosters)


@pytest.fixture
def fussy(monkeypatch: pytest.MonkeyPatch) -> Query:
    """A query that some records break."""
    inner: Callable[..., Any] = NearestNeighborHistogram.answer

    def answer(self: Query, cohort: Cohort, broadcast: Broadcast) -> Any:
        if len(cohort.records) and float(cohort.records.max()) == 50.0:
            raise ZeroDivisionError
        total = inner(self, cohort, broadcast)
        if len(cohort.records) and float(cohort.records.max()) == 40.0:
            total[0] = np.nan
        return total

    monkeypatch.setattr(NearestNeighborHistogram, "answer", answer)
    return NearestNeighborHistogram(max_samples=4)


def sum_of(query: Query, cohort: Cohort, broadcast: Broadcast) -> Any:
    """What is added to a sum of ones, the ones taken off again: all are on the grid."""
    total = np.ones(query.answer_length(broadcast))
    add_answer(query, cohort, broadcast, total)
    return total - 1


class TestAddAnswer:
    def cohort(self) -> Cohort:
        return random_cohort(num_users=30, max_records=4, dimension=32, seed=3)

    @pytest.mark.parametrize("value", [50.0, 40.0])
    def test_users_on_whom_the_query_fails_answer_zero(self, value: float, fussy: Query) -> None:
        query, broadcast = fussy, {"candidates": CANDIDATES}
        cohort = self.cohort()
        bad = np.isin(cohort.owners, [int(cohort.owners[0]), 17, int(cohort.owners[-1])])
        records = cohort.records.copy()
        records[bad, 0] = value
        spoilt = Cohort(records, cohort.owners, cohort.num_users)
        without = Cohort(cohort.records[~bad], cohort.owners[~bad], cohort.num_users)
        answer = sum_of(query, spoilt, broadcast)
        np.testing.assert_array_equal(answer, query.answer(without, broadcast))
        assert answer.sum() > 10

    def test_one_more_user_moves_the_sum_by_that_users_own(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where it is one too many to be added up at once."""
        inner: Callable[..., Any] = NearestNeighborHistogram.answer

        def answer(self: Query, cohort: Cohort, broadcast: Broadcast) -> Any:
            if len(np.unique(cohort.owners)) > most:
                raise MemoryError
            return inner(self, cohort, broadcast)

        query, broadcast = QUESTIONS[0]
        cohort = self.cohort()
        most = len(np.unique(cohort.owners)) - 1  # of them with records; the last one has some
        monkeypatch.setattr(NearestNeighborHistogram, "answer", answer)
        moved = sum_of(query, cohort, broadcast) - sum_of(
            query, cohort.select(np.arange(30) < 29), broadcast
        )
        assert 0 < np.linalg.norm(moved) <= query.clip_norm

    def test_users_who_fail_together_and_not_alone_are_added_one_by_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inner: Callable[..., Any] = NearestNeighborHistogram.answer

        def answer(self: Query, cohort: Cohort, broadcast: Broadcast) -> Any:
            if len(np.unique(cohort.owners)) > 1:
                raise MemoryError
            return inner(self, cohort, broadcast)

        whole = sum_of(QUESTIONS[0][0], self.cohort(), QUESTIONS[0][1])
        monkeypatch.setattr(NearestNeighborHistogram, "answer", answer)
        with skipping.counting() as tally:
            found = sum_of(QUESTIONS[0][0], self.cohort(), QUESTIONS[0][1])
        np.testing.assert_array_equal(found, whole)
        assert not tally


class TestErrorsTellNothing:
    """Else a question that always fails would say who has text, exactly and for nothing."""

    #: Text, none, and nobody.
    WRITTEN: tuple[list[tuple[str, object]], ...] = (
        [("a", "court judge"), ("b", "tax")],
        [("a", ""), ("b", None)],
        [],
    )

    def test_of_a_question_that_cannot_be_answered(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def answer(self: Query, cohort: Cohort, broadcast: Broadcast) -> Any:
            raise KeyError("candidates")

        monkeypatch.setattr(NearestNeighborHistogram, "answer", answer)
        for number, written in enumerate(self.WRITTEN):
            app = app_for(written, tmp_path / str(number))
            for sampling in (FullParticipation(), PoissonSampling(2.0**-60)):
                reply = ask(app, *QUESTIONS[0], sampling=sampling)
                assert reply.error.code == wire.ClientErrorCode.INTERNAL

    def test_of_a_model_that_embeds_nothing(self, tmp_path: Path) -> None:
        class Later(HashEmbedder):
            """Passes the questions about batch invariance, and fails on all else."""

            def embed(self, texts: Sequence[str], **options: Any) -> Any:
                if not set(texts) <= set(probe_texts()):
                    raise OSError("the accelerator is gone")
                return super().embed(texts, **options)

        for number, written in enumerate(self.WRITTEN):
            app = app_for(written, tmp_path / str(number), lambda name, precision: Later())
            assert prepare(app).error.code == wire.ClientErrorCode.INTERNAL

    def test_of_a_query_that_ends_the_process(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inner: Callable[..., Any] = NearestNeighborHistogram.answer

        def answer(self: Query, cohort: Cohort, broadcast: Broadcast) -> Any:
            if len(cohort.records) > 1:  # what is public is one record
                raise SystemExit
            return inner(self, cohort, broadcast)

        monkeypatch.setattr(NearestNeighborHistogram, "answer", answer)
        answered = []
        for number, written in enumerate(self.WRITTEN):
            app = app_for(written, tmp_path / str(number))
            answered.append(not ask(app, *QUESTIONS[0]).has_error())
        assert answered == [True] * 3
