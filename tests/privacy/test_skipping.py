"""Invalid records are skipped: what fails is found, the rest kept, and other errors are raised."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from flower_privsyn.privacy import skipping


class Panic(BaseException):
    """As a tokenizer written in Rust raises it: no Exception."""


def doubled(items: Sequence[int]) -> list[int]:
    if any(item < 0 for item in items):
        raise Panic
    return [2 * item for item in items]


@pytest.mark.parametrize("bad", [set(), {0}, {6}, {2, 3}, set(range(7))])
def test_every_item_that_fails_and_no_other(bad: set[int]) -> None:
    items = [-1 if place in bad else place for place in range(7)]
    wanted = [None if place in bad else 2 * place for place in range(7)]
    assert skipping.map_isolating_errors(items, doubled, probe=1) == wanted


def test_one_call_where_nothing_fails() -> None:
    calls: list[int] = []

    def compute(items: Sequence[int]) -> Sequence[int]:
        calls.append(len(items))
        return items

    assert skipping.map_isolating_errors(range(1000), compute, probe=0) == list(range(1000))
    assert skipping.map_isolating_errors([], compute, probe=0) == []
    assert calls == [1, 1000, 1]


def test_a_fault_that_is_no_records_is_raised() -> None:
    def broken(items: Sequence[int]) -> list[int]:
        raise OSError("no such file")

    for items in ([1, 2], []):  # whether there is an item does not show
        with pytest.raises(OSError, match="no such file"):
            skipping.map_isolating_errors(items, broken, probe=0)
    with pytest.raises(ValueError, match="1 items gave 0 results"):
        skipping.map_isolating_errors([1, 2], lambda items: [], probe=0)


def test_after_the_probe_nothing_is_raised() -> None:
    calls: list[Sequence[int]] = []

    def broken_later(items: Sequence[int]) -> Sequence[int]:
        calls.append(items)
        if len(calls) > 1:
            raise OSError("no such file")
        return items

    assert skipping.map_isolating_errors([1, 2], broken_later, probe=0) == [None, None]
    assert calls[0] == [0]


def test_the_end_of_the_process_is_no_records_fault() -> None:
    def ended(items: Sequence[int]) -> list[int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        skipping.map_isolating_errors([1, 2], ended, probe=0)


def test_counts(caplog: pytest.LogCaptureFixture) -> None:
    with skipping.counting() as tally:
        assert not tally
        skipping.note(["a", "b"], records=3)
        skipping.note(["a"], records=1)
    assert (tally.records, tally.users) == (4, {"a", "b"})
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        skipping.note(["secret name"], records=1)
    (said,) = caplog.messages
    assert said.startswith("1 records of 1 users are left out")
