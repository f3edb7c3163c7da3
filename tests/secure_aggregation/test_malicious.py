"""A server that does as it likes, refused by name; and nodes that do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from flower_privsyn.errors import ProtocolError
from flower_privsyn.secure_aggregation import shamir
from flower_privsyn.secure_aggregation.codec import read
from flower_privsyn.secure_aggregation.keys import Agreement, derive, new_agreement
from flower_privsyn.secure_aggregation.masks import add_mask
from flower_privsyn.secure_aggregation.node import (
    Agreed,
    Sealed,
    Unmasking,
    advertise,
    agree,
    mask,
    receive,
    share,
    unmask,
)
from flower_privsyn.secure_aggregation.roster import (
    KeyCard,
    Roster,
    Session,
    context_of,
    pair_context,
)
from flower_privsyn.secure_aggregation.server import ServerRound
from flower_privsyn.secure_aggregation.terms import Terms
from tests.support.secure import QUESTION, SESSION, Protocol, answers, node_key

EVERYBODY = range(1, 7)


@pytest.fixture
def protocol() -> Protocol:
    made = Protocol(answers(6), Terms.of(6))
    made.show_keys(EVERYBODY)
    return made


@pytest.fixture
def server(protocol: Protocol) -> ServerRound:
    return protocol.give_shares(EVERYBODY)


class TestRosters:
    def given(self, protocol: Protocol, roster: Roster, allowed: set[bytes] | None = None) -> None:
        share(protocol.states[1], roster, allowed=allowed)

    def test_an_old_roster(self, protocol: Protocol) -> None:
        """Cards of another round, under this round's name and under their own."""
        old = Protocol(protocol.values, protocol.terms, session=replace(SESSION, round_number=2))
        old.show_keys(EVERYBODY)
        with pytest.raises(ProtocolError, match="that of another round"):
            self.given(protocol, old.roster)
        cards = [protocol.cards[1], *(old.cards[name] for name in range(2, 7))]
        with pytest.raises(ProtocolError, match="node 2 are not signed by it for round 3"):
            self.given(protocol, Roster(SESSION, protocol.terms, cards))

    def test_a_swapped_key(self, protocol: Protocol) -> None:
        _, other = advertise(SESSION, 1, node_key(1))
        cards = [other, *(protocol.cards[name] for name in range(2, 7))]
        with pytest.raises(ProtocolError, match="does not hold the keys that this node has shown"):
            self.given(protocol, Roster(SESSION, protocol.terms, cards))
        forged = replace(protocol.cards[4], mask_key=advertise(SESSION, 4, node_key(4))[1].mask_key)
        cards = [*(protocol.cards[name] for name in (1, 2, 3, 5, 6)), forged]
        with pytest.raises(ProtocolError, match="node 4 are not signed by it"):
            self.given(protocol, Roster(SESSION, protocol.terms, cards))

    def test_nodes_that_the_server_has_invented(self, protocol: Protocol) -> None:
        allowed = {node_key(name).public for name in range(1, 6)}
        with pytest.raises(ProtocolError, match="node 6 shows the key [0-9a-f]{64}, which this"):
            self.given(protocol, protocol.roster, allowed)
        # One node under two names counts once, and is refused.
        twin = advertise(SESSION, 7, node_key(2))[1]
        with pytest.raises(ProtocolError, match="two nodes of the roster have one node key"):
            Roster(SESSION, protocol.terms, [*protocol.cards.values(), twin])

    def test_a_roster_of_one_and_a_threshold_that_proves_nothing(self, protocol: Protocol) -> None:
        for names, terms, says in (
            ((1,), protocol.terms, "least-nodes must be between"),
            (EVERYBODY, Terms(least_nodes=3, colluding=1), "least-nodes must be between 4 and"),
        ):
            with pytest.raises(ProtocolError, match=says):
                Roster(SESSION, terms, [protocol.cards[name] for name in names])

    def test_without_this_node(self, protocol: Protocol) -> None:
        cards = [protocol.cards[name] for name in range(2, 7)]
        with pytest.raises(ProtocolError, match="does not hold the keys that this node"):
            self.given(protocol, Roster(SESSION, protocol.terms, cards))


