"""What travels between server and nodes: message types, record keys, packing and checking.

Nobody else spells a record key. A request holds public values only. A reply holds either the number
of users a node hosts (the public roster), or one summed vector and the number of users in it, or an
error code from a fixed list; `unpack_*` refuse anything more.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from flower_privsyn.messages.arrays import content_digest, numbers_of
from flower_privsyn.messages.data_request import DataRequest as DataRequest
from flower_privsyn.messages.data_request import WireError as WireError
from flower_privsyn.messages.data_request import (
    check_printable,
    data_request,
    request_record,
    without_empty,
)
from flower_privsyn.messages.packed import (
    bytes_per_number,
    most_steps,
    pack_steps,
    packed_bytes,
    unpack_steps,
)
from flower_privsyn.privacy import (
    MOST_PHASES,
    Correlation,
    FixedSizeSampling,
    GaussianMechanism,
    NeighboringRelation,
    Sampling,
    mechanism_from_dict,
)
from flower_privsyn.queries import Broadcast, Query
from flower_privsyn.secure_aggregation import Terms

PREPARE = "query.prepare"

_REQUEST = "privsyn.request"
_QUERY = "privsyn.query"
_BROADCAST = "privsyn.broadcast"
_ANSWER = "privsyn.answer"
_COHORT = "privsyn.cohort"
_ROSTER = "privsyn.roster"

#: Records of secure aggregation (`flower_privsyn.messages.secure`), and all that nodes put there.
SECURE = "privsyn.secure"
MASKED = "privsyn.masked"
_SECURE_KEYS = {
    "run", "card", "commitment", "receivers", "letters", "signature", "in-sum", "seeds", "lost",
    "mask-keys",
}  # fmt: skip


#: Of the random key of a round's coins.
SAMPLING_KEY_BYTES: Final = 32

#: Bytes of broadcasts kept in a process: of the round, and of the one before while its last nodes
#: answer. Whole models are larger, and are read anew for every node.
_KEPT_BROADCAST_BYTES = 128 * 2**20
_broadcasts: OrderedDict[tuple[tuple[str, bytes], ...], dict[str, npt.NDArray[Any]]] = OrderedDict()
_broadcasts_lock = threading.Lock()


class ClientErrorCode(IntEnum):
    """Everything a failing client may say. The numbers are stable and carry no data."""

    INTERNAL = 1000
    BAD_REQUEST = 1001
    DATA_UNAVAILABLE = 1002
    EMBEDDER_UNAVAILABLE = 1003
    UNKNOWN_QUERY = 1004
    NOT_ALLOWED = 1005
    USER_ON_SEVERAL_NODES = 1006
    PROTOCOL = 1007
    ACCOUNT = 1008


#: Where a node says more than it sends.
NODE_LOG: Final = "its own log says why"

#: The fixed sentence of each code: the only error text that leaves a client.
CLIENT_ERROR_TEXT: Mapping[ClientErrorCode, str] = {
    ClientErrorCode.INTERNAL: f"the client app failed; {NODE_LOG}",
    ClientErrorCode.BAD_REQUEST: "the client app does not understand the request",
    ClientErrorCode.DATA_UNAVAILABLE: f"the node's text could not be loaded; {NODE_LOG}",
    ClientErrorCode.EMBEDDER_UNAVAILABLE: "the node's model could not be loaded",
    ClientErrorCode.UNKNOWN_QUERY: "the client app does not answer every question of the run",
    ClientErrorCode.NOT_ALLOWED: "the node's owner does not allow this question",
    ClientErrorCode.USER_ON_SEVERAL_NODES: "a user is on more nodes than max-nodes-per-user says",
    ClientErrorCode.PROTOCOL: "the node takes no part in this step of secure aggregation; its own "
    "log says why",
    ClientErrorCode.ACCOUNT: f"the node's own account cannot be kept; {NODE_LOG}",
}


def message_type(query: type[Query] | Query) -> str:
    """Flower message type that carries a query."""
    return f"query.{query.name}"


@dataclass(frozen=True, kw_only=True)
class RosterEntry:
    """A node's reply to the preparation request.

    Attributes:
        num_users: users hosted; they form the public roster.
        embedder: fingerprint of the model that makes the records; `TEXT_FINGERPRINT` for text.
        dimension: numbers in a record: of an embedding, or the parameters that are trained; tokens
            in the vocabulary where tokens are read; `TEXT_DIMENSION` for text.
    """

    num_users: int
    embedder: str
    dimension: int


@dataclass(frozen=True, kw_only=True)
class ToCome:
    """Noisy sums of one kind that a run may still ask for.

    Attributes:
        count: How many, at least 1; correlated rounds are one.
        noise_multiplier: Of each, over a user's answers of all nodes together.
        sampling: Who takes part in each.
    """

    count: int
    noise_multiplier: float
    sampling: Sampling


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """What a run says of itself before it asks anything; a request of nothing by default.

    Attributes:
        queries: Names of all questions it may ask.
        num_rounds: Rounds of the whole run.
        clip_norm: Largest clip norm of its first questions; 0 when unknown.
        to_come: What it may still release; empty where nothing is left to pay for, and where that
            depends on the roster.
        noise_multiplier: Of its rounds, the least; None when it depends on the roster.
        relation: Neighbouring relation it claims.
        stream: Of correlated noise, its name; else "".
        secure: Whether answers are aggregated securely.
    """

    queries: tuple[str, ...] = ()
    num_rounds: int = 1
    clip_norm: float = 0.0
    to_come: tuple[ToCome, ...] = ()
    noise_multiplier: float | None = None
    relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    stream: str = ""
    secure: bool = False


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One question to one node.

    Attributes:
        round_number: 1-based.
        query: the question, with its clip.
        broadcast: public arrays.
        data: how the node makes its records.
        sampling: who takes part.
        sampling_key: 32 fresh random bytes, the key of the users' coins in this round.
        sample_count: users this node draws under fixed-size sampling; -1 otherwise.
        roster_users: how many users the node had said it hosts when the run began; -1 where nobody
            counts those in its answer, under secure aggregation.
        secure: under secure aggregation, how many nodes must be in the sum; the node then adds its
            share of the noise. The key of the coins is its own.
        mechanism: the noise of the whole sum, which the node charges to its own account.
        num_rounds: rounds of the whole run.
        relation: neighbouring relation that the run claims.
        correlation: for correlated noise, the rounds that this one belongs to.
    """

    round_number: int
    query: Query
    broadcast: Broadcast
    data: DataRequest
    sampling: Sampling
    sampling_key: bytes = field(repr=False)  # tells who takes part
    mechanism: GaussianMechanism
    num_rounds: int
    relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    correlation: Correlation | None = None
    sample_count: int = -1
    roster_users: int = -1
    secure: Terms | None = None

    def announced(self, here: int) -> int:
        """How many users a node is asked about that hosts so many by now."""
        return here if self.roster_users < 0 else self.roster_users


