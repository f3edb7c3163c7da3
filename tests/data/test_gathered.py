"""Rows gathered for one node are those of everybody dealt, however little memory there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flower_privsyn.data import Gathered, Users, gather_configured, load, load_configured
from flower_privsyn.errors import DataError
from flower_privsyn.privacy import skipping

NODES = 5


def table(rows: int, seed: int) -> Any:
    """Rows of 40 users in any order; some without text, some with none that can be used."""
    generator = np.random.default_rng(seed)
    users = generator.integers(0, 40, rows)
    texts = [f"text {seed} {row} " + "x" * int(generator.integers(0, 60)) for row in range(rows)]
    for row in range(0, rows, 11):
        texts[row] = ["", "  ", "nul \0"][row % 3]
    return pa.table(
        {
            "client_id": [f"user {user}" for user in users],
            "text": texts,
            "date": [f"2024-01-{1 + row % 28:02}" for row in range(rows)],
            "label": [("a", "b", None)[row % 3] for row in range(rows)],
        }
    )


@pytest.fixture(params=["one file", "a folder"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Row groups of 64 rows; in a folder also files without dates or labels."""
    pq.write_table(table(700, seed=1), tmp_path / "a.parquet", row_group_size=64)
    if request.param == "one file":
        return tmp_path / "a.parquet"
    other = table(300, seed=2).drop_columns(["date", "label"])
    pq.write_table(other, tmp_path / "b.parquet", row_group_size=64)
    return tmp_path


def same(one: Users, other: Users) -> None:
    assert one.user_ids == other.user_ids
    assert one.texts == other.texts
    np.testing.assert_array_equal(one.owners, other.owners)
    assert (one.dates, one.labels) == (other.dates, other.labels)
    assert (one.undated, one.unlabelled) == (other.undated, other.unlabelled)


@pytest.mark.parametrize("most_bytes", [0, 20_000, 2**30])
def test_a_nodes_users_are_those_of_everybody_dealt(source: Path, most_bytes: int) -> None:
    configuration = {"data": str(source)}
    with skipping.counting() as whole:
        everybody = load_configured(configuration, labels=True)
    assert whole.records > 10
    counted = 0
    for node in range(NODES):
        gathered = gather_configured(
            configuration, labels=True, node=node, nodes=NODES, most_bytes=most_bytes
        )
        held = [other for other in range(NODES) if gathered.holds(other)]
        assert node in held
        assert len(held) == {0: 1, 2**30: NODES}.get(most_bytes, len(held))
        for other in held:
            with skipping.counting() as tally:
                users = gathered.users(other)
            same(users, everybody.deal(partition_id=other, num_partitions=NODES))
            counted += tally.records if other == node else 0
    assert counted == whole.records


def test_what_is_kept_is_bounded_by_what_memory_is_given_to(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that are held at any time: those of the kept, and of one part of the file."""
    most, largest, parts = 12_000, 0, list[int]()
    monkeypatch.setattr(load, "_PART_ROWS", 64)
    real = Gathered.add

    def adding(self: Gathered, rows: Any) -> None:
        nonlocal largest
        parts.append(rows.texts.nbytes)
        real(self, rows)
        largest = max(largest, self.nbytes)

    monkeypatch.setattr(Gathered, "add", adding)
    gathered = gather_configured(
        {"data": str(source)}, labels=False, node=3, nodes=NODES, most_bytes=most
    )
    assert len(parts) >= 11  # row groups, and never the file
    assert sum(parts) > 2 * most
    assert largest <= most
    assert 0 < sum(map(gathered.holds, range(NODES))) < NODES


def test_a_bad_row_is_named_by_its_place_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_PART_ROWS", 64)
    bad = table(300, seed=4).to_pydict()
    bad["client_id"][200] = None
    pq.write_table(pa.table(bad), tmp_path / "u.parquet")
    with pytest.raises(DataError, match="row 201: 'client_id' must be a string"):
        load_configured({"data": str(tmp_path / "u.parquet")})