class TestShares:
    def test_a_changed_letter_and_one_for_somebody_else(
        self, protocol: Protocol, server: ServerRound
    ) -> None:
        letters = server.letters_for(1)
        broken = {**letters, 2: letters[2][:-1] + bytes([letters[2][-1] ^ 1])}
        swapped = {**letters, 2: letters[3], 3: letters[2]}
        another = {**letters, 2: server.letters_for(3)[2]}
        for wrong in (broken, swapped, another):
            with pytest.raises(ProtocolError, match="was changed, or belongs to another round"):
                receive(protocol.states[1], active=server.active, letters=wrong)

    def test_letters_of_another_round_with_the_same_keys(
        self, protocol: Protocol, server: ServerRound
    ) -> None:
        """The roster is in every letter: another set of nodes is another round."""
        other = Protocol(protocol.values, protocol.terms, states=dict(protocol.states))
        fresh = Protocol(protocol.values, protocol.terms)
        fresh.show_keys(EVERYBODY)
        other.states = dict(fresh.states)
        other.cards = dict(fresh.cards)
        elsewhere = other.give_shares(EVERYBODY)
        with pytest.raises(ProtocolError, match="belongs to another round"):
            receive(protocol.states[1], active=server.active, letters=elsewhere.letters_for(1))

    def test_fewer_than_t_and_others_than_the_neighbours(
        self, protocol: Protocol, server: ServerRound
    ) -> None:
        letters = server.letters_for(1)
        few = {name: letters[name] for name in (2, 3, 4)}
        with pytest.raises(ProtocolError, match="4 of 6 nodes sent shares, 5 are needed"):
            receive(protocol.states[1], active=(1, 2, 3, 4), letters=few)
        for active, given in (
            (EVERYBODY, {name: letters[name] for name in (2, 3, 4, 5)}),
            ((1, 2, 3, 4, 5), letters),
        ):
            with pytest.raises(ProtocolError, match="are not those of this node's neighbours"):
                receive(protocol.states[1], active=active, letters=given)
        with pytest.raises(ProtocolError, match="not on the roster"):
            receive(protocol.states[1], active=(*EVERYBODY, 9), letters=letters)
        with pytest.raises(ProtocolError, match="not among those whose answers"):
            receive(protocol.states[1], active=range(2, 7), letters=letters)


class TestQuestions:
    def test_two_broadcasts(self, protocol: Protocol, server: ServerRound) -> None:
        """Node 1 is shown another question: nobody helps to uncover its answer."""
        ready = receive(protocol.states[1], active=server.active, letters=server.letters_for(1))
        state, masked, signature = mask(
            ready,
            question=b"another question of one node    ",
            values=protocol.values[1],
            key=node_key(1),
        )
        protocol.keep(1, state)
        with pytest.raises(ProtocolError, match="an answer to another question"):
            server.add_answer(1, masked, signature)
        protocol.answer(server, range(2, 7))
        server._answered[1] = signature  # of a server that looks away
        for name in EVERYBODY:
            with pytest.raises(ProtocolError, match="not signed that it answered this question"):
                protocol.sign(server, [name])
        server._answered.pop(1)

    def test_other_thresholds_another_length_and_other_nodes_are_another_context(
        self, protocol: Protocol, server: ServerRound
    ) -> None:
        contexts = set()
        for active, values, question in (
            (EVERYBODY, protocol.values[1], QUESTION),
            (EVERYBODY, protocol.values[1][:4], QUESTION),
            (range(1, 6), protocol.values[1], QUESTION),
            (EVERYBODY, protocol.values[1], b"z" * 32),
        ):
            letters = {k: v for k, v in server.letters_for(1).items() if k in active}
            ready = receive(protocol.states[1], active=active, letters=letters)
            state, _, _ = mask(ready, question=question, values=values, key=node_key(1))
            contexts.add(state.context)
        assert len(contexts) == 4


def signing(protocol: Protocol, name: int, survivors: Iterable[int]) -> tuple[Agreed, bytes]:
    """What a node says to a set of survivors, all of whom have answered."""
    nodes = frozenset(survivors)
    answered = {other: protocol.answered[other] for other in nodes - {name}}
    return agree(protocol.states[name], survivors=nodes, answered=answered, key=node_key(name))


