"""Who takes part in a round: the keys that nodes show each other, and the digest of all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from flower_privsyn.checks import check_whole, raised_as
from flower_privsyn.errors import ConfigError, ProtocolError
from flower_privsyn.secure_aggregation.codec import packed, read
from flower_privsyn.secure_aggregation.keys import (
    Agreement,
    NodeKey,
    Secret,
    Signature,
    digest,
    is_signed,
    new_agreement,
    whole,
)
from flower_privsyn.secure_aggregation.terms import Graph, Terms, graph_of


@dataclass(frozen=True, kw_only=True)
class Session:
    """One round of one run.

    Attributes:
        run: Flower's number of the run.
        round_number: 1-based.
    """

    run: int
    round_number: int

    def __post_init__(self) -> None:
        check_whole("run", self.run, ge=0, le=2**64 - 1)
        check_whole("round", self.round_number, ge=1, le=2**32)


@dataclass(frozen=True, kw_only=True)
class KeyCard:
    """The keys that a node shows for one round.

    Attributes:
        name: Flower's number of the node.
        node_key: Ed25519, by which the owners of other nodes know it.
        seal_key: X25519, for shares sent to it.
        mask_key: X25519, for masks shared with it.
        signature: By the node's key, on all of this and the session.
    """

    name: int
    node_key: Secret
    seal_key: Secret
    mask_key: Secret
    signature: Signature

    @classmethod
    def signed(
        cls, session: Session, name: int, *, key: NodeKey, seal_key: bytes, mask_key: bytes
    ) -> KeyCard:
        """A card under the node's own signature."""
        message = _card_message(session, name, key.public, seal_key, mask_key)
        return cls(
            name=name,
            node_key=key.public,
            seal_key=seal_key,
            mask_key=mask_key,
            signature=key.sign(message),
        )

    def check(self, session: Session) -> None:
        """Refuse a card that its node did not sign for this round.

        Raises:
            ProtocolError: The signature does not fit.
        """
        message = _card_message(session, self.name, self.node_key, self.seal_key, self.mask_key)
        if not is_signed(message, self.signature, by=self.node_key):
            raise ProtocolError(
                f"the keys of node {self.name} are not signed by it for round "
                f"{session.round_number} of this run"
            )

    def check_keys(self, taken: Collection[bytes]) -> None:
        """Refuse keys by which nothing could be agreed, or that another node has shown.

        Args:
            taken: The keys of other nodes, of all three kinds.

        Raises:
            ProtocolError: They are.
        """
        agreement = Agreement(new_agreement()[0])
        for key in (self.seal_key, self.mask_key):
            agreement.key(key, "check", b"")  # refused where every agreement is the same
        if not {self.node_key, self.seal_key, self.mask_key}.isdisjoint(taken):
            raise ProtocolError(f"node {self.name} shows a key of another node")


def _card_message(session: Session, name: int, *keys: bytes) -> bytes:
    return digest("keys", packed(session), whole(name), *keys)


