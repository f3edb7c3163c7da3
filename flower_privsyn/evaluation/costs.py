"""What a method costs: numbers and bytes each way, rounds, seconds at the server and on nodes.

`communication` says what a method's messages hold by its definition, for the sizes of any paper.
`run_costs` reads what a run counted on its own packed messages. A test holds the two together.

Papers:
    Hou et al. 2024 (PrE-Text), Table 6; Hou et al. 2025 (POPri), Table 2.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.evaluation.result import NotPrivate
from flower_privsyn.files import read_json_lines
from flower_privsyn.messages.packed import bytes_per_number
from flower_privsyn.privacy import Sampling
from flower_privsyn.runs import RunDirectory
from flower_privsyn.strategies.catalogue import compared, entries, resolved

#: Dimension of all-MiniLM-L6-v2, in which both papers send candidates.
MINILM_DIMENSION = 384

_BYTES = {"float16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True)
class Communication:
    """What one user receives and sends in one round, without headers.

    Attributes:
        floats_down: numbers the user receives.
        floats_up: numbers the user sends.
        rounds: in which a user takes part who takes part in all of them.
        rounded: whether the numbers down travel as `broadcast-precision` says; else in float32.
    """

    floats_down: int
    floats_up: int
    rounds: int
    rounded: bool = True

    def bytes_down(self, precision: Literal["float16", "float32"] = "float16") -> int:
        """Bytes of the numbers received in a round, at a `broadcast-precision`."""
        return _BYTES[precision if self.rounded else "float32"] * self.floats_down

    def bytes_up(self, clip_norm: float = 1.0) -> int:
        """Bytes of the numbers that a user alone on a node sends in a round, at a clip norm."""
        return bytes_per_number(clip_norm) * self.floats_up


def private_evolution_communication(
    *, num_candidates: int, rounds: int, dimension: int = MINILM_DIMENSION
) -> Communication:
    """PrE-Text and private evolution: embeddings of candidates down, a vote per candidate up.

    References:
        PrE-Text, Table 6: 2,048 candidates, 11 rounds; POPri, Table 2, row PE: 1,800 candidates.
    """
    return _communication(num_candidates * dimension, num_candidates, rounds)


def popri_communication(
    *,
    num_prompts: int,
    responses_per_prompt: int,
    rounds: int,
    dimension: int = MINILM_DIMENSION,
    answer_space: Literal["candidates", "span"] = "candidates",
) -> Communication:
    """POPri and PE+SFT: embeddings of responses down, a score per response up; or their span's.

    Args:
        num_prompts: K.
        responses_per_prompt: J.
        rounds: T.
        dimension: of an embedding.
        answer_space: "span": the root of the responses' Gram matrix goes down instead of them, and
            a number per dimension up instead of one per response.

    References:
        POPri, Table 2: K = 1,800, J = 10.
    """
    candidates = num_prompts * responses_per_prompt
    if answer_space == "span":
        root = _communication(dimension * (dimension + 1) // 2, dimension, rounds)
        return replace(root, rounded=False)
    return _communication(candidates * dimension, candidates, rounds)


def fred_communication(
    *,
    moment_dimensions: int,
    rounds: int = 1,
    dimension: int = MINILM_DIMENSION,
    estimator: Literal["joint", "two-rounds"] = "joint",
    count_share: float = 0.0,
) -> Communication:
    """FreD: a basis and a centre down, mean and triangle of second moments up.

    Args:
        moment_dimensions: k; 0 for all numbers of an embedding, without a basis.
        rounds: releases; all that follows is free.
        dimension: of an embedding.
        estimator: with "two-rounds" a mean goes up, and then triangles; this is a round of these,
            whose messages are the largest.
        count_share: above 0 another number counts who has text.
    """
    k = moment_dimensions or dimension
    two_rounds = estimator == "two-rounds"
    down = (k * dimension if moment_dimensions else 0) + k * (1 + two_rounds)
    up = k * (k + 1) // 2 + k * (not two_rounds) + (count_share > 0)
    return _communication(down, up, rounds)


def joint_sketch_communication(
    *,
    num_bigrams: int,
    rounds: int = 1,
    vocabulary: int = 8192,
) -> Communication:
    """Joint sketch: counts up; down the table of bigrams, which is bytes and no numbers.

    Args:
        num_bigrams: K, that are counted; 0 for tokens alone.
        rounds: releases; all that follows is free.
        vocabulary: tokens of the student, those that were added included.
    """
    return _communication(0, vocabulary + num_bigrams, rounds)


def federated_training_communication(
    *, num_parameters: int, rounds: int, adaptive_clipping: bool = False
) -> Communication:
    """DP-FedAvg and DP-FTRL: the trained parameters down, their update up.

    Args:
        num_parameters: that are trained; with LoRA those of the adapters alone.
        rounds: of training.
        adaptive_clipping: one more number goes up, whether the update was clipped.

    References:
        PrE-Text, Table 6, and POPri, Table 2: the 82 million parameters of DistilGPT2 both ways.
    """
    return _communication(num_parameters, num_parameters + adaptive_clipping, rounds)


def ctcl_communication(
    *,
    num_parameters: int,
    num_topics: int,
    rounds: int,
    dimension: int = MINILM_DIMENSION,
) -> Communication:
    """CTCL: the trained parameters and the centres of topics down, the update up.

    That of a round that trains. The one round that asks for the histogram sends the centres alone
    and gets a number for each topic. Conditions are text, and travel as bytes.

    Args:
        num_parameters: that are trained; with LoRA those of the adapters alone.
        num_topics: whose centres the nodes look conditions up by.
        rounds: of the run, the histogram's included.
        dimension: of an embedding.
    """
    return _communication(num_parameters + num_topics * dimension, num_parameters, rounds)


def communication(method: str, settings: Mapping[str, Any]) -> Communication:
    """What a run with these settings sends, before it is started.

    Args:
        method: a name of the catalogue: a strategy, a paper's settings of one ("pre-text",
            "pe-sft"), "public-only" or "expand-only".
        settings: the method's hyphenated keys, and where embeddings travel optionally `dimension`;
            for training on the device `num-parameters`.

    Raises:
        ConfigError: The method is unknown or a setting is missing.
    """
    counted = _counted()
    if method not in counted:
        raise ConfigError(
            f"the communication of {method!r} is not known; known are {', '.join(counted)}"
        )
    if not counted[method]:
        return Communication(floats_down=0, floats_up=0, rounds=0)
    count = resolved(counted[method])
    given = {}
    for name, parameter in inspect.signature(count).parameters.items():
        key = "num-rounds" if name == "rounds" else name.replace("_", "-")
        if key in settings:
            given[name] = settings[key]
        elif parameter.default is parameter.empty:
            raise ConfigError(f"the communication of {method} depends on {key}, which is missing")
    found: Communication = count(**given)
    return found


def _counted() -> dict[str, str]:
    """References to the functions above by the catalogue's names; "" where nobody is asked."""
    found = {}
    for name, method in compared().items():
        strategy = entries().get(method.settings_of or name)
        if strategy is not None and strategy.communication:
            found[name] = strategy.communication
        elif method.kind == "public text":
            found[name] = ""
    return found


def _communication(down: int, up: int, rounds: int) -> Communication:
    for name, value in (("numbers down", down), ("numbers up", up), ("rounds", rounds)):
        check_whole(name, value, ge=0)
    return Communication(floats_down=down, floats_up=up, rounds=rounds)


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
        DataError: The run has no round with counts, as one of an older version.
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
