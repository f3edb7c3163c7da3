"""POPri end to end in one process, on real Flower messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from flower_privsyn.run.method import need
from flower_privsyn.run.rounds import last_state
from flower_privsyn.strategies import POPri, POPriConfig
from flower_privsyn.strategies._moments import MomentSketch
from flower_privsyn.testing import HashEmbedder
from tests.support.federation import WORDS, make_users
from tests.support.run_files import releases
from tests.support.small_runs import small_run
from tests.support.words import WordGenerator, train_words

Builder = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path, public_file: Path) -> Callable[..., POPriConfig]:
    """Settings of a small run; keyword arguments replace them."""
    return small_run(
        POPriConfig,
        tmp_path / "run",
        num_rounds=3,
        num_nodes=2,
        num_prompts=8,
        responses_per_prompt=5,
        rejected_rank=4,
        public_text=str(public_file),
        synthetic_samples=20,
    )


def table(run: Path, number: int) -> list[dict[str, Any]]:
    """The responses of a round, a row each."""
    rows: list[dict[str, Any]] = pq.read_table(
        run / "rounds" / f"{number:04d}" / "candidates.parquet"
    ).to_pylist()
    return rows


def stored(run: Path, number: int) -> tuple[np.ndarray, np.ndarray]:
    """(m, d) embeddings of the responses of a round as they travel, and (m,) their prompts."""
    rows = table(run, number)
    embeddings = np.array([row["embedding"] for row in rows], dtype=np.float32)
    return embeddings, np.array([row["prompt"] for row in rows])


class TestJudgedByMoments:
    def test_moments_are_the_first_release_and_the_nearest_round_writes(
        self, federation: Builder, config: Builder
    ) -> None:
        values = {"checkpoint": "fred", "moment_dimensions": 4, "noise_multiplier": 0.05}
        strategy = POPri(
            config(num_rounds=4, **values),
            embedder=HashEmbedder(),
            generator=WordGenerator(WORDS),
            trainer=train_words,
        )
        strategy.start(federation(make_users(30)))
        run = strategy.run.path
        asked = [line["query"] for line in releases(run)]
        assert asked == ["moments"] + ["mean_similarity"] * 3
        sketch = MomentSketch.load(run)
        summary = strategy.run.state["summary"]
        _, state = need(last_state(strategy.run))
        distances = {int(n): value for n, value in summary["fred"].items()}
        assert sorted(distances) == [2, 3, 4, 5]
        for number, value in distances.items():
            # The last were written after the last release, to be judged alone.
            embeddings = state["embeddings"] if number == 5 else stored(run, number)[0]
            assert value == pytest.approx(sketch.frechet(embeddings), rel=1e-9)
        writer = min(distances, key=lambda number: distances[number])
        assert summary["writer"] == f"the adapter that wrote in round {writer}"


class TestSettings:
    def test_the_model_to_train(self, config: Builder) -> None:
        assert config().model_to_train == "smollm2-135m"
        assert config(generator="/models/llama").model_to_train == "/models/llama"
        served = config(generator="http://h:1/v1#m", training_model="/models/llama")
        assert served.model_to_train == "/models/llama"


class TestGenerationServer:
    def test_every_round_s_adapter_is_loaded_under_its_own_name(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        from tests.support.generation_server import Server

        server = Server()
        try:
            settings = config(
                generator=f"{server.url}#tiny", training_model="privsyn-lm", num_rounds=2
            )
            strategy = POPri(settings, embedder=HashEmbedder(), trainer=train_words)
            strategy.start(federation())
        finally:
            server.close()
        run = tmp_path / "run"
        loaded = [body for path, body, _ in server.requests if path == "/v1/load_lora_adapter"]
        folders = [run / "rounds" / number / "adapter" for number in ("0001", "0002")]
        assert [Path(body["lora_path"]) for body in loaded] == [f.resolve() for f in folders]
        assert len({body["lora_name"] for body in loaded}) == 2
        asked = [body["model"] for path, body, _ in server.requests if path == "/v1/completions"]
        assert asked.pop(0) == "tiny"  # whether it answers at all, before the first round
        # 8 prompts by the model itself, 8 with the first adapter, then the corpus with the second.
        assert asked[:8] == ["tiny"] * 8
        assert asked[8:16] == [loaded[0]["lora_name"]] * 8
        assert set(asked[16:]) == {loaded[1]["lora_name"]}
        first = [row["text"].split()[0] for row in table(run, 1)]
        second = [row["text"].split()[0] for row in table(run, 2)]
        assert set(first) == {"base"}
        assert len(set(second)) == 1
        assert second[0] != "base"
