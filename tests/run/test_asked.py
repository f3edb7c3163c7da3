"""What may not be asked is refused before it is paid for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.errors import ConfigError
from flower_privsyn.queries import Broadcast, Cohort, Query
from flower_privsyn.strategies import Question, RecordSource, RunContext, State
from flower_privsyn.testing import LoopbackGrid
from tests.support.federation import dealt, make_users, rounds_asked
from tests.support.probe import Probe, ProbeMethod
from tests.support.run_files import lines
from tests.support.text_lengths import TextLengths

Builder = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Chosen(TextLengths):
    """A question of somebody else's, which goes wrong in one way or none."""

    name: ClassVar[str] = "chosen"

    wrong: str = ""
    words: tuple[str, ...] = ("court", "tax")
    limit: int | None = 3

    def check(self, broadcast: Broadcast, *, dimension: int) -> None:
        if self.wrong == "checked":
            raise ValueError("nothing pleases me")

    def answer_length(self, broadcast: Broadcast) -> int:
        return len(self.words)

    def statistic(self, cohort: Cohort, broadcast: Broadcast) -> np.ndarray[Any, Any]:
        counts = np.zeros((cohort.num_users, len(self.words)))
        for owner, text in zip(cohort.owners, cohort.records, strict=True):
            counts[owner] += [word in text.split() for word in self.words]
        if self.wrong == "records" and len(cohort.records):
            raise LookupError("no such word")
        return counts.T if self.wrong == "shape" else counts


class AskedOfText(ProbeMethod):
    """Asks what it is given, and from the second round on something else if that is given."""

    query: Query = Chosen()
    later: Query | None = None

    @property
    def queries(self) -> tuple[Query, ...]:
        return (self.query,)

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        self.place = place
        return (RecordSource.of_text(),)

    def ask(self, state: State, number: int) -> Question:
        return Question(self.query if number == 1 else self.later or self.query, {})


class TestWhatNoNodeAnswers:
    """Where who is drawn is secret a round that nobody answers costs what any other does."""

    def nodes(self) -> LoopbackGrid:
        app = create_client_app(dealt(make_users(12)), queries=[Chosen])
        return LoopbackGrid(app, num_nodes=2)

    def strategy(self, config: Builder, query: Query, **more: Any) -> Probe:
        """A run of a question at a budget of 2."""
        later = more.pop("later", None)
        own = type("Own", (AskedOfText,), {"query": query, "later": later})
        settings = {"sampling": "poisson", "sampling_rate": 0.5, "epsilon": 2.0, **more}
        return Probe(config(accountant="rdp", **settings), method=own)

    def events(self, tmp_path: Path) -> list[str]:
        ledger = tmp_path / "run/ledger.jsonl"
        return [line["event"] for line in lines(ledger)] if ledger.exists() else []

    def test_a_parameter_that_only_a_later_round_has(self, config: Builder, tmp_path: Path) -> None:
        for resume in (False, True):
            grid = self.nodes()
            strategy = self.strategy(config, Chosen(), later=Chosen(limit=None), resume=resume)
            with pytest.raises(ConfigError, match="query chosen is .*limit"):
                strategy.start(grid)
        assert self.events(tmp_path) == ["opened", "started", "release"]

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ("checked", "ValueError: nothing pleases me"),
            ("shape", "ValueError: Chosen.statistic returned (2, 1), expected (1, 2)"),
            ("records", "LookupError: no such word"),
        ],
    )
    def test_one_that_goes_wrong_whoever_is_asked(
        self, config: Builder, tmp_path: Path, wrong: str, said: str
    ) -> None:
        whole = (
            f"no node can answer chosen as round 2 would ask it ({said}); the round is not asked"
        )
        for resume in (False, True):
            grid = self.nodes()
            strategy = self.strategy(config, Chosen(), later=Chosen(wrong=wrong), resume=resume)
            with pytest.raises(ConfigError, match=re.escape(whole)):
                strategy.start(grid)
            assert rounds_asked(grid) == ([] if resume else [1])
        assert self.events(tmp_path) == ["opened", "started", "release"]

    def test_a_bundled_one_about_the_wrong_thing(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        grid, strategy = federation(), Probe(config())
        strategy.method.candidates = np.ones((3, 5), dtype=np.float32)
        with pytest.raises(ConfigError, match=r"candidates must be \(n, 32\) .* got \(3, 5\)"):
            strategy.start(grid)
        assert rounds_asked(grid) == []
        assert self.events(tmp_path) == ["opened"]
