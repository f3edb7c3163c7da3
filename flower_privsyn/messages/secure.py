"""What travels in a round of secure aggregation: five messages, and nothing in them but bytes.

query.sa_keys     the round                               a node's keys, signed
query.sa_shares   everybody's keys, the terms             shares for each neighbour, sealed
query.sa_input    the question, the neighbours' shares    a masked vector, signed for
query.sa_agree    who answered, neighbours' signatures    a signature on it
query.sa_unmask   signatures                              shares of seeds and of lost keys
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from flower_privsyn.errors import ConfigError, ProtocolError
from flower_privsyn.messages.arrays import content_digest, numbers_of
from flower_privsyn.messages.data_request import without_empty
from flower_privsyn.messages.packed import packed_bytes
from flower_privsyn.messages.wire import MASKED as _MASKED
from flower_privsyn.messages.wire import SECURE as _SECURE
from flower_privsyn.messages.wire import Ask, Traffic, WireError, pack_ask
from flower_privsyn.secure_aggregation import KeyCard, Sealed, Terms, Unmasking, graph_of
from flower_privsyn.secure_aggregation.keys import SEAL_BYTES, digest

KEYS: Final = "query.sa_keys"
SHARES: Final = "query.sa_shares"
INPUT: Final = "query.sa_input"
AGREE: Final = "query.sa_agree"
UNMASK: Final = "query.sa_unmask"

#: By step, the keys of what a node sends, a masked vector beside it apart.
REPLY_KEYS: Final[Mapping[str, frozenset[str]]] = {
    KEYS: frozenset({"run", "card"}),
    SHARES: frozenset({"commitment", "receivers", "letters"}),
    INPUT: frozenset({"signature"}),
    AGREE: frozenset({"signature"}),
    UNMASK: frozenset({"in-sum", "seeds", "lost", "mask-keys"}),
}

#: Of them, what is left out where it names nobody: mask keys, unless a node was lost.
_MAY_BE_MISSING: Final = frozenset({"receivers", "letters", "in-sum", "seeds", "lost", "mask-keys"})


# ---- sa_keys


def pack_keys_request(round_number: int) -> RecordDict:
    """Ask a node for the keys of a round."""
    return RecordDict({_SECURE: ConfigRecord({"round": round_number})})


def round_of(message: Message) -> int:
    """The round of a request.

    Raises:
        WireError: it names none.
    """
    number = _record(message).get("round")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**32:
        raise WireError("the request names no round")
    return number


def pack_card(run: int, card: KeyCard) -> RecordDict:
    """A node's keys, and the run that it signed them for."""
    values = {"run": run.to_bytes(8, "little"), "card": card.to_bytes()}
    return RecordDict({_SECURE: ConfigRecord(values)})  # type: ignore[arg-type]


def unpack_card(message: Message) -> tuple[int, KeyCard]:
    """Read a node's keys.

    Raises:
        WireError: they have another form than agreed.
    """
    record = _reply(message, KEYS)
    try:
        card = KeyCard.from_bytes(_bytes(record, "card"))
    except ProtocolError:
        raise WireError("no keys") from None
    if card.name != message.metadata.src_node_id:
        raise WireError("keys of another node")
    return int.from_bytes(_bytes(record, "run", length=8), "little"), card


# ---- sa_shares


def pack_roster(round_number: int, terms: Terms, cards: Iterable[KeyCard]) -> RecordDict:
    """Show a node everybody's keys."""
    values = {
        "round": round_number,
        "terms": [terms.least_nodes, terms.colluding],
        "cards": [card.to_bytes() for card in cards],
    }
    return RecordDict({_SECURE: ConfigRecord(values)})  # type: ignore[arg-type]


def unpack_roster(message: Message) -> tuple[Terms, list[KeyCard]]:
    """Read everybody's keys on a node.

    Raises:
        WireError: they have another form than agreed.
    """
    record = _record(message)
    terms, cards = record.get("terms"), record.get("cards")
    if (
        not isinstance(terms, list)
        or len(terms) != 2
        or not isinstance(cards, list)
        or not all(isinstance(card, bytes) for card in cards)  # bytes(n) would be n zeros
    ):
        raise WireError("the request holds no roster")
    try:
        least, colluding = terms
        return Terms(least_nodes=least, colluding=colluding), [  # type: ignore[arg-type]
            KeyCard.from_bytes(card)  # type: ignore[arg-type]
            for card in cards
        ]
    except (ConfigError, ProtocolError, TypeError) as error:
        raise WireError(f"the request's roster cannot be: {error}") from None


def pack_sealed(sealed: Sealed) -> RecordDict:
    """A node's shares, sealed for each neighbour."""
    values = {
        "commitment": sealed.commitment,
        "receivers": _names(sealed.letters),
        "letters": list(sealed.letters.values()),
    }
    return RecordDict({_SECURE: ConfigRecord(without_empty(values))})


