"""What a run directory says about one heavy user beyond the release: nothing, byte for byte.

The same run twice, with a user of 1,200 documents and without those documents. What is released is
replaced by the same vector in both, so any byte that differs comes past the release. Random names
and keys come from a source that repeats, and the clock stands still or jumps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.client_apps.training import LocalTraining
from flower_privsyn.data import Users
from flower_privsyn.report import write_run_page
from flower_privsyn.run import RunDirectory
from flower_privsyn.testing import LoopbackGrid, hash_embedder
from tests.support import golden_runs
from tests.support.federation import WORDS, dealt, make_users
from tests.support.repeating import CREATED_SECONDS, Repeating, stop
from tests.support.run_files import contents, times_in

pytestmark = pytest.mark.usefixtures("few_weights")

HEAVY = "user-3"
METHODS: dict[str, Callable[[Path], Any]] = {
    "private-evolution": golden_runs.evolution,
    "private-evolution-poisson": partial(
        golden_runs.evolution, sampling="poisson", sampling_rate=0.5, accountant="rdp"
    ),
    **{name: golden_runs.MAKERS[name] for name in ("popri", "dp-fedavg", "dp-ftrl")},
}


def users(documents: int) -> Users:
    """Six users; one of them has so many documents, or none, and stays on the roster."""
    light = make_users(6, samples=2)
    rows = [
        (light.user_ids[owner], text)
        for owner, text in zip(light.owners.tolist(), light.texts, strict=True)
        if light.user_ids[owner] != HEAVY
    ]
    heavy = [(HEAVY, f"the canary sings {WORDS[n % 7]} {n}") for n in range(documents)]
    return Users.from_rows([*rows, *(heavy or [(HEAVY, "")])])


class Federation:
    """Runs in one folder, each moved aside when it has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, method: str, documents: int, *, name: str, step: Any = None) -> Path:
        """Run a method with a heavy user of so many documents; returns its run directory."""
        load = dealt(users(documents), 3)
        trainer = LocalTraining() if method.startswith("dp-") else None
        cache = self.folder / "cache"
        app = create_client_app(
            load, embedder=hash_embedder, cache_directory=cache, trainer=trainer
        )
        strategy = METHODS[method](self.folder)
        strategy._random = Repeating(7)
        strategy.method.step = step or strategy.method.step
        strategy.start(LoopbackGrid(app, num_nodes=3))
        path: Path = strategy.run.path
        write_run_page(RunDirectory.open(path))
        strategy.run.owner.path.rename(self.folder / f"{name}.owner")
        return path.rename(self.folder / name)


@pytest.fixture
def federation_of(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def dates(path: Path) -> set[float]:
    return {entry.stat().st_mtime for entry in [path, *path.rglob("*")]}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("same_release")
def test_a_canary_changes_no_byte(
    federation_of: Federation, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    stop(monkeypatch)
    without = federation_of.run(method, 0, name="without")
    # A heavy user takes time, and as much of it as there is: only the owner may learn of it.
    stop(monkeypatch, step=7.25)
    canary = federation_of.run(method, 1200, name="canary")
    left, right = contents(without), contents(canary)
    assert sorted(left) == sorted(right)
    assert [name for name in left if left[name] != right[name]] == []
    assert "report.html" in left
    assert "ledger.jsonl" in left
    assert dates(without) == dates(canary) == {CREATED_SECONDS}


def test_the_canary_is_in_the_sum(federation_of: Federation) -> None:
    """Otherwise nothing could differ: the same two runs with the release as it is."""
    found = []
    for documents in (0, 1200):
        path = federation_of.run("private-evolution", documents, name=f"run-{documents}")
        found.append(np.load(path / "rounds" / "0001" / "release.npy"))
    # The noise repeats, so what is left is the one user.
    assert 1 <= np.abs(found[0] - found[1]).sum() <= 8


@pytest.mark.parametrize("method", ["private-evolution", "popri", "dp-fedavg"])
def test_with_a_running_clock_no_file_holds_a_time(federation_of: Federation, method: str) -> None:
    """The clock of the machine, whatever it is read with."""
    path = federation_of.run(method, 3, name="shared")
    run = RunDirectory.open(path)
    created = str(run.document["created"])
    found = times_in(path)
    assert found.pop("config.json") == {created}
    found.pop("models/final/tokenizer.json", None)  # whose vocabulary has words for it
    # The page names the moment for people, to the minute.
    assert {text.replace("T", " ")[:16] for text in found.pop("report.html", set())} <= {
        created.replace("T", " ")[:16]
    }
    assert found == {}
    assert len(dates(path)) == 1
    times = (path.parent / "shared.owner" / "times.jsonl").read_text().splitlines()
    assert len(times) > 5
    assert "not private: times depend on private text" in times[0]
