"""The ledger: on the disk before use, within the budget, and safe against every interruption."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import random as stdlib_random
import resource
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation as Neighbors
from dp_accounting.pld import PLDAccountant as LibraryPLD
from dp_accounting.rdp import RdpAccountant as LibraryRDP

from flower_privsyn.errors import BudgetExceededError, ConfigError, LedgerError
from flower_privsyn.privacy import (
    BandedToeplitz,
    Correlation,
    FixedSizeSampling,
    FullParticipation,
    GaussianMechanism,
    NeighboringRelation,
    PoissonSampling,
    PrivacyLedger,
    Release,
    Sampling,
    calibrate_noise_multiplier,
)
from tests.support import ledgers

DELTA = 3e-6
FULL = FullParticipation(1000)
MECHANISM = GaussianMechanism(noise_multiplier=19.3, l2_sensitivity=8.0)
ONE = Release(noise_multiplier=19.3, sampling=FULL)


def begin(ledger: PrivacyLedger, number: int, **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "round": number,
        "query": "nearest-neighbor-histogram",
        "mechanism": MECHANISM,
        "sampling": FULL,
        "planned_users": 1000,
        **changes,
    }
    return ledgers.begin(ledger, **arguments)


def run_round(ledger: PrivacyLedger, number: int, num_users: int = 990, **changes: Any) -> None:
    begin(ledger, number, **changes)
    ledger.charge(round=number, num_users=num_users)


def create(path: Path, **changes: Any) -> PrivacyLedger:
    arguments: dict[str, Any] = {"delta": DELTA, "epsilon_budget": None, **changes}
    return PrivacyLedger.create(path, **arguments)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def releases_of(path: Path) -> list[dict[str, Any]]:
    return [line for line in lines_of(path) if line["event"] == "release"]


# What stands in it ------------------------------------------------------------------------------


def test_a_round_is_two_lines_with_everything_an_auditor_needs(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with create(path, epsilon_budget=1.0) as ledger:
        begin(ledger, 1)
        ledger.charge(round=1, num_users=990, extra={"candidates": 2048})
    header, started, release = lines_of(path)
    assert header["event"] == "opened"
    assert (header["delta"], header["epsilon_budget"], header["accountant"]) == (DELTA, 1.0, "pld")
    assert started["event"] == "started"
    assert started["planned_users"] == 1000
    assert header["version"] == 2
    assert release == {
        "event": "release",
        "round": 1,
        "query": "nearest-neighbor-histogram",
        "mechanism": "gaussian",
        "noise_multiplier": 19.3,
        "l2_sensitivity": 8.0,
        "relation": "zero-out",
        "sampling": {"method": "full", "rate": 1.0, "population": 1000},
        "max_nodes_per_user": 1,
        "num_users": 990,
        "expected_users": 1000,
        "delta": DELTA,
        "epsilon_release": pytest.approx(dp_accounting.get_epsilon_gaussian(19.3, DELTA)),
        "epsilon_known_cohorts": pytest.approx(dp_accounting.get_epsilon_gaussian(19.3, DELTA)),
        "accountant": "pld",
        "private": True,
        "interrupted": False,
        "extra": {"candidates": 2048},
        "previous": hashlib.sha256(path.read_bytes().splitlines()[1]).hexdigest(),
    }


@pytest.mark.parametrize(
    ("accountant", "sampling", "noise_multiplier"),
    [
        ("pld", PoissonSampling(0.1, population=10_000), 2.5),
        ("pld", FixedSizeSampling(1000, population=10_000), 5.0),
        ("rdp", FixedSizeSampling(1000, population=10_000), 5.0),
    ],
    ids=["poisson", "fixed-size", "rdp"],
)
def test_an_independent_recomputation_from_the_lines_gives_the_same_epsilons(
    tmp_path: Path, accountant: str, sampling: Sampling, noise_multiplier: float
) -> None:
    """Only the JSON and ``dp_accounting``; to 3 digits, after every line."""
    path = tmp_path / "ledger.jsonl"
    mechanism = GaussianMechanism(noise_multiplier=noise_multiplier, l2_sensitivity=8.0)
    with create(path, accountant=accountant) as ledger:
        for number in (1, 2):
            run_round(ledger, number, 900, mechanism=mechanism, sampling=sampling)

    release_side, server_side = recomputation(accountant, fixed=sampling.method == "fixed-size")
    charged = releases_of(path)
    assert len(charged) == 2
    for line in charged:
        release_side.compose(event_of(line, accountant))
        server_side.compose(dp_accounting.GaussianDpEvent(line["noise_multiplier"]))
        released = release_side.get_epsilon(line["delta"])
        seen = server_side.get_epsilon(line["delta"])
        assert line["epsilon_release"] == pytest.approx(released, rel=5e-4)
        assert line["epsilon_known_cohorts"] == pytest.approx(seen, rel=5e-4)


def recomputation(accountant: str, *, fixed: bool) -> tuple[Any, Any]:
    if accountant == "pld":
        return LibraryPLD(Neighbors.REPLACE_SPECIAL), LibraryPLD(Neighbors.REPLACE_SPECIAL)
    relation = Neighbors.REPLACE_ONE if fixed else Neighbors.REPLACE_SPECIAL
    return (
        LibraryRDP(neighboring_relation=relation),
        LibraryRDP(neighboring_relation=Neighbors.REPLACE_SPECIAL),
    )


def event_of(line: dict[str, Any], accountant: str) -> Any:
    sampling, multiplier = line["sampling"], line["noise_multiplier"]
    gaussian = dp_accounting.GaussianDpEvent(multiplier)
    if sampling["method"] == "poisson":
        return dp_accounting.PoissonSampledDpEvent(sampling["rate"], gaussian)
    size, population = sampling["sample_size"], sampling["population"]
    if accountant == "pld":
        return dp_accounting.TruncatedSubsampledGaussianDpEvent(
            dataset_size=population,
            sampling_probability=1.0,
            truncated_batch_size=size,
            noise_multiplier=multiplier,
        )
    return dp_accounting.SampledWithoutReplacementDpEvent(
        population, size, dp_accounting.GaussianDpEvent(multiplier / 2.0)
    )


def test_replace_one_rounds_cost_twice_the_sensitivity(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with create(path) as ledger:
        run_round(ledger, 1, relation=NeighboringRelation.REPLACE_ONE)
        exact = dp_accounting.get_epsilon_gaussian(19.3 / 2.0, DELTA)
        assert ledger.spent["epsilon_release"] == pytest.approx(exact)
        with pytest.raises(LedgerError, match="composes replace-one releases; round 2 cannot add"):
            begin(ledger, 2)
    with PrivacyLedger.open(path) as ledger:
        assert ledger.spent["epsilon_release"] == pytest.approx(exact)


def test_rounds_of_several_queries_and_repeated_rounds_all_count(tmp_path: Path) -> None:
    with create(tmp_path / "ledger.jsonl") as ledger:
        run_round(ledger, 1, query="histogram")
        run_round(ledger, 1, query="delta")
        run_round(ledger, 2)
        assert ledger.rounds_charged == (1, 1, 2)
        assert len(ledger.releases) == 3
        exact = dp_accounting.get_epsilon_gaussian(19.3 / math.sqrt(3), DELTA)
        assert ledger.spent["epsilon_release"] == pytest.approx(exact)


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": GaussianMechanism(noise_multiplier=0.0, l2_sensitivity=1.0)},
        # Below a thousandth of the clip norm nothing is hidden, and the accountants have no number.
        {"mechanism": GaussianMechanism(noise_multiplier=1e-4, l2_sensitivity=1.0)},
        {"secure_randomness": False},
    ],
    ids=["no-noise", "next-to-none", "seeded"],
)
def test_what_is_not_private_is_stamped_and_taints_the_total(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = tmp_path / "ledger.jsonl"
    with create(path) as ledger:
        run_round(ledger, 1)
        run_round(ledger, 2, **changes)
        run_round(ledger, 3)
        assert not ledger.private
        assert ledger.spent["epsilon_release"] is None
        assert ledger.spent["epsilon_known_cohorts"] is None
    assert [line["private"] for line in releases_of(path)] == [True, False, True]
    assert [line["epsilon_release"] is None for line in releases_of(path)] == [False, True, True]
    assert [line["epsilon_known_cohorts"] is None for line in releases_of(path)] == [
        False,
        True,
        True,
    ]
    with PrivacyLedger.open(path) as ledger:
        assert not ledger.private
        assert ledger.spent["epsilon_release"] is None


def test_correlated_rounds_are_no_cheaper_for_who_may_not_be_drawn(tmp_path: Path) -> None:
    """All rounds are one mechanism: a coin that falls in some of them amplifies nothing."""
    matrix = BandedToeplitz(rounds=4, coefficients=(1.0, 0.5))
    correlation = Correlation(factorisation=matrix)
    mechanism = GaussianMechanism(noise_multiplier=2.0, l2_sensitivity=1.0)
    with create(tmp_path / "ledger.jsonl") as ledger:
        run_round(
            ledger,
            1,
            1,
            mechanism=mechanism,
            sampling=PoissonSampling(0.01, population=1000),
            correlation=correlation,
        )
        together = 2.0 / correlation.sensitivity
        assert ledger.spent["epsilon_release"] == pytest.approx(
            dp_accounting.get_epsilon_gaussian(together, DELTA)
        )


def test_the_size_of_a_poisson_cohort_stays_out_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    sampling = PoissonSampling(0.1, population=1000)
    with create(path) as ledger:
        run_round(ledger, 1, 97, sampling=sampling, planned_users=100)
        released = ledger.spent["epsilon_release"]
    (line,) = releases_of(path)
    assert (line["num_users"], line["expected_users"]) == (None, 100)
    with PrivacyLedger.open(path) as ledger:
        assert ledger.spent["epsilon_release"] == released


# The budget -------------------------------------------------------------------------------------


def test_a_budget_for_three_rounds_allows_three(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    multiplier = calibrate_noise_multiplier(epsilon=1.0, delta=DELTA, rounds=3, sampling=FULL)
    mechanism = GaussianMechanism(noise_multiplier=multiplier, l2_sensitivity=8.0)
    release = Release(noise_multiplier=multiplier, sampling=FULL)
    changes = {"mechanism": mechanism, "planned_users": 100}
    with create(path, epsilon_budget=1.0) as ledger:
        assert ledger.allows({release: 3})
        assert not ledger.allows({release: 4})
        for number in (1, 2, 3):
            run_round(ledger, number, 100, **changes)
        assert ledger.spent["epsilon_release"] is not None
        assert 0.999 < ledger.spent["epsilon_release"] <= 1.0
        before = path.read_bytes()
        with pytest.raises(
            BudgetExceededError, match=r"Round 4 .* above the budget of 1 at delta 3e-06"
        ):
            begin(ledger, 4, **changes)
        assert path.read_bytes() == before
    with (
        PrivacyLedger.open(path) as ledger,
        pytest.raises(BudgetExceededError),
    ):
        begin(ledger, 4, **changes)


def test_started_rounds_count_before_they_are_charged(tmp_path: Path) -> None:
    budget = dp_accounting.get_epsilon_gaussian(19.3 / math.sqrt(2), DELTA)
    with create(tmp_path / "ledger.jsonl", epsilon_budget=budget) as ledger:
        begin(ledger, 1)
        begin(ledger, 2)
        assert not ledger.allows({ONE: 1})
        with pytest.raises(BudgetExceededError):
            begin(ledger, 3)
        ledger.discard(round=1, num_users=3, reason="too few users")
        begin(ledger, 3)
        ledger.charge(round=2, num_users=1)
        ledger.charge(round=3, num_users=1)
        assert ledger.spent["epsilon_release"] == pytest.approx(budget)


def test_no_noise_is_over_every_budget(tmp_path: Path) -> None:
    silent = GaussianMechanism(noise_multiplier=0.0, l2_sensitivity=1.0)
    with create(tmp_path / "ledger.jsonl", epsilon_budget=1e6) as ledger:
        with pytest.raises(BudgetExceededError, match="bring epsilon to infinity"):
            begin(ledger, 1, mechanism=silent)
        assert not ledger.allows({Release(noise_multiplier=0.0, sampling=FULL): 1})


def test_seeded_noise_counts_against_the_budget_as_if_it_were_not(tmp_path: Path) -> None:
    budget = dp_accounting.get_epsilon_gaussian(19.3, DELTA)
    with create(tmp_path / "ledger.jsonl", epsilon_budget=budget) as ledger:
        run_round(ledger, 1, secure_randomness=False)
        with pytest.raises(BudgetExceededError):
            begin(ledger, 2, secure_randomness=False)


# Order of events --------------------------------------------------------------------------------


def test_the_line_is_synchronised_before_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    synchronised: list[int] = []
    real = os.fsync

    def spying(descriptor: int) -> None:
        synchronised.append(os.fstat(descriptor).st_size)
        real(descriptor)

    with create(path) as ledger:
        monkeypatch.setattr(os, "fsync", spying)
        line = begin(ledger, 1)
        assert synchronised[-1] == path.stat().st_size
        assert lines_of(path)[-1] == line
        line = ledger.charge(round=1, num_users=5)
        assert synchronised[-1] == path.stat().st_size
        assert lines_of(path)[-1] == line
        begin(ledger, 2)
        line = ledger.discard(round=2, num_users=5, reason="too few users")
        assert synchronised[-1] == path.stat().st_size
        assert lines_of(path)[-1] == line


def test_events_out_of_order_are_refused(tmp_path: Path) -> None:
    with create(tmp_path / "ledger.jsonl") as ledger:
        with pytest.raises(LedgerError, match="Round 1 is not started"):
            ledger.charge(round=1, num_users=1)
        begin(ledger, 1)
        with pytest.raises(LedgerError, match="Round 1 is already started"):
            begin(ledger, 1)
        assert ledger.rounds_started == (1,)
        ledger.charge(round=1, num_users=1)
        with pytest.raises(LedgerError, match="Round 1 is not started"):
            ledger.charge(round=1, num_users=1)
        begin(ledger, 2)
        ledger.discard(round=2, num_users=0, reason="nobody answered")
        with pytest.raises(LedgerError, match="Round 2 is not started"):
            ledger.discard(round=2, num_users=0, reason="nobody answered")
        assert ledger.rounds_charged == (1,)
    with pytest.raises(LedgerError, match="is closed"):
        begin(ledger, 3)


def test_head_counts_are_checked(tmp_path: Path) -> None:
    with create(tmp_path / "ledger.jsonl") as ledger:
        begin(ledger, 1)
        with pytest.raises(ConfigError, match="num_users must be"):
            ledger.charge(round=1, num_users=-1)
        with pytest.raises(ConfigError, match="planned_users must be"):
            begin(ledger, 3, planned_users=0)


# Files and processes ----------------------------------------------------------------------------


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    before = os.umask(0)
    try:
        create(path).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["ledger.jsonl"]


def test_a_ledger_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with create(path) as ledger:
        run_round(ledger, 1)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="File exists"):
        create(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["ledger.jsonl"]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with create(path) as ledger:
        with pytest.raises(LedgerError, match="in use by another process"):
            PrivacyLedger.open(path)
        begin(ledger, 1)
        seen = PrivacyLedger.read(path)
        assert seen.rounds_started == (1,)
        assert len(seen.releases) == 0
        ledger.charge(round=1, num_users=1)
        assert PrivacyLedger.read(path).spent["epsilon_release"] == ledger.spent["epsilon_release"]
        assert PrivacyLedger.read(path).digest == ledger.digest
    PrivacyLedger.open(path).close()


def test_it_continues_with_what_it_was_opened_with(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    create(path, epsilon_budget=2.0).close()
    with PrivacyLedger.open(path) as ledger:
        assert (ledger.delta, ledger.epsilon_budget, ledger.accountant) == (DELTA, 2.0, "pld")
        assert ledger.path == path


@pytest.mark.parametrize(
    ("key", "value"),
    [("delta", 0.0), ("delta", 2.0), ("epsilon_budget", 0.0), ("accountant", "gdp")],
)
def test_a_header_is_checked(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(ConfigError):
        create(tmp_path / "ledger.jsonl", **{key: value})
    assert list(tmp_path.iterdir()) == []


# Interruptions ----------------------------------------------------------------------------------


def test_an_interrupted_round_is_charged_on_opening(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with create(path) as ledger:
        run_round(ledger, 1)
        begin(ledger, 2, planned_users=77)
    with PrivacyLedger.open(path) as ledger:
        assert ledger.rounds_charged == (1, 2)
        assert ledger.rounds_started == ()
        exact = dp_accounting.get_epsilon_gaussian(19.3 / math.sqrt(2), DELTA)
        assert ledger.spent["epsilon_release"] == pytest.approx(exact)
        begin(ledger, 2)  # the round may be asked again, at its price
        ledger.charge(round=2, num_users=5)
    interrupted = releases_of(path)[1]
    assert (interrupted["interrupted"], interrupted["num_users"]) == (True, 77)
    assert interrupted["epsilon_release"] == pytest.approx(exact)
    assert [line["interrupted"] for line in releases_of(path)] == [False, True, False]


def test_a_ledger_cut_at_any_byte_still_charges_every_round_that_was_started(
    tmp_path: Path,
) -> None:
    path = tmp_path / "whole.jsonl"
    with create(path) as ledger:
        run_round(ledger, 1)
        run_round(ledger, 2)
        begin(ledger, 3)
        ledger.discard(round=3, num_users=2, reason="too few users")
    data = path.read_bytes()
    first_line = data.index(b"\n") + 1
    boundaries = [place + 1 for place, byte in enumerate(data) if byte == 0x0A]
    generator = stdlib_random.Random(3)
    cuts = {first_line, len(data), *boundaries, *(b - 1 for b in boundaries[1:])}
    cuts |= {generator.randrange(first_line, len(data)) for _ in range(60)}
    for number, cut in enumerate(sorted(cuts)):
        torn = tmp_path / f"cut-{number}.jsonl"
        torn.write_bytes(data[:cut])
        whole = data[: cut + (data[cut : cut + 1] == b"\n")]  # but for its newline it is a line
        complete = [json.loads(line) for line in whole.split(b"\n")[:-1]]
        started = sum(line["event"] == "started" for line in complete)
        discarded = sum(line["event"] == "discarded" for line in complete)
        with PrivacyLedger.open(torn) as ledger:
            assert len(ledger.releases) == started - discarded, cut
            begin(ledger, 9)
        # Every complete line is still there, what was torn is not, and the chain holds.
        kept = lines_of(torn)
        assert kept[: len(complete)] == complete
        assert kept[-1]["round"] == 9
        PrivacyLedger.open(torn).close()


def test_damage_in_the_middle_is_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with create(path, epsilon_budget=5.0) as ledger:
        for number in (1, 2, 3):
            run_round(ledger, number)
    whole = path.read_text().splitlines()

    def damaged(changed: list[str]) -> str:
        path.write_text("\n".join(changed) + "\n")
        with pytest.raises(LedgerError) as caught:
            PrivacyLedger.open(path)
        return str(caught.value)

    cheaper = [*whole]
    cheaper[2] = cheaper[2].replace('"noise_multiplier": 19.3', '"noise_multiplier": 99.3')
    assert "line 4 is damaged: the chain is broken" in damaged(cheaper)
    richer = [whole[0].replace("5.0", "9.0"), *whole[1:]]
    assert "line 2 is damaged: the chain is broken" in damaged(richer)
    assert "line 4 is damaged: the chain is broken" in damaged([*whole[:3], *whole[4:]])
    assert "line 4 is damaged: not JSON" in damaged([*whole[:3], "{oops", *whole[4:]])
    assert "line 4 is damaged: not a JSON object" in damaged([*whole[:3], "[1]", *whole[4:]])
    assert "line 1 is damaged: not JSON" in damaged(["oops", *whole[1:]])
    path.write_text("\n".join(whole) + "\n")
    with PrivacyLedger.open(path) as ledger:
        assert len(ledger.releases) == 3


def test_a_valid_chain_of_impossible_events_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with create(path) as ledger:
        begin(ledger, 1)
    header, started = path.read_bytes().splitlines()

    def follow(*events: dict[str, Any]) -> str:
        lines, previous = [header], header
        for event in events:
            event["previous"] = hashlib.sha256(previous).hexdigest()
            previous = json.dumps(event).encode()
            lines.append(previous)
        path.write_bytes(b"\n".join(lines) + b"\n")
        with pytest.raises(LedgerError) as caught:
            PrivacyLedger.open(path)
        return str(caught.value)

    start = json.loads(started)
    assert "line 2 is damaged: the round is not started" in follow({"event": "release", "round": 1})
    assert "line 2 is damaged: unknown event" in follow({"event": "refunded"})
    assert "line 2 is damaged: unknown event" in follow({"event": "opened"})
    assert "line 3 is damaged: the round is already started" in follow(start, dict(start))
    worse = {**start, "noise_multiplier": -1}
    assert "line 2 is damaged: a field is missing or out of range" in follow(worse)
    assert "line 2 is damaged: a field is missing" in follow({"event": "started"})


def in_another_process(work: Callable[[int], None]) -> tuple[int, IO[bytes]]:
    """A process that does some work, and what it says through the pipe that it is given."""
    said, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(told)
        finally:
            os._exit(0)
    os.close(told)
    return child, os.fdopen(said, "rb")


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with create(path) as ledger:
        run_round(ledger, 1)
    before = path.read_bytes()

    def work(told: int) -> None:
        ledger = PrivacyLedger.open(path)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = len(before) + 100
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for _ in range(2):
            with pytest.raises(LedgerError) as caught:
                begin(ledger, 2)
            os.write(told, f"{caught.value}\n".encode())

    child, said = in_another_process(work)
    with said:
        found = said.read().decode()
    os.waitpid(child, 0)
    assert found == f"{path} cannot be written: File too large.\n{path} is closed.\n"
    assert path.read_bytes() == before


def test_kill_minus_nine_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    create(path).close()
    generator = stdlib_random.Random()
    begun: set[int] = set()
    charged: set[int] = set()
    for attempt in range(3):

        def work(told: int, first: int = 1000 * attempt) -> None:
            ledger = PrivacyLedger.open(path)
            for number in itertools.count(first):
                begin(ledger, number)
                os.write(told, b"begun %d\n" % number)
                ledger.charge(round=number, num_users=9)
                os.write(told, b"charged %d\n" % number)

        child, said = in_another_process(work)
        with said:
            acknowledged = [said.readline() for _ in range(generator.randrange(1, 40))]
            time.sleep(generator.random() * 0.01)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            acknowledged += said.readlines()
        for line in acknowledged:
            word, number = line.split()
            (begun if word == b"begun" else charged).add(int(number))

        complete = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        started = {line["round"] for line in complete if line["event"] == "started"}
        released = {line["round"] for line in complete if line["event"] == "release"}
        assert begun <= started
        assert charged <= released
        # At most the one call that was under way is in the file without an acknowledgement.
        assert len(started - begun) <= attempt + 1
        with PrivacyLedger.open(path) as ledger:
            assert sorted(ledger.rounds_charged) == sorted(started)
            left_open = {line["round"] for line in ledger.releases if line["interrupted"]}
            assert started - released <= left_open
            assert not left_open & charged
            if started:
                exact = dp_accounting.get_epsilon_gaussian(19.3 / math.sqrt(len(started)), DELTA)
                assert ledger.spent["epsilon_release"] == pytest.approx(exact)


# Cut off ----------------------------------------------------------------------------------------


def test_a_shorter_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    stated = {}
    with create(path, epsilon_budget=None) as ledger:
        for number in (1, 2):
            begin(ledger, number)
            ledger.charge(round=number, num_users=990)
            stated[ledger.digest] = f"rounds/000{number}/state.json"
    with PrivacyLedger.open(path, stated=stated) as ledger:
        assert ledger.digest == next(reversed(stated))
    whole = path.read_bytes().splitlines(keepends=True)
    for left in (1, 2, 3, 4):
        # Two of these end with a round that is started: it would be charged if it were opened.
        path.write_bytes(b"".join(whole[:left]) + b'{"torn')
        before = path.read_bytes()
        missing = "rounds/0001/state.json" if left < 3 else "rounds/0002/state.json"
        with pytest.raises(LedgerError, match=rf"lacks the line .* which {missing} states"):
            PrivacyLedger.open(path, stated=stated)
        assert path.read_bytes() == before
        # Nothing else of the run states a line: that cannot be told.
        assert len(PrivacyLedger.read(path).releases) == (left - 1) // 2
