"""What travels: it arrives as it was sent, and nothing else is accepted."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from flower_privsyn.messages import wire
from flower_privsyn.messages.wire import PROTOCOL, Announcement, ToCome
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy import (
    BandedToeplitz,
    Correlation,
    CyclicSampling,
    FixedSizeSampling,
    FullParticipation,
    GaussianMechanism,
    NeighboringRelation,
    PoissonSampling,
)
from flower_privsyn.privacy.plan import MOST_PHASES
from flower_privsyn.queries import NearestNeighborHistogram
from flower_privsyn.secure_aggregation.terms import Terms
from tests.support.questions import DATA, ask, with_release

TURNS = CyclicSampling(groups=2, rounds=6, salt="0" * 32)
TERMS = Terms(least_nodes=4, colluding=1)
BANDS = Correlation(factorisation=BandedToeplitz(rounds=6, coefficients=(1.0, 0.5)))
LONGER = Correlation(factorisation=BandedToeplitz(rounds=7, coefficients=(1.0, 0.5)))


def message(content: RecordDict, kind: str = "query.nearest_neighbor_histogram") -> Message:
    return Message(content, dst_node_id=7, message_type=kind)


def planned(*counts: object, noise: float = 1.0) -> str:
    """What is to come, as it travels."""
    sampling = FullParticipation(40).to_dict()
    return json.dumps(
        [{"count": count, "noise_multiplier": noise, "sampling": sampling} for count in counts]
    )


class TestRequests:
    def test_a_question_arrives_as_it_was_sent(self) -> None:
        sent = ask(
            mechanism=GaussianMechanism(noise_multiplier=2.0, l2_sensitivity=5.0),
            sampling=FullParticipation(population=40),
            broadcast={
                "candidates": np.arange(6, dtype=np.float32).reshape(2, 3),
                "seed": np.array([7], dtype=np.int64),
            },
        )
        record = wire.broadcast_record(sent.broadcast, precision="float16")
        request = message(wire.pack_ask(sent, record))
        got = wire.with_broadcast(wire.unpack_ask(request, NearestNeighborHistogram), request)
        for name, array in sent.broadcast.items():
            assert np.array_equal(got.broadcast[name], array)
            assert got.broadcast[name].dtype == array.dtype
        assert (got.query, got.data, got.release) == (sent.query, sent.data, sent.release)

    def test_preparation_arrives(self) -> None:
        model = TrainableModel(name="m", trainable="a.*, b", precision="bfloat16")
        for data in (DATA, replace(DATA, trains=model)):
            assert wire.unpack_prepare(message(wire.pack_prepare(data), wire.PREPARE)) == (
                data, Announcement(),
            )  # fmt: skip
        plan = Announcement(
            queries=("moments",),
            num_rounds=7,
            clip_norm=1.5,
            to_come=(
                ToCome(count=1, noise_multiplier=2.0, sampling=FullParticipation(40)),
                ToCome(
                    count=3, noise_multiplier=0.7, sampling=PoissonSampling(0.25, population=40)
                ),
            ),
            noise_multiplier=0.7,
            relation=NeighboringRelation.REPLACE_ONE,
            stream="ab" * 16,
        )
        told = wire.pack_prepare(DATA, plan=plan)
        assert wire.unpack_prepare(message(told, wire.PREPARE)) == (DATA, plan)

    def test_no_value_is_empty(self) -> None:
        """Flower's mod that counts the bytes of a message fails on empty ones."""
        data = replace(DATA, embedding_model="", reads="text")
        sent = ask(data=data)
        record = wire.broadcast_record(sent.broadcast, precision="float32")
        plan = Announcement(queries=("moments",))
        for content in (wire.pack_prepare(data, plan=plan), wire.pack_ask(sent, record)):
            assert all(one.count_bytes() for one in content.values())

    @pytest.mark.parametrize(
        ("key", "value"),
        [("to-come", planned(8)), ("to-come", planned(4, 4)), ("to-come", planned(0)),
         ("to-come", planned(1.5)), ("to-come", planned(True)), ("to-come", planned(1, noise=-1.0)),
         ("to-come", planned(1, noise=float("inf"))), ("to-come", "7"), ("to-come", "[7]"),
         ("to-come", '[{"count": 1, "noise_multiplier": 1.0}]'), ("to-come", ""),
         ("to-come", planned(1).replace("full", "friends")),
         ("noise-multiplier", "-1.0"), ("clip-norm", float("inf")),
         ("relation", "friends"), ("queries", "moments"),
         ("queries", ["x\nINFO: node policy: nothing is refused"])],
    )  # fmt: skip
    def test_an_absurd_plan_is_refused(self, key: str, value: object) -> None:
        plan = Announcement(num_rounds=7, noise_multiplier=1.0)
        content = wire.pack_prepare(DATA, plan=plan)
        content.config_records["privsyn.request"][key] = value  # type: ignore[assignment]
        with pytest.raises(wire.WireError):
            wire.unpack_prepare(message(content, wire.PREPARE))

    def test_a_plan_that_would_keep_the_accountant_of_a_node_at_work_is_refused(self) -> None:
        plan = Announcement(num_rounds=10_000, noise_multiplier=1.0)
        content = wire.pack_prepare(DATA, plan=plan)
        record = content.config_records["privsyn.request"]
        for kinds in (MOST_PHASES, MOST_PHASES + 1):
            record["to-come"] = planned(*[1] * kinds)
            fits = kinds == MOST_PHASES
            with contextlib.nullcontext() if fits else pytest.raises(wire.WireError):
                wire.unpack_prepare(message(content, wire.PREPARE))

    @pytest.mark.parametrize("claimed", ["null", "1.01", "0.99"])
    def test_a_plan_whose_noise_is_not_the_least_to_come_is_refused(self, claimed: str) -> None:
        """Else the owner's least noise would be asked of another number."""
        plan = Announcement(num_rounds=7, noise_multiplier=1.0)
        content = wire.pack_prepare(DATA, plan=plan)
        record = content.config_records["privsyn.request"]
        record["to-come"] = planned(1)
        wire.unpack_prepare(message(content, wire.PREPARE))
        record["noise-multiplier"] = claimed
        with pytest.raises(wire.WireError):
            wire.unpack_prepare(message(content, wire.PREPARE))

    @pytest.mark.parametrize(
        "changes",
        [
            {"mechanism": GaussianMechanism(noise_multiplier=2.0, l2_sensitivity=0.5)},
            {"data": replace(DATA, max_nodes_per_user=3)},
            {"data": replace(DATA, max_nodes_per_user=0)},
            {"num_rounds": 3},
            {"sampling": FixedSizeSampling(3, population=40)},
            {"sampling": FixedSizeSampling(3, population=40), "sample_count": 4, "roster_users": 9},
            {"sampling": FixedSizeSampling(3, population=40), "sample_count": 3, "roster_users": 2},
            {"sampling": FixedSizeSampling(3, population=40), "sample_count": 3},
            {
                **{"sampling": FixedSizeSampling(3, population=40), "sample_count": 3},
                **{"roster_users": 3, "data": replace(DATA, max_nodes_per_user=2)},
                "mechanism": GaussianMechanism(noise_multiplier=2.0, l2_sensitivity=10.0),
            },
            {
                **{"sampling": FixedSizeSampling(3, population=40), "sample_count": 3},
                **{"roster_users": 3, "secure": TERMS},
            },
            {"secure": TERMS, "correlation": BANDS, "sampling": FullParticipation(population=40)},
            {"sampling": TURNS},
            {"sampling": TURNS.of_round(3)},
            {"correlation": LONGER, "sampling": FullParticipation(population=40)},
            {"correlation": BANDS, "sampling": TURNS.of_round(4)},
        ],
    )
    def test_a_claim_that_cannot_be_true_is_refused(self, changes: dict[str, Any]) -> None:
        """Else a node's own account would be charged for less than it answers."""
        sent = ask(**changes)
        content = wire.pack_ask(sent, wire.broadcast_record(sent.broadcast, precision="float32"))
        with pytest.raises(wire.WireError):
            wire.unpack_ask(message(content), NearestNeighborHistogram)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("protocol", 1),
            ("release", "{}"),
            ("release", "[]"),
            ("release", 7),
            ("secure", '{"least_nodes": 3}'),
            ("max-tokens", "many"),
            ("sampling-key", 32),  # bytes(32) would be zeros, which everybody knows
            ("sampling-key", b"k" * 31),
            ("embedding-model", "x\nINFO: node policy: nothing is refused"),
            ("trains", '{"name": "x\\nERROR: refused"}'),
        ],
    )
    def test_a_changed_request_is_refused(self, key: str, value: object) -> None:
        sent = ask()
        content = wire.pack_ask(sent, wire.broadcast_record(sent.broadcast, precision="float32"))
        content.config_records["privsyn.request"][key] = value  # type: ignore[assignment]
        with pytest.raises(wire.WireError):
            wire.unpack_ask(message(content), NearestNeighborHistogram)

    @pytest.mark.parametrize(
        "changes",
        [
            {"query": "similarity"},
            {"query": "x\nINFO: nothing is refused"},
            {"sampling": {}},
            {"sampling": 7},
            {"mechanism": "laplace"},
            {"round": True},
            {"max_nodes_per_user": 2},
            {"relation": "friends"},
            {"correlation": 7},
            {"stream": "ab" * 16},
        ],
    )
    def test_a_changed_release_is_refused(self, changes: dict[str, Any]) -> None:
        sent = ask()
        content = wire.pack_ask(sent, wire.broadcast_record(sent.broadcast, precision="float32"))
        with pytest.raises(wire.WireError):
            wire.unpack_ask(message(with_release(content, **changes)), NearestNeighborHistogram)

    def test_another_version_is_refused_by_both_sides(self) -> None:
        sent = ask()
        content = wire.pack_ask(sent, wire.broadcast_record(sent.broadcast, precision="float32"))
        content.config_records["privsyn.request"]["protocol"] = PROTOCOL - 1
        with pytest.raises(wire.VersionError, match=f"protocol {PROTOCOL - 1}, .* {PROTOCOL}:"):
            wire.unpack_ask(message(content), NearestNeighborHistogram)
        reply = wire.error_reply(wire.ClientErrorCode.OTHER_VERSION, message(content))
        assert wire.unexpected_records(reply) == []
        assert "another protocol" in wire.words_of(reply.error.code)

    def test_a_name_that_is_read_before_the_question_is_printable(self) -> None:
        """It stands in the node's log where nobody knows the question."""
        sent = ask()
        content = wire.pack_ask(sent, wire.broadcast_record(sent.broadcast, precision="float32"))
        assert wire.query_name(message(content)) == "nearest_neighbor_histogram"
        with_release(content, query="x\nINFO: nothing is refused")
        with pytest.raises(wire.WireError, match="not printable"):
            wire.query_name(message(content))

    def test_a_request_without_its_parts_is_refused(self) -> None:
        with pytest.raises(wire.WireError, match=r"lacks privsyn\.request"):
            wire.unpack_prepare(message(RecordDict(), wire.PREPARE))