class TestAgreement:
    @pytest.fixture
    def answered(self, protocol: Protocol, server: ServerRound) -> ServerRound:
        protocol.answer(server, EVERYBODY)
        return server

    def test_survivors_that_are_too_few_or_not_true(
        self, protocol: Protocol, answered: ServerRound
    ) -> None:
        for survivors, says in (
            ((1, 2, 3, 4), "4 of 6 nodes answered, 5 are needed"),
            (range(2, 7), "not among those said to have answered"),
            ((1, 2, 3, 4, 5, 8), "said to have answered that was not asked"),
        ):
            with pytest.raises(ProtocolError, match=says):
                agree(
                    protocol.states[1],
                    survivors=survivors,
                    answered=protocol.answered,
                    key=node_key(1),
                )

    def test_two_sets_of_survivors(self, protocol: Protocol, answered: ServerRound) -> None:
        """The two who collude sign both, honest nodes one; no node unmasks for either."""
        first, second = frozenset(range(1, 6)), frozenset(range(2, 7))
        for chosen, signers, honest in ((first, (1, 2, 3, 4), 1), (second, (2, 3, 5, 6), 6)):
            signed = {name: signing(protocol, name, chosen) for name in signers}
            signatures = {name: signature for name, (_, signature) in signed.items()}
            with pytest.raises(ProtocolError, match="4 nodes are said .*, 5 of them are needed"):
                unmask(signed[honest][0], signatures=signatures)

    def test_signatures_on_another_set(self, protocol: Protocol, answered: ServerRound) -> None:
        other = range(1, 6)
        mixed = {}
        for name in range(1, 6):
            mixed[name] = signing(protocol, name, other)[1]
        state, _ = signing(protocol, 1, EVERYBODY)
        with pytest.raises(ProtocolError, match="has not signed the set .* this node has signed"):
            unmask(state, signatures=mixed)
        with pytest.raises(ProtocolError, match="5 of them are needed"):
            unmask(state, signatures={})
        # Of a node that is not in the set, or on no roster.
        state, _ = signing(protocol, 1, other)
        with pytest.raises(ProtocolError, match="are needed"):
            unmask(state, signatures={**{n: mixed[n] for n in (1, 2, 3, 4)}, 6: mixed[5]})


def top_bit(public: bytes) -> bytes:
    """The same point in other bytes: X25519 ignores the last bit."""
    return public[:31] + bytes([public[31] ^ 0x80])


def torsion(public: bytes) -> bytes:
    """Another point, which agrees on the same secrets: the sum with the one of order two."""
    prime = 2**255 - 19
    return pow(int.from_bytes(public, "little"), prime - 2, prime).to_bytes(32, "little")


class TestCopiedKeys:
    """A colluding node shows another's mask key in a form that no comparison of bytes finds."""

    @pytest.mark.parametrize("form", [top_bit, torsion])
    def test_both_forms_agree_on_the_same_secrets(self, form: Callable[[bytes], bytes]) -> None:
        public, own = new_agreement()[1], Agreement(new_agreement()[0])
        assert form(public) != public
        assert own.key(form(public), "pair", b"") == own.key(public, "pair", b"")

    @pytest.mark.parametrize("form", [top_bit, torsion])
    def test_no_two_masks_of_a_node_cancel(self, form: Callable[[bytes], bytes]) -> None:
        """Node 1 shows node 3's key, node 4 is lost, and all that 1 and the server learn of 2."""
        protocol = Protocol(answers(4), Terms(least_nodes=3, colluding=1))
        protocol.show_keys(range(1, 5))
        own = protocol.states[1]
        copied = form(protocol.cards[3].mask_key)
        card = KeyCard.signed(
            SESSION, 1, key=node_key(1), seal_key=own.card.seal_key, mask_key=copied
        )
        protocol.cards[1], protocol.states[1] = card, replace(own, card=card)
        server = protocol.give_shares(range(1, 5))
        before = protocol.states[2]
        protocol.answer(server, range(1, 4))
        protocol.sign(server, range(1, 4))
        found = protocol.uncover(server, range(1, 4))
        roster = server.roster
        context = context_of(roster, range(1, 5), QUESTION, len(protocol.values[2]))

        def secret(shares: Mapping[int, bytes]) -> bytes:
            points = {roster.point(name): share for name, share in shares.items()}
            return shamir.combine(points, threshold=roster.graph.threshold)

        seed = secret({name: found[name].seeds[2] for name in (1, 3)})
        key = secret({name: found[name].mask_keys[4] for name in (1, 2, 3)})
        left = protocol.masked[2].copy()
        add_mask(left, derive(seed, "self", context), subtract=True)
        pair = Agreement(key).key(roster.cards[2].mask_key, "pair", pair_context(context, 2, 4))
        add_mask(left, pair, subtract=True)  # node 2 has added it: its name is the lower one
        assert not np.array_equal(left, protocol.values[2])
        for name in (1, 3):  # the two that hide it, which no other node can make
            pair = pair_context(context, 2, name)
            shared = Agreement(before.mask_secret).key(roster.cards[name].mask_key, "pair", pair)
            add_mask(left, shared, subtract=name > 2)
        np.testing.assert_array_equal(left, protocol.values[2])