@dataclass(frozen=True, kw_only=True, repr=False)
class Answer:
    """A node's reply: the sum over its users, and how many they were.

    Attributes:
        total: (m,) int64, in steps of the grid (`flower_privsyn.privacy.grid`).
        num_users: users of the roster that took part, those without text included.
    """

    total: npt.NDArray[np.int64]
    num_users: int


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What one round carries between the server and one node; public.

    Attributes:
        floats_down: floating-point numbers of the broadcast.
        floats_up: numbers of the answer.
        bytes_down: of the packed request, everything the strategy sends.
        bytes_up: of the packed answer.

    Bytes are those of the packed records. Flower's own envelope (addresses, object identifiers,
    gRPC, TLS) comes on top, some hundred bytes a message.
    """

    floats_down: int
    floats_up: int
    bytes_down: int
    bytes_up: int


def pack_prepare(data: DataRequest, *, plan: Announcement | None = None) -> RecordDict:
    """Request of the preparation phase: load, embed, report the roster.

    Args:
        data: how the node is to make its records.
        plan: what the run may ask and what it costs, so that a node that does not know a question,
            or whose owner does not allow it, says so before anything is spent.
    """
    plan = plan or Announcement()
    record = request_record(data)
    record["num-rounds"] = plan.num_rounds
    record["relation"] = plan.relation.value
    record["clip-norm"] = plan.clip_norm
    record["noise-multiplier"] = json.dumps(plan.noise_multiplier)
    record["to-come"] = json.dumps(
        [[one.count, one.noise_multiplier, one.sampling.to_dict()] for one in plan.to_come]
    )
    record.update(without_empty({"queries": list(plan.queries), "stream": plan.stream}))
    if plan.secure:
        record["secure"] = True
    return RecordDict({_REQUEST: record})


def unpack_prepare(message: Message) -> tuple[DataRequest, Announcement]:
    """Read a preparation request on a node: how to make records, and what will be asked."""
    record = _config(message, _REQUEST)
    data, queries = data_request(record), record.get("queries", [])
    if not isinstance(queries, list) or not all(isinstance(name, str) for name in queries):
        raise WireError("the request does not name its questions")
    check_printable(queries)
    try:
        multiplier = json.loads(str(record["noise-multiplier"]))
        to_come = tuple(
            ToCome(
                count=count, noise_multiplier=float(noise), sampling=Sampling.from_dict(sampling)
            )
            for count, noise, sampling in json.loads(str(record["to-come"]))
        )
        plan = Announcement(
            queries=tuple(map(str, queries)),
            num_rounds=int(record["num-rounds"]),  # type: ignore[arg-type]
            clip_norm=float(record["clip-norm"]),  # type: ignore[arg-type]
            to_come=to_come,
            noise_multiplier=None if multiplier is None else float(multiplier),
            relation=NeighboringRelation(str(record["relation"])),
            stream=str(record.get("stream", "")),
            secure=bool(record.get("secure", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WireError("the request's plan cannot be read") from error
    multipliers = [plan.noise_multiplier or 0.0, *(one.noise_multiplier for one in to_come)]
    counts = [one.count for one in to_come]
    if (
        not math.isfinite(plan.clip_norm)
        or not all(0.0 <= multiplier < math.inf for multiplier in multipliers)
        or not all(type(count) is int and count >= 1 for count in counts)
        or sum(counts) > plan.num_rounds
        or len(counts) > MOST_PHASES
        # What the owner's policy says of the least noise is asked of this number.
        or (to_come and plan.noise_multiplier != min(one.noise_multiplier for one in to_come))
    ):
        raise WireError("the request's plan holds an absurd number")
    return data, plan


def pack_roster(entry: RosterEntry) -> RecordDict:
    """A node's answer to the preparation request."""
    return RecordDict({_ROSTER: ConfigRecord(asdict(entry))})


