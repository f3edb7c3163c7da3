"""The node's own account: what answers cost together, and that no crash makes it less."""

from __future__ import annotations

import json
import math
import multiprocessing.pool
import os
import signal
from collections.abc import Callable
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting import pld

from flower_privsyn.client_apps import account
from flower_privsyn.client_apps.account import Charge, NodeAccount, NodeLedger
from flower_privsyn.client_apps.policy import NodePolicy
from flower_privsyn.errors import LedgerError, NotAllowedError
from flower_privsyn.privacy import (
    BandedToeplitz,
    Correlation,
    CyclicSampling,
    FixedSizeSampling,
    GaussianMechanism,
    NeighboringRelation,
    PoissonSampling,
    Release,
    release_epsilon,
)
from tests.support.charging import allowed, charge_all

pytestmark = pytest.mark.usefixtures("owner")

Asked = Callable[..., Charge]
ANY = NodePolicy(max_epsilon=math.inf)


def of(*charges: Charge) -> NodeAccount:
    return NodeAccount("people", list(charges))


def gaussian(multipliers: list[float], delta: float = 1e-6) -> float:
    """Epsilon of unsampled Gaussian releases, by dp_accounting alone."""
    whole = 1.0 / math.sqrt(sum(multiplier**-2 for multiplier in multipliers))
    return float(dp_accounting.get_epsilon_gaussian(whole, delta))


class TestEpsilon:
    def test_is_that_of_dp_accounting_composing_all_runs(self, asked: Asked) -> None:
        charges = [asked(number) for number in (1, 2, 3)]
        charges += [
            asked(number, 3.0, run=8, server="south", sampling=PoissonSampling(0.1, population=9))
            for number in (1, 2, 3, 4)
        ]
        charges.append(
            asked(1, 5.0, run=9, sampling=CyclicSampling(groups=2, rounds=4, salt="0" * 32))
        )
        independent = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
        independent.compose(dp_accounting.GaussianDpEvent(2.0), 3)
        independent.compose(dp_accounting.GaussianDpEvent(5.0))
        sampled = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(3.0))
        independent.compose(sampled, 4)
        assert of(*charges).epsilon(NodePolicy()) == pytest.approx(
            independent.get_epsilon(1e-6), rel=2e-4
        )

    def test_is_under_the_owners_relation_whatever_a_run_claims(self, asked: Asked) -> None:
        replaced = NodePolicy(relation=NeighboringRelation.REPLACE_ONE, delta=1e-5)
        assert of(asked()).epsilon(replaced) == pytest.approx(gaussian([1.0], 1e-5))
        claims = asked(relation=NeighboringRelation.REPLACE_ONE)
        assert of(claims).epsilon(NodePolicy()) == pytest.approx(gaussian([2.0]))

    def test_of_a_fixed_size_cohort_under_add_remove_is_twice_the_move_unsampled(
        self, asked: Asked
    ) -> None:
        drawn = asked(sampling=FixedSizeSampling(3, population=30))
        assert of(drawn).epsilon(NodePolicy()) < gaussian([1.0])
        joined = NodePolicy(relation=NeighboringRelation.ADD_REMOVE)
        assert of(drawn).epsilon(joined) == pytest.approx(gaussian([1.0]))

    def test_of_an_answer_without_noise_is_infinite(self, asked: Asked) -> None:
        assert of(asked(multiplier=0.0)).epsilon(NodePolicy()) == math.inf
        assert of().epsilon(NodePolicy()) == 0.0


