"""The stream of correlated noise: its law, its memory, and what the ledger makes of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest

from flower_privsyn.errors import BudgetExceededError, ConfigError, LedgerError
from flower_privsyn.privacy import (
    BandedToeplitz,
    BufferedLinearToeplitz,
    CorrelatedNoise,
    Correlation,
    CyclicSampling,
    Factorisation,
    FullParticipation,
    GaussianMechanism,
    InsecureRandom,
    NeighboringRelation,
    PrivacyLedger,
    SecureRandom,
    TreeAggregation,
    calibrate_noise_multiplier,
)
from flower_privsyn.privacy.mechanisms import GRID, STEPS
from tests.support.correlated import noise_matrix, worst_deviation
from tests.support.ledgers import begin

ROUNDS, GROUPS = 12, 4
SAMPLING = CyclicSampling(groups=GROUPS, rounds=ROUNDS, salt="ab" * 16, population=40)
BANDED = BandedToeplitz.optimal(rounds=ROUNDS, bands=GROUPS)
BUFFERS = BufferedLinearToeplitz(rounds=ROUNDS, scales=(0.3, 0.2), decays=(0.9, 0.4))
TREE = TreeAggregation(rounds=ROUNDS, restart_every=5)
KINDS = [BANDED, BUFFERS, TREE]
NAMES = ["banded", "buffers", "tree"]


def correlation(factorisation: Factorisation = BANDED, **changes: Any) -> Correlation:
    return Correlation(factorisation=factorisation, min_separation=GROUPS, **changes)


# The law ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factorisation", KINDS, ids=NAMES)
@pytest.mark.parametrize("released", [[*range(1, ROUNDS + 1)], [1, 2, 5, 6, 7, 11, 12]])
def test_a_round_that_was_left_out_costs_its_noise(
    factorisation: Factorisation, released: list[int], tmp_path: Path
) -> None:
    """The later rounds have the law that they have when every round is released.

    Coordinates are independent runs; the stream is read from its file anew for every round.
    """
    runs = 100_000
    rounds, random = correlation(factorisation), InsecureRandom(2)
    drawn = []
    for number in released:
        noise = CorrelatedNoise(rounds, random=random, path=tmp_path / "noise.npz")
        noise.prepare(number, runs)
        drawn.append(noise.rounded_normal(STEPS, runs) * GRID)
    matrix = noise_matrix(factorisation)[np.array(released) - 1]
    assert worst_deviation(np.stack(drawn), matrix @ matrix.T) < 5.0


@pytest.mark.parametrize("factorisation", KINDS, ids=NAMES)
def test_no_group_is_told_apart_better_than_is_accounted_for(factorisation: Factorisation) -> None:
    matrix = noise_matrix(factorisation)
    inverse = np.linalg.inv(matrix @ matrix.T)
    distances = []
    for group in range(GROUPS):
        shift = np.where(np.arange(ROUNDS) % GROUPS == group, 1.0, 0.0)
        distances.append(math.sqrt(shift @ inverse @ shift))
    limit = factorisation.sensitivity(GROUPS)
    assert max(distances) <= limit * (1 + 1e-9)
    if factorisation in (BANDED, BUFFERS):
        assert max(distances) == pytest.approx(limit)


# The memory ---------------------------------------------------------------------------------------


def test_a_round_has_its_noise_once(tmp_path: Path) -> None:
    noise = CorrelatedNoise(correlation(), random=SecureRandom(), path=tmp_path / "noise.npz")
    with pytest.raises(LedgerError, match="asked for and not prepared"):
        noise.rounded_normal(STEPS, 5)
    noise.prepare(1, 5)
    first = noise.rounded_normal(STEPS, 5)
    assert first.shape == (5,)
    with pytest.raises(LedgerError, match="asked for and not prepared"):
        noise.rounded_normal(STEPS, 5)
    for number in (1, 0, 13):
        with pytest.raises(
            (LedgerError, ConfigError), match="already made|round must be a whole number between"
        ):
            noise.prepare(number, 5)
    noise.prepare(2, 5)
    with pytest.raises(LedgerError, match="asked for and not prepared"):
        noise.rounded_normal(STEPS, 6)


def test_the_memory_is_on_the_disk_before_the_noise_is_used(tmp_path: Path) -> None:
    path = tmp_path / "noise.npz"
    rounds = correlation()
    noise = CorrelatedNoise(rounds, random=SecureRandom(), path=path)
    assert noise.last_round == 0
    noise.prepare(1, 5)
    # The process dies here: a new one goes on after round 1.
    again = CorrelatedNoise(rounds, random=SecureRandom(), path=path)
    assert again.last_round == 1
    with pytest.raises(LedgerError, match="round 1 was already made"):
        again.prepare(1, 5)
    again.prepare(4, 5)
    assert CorrelatedNoise(rounds, random=SecureRandom(), path=path).last_round == 4


def test_a_stream_that_was_interrupted_is_the_same_stream(tmp_path: Path) -> None:
    for factorisation in KINDS:
        rounds = correlation(factorisation)
        whole = CorrelatedNoise(rounds, random=InsecureRandom(7), path=tmp_path / rounds.stream)
        random = InsecureRandom(7)  # one source goes on, as its processes come and go
        path = tmp_path / f"{rounds.stream}.npz"
        for number in range(1, ROUNDS + 1):
            whole.prepare(number, 6)
            part = CorrelatedNoise(rounds, random=random, path=path)
            part.prepare(number, 6)
            assert (part.rounded_normal(STEPS, 6) == whole.rounded_normal(STEPS, 6)).all()


def test_the_memory_is_the_servers_and_ends_with_the_last_round(tmp_path: Path) -> None:
    path = tmp_path / "noise.npz"
    rounds = correlation()
    noise = CorrelatedNoise(rounds, random=SecureRandom(), path=path)
    for number in range(1, ROUNDS + 1):
        noise.prepare(number, 5)
        assert path.stat().st_mode & 0o777 == 0o600
        with np.load(path) as file:
            held = {key for key in file.files if key.startswith("memory.")}
        assert held == ({"memory.before", "memory.step"} if number < ROUNDS else set())
    again = CorrelatedNoise(rounds, random=SecureRandom(), path=path)
    assert again.last_round == ROUNDS
    assert list(tmp_path.iterdir()) == [path]


def test_a_memory_of_another_stream_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "noise.npz"
    CorrelatedNoise(correlation(), random=SecureRandom(), path=path).prepare(1, 5)
    with pytest.raises(ConfigError, match="belongs to the noise stream"):
        CorrelatedNoise(correlation(), random=SecureRandom(), path=path)
    path.write_bytes(b"torn")
    with pytest.raises(ConfigError, match="is not the memory of correlated noise"):
        CorrelatedNoise(correlation(), random=SecureRandom(), path=path)


def test_an_unwritable_memory_gives_no_noise(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "noise.npz"
    noise = CorrelatedNoise(correlation(), random=SecureRandom(), path=path)
    with pytest.raises(LedgerError, match="cannot be written"):
        noise.prepare(1, 5)
    with pytest.raises(LedgerError, match="not prepared"):
        noise.rounded_normal(STEPS, 5)


def test_an_insecure_source_stays_insecure(tmp_path: Path) -> None:
    path = tmp_path / "noise.npz"
    assert CorrelatedNoise(correlation(), random=SecureRandom(), path=path).secure
    assert not CorrelatedNoise(correlation(), random=InsecureRandom(0), path=path).secure


# What all rounds together cost --------------------------------------------------------------------


def test_all_rounds_are_one_gaussian_mechanism() -> None:
    rounds = correlation()
    assert rounds.sensitivity == pytest.approx(BANDED.sensitivity(GROUPS))
    assert rounds.noise_multiplier(3.0 * rounds.sensitivity) == pytest.approx(3.0)
    other = Correlation.from_dict(json.loads(json.dumps(rounds.to_dict())))
    assert other == rounds
    # A file cannot talk the sensitivity down.
    tampered = {**rounds.to_dict(), "sensitivity": 1e-3}
    assert Correlation.from_dict(tampered).sensitivity == rounds.sensitivity
    assert correlation().stream != rounds.stream
    with pytest.raises(ConfigError, match="min_separation"):
        Correlation(factorisation=BANDED, min_separation=0)


class Rounds:
    """A ledger that correlated rounds are written to."""

    def __init__(
        self, path: Path, *, epsilon: float | None = 2.0, factorisation: Factorisation = BANDED
    ) -> None:
        self.path = path
        self.correlation = correlation(factorisation)
        whole = calibrate_noise_multiplier(
            epsilon=epsilon or 2.0, delta=1e-6, rounds=1, sampling=FullParticipation()
        )
        self.mechanism = GaussianMechanism(
            noise_multiplier=whole * self.correlation.sensitivity, l2_sensitivity=0.3
        )
        self.ledger = PrivacyLedger.create(path, delta=1e-6, epsilon_budget=epsilon)

    def begin(self, number: int, **changes: Any) -> dict[str, Any]:
        values = {
            "query": "model-delta",
            "mechanism": self.mechanism,
            "sampling": SAMPLING,
            "planned_users": 10,
            "correlation": self.correlation,
            **changes,
        }
        return begin(self.ledger, round=number, **values)

    def release(self, number: int, **changes: Any) -> dict[str, Any]:
        self.begin(number, **changes)
        return self.ledger.charge(round=number, num_users=9)

    def reopen(self) -> None:
        self.ledger.close()
        self.ledger = PrivacyLedger.open(self.path)


@pytest.fixture
def rounds(tmp_path: Path) -> Rounds:
    return Rounds(tmp_path / "ledger.jsonl")


def test_the_first_round_pays_for_all(rounds: Rounds) -> None:
    lines = [rounds.release(number) for number in range(1, ROUNDS + 1)]
    assert [line["covered_by"] for line in lines] == [None] + [1] * (ROUNDS - 1)
    for line in lines:
        # Not 12 times, and to the last digit what the budget was.
        assert line["epsilon_release"] == pytest.approx(2.0, rel=1e-9)
        assert line["epsilon_known_cohorts"] == line["epsilon_release"]
        assert line["private"]
        assert line["round_noise_multiplier"] == rounds.mechanism.noise_multiplier
    sensitivity = BANDED.sensitivity(GROUPS)
    assert lines[0]["noise_multiplier"] == pytest.approx(
        rounds.mechanism.noise_multiplier / sensitivity
    )
    exact = dp_accounting.get_epsilon_gaussian(
        rounds.mechanism.noise_multiplier / sensitivity, 1e-6
    )
    assert rounds.ledger.spent["epsilon_release"] == pytest.approx(exact)
    assert rounds.ledger.rounds_charged == tuple(range(1, ROUNDS + 1))
    assert rounds.ledger.last_released(rounds.correlation) == ROUNDS


def test_the_whole_is_charged_before_the_first_sum_is_used(tmp_path: Path) -> None:
    """A budget that three rounds alone would keep does not begin twelve."""
    rounds = Rounds(tmp_path / "ledger.jsonl", epsilon=2.0)
    weaker = GaussianMechanism(
        noise_multiplier=0.99 * rounds.mechanism.noise_multiplier, l2_sensitivity=0.3
    )
    with pytest.raises(BudgetExceededError, match="Round 1 .* would bring epsilon to 2.0"):
        rounds.begin(1, mechanism=weaker)
    assert len(rounds.path.read_text().splitlines()) == 1


def test_a_second_stream_costs_again(rounds: Rounds) -> None:
    rounds.release(1)
    rounds.correlation = correlation()
    with pytest.raises(BudgetExceededError):
        rounds.begin(2)
    # And so does one more independent release.
    with pytest.raises(BudgetExceededError):
        rounds.begin(2, correlation=None)


def test_streams_compose_with_other_releases(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path / "ledger.jsonl", epsilon=None)
    for number in (1, 2, 3):
        rounds.release(number)
    histogram = GaussianMechanism(noise_multiplier=10.0, l2_sensitivity=1.0)
    rounds.release(20, mechanism=histogram, correlation=None, sampling=FullParticipation())
    first = rounds.mechanism.noise_multiplier / rounds.correlation.sensitivity
    together = 1.0 / math.sqrt(first**-2 + 10.0**-2)
    assert rounds.ledger.spent["epsilon_release"] == pytest.approx(
        dp_accounting.get_epsilon_gaussian(together, 1e-6)
    )


@pytest.mark.parametrize("reopened", [False, True])
def test_no_round_is_asked_twice(rounds: Rounds, reopened: bool) -> None:
    """A second answer would be one participation too many, at any cost."""
    rounds.release(1)
    rounds.begin(2)
    rounds.ledger.discard(round=2, num_users=1, reason="too few users")
    rounds.begin(3)
    if reopened:
        rounds.reopen()  # charges round 3 as interrupted
        assert rounds.ledger.releases[-1]["interrupted"]
        assert rounds.ledger.last_released(rounds.correlation) == 1
    else:
        rounds.ledger.charge(round=3, num_users=9)
    for number in (1, 2, 3):
        with pytest.raises(LedgerError, match=f"Round {number} .* was started before"):
            rounds.begin(number)
    assert rounds.ledger.rounds_over == 3
    with pytest.raises(ConfigError, match="round must be a whole number between 1 and 12"):
        rounds.begin(13)
    rounds.release(4)
    assert rounds.ledger.spent["epsilon_release"] == pytest.approx(2.0, rel=1e-9)


def test_a_first_round_without_enough_users_leaves_the_bill_to_the_next(rounds: Rounds) -> None:
    rounds.begin(1)
    rounds.ledger.discard(round=1, num_users=1, reason="too few users")
    assert rounds.ledger.spent["epsilon_release"] == 0.0
    line = rounds.release(2)
    assert line["covered_by"] is None
    assert rounds.release(3)["covered_by"] == 2
    assert rounds.ledger.spent["epsilon_release"] == pytest.approx(2.0, rel=1e-9)


def test_an_interrupted_first_round_pays_for_all(rounds: Rounds) -> None:
    rounds.begin(1)
    rounds.reopen()
    assert rounds.ledger.spent["epsilon_release"] == pytest.approx(2.0, rel=1e-9)
    assert rounds.ledger.last_released(rounds.correlation) is None
    assert rounds.release(2)["covered_by"] == 1


def test_a_reopened_ledger_knows_its_streams(rounds: Rounds) -> None:
    for number in (1, 2, 5):
        rounds.release(number)
    before = rounds.ledger.spent["epsilon_release"], rounds.ledger.spent["epsilon_known_cohorts"]
    rounds.reopen()
    assert (
        rounds.ledger.spent["epsilon_release"],
        rounds.ledger.spent["epsilon_known_cohorts"],
    ) == before
    assert rounds.ledger.correlations == {rounds.correlation: rounds.mechanism.noise_multiplier}
    assert rounds.ledger.last_released(rounds.correlation) == 5
    assert rounds.ledger.last_released(correlation()) is None
    looked_at = PrivacyLedger.read(rounds.path)
    assert looked_at.spent["epsilon_release"] == before[0]
    # The matrix is written once, not with every round.
    lines = [json.loads(line) for line in rounds.path.read_text().splitlines()]
    assert [line["round"] for line in lines if "correlation" in line] == [1]
    assert all(line["stream"] == rounds.correlation.stream for line in lines[1:])


def test_later_rounds_must_be_what_the_first_was_charged_as(rounds: Rounds) -> None:
    rounds.release(1)
    weaker = GaussianMechanism(
        noise_multiplier=rounds.mechanism.noise_multiplier / 2, l2_sensitivity=0.3
    )
    with pytest.raises(LedgerError, match="does not have the noise and the sampling"):
        rounds.begin(2, mechanism=weaker)
    dealt_anew = CyclicSampling(groups=GROUPS, rounds=ROUNDS, salt="cd" * 16, population=40)
    with pytest.raises(LedgerError, match="does not have the noise and the sampling"):
        rounds.begin(2, sampling=dealt_anew)
    other = Correlation(
        factorisation=BandedToeplitz(rounds=ROUNDS, coefficients=(1.0, 0.5, 0.375)),
        min_separation=GROUPS,
        stream=rounds.correlation.stream,
    )
    with pytest.raises(LedgerError, match="does not have the noise and the sampling"):
        rounds.begin(2, correlation=other)
    with pytest.raises(LedgerError, match="does not have the noise and the sampling"):
        rounds.begin(2, max_nodes_per_user=2)
    with pytest.raises(LedgerError, match="cannot add a replace-one one"):
        rounds.begin(2, relation=NeighboringRelation.REPLACE_ONE)
    # The clip norm is the unit of the noise; it may adapt.
    adapted = GaussianMechanism(
        noise_multiplier=rounds.mechanism.noise_multiplier, l2_sensitivity=0.1
    )
    assert rounds.release(2, mechanism=adapted)["covered_by"] == 1


def test_the_sampling_must_keep_the_pattern(rounds: Rounds) -> None:
    for sampling in (
        FullParticipation(),
        CyclicSampling(groups=GROUPS - 1, rounds=ROUNDS, salt="ab" * 16),
    ):
        with pytest.raises(ConfigError, match="apart where the correlation is accounted for 4"):
            rounds.begin(1, sampling=sampling)
    assert SAMPLING.min_separation == GROUPS


def test_replace_one_doubles_the_sensitivity_of_the_whole(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path / "ledger.jsonl", epsilon=None)
    rounds.release(1, relation=NeighboringRelation.REPLACE_ONE)
    halved = rounds.mechanism.noise_multiplier / rounds.correlation.sensitivity / 2
    assert rounds.ledger.spent["epsilon_release"] == pytest.approx(
        dp_accounting.get_epsilon_gaussian(halved, 1e-6)
    )