def unpack_roster(message: Message) -> RosterEntry:
    """Read and check a roster reply on the server."""
    record = _config(message, _ROSTER)
    _only(message, {_ROSTER})
    values = {"num_users": int, "embedder": str, "dimension": int}
    _check_keys(record, values, _ROSTER)
    if not 0 <= record["num_users"] <= 2**40 or not 0 < record["dimension"] <= 2**40:  # type: ignore[operator]
        raise WireError("the roster holds an absurd number")
    if not re.fullmatch(r"[0-9A-Za-z-]{1,80}", str(record["embedder"])):
        raise WireError("the roster's embedder is no fingerprint")
    return RosterEntry(**{key: record[key] for key in values})  # type: ignore[arg-type]


def broadcast_record(
    broadcast: Broadcast,
    *,
    precision: Literal["float16", "float32"],
    unrounded: Collection[str] = (),
) -> ArrayRecord:
    """The broadcast as it travels: one record, shared by all messages of a round.

    Args:
        broadcast: named arrays.
        precision: how floating-point arrays travel; others keep their type.
        unrounded: names of those that travel in float32 all the same: `Query.unrounded`.
    """
    record = ArrayRecord()
    for name, array in broadcast.items():
        floating = np.issubdtype(array.dtype, np.floating)
        kind = "float32" if name in unrounded else precision
        record[name] = Array(np.ascontiguousarray(array.astype(kind) if floating else array))
    return record


