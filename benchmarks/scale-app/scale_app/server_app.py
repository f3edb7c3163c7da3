"""The server: a method's question about random candidates, round after round, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, final

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn.queries import MeanSimilarity, NearestNeighborHistogram, Query
from flower_privsyn.strategies import (
    Method,
    PrivateSumConfig,
    PrivateSumStrategy,
    Question,
    RecordSource,
    ReleasedSum,
    RunContext,
    State,
)
from scale_app.client_app import embedder

OWN_KEYS = ("question", "num-candidates", "responses-per-prompt", "answer-space")

app = ServerApp()


class Questions(Method):
    """Private evolution's or POPri's question; generation and training are left out.

    The private path is the package's: requests, answers, sums, ledger and noise. The candidates are
    random unit vectors, others in every round, so nothing that is kept by content can help.
    """

    def __init__(self, config: PrivateSumConfig, own: dict[str, Any]) -> None:
        self._config = config
        self._own = own
        self._dimension = 0
        self._query: Query = (
            MeanSimilarity(max_samples=config.max_samples, answer_space=own["answer-space"])
            if own["question"] == "popri"
            else NearestNeighborHistogram(max_samples=config.max_samples)
        )

    @property
    def queries(self) -> tuple[Query, ...]:
        """The same in every round."""
        return (self._query,)

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        """Load the model, which has to be the nodes'."""
        self.place = place
        model = embedder(self._config.embedding_model, "float32")
        self._dimension = model.dimension
        return (RecordSource(fingerprint=model.fingerprint, dimension=model.dimension),)

    def ask(self, state: State, number: int) -> Question:  # noqa: ARG002
        """Random candidates of the round."""
        return self._candidates(number)

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:  # noqa: ARG002
        """Note the time."""
        self._note(release.round_number, "answered")
        return state

    def finish(self, state: State) -> dict[str, Any]:  # noqa: ARG002
        """There is no result."""
        return {}

    def _candidates(self, number: int) -> Question:
        count = self._own["num-candidates"]
        chooser = np.random.default_rng([self._config.seed, number])
        candidates = chooser.standard_normal((count, self._dimension), dtype=np.float32)
        candidates /= np.linalg.norm(candidates, axis=1, keepdims=True)
        broadcast: dict[str, Any] = {"candidates": candidates}
        if isinstance(self._query, MeanSimilarity):
            prompt = np.arange(count) // self._own["responses-per-prompt"]
            broadcast = self._query.broadcast(candidates, prompt=prompt)
        self._note(number, "asked")
        return Question(self._query, broadcast)

    def _note(self, number: int, event: str) -> None:
        self.run.owner.record(event, round=number, time=time.time())


@final
class Asking(PrivateSumStrategy):
    """The strategy that asks them."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask."""
    own = {key: context.run_config[key] for key in OWN_KEYS}
    config = PrivateSumConfig.from_run_config(context.run_config, other_keys=OWN_KEYS)
    Asking(config, Questions(config, own)).start(grid)
