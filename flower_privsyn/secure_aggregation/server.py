"""The server's side of a round: who is left after every step, and the sum without its masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from flower_privsyn.errors import ProtocolError
from flower_privsyn.secure_aggregation import shamir
from flower_privsyn.secure_aggregation.keys import Agreement, derive, is_signed, public_of
from flower_privsyn.secure_aggregation.masks import Vector, add_mask
from flower_privsyn.secure_aggregation.node import Sealed, Unmasking, seed_commitment
from flower_privsyn.secure_aggregation.roster import (
    Roster,
    answered_message,
    context_of,
    pair_context,
    survivors_message,
)


@dataclass(repr=False)
class ServerRound:
    """One round at the server, which follows the protocol.

    A message that no honest node sends is refused by a `ProtocolError` and changes nothing: its
    node counts as lost.

    Attributes:
        roster: The nodes that have shown keys.
        length: Numbers in an answer.
        question: Digest of the whole question.
    """

    roster: Roster
    length: int
    question: bytes
    _sealed: dict[int, Sealed] = field(default_factory=dict)
    _active: frozenset[int] | None = None
    _answered: dict[int, bytes] = field(default_factory=dict)
    _survivors: frozenset[int] | None = None
    _signatures: dict[int, bytes] = field(default_factory=dict)
    _unmasked: set[int] = field(default_factory=set)
    _seeds: dict[int, dict[int, bytes]] = field(default_factory=dict)
    _keys: dict[int, dict[int, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._total: Vector = np.zeros(self.length, dtype=np.uint64)

    # ---- shares

    def add_shares(self, name: int, sealed: Sealed) -> None:
        """Take a node's sealed shares.

        Raises:
            ProtocolError: They are not for its neighbours, or came before.
        """
        if name in self._sealed or self._active is not None:
            raise ProtocolError("a second time, or too late")
        if sealed.letters.keys() != set(self.roster.neighbours(name)):
            raise ProtocolError("shares for other nodes than its neighbours")
        self._sealed[name] = sealed

    @property
    def active(self) -> frozenset[int]:
        """The nodes that sent shares, and will be asked; settled when first looked at.

        Raises:
            ProtocolError: They are too few.
        """
        if self._active is None:
            found = frozenset(self._sealed)
            self.roster.check_enough(found, what="sent shares")
            self._active = found
        return self._active

    def letters_for(self, name: int) -> dict[int, bytes]:
        """By sender, what is sealed for a node."""
        neighbours = self.active & frozenset(self.roster.neighbours(name))
        return {sender: self._sealed[sender].letters[name] for sender in sorted(neighbours)}

    # ---- answers

    def add_answer(self, name: int, masked: Vector, signature: bytes) -> None:
        """Add a masked answer to the sum.

        Raises:
            ProtocolError: It has another form than agreed, came before or too late, or its node has
                not signed that it answers this question.
        """
        if name not in self.active or name in self._answered or self._survivors is not None:
            raise ProtocolError("a second time, too late, or not asked")
        if masked.dtype != np.uint64 or masked.shape != (self.length,):
            raise ProtocolError("another form than agreed")
        message = answered_message(self._context)
        if not is_signed(message, signature, by=self.roster.cards[name].node_key):
            raise ProtocolError("an answer to another question")
        self._answered[name] = signature
        self._total += masked

    @property
    def survivors(self) -> frozenset[int]:
        """The nodes that answered; settled when first looked at.

        Raises:
            ProtocolError: They are too few.
        """
        if self._survivors is None:
            found = frozenset(self._answered)
            self.roster.check_enough(found, what="answered")
            self._survivors = found
        return self._survivors

    def answered_around(self, name: int) -> dict[int, bytes]:
        """By neighbour of a node among the survivors, its signature on what it has answered."""
        neighbours = self.survivors & frozenset(self.roster.neighbours(name))
        return {other: self._answered[other] for other in sorted(neighbours)}

    # ---- agreement

    def add_signature(self, name: int, signature: bytes) -> None:
        """Take a node's signature on the survivors.

        Raises:
            ProtocolError: It is none.
        """
        if name not in self.survivors or not is_signed(
            self._message, signature, by=self.roster.cards[name].node_key
        ):
            raise ProtocolError("no signature on the survivors")
        self._signatures[name] = signature

    @property
    def signatures(self) -> Mapping[int, bytes]:
        """As many signatures as it takes.

        Raises:
            ProtocolError: They are too few.
        """
        needed = self.roster.terms.signatures(len(self.roster.cards))
        if len(self._signatures) < needed:
            raise ProtocolError(
                f"{len(self._signatures)} of {len(self.survivors)} nodes signed the survivors, "
                f"{needed} are needed"
            )
        return dict(sorted(self._signatures.items())[:needed])

    @property
    def signers(self) -> frozenset[int]:
        """The nodes that signed."""
        return frozenset(self._signatures)

    # ---- the sum

    def add_unmasking(self, name: int, shares: Unmasking) -> None:
        """Take a node's shares.

        Raises:
            ProtocolError: They are of others than they should be, or came before.
        """
        around = self.active & frozenset(self.roster.neighbours(name))
        lost = around - self.survivors
        if name not in self._signatures or name in self._unmasked:
            raise ProtocolError("a second time, or not asked")
        if shares.seeds.keys() != around - lost or shares.mask_keys.keys() != lost:
            raise ProtocolError("shares of other nodes than agreed")
        self._unmasked.add(name)
        point = self.roster.point(name)
        for kind, found in ((self._seeds, shares.seeds), (self._keys, shares.mask_keys)):
            for owner, one in found.items():
                kind.setdefault(owner, {})[point] = one

    def total(self) -> Vector:
        """The sum of the survivors' answers modulo 2^64, (m,) uint64.

        Raises:
            ProtocolError: Too few shares came, or some that give another secret than was dealt.
        """
        for name in sorted(self.survivors):
            seed = self._combined(self._seeds, name)
            if seed_commitment(self.roster, name, seed) != self._sealed[name].commitment:
                raise ProtocolError(f"the shares of node {name} give another seed than it chose")
            add_mask(self._total, derive(seed, "self", self._context), subtract=True)
        for name in sorted(self.active - self.survivors):
            secret = self._combined(self._keys, name)
            if public_of(secret) != self.roster.cards[name].mask_key:
                raise ProtocolError(f"the shares of node {name} give another key than it showed")
            agreement = Agreement(secret)
            for other in self.survivors & frozenset(self.roster.neighbours(name)):
                pair = pair_context(self._context, name, other)
                key = agreement.key(self.roster.cards[other].mask_key, "pair", pair)
                add_mask(self._total, key, subtract=other < name)
        return self._total

    @cached_property
    def _message(self) -> bytes:
        return survivors_message(self._context, self.survivors)

    @cached_property
    def _context(self) -> bytes:
        return context_of(self.roster, self.active, self.question, self.length)

    def _combined(self, kind: Mapping[int, Mapping[int, bytes]], name: int) -> bytes:
        threshold = self.roster.graph.threshold
        return shamir.combine(kind.get(name, {}), threshold=threshold)
