"""What a method costs: numbers and bytes each way, rounds, seconds at the server and on nodes.

`run_costs` reads what a run counted on its own packed messages; what it will send is its outline's
(`flower_privsyn.private_path.outline`). Tests hold both to the papers' tables.

Papers:
    Hou et al. 2024 (PrE-Text), Table 6; Hou et al. 2025 (POPri), Table 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import DataError
from flower_privsyn.evaluation.result import NotPrivate
from flower_privsyn.files import read_json_lines
from flower_privsyn.privacy import Sampling
from flower_privsyn.runs import RunDirectory


@dataclass(frozen=True, kw_only=True)
class RunCosts:
    """What a run has cost, from its own records; public.

    Per-user figures are for a user alone on a node, as on a phone. A node with many users receives
    and sends one message for all of them.

    Attributes:
        rounds: whose messages were sent and whose replies were waited for.
        lost_rounds: of a process that died inside them: charged, but their messages not counted.
        floats_down: numbers one user receives in all rounds, when in all of them.
        floats_up: numbers one user sends.
        bytes_down: of the packed messages one user receives.
        bytes_up: of the packed messages one user sends.
        participation: share of rounds that a user is in, on average, by the sampling.
        expected: the four counts as a user may expect them: each round's, times the share of users
            who are in it.
        per_round: for each round its number and the four counts.
    """

    rounds: int
    lost_rounds: int
    floats_down: int
    floats_up: int
    bytes_down: int
    bytes_up: int
    participation: float
    expected: Mapping[str, float]
    per_round: tuple[dict[str, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON can hold them."""
        return asdict(self)


_COUNTS = ("floats_down", "floats_up", "bytes_down", "bytes_up")


def run_costs(run: RunDirectory) -> RunCosts:
    """Add up what a run recorded about its rounds.

    A round that was repeated after an interruption was sent twice and is counted twice.

    Args:
        run: of a strategy of this package.

    Raises:
        DataError: The run has no round with counts.
    """
    lines = [line for line in run.metrics() if all(key in line for key in _COUNTS)]
    if not lines:
        raise DataError(f"the run in {run.path} recorded no round with its communication")
    lost = run.rounds_with_outcome("interrupted")
    counted = {int(line["round"]) for line in lines}
    shares = _shares(run)
    return RunCosts(
        rounds=len(lines),
        lost_rounds=len([number for number in lost if number not in counted]),
        participation=sum(shares.values()) / len(shares) if shares else 1.0,
        # Rounds differ in size and in who is in them: the product of two averages is another.
        expected={
            key: sum(shares.get(int(line["round"]), 1.0) * int(line[key]) for line in lines)
            for key in _COUNTS
        },
        per_round=tuple(
            {"round": int(line["round"]), **{key: int(line[key]) for key in _COUNTS}}
            for line in lines
        ),
        **{key: sum(int(line[key]) for line in lines) for key in _COUNTS},
    )


@dataclass(frozen=True, kw_only=True)
class RunTimes(NotPrivate):
    """How long a run took: it depends on what the users wrote, and is no part of the run directory.

    Attributes:
        seconds_server: wall time the server worked before, between and after the rounds.
        seconds_feedback: wall time the server waited for replies. In a simulation this is the
            nodes' work.
    """

    seconds_server: float
    seconds_feedback: float


def run_times(run: RunDirectory) -> RunTimes | None:
    """Add up the times in the owner's folder beside a run; None where they are not there.

    Raises:
        RunDirectoryError: The file of the times is damaged.
    """
    lines = [line for line in run.owner.times() if "seconds_server" in line]
    if not lines:
        return None
    return RunTimes(
        seconds_server=sum(float(line["seconds_server"] or 0.0) for line in lines),
        seconds_feedback=sum(float(line.get("seconds_feedback") or 0.0) for line in lines),
    )


@dataclass(frozen=True, kw_only=True)
class ClientCosts(NotPrivate):
    """CPU time of nodes, counted on them for research; it depends on what the users wrote.

    Attributes:
        cpu_seconds_prepare: of all nodes together, for loading models and reading and embedding
            their text.
        cpu_seconds_rounds: of all nodes together, for answering.
        answers: messages answered in rounds.
        users: on all nodes.
        cpu_seconds_per_user: of both, per user.
    """

    cpu_seconds_prepare: float
    cpu_seconds_rounds: float
    answers: int
    users: int
    cpu_seconds_per_user: float


def roster_size(run: RunDirectory) -> int:
    """Users on the nodes of a run: public, from its ledger.

    Raises:
        DataError: The run has asked nobody.
    """
    for line in run.ledger_lines():
        if line.get("event") == "started":
            population = Sampling.from_dict(line["sampling"]).population
            if population:
                return population
    raise DataError(f"the ledger of {run.path} does not say how many users there were")


def client_costs(file: str | Path, *, users: int) -> ClientCosts:
    """Add up what nodes wrote under `PRIVSYN_CPU_TIME` in one run.

    Args:
        file: written by `flower_privsyn.client_apps.cpu_time`.
        users: on all the nodes that wrote it, >= 1; see `roster_size`.

    Raises:
        ConfigError: Users is out of range.
        DataError: The file holds no such lines.
    """
    check_whole("users", users, ge=1)
    prepare = rounds = 0.0
    answers = 0
    for line in read_json_lines(Path(file)):
        seconds, kind = line.get("cpu_seconds"), str(line.get("message", ""))
        if not isinstance(seconds, int | float) or not math.isfinite(seconds):
            raise DataError(f"{file} holds a line without cpu_seconds")
        if kind == "query.prepare":
            prepare += seconds
        else:
            rounds += seconds
            answers += 1
    if prepare == rounds == 0.0:
        raise DataError(f"{file} does not exist or holds no CPU times")
    return ClientCosts(
        cpu_seconds_prepare=prepare,
        cpu_seconds_rounds=rounds,
        answers=answers,
        users=users,
        cpu_seconds_per_user=(prepare + rounds) / users,
    )


def _shares(run: RunDirectory) -> dict[int, float]:
    """By round, the expected share of users in it: public, from the ledger's own description."""
    return {
        int(line["round"]): Sampling.from_dict(line["sampling"]).rate
        for line in run.ledger_lines()
        if line.get("event") == "started"
    }
