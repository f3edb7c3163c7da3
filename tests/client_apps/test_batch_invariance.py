"""An embedder whose vectors depend on the batch ends a run before anything is asked or spent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.data import Users
from flower_privsyn.embedding import batch_invariance
from flower_privsyn.errors import FederationError, ModelError
from flower_privsyn.testing import HashEmbedder, LoopbackGrid
from tests.support.federation import make_users


class Leaning(HashEmbedder):
    """Moves every vector but the first of a call."""

    def embed(self, texts: Any, *, progress: Any = None) -> Any:
        vectors = super().embed(texts, progress=progress)
        vectors[1:] *= 1.0000002
        return vectors


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_invariance, "_passed", set())


def leaning(name: str, precision: str) -> HashEmbedder:
    return Leaning()


def test_on_a_node(
    tmp_path: Path,
    settings: Callable[..., Any],
    evolution: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def load(context: Context) -> Users:
        return make_users(6)

    app = create_client_app(load, embedder=leaning, cache_directory=tmp_path / "cache")
    grid = LoopbackGrid(app, num_nodes=2)
    with pytest.raises(FederationError, match="model could not be loaded.*nothing was spent"):
        evolution(settings()).start(grid)
    assert "Leaning" in caplog.text
    assert {request.metadata.message_type for request in grid.requests} == {"query.prepare"}
    assert not list(tmp_path.glob("run/ledger*"))


def test_on_the_server(
    tmp_path: Path,
    settings: Callable[..., Any],
    evolution: Callable[..., Any],
    federation: Callable[..., LoopbackGrid],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "server"))
    grid = federation()
    with pytest.raises(ModelError, match="Leaning"):
        evolution(settings(), embedder=Leaning()).start(grid)
    assert not grid.requests
