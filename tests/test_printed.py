"""What a print, a log line or a debugger shows of objects that hold text, answers or keys."""

from __future__ import annotations

from typing import Any

import pytest

from flower_privsyn import Users
from flower_privsyn.client_apps import node_users, training
from flower_privsyn.data import Chunking, Samples
from flower_privsyn.embedding import records
from flower_privsyn.messages import wire
from flower_privsyn.privacy.skipping import Tally
from flower_privsyn.queries import Cohort, joint_sketch
from flower_privsyn.run import aggregation
from flower_privsyn.secure_aggregation import node, server
from tests.support.questions import ask

SECRET = "I told nobody but the doctor"
ID = "anna@example.org"

USERS = Users.from_rows([(ID, SECRET), ("bob", "Nothing.")])


def cohort(text: str) -> Cohort:
    return Cohort.of([text], [0], 1)


@pytest.mark.parametrize(
    ("held", "shown"),
    [
        (USERS, "Users(2 users, 2 texts)"),
        (USERS.partition(partition_id=0, num_partitions=2), "Users(1 users, 1 texts)"),
        (Chunking(max_tokens=None).samples(USERS), "Samples(2 users, 2 samples)"),
        (cohort(SECRET), "Cohort(1 users, 1 records)"),
    ],
)
def test_sizes_stand_for_text(held: Any, shown: str) -> None:
    assert repr(held) == str(held) == f"{held}" == shown


def test_who_is_left_out_is_counted() -> None:
    shown = repr(Tally(records=2, users={ID}))
    assert shown.startswith("Tally(2 records of 1 users")
    assert ID not in shown


def test_the_key_that_tells_who_takes_part_is_not_shown() -> None:
    asked = ask(sampling_key=b"k" * 32)
    assert "kkkk" not in repr(asked)


@pytest.mark.parametrize(
    "kind",
    [
        Samples,
        Users,
        aggregation.Collected,
        joint_sketch._Text,
        node.Advertised,
        node.Agreed,
        node.Masked,
        node.Ready,
        node.Shared,
        node.Unmasking,
        node_users.Prepared,
        records.StoredRecords,
        server.ServerRound,
        training._Rows,
        training._Tokens,
        wire.Answer,
    ],
)
def test_no_dataclass_shows_its_fields(kind: type) -> None:
    """Which the representation that `dataclass` makes would; it is wrapped against recursion."""
    assert not hasattr(kind.__repr__, "__wrapped__")
