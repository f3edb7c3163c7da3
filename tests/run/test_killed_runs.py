"""The private path where a run was killed: what it had charged, and how it goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError, FederationError
from tests.support.federation import silent
from tests.support.probe import Killed, Probe, dying_in, killed_in
from tests.support.run_files import lines, releases

Builder = Callable[..., Any]


class TestResume:
    @pytest.fixture
    def start(self, federation: Builder, config: Builder) -> Callable[..., Probe]:
        def run(
            *, resume: bool = False, tamper: Any = None, prepare: Any = None, **changes: Any
        ) -> Probe:
            strategy = Probe(config(resume=resume, **changes))
            if prepare:
                prepare(strategy)
            strategy.start(federation(tamper=tamper))
            return strategy

        return run

    def check(self, run: Path, *, interrupted: Sequence[int], epsilon: float = 4.0) -> None:
        charged = releases(run)
        assert [line["round"] for line in charged] == [1, 2, 3]
        assert [line["round"] for line in charged if line["interrupted"]] == list(interrupted)
        assert charged[-1]["epsilon_release"] <= epsilon * (1 + 1e-6)
        assert json.loads((run / "state.json").read_text())["status"] == "finished"

    def test_killed_where_it_is_asked_again_its_cost_has_a_line(
        self, start: Builder, tmp_path: Path
    ) -> None:
        """Round 2 is discarded; asked again it is released, and round 3 killed."""
        with pytest.raises(FederationError, match="two rounds in a row were lost"):
            start(tamper=silent(2))
        assert [one["round"] for one in releases(tmp_path / "run")] == [1]
        with pytest.raises(Killed):
            start(resume=True, tamper=dying_in(3))
        strategy = start(resume=True)
        self.check(tmp_path / "run", interrupted=[3])
        charged = [one["epsilon_release"] for one in releases(tmp_path / "run")]
        found = [(one["round"], one["released"]) for one in lines(tmp_path / "run/metrics.jsonl")]
        assert found == [(1, True), (2, False), (2, False), (2, True), (3, False)]
        last = list(strategy.run.round_lines().values())
        assert [(one["round"], one["released"]) for one in last] == [
            (1, True),
            (2, True),
            (3, False),
        ]
        assert [one["epsilon_release"] for one in last] == charged

    def test_killed_again_and_again_never_overspends(self, start: Builder, tmp_path: Path) -> None:
        for attempt in range(3):
            with pytest.raises(Killed):
                start(resume=attempt > 0, tamper=dying_in())
        with pytest.raises(FederationError, match="no round was released.* 3 rounds were charged"):
            start(resume=True)
        metrics = lines(tmp_path / "run/metrics.jsonl")
        assert [(one["round"], one["released"]) for one in metrics] == [
            (1, False), (2, False), (3, False),
        ]  # fmt: skip
        charged = releases(tmp_path / "run")
        assert [(line["round"], line["interrupted"]) for line in charged] == [
            (1, True), (2, True), (3, True),
        ]  # fmt: skip
        assert charged[-1]["epsilon_release"] <= 4.0 * (1 + 1e-6)

    @pytest.mark.parametrize(
        ("damage", "sentence"),
        [
            ("removed", "lacks the line .* which rounds/0000/state.json states"),
            ("cut", "lacks the line .* which rounds/0002/state.json states"),
            ("cut by one round", "lacks the line .* which metrics.jsonl states"),
            ("cut by the round that died", "no line for round 3"),
        ],
    )
    def test_a_lost_ledger_stops_the_run(
        self, start: Builder, tmp_path: Path, damage: str, sentence: str
    ) -> None:
        from flower_privsyn.errors import LedgerError

        with pytest.raises(Killed):
            start(prepare=lambda strategy: killed_in(strategy, 3))
        path = tmp_path / "run" / "ledger.jsonl"
        left = 0
        if damage == "removed":
            path.unlink()
        else:
            left = 3 if damage == "cut" else 5
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:left]))
        if left == 5:
            # A killed process says nothing in state.json; only its release is on the disk, with
            # the line of its round, which runs that were begun earlier do not have.
            (tmp_path / "run" / "state.json").unlink()
            if damage == "cut by the round that died":
                metrics = tmp_path / "run" / "metrics.jsonl"
                metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(LedgerError, match=sentence):
            start(resume=True)
        assert (path.read_bytes() if path.exists() else None) == before

    def test_another_strategy_does_not_go_on(
        self, config: Builder, federation: Builder, tmp_path: Path
    ) -> None:
        class Other(Probe):
            pass

        run = str(tmp_path / "run")
        with pytest.raises(FederationError):
            Probe(config(num_nodes=5, run_dir=run)).start(federation())
        with pytest.raises(ConfigError, match="was started by Probe and is resumed by Other"):
            Other(config(num_nodes=5, run_dir=run, resume=True)).start(federation())
