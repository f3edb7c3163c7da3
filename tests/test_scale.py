"""What `python -m benchmarks.scale` measures is a real run, and its arithmetic is right."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks import scale
from benchmarks.simulated import simulate_users
from flower_privsyn.client_apps import create_client_app
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.messages import wire
from flower_privsyn.privacy import PoissonSampling, PrivacyLedger, Release, release_epsilon
from flower_privsyn.privacy.mechanisms import from_grid
from flower_privsyn.run.owner import OwnerFolder
from flower_privsyn.strategies import PrivateSumConfig
from flower_privsyn.testing import LoopbackGrid
from tests.support.answering import read_answer


def ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, users: int, nodes: int = 4, **settings: Any
) -> tuple[Path, LoopbackGrid]:
    """The benchmark's app, strategy and nodes, without Flower's processes."""
    monkeypatch.syspath_prepend(str(scale.APP))
    from scale_app.client_app import embedder
    from scale_app.server_app import OWN_KEYS, Asking, Questions

    population = tmp_path / f"{users}.parquet"
    if not population.exists():
        simulate_users(population, users=users, samples_per_user=2)
    app = load_app(scale.APP)
    values = resolve_config(
        app, settings=[f"{key.replace('_', '-')}={value}" for key, value in settings.items()]
    )
    run_dir = tmp_path / f"run-{time.monotonic_ns()}"
    values |= {"run-dir": str(run_dir), "num-nodes": nodes}
    own = {key: values[key] for key in OWN_KEYS}
    config = PrivateSumConfig.from_run_config(values, other_keys=OWN_KEYS)
    grid = LoopbackGrid(
        create_client_app(embedder=embedder, cache_directory=tmp_path / "cache"),
        num_nodes=nodes,
        run_config={"data": str(population)},
    )
    Asking(config, Questions(config, own)).start(grid)
    return run_dir, grid


def cohorts(grid: LoopbackGrid, rounds: int) -> list[int]:
    heads = [
        reply.content["privsyn.cohort"]["num_users"]
        for reply in grid.replies
        if "privsyn.cohort" in reply.content
    ]
    return np.asarray(heads).reshape(rounds, -1).sum(axis=1).tolist()


def test_poisson_rounds_are_what_the_ledger_charges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate, rounds, users = 1000 / 133_000, 10, 8_000
    run_dir, grid = ask(
        tmp_path,
        monkeypatch,
        users=users,
        num_rounds=rounds,
        num_candidates=50,
        max_samples=2,
        sampling="poisson",
        sampling_rate=rate,
    )
    sizes = cohorts(grid, rounds)
    assert stats.binomtest(sum(sizes), rounds * users, rate).pvalue > 1e-6
    # Their spread as well: independent coins, not the same number every time.
    spread = np.var(sizes, ddof=1) * (rounds - 1) / (users * rate * (1 - rate))
    assert 1e-6 < stats.chi2.cdf(spread, rounds - 1) < 1 - 1e-6
    release = Release(noise_multiplier=1.0, sampling=PoissonSampling(rate))
    lines = [json.loads(line) for line in (run_dir / "ledger.jsonl").read_text().splitlines()]
    spent = [line["epsilon_release"] for line in lines if line["event"] == "release"]
    assert len(spent) == rounds
    planned = release_epsilon({release: rounds}, delta=1e-6)
    assert spent[-1] == pytest.approx(planned, rel=1e-6)
    assert PrivacyLedger.read(run_dir / "ledger.jsonl")


@pytest.mark.parametrize("question", ["private-evolution", "popri"])
def test_the_same_release_however_many_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    totals = []
    for nodes in (1, 16):
        _, grid = ask(
            tmp_path,
            monkeypatch,
            users=300,
            nodes=nodes,
            question=question,
            num_candidates=40,
            num_rounds=1,
            max_samples=2,
        )
        answers = [
            from_grid(read_answer(r).total) for r in grid.replies if "privsyn.answer" in r.content
        ]
        assert len(answers) == nodes
        totals.append(sum(answers))
    np.testing.assert_array_equal(totals[0], totals[1])
    assert np.abs(totals[0]).sum() > 0


def test_candidates_differ_from_round_to_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is kept by content would make later rounds cheaper than they are."""
    run_dir, grid = ask(
        tmp_path, monkeypatch, users=50, num_rounds=3, num_candidates=20, max_samples=2, nodes=2
    )
    sent = [
        wire.read_broadcast(message.content.array_records["privsyn.broadcast"])["candidates"]
        for message in grid.requests
        if "privsyn.broadcast" in message.content
    ]
    assert len({array.tobytes() for array in sent}) == 3
    times = [
        line for line in OwnerFolder(run_dir).times() if line["event"] in ("asked", "answered")
    ]
    # The same question is made for the message and for what the round has to say of itself.
    events = list(dict.fromkeys((line["round"], line["event"]) for line in times))
    assert events == [(n, event) for n in (1, 2, 3) for event in ("asked", "answered")]
    assert [line["time"] for line in times] == sorted(line["time"] for line in times)


def test_memory_and_time_of_a_tree_of_processes() -> None:
    """A child that holds 150 MB and works for a second is seen, not only the one watched."""
    child = (
        "import time; held = bytearray(b'1') * 150_000_000\n"
        "end = time.process_time() + 1.0\n"
        "while time.process_time() < end: pass\n"
        "time.sleep(2.0)"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with (
        subprocess.Popen([sys.executable, "-c", parent]) as process,
        scale.Watch(process.pid) as watch,
    ):
        process.wait()
    assert watch.peak_bytes > 150e6
    assert watch.proportional
    begin, end = watch.samples[0][0], watch.samples[-1][0]
    assert 0.5 < watch.cpu_between(begin, end) < 5.0


def test_floors() -> None:
    pe = scale.floors("private-evolution", 2048, 5, 133_000)
    assert pe["floor_operations"] == 2 * 665_000 * 2048 * 384
    assert pe["floor_bytes"] == 665_000 * 384 * 4
    popri = scale.floors("popri", 18_000, 5, 133_000)
    assert popri["floor_operations"] < pe["floor_operations"] / 20