class Roster:
    """The nodes of a round, in the order of their names, with their graph.

    Args:
        session: The round.
        terms: Of the round.
        cards: One per node.

    Raises:
        ProtocolError: Two cards have one name, or show one key; or the terms do not fit.
    """

    def __init__(self, session: Session, terms: Terms, cards: Iterable[KeyCard]) -> None:
        self.session = session
        self.terms = terms
        shown = sorted(cards, key=lambda card: card.name)
        self.cards = {card.name: card for card in shown}
        self._names = list(self.cards)
        self._points = {name: index + 1 for index, name in enumerate(self._names)}
        for kind in ("name", "node_key", "seal_key", "mask_key"):
            if len({getattr(card, kind) for card in shown}) < len(shown):
                raise ProtocolError(f"two nodes of the roster have one {kind.replace('_', ' ')}")
        with raised_as(ProtocolError, ConfigError):
            terms.check_roster(len(self.cards))
        self.digest = digest(
            "roster", packed(session), packed(terms), *map(packed, self.cards.values())
        )

    def to_bytes(self) -> bytes:
        """32 bytes, and 168 for each node."""
        return packed((self.session, self.terms, *self.cards.values()))

    @classmethod
    def from_bytes(cls, data: bytes) -> Roster:
        """Read `to_bytes`.

        Raises:
            ProtocolError: It is no roster.
        """
        session = read("session", Session, data[:16])
        terms = read("terms", Terms, data[16:32])
        return cls(session, terms, read("cards", tuple[KeyCard, ...], data[32:]))

    @cached_property
    def graph(self) -> Graph:
        """Who shares masks with whom; seconds for ten thousand nodes, so `check_allowed` first."""
        return graph_of(len(self.cards), self.terms)

    @cached_property
    def _order(self) -> list[int]:
        return self.graph.order(digest("circle", self.digest))

    @cached_property
    def _places(self) -> dict[int, int]:
        return {self._names[index]: place for place, index in enumerate(self._order)}

    def point(self, name: int) -> int:
        """Where the shares of a node lie."""
        return self._points[name]

    def neighbours(self, name: int) -> list[int]:
        """The nodes that a node shares masks with, and gives shares of its secrets."""
        found = self.graph.neighbours(self._order, self._places[name])
        return sorted(self._names[index] for index in found)

    def check_allowed(self, allowed: Collection[bytes] | None) -> None:
        """Refuse a node that the owner of this one does not allow.

        Args:
            allowed: The keys that are; None where one person owns all nodes.

        Raises:
            ProtocolError: One shows another key.
        """
        for card in self.cards.values():
            if allowed is not None and card.node_key not in allowed:
                raise ProtocolError(
                    f"node {card.name} shows the key {card.node_key.hex()}, which this node's "
                    "owner does not allow"
                )

    def check_enough(self, nodes: Collection[int], *, what: str) -> None:
        """Refuse a set of nodes among which an answer would not be hidden.

        Args:
            nodes: Their names.
            what: What they did, for the sentence.

        Raises:
            ProtocolError: One is not on the roster, they are too few, or they stand so that an
                honest node could be parted from the others.
        """
        if not set(nodes) <= self.cards.keys():
            raise ProtocolError(f"a node is said to have {what} that is not on the roster")
        if len(nodes) < self.terms.least_nodes:
            raise ProtocolError(
                f"{len(nodes)} of {len(self.cards)} nodes {what}, {self.terms.least_nodes} are "
                "needed"
            )
        if not self.graph.is_tight(self._order, [self._points[name] - 1 for name in nodes]):
            raise ProtocolError(
                f"the nodes that {what} leave a gap in which an honest node would stand alone"
            )


def set_digest(names: Iterable[int]) -> bytes:
    """A set of nodes, for digests."""
    return digest("set", whole(*sorted(names)))


def answered_message(context: bytes) -> bytes:
    """What a node signs with its answer: that it answered this very question with these nodes."""
    return digest("answered", context)


def survivors_message(context: bytes, survivors: Iterable[int]) -> bytes:
    """What nodes sign: that these answered this very question."""
    return digest("survivors", context, set_digest(survivors))


def context_of(roster: Roster, active: Iterable[int], question: bytes, length: int) -> bytes:
    """The digest that every mask of a round hangs on.

    Args:
        roster: With session, terms and keys.
        active: The nodes that sent shares.
        question: Digest of the whole question.
        length: Numbers in an answer.
    """
    return digest("context", roster.digest, set_digest(active), question, whole(length))


def pair_context(context: bytes, one: int, other: int) -> bytes:
    """What the mask of two nodes hangs on.

    The names are in it because their keys are not enough: X25519 has several public keys that agree
    on one secret. A node that showed another's in such a form would share that one's masks with
    everybody, and two masks of one key cancel where one is added and the other subtracted.

    Args:
        context: Of the round.
        one: A node of the pair.
        other: The other one.
    """
    return context + whole(min(one, other), max(one, other))
