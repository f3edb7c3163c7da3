"""A node's side of a round: five steps, each from what it kept and what came to what leaves.

    advertise   fresh keys, signed                                       sa_keys
    share       shares of both secrets, sealed for each neighbour        sa_shares
    receive     the neighbours' shares, opened                           sa_input
    mask        the answer under all masks, and a signature on what
                it answers and with whom
    agree       a signature on the set of nodes that answered            sa_agree
    unmask      shares of self masks of those in, of keys of those out   sa_unmask

What a step returns first is the node's state, which goes to its disk before anything leaves; it
holds no more than later steps need. Every step takes the state of the one before it alone, so none
can be had twice.

Formal guarantee:
    Against a server that does as it likes, with c colluding nodes: of an honest node's answer the
    server learns nothing but one sum over at least t nodes, of which at least t - c are honest and
    answered the same question with the same roster, or nothing at all. That holds while c is not
    exceeded among the keys that owners allow, under the assumptions of the primitives
    (`flower_privsyn.secure_aggregation` has the argument). Not promised: that the sum is right
    where a colluding node is in it, or that a round finishes.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from flower_privsyn.errors import ProtocolError
from flower_privsyn.secure_aggregation import shamir
from flower_privsyn.secure_aggregation.keys import (
    KEY_BYTES,
    SEAL_BYTES,
    Agreement,
    NodeKey,
    Secret,
    derive,
    digest,
    is_signed,
    new_agreement,
    seal,
    unseal,
    whole,
)
from flower_privsyn.secure_aggregation.masks import Vector, add_mask
from flower_privsyn.secure_aggregation.roster import (
    KeyCard,
    Roster,
    Session,
    answered_message,
    context_of,
    pair_context,
    survivors_message,
)

Shares: TypeAlias = Mapping[int, Annotated[bytes, 2 * KEY_BYTES]]
"""By node, a share of its self mask's seed, and behind it one of its mask key."""


