"""`config.json` says what ran the models that write, and whether their texts can be had again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flower_privsyn.private_path.writers import record_generators
from flower_privsyn.runs import RunDirectory
from flower_privsyn.strategies import PrivateEvolution, PrivateEvolutionConfig

Settings = Callable[..., PrivateEvolutionConfig]


def test_what_is_said_of_generators(settings: Settings, gguf_llama: Path, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", config={})
    for name in ("privsyn-lm", f"gguf:{gguf_llama}", "http://127.0.0.1:9/v1#owner/model"):
        record_generators(run, PrivateEvolution(settings(generator=name)).method)
    said = run.document["generators"]
    assert [one["run_by"] for one in said.values()] == ["Transformers", "llama.cpp", "a server"]
    assert [one["deterministic"] for one in said.values()] == [True, False, False]
    assert all(one["because"] for one in said.values())
    assert len(said[f"gguf:{gguf_llama}"]["sha256"]) == 64
    record_generators(run, PrivateEvolution(settings(output="survivors")).method)
    assert run.document["generators"] == said
    run.unlock()