def read_broadcast(record: ArrayRecord) -> dict[str, npt.NDArray[Any]]:
    """The broadcast as nodes see it after the journey; floating-point arrays are float32.

    A process that answers for many nodes gets the same arrays with every message. They are turned
    into numbers once and shared, read-only, among all who were sent the same bytes.
    """
    key = tuple((name, content_digest(record[name])) for name in record)
    with _broadcasts_lock:
        kept = _broadcasts.get(key)
        if kept is not None:
            _broadcasts.move_to_end(key)
            return dict(kept)
    arrays = {}
    for name in record:
        values = numbers_of(record[name])
        # Arrays of their own, so that what follows from them can be kept with them.
        floating = np.issubdtype(values.dtype, np.floating)
        values = values.astype(np.float32 if floating else values.dtype)
        values.flags.writeable = False
        arrays[name] = values
    with _broadcasts_lock:
        _broadcasts[key] = arrays
        while sum(map(_array_bytes, _broadcasts.values())) > _KEPT_BROADCAST_BYTES:
            _broadcasts.popitem(last=False)
    return dict(arrays)


def _array_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> int:
    return sum(array.nbytes for array in arrays.values())


def pack_ask(ask: Ask, broadcast: ArrayRecord) -> RecordDict:
    """Request of one round; `broadcast` is `ask.broadcast` made by `broadcast_record`."""
    record = request_record(ask.data)
    record["round"] = ask.round_number
    record["query"] = ask.query.name
    record["sampling"] = json.dumps(ask.sampling.to_dict())
    record["sampling-key"] = ask.sampling_key
    record["sample-count"], record["roster-users"] = ask.sample_count, ask.roster_users
    record["mechanism"] = json.dumps(ask.mechanism.to_dict())
    record["num-rounds"] = ask.num_rounds
    record["relation"] = ask.relation.value
    record["correlation"] = json.dumps(ask.correlation.to_dict() if ask.correlation else None)
    if ask.secure is not None:
        record["secure"] = [ask.secure.least_nodes, ask.secure.colluding]
    return RecordDict(
        {_REQUEST: record, _QUERY: ConfigRecord(ask.query.to_wire()), _BROADCAST: broadcast}
    )


def query_name(message: Message) -> str:
    """The name of the question in a request.

    Raises:
        WireError: it is not printable, or there is no request.
    """
    name = str(_config(message, _REQUEST).get("query", ""))
    check_printable(name)
    return name


def unpack_ask(message: Message, query_class: type[Query]) -> Ask:
    """Read one round's request on a node, and check that what it claims can be true.

    Its arrays are not read, nor is anything computed from its numbers: `with_broadcast` takes the
    arrays in, once the node's owner has allowed the question.

    Raises:
        WireError: it cannot be read, or cannot be true.
        ConfigError: a parameter of the query is out of range.
    """
    record = _config(message, _REQUEST)
    if record.get("query") != query_class.name:
        raise WireError("the request's query differs from its message type")
    try:
        ask = Ask(
            round_number=int(record["round"]),  # type: ignore[arg-type]
            query=query_class.from_wire(dict(_config(message, _QUERY))),
            broadcast={},
            data=data_request(record),
            sampling=Sampling.from_dict(json.loads(str(record["sampling"]))),
            sampling_key=_key(record["sampling-key"]),
            sample_count=int(record["sample-count"]),  # type: ignore[arg-type]
            roster_users=int(record["roster-users"]),  # type: ignore[arg-type]
            mechanism=mechanism_from_dict(json.loads(str(record["mechanism"]))),
            num_rounds=int(record["num-rounds"]),  # type: ignore[arg-type]
            relation=NeighboringRelation(str(record["relation"])),
            correlation=_correlation(str(record["correlation"])),
            secure=_terms(record["secure"]) if "secure" in record else None,
        )
        _check_claim(ask)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, WireError):
            raise
        raise WireError("the request cannot be read") from error
    return ask