def unpack_sealed(message: Message) -> Sealed:
    """Read a node's sealed shares.

    Raises:
        WireError: they have another form than agreed.
    """
    record = _reply(message, SHARES)
    return Sealed(
        commitment=_bytes(record, "commitment", length=32),
        letters=_by_name(record, "receivers", "letters", length=64 + SEAL_BYTES),
    )


# ---- sa_input


@dataclass(frozen=True, kw_only=True)
class Mail:
    """What a question brings along for the protocol.

    Attributes:
        active: the nodes that sent shares.
        letters: by sender, what is sealed for this node.
    """

    active: frozenset[int]
    letters: Mapping[int, bytes]


def pack_input(content: RecordDict, mail: Mail) -> RecordDict:
    """A question with a node's mail.

    Args:
        content: of `pack_ask`, the same for all nodes.
        mail: of this node.
    """
    values = {
        "active": _names(sorted(mail.active)),
        "senders": _names(mail.letters),
        "letters": list(mail.letters.values()),
    }
    return RecordDict({**content, _SECURE: ConfigRecord(without_empty(values))})


def unpack_mail(message: Message) -> Mail:
    """Read a node's mail.

    Raises:
        WireError: it has another form than agreed.
    """
    record = _record(message)
    return Mail(
        active=frozenset(_numbers(record, "active")),
        letters=_by_name(record, "senders", "letters", length=64 + SEAL_BYTES),
    )


def question_digest(content: Mapping[str, Any]) -> bytes:
    """SHA-256 of all that a question asks, which is the same for every node; mail is no part of it.

    Args:
        content: the records of a message.
    """
    parts: list[bytes] = []
    for name in sorted(content):
        record = content[name]
        if name == _SECURE:
            continue
        if isinstance(record, ArrayRecord):
            arrays = ((key.encode(), content_digest(array)) for key, array in record.items())
            held = digest("arrays", *(part for array in arrays for part in array))
        else:
            held = digest("values", repr(sorted((key, record[key]) for key in record)).encode())
        parts += [name.encode(), held]
    return digest("question", *parts)


def pack_masked(masked: npt.NDArray[np.uint64], signature: bytes) -> RecordDict:
    """A masked vector, 8 bytes a number, and the node's signature on what it has answered."""
    arrays = ArrayRecord()
    arrays["masked"] = Array(masked.astype("<u8", copy=False))
    return RecordDict({_MASKED: arrays, _SECURE: ConfigRecord({"signature": signature})})


def unpack_masked(message: Message, *, length: int) -> tuple[npt.NDArray[np.uint64], bytes]:
    """Read a masked vector and the signature with it.

    Raises:
        WireError: it has another form than agreed.
    """
    signature = _bytes(_reply(message, INPUT, beside=_MASKED), "signature", length=64)
    arrays = message.content.array_records.get(_MASKED)
    if arrays is None or list(arrays) != ["masked"]:
        raise WireError("no answer")
    try:
        masked = numbers_of(arrays["masked"])
    except ValueError as error:
        raise WireError("unreadable answer") from error
    if masked.dtype != np.uint64:
        raise WireError("wrong type")
    if masked.shape != (length,):
        raise WireError("wrong shape")
    return masked, signature


# ---- sa_agree and sa_unmask


def pack_survivors(
    round_number: int, survivors: Iterable[int], answered: Mapping[int, bytes]
) -> RecordDict:
    """Tell a node who answered, with what its neighbours among them have signed."""
    values = {
        "round": round_number,
        "survivors": _names(sorted(survivors)),
        "neighbours": _names(answered),
        "signatures": list(answered.values()),
    }
    return RecordDict({_SECURE: ConfigRecord(without_empty(values))})


def unpack_survivors(message: Message) -> tuple[list[int], dict[int, bytes]]:
    """Read who answered, and what the neighbours among them have signed.

    Raises:
        WireError: it has another form than agreed.
    """
    record = _record(message)
    answered = _by_name(record, "neighbours", "signatures", length=64)
    return _numbers(record, "survivors"), answered


def pack_signature(signature: bytes) -> RecordDict:
    """A node's signature on the survivors."""
    return RecordDict({_SECURE: ConfigRecord({"signature": signature})})


def unpack_signature(message: Message) -> bytes:
    """Read a node's signature.

    Raises:
        WireError: it has another form than agreed.
    """
    return _bytes(_reply(message, AGREE), "signature", length=64)


def pack_signatures(round_number: int, signatures: Mapping[int, bytes]) -> RecordDict:
    """Show a node who signed the survivors."""
    values = {
        "round": round_number,
        "signers": _names(signatures),
        "signatures": list(signatures.values()),
    }
    return RecordDict({_SECURE: ConfigRecord(without_empty(values))})