class TestWhoIsIn:
    def test_users_on_two_nodes_count_twice_in_one_sum(self, asked: Asked) -> None:
        """Noise is added once and they move the sum twice as far: as 4 releases, not as 2."""
        nodes = [asked(node=n) for n in (1, 2)]
        assert of(*nodes).epsilon(NodePolicy()) == pytest.approx(gaussian([1.0]))

    def test_two_nodes_that_the_noise_is_for_count_as_stated(self, asked: Asked) -> None:
        wide = GaussianMechanism(noise_multiplier=2.0, l2_sensitivity=6.0)
        nodes = [asked(node=n, mechanism=wide) for n in (1, 2)]
        assert of(*nodes).epsilon(NodePolicy()) == pytest.approx(gaussian([2.0]))

    def test_who_flips_a_coin_on_each_of_two_nodes_is_not_hidden_by_them(
        self, asked: Asked
    ) -> None:
        """As the server accounts for it."""
        wide = GaussianMechanism(noise_multiplier=2.0, l2_sensitivity=6.0)
        coins = {"mechanism": wide, "sampling": PoissonSampling(0.1)}
        twice = of(*(asked(n, max_nodes_per_user=2, **coins) for n in (1, 2, 3)))
        stated = Release(noise_multiplier=2.0, sampling=PoissonSampling(0.1), max_nodes_per_user=2)
        assert twice.epsilon(NodePolicy()) == release_epsilon({stated: 3}, delta=1e-6)
        assert twice.epsilon(NodePolicy()) == pytest.approx(gaussian([2.0] * 3))
        replaced = NodePolicy(relation=NeighboringRelation.REPLACE_ONE)
        assert twice.epsilon(replaced) == pytest.approx(gaussian([1.0] * 3))

    @pytest.mark.parametrize("nodes", [1, 2, 3])
    def test_what_is_asked_twice_of_one_node_is_asked_twice_of_the_users_others(
        self, asked: Asked, nodes: int
    ) -> None:
        """Noise for k answers of a user is none for the k more of another question."""
        wide = GaussianMechanism(noise_multiplier=4.0, l2_sensitivity=3.0 * nodes)
        values = {"mechanism": wide, "max_nodes_per_user": nodes}
        questions = [asked(**values) for _ in range(4)]
        assert of(questions[0]).epsilon(NodePolicy()) == pytest.approx(gaussian([4.0]))
        assert of(*questions[:2]).epsilon(NodePolicy()) == pytest.approx(gaussian([2.0]))
        assert of(*questions).epsilon(NodePolicy()) == pytest.approx(gaussian([1.0]))

    def test_coins_of_two_answers_are_no_coin_of_one(self, asked: Asked) -> None:
        nodes = [asked(node=n, sampling=PoissonSampling(0.1)) for n in (1, 2)]
        assert of(*nodes).epsilon(NodePolicy()) == pytest.approx(gaussian([1.0]))


class TestCorrelatedRounds:
    @pytest.fixture
    def correlation(self) -> Correlation:
        factorisation = BandedToeplitz(rounds=6, coefficients=(1.0, 0.5))
        return Correlation(factorisation=factorisation)

    def test_cost_once_all_together(self, asked: Asked, correlation: Correlation) -> None:
        whole = gaussian([correlation.noise_multiplier(4.0)])
        rounds = [asked(n, 4.0, correlation=correlation, run=7 + n) for n in (1, 2, 3)]
        for some in (rounds[:1], rounds):
            assert of(*some).epsilon(NodePolicy()) == pytest.approx(whole)
        again = asked(2, 4.0, correlation=correlation)
        assert of(*rounds, again).epsilon(NodePolicy()) == pytest.approx(
            gaussian([correlation.noise_multiplier(2.0)])
        )
        elsewhere = asked(2, 4.0, correlation=correlation, server="south")
        assert of(*rounds, elsewhere).epsilon(NodePolicy()) > 1.2 * whole

    def test_are_what_the_first_was_charged_as(
        self, asked: Asked, correlation: Correlation
    ) -> None:
        ledger = NodeLedger("people")
        ledger.charge(asked(1, 4.0, correlation=correlation), ANY)
        ledger.charge(asked(2, 4.0, correlation=correlation), ANY)
        other = Correlation(
            factorisation=BandedToeplitz(rounds=6, coefficients=(1.0, 0.25)),
            min_separation=correlation.min_separation,
            stream=correlation.stream,
        )
        for changed in (
            asked(3, 1.0, correlation=correlation),
            asked(3, 4.0, correlation=other),
            asked(3, 4.0, correlation=correlation, sampling=PoissonSampling(0.5)),
        ):
            with pytest.raises(NotAllowedError, match=f"noise stream {correlation.stream}"):
                ledger.charge(changed, ANY)
        lines = [json.loads(line) for line in ledger.path.read_text().splitlines()]
        assert ["correlation" in line for line in lines[1:]] == [True, False]
        assert len(ledger.account().charges) == 2

    def test_are_not_another_servers_because_it_takes_their_name(
        self, asked: Asked, correlation: Correlation
    ) -> None:
        weaker = Correlation(
            factorisation=BandedToeplitz(rounds=6, coefficients=(1.0, 0.99)),
            min_separation=correlation.min_separation,
            stream=correlation.stream,
        )
        ledger = NodeLedger("people")
        ledger.charge(asked(1, 4.0, correlation=correlation), ANY)
        for number in (1, 2):
            ledger.charge(asked(number, 4.0, correlation=weaker, server="south"), ANY)
        both = [each.noise_multiplier(4.0) for each in (correlation, weaker)]
        assert ledger.account().epsilon(NodePolicy()) == pytest.approx(gaussian(both))
        assert both[1] < 0.9 * both[0]