def with_broadcast(ask: Ask, message: Message) -> Ask:
    """A question with the arrays of its request.

    Raises:
        WireError: there are none, or they cannot be read.
    """
    arrays = message.content.array_records.get(_BROADCAST)
    if arrays is None:
        raise WireError(f"the request lacks {_BROADCAST}")
    try:
        return replace(ask, broadcast=read_broadcast(arrays))
    except ValueError as error:
        raise WireError("the request cannot be read") from error


def _key(value: object) -> bytes:
    """Read a sampling key; `bytes` of a number would be as many zeros."""
    if not isinstance(value, bytes) or len(value) != SAMPLING_KEY_BYTES:
        raise WireError(f"the request's sampling key is not of {SAMPLING_KEY_BYTES} bytes")
    return value


def _terms(values: Any) -> Terms:
    """Read the terms of secure aggregation."""
    least, colluding = values
    return Terms(least_nodes=int(least), colluding=int(colluding))


@lru_cache(maxsize=8)
def _correlation(description: str) -> Correlation | None:
    """Read a correlation; its sensitivity is computed once in a process, where it is needed."""
    values = json.loads(description)
    return None if values is None else Correlation.from_dict(values)


def _check_claim(ask: Ask) -> None:
    """Refuse a request whose noise is not stated for its own question, round and sampling."""
    most = ask.data.max_nodes_per_user * ask.query.clip_norm
    if ask.data.max_nodes_per_user < 1 or ask.mechanism.l2_sensitivity < most * (1 - 1e-9):
        raise WireError("the request's sensitivity is below its query's clip norm")
    if not 1 <= ask.round_number <= ask.num_rounds:
        raise WireError("the request's round is none of the run's")
    sampling = ask.sampling
    if sampling.takes_turns and sampling.round_number != ask.round_number:
        # Else one group of users could be asked in every round as if it were its turn.
        raise WireError("the request's sampling is for another round")
    if isinstance(sampling, FixedSizeSampling) and not (
        0 <= ask.sample_count <= min(sampling.sample_size, ask.roster_users)
    ):
        raise WireError("the request draws more users than the whole cohort has, or the node")
    if isinstance(sampling, FixedSizeSampling) and ask.data.max_nodes_per_user > 1:
        # Nobody accounts for one who may be drawn on each of several nodes.
        raise WireError("the request draws a cohort of a fixed size of users on several nodes")
    if ask.secure is not None and (
        ask.correlation is not None or isinstance(sampling, FixedSizeSampling)
    ):
        raise WireError("the request's noise or sampling cannot be had by secure aggregation")
    if ask.correlation is not None:
        ask.correlation.step(ask.round_number)
        if ask.correlation.last_round > ask.num_rounds:
            raise WireError("the request's correlation is over more rounds than the run's")
        if sampling.min_separation != ask.correlation.min_separation:
            raise WireError("the request's sampling is not what its correlation is accounted for")


def pack_answer(answer: Answer, *, bound: float) -> RecordDict:
    """A node's reply of one round: the sum and the head-count, nothing else.

    Args:
        answer: of the node's users.
        bound: largest absolute coordinate that all users of its roster can sum to, whoever of them
            took part: a public number, on which the length of the reply depends.
    """
    arrays = ArrayRecord()
    arrays["total"] = Array(pack_steps(answer.total, width=bytes_per_number(bound)))
    return RecordDict({_ANSWER: arrays, _COHORT: ConfigRecord({"num_users": answer.num_users})})


