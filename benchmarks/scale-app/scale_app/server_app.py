"""The server: a method's question about random candidates, round after round, and nothing else."""

from __future__ import annotations

import time
from typing import Any, final

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn.embedding import Embedder
from flower_privsyn.private_path.engine import PrivateSumStrategy, ReleasedSum
from flower_privsyn.queries import Broadcast, MeanSimilarity, NearestNeighborHistogram, Query
from flower_privsyn.strategies import PrivateSumConfig
from scale_app.client_app import embedder

OWN_KEYS = ("question", "num-candidates", "responses-per-prompt", "answer-space")

app = ServerApp()


@final
class Questions(PrivateSumStrategy):
    """Private evolution's or POPri's question; generation and training are left out.

    The private path is the package's: requests, answers, sums, ledger and noise. The candidates are
    random unit vectors, others in every round, so nothing that is kept by content can help.
    """

    def __init__(self, config: PrivateSumConfig, own: dict[str, Any]) -> None:
        super().__init__(config)
        self._own = own
        self._embedder: Embedder | None = None
        self._query: Query = (
            MeanSimilarity(max_samples=config.max_samples, answer_space=own["answer-space"])
            if own["question"] == "popri"
            else NearestNeighborHistogram(max_samples=config.max_samples)
        )

    @property
    def query(self) -> Query:
        """The same in every round."""
        return self._query

    def check(self) -> None:
        """Load the model, which has to be the nodes'."""
        self._embedder = embedder(self._settings.embedding_model, "float32")

    def embedder_identity(self) -> tuple[str, int]:
        """Of the model."""
        assert self._embedder is not None
        return self._embedder.fingerprint, self._embedder.dimension

    def first_broadcast(self) -> Broadcast:
        """Random candidates."""
        return self._candidates(1)

    def update(self, release: ReleasedSum, *, last: bool) -> Broadcast | None:
        """Note the time; the next candidates."""
        self._note(release.round_number, "answered")
        return None if last else self._candidates(release.round_number + 1)

    def restore(self, round_number: int) -> Broadcast:
        """They follow from the number of the round."""
        return self._candidates(round_number)

    def keep(self, round_number: int) -> None:
        """A lost round's successor has candidates of its own."""

    def finish(self) -> dict[str, Any]:
        """There is no result."""
        return {}

    def _candidates(self, number: int) -> Broadcast:
        count, (_, dimension) = self._own["num-candidates"], self.embedder_identity()
        chooser = np.random.default_rng([self._settings.seed, number])
        candidates = chooser.standard_normal((count, dimension), dtype=np.float32)
        candidates /= np.linalg.norm(candidates, axis=1, keepdims=True)
        broadcast: dict[str, Any] = {"candidates": candidates}
        if self._own["question"] == "popri":
            broadcast["prompt"] = np.arange(count) // self._own["responses-per-prompt"]
        self._note(number, "asked")
        return broadcast

    def _note(self, number: int, event: str) -> None:
        self.run.owner.record(event, round=number, time=time.time())


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask."""
    own = {key: context.run_config[key] for key in OWN_KEYS}
    config = PrivateSumConfig.from_run_config(context.run_config, other_keys=OWN_KEYS)
    Questions(config, own).start(grid)