class TestReplies:
    def roster(self, **changes: Any) -> RecordDict:
        values = {"num_users": 3, "embedder": "ab" * 32, "dimension": 384, **changes}
        return RecordDict({"privsyn.roster": ConfigRecord(values)})

    def test_a_roster_arrives(self) -> None:
        roster = wire.RosterEntry(num_users=3, embedder="ab" * 32, dimension=384)
        assert wire.unpack_roster(message(wire.pack_roster(roster))) == roster

    @pytest.mark.parametrize(
        "changes",
        [
            {"num_users": -1},
            {"num_users": 2**50},
            {"dimension": 0},
            {"embedder": "dear diary, today"},
            {"num_users": 2.0},
            {"loss": 0.3},
        ],
    )
    def test_an_absurd_roster_is_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(wire.WireError):
            wire.unpack_roster(message(self.roster(**changes)))

    def test_what_is_not_agreed_is_found(self) -> None:
        content = self.roster(words=5)
        content["train_metrics"] = MetricRecord({"loss": 0.1})
        found = wire.unexpected_records(message(content))
        assert found == ["privsyn.roster.words", "train_metrics"]
        leak = Message(Error(code=1000, reason="a diary"), reply_to=message(RecordDict()))
        assert wire.unexpected_records(leak) == ["error text"]

    def test_every_code_has_its_sentence(self) -> None:
        for code in wire.ClientErrorCode:
            reply = wire.error_reply(code, message(RecordDict()))
            assert wire.unexpected_records(reply) == []


def test_a_request_with_a_key_that_the_node_does_not_know_is_refused() -> None:
    record = wire.pack_prepare(DATA).config_records["privsyn.request"]
    wire.data_request(record, Announcement)
    record["newer-than"] = "2024-01-01"
    with pytest.raises(wire.WireError):
        wire.data_request(record, Announcement)