def traffic(ask: Ask, broadcast: ArrayRecord) -> Traffic:
    """Count a round's exchange with a node of one user, on messages packed like the real ones.

    Not on the real ones: whether there are any and how long the head-count in an answer is would
    say something about who took part.

    Args:
        ask: the question as any node might get it.
        broadcast: `ask.broadcast` made by `broadcast_record`.
    """
    length = ask.query.answer_length(ask.broadcast)
    answer = Answer(total=np.zeros(length, dtype=np.int64), num_users=1)
    return Traffic(
        floats_down=sum(array.size for array in ask.broadcast.values() if array.dtype.kind == "f"),
        floats_up=length,
        bytes_down=packed_bytes(pack_ask(ask, broadcast)),
        bytes_up=packed_bytes(pack_answer(answer, bound=ask.query.answer_bound(1))),
    )


def unpack_answer(
    message: Message, *, query: Query, length: int, roster_users: int, most_users: int
) -> Answer:
    """Read and check a reply on the server.

    Args:
        message: the reply, without error.
        query: the question.
        length: how many numbers it answers.
        roster_users: users the node announced.
        most_users: of them, how many may be in the answer.

    Raises:
        WireError: with one of a few fixed texts; the reply is then counted and left out.
    """
    _only(message, {_ANSWER, _COHORT})
    arrays = message.content.array_records.get(_ANSWER)
    if arrays is None or list(arrays) != ["total"]:
        raise WireError("no answer")
    record = _config(message, _COHORT)
    _check_keys(record, {"num_users": int}, _COHORT)
    num_users = record["num_users"]
    if not isinstance(num_users, int) or not 0 <= num_users <= most_users:
        raise WireError("absurd head-count")
    try:
        total = numbers_of(arrays["total"])
    except ValueError as error:
        raise WireError("unreadable answer") from error
    if total.dtype != np.uint8:
        raise WireError("wrong type")
    if total.shape != (length, bytes_per_number(query.answer_bound(roster_users))):
        raise WireError("wrong shape")
    steps = unpack_steps(total)
    largest = most_steps(query.answer_bound(num_users))
    if bool(np.any(steps > largest) or np.any(steps < -largest)):
        raise WireError("outside the bound of its head-count")
    return Answer(total=steps, num_users=num_users)


def words_of(code: int) -> str:
    """The fixed sentence of an error code; one for all codes that are none of a client's."""
    known = {int(known): text for known, text in CLIENT_ERROR_TEXT.items()}
    return known.get(code, "an error of Flower")


def error_reply(code: ClientErrorCode, message: Message) -> Message:
    """The reply of a client that failed: a fixed code and its fixed sentence."""
    return Message(Error(code=int(code), reason=CLIENT_ERROR_TEXT[code]), reply_to=message)


def reply(content: RecordDict, message: Message) -> Message:
    """A reply that holds `content`."""
    return Message(content, reply_to=message)


def unexpected_records(message: Message) -> list[str]:
    """Names of records in a client's message that are neither public, masked nor accounted."""
    allowed = {_ANSWER: {"total"}, _COHORT: {"num_users"}}
    allowed[_ROSTER] = {"num_users", "embedder", "dimension"}
    allowed |= {SECURE: _SECURE_KEYS, MASKED: {"masked"}}
    found: list[str] = []
    if message.has_error():
        reasons = {(int(code), text) for code, text in CLIENT_ERROR_TEXT.items()}
        if (message.error.code, message.error.reason) not in reasons:
            found.append("error text")
        return found
    for name, record in message.content.items():
        keys = set(record)
        if isinstance(record, MetricRecord) or name not in allowed:
            found.append(name)
        else:
            found.extend(f"{name}.{key}" for key in sorted(keys - allowed[name]))
    return found


def _config(message: Message, name: str) -> ConfigRecord:
    record = message.content.config_records.get(name)
    if record is None:
        raise WireError(f"the message lacks {name}")
    return record


def _only(message: Message, names: set[str]) -> None:
    if set(message.content) - names:
        raise WireError("unexpected records")


def _check_keys(record: ConfigRecord, values: Mapping[str, type], name: str) -> None:
    if set(record) != set(values):
        raise WireError(f"{name} holds other keys than agreed")
    for key, kind in values.items():
        if not isinstance(record[key], kind) or isinstance(record[key], bool):
            raise WireError(f"{name}.{key} has the wrong type")
