"""What travels in a round of secure aggregation: five messages, and nothing in them but bytes.

query.sa_keys     Asked                                        Shown: a node's keys, signed
query.sa_shares   Invited: everybody's keys, the terms         Sealed: shares for each neighbour
query.sa_input    the question, Mail: the neighbours' shares   Signed, and a masked vector
query.sa_agree    Answered: who, neighbours' signatures        Signed: the survivors
query.sa_unmask   Signatures: of the survivors                 Unmasking: shares of seeds, keys
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from flower_privsyn.checks import raised_as
from flower_privsyn.errors import ProtocolError
from flower_privsyn.messages import wire
from flower_privsyn.secure_aggregation import codec
from flower_privsyn.secure_aggregation.keys import SEAL_BYTES, Signature, digest
from flower_privsyn.secure_aggregation.node import Letters, Sealed, Unmasking
from flower_privsyn.secure_aggregation.roster import KeyCard
from flower_privsyn.secure_aggregation.terms import Terms, graph_of

KEYS: Final = "query.sa_keys"
SHARES: Final = "query.sa_shares"
INPUT: Final = "query.sa_input"
AGREE: Final = "query.sa_agree"
UNMASK: Final = "query.sa_unmask"
#: In the order of a round.
STEPS: Final = (KEYS, SHARES, INPUT, AGREE, UNMASK)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What every request says beside what it is about.

    Attributes:
        round: 1-based.
    """

    round: int


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A node's keys.

    Attributes:
        run: that it signed them for.
        card: the keys.
    """

    run: int
    card: KeyCard


@dataclass(frozen=True, kw_only=True)
class Invited(Asked):
    """Everybody's keys, shown to each.

    Attributes:
        terms: of the round.
        cards: one per node.
    """

    terms: Terms
    cards: tuple[KeyCard, ...]


@dataclass(frozen=True, kw_only=True)
class Mail:
    """What a question brings along for the protocol.

    Attributes:
        active: the nodes that sent shares.
        letters: by sender, what is sealed for this node.
    """

    active: frozenset[int]
    letters: Letters


@dataclass(frozen=True, kw_only=True)
class Signed:
    """A node's signature: with its masked vector on what it answered, then on the survivors.

    Attributes:
        signature: by the node's own key.
    """

    signature: Signature


@dataclass(frozen=True, kw_only=True)
class Answered(Asked):
    """Who answered.

    Attributes:
        survivors: all of them.
        answered: by neighbour among them, what it signed with its answer.
    """

    survivors: frozenset[int]
    answered: Mapping[int, Signature]


@dataclass(frozen=True, kw_only=True)
class Signatures(Asked):
    """Who signed the survivors.

    Attributes:
        signatures: by node.
    """

    signatures: Mapping[int, Signature]


def pack(value: Any) -> RecordDict:
    """A message of the protocol: one of the classes above, `Sealed` or `Unmasking`."""
    return RecordDict({wire.SECURE: ConfigRecord(wire.without_empty(codec.pack(value)))})


def unpack(kind: type[T], message: Message) -> T:
    """Read a message of the protocol, whatever else it holds.

    Raises:
        WireError: it has another form than agreed.
    """
    record = message.content.config_records.get(wire.SECURE)
    if record is None:
        raise wire.WireError(f"the message lacks {wire.SECURE}")
    with raised_as(wire.WireError, ProtocolError):
        return codec.unpack(kind, record)


def unpack_reply(kind: type[T], message: Message, *, beside: str | None = None) -> T:
    """Read a node's reply at the server, which holds nothing else.

    Args:
        kind: of the message.
        message: the reply, without error.
        beside: name of the record of numbers that comes with it; None for none.

    Raises:
        WireError: it has another form than agreed.
    """
    if set(message.content) != {wire.SECURE} | ({beside} if beside else set()):
        raise wire.WireError("unexpected records")
    keys = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    if not set(message.content[wire.SECURE]) <= keys:
        raise wire.WireError(f"{wire.SECURE} holds other keys than agreed")
    return unpack(kind, message)


def with_mail(content: RecordDict, mail: Mail) -> RecordDict:
    """A question with a node's mail.

    Args:
        content: of `pack_ask`, the same for all nodes.
        mail: of this node.
    """
    return RecordDict({**content, **pack(mail)})


def question_digest(content: Mapping[str, Any]) -> bytes:
    """SHA-256 of all that a question asks, which is the same for every node; mail is no part of it.

    Args:
        content: the records of a message.
    """
    parts: list[bytes] = []
    for name in sorted(content):
        record = content[name]
        if name == wire.SECURE:
            continue
        if isinstance(record, ArrayRecord):
            arrays = ((key.encode(), wire.content_digest(array)) for key, array in record.items())
            held = digest("arrays", *(part for array in arrays for part in array))
        else:
            held = digest("values", repr(sorted((key, record[key]) for key in record)).encode())
        parts += [name.encode(), held]
    return digest("question", *parts)


def pack_masked(masked: npt.NDArray[np.uint64], signature: bytes) -> RecordDict:
    """A masked vector, 8 bytes a number, and the node's signature on what it has answered."""
    arrays = ArrayRecord()
    arrays["masked"] = Array(masked.astype("<u8", copy=False))
    return RecordDict({wire.MASKED: arrays, **pack(Signed(signature=signature))})


def unpack_masked(message: Message) -> tuple[npt.NDArray[np.uint64], bytes]:
    """Read a masked vector, of whatever type and shape, and the signature with it.

    Raises:
        WireError: it has another form than agreed.
    """
    signature = unpack_reply(Signed, message, beside=wire.MASKED).signature
    return wire.array_of(message, wire.MASKED, "masked"), signature


def traffic(ask: wire.Ask, broadcast: ArrayRecord, terms: Terms, *, nodes: int) -> wire.Traffic:
    """Count a round's five exchanges with one node, none of them lost.

    Args:
        ask: the question.
        broadcast: `ask.broadcast` packed.
        terms: of the round.
        nodes: on the roster.
    """
    degree, needed = graph_of(nodes, terms).degree, terms.signatures(nodes)
    length, number = ask.query.answer_length(ask.broadcast), ask.release.round
    key, signature = bytes(32), bytes(64)
    card = KeyCard(name=0, node_key=key, seal_key=key, mask_key=key, signature=signature)
    letters = dict.fromkeys(range(degree), bytes(64 + SEAL_BYTES))
    signed = dict.fromkeys(range(degree), signature)
    everybody = frozenset(range(nodes))
    down = [
        pack(Asked(round=number)),
        pack(Invited(round=number, terms=terms, cards=(card,) * nodes)),
        with_mail(wire.pack_ask(ask, broadcast), Mail(active=everybody, letters=letters)),
        pack(Answered(round=number, survivors=everybody, answered=signed)),
        pack(Signatures(round=number, signatures=dict.fromkeys(range(needed), signature))),
    ]
    up = [
        pack(Shown(run=0, card=card)),
        pack(Sealed(commitment=key, letters=letters)),
        pack_masked(np.zeros(length, dtype=np.uint64), signature),
        pack(Signed(signature=signature)),
        pack(Unmasking(seeds=dict.fromkeys(range(degree), key), mask_keys={})),
    ]
    return wire.Traffic.of(ask, down=down, up=up)
