"""One setting of every strategy: the first release is the central one, up to a little noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context

from flower_privsyn.client_apps import create_client_app
from flower_privsyn.client_apps.training import create_training_app
from flower_privsyn.messages import wire
from flower_privsyn.strategies import (
    CTCL,
    AugPE,
    AugPEConfig,
    CTCLConfig,
    DPFedAvg,
    DPFedAvgConfig,
    FreD,
    FreDConfig,
    JointSketch,
    JointSketchConfig,
    POPri,
    POPriConfig,
    PrivateEvolution,
    PrivateEvolutionConfig,
)
from flower_privsyn.strategies.joint_sketch import AskedOnce
from flower_privsyn.testing import (
    EchoGenerator,
    HashEmbedder,
    LoopbackGrid,
    ShuffleWords,
    hash_embedder,
)
from tests.support.federation import WORDS, make_users
from tests.support.run_files import release, releases
from tests.support.topics import write_topics
from tests.support.words import WordGenerator, train_words

NODES, NOISE = 4, 1e-3


def small(tmp_path: Path, public_file: Path, **changes: Any) -> dict[str, Any]:
    return {
        "num_nodes": 2,
        "num_prompts": 6,
        "responses_per_prompt": 5,
        "rejected_rank": 4,
        "public_text": str(public_file),
        "synthetic_samples": 10,
        "run_dir": str(tmp_path / "run"),
        "node_timeout": 0.2,
        "accept_noise": True,
        "noise_multiplier": 0.1,
        **changes,
    }


def private_evolution(values: dict[str, Any]) -> Any:
    config = PrivateEvolutionConfig(num_rounds=2, num_candidates=16, lookahead=1,
                                    synthetic_samples=0, **values)  # fmt: skip
    return PrivateEvolution(
        config, embedder=HashEmbedder(), variation=ShuffleWords(), generator=EchoGenerator()
    )


def popri(answer_space: Any) -> Callable[[dict[str, Any]], Any]:
    def build(values: dict[str, Any]) -> Any:
        config = POPriConfig(
            num_rounds=2, num_prompts=6, responses_per_prompt=5, rejected_rank=4,
            synthetic_samples=10, answer_space=answer_space, **values,
        )  # fmt: skip
        return POPri(
            config, embedder=HashEmbedder(), generator=WordGenerator(WORDS), trainer=train_words
        )

    return build


def fred(values: dict[str, Any]) -> Any:
    return FreD(FreDConfig(moment_dimensions=4, **values), embedder=HashEmbedder())


def aug_pe(values: dict[str, Any]) -> Any:
    config = AugPEConfig(
        classes="law; river", num_rounds=1, num_candidates=12, num_variations=3, max_samples=2,
        **values,
    )  # fmt: skip
    return AugPE(config, embedder=HashEmbedder(), generator=WordGenerator(WORDS))


def joint_sketch(values: dict[str, Any]) -> Any:
    config = JointSketchConfig(
        num_bigrams=400, least_selected=1, select_share=0.2,
        least_row_tokens=4, most_overlap=1.0, student_steps=1, training_batch_size=2, teacher="",
        **values,
    )  # fmt: skip
    return JointSketch(config)


STRATEGIES = {
    "aug-pe": aug_pe,
    "joint-sketch": joint_sketch,
    "private-evolution": private_evolution,
    "popri-span": popri("span"),
    "popri-candidates": popri("candidates"),
    "fred": fred,
}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVSYN_NODE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # no power is cut here


def compared(
    build: Callable[[dict[str, Any]], Any],
    values: dict[str, Any],
    tmp_path: Path,
    client: Any,
    *,
    alike: int = 1,
) -> None:
    """Run it both ways, and hold the first releases against each other.

    Args:
        build: a strategy from its settings.
        values: the settings.
        tmp_path: for the runs.
        client: the app of the nodes.
        alike: how many releases ask the same both ways, whatever the noise of those before.
    """
    for name, more in (("central", {}), ("secure", {"secure_aggregation": True})):
        run = tmp_path / name
        grid = LoopbackGrid(client, num_nodes=NODES)
        strategy = build({**values, "run_dir": str(run), **more})
        strategy.start(grid)
        assert all(wire.unexpected_records(reply) == [] for reply in grid.replies)
    for line in releases(tmp_path / "secure")[:alike]:
        ours, theirs = (release(tmp_path / name, line["round"]) for name in ("secure", "central"))
        deviation = NOISE * line["l2_sensitivity"]
        # Twice the noise in variance, and the central one's beside it.
        assert 0 < np.abs(ours - theirs).max() < 6 * 3**0.5 * deviation
        assert np.abs(theirs).max() > 20 * deviation
    assert len(releases(tmp_path / "secure")) == len(releases(tmp_path / "central"))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_of_embeddings_or_tokens(
    name: str, tmp_path: Path, public_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What it makes of its one release takes long, and nobody is asked for it.
    monkeypatch.setattr(AskedOnce, "finish", lambda self, state: {})

    users = make_users(12)
    labels = [("law", "river")[number % 2] for number in range(len(users.texts))]

    def load(context: Context) -> Any:
        return replace(users, labels=labels if name == "aug-pe" else None).partition(
            partition_id=int(context.node_config["partition-id"]), num_partitions=NODES
        )

    client = create_client_app(load, embedder=hash_embedder, cache_directory=tmp_path / "cache")
    common = {
        key: value
        for key, value in small(tmp_path, public_file).items()
        if key in ("public_text", "node_timeout", "accept_noise")
    }
    values = {**common, "num_nodes": NODES, "noise_multiplier": NOISE}
    if name == "fred":
        values["candidates"] = str(public_file)
    compared(STRATEGIES[name], values, tmp_path, client)


def test_training_on_the_nodes(lstm: Path, tmp_path: Path) -> None:
    def load(context: Context) -> Any:
        return make_users(8).partition(
            partition_id=int(context.node_config["partition-id"]), num_partitions=NODES
        )

    def build(values: dict[str, Any]) -> Any:
        return DPFedAvg(DPFedAvgConfig(**values))

    values = {
        "model": str(lstm), "num_rounds": 1, "num_nodes": NODES, "local_learning_rate": 0.5,
        "clip_norm": 0.05, "max_tokens": 32, "noise_multiplier": NOISE, "node_timeout": 0.2,
        "accept_noise": True,
    }  # fmt: skip
    compared(build, values, tmp_path, create_training_app(load, device="cpu"))


def test_a_histogram_and_then_training_in_the_form_of_dp_fedavg(
    llama: Path, tmp_path: Path
) -> None:
    """Both questions of CTCL; its rounds of correlated noise are refused (test_secure.py)."""

    def load(context: Context) -> Any:
        return make_users(8).partition(
            partition_id=int(context.node_config["partition-id"]), num_partitions=NODES
        )

    def build(values: dict[str, Any]) -> Any:
        return CTCL(CTCLConfig(**values), embedder=HashEmbedder())

    values = {
        "model": str(llama), "topics": str(write_topics(tmp_path)), "num_topics": 6,
        "num_rounds": 2, "sampling": "full", "num_nodes": NODES, "local_learning_rate": 0.5,
        "clip_norm": 0.05, "server_momentum": 0.0, "max_tokens": 32, "max_samples": 4,
        "max_new_tokens": 2, "synthetic_samples": 6, "noise_multiplier": NOISE,
        "first_noise_multiplier": NOISE, "node_timeout": 0.2, "accept_noise": True,
    }  # fmt: skip
    client = create_training_app(
        load, embedder=hash_embedder, cache_directory=tmp_path / "cache", device="cpu"
    )
    compared(build, values, tmp_path, client, alike=2)
