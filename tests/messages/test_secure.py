"""What a question of secure aggregation is known by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, RecordDict

from flower_privsyn.messages import secure, wire
from flower_privsyn.secure_aggregation.terms import Terms
from tests.support.questions import DATA, ask

SENT = ask(
    secure=Terms(least_nodes=4, colluding=1),
    broadcast={"candidates": np.eye(3, dtype=np.float32), "seed": np.array([7], dtype=np.int64)},
)


def content(**changes: object) -> RecordDict:
    sent = replace(SENT, **changes)  # type: ignore[arg-type]
    return wire.pack_ask(sent, wire.broadcast_record(sent.broadcast, precision="float32"))


def another_number(records: RecordDict) -> None:
    (arrays,) = records.array_records.values()
    moved = np.eye(3, dtype=np.float32)
    moved[2, 0] = 1e-30
    arrays["candidates"] = Array(moved)


def another_shape(records: RecordDict) -> None:
    (arrays,) = records.array_records.values()
    arrays["candidates"] = Array(np.eye(3, dtype=np.float32).reshape(9, 1))


def another_name(records: RecordDict) -> None:
    (arrays,) = records.array_records.values()
    arrays["candidate"] = arrays.pop("candidates")


def exchanged_names(records: RecordDict) -> None:
    (arrays,) = records.array_records.values()
    arrays["candidates"], arrays["seed"] = arrays["seed"], arrays["candidates"]


def one_more_record(records: RecordDict) -> None:
    records["more"] = ConfigRecord({"key": 1})


@pytest.mark.parametrize(
    "change", [another_number, another_shape, another_name, exchanged_names, one_more_record]
)
def test_questions_that_differ_are_known_apart(change: Callable[[RecordDict], None]) -> None:
    """Masks of nodes that were asked different things must not cancel."""
    records = content()
    change(records)
    assert secure.question_digest(records) != secure.question_digest(content())


@pytest.mark.parametrize(
    "changes",
    [
        {"release": replace(SENT.release, round=5)},
        {"sampling_key": b"j" * 32},
        {"data": replace(DATA, max_tokens=9)},
        {"secure": Terms(least_nodes=5, colluding=1)},
    ],
)
def test_so_are_requests(changes: dict[str, object]) -> None:
    assert secure.question_digest(content(**changes)) != secure.question_digest(content())


def test_mail_is_no_part_of_a_question() -> None:
    """Each node gets its own."""
    records = content()
    before = secure.question_digest(records)
    assert before == secure.question_digest(content())
    records["privsyn.secure"] = ConfigRecord({"mail": b"for one node"})
    assert secure.question_digest(records) == before