class TestNodesThatLie:
    """They can end a round; the server says who did where it can."""

    def test_shares_of_another_seed(self, protocol: Protocol, server: ServerRound) -> None:
        protocol.answer(server, EVERYBODY)
        protocol.sign(server, EVERYBODY)
        protocol.uncover(server, range(1, 6))
        given = unmask(protocol.states[6], signatures=server.signatures)
        server.add_unmasking(6, replace(given, seeds={**given.seeds, 1: bytes(32)}))
        server._seeds[1] = dict(sorted(server._seeds[1].items(), reverse=True)[:4])
        with pytest.raises(ProtocolError, match="shares of node 1 give another seed"):
            server.total()

    def test_messages_of_another_form(self, protocol: Protocol, server: ServerRound) -> None:
        with pytest.raises(ProtocolError, match="a second time"):
            server.add_shares(1, protocol.sealed[1])
        fresh = ServerRound(protocol.roster, 5, QUESTION)
        with pytest.raises(ProtocolError, match="for other nodes"):
            fresh.add_shares(1, Sealed(commitment=b"", letters={2: b""}))
        protocol.answer(server, [1])
        with pytest.raises(ProtocolError, match="a second time"):
            server.add_answer(1, protocol.masked[1], protocol.answered[1])
        with pytest.raises(ProtocolError, match="another form"):
            server.add_answer(2, protocol.masked[1][:3], protocol.answered[1])
        with pytest.raises(ProtocolError, match="an answer to another question"):
            server.add_answer(2, protocol.masked[1], protocol.answered[1])
        protocol.answer(server, [2, 3, 4, 5])
        assert server.survivors == {1, 2, 3, 4, 5}
        with pytest.raises(ProtocolError, match="too late"):
            server.add_answer(6, protocol.masked[1], protocol.answered[1])
        protocol.sign(server, range(1, 6))
        with pytest.raises(ProtocolError, match="other nodes than agreed"):
            server.add_unmasking(1, Unmasking(seeds={}, mask_keys={}))
        with pytest.raises(ProtocolError, match="not asked"):
            server.add_unmasking(6, Unmasking(seeds={}, mask_keys={}))
        assert server.signers == {1, 2, 3, 4, 5}

    def test_keys_that_would_end_the_round_for_all(self, protocol: Protocol) -> None:
        good = protocol.cards[1]
        good.check_keys({protocol.cards[2].mask_key})
        with pytest.raises(ProtocolError, match="not one of X25519"):
            replace(good, mask_key=bytes(32)).check_keys(())
        with pytest.raises(ProtocolError, match="node 1 shows a key of another node"):
            good.check_keys({good.seal_key})
        with pytest.raises(ProtocolError, match="node 1 shows a key of another node"):
            good.check_keys({good.node_key})

    def test_a_card_of_another_round(self, protocol: Protocol) -> None:
        protocol.cards[1].check(SESSION)
        with pytest.raises(ProtocolError, match="node 1 are not signed by it for round 4"):
            protocol.cards[1].check(Session(run=SESSION.run, round_number=4))
        with pytest.raises(ProtocolError, match="another form"):
            read("a card", KeyCard, b"short")
