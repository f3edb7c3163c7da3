"""A small federation in one process, and the settings of a small run."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.data import Users
from flower_privsyn.privacy.mechanisms import to_grid
from flower_privsyn.strategies import PrivateEvolution, PrivateEvolutionConfig
from flower_privsyn.testing import (
    EchoGenerator,
    HashEmbedder,
    LoopbackGrid,
    ShuffleWords,
    flower_identity,
)
from tests.support.federation import WORDS, embedding_nodes, make_users
from tests.support.small_runs import small_run

pytest_plugins = [
    "tests.support.generation_server",
    "tests.support.labelled_runs",
    "tests.support.models",
    "tests.support.owner",
    "tests.support.probe",
    "tests.support.repeating",
]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what is imported by now out of every later collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> Iterator[None]:
    """And what a module's tests imported: the model libraries are a million objects.

    Looking through them over and over took a third of the suite's processor time.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def state_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No key is made in the state folder of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def identity() -> Iterator[None]:
    with flower_identity():
        yield


@pytest.fixture(autouse=True)
def nothing_off_the_grid(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test's runs release lies on the grid and is for the owner's eyes."""
    if "tmp_path" not in request.fixturenames:
        yield
        return
    folder: Path = request.getfixturevalue("tmp_path")
    yield
    for name in ("release.npy", "sketch.npy"):
        for path in folder.rglob(name):
            with path.open("rb") as file:
                to_grid(str(path), np.load(file))
            assert path.stat().st_mode & 0o777 == 0o600, path


@pytest.fixture
def public_file(tmp_path: Path) -> Path:
    """Public text on every topic."""
    path = tmp_path / "public.jsonl"
    lines = []
    for index in range(80):
        words = [WORDS[(index * 5 + i * (index % 4 + 1)) % len(WORDS)] for i in range(10)]
        lines.append(json.dumps({"text": " ".join(words) + f" w{index}"}))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def federation(tmp_path: Path) -> Callable[..., LoopbackGrid]:
    """Build a grid of nodes that host given users."""

    def build(users: Users | None = None, *, num_nodes: int = 2, **kwargs: Any) -> LoopbackGrid:
        everyone = make_users(12) if users is None else users
        return embedding_nodes(everyone, tmp_path, num_nodes=num_nodes, **kwargs)

    return build


@pytest.fixture
def settings(tmp_path: Path, public_file: Path) -> Callable[..., PrivateEvolutionConfig]:
    """Settings of a small run; keyword arguments replace them."""

    return small_run(
        PrivateEvolutionConfig,
        tmp_path / "run",
        num_rounds=3,
        num_nodes=2,
        num_candidates=16,
        lookahead=1,
        public_text=str(public_file),
        synthetic_samples=12,
    )


@pytest.fixture
def evolution() -> Callable[..., PrivateEvolution]:
    """A strategy with fakes in place of models."""

    def build(config: PrivateEvolutionConfig, **parts: Any) -> PrivateEvolution:
        return PrivateEvolution(
            config,
            embedder=parts.pop("embedder", HashEmbedder()),
            variation=parts.pop("variation", ShuffleWords()),
            generator=parts.pop("generator", EchoGenerator()),
            **parts,
        )

    return build
