"""What real runs count on their messages at the sizes of the papers' tables.

Models of text are the fakes of `flower_privsyn.testing`, which change no size; strategies,
messages, client and counting are the real ones, and so is the training of a model as large as
DistilGPT2.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.client_apps import create_client_app
from flower_privsyn.messages import wire
from flower_privsyn.run.summary import run_costs
from flower_privsyn.strategies import (
    POPri,
    POPriConfig,
    PrivateEvolution,
    PrivateEvolutionConfig,
)
from flower_privsyn.testing import (
    EchoGenerator,
    HashEmbedder,
    LoopbackGrid,
    ShuffleWords,
    WordGenerator,
    train_words,
)
from tests.support.federation import WORDS, make_users
from tests.support.paper_sizes import DISTILGPT2_PARAMETERS

#: Of all-MiniLM-L6-v2, in which both papers send candidates.
MINILM_DIMENSION = 384

TABLES = json.loads(
    (Path(__file__).parents[1] / "data" / "communication_reference.json").read_text()
)["rows"]


def printed(paper: str, method: str) -> dict[str, Any]:
    (found,) = [row for row in TABLES if (row["paper"], row["method"]) == (paper, method)]
    return dict(found)


@pytest.fixture
def shared(tmp_path: Path) -> dict[str, Any]:
    """Settings of a run of one round, with public text enough for the papers' sizes."""
    public = tmp_path / "public.jsonl"
    texts = (f"{WORDS[i % 25]} {WORDS[i // 25 % 25]} w{i}" for i in range(2100))
    public.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return {
        "num_rounds": 1,
        "num_nodes": 1,
        "noise_multiplier": 0.1,
        "public_text": str(public),
        "run_dir": str(tmp_path / "run"),
        "node_timeout": 0.2,
        "accept_noise": True,
    }


@pytest.fixture
def grid(tmp_path: Path) -> LoopbackGrid:
    """One node with one user, and embeddings of as many numbers as the papers'."""
    app = create_client_app(
        lambda _: make_users(1),
        embedder=lambda _name, _precision: HashEmbedder(MINILM_DIMENSION),
        cache_directory=tmp_path / "cache",
    )
    return LoopbackGrid(app, num_nodes=1)


def counted(strategy: Any, grid: LoopbackGrid) -> tuple[int, int]:
    """Numbers down and up in the only round, after a look at the messages themselves."""
    costs = run_costs(strategy.run)
    assert costs.rounds == 1
    (request,) = [m for m in grid.requests if m.metadata.message_type != wire.PREPARE]
    (reply,) = [m for m in grid.replies if "privsyn.answer" in m.content]
    arrays = request.content.array_records["privsyn.broadcast"].values()
    # Beside the numbers a message has the prompt of each response, integers.
    numbers = [array.numpy() for array in arrays]
    assert sum(one.size for one in numbers if one.dtype.kind == "f") == costs.floats_down
    assert len(reply.content.array_records["privsyn.answer"]) == 1
    (answer,) = reply.content.array_records["privsyn.answer"].values()
    assert len(answer.numpy()) == costs.floats_up
    return costs.floats_down, costs.floats_up


def test_pre_text_at_2048_candidates(shared: dict[str, Any], grid: LoopbackGrid) -> None:
    config = PrivateEvolutionConfig.pre_text(
        **{**shared, "num_candidates": 2048, "lookahead": 1, "expand_samples": 1}
    )
    strategy = PrivateEvolution(
        config,
        embedder=HashEmbedder(MINILM_DIMENSION),
        variation=ShuffleWords(),
        generator=EchoGenerator(),
    )
    strategy.start(grid)
    row = printed("PrE-Text", "PrE-Text")
    assert counted(strategy, grid) == (row["download"], row["upload"]) == (786_432, 2_048)


@pytest.mark.parametrize("answer_space", ["candidates", "span"])
def test_popri_at_1800_prompts(
    shared: dict[str, Any], grid: LoopbackGrid, answer_space: Any
) -> None:
    """As printed; by default the root goes down and 384 numbers, one per dimension, come up."""
    config = POPriConfig(**shared, answer_space=answer_space, synthetic_samples=1)
    assert (config.num_prompts, config.responses_per_prompt) == (1800, 10)
    strategy = POPri(
        config,
        embedder=HashEmbedder(MINILM_DIMENSION),
        generator=WordGenerator(WORDS),
        trainer=train_words,
    )
    strategy.start(grid)
    row = printed("POPri", "POPri")
    assert (row["download"], row["upload"]) == (6_912_000, 18_000)
    ours = (MINILM_DIMENSION * (MINILM_DIMENSION + 1) // 2, MINILM_DIMENSION)
    printed_or_ours = (row["download"], row["upload"]) if answer_space == "candidates" else ours
    assert counted(strategy, grid) == printed_or_ours


def distilgpt2() -> Any:
    """Its architecture; weights are random."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=6))


def test_distilgpt2_has_as_many_parameters_as_are_counted() -> None:
    import torch

    with torch.device("meta"):
        model = distilgpt2()
    # Its output layer is its embedding matrix, which `parameters` yields once.
    assert sum(parameter.numel() for parameter in model.parameters()) == DISTILGPT2_PARAMETERS
    assert printed("PrE-Text", "DP-FL")["value"] == DISTILGPT2_PARAMETERS
