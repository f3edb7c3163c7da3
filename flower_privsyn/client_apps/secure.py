"""The client's side of secure aggregation: five steps, each a message and a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
from flwr.app import Context, Message

from flower_privsyn.client_apps.guard import NodeGuard, guard_of, in_simulation
from flower_privsyn.client_apps.secure_store import (
    RoundStore,
    check_state_folder,
    key_file,
    read_node_key,
)
from flower_privsyn.errors import ProtocolError
from flower_privsyn.messages import secure as secure_wire
from flower_privsyn.messages import wire
from flower_privsyn.privacy import SecureRandom
from flower_privsyn.privacy.grid import STEPS
from flower_privsyn.secure_aggregation import (
    Advertised,
    Agreed,
    Masked,
    NodeKey,
    Roster,
    Session,
    Shared,
    advertise,
    agree,
    mask,
    receive,
    share,
    unmask,
)
from flower_privsyn.secure_aggregation.masks import Vector
from flower_privsyn.secure_aggregation.terms import LEAST_STEPS

T = TypeVar("T")


class SecureRounds:
    """Takes a node through the rounds of secure aggregation.

    Formal guarantee:
        That of `flower_privsyn.secure_aggregation.node`. To every answer the node adds normal noise
        of its own, rounded to the grid, of variance sigma^2 / (t - c), before it is masked; its
        users' coins are flipped with a key that no other party knows; and it answers with noise
        also where none of its users takes part. So a sum of at least t nodes, c of which collude
        and take their noise out, carries noise of standard deviation at least sigma.

    Args:
        read: from a message to the question in it.
        answer: checks a question against the owner's word, reads the arrays of its message, adds up
            the users' answers, and charges the account; with the answer it returns a bound, which
            is not used here.
    """

    def __init__(
        self,
        read: Callable[[Message], wire.Ask],
        answer: Callable[[wire.Ask, Message, Context], tuple[wire.Answer, float]],
    ) -> None:
        self._read = read
        self._answer = answer

    def check_ready(self, context: Context, guard: NodeGuard) -> None:
        """Refuse a run whose rounds this node would take no part in.

        Raises:
            NotAllowedError: the node has no key, or its owner lists none, or others than the owner
                could change what it keeps of a round.
        """
        if not in_simulation():
            _own_key(context, guard)

    def show_keys(self, message: Message, context: Context) -> Message:
        """Fresh keys for a round, signed."""
        store, session = _store(context), _session(message, context)
        # Nodes of a simulation are one person's: there is nobody to know them by their keys.
        own = NodeKey.generate() if in_simulation() else _own_key(context, guard_of(context))
        state, card = advertise(session, context.node_id, own)
        with store.locked():
            store.begin(state, key=own if in_simulation() else None)
        return wire.reply(
            secure_wire.pack(secure_wire.Shown(run=context.run_id, card=card)), message
        )

    def give_shares(self, message: Message, context: Context) -> Message:
        """Shares of this node's secrets, sealed for each neighbour."""
        store, session = _store(context), _session(message, context)
        invited = secure_wire.unpack(secure_wire.Invited, message)
        terms, cards = invited.terms, invited.cards
        guard = guard_of(context)
        guard.check_terms(terms, len(cards))
        with store.locked():
            state = _expect(Advertised, store.state(session))
            allowed = None if in_simulation() else guard.allowed_nodes(_key(context))
            kept, sealed = share(state, Roster(session, terms, cards), allowed=allowed)
            store.keep(kept)
        return wire.reply(secure_wire.pack(sealed), message)

    def answer(self, message: Message, context: Context) -> Message:
        """The answer to the round's question, with this node's noise, under all masks."""
        store = _store(context)
        ask, mail = self._read(message), secure_wire.unpack(secure_wire.Mail, message)
        session = Session(run=context.run_id, round_number=ask.round_number)
        with store.locked():
            state = _expect(Shared, store.state(session))
            if ask.secure != state.roster.terms:
                raise ProtocolError("the question is for other terms than the roster")
            deviation = noise_steps(ask)
            key = store.key() or _key(context)
            _check_roster(state.roster, guard_of(context), key)
            ready = receive(state, active=mail.active, letters=mail.letters)
            # A question that fails is not put again, nor another in its place.
            store.begin_step()
            # Nobody else knows the coins: who was drawn stays on this node.
            drawn = replace(ask, sampling_key=os.urandom(32))
            total = self._answer(drawn, message, context)[0].total
            # It may have taken hours: who may be in the sum is the owner's word of now.
            _check_roster(state.roster, guard_of(context), key)
            noise = SecureRandom().rounded_normal(deviation, len(total))
            values: Vector = (total + noise).view(np.uint64)
            kept, masked, signature = mask(
                ready,
                question=secure_wire.question_digest(message.content),
                values=values,
                key=key,
            )
            store.keep(kept)
        return wire.reply(secure_wire.pack_masked(masked, signature), message)

    def sign_survivors(self, message: Message, context: Context) -> Message:
        """A signature on the set of nodes that answered."""
        store, session = _store(context), _session(message, context)
        shown = secure_wire.unpack(secure_wire.Answered, message)
        with store.locked():
            state = _expect(Masked, store.state(session))
            key = store.key() or _key(context)
            kept, signature = agree(
                state, survivors=shown.survivors, answered=shown.answered, key=key
            )
            store.keep(kept)
        return wire.reply(secure_wire.pack(secure_wire.Signed(signature=signature)), message)

    def unmask(self, message: Message, context: Context) -> Message:
        """Shares that unmask the sum; what was kept of the round is gone before they leave."""
        store, session = _store(context), _session(message, context)
        signatures = secure_wire.unpack(secure_wire.Signatures, message).signatures
        with store.locked():
            state = _expect(Agreed, store.state(session))
            shares = unmask(state, signatures=signatures)
            store.forget()
        return wire.reply(secure_wire.pack(shares), message)


