"""What secure aggregation costs: CPU seconds of a node and of the server, and bytes.

    python -m benchmarks.secure_aggregation [--nodes 16 100 1000] [--numbers 2048 18000]

One node's five steps run whole, beside as many other nodes as there are, and so does the server's
work after the last answer. Its floor is the time of its key agreements and masks alone, each
measured by itself on this machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import Ratio, shown
from flower_privsyn.secure_aggregation import shamir
from flower_privsyn.secure_aggregation.keys import (
    KEY_BYTES,
    Agreement,
    NodeKey,
    derive,
    is_signed,
    new_agreement,
    seal,
)
from flower_privsyn.secure_aggregation.masks import add_mask
from flower_privsyn.secure_aggregation.node import (
    Sealed,
    advertise,
    agree,
    letter_about,
    mask,
    receive,
    seed_commitment,
    share,
    unmask,
)
from flower_privsyn.secure_aggregation.roster import (
    Roster,
    Session,
    answered_message,
    survivors_message,
)
from flower_privsyn.secure_aggregation.server import ServerRound
from flower_privsyn.secure_aggregation.terms import Terms

SESSION = Session(run=1, round_number=1)
QUESTION = bytes(32)
LOST = 0.1


@dataclass
class Federation:
    """All secrets of a round, so that what others send can be made without waiting for them."""

    roster: Roster
    states: dict[int, Any]
    keys: dict[int, NodeKey]

    @classmethod
    def of(cls, nodes: int) -> Federation:
        """A federation of so many nodes, a fifth of which may collude or be lost."""
        keys = {name: NodeKey.generate() for name in range(1, nodes + 1)}
        states = {name: advertise(SESSION, name, key)[0] for name, key in keys.items()}
        terms = Terms.of(nodes, least_nodes=nodes - nodes // 5, colluding=nodes // 5)
        roster = Roster(SESSION, terms, [state.card for state in states.values()])
        return cls(roster, states, keys)


def node(federation: Federation, numbers: int) -> tuple[float, int, int]:
    """CPU seconds of one node's five steps, and its bytes up and down."""
    roster, everybody = federation.roster, frozenset(federation.states)
    around = roster.neighbours(1)
    letters = {}
    for name in around:
        about = letter_about(roster, sender=name, receiver=1)
        shared = Agreement(federation.states[name].seal_secret).key(
            roster.cards[1].seal_key, "seal", about
        )
        letters[name] = seal(shared, bytes(2 * KEY_BYTES), about=about)
    values = np.zeros(numbers, dtype=np.uint64)
    is_signed.cache_clear()
    begun = time.process_time()
    advertise(SESSION, 1, federation.keys[1])
    allowed = {card.node_key for card in roster.cards.values()}
    state, sealed = share(federation.states[1], roster, allowed=allowed)
    ready = receive(state, active=everybody, letters=letters)
    key = federation.keys[1]
    masked_state, masked, _ = mask(ready, question=QUESTION, values=values, key=key)
    spent = time.process_time() - begun
    message = answered_message(masked_state.context)
    answered = {name: federation.keys[name].sign(message) for name in around}
    begun = time.process_time()
    agreed, signature = agree(masked_state, survivors=everybody, answered=answered, key=key)
    spent += time.process_time() - begun
    message = survivors_message(masked_state.context, everybody)
    needed = roster.terms.signatures(len(roster.cards))
    signatures = {name: federation.keys[name].sign(message) for name in sorted(everybody)[:needed]}
    begun = time.process_time()
    given = unmask(agreed, signatures=signatures)
    spent += time.process_time() - begun
    up = 168 + sum(map(len, sealed.letters.values())) + masked.nbytes + 2 * len(signature)
    up += sum(map(len, given.seeds.values()))
    down = 168 * len(everybody) + sum(map(len, letters.values())) + 72 * len(signatures)
    down += 72 * len(answered)
    return spent, up, down


def server(federation: Federation, numbers: int) -> tuple[float, float]:
    """CPU seconds after the last answer with a tenth of the nodes lost, and their floor."""
    roster = federation.roster
    names = list(federation.states)
    lost = frozenset(names[:: round(1 / LOST)])
    left = frozenset(names) - lost
    pairs = sum(len(left & frozenset(roster.neighbours(name))) for name in lost)
    one_mask, one_agreement = _mask_seconds(numbers), _agreement_seconds()
    floor = (len(left) + pairs) * one_mask + pairs * one_agreement
    made = ServerRound(roster, numbers, QUESTION)
    made._active, made._survivors = left | lost, left
    point, threshold = roster.point, roster.graph.threshold
    for name in left | lost:
        points = [point(other) for other in roster.neighbours(name)]
        seed, secret = bytes([7]) * KEY_BYTES, federation.states[name].mask_secret
        commitment = seed_commitment(roster, name, seed)
        made._sealed[name] = Sealed(commitment=commitment, letters={})
        kind, dealt = (made._seeds, seed) if name in left else (made._keys, secret)
        kind[name] = shamir.split(dealt, points=points, threshold=threshold)
    begun = time.process_time()
    made.total()
    spent = time.process_time() - begun
    return spent, floor


def _mask_seconds(numbers: int) -> float:
    vector, repeats = np.zeros(numbers, dtype=np.uint64), max(3, 2_000_000 // numbers)
    begun = time.process_time()
    for number in range(repeats):
        add_mask(vector, number.to_bytes(32, "little"))
    return (time.process_time() - begun) / repeats


def _agreement_seconds() -> float:
    mine, theirs = Agreement(new_agreement()[0]), new_agreement()[1]
    begun = time.process_time()
    for _ in range(500):
        mine.key(theirs, "pair", bytes(32))
    return (time.process_time() - begun) / 500


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 100, 1000])
    parser.add_argument("--numbers", type=int, nargs="+", default=[2048, 18_000])
    options = parser.parse_args(given)
    derive(bytes(32), "warm", b"")
    shamir.split(bytes(32), points=(1, 2), threshold=2)
    print("| nodes | degree | numbers | node CPU | up | down | server, 10 % lost |")
    print("|---|---|---|---|---|---|---|")
    found = []
    for nodes in options.nodes:
        federation = Federation.of(nodes)
        for numbers in options.numbers:
            seconds, up, down = node(federation, numbers)
            spent, floor = server(federation, numbers)
            print(
                f"| {nodes:,} | {federation.roster.graph.degree} | {numbers:,} | {seconds:.3g} s "
                f"| {up / 1e6:.3g} MB | {down / 1e6:.3g} MB | {spent:.3g} s |",
                flush=True,
            )
            part = f"unmasking, {nodes:,} nodes, {numbers:,} numbers"
            other = "keys and masks alone"
            found.append(Ratio(part=part, other=other, kind="floor", ours=[spent], theirs=[floor]))
    return shown(found)


if __name__ == "__main__":
    main()