def unpack_signatures(message: Message) -> dict[int, bytes]:
    """Read who signed the survivors.

    Raises:
        WireError: it has another form than agreed.
    """
    return _by_name(_record(message), "signers", "signatures", length=64)


def pack_unmasking(shares: Unmasking) -> RecordDict:
    """A node's shares: of seeds of those in the sum, of mask keys of those who are not."""
    values = {
        "in-sum": _names(shares.seeds),
        "seeds": list(shares.seeds.values()),
        "lost": _names(shares.mask_keys),
        "mask-keys": list(shares.mask_keys.values()),
    }
    return RecordDict({_SECURE: ConfigRecord(without_empty(values))})


def unpack_unmasking(message: Message) -> Unmasking:
    """Read a node's shares.

    Raises:
        WireError: they have another form than agreed.
    """
    record = _reply(message, UNMASK)
    return Unmasking(
        seeds=_by_name(record, "in-sum", "seeds", length=32),
        mask_keys=_by_name(record, "lost", "mask-keys", length=32),
    )


# ---- what it carries


def traffic(ask: Ask, broadcast: ArrayRecord, terms: Terms, *, nodes: int) -> Traffic:
    """Count a round's five exchanges with one node, none of them lost.

    Args:
        ask: the question.
        broadcast: `ask.broadcast` packed.
        terms: of the round.
        nodes: on the roster.
    """
    degree, needed = graph_of(nodes, terms).degree, terms.signatures(nodes)
    length = ask.query.answer_length(ask.broadcast)
    card = KeyCard(
        name=0, node_key=bytes(32), seal_key=bytes(32), mask_key=bytes(32), signature=bytes(64)
    )
    letters = dict.fromkeys(range(degree), bytes(64 + SEAL_BYTES))
    down = [
        pack_keys_request(ask.round_number),
        pack_roster(ask.round_number, terms, [card] * nodes),
        pack_input(pack_ask(ask, broadcast), Mail(active=frozenset(range(nodes)), letters=letters)),
        pack_survivors(ask.round_number, range(nodes), dict.fromkeys(range(degree), bytes(64))),
        pack_signatures(ask.round_number, dict.fromkeys(range(needed), bytes(64))),
    ]
    up = [
        pack_card(0, card),
        pack_sealed(Sealed(commitment=bytes(32), letters=letters)),
        pack_masked(np.zeros(length, dtype=np.uint64), bytes(64)),
        pack_signature(bytes(64)),
        pack_unmasking(Unmasking(seeds=dict.fromkeys(range(degree), bytes(32)), mask_keys={})),
    ]
    return Traffic(
        floats_down=sum(array.size for array in ask.broadcast.values() if array.dtype.kind == "f"),
        floats_up=length,
        bytes_down=sum(map(packed_bytes, down)),
        bytes_up=sum(map(packed_bytes, up)),
    )


def _record(message: Message) -> ConfigRecord:
    record = message.content.config_records.get(_SECURE)
    if record is None:
        raise WireError(f"the message lacks {_SECURE}")
    return record


def _reply(message: Message, step: str, *, beside: str | None = None) -> ConfigRecord:
    """The one record of a node's reply, beside one of numbers or none, with the agreed keys."""
    if set(message.content) != {_SECURE} | ({beside} if beside else set()):
        raise WireError("unexpected records")
    record = _record(message)
    if not REPLY_KEYS[step] - _MAY_BE_MISSING <= set(record) <= REPLY_KEYS[step]:
        raise WireError(f"{_SECURE} holds other keys than agreed")
    return record


def _bytes(record: ConfigRecord, key: str, *, length: int | None = None) -> bytes:
    value = record.get(key)
    if not isinstance(value, bytes) or (length is not None and len(value) != length):
        raise WireError(f"{key} has another form than agreed")
    return value


def _names(names: Iterable[int]) -> bytes:
    return b"".join(name.to_bytes(8, "little") for name in names)


def _numbers(record: ConfigRecord, key: str) -> list[int]:
    data = _bytes(record, key)
    if len(data) % 8:
        raise WireError(f"{key} has another form than agreed")
    names = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
    if len(set(names)) < len(names):
        raise WireError(f"{key} names a node twice")
    return names


def _by_name(record: ConfigRecord, names: str, values: str, *, length: int) -> dict[int, bytes]:
    found = _numbers(record, names) if names in record else []
    listed = record.get(values, [])
    if (
        not isinstance(listed, list)
        or len(listed) != len(found)
        or not all(isinstance(one, bytes) and len(one) == length for one in listed)
    ):
        raise WireError(f"{values} have another form than agreed")
    return dict(zip(found, listed, strict=True))  # type: ignore[arg-type]
