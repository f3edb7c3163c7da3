"""Ending a run between two rounds: nothing is charged for it, and it goes on as if at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flower_privsyn.errors import StoppedError
from flower_privsyn.run import RunDirectory
from tests.support.federation import rounds_asked
from tests.support.probe import Killed, Probe
from tests.support.run_files import lines, release, releases

Builder = Callable[..., Any]


def stopping(strategy: Probe, number: int) -> Callable[[int, Any], None]:
    """The file in the owner's folder, while the server works on what a round has released."""

    def called(server_round: int, arrays: Any) -> None:
        if server_round == number:
            strategy.run.owner.stop_file.touch()

    return called


@pytest.mark.parametrize("correlated", [False, True])
def test_a_run_ends_before_its_next_round_and_goes_on(
    federation: Builder, config: Builder, votes: Builder, correlated: bool
) -> None:
    settings = votes if correlated else config
    grid, strategy = federation(), Probe(settings(epsilon=2.0))
    with pytest.raises(StoppedError) as caught:
        strategy.start(grid, evaluate_fn=stopping(strategy, 1))
    run = RunDirectory.open(strategy.run.path)
    assert str(caught.value) == run.error
    total = strategy.config.num_rounds
    assert (run.status, run.standing) == ("failed", "interrupted")
    assert rounds_asked(grid) == [1]
    # Nothing says that a second round has begun.
    assert [line["round"] for line in lines(run.ledger_file) if "round" in line] == [1, 1]
    first = release(run.path, 1)

    again = Probe(settings(epsilon=2.0, resume=True))
    again.start(federation())
    assert not again.run.owner.stop_file.exists()
    assert [line["interrupted"] for line in releases(run.path)] == [False] * total
    assert np.array_equal(release(run.path, 1), first)
    whole = Probe(settings(epsilon=2.0, run_dir=str(run.path.with_name("whole"))))
    whole.start(federation())
    spent = [line["epsilon_release"] for line in releases(run.path)]
    assert spent == [line["epsilon_release"] for line in releases(whole.run.path)]


def test_a_request_is_of_one_start(federation: Builder, config: Builder) -> None:
    """Of a run that was killed before it came to its end the request is not the next start's."""
    strategy = Probe(config(num_rounds=2))

    def die() -> None:
        strategy.run.owner.stop_file.touch()
        raise Killed

    strategy.method.before_update = die
    with pytest.raises(Killed):
        strategy.start(federation())
    assert strategy.run.owner.stop_file.exists()
    again = Probe(config(num_rounds=2, resume=True))
    again.start(federation())
    assert again.run.status == "finished"


def test_after_the_last_round_a_run_is_finished(federation: Builder, config: Builder) -> None:
    strategy = Probe(config(num_rounds=1))
    strategy.start(federation(), evaluate_fn=stopping(strategy, 1))
    assert strategy.run.status == "finished"
