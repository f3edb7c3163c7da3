"""Nodes and a server that aggregate securely in one process, step by step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flower_privsyn.secure_aggregation.codec import pack, unpack
from flower_privsyn.secure_aggregation.keys import NodeKey
from flower_privsyn.secure_aggregation.node import (
    Unmasking,
    advertise,
    agree,
    mask,
    receive,
    share,
    unmask,
)
from flower_privsyn.secure_aggregation.roster import Roster, Session
from flower_privsyn.secure_aggregation.server import ServerRound
from flower_privsyn.secure_aggregation.terms import Terms
from tests.support.simulated_sum import Step

SESSION = Session(run=2**63 + 5, round_number=3)
QUESTION = b"q" * 32

_keys: dict[int, NodeKey] = {}


def node_key(name: int) -> NodeKey:
    """The key of a node, the same in every test of a process."""
    return _keys.setdefault(name, NodeKey.generate())


def stored(state: Any) -> Any:
    """A state after a journey over the disk."""
    return unpack(type(state), pack(state))


def answers(count: int, length: int = 5, *, seed: int = 0) -> dict[int, np.ndarray]:
    """Any numbers of 64 bits, by node."""
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 2**64, size=(count, length), dtype=np.uint64)
    return dict(enumerate(values, start=1))


def chi_square(data: bytes) -> float:
    """How far bytes are from uniform: about 255, and hardly ever above 400, where they are."""
    counts = np.bincount(np.frombuffer(data, dtype=np.uint8), minlength=256)
    expected = len(data) / 256
    return float(((counts - expected) ** 2 / expected).sum())


@dataclass
class Protocol:
    """A round whose steps can be taken one by one; what it kept so far can be gone on with twice.

    Attributes:
        values: by node.
        terms: of the round.
    """

    values: Mapping[int, np.ndarray]
    terms: Terms
    session: Session = SESSION
    question: bytes = QUESTION
    states: dict[int, Any] = field(default_factory=dict)
    cards: dict[int, Any] = field(default_factory=dict)
    sealed: dict[int, Any] = field(default_factory=dict)
    masked: dict[int, np.ndarray] = field(default_factory=dict)
    answered: dict[int, bytes] = field(default_factory=dict)
    through_disk: bool = False

    def keep(self, name: int, state: Any) -> None:
        self.states[name] = stored(state) if self.through_disk else state

    def show_keys(self, names: Collection[int]) -> None:
        for name in names:
            state, self.cards[name] = advertise(self.session, name, node_key(name))
            self.keep(name, state)

    @property
    def roster(self) -> Roster:
        return Roster(self.session, self.terms, self.cards.values())

    def give_shares(self, names: Collection[int]) -> ServerRound:
        roster = self.roster
        server = ServerRound(roster, len(next(iter(self.values.values()))), self.question)
        allowed = {card.node_key for card in roster.cards.values()}
        for name in names:
            state, self.sealed[name] = share(self.states[name], roster, allowed=allowed)
            self.keep(name, state)
            server.add_shares(name, self.sealed[name])
        return server

    def answer(self, server: ServerRound, names: Collection[int]) -> None:
        for name in names:
            ready = receive(
                self.states[name], active=server.active, letters=server.letters_for(name)
            )
            state, self.masked[name], self.answered[name] = mask(
                ready, question=self.question, values=self.values[name], key=node_key(name)
            )
            self.keep(name, state)
            server.add_answer(name, self.masked[name], self.answered[name])

    def sign(self, server: ServerRound, names: Collection[int]) -> None:
        for name in names:
            state, signature = agree(
                self.states[name],
                survivors=server.survivors,
                answered=server.answered_around(name),
                key=node_key(name),
            )
            self.keep(name, state)
            server.add_signature(name, signature)

    def uncover(self, server: ServerRound, names: Collection[int]) -> dict[int, Unmasking]:
        found = {}
        signatures = server.signatures
        for name in names:
            found[name] = unmask(self.states[name], signatures=signatures)
            server.add_unmasking(name, found[name])
        return found


def run(
    values: Mapping[int, np.ndarray],
    terms: Terms,
    lost: Mapping[int, Step] | None = None,
    *,
    through_disk: bool = False,
) -> np.ndarray:
    """The sum by the protocol where some nodes are lost."""
    lost = lost or {}

    def left(step: Step) -> list[int]:
        return [name for name in sorted(values) if lost.get(name, step + 1) > step]

    protocol = Protocol(values, terms, through_disk=through_disk)
    protocol.show_keys(left(Step.KEYS))
    server = protocol.give_shares(left(Step.SHARES))
    protocol.answer(server, left(Step.INPUT))
    protocol.sign(server, left(Step.AGREE))
    protocol.uncover(server, left(Step.UNMASK))
    return server.total()