def noise_steps(ask: wire.Ask) -> float:
    """Standard deviation of one node's noise in steps of the grid.

    Raises:
        WireError: the question names no terms, or too little noise to hide an answer.
    """
    if ask.secure is None:
        raise wire.WireError("the request names no terms of secure aggregation")
    deviation = ask.mechanism.standard_deviation * ask.secure.noise_share * STEPS
    if deviation < LEAST_STEPS:
        raise wire.WireError(
            f"the request's noise multiplier {ask.mechanism.noise_multiplier:g} leaves each node "
            f"{deviation:.3g} steps of the grid, at least {LEAST_STEPS:g} are needed"
        )
    return deviation


def _store(context: Context) -> RoundStore:
    return RoundStore(context.run_id, context.node_id)


def _session(message: Message, context: Context) -> Session:
    return Session(run=context.run_id, round_number=secure_wire.round_of(message))


def _own_key(context: Context, guard: NodeGuard) -> NodeKey:
    """The key of a node whose owner lists it, and lets nobody at what it keeps.

    Raises:
        NotAllowedError: there is none, or the owner does not.
    """
    own = _key(context)
    guard.allowed_nodes(own)
    check_state_folder()
    return own


def _check_roster(roster: Roster, guard: NodeGuard, own: NodeKey) -> None:
    """Refuse a roster, or its terms, that the node's owner has come not to allow.

    Raises:
        NotAllowedError: the terms, or the node's own key.
        ProtocolError: another node's key.
    """
    guard.check_terms(roster.terms, len(roster.cards))
    if not in_simulation():
        roster.check_allowed(guard.allowed_nodes(own))


def _key(context: Context) -> NodeKey:
    return read_node_key(key_file(context.node_config))


def _expect(kind: type[T], state: object) -> T:
    if not isinstance(state, kind):
        raise ProtocolError(
            f"this node has come to another step of the round ({type(state).__name__}): each step "
            "is taken once"
        )
    return state
