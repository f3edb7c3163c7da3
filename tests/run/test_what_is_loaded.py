"""What a resumed run loads is not trusted to be what it wrote: it may be damaged, or another's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord

from flower_privsyn.errors import ConfigError, FederationError, RunDirectoryError
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy import PrivacyLedger
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.rounds import keep_state, last_state
from flower_privsyn.strategies import ReleasedSum, State
from flower_privsyn.training.server_model import ServerModel
from tests.support.federation import silent
from tests.support.probe import Killed, Probe, ProbeMethod, killed_at
from tests.support.questions import asked_round
from tests.support.run_files import lines, releases

Builder = Callable[..., Any]


def changed(path: Path, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Write an archive of arrays again, with other ones in it."""
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    np.savez(path, **change(arrays))


@pytest.mark.parametrize("correlation", ["blt", "banded", "tree"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_memory_of_noise_that_is_no_number_releases_nothing(
    federation: Builder,
    votes: Builder,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    correlation: str,
    wrong: float,
) -> None:
    """Cast to whole numbers it would be a constant, and the sum would be out almost bare."""
    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "finish_round", killed_at(1))
        with pytest.raises(Killed):
            Probe(votes(correlation=correlation)).start(federation())
    changed(
        tmp_path / "run" / "noise.npz",
        lambda arrays: {
            key: np.full_like(array, wrong) if array.dtype.kind == "f" else array
            for key, array in arrays.items()
        },
    )
    resumed = Probe(votes(correlation=correlation, resume=True))
    with pytest.raises(ConfigError, match="noise"):
        resumed.start(federation())
    assert resumed.released == []


def test_the_noise_that_the_settings_state_is_the_noise_of_the_ledger(
    federation: Builder, votes: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "finish_round", killed_at(1))
        with pytest.raises(Killed):
            Probe(votes()).start(federation())
    read = PrivacyLedger.read

    def other(path: Path) -> Any:
        ledger = read(path)
        lower = {one: 0.01 * multiplier for one, multiplier in ledger.correlations.items()}
        monkeypatch.setattr(type(ledger), "correlations", property(lambda _: lower))
        return ledger

    monkeypatch.setattr(PrivacyLedger, "read", other)
    with pytest.raises(ConfigError, match="noise multiplier"):
        Probe(votes(resume=True)).start(federation())


class Counting(ProbeMethod):
    """Adds up the rounds that it has stepped through."""

    def init(self, scratch: Path) -> State:
        return {"rounds": []}

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:
        return {"rounds": [*state["rounds"], release.round_number]}

    def finish(self, state: State) -> dict[str, Any]:
        return {"rounds": state["rounds"]}


@pytest.mark.parametrize("left", [None, 1])
def test_a_state_that_is_gone_or_old_is_stepped_through_every_release(
    federation: Builder,
    config: Builder,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    left: int | None,
) -> None:
    run = tmp_path / "run"
    kept: dict[str, bytes] = {}
    die = killed_at(3)

    def watch(of: RunDirectory, number: int, *given: Any) -> None:
        kept[f"checkpoint-{number:04d}.npz"] = (run / f"checkpoint-{number:04d}.npz").read_bytes()
        die(of, number, *given)

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "finish_round", watch)
        with pytest.raises(Killed):
            Probe(config(num_rounds=4), method=Counting).start(federation())
    (run / "checkpoint-0003.npz").rename(run / ".checkpoint-0003.npz.1.2")  # it was being written
    if left is not None:
        name = f"checkpoint-{left:04d}.npz"
        (run / name).write_bytes(kept[name])
    resumed = Probe(config(num_rounds=4, resume=True), method=Counting)
    resumed.start(federation())
    assert resumed.run.state["summary"]["rounds"] == [1, 2, 3, 4]
    assert [file.name for file in run.glob("*checkpoint*")] == ["checkpoint-0004.npz"]


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", b'{"json": 1}'])
def test_a_damaged_state_is_refused_by_its_name(tmp_path: Path, content: bytes) -> None:
    run = RunDirectory.create(tmp_path / "run", config={})
    keep_state(run, 2, {"mean": np.arange(3.0), "words": ["a"]})
    (path,) = run.path.glob("checkpoint-*.npz")
    assert last_state(run) is not None
    path.write_bytes(content)
    with pytest.raises(RunDirectoryError, match="checkpoint-0002"):
        last_state(run)
    np.savez(path.open("wb"), json=np.frombuffer(json.dumps([1]).encode(), dtype=np.uint8))
    with pytest.raises(RunDirectoryError, match="checkpoint-0002"):
        last_state(run)
    run.unlock()


def test_a_state_names_no_model_outside_of_the_run(tmp_path: Path) -> None:
    models = ServerModel(TrainableModel(name="privsyn-tiny", trainable="lora"), initial="")
    for name in (str(tmp_path / "private"), "../private", "models/../../private"):
        with pytest.raises(RunDirectoryError, match="not one of its own"):
            models.base(name, home=tmp_path / "run")


@pytest.mark.parametrize("left_out", [False, True])
def test_a_round_that_some_have_answered_is_not_asked_again_at_once(
    federation: Builder, config: Builder, tmp_path: Path, left_out: bool
) -> None:
    """A node that answered has charged it: it would charge both answers as one sum."""

    def lose(request: Any, reply: Any) -> Any:
        if reply.metadata.src_node_id != 1:
            return silent(2)(request, reply)
        if left_out and asked_round(request) == 2:
            reply.content["more"] = MetricRecord({"loss": 0.5})
        return [reply]

    strategy = Probe(config(num_rounds=3, num_nodes=3))
    strategy.start(federation(num_nodes=3, tamper=lose))
    assert [line["round"] for line in releases(tmp_path / "run")] == [1, 3]
    started = [line for line in lines(tmp_path / "run" / "ledger.jsonl") if "started" in str(line)]
    assert [line["round"] for line in started if line["event"] == "started"] == [1, 2, 3]
    assert strategy.run.rounds_with_outcome("discarded") == [2]
    with pytest.raises(FederationError, match="two rounds in a row were lost"):
        Probe(config(num_rounds=3, run_dir=str(tmp_path / "other"))).start(
            federation(tamper=silent(2))
        )
