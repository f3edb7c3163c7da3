"""A round of secure aggregation at one node and at the server, a tenth of the nodes lost.

The node's five steps run whole, and so does all of the server's work after the last answer, with
real keys, letters, signatures and shares of everybody. The floors are its signatures that are
checked, its key agreements and its masks, as many as there are and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks import Other, Ratio, Work, compared
from flower_privsyn.secure_aggregation import keys, masks, node, roster, shamir
from flower_privsyn.secure_aggregation.server import ServerRound
from flower_privsyn.secure_aggregation.terms import Terms

SESSION, QUESTION = roster.Session(run=1, round_number=1), bytes(32)


class Federation:
    """All secrets of a round, a fifth of whose nodes may collude; every tenth node is lost."""

    def __init__(self, nodes: int, numbers: int) -> None:
        self.numbers = numbers
        self.keys = {name: keys.NodeKey.generate() for name in range(1, nodes + 1)}
        self.states = {name: node.advertise(SESSION, name, k)[0] for name, k in self.keys.items()}
        terms = Terms.of(nodes, least_nodes=nodes - nodes // 5, colluding=nodes // 5)
        cards = [state.card for state in self.states.values()]
        self.roster = roster.Roster(SESSION, terms, cards)
        self.everybody = frozenset(self.keys)
        self.left = self.everybody - set(range(2, nodes + 1, 10))

    def node(self) -> Work:
        """The five steps of the first node, which is not lost."""
        known, key, letters = self.roster, self.keys[1], {}
        around = known.neighbours(1)
        for name in around:
            about = node.letter_about(known, sender=name, receiver=1)
            agreement = keys.Agreement(self.states[name].seal_secret)
            shared = agreement.key(known.cards[1].seal_key, "seal", about)
            letters[name] = keys.seal(shared, bytes(2 * keys.KEY_BYTES), about=about)
        context = roster.context_of(known, self.everybody, QUESTION, self.numbers)
        message = roster.answered_message(context)
        answered = {name: self.keys[name].sign(message) for name in self.left.intersection(around)}
        message = roster.survivors_message(context, self.left)
        signers = sorted(self.left)[: known.terms.signatures(len(self.keys))]
        signatures = {name: self.keys[name].sign(message) for name in signers}
        allowed = {card.node_key for card in known.cards.values()}
        values = np.zeros(self.numbers, dtype=np.uint64)

        def work() -> None:
            keys.is_signed.cache_clear()
            node.advertise(SESSION, 1, key)
            shared, _ = node.share(self.states[1], known, allowed=allowed)
            ready = node.receive(shared, active=self.everybody, letters=letters)
            masked, _, _ = node.mask(ready, question=QUESTION, values=values, key=key)
            agreed, _ = node.agree(masked, survivors=self.left, answered=answered, key=key)
            node.unmask(agreed, signatures=signatures)

        return work

    def server(self) -> Work:
        """The sum without its masks, of shares from everybody."""
        made, seed = ServerRound(self.roster, self.numbers, QUESTION), bytes(keys.KEY_BYTES)
        made._active, made._survivors = self.everybody, self.left
        for name, state in self.states.items():
            points = [self.roster.point(other) for other in self.roster.neighbours(name)]
            commitment = node.seed_commitment(self.roster, name, seed)
            made._sealed[name] = node.Sealed(commitment=commitment, letters={})
            inside = name in self.left
            kind, secret = (made._seeds, seed) if inside else (made._keys, state.mask_secret)
            threshold = self.roster.graph.threshold
            kind[name] = shamir.split(secret, points=points, threshold=threshold)

        def work() -> None:
            shamir._at_zero.cache_clear()
            made.total()

        return work

    def alone(self, signatures: int, agreements: int, covers: int) -> Work:
        """So many signatures checked, keys agreed on and masks added, and nothing else."""
        mine, theirs = keys.Agreement(keys.new_agreement()[0]), keys.new_agreement()[1]
        signed, public = self.keys[1].sign(QUESTION), self.keys[1].public
        vector, number = np.zeros(self.numbers, dtype=np.uint64), bytes(keys.KEY_BYTES)

        def work() -> None:
            for _ in range(signatures):
                keys.is_signed.__wrapped__(QUESTION, signed, by=public)
            for _ in range(agreements):
                mine.key(theirs, "pair", number)
            for _ in range(covers):
                masks.add_mask(vector, number)

        return work


def measure(*, nodes: Sequence[int] = (16, 100, 1000), numbers: int = 18_000) -> list[Ratio]:
    """Of federations of so many nodes."""
    found = []
    for count in nodes:
        one = Federation(count, numbers)
        near, lost = len(one.roster.neighbours(1)), one.everybody - one.left
        checked = count + near + one.roster.terms.signatures(count)
        pairs = sum(len(one.left.intersection(one.roster.neighbours(name))) for name in lost)
        for place, work, alone in (
            ("a node", one.node(), one.alone(checked, 3 * near, near + 1)),
            ("the server", one.server(), one.alone(0, pairs, len(one.left) + pairs)),
        ):
            part = f"secure sum at {place}, {count:,} nodes, {numbers:,} numbers"
            found += compared(part, work, Other("signatures, keys, masks (floor)", alone, 1.5))
    return found