class TestCoins:
    def test_that_fell_in_another_round_are_refused(self, asked: Asked) -> None:
        ledger = NodeLedger("people")
        coins = {"sampling_key_digest": "ab" * 16, "sampling": PoissonSampling(0.1)}
        ledger.charge(asked(1, **coins), ANY)
        ledger.charge(asked(1, node=2, **coins), ANY)  # of the same round
        ledger.charge(asked(2, **{**coins, "sampling_key_digest": "cd" * 16}), ANY)
        for again in (asked(3, **coins), asked(1, run=8, **coins), asked(1, server="x", **coins)):
            with pytest.raises(NotAllowedError, match='sampling key of round 1 of run 7 of .*"nor'):
                ledger.charge(again, ANY)
        ledger.charge(asked(4), ANY)  # none are no key
        ledger.charge(asked(5), ANY)


class TestLimit:
    def test_is_never_passed_and_the_sentence_names_the_runs(self, asked: Asked) -> None:
        policy = NodePolicy(max_epsilon=gaussian([2.0] * 5) * 1.001)
        ledger = NodeLedger("people")
        for number in (1, 2, 3):
            ledger.charge(asked(number), policy)
        for number in (1, 2):
            ledger.charge(asked(number, run=8, server="south"), policy)
        before = ledger.path.read_bytes()
        with pytest.raises(NotAllowedError) as refused:
            ledger.charge(asked(3, run=8, server="south"), policy)
        sentence = str(refused.value)
        for part in (
            'Round 3 of run 8 of server "south"', 'run 7 of server "north" (3 of 20 rounds)',
            '"people"', f"{gaussian([2.0] * 6):.4g}", f"{gaussian([2.0] * 5):.4g}", "max-epsilon",
            "delta 1e-06",
        ):  # fmt: skip
            assert part in sentence
        assert ledger.path.read_bytes() == before

    def test_a_request_that_comes_again_is_charged_again(self, asked: Asked) -> None:
        """What the node reads may have changed since: it is another answer."""
        ledger = NodeLedger("people")
        for _ in range(2):
            ledger.charge(asked(1), ANY)
        spent = ledger.account().epsilon(ANY)
        assert spent >= gaussian([2.0] * 2)
        with pytest.raises(NotAllowedError):
            ledger.charge(asked(1), NodePolicy(max_epsilon=spent))

    def test_rounds_that_fitted_under_one_limit_are_checked_under_another(
        self, asked: Asked
    ) -> None:
        ledger = NodeLedger("people")
        for number in (1, 2, 3):
            ledger.charge(asked(number), NodePolicy(max_epsilon=100.0))
        spent = ledger.account().epsilon(NodePolicy())
        for tighter in (
            NodePolicy(max_epsilon=spent),
            NodePolicy(max_epsilon=spent, delta=1e-9),
            NodePolicy(max_epsilon=spent, relation=NeighboringRelation.REPLACE_ONE),
        ):
            with pytest.raises(NotAllowedError):
                ledger.charge(asked(4), tighter)

    def test_what_is_paid_for_is_answered_at_the_limit(self, asked: Asked) -> None:
        """Rounds of a stream whose first was charged."""
        correlation = Correlation(factorisation=BandedToeplitz(rounds=6, coefficients=(1.0, 0.5)))
        ledger = NodeLedger("people")
        ledger.charge(asked(1, 4.0, correlation=correlation, num_rounds=6), ANY)
        ledger.charge(asked(1), ANY)
        spent = NodePolicy(max_epsilon=ledger.account().epsilon(ANY) / 2)
        ledger.charge(asked(2, 4.0, correlation=correlation, num_rounds=6), spent)
        for more in (asked(2), asked(1, node=3)):
            with pytest.raises(NotAllowedError):
                ledger.charge(more, spent)


def two_at_once() -> multiprocessing.pool.Pool:
    """Two processes of which neither does anything before both are there."""
    context = multiprocessing.get_context("spawn")
    return context.Pool(2, initializer=context.Barrier(2).wait)


