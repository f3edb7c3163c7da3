"""The protocol of aggregation: it exchanges messages, checks its own answers, returns the sum."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Message, RecordDict

from flower_privsyn.errors import ProtocolError
from flower_privsyn.messages import secure as secure_wire
from flower_privsyn.messages import wire
from flower_privsyn.messages.window import WindowedGrid
from flower_privsyn.privacy import ReleaseSpec
from flower_privsyn.queries import Query
from flower_privsyn.run.method import ReleasedSum, need
from flower_privsyn.secure_aggregation.node import Sealed, Unmasking
from flower_privsyn.secure_aggregation.roster import KeyCard, Roster, Session
from flower_privsyn.secure_aggregation.server import ServerRound

logger = logging.getLogger("flwr.privsyn")

#: Counts of replies beside those of the nodes that were asked: nobody is missing for them.
BESIDE = frozenset({"rejected: not asked", "rejected: second reply", "rejected: late reply"})


@dataclass(frozen=True, kw_only=True)
class AskedRound:
    """A round that was begun, until its release.

    Attributes:
        spec: what is released, its round counted over the whole run.
        query: the question.
        length: how many numbers it answers.
        recipients: the question as each of the nodes gets it that are asked.
        always_asked: nodes that are asked whoever is drawn.
        begun: when, for the owner.
        traffic: what one exchange carries.
    """

    spec: ReleaseSpec
    query: Query
    length: int
    recipients: Mapping[int, wire.Ask]
    always_asked: frozenset[int]
    begun: float
    traffic: wire.Traffic

    def outcome(self, released: ReleasedSum | None, counts: Counter[str]) -> dict[str, Any]:
        """What `metrics.jsonl` says of how the round ended: nothing that the release does not say.

        Args:
            released: its release; None where none was made.
            counts: replies that were used, and why others were not.
        """
        metrics: dict[str, Any] = {"round": self.spec.round, "released": released is not None}
        if self.spec.sampling.hides_cohort:
            # Who was asked, answered or failed to is part of what the amplification by sampling
            # assumes unseen, and who is late was asked in an earlier round.
            return metrics
        metrics["num_nodes"] = len(self.recipients)
        metrics["num_users"] = 0 if released is None else released.num_users
        return metrics | {key: counts[key] for key in sorted(counts)}

    def why_lost(self, reason: str) -> str:
        """Why there is no sum, as the run directory may hold it.

        Args:
            reason: in full; where who was drawn is secret the server's owner alone is told of it.
        """
        if not self.spec.sampling.hides_cohort:
            return reason
        logger.warning("round %d: %s", self.spec.round, reason)
        return "too few nodes answered for a sum"

    def told(self, counts: Counter[str]) -> str:
        """Why nodes are not in the sum, as ": 2 x the client app failed"; "" where all are.

        Args:
            counts: replies that were used, and why others were not.
        """
        found = [
            f"{count} x {reason.replace('missing', 'no reply')}"
            for reason, count in sorted(counts.items())
            if count and reason != "answers" and reason not in BESIDE
        ]
        return f": {', '.join(found)}" if found else ""


@dataclass(frozen=True, kw_only=True, repr=False)
class Collected:
    """The raw sum of a round.

    Attributes:
        total: (m,) int64, in steps of the grid.
        counts: replies that were used, and why others were not.
        num_users: users whose answers are in it, or may be where nobody counts them.
        answering: nodes whose answers are in it.
        noise_std: standard deviation of the noise that nodes have added to it; 0 for none.
        facts: for the ledger's line of the sum: public, whose noise is in it; None for nothing.
        lost: why there is no sum, in words that the run directory may hold; "" where there is one.
        charged: whether nodes have charged their answers, so that a round that is left out costs
            what a sum does.
    """

    total: npt.NDArray[np.int64]
    counts: Counter[str]
    num_users: int = 0
    answering: frozenset[int] = frozenset()
    noise_std: float = 0.0
    facts: Mapping[str, Any] | None = None
    lost: str = ""
    charged: bool = False


def first_replies(
    replies: Iterable[Message], *, asked: Collection[int], counts: Counter[str]
) -> Iterator[Message]:
    """The first reply of every node that was asked, where it is no error.

    Args:
        replies: each looked at once.
        asked: nodes.
        counts: gets why others are left out, and how many are missing.
    """
    unreachable = 0
    seen: set[int] = set()
    for reply in replies:
        node = reply.metadata.src_node_id
        if node in seen:
            counts["rejected: second reply"] += 1
            continue
        if node in asked:
            seen.add(node)
        if reply.has_error():
            # Of none that was asked: Flower's own word about a node that is gone, or its reply.
            unreachable += node not in asked
            counts[wire.words_of(reply.error.code)] += 1
        elif node in asked:
            yield reply
        else:
            counts["rejected: not asked"] += 1
    counts["missing"] = max(0, len(asked) - len(seen) - unreachable)


def answered_by(counts: Mapping[str, int]) -> int:
    """How many of the nodes that were asked have answered, in whatever form.

    Args:
        counts: replies that were used, and why others were not.
    """
    return counts.get("answers", 0) + sum(
        count for key, count in counts.items() if key.startswith("rejected: ") and key not in BESIDE
    )


@final
class Central:
    """Every node sends its raw sum to the server, which adds them up and then the noise.

    Formal guarantee:
        One reply a node is in the sum at most, and only where it has the agreed form: an answer has
        the length of the question, lies on the grid and within the bound of its head-count, and has
        no more users than the node announced. So a user moves `Collected.total` by at most the clip
        norm on each node, and a node by what its users may. The server sees the raw sum of each
        node, and is trusted with it.
    """

    def messages(self, asks: Mapping[int, wire.Ask], broadcast: ArrayRecord) -> Iterator[Message]:
        """One message a node: the question, built when there is room for it.

        Args:
            asks: the question as each node gets it.
            broadcast: of the question, packed.
        """
        for node, ask in asks.items():
            yield Message(
                wire.pack_ask(ask, broadcast),
                dst_node_id=node,
                message_type=wire.message_type(ask.query),
            )

    def collect(self, replies: Iterable[Message], *, asked: AskedRound) -> Collected:
        """Add up the first usable reply of every node that was asked.

        Args:
            replies: to what `messages` sent, each looked at once and forgotten.
            asked: the round, with what honest ones look like.
        """
        counts: Counter[str] = Counter()
        total = np.zeros(asked.length, dtype=np.int64)
        num_users = 0
        answering: set[int] = set()
        for reply in first_replies(replies, asked=asked.recipients.keys(), counts=counts):
            node = reply.metadata.src_node_id
            ask = asked.recipients[node]
            try:
                answer = wire.unpack_answer(
                    reply,
                    query=asked.query,
                    length=asked.length,
                    roster_users=ask.roster_users,
                    most_users=ask.roster_users if ask.sample_count < 0 else ask.sample_count,
                )
            except wire.WireError as error:
                counts[f"rejected: {error}"] += 1
                continue
            counts["answers"] += 1
            answering.add(node)
            num_users += answer.num_users
            total += answer.total
        return Collected(
            total=total, num_users=num_users, answering=frozenset(answering), counts=counts
        )


@final
class Secure:
    """Nodes mask their answers and add the noise: the server sees one noised sum or none.

    Every node is asked in every round, whoever is drawn. What a node's answer holds, its head-count
    and whether it is within the clip norm, nobody but the node sees: the server believes it.

    Formal guarantee:
        One reply a node is in the sum at most. The sum is exact, and over at least
        `Terms.least_nodes` nodes. Its noise is theirs, each rounded to the grid, of variance
        sigma^2 / (t - c): together at least sigma from the honest ones. Towards the server that of
        `flower_privsyn.secure_aggregation.node`.

    Args:
        grid: for the four exchanges beside that of the question.
        timeout: seconds for each of them.
    """

    def __init__(self, grid: WindowedGrid, *, timeout: float) -> None:
        self._grid = grid
        self._timeout = timeout
        self._begun: tuple[wire.Ask, ServerRound] | None = None
        self._lost = ""
        self._counts: Counter[str] = Counter()

    def messages(self, asks: Mapping[int, wire.Ask], broadcast: ArrayRecord) -> Iterator[Message]:
        """Exchange keys and shares, then one message a node: the question with its mail.

        Args:
            asks: as of `Central.messages`, the same question for every node.
            broadcast: of the question, packed.
        """
        self._begun, self._lost, self._counts = None, "", Counter()
        # The same to the bit for everybody: every mask hangs on it, and the coins are the nodes'.
        # Nobody counts who is in the sum, so no node is told how many it had announced.
        one = next(iter(asks.values()))
        ask = replace(one, sampling_key=bytes(32), sample_count=-1, roster_users=-1)
        content = wire.pack_ask(ask, broadcast)
        try:
            protocol = self._set_up(ask, content, sorted(asks))
            active = protocol.active
        except ProtocolError as error:
            self._lost = f"nothing was asked: {error}"
            return iter(())
        self._begun = ask, protocol
        return (
            Message(
                secure_wire.with_mail(
                    content,
                    secure_wire.Mail(active=active, letters=protocol.letters_for(node)),
                ),
                dst_node_id=node,
                message_type=secure_wire.INPUT,
            )
            for node in sorted(active)
        )

    def collect(self, replies: Iterable[Message], *, asked: AskedRound) -> Collected:
        """Add up masked answers, have the nodes agree on whose they are, and take the masks off."""
        if self._begun is None:
            return self._without_sum(asked, self._counts, charged=False)
        (ask, protocol), counts = self._begun, Counter[str]()
        self._take(
            first_replies(replies, asked=protocol.active, counts=counts),
            lambda node, reply: protocol.add_answer(node, *secure_wire.unpack_masked(reply)),
            counts,
        )
        self._begun = None  # whatever follows, this round's answers are used once
        number = ask.release.round
        try:
            survivors = protocol.survivors
            self._exchange(
                secure_wire.AGREE,
                {
                    node: secure_wire.pack(
                        secure_wire.Answered(
                            round=number,
                            survivors=survivors,
                            answered=protocol.answered_around(node),
                        )
                    )
                    for node in survivors
                },
                lambda node, reply: protocol.add_signature(
                    node, secure_wire.unpack_reply(secure_wire.Signed, reply).signature
                ),
            )
            signatures = secure_wire.pack(
                secure_wire.Signatures(round=number, signatures=protocol.signatures)
            )
            self._exchange(
                secure_wire.UNMASK,
                dict.fromkeys(sorted(protocol.signers), signatures),
                lambda node, reply: protocol.add_unmasking(
                    node, secure_wire.unpack_reply(Unmasking, reply)
                ),
            )
            total = protocol.total()
        except ProtocolError as error:
            self._lost = str(error)
            return self._without_sum(asked, counts | self._counts, charged=True)
        counts["answers"] = len(survivors)
        # How many answered depends on the draw: a node whose users are drawn has more to compute.
        secret = ask.release.sampling.hides_cohort
        nodes = len(asked.recipients if secret else survivors)
        return Collected(
            total=total.view(np.int64),
            num_users=0
            if secret
            else sum(asked.recipients[node].roster_users for node in survivors),
            answering=survivors,
            counts=counts | self._counts,
            # Of so many nodes, each of which adds its share.
            noise_std=ask.release.mechanism.standard_deviation
            * protocol.roster.terms.noise_share
            * math.sqrt(nodes),
            facts={
                "noise": "nodes",
                **({} if secret else {"nodes": nodes}),
                "least_nodes": protocol.roster.terms.least_nodes,
                "colluding_nodes": protocol.roster.terms.colluding,
            },
            charged=True,
        )

    def _set_up(self, ask: wire.Ask, content: RecordDict, nodes: list[int]) -> ServerRound:
        """Everybody's keys, and the shares of those whose keys everybody has seen."""
        number, terms = ask.release.round, need(ask.secure)
        shown: dict[int, tuple[int, KeyCard]] = {}
        held: set[bytes] = set()

        def take_card(node: int, reply: Message) -> None:
            found = secure_wire.unpack_reply(secure_wire.Shown, reply)
            run, card = found.run, found.card
            if card.name != node:
                raise wire.WireError("keys of another node")
            # First: whoever copies a public key, and cannot sign by it, does not hold it.
            card.check(Session(run=run, round_number=number))
            # A node that shows such keys would end the round for all: it counts as lost.
            card.check_keys(held)
            held.update((card.node_key, card.seal_key, card.mask_key))
            shown[node] = run, card

        request = secure_wire.pack(secure_wire.Asked(round=number))
        self._exchange(secure_wire.KEYS, dict.fromkeys(nodes, request), take_card)
        if len(shown) < terms.least_nodes:
            raise ProtocolError(f"{len(shown)} nodes showed keys, {terms.least_nodes} are needed")
        # Of those that know the run by one number, as most of them do.
        run = Counter(run for run, _ in shown.values()).most_common(1)[0][0]
        cards = [card for own, card in shown.values() if own == run]
        roster = Roster(Session(run=run, round_number=number), terms, cards)
        protocol = ServerRound(
            roster,
            ask.query.answer_length(ask.broadcast),
            secure_wire.question_digest(content),
        )
        show = secure_wire.pack(
            secure_wire.Invited(round=number, terms=terms, cards=tuple(roster.cards.values()))
        )
        self._exchange(
            secure_wire.SHARES,
            dict.fromkeys(roster.cards, show),
            lambda node, reply: protocol.add_shares(node, secure_wire.unpack_reply(Sealed, reply)),
        )
        return protocol

    def _exchange(
        self,
        step: str,
        contents: Mapping[int, RecordDict],
        take: Callable[[int, Message], None],
    ) -> None:
        """Send one message to each of some nodes, and take their replies."""
        counts: Counter[str] = Counter()
        messages = (
            Message(content, dst_node_id=node, message_type=step)
            for node, content in contents.items()
        )
        replies = self._grid.send_and_receive(messages, timeout=self._timeout)
        self._take(first_replies(replies, asked=contents.keys(), counts=counts), take, counts)
        name = step.removeprefix("query.")
        self._counts.update({f"{name}: {key}": count for key, count in counts.items() if count})

    def _take(
        self,
        replies: Iterable[Message],
        take: Callable[[int, Message], None],
        counts: Counter[str],
    ) -> None:
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                take(node, reply)
            except (wire.WireError, ProtocolError) as error:
                # A sentence about a node may name it: the run directory gets the kind alone.
                logger.warning("a reply of node %d is left out: %s", node, error)
                told = str(error) if isinstance(error, wire.WireError) else "breaks the protocol"
                counts[f"rejected: {told}"] += 1

    def _without_sum(self, asked: AskedRound, counts: Counter[str], *, charged: bool) -> Collected:
        return Collected(
            total=np.zeros(asked.length, dtype=np.int64),
            counts=counts,
            lost=self._lost,
            charged=charged,
        )
