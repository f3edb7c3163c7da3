"""Budget is never spent without a word: what ends or refuses a run before or between releases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn import wire
from flower_privsyn.client_apps import private_sum as node
from flower_privsyn.errors import FederationError
from flower_privsyn.queries import KernelMean, NearestNeighborHistogram
from flower_privsyn.strategies import POPri, POPriConfig
from flower_privsyn.testing import HashEmbedder, WordGenerator, train_words
from tests.conftest import WORDS
from tests.strategies.test_private_sum import Probe, config

__all__ = ["config"]  # a fixture

Builder = Callable[..., Any]


def rounds_asked(grid: Any) -> list[int]:
    """The rounds in which anybody was asked."""
    numbers = [m.content["privsyn.request"].get("round") for m in grid.requests]
    return sorted({number for number in numbers if number is not None})


class TestUnknownQuestions:
    """A node says at the preparation what it cannot answer, not in a round that is paid for."""

    def popri(self, tmp_path: Path, public_file: Path, **changes: Any) -> POPri:
        values: dict[str, Any] = {
            "noise_multiplier": 1.0,
            "num_rounds": 2,
            "num_prompts": 2,
            "responses_per_prompt": 4,
            "rejected_rank": 2,
            "num_features": 64,
            "public_text": str(public_file),
            "synthetic_samples": 2,
            "run_dir": str(tmp_path / "run"),
            "node_timeout": 0.2,
            **changes,
        }
        return POPri(
            POPriConfig(**values),
            embedder=HashEmbedder(),
            generator=WordGenerator(WORDS),
            trainer=train_words,
        )

    def test_a_question_of_a_later_round_is_named_before_the_first(
        self,
        federation: Builder,
        public_file: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # POPri with this checkpoint asks for a kernel mean first and for similarities afterwards.
        without = tuple(query for query in node.QUERIES if query.name != "mean_similarity")
        monkeypatch.setattr(node, "QUERIES", without)
        grid = federation()
        strategy = self.popri(tmp_path, public_file, checkpoint="sketch-mmd")
        with pytest.raises(FederationError, match=r"does not answer every question of the run"):
            strategy.start(grid)
        assert rounds_asked(grid) == []
        assert not strategy.run.ledger_file.exists()
        assert {reply.error.code for reply in grid.replies} == {wire.ClientErrorCode.UNKNOWN_QUERY}
        assert "kernel_mean, mean_similarity" in str(strategy.run.error)
        assert [query.name for query in strategy.queries] == ["kernel_mean", "mean_similarity"]

    def test_nobody_is_asked_for_what_the_run_does_not_ask(
        self,
        federation: Builder,
        public_file: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        without = tuple(query for query in node.QUERIES if query is not KernelMean)
        monkeypatch.setattr(node, "QUERIES", without)
        strategy = self.popri(tmp_path, public_file)
        strategy.start(federation())
        assert strategy.run.status == "finished"

    def test_an_app_that_trains_nothing_does_not_know_updates(
        self, federation: Builder, config: Builder
    ) -> None:
        class Updates(Probe):
            @property
            def queries(self) -> tuple[Any, ...]:
                return (type("Delta", (NearestNeighborHistogram,), {"name": "model_delta"})(),)

        with pytest.raises(FederationError, match=r"\(model_delta\): install the server's"):
            Updates(config()).start(federation())
