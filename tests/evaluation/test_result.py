"""The stamp cannot get lost on the way to a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from flower_privsyn.evaluation.result import STAMP, NotPrivate
from flower_privsyn.files import append_json_lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner(NotPrivate):
    value: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer(NotPrivate):
    inner: Inner
    table: dict[int, float]
    rows: tuple[Inner, ...]


RECORD = Outer(inner=Inner(value=0.5), table={1: 0.25}, rows=(Inner(value=np.float64(2.0)),))


def test_every_form_of_a_record_holds_the_stamp(tmp_path: Path) -> None:
    RECORD.write(tmp_path / "record.json")
    assert (tmp_path / "record.json").stat().st_mode & 0o777 == 0o600
    forms = [
        RECORD.to_dict(),
        json.loads((tmp_path / "record.json").read_text()),
        dataclasses.asdict(RECORD),
        vars(RECORD),
    ]
    for form in forms:
        assert form["stamp"] == STAMP
    assert STAMP in repr(RECORD)
    assert next(iter(RECORD.to_dict())) == "stamp"


def test_records_inside_a_record_keep_their_own_stamp() -> None:
    content = RECORD.to_dict()
    assert content["inner"] == {"stamp": STAMP, "value": 0.5}
    assert content["rows"] == [{"stamp": STAMP, "value": 2.0}]
    assert content["table"] == {"1": 0.25}


def test_a_record_cannot_be_written_without_its_own_method(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        json.dumps(RECORD)
    with pytest.raises(TypeError):
        append_json_lines(tmp_path / "metrics.jsonl", [{"evaluation": RECORD}])


def test_no_constructor_sets_the_stamp() -> None:
    with pytest.raises(TypeError):
        Inner(value=1.0, stamp="private")  # type: ignore[call-arg]
    with pytest.raises((TypeError, ValueError)):
        dataclasses.replace(RECORD.inner, stamp="private")
    with pytest.raises(dataclasses.FrozenInstanceError):
        RECORD.inner.stamp = ""  # type: ignore[misc]


@pytest.mark.parametrize("name", ["stamp", "to_dict", "write"])
def test_a_subclass_cannot_replace_what_stamps(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        type("Sly", (NotPrivate,), {name: lambda self: {}})
    with pytest.raises(TypeError, match=name):
        type("Sly", (NotPrivate,), {"__annotations__": {name: "str"}})