Letters: TypeAlias = Mapping[int, Annotated[bytes, 2 * KEY_BYTES + SEAL_BYTES]]
"""By node, both shares, sealed."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Advertised:
    """A node that has shown its keys.

    Attributes:
        session: The round.
        card: What it has shown.
        seal_secret: Secret half of the card's `seal_key`.
        mask_secret: Secret half of the card's `mask_key`.
    """

    session: Session
    card: KeyCard
    seal_secret: Secret
    mask_secret: Secret


@dataclass(frozen=True, kw_only=True, repr=False)
class Shared:
    """A node that has given shares away.

    Attributes:
        name: The node's own.
        roster: Of the round.
        seal_secret: As before.
        mask_secret: As before.
        self_seed: Of the mask that it shares with nobody.
    """

    name: int
    roster: Roster
    seal_secret: Secret
    mask_secret: Secret
    self_seed: Secret


@dataclass(frozen=True, kw_only=True, repr=False)
class Ready:
    """A node that has opened its neighbours' shares; never stored.

    Attributes:
        before: The state that it was in.
        active: All nodes that sent shares.
        shares: Of its neighbours among them.
    """

    before: Shared
    active: frozenset[int]
    shares: Shares


@dataclass(frozen=True, kw_only=True, repr=False)
class Masked:
    """A node that has answered. Its own secrets are gone.

    Attributes:
        name: The node's own.
        roster: Of the round.
        active: The nodes that sent shares.
        context: Digest that the masks hang on.
        shares: Of its neighbours' secrets.
    """

    name: int
    roster: Roster
    active: frozenset[int]
    context: Secret
    shares: Shares


@dataclass(frozen=True, kw_only=True, repr=False)
class Agreed:
    """A node that has signed one set of survivors.

    Attributes:
        roster: Of the round.
        context: As before.
        shares: As before.
        survivors: The set.
    """

    roster: Roster
    context: Secret
    shares: Shares
    survivors: frozenset[int]


State: TypeAlias = Advertised | Shared | Masked | Agreed
"""What a node keeps between two messages of a round."""


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """What a node sends in the second step.

    Attributes:
        commitment: Digest of its self mask's seed.
        letters: By neighbour, both shares, sealed.
    """

    commitment: Secret
    letters: Letters


@dataclass(frozen=True, kw_only=True, repr=False)
class Unmasking:
    """What a node sends in the last step: of every neighbour one share, never both.

    Attributes:
        seeds: Shares of the self masks' seeds of neighbours that are in the sum.
        mask_keys: Shares of the mask keys of neighbours that are not.
    """

    seeds: Mapping[int, Secret]
    mask_keys: Mapping[int, Secret]


def advertise(session: Session, name: int, key: NodeKey) -> tuple[Advertised, KeyCard]:
    """Make the keys of a round.

    Args:
        session: The round, as the node itself knows it.
        name: The node's own.
        key: By which others know it.
    """
    seal_secret, seal_key = new_agreement()
    mask_secret, mask_key = new_agreement()
    card = KeyCard.signed(session, name, key=key, seal_key=seal_key, mask_key=mask_key)
    kept = Advertised(session=session, card=card, seal_secret=seal_secret, mask_secret=mask_secret)
    return kept, card


def share(
    state: Advertised, roster: Roster, *, allowed: Collection[bytes] | None
) -> tuple[Shared, Sealed]:
    """Give every neighbour a share of both secrets, sealed.

    Args:
        state: Of the step before.
        roster: As the server shows it.
        allowed: The keys that the node's owner allows; None where one person owns all nodes.

    Raises:
        ProtocolError: The roster is for another round, lacks this node or shows another key for
            it, or holds a key that is not allowed or not signed.
    """
    own = state.card
    if roster.session != state.session:
        raise ProtocolError("the roster is that of another round")
    if roster.cards.get(own.name) != own:
        raise ProtocolError("the roster does not hold the keys that this node has shown")
    roster.check_allowed(allowed)
    for card in roster.cards.values():
        card.check(state.session)
    seed = os.urandom(KEY_BYTES)
    neighbours = roster.neighbours(own.name)
    points = [roster.point(name) for name in neighbours]
    threshold = roster.graph.threshold
    seeds = shamir.split(seed, points=points, threshold=threshold)
    secrets = shamir.split(state.mask_secret, points=points, threshold=threshold)
    agreement = Agreement(state.seal_secret)
    letters = {}
    for name, point in zip(neighbours, points, strict=True):
        about = letter_about(roster, sender=own.name, receiver=name)
        key = agreement.key(roster.cards[name].seal_key, "seal", about)
        letters[name] = seal(key, seeds[point] + secrets[point], about=about)
    kept = Shared(
        name=own.name,
        roster=roster,
        seal_secret=state.seal_secret,
        mask_secret=state.mask_secret,
        self_seed=seed,
    )
    return kept, Sealed(commitment=seed_commitment(roster, own.name, seed), letters=letters)


def receive(state: Shared, *, active: Collection[int], letters: Mapping[int, bytes]) -> Ready:
    """Open the shares of the neighbours that sent some.

    Args:
        state: Of the step before.
        active: All nodes that sent shares, as the server says.
        letters: By sender, what was sealed for this node.

    Raises:
        ProtocolError: Too few nodes are left, or not exactly the neighbours among them wrote, or a
            letter cannot be opened.
    """
    roster, name = state.roster, state.name
    nodes = frozenset(active)
    roster.check_enough(nodes, what="sent shares")
    if name not in nodes:
        raise ProtocolError("this node is not among those whose answers are asked for")
    neighbours = nodes & frozenset(roster.neighbours(name))
    if letters.keys() != neighbours:
        raise ProtocolError("the shares that came are not those of this node's neighbours")
    agreement = Agreement(state.seal_secret)
    shares = {}
    for sender, letter in letters.items():
        about = letter_about(roster, sender=sender, receiver=name)
        key = agreement.key(roster.cards[sender].seal_key, "seal", about)
        shares[sender] = unseal(key, letter, about=about)
    return Ready(before=state, active=nodes, shares=shares)


def mask(
    ready: Ready, *, question: bytes, values: Vector, key: NodeKey
) -> tuple[Masked, Vector, bytes]:
    """Put an answer, with its noise, under the node's masks.

    Formal guarantee:
        To who lacks this node's self mask, or the mask it shares with one honest neighbour in
        `active`, the vector is uniform whatever `values` is.

    Args:
        ready: With the neighbours' shares.
        question: Digest of the whole question, 32 bytes.
        values: (m,) uint64, the answer and its noise modulo 2^64.
        key: Of the node.

    Returns:
        What is kept; (m,) uint64, which may leave once it is; and with it the node's signature on
        what it has answered, without which its neighbours do not uncover its self mask.
    """
    state, roster = ready.before, ready.before.roster
    context = context_of(roster, ready.active, question, len(values))
    masked = values.copy()
    add_mask(masked, derive(state.self_seed, "self", context))
    agreement = Agreement(state.mask_secret)
    for name in sorted(ready.shares):
        pair = pair_context(context, state.name, name)
        shared = agreement.key(roster.cards[name].mask_key, "pair", pair)
        add_mask(masked, shared, subtract=state.name > name)
    kept = Masked(
        name=state.name,
        roster=roster,
        active=ready.active,
        context=context,
        shares=ready.shares,
    )
    return kept, masked, key.sign(answered_message(context))


def agree(
    state: Masked,
    *,
    survivors: Collection[int],
    answered: Mapping[int, bytes],
    key: NodeKey,
) -> tuple[Agreed, bytes]:
    """Sign the set of nodes whose answers are to be in the sum.

    Formal guarantee:
        Of no honest node this one gives away a share of the self mask's seed unless that node has
        answered the same question among the same nodes. A server that had one node answer among
        others than everybody else could leave out, on either side, all whose masks still hide it.

    Args:
        state: Of the step before.
        survivors: As the server says.
        answered: By neighbour in the set, its signature on what it has answered.
        key: Of the node.

    Raises:
        ProtocolError: They are too few, or not among those that were asked, or without this node;
            or a neighbour has answered something else, or among other nodes.
    """
    nodes = frozenset(survivors)
    if not nodes <= state.active:
        raise ProtocolError("a node is said to have answered that was not asked")
    if state.name not in nodes:
        raise ProtocolError("this node is not among those said to have answered")
    state.roster.check_enough(nodes, what="answered")
    if answered.keys() != state.shares.keys() & nodes:
        raise ProtocolError("the signed answers are not those of this node's neighbours")
    message = answered_message(state.context)
    for name, signed in answered.items():
        if not is_signed(message, signed, by=state.roster.cards[name].node_key):
            raise ProtocolError(
                f"node {name} has not signed that it answered this question among these nodes"
            )
    signature = key.sign(survivors_message(state.context, nodes))
    kept = Agreed(roster=state.roster, context=state.context, shares=state.shares, survivors=nodes)
    return kept, signature


def unmask(state: Agreed, *, signatures: Mapping[int, bytes]) -> Unmasking:
    """Give out shares: of self masks of those in the sum, of mask keys of those lost.

    Nothing of the round is to be kept after it.

    Args:
        state: Of the step before.
        signatures: By node, on the set that this node has signed.

    Raises:
        ProtocolError: One of them is none on that set, or they are too few.
    """
    roster, shares = state.roster, state.shares
    needed = roster.terms.signatures(len(roster.cards))
    if not signatures.keys() <= state.survivors or len(signatures) < needed:
        raise ProtocolError(
            f"{len(signatures)} nodes are said to have signed the survivors, {needed} of them are "
            "needed"
        )
    message = survivors_message(state.context, state.survivors)
    for name, signature in signatures.items():
        if not is_signed(message, signature, by=roster.cards[name].node_key):
            raise ProtocolError(
                f"node {name} has not signed the set of survivors that this node has signed"
            )
    inside = {name for name in shares if name in state.survivors}
    return Unmasking(
        seeds={name: shares[name][:KEY_BYTES] for name in sorted(inside)},
        mask_keys={name: shares[name][KEY_BYTES:] for name in sorted(shares.keys() - inside)},
    )


def letter_about(roster: Roster, *, sender: int, receiver: int) -> bytes:
    """What a sealed share belongs to."""
    return digest("letter", roster.digest, whole(sender, receiver))


def seed_commitment(roster: Roster, name: int, seed: bytes) -> bytes:
    """What a node says of its self mask's seed before it answers."""
    return digest("seed", roster.digest, whole(name), seed)