class TestFile:
    def test_is_the_owners_alone_and_reads_back(self, asked: Asked) -> None:
        ledger = NodeLedger("/srv/people of the clinic.jsonl")
        charge = asked(sampling=FixedSizeSampling(3, population=30))
        ledger.charge(charge, ANY)
        assert ledger.account().charges == [charge]
        assert ledger.path.name.startswith("people-of-the-clinic.jsonl-")
        assert ledger.path.stat().st_mode & 0o777 == 0o600
        assert ledger.path.parent.stat().st_mode & 0o777 == 0o700
        assert account.datasets() == ["/srv/people of the clinic.jsonl"]

    def test_does_not_change_the_mode_of_a_folder_that_was_there(
        self, asked: Asked, owner: Path
    ) -> None:
        folder = owner / "ledgers"
        folder.mkdir()
        folder.chmod(0o755)
        NodeLedger("people").charge(asked(), ANY)
        assert folder.stat().st_mode & 0o777 == 0o755
        for mode in (0o775, 0o777, 0o1777):
            folder.chmod(mode)
            with pytest.raises(LedgerError, match=f"writable by nobody else.* mode {mode:04o}"):
                NodeLedger("people").charge(asked(2), ANY)
        assert len(NodeLedger("people").account().charges) == 1

    def test_is_refused_in_another_users_folder(
        self, asked: Asked, owner: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (owner / "ledgers").mkdir(mode=0o700)
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
        with pytest.raises(LedgerError, match=f"must belong to the user.* user {mine}'s"):
            NodeLedger("people").charge(asked(), ANY)

    def test_of_another_data_set_is_refused(self, asked: Asked) -> None:
        NodeLedger("people").charge(asked(), ANY)
        other = NodeLedger("others")
        NodeLedger("people").path.rename(other.path)
        with pytest.raises(LedgerError, match='of data set "people"'):
            other.charge(asked(2), ANY)

    def test_cut_at_any_byte_of_its_last_line_counts_all_that_left_before(
        self, asked: Asked
    ) -> None:
        """A line that is not whole was never returned from, so its answer never left."""
        ledger = NodeLedger("people")
        for number in (1, 2, 3):
            ledger.charge(asked(number), ANY)
        whole = ledger.path.read_bytes()
        last = whole[:-1].rfind(b"\n") + 1
        for cut in [*range(last + 1, len(whole), 97), len(whole) - 2, len(whole) - 1]:
            ledger.path.write_bytes(whole[:cut])
            # Where all but its newline is there, so is the charge.
            left = [asked(1), asked(2), asked(3)][: 3 if cut == len(whole) - 1 else 2]
            assert ledger.account().charges == left
            ledger.charge(asked(4), ANY)
            assert ledger.account().charges == [*left, asked(4)]
        for cut in (1, last // 3, last - 2):  # no crash of ours: refused, not counted as less
            ledger.path.write_bytes(whole[:cut] + b"\n" + whole[last:])
            with pytest.raises(LedgerError):
                ledger.charge(asked(4), ANY)

    @pytest.mark.parametrize("written", [0, 1, 200])
    def test_killed_while_it_is_written(self, asked: Asked, written: int) -> None:
        ledger = NodeLedger("people")
        ledger.charge(asked(1), ANY)
        child = os.fork()
        if child == 0:
            real = os.write

            def dying(descriptor: int, data: bytes) -> int:
                real(descriptor, data[:written])
                os.kill(os.getpid(), signal.SIGKILL)
                return 0

            os.write = dying  # type: ignore[assignment]
            ledger.charge(asked(2), ANY)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        assert ledger.account().charges == [asked(1)]
        ledger.charge(asked(2), ANY)
        assert ledger.account().charges == [asked(1), asked(2)]

    def test_is_shared_by_all_processes(self, asked: Asked) -> None:
        charges = [asked(number, run=run) for run in range(4) for number in range(1, 6)]
        with two_at_once() as pool:
            pool.map(charge_all, [charges[first::4] for first in range(4)], chunksize=1)
        found = NodeLedger("people").account().charges
        assert sorted(map(repr, found)) == sorted(map(repr, charges))

    def test_two_processes_cannot_both_take_what_is_left_once(self, asked: Asked) -> None:
        limit = gaussian([2.0]) * 1.1
        with two_at_once() as pool:
            given = [(asked(1, run=run), limit) for run in range(4)]
            assert sum(pool.starmap(allowed, given, chunksize=1)) == 1
