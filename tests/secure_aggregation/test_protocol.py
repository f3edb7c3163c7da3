"""The protocol against the sum it stands for, node by node lost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from flower_privsyn.errors import ProtocolError
from flower_privsyn.secure_aggregation import roster as roster_module
from flower_privsyn.secure_aggregation.node import mask, receive
from flower_privsyn.secure_aggregation.terms import Graph, Terms
from tests.support.secure import QUESTION, Protocol, answers, chi_square, node_key, run
from tests.support.simulated_sum import Step, simulated_sum

STEPS: tuple[Step | None, ...] = (None, *Step)


def outcome(function: object, *arguments: object) -> object:
    try:
        return function(*arguments).tolist()  # type: ignore[operator]
    except ProtocolError:
        return "lost"


def test_every_pattern_of_lost_nodes_gives_the_simulated_sum() -> None:
    """Bit for bit, or an end in both; nodes are alike, so patterns count once."""
    finished = 0
    for nodes in (4, 5):
        terms, values = Terms.of(nodes), answers(nodes, seed=nodes)
        for pattern in itertools.combinations_with_replacement(STEPS, nodes):
            lost = {name: step for name, step in enumerate(pattern, start=1) if step}
            if len(lost) > 2:
                continue  # which ends both the earlier
            expected = outcome(simulated_sum, values, terms, lost)
            assert outcome(run, values, terms, lost) == expected, lost
            finished += expected != "lost"
    assert finished == 14


def test_what_is_kept_survives_the_disk() -> None:
    terms, values = Terms.of(6), answers(6)
    lost = {2: Step.INPUT}
    expected = simulated_sum(values, terms, lost)
    assert np.array_equal(run(values, terms, lost, through_disk=True), expected)


class TestOnACircle:
    """A sparse graph, small: windows of 8 of 40 nodes."""

    @pytest.fixture(autouse=True)
    def sparse(self, monkeypatch: pytest.MonkeyPatch) -> None:
        graph = Graph(nodes=40, window=8, crowd=2, threshold=5)
        monkeypatch.setattr(roster_module, "graph_of", lambda nodes, terms: graph)

    def test_the_sum_of_those_who_are_left_is_exact(self) -> None:
        terms, values = Terms(least_nodes=28, colluding=5), answers(40)
        protocol = Protocol(values, terms)
        protocol.show_keys(values)
        server = protocol.give_shares([name for name in values if name not in (3, 17)])
        left = [name for name in sorted(server.active) if name not in (5, 30)]
        protocol.answer(server, left)
        protocol.sign(server, left)
        protocol.uncover(server, [name for name in left if name not in (9, 22)])
        total = sum((values[name] for name in left), np.zeros(5, dtype=np.uint64))
        assert np.array_equal(server.total(), total)

    def test_nobody_answers_where_the_server_cuts_the_circle(self) -> None:
        terms, values = Terms(least_nodes=22, colluding=3), answers(40)
        protocol = Protocol(values, terms)
        protocol.show_keys(values)
        roster = protocol.roster
        by_place = [roster._names[index] for index in roster._order]
        cut = {*by_place[:8], *by_place[20:28]}
        server = protocol.give_shares(values)
        kept = frozenset(values) - cut
        assert len(kept) >= terms.least_nodes
        name = min(kept)
        letters = {
            sender: protocol.sealed[sender].letters[name]
            for sender in kept & frozenset(roster.neighbours(name))
        }
        with pytest.raises(ProtocolError, match="leave a gap"):
            receive(protocol.states[name], active=kept, letters=letters)
        assert server.active == frozenset(values)

    def test_a_node_that_answered_among_others_is_not_uncovered(self) -> None:
        """Left out are, on either side, all honest neighbours that the other side counts.

        Both sets bear every check alone. One node's masks hang on the one, the survivors are the
        other: shares of its self mask and of the mask keys of those left out would show its answer.
        """
        terms, values = Terms(least_nodes=28, colluding=4), answers(40)
        protocol = Protocol(values, terms)
        protocol.show_keys(values)
        server = protocol.give_shares(values)
        roster, everybody = protocol.roster, frozenset(values)
        around = [roster._names[i] for i in roster.graph.neighbours(roster._order, 0)]
        victim = roster._names[roster._order[0]]
        among, survivors = everybody - set(around[1::2]), everybody - set(around[::2])
        for nodes in (among, survivors):
            roster.check_enough(nodes, what="answered")
        letters = {k: v for k, v in server.letters_for(victim).items() if k in among}
        ready = receive(protocol.states[victim], active=among, letters=letters)
        _, _, signature = mask(
            ready, question=QUESTION, values=values[victim], key=node_key(victim)
        )
        protocol.answer(server, sorted(everybody - {victim}))
        server._answered[victim] = signature
        server._survivors = survivors
        for name in sorted(survivors & set(around)):
            with pytest.raises(ProtocolError, match=f"node {victim} has not signed that it answ"):
                protocol.sign(server, [name])
        # Those were all who hold a share of its secrets and answered.
        assert len(survivors & set(around)) == 8


class TestWhatTheServerSees:
    def test_a_masked_vector_is_uniform_and_no_two_are_alike(self) -> None:
        """The same answer with and without one user in it, to one who lacks one honest mask."""
        terms = Terms.of(4)
        for value in (0, 2**63):
            values = {name: np.full(20_000, value, dtype=np.uint64) for name in range(1, 5)}
            protocol = Protocol(values, terms)
            protocol.show_keys(values)
            server = protocol.give_shares(values)
            protocol.answer(server, values)
            for masked in protocol.masked.values():
                assert chi_square(masked.tobytes()) < 400
            difference = protocol.masked[1] - protocol.masked[2]
            assert chi_square(difference.tobytes()) < 400

    def test_less_than_one_mask_is_left_only_by_all_of_them(self) -> None:
        """Take away every mask that node 1 shares but one, and its own: uniform still."""
        terms = Terms.of(5)
        values = {name: np.zeros(20_000, dtype=np.uint64) for name in range(1, 6)}
        protocol = Protocol(values, terms)
        protocol.show_keys(values)
        server = protocol.give_shares(values)
        ready = receive(protocol.states[1], active=server.active, letters=server.letters_for(1))
        _, whole, _ = mask(ready, question=QUESTION, values=values[1], key=node_key(1))
        one_left = {2: ready.shares[2]}
        _, known, _ = mask(
            type(ready)(
                before=ready.before,
                active=ready.active,
                shares={k: v for k, v in ready.shares.items() if k not in one_left},
            ),
            question=QUESTION,
            values=values[1],
            key=node_key(1),
        )
        assert chi_square((whole - known).tobytes()) < 400

    def test_nobody_gives_both_shares_of_a_node(self) -> None:
        terms, values = Terms.of(6), answers(6)
        protocol = Protocol(values, terms)
        protocol.show_keys(values)
        server = protocol.give_shares(values)
        protocol.answer(server, [1, 2, 3, 4, 5])
        protocol.sign(server, [1, 2, 3, 4, 5])
        given = protocol.uncover(server, [1, 2, 3, 4, 5])
        for name, shares in given.items():
            assert set(shares.seeds) == {1, 2, 3, 4, 5} - {name}
            assert set(shares.mask_keys) == {6}
