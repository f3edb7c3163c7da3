"""What travels between server and nodes: message types, record keys, packing and checking.

Nobody else spells a record key. A request holds public values only. A reply holds either the number
of users a node hosts (the public roster), or one summed vector and the number of users in it, or an
error code from a fixed list; `unpack_*` refuse anything more.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from enum import Enum, IntEnum
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le, Len
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from numpy.lib.format import read_array_header_1_0, read_magic
from pydantic import (
    AfterValidator,
    Field,
    FiniteFloat,
    Json,
    PlainValidator,
    StrictBool,
    StrictBytes,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
)

from flower_privsyn.data import Chunking
from flower_privsyn.data.chunking import CLASS_NAMES, are_class_names
from flower_privsyn.errors import ConfigError
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy import (
    CyclicSampling,
    FixedSizeSampling,
    NeighboringRelation,
    ReleaseSpec,
    Sampling,
)
from flower_privsyn.privacy.mechanisms import STEPS
from flower_privsyn.privacy.plan import MOST_PHASES
from flower_privsyn.queries import Broadcast, Query, Reads
from flower_privsyn.secure_aggregation.terms import Terms

#: What server and nodes must agree on.
PROTOCOL: Final = 8


T = TypeVar("T")


class WireError(ValueError):
    """A message does not have the agreed form. The text names the record, never its content."""


class VersionError(WireError):
    """A message is of another version of the protocol. The text names both."""


def printable(name: str) -> str:
    """A name that cannot write lines of its own into the log of a node.

    Raises:
        WireError: it could.
    """
    if not name.isprintable():
        raise WireError("the request holds a name that is not printable")
    return name


Name: TypeAlias = Annotated[StrictStr, AfterValidator(printable)]


@lru_cache(maxsize=8)  # the same in every round
def _model(description: str) -> TrainableModel:
    model = TrainableModel(**json.loads(description))
    printable(model.name + model.trainable)
    return model


def _classes(found: object) -> tuple[str, ...]:
    """The classes of a request, which are different names."""
    names = tuple(found) if isinstance(found, list) else (None,)
    if not are_class_names(names):
        raise WireError(f"the request's classes are not different names, {CLASS_NAMES}")
    return tuple(map(str, names))


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """How a node turns its text into records; the same in every round of a run.

    Attributes:
        embedding_model: name or path of the embedding model; where tokens are read and no model is
            trained, of the model whose tokenizer cuts them; not looked at where text is read.
        embedding_precision: "float32" or "bfloat16".
        max_tokens: length of one sample in tokens; not looked at where text is read.
        max_samples: samples of one user that take part, or 0 for all of them.
        min_date: ISO date; only text of it and later takes part; "" for all.
        held_out_fraction: share of users kept out of the run for evaluation.
        seed: public seed of the cap's subset, of the held-out split and of the order in which a
            user's samples are trained on.
        max_nodes_per_user: on how many nodes one user may be.
        trains: the language model whose updates are the records, cut by its own tokenizer; None
            where embeddings are, and the embedding model has the tokenizer.
        reads: what the questions are about (`Query.reads`); where a model is trained always
            "tokens".
        classes: the run's classes of documents, public; of others none counts. Empty where
            documents have none, and then it does not travel.
        conditioned: where a model is trained: whether on documents after conditions, which are
            found by the documents' embeddings. Does not travel where it is false.
    """

    embedding_model: Name = ""
    embedding_precision: Name
    max_tokens: StrictInt
    max_samples: StrictInt
    min_date: Name = ""
    held_out_fraction: FiniteFloat
    seed: StrictInt
    max_nodes_per_user: StrictInt = 1
    trains: Annotated[TrainableModel | None, PlainValidator(_model)] = None
    reads: Reads = "embeddings"
    classes: Annotated[tuple[str, ...], PlainValidator(_classes)] = ()
    conditioned: StrictBool = False

    def __post_init__(self) -> None:
        """Models are trained on tokens, and nobody has to say so."""
        if self.trains is not None:
            object.__setattr__(self, "reads", "tokens")

    def suits(self, query: type[Query] | Query) -> bool:
        """Whether the records of this request are what a question is about."""
        # Classes open a second attribute of every document: to questions of them alone.
        if query.labelled != bool(self.classes):
            return False
        if query.conditioned != self.conditioned:
            return False
        return query.reads == self.reads and query.trains == (self.trains is not None)

    @property
    def chunking(self) -> Chunking:
        """How the node cuts its text.

        Raises:
            ConfigError: A value is out of range.
        """
        return Chunking(
            max_tokens=None if self.reads == "text" else self.max_tokens,
            max_samples=self.max_samples or None,
            min_date=self.min_date,
            held_out_fraction=self.held_out_fraction,
            seed=self.seed,
            classes=self.classes,
        )


@dataclass(frozen=True, kw_only=True)
class ToCome:
    """Noisy sums of one kind that a run may still ask for.

    Attributes:
        count: How many, at least 1; correlated rounds are one.
        noise_multiplier: Of each, over a user's answers of all nodes together.
        sampling: Who takes part in each.
    """

    count: Annotated[StrictInt, Ge(1)]
    noise_multiplier: Annotated[FiniteFloat, Ge(0)]
    sampling: Annotated[Sampling, PlainValidator(Sampling.from_dict)]


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

    queries: tuple[Name, ...] = ()
    num_rounds: StrictInt = 1
    clip_norm: FiniteFloat = 0.0
    #: Of few kinds: a node's accountant is at work on each.
    to_come: Json[Annotated[tuple[ToCome, ...], Len(0, MOST_PHASES)]] = ()
    noise_multiplier: Annotated[FiniteFloat, Ge(0)] | None = None
    relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    stream: Name = ""
    secure: StrictBool = False


@dataclass(frozen=True, kw_only=True)
class RosterEntry:
    """A node's reply to the preparation request.

    Attributes:
        num_users: users hosted; they form the public roster.
        embedder: fingerprint of the model that makes the records; `TEXT_FINGERPRINT` for text.
        dimension: numbers in a record: of an embedding, or the parameters that are trained; tokens
            in the vocabulary where tokens are read; `TEXT_DIMENSION` for text.
    """

    num_users: Annotated[StrictInt, Ge(0), Le(2**40)]
    embedder: Annotated[StrictStr, Field(pattern=r"^[0-9A-Za-z-]{1,80}$")]
    dimension: Annotated[StrictInt, Gt(0), Le(2**40)]


def written(header: Any, *, without: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a header under their keys, as a record of Flower holds them.

    Args:
        header: a dataclass.
        without: names of fields that are left out.
    """
    names = [item.name for item in fields(header) if item.name not in without]
    return without_empty({name.replace("_", "-"): _plain(getattr(header, name)) for name in names})


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) or (isinstance(value, tuple) and any(map(is_dataclass, value))):
        return json.dumps(value, default=_described)
    return list(value) if isinstance(value, tuple) else value


def _described(value: Any) -> dict[str, Any]:
    described: dict[str, Any] = value.to_dict() if hasattr(value, "to_dict") else vars(value)
    return described


def read(kind: type[T], record: Mapping[str, Any], **given: Any) -> T:
    """A header from the keys of a record; a field without a key keeps its default.

    Args:
        kind: class of the header.
        record: of the message; what other keys it has is not looked at.
        given: fields that are not in it.

    Raises:
        WireError: a field is missing, of another type or out of its bounds.
    """
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    found = {key.replace("-", "_"): value for key, value in record.items()}
    values = {name: found[name] for name in names & found.keys()} | given
    try:
        header: T = _reader(kind).validate_python(values)
    except ValidationError as error:
        wrong = error.errors()[0]
        cause = wrong.get("ctx", {}).get("error")
        if isinstance(cause, WireError):
            raise cause from None
        raise WireError(f"the message's {wrong['loc'][0]} cannot be read") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WireError("the message cannot be read") from error
    return header


#: What reads values as a kind of header.
_reader: Callable[[Any], TypeAdapter[Any]] = lru_cache(maxsize=16)(TypeAdapter)


def without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a record without what is none, empty or false, which readers take as default.

    Flower's `message_size_mod`, which counts the bytes of a record, fails on empty values.

    Args:
        values: by key, what a `ConfigRecord` may hold.
    """
    empty: tuple[Any, ...] = (None, "", b"", [])
    return {key: one for key, one in values.items() if one not in empty and one is not False}


def request_record(data: DataRequest, header: Announcement | Ask) -> ConfigRecord:
    """The request as part of a message."""
    keys = written(data) | written(header, without=_APART)
    return ConfigRecord({"protocol": PROTOCOL, **keys})


def data_request(record: Mapping[str, Any], header: type[Announcement | Ask]) -> DataRequest:
    """Read the request from a message on a node.

    Args:
        record: of the message.
        header: what else is in it. A key of neither is refused: nobody would heed what it asks.

    Raises:
        WireError: It cannot be read, or cannot be.
        VersionError: It is of another protocol.
    """
    if record.get("protocol") != PROTOCOL:
        raise VersionError(
            f"the server speaks protocol {record.get('protocol')!r}, this client {PROTOCOL}: "
            "install the same flower-privsyn on both sides"
        )
    known = {item.name.replace("_", "-") for kind in (DataRequest, header) for item in fields(kind)}
    if record.keys() - known - {"protocol"}:
        raise WireError("the request holds what this client does not know")
    return read(DataRequest, record)


def refuse_uncarried(query: Query) -> None:
    """Refuse a question that nodes would not get, or would get as another one.

    What a message holds is the question after a journey through `to_wire`, a record of Flower and
    `from_wire`. One that fails there would fail in every round, once the round is charged.

    Args:
        query: that a run may ask.

    Raises:
        ConfigError: a parameter is of a kind that Flower does not carry, or comes back as another.
    """
    sent = query.to_wire()
    try:
        record = ConfigRecord.inflate(ConfigRecord(sent).deflate())
        received: object = type(query).from_wire(dict(record)).to_wire()
    except Exception as error:
        received = error
    if received != sent:
        raise ConfigError(
            f"the query {query.name} is {sent!r} and arrives on a node as {received!r}: Flower's "
            "messages carry whole numbers of 64 bits, numbers, texts, bytes, true, false, and "
            "tuples of one of these, and `from_wire` must make the same query of them"
        )


#: What rounding may add to the bound of a sum.
_SLACK: Final = 1.0 + 1e-9


def most_steps(bound: float) -> int:
    """The largest sum within a bound, in steps of the grid.

    Args:
        bound: largest absolute value of a number of the sum, >= 0.
    """
    return math.ceil(bound * STEPS * _SLACK)


def bytes_per_number(bound: float) -> int:
    """How many bytes every number of a sum within a bound takes: 4 below 2, 5 below 512.

    Args:
        bound: largest absolute value of a number of the sum, >= 0, at most 2^31.
    """
    return (most_steps(bound).bit_length() + 1 + 7) // 8


def pack_steps(steps: npt.NDArray[np.int64], *, width: int) -> npt.NDArray[np.uint8]:
    """Write whole numbers with a sign, lowest byte first.

    Args:
        steps: (m,) int64, each within `width` bytes.
        width: bytes of each, 1 to 8 (`bytes_per_number`).

    Returns:
        (m, width).

    Raises:
        ValueError: a number needs more bytes. The sentence does not say which: that is data.
    """
    end = 2 ** (8 * width - 1)
    if len(steps) and not -end <= int(steps.min()) <= int(steps.max()) < end:
        raise ValueError(f"a number of the sum needs more than {width} bytes")
    kept = steps.astype("<i8")
    return np.ascontiguousarray(kept.view(np.uint8).reshape(-1, 8)[:, :width])


def unpack_steps(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Read what `pack_steps` wrote.

    Args:
        packed: (m, width), width 1 to 8.

    Returns:
        (m,) int64.
    """
    length, width = packed.shape
    raised = np.zeros((length, 8), dtype=np.uint8)
    raised[:, 8 - width :] = packed
    # The number stands in the highest bytes: shifting it down copies its sign.
    steps = raised.reshape(-1).view("<i8").astype(np.int64)
    steps >>= 8 * (8 - width)
    return steps


def packed_bytes(content: RecordDict) -> int:
    """Bytes of a message's packed records, with their names."""
    total = 0
    for name, record in content.items():
        # Flower's own count refuses the empty texts that a configuration may hold.
        counted = record.count_bytes() if isinstance(record, ArrayRecord) else len(record.deflate())
        total += len(name) + counted
    return total


def content_digest(array: Array) -> bytes:
    """The name of an Array's content: SHA-256 of type, shape, serialisation and bytes.

    Computed once for each Array, which is not changed once it is part of a message, and of which
    every node of a process is sent the same.
    """
    known = array.__dict__.get("_digest")
    if isinstance(known, bytes):
        return known
    head = json.dumps([array.dtype, list(array.shape), array.stype, len(array.data)])
    digest = hashlib.sha256(head.encode())
    digest.update(array.data)
    array.__dict__["_digest"] = digest.digest()
    return digest.digest()


def numbers_of(array: Array) -> npt.NDArray[Any]:
    """The numbers of an Array that somebody else has sent, read-only.

    Raises:
        WireError: its bytes are no array as `np.save` writes one. NumPy's own reader makes room
            for whatever shape they claim before it looks how many there are.
    """
    try:
        file = io.BytesIO(array.data)
        if read_magic(file) != (1, 0):
            raise ValueError("another version of the format")
        shape, by_columns, dtype = read_array_header_1_0(file)
        numbers = np.frombuffer(array.data, dtype, offset=file.tell())
        return numbers.reshape(shape, order="F" if by_columns else "C")
    except Exception as error:  # whatever NumPy makes of bytes that anybody chose
        raise WireError("unreadable array") from error


def array_of(message: Message, record: str, name: str) -> npt.NDArray[Any]:
    """The numbers that a node's reply holds in a record, alone there, read-only.

    Raises:
        WireError: it holds others, or none.
    """
    arrays = message.content.array_records.get(record)
    if arrays is None or list(arrays) != [name]:
        raise WireError("no answer")
    return numbers_of(arrays[name])


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

#: All that a node's reply may hold.
_REPLY_KEYS: Final[Mapping[str, set[str]]] = {
    _ANSWER: {"total"},
    _COHORT: {"num_users"},
    _ROSTER: {"num_users", "embedder", "dimension"},
    MASKED: {"masked"},
    SECURE: {"run", "card", "commitment", "letters", "signature", "seeds", "mask_keys"},
}

#: Of the random key of a round's coins.
SAMPLING_KEY_BYTES: Final = 32

#: Bytes of the broadcast kept in a process. Whole models are larger, and are read anew for every
#: node.
_KEPT_BROADCAST_BYTES = 128 * 2**20
#: The last one, by the digests of its arrays.
_broadcasts: dict[tuple[tuple[str, bytes], ...], dict[str, npt.NDArray[Any]]] = {}


#: Where a node says more than it sends.
NODE_LOG: Final = "its own log says why"


class ClientErrorCode(IntEnum):
    """Everything a failing client may say. The numbers are stable and carry no data.

    Attributes:
        text: the fixed sentence of each: the only error text that leaves a client.
    """

    text: str

    def __new__(cls, code: int, text: str) -> Self:
        """A code with its sentence."""
        made = int.__new__(cls, code)
        made._value_, made.text = code, text
        return made

    INTERNAL = 1000, f"the client app failed; {NODE_LOG}"
    BAD_REQUEST = 1001, "the client app does not understand the request"
    DATA_UNAVAILABLE = 1002, f"the node's text could not be loaded; {NODE_LOG}"
    EMBEDDER_UNAVAILABLE = 1003, "the node's model could not be loaded"
    UNKNOWN_QUERY = 1004, "the client app does not answer every question of the run"
    NOT_ALLOWED = 1005, "the node's owner does not allow this question"
    PROTOCOL = 1007, f"the node takes no part in this step of secure aggregation; {NODE_LOG}"
    ACCOUNT = 1008, f"the node's own account cannot be kept; {NODE_LOG}"
    OTHER_VERSION = 1009, "the client app speaks another protocol: install one version on all sides"


def message_type(query: type[Query] | Query) -> str:
    """Flower message type that carries a query."""
    return f"query.{query.name}"


#: Parts of a question that are records, or keys, of their own.
_APART = ("query", "broadcast", "data")

_Given = PlainValidator(lambda value: value)


@lru_cache(maxsize=8)
def _spec(description: str) -> ReleaseSpec:
    """Read what a round releases, once in a process that answers for many nodes."""
    release = ReleaseSpec.from_dict(json.loads(description))
    printable(release.query)
    return release


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One question to one node.

    Attributes:
        release: what the round releases: its number, who takes part, and the noise of the whole
            sum, which the node charges to its own account.
        query: the question, with its clip.
        broadcast: public arrays.
        data: how the node makes its records.
        sampling_key: 32 fresh random bytes, the key of the users' coins in this round.
        sample_count: users this node draws under fixed-size sampling; -1 otherwise.
        roster_users: how many users the node had said it hosts when the run began; -1 where nobody
            counts those in its answer, under secure aggregation.
        secure: under secure aggregation, how many nodes must be in the sum; the node then adds its
            share of the noise. The key of the coins is its own.
        num_rounds: rounds of the whole run.
    """

    release: Annotated[ReleaseSpec, PlainValidator(_spec)]
    query: Annotated[Query, _Given]
    broadcast: Annotated[Broadcast, _Given]
    data: Annotated[DataRequest, _Given]
    # It tells who takes part; `bytes` of a number would be as many zeros.
    sampling_key: Annotated[StrictBytes, Len(SAMPLING_KEY_BYTES, SAMPLING_KEY_BYTES)] = field(
        repr=False
    )
    num_rounds: StrictInt
    sample_count: StrictInt = -1
    roster_users: StrictInt = -1
    secure: Json[Terms] | None = None

    def announced(self, here: int) -> int:
        """How many users a node is asked about that hosts so many by now."""
        return here if self.roster_users < 0 else self.roster_users


@dataclass(frozen=True, kw_only=True, repr=False)
class Answer:
    """A node's reply: the sum over its users, and how many they were.

    Attributes:
        total: (m,) int64, in steps of the grid (`flower_privsyn.privacy.mechanisms`).
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

    @classmethod
    def of(cls, ask: Ask, *, down: Iterable[RecordDict], up: Iterable[RecordDict]) -> Traffic:
        """What these messages of a round carry."""
        sent = (array.size for array in ask.broadcast.values() if array.dtype.kind == "f")
        return cls(
            floats_down=sum(sent),
            floats_up=ask.query.answer_length(ask.broadcast),
            bytes_down=sum(map(packed_bytes, down)),
            bytes_up=sum(map(packed_bytes, up)),
        )


def pack_prepare(data: DataRequest, *, plan: Announcement | None = None) -> RecordDict:
    """Request of the preparation phase: load, embed, report the roster.

    Args:
        data: how the node is to make its records.
        plan: what the run may ask and what it costs, so that a node that does not know a question,
            or whose owner does not allow it, says so before anything is spent.
    """
    return RecordDict({_REQUEST: request_record(data, plan or Announcement())})


def unpack_prepare(message: Message) -> tuple[DataRequest, Announcement]:
    """Read a preparation request on a node: how to make records, and what will be asked.

    Raises:
        WireError: it cannot be read, or its plan cannot be.
    """
    record = _config(message, _REQUEST)
    data, plan = data_request(record, Announcement), read(Announcement, record)
    if sum(one.count for one in plan.to_come) > plan.num_rounds:
        raise WireError("the request's plan holds an absurd number")
    # What the owner's policy says of the least noise is asked of this number.
    if plan.to_come and plan.noise_multiplier != min(one.noise_multiplier for one in plan.to_come):
        raise WireError("the request's plan states other noise than the least of what is to come")
    return data, plan


def pack_roster(entry: RosterEntry) -> RecordDict:
    """A node's answer to the preparation request."""
    return RecordDict({_ROSTER: ConfigRecord(asdict(entry))})


def unpack_roster(message: Message) -> RosterEntry:
    """Read and check a roster reply on the server."""
    record = _config(message, _ROSTER)
    _only(message, {_ROSTER})
    return read(RosterEntry, record)


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
    if (kept := _broadcasts.get(key)) is not None:
        return dict(kept)
    arrays = {}
    for name in record:
        values = numbers_of(record[name])
        # Arrays of their own, so that what follows from them can be kept with them.
        floating = np.issubdtype(values.dtype, np.floating)
        values = values.astype(np.float32 if floating else values.dtype)
        values.flags.writeable = False
        arrays[name] = values
    _broadcasts.clear()
    if sum(array.nbytes for array in arrays.values()) <= _KEPT_BROADCAST_BYTES:
        _broadcasts[key] = arrays
    return dict(arrays)


def pack_ask(ask: Ask, broadcast: ArrayRecord) -> RecordDict:
    """Request of one round; `broadcast` is `ask.broadcast` made by `broadcast_record`."""
    return RecordDict(
        {
            _REQUEST: request_record(ask.data, ask),
            _QUERY: ConfigRecord(ask.query.to_wire()),
            _BROADCAST: broadcast,
        }
    )


def query_name(message: Message) -> str:
    """The name of the question in a request.

    Raises:
        WireError: it is not printable, or there is no request.
    """
    return read(_Named, _config(message, _REQUEST)).release.query


@dataclass(frozen=True)
class _Named:
    release: Annotated[ReleaseSpec, PlainValidator(_spec)]


def unpack_ask(message: Message, query_class: type[Query]) -> Ask:
    """Read one round's request on a node, and check that what it claims can be true.

    Its arrays are not read, nor is anything computed from its numbers: `with_broadcast` takes the
    arrays in, once the node's owner has allowed the question.

    Raises:
        WireError: it cannot be read, or cannot be true.
        ConfigError: a parameter of the query is out of range.
    """
    record = _config(message, _REQUEST)
    data = data_request(record, Ask)
    if query_name(message) != query_class.name:
        raise WireError("the request's query differs from its message type")
    try:
        query = query_class.from_wire(dict(_config(message, _QUERY)))
        ask = read(Ask, record, query=query, data=data, broadcast={})
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
    return replace(ask, broadcast=read_broadcast(arrays))


def _check_claim(ask: Ask) -> None:
    """Refuse a request whose noise is not stated for its own question, round and sampling."""
    release, correlation = ask.release, ask.release.correlation
    if ask.data.max_nodes_per_user != release.max_nodes_per_user:
        raise WireError("the request's release is for users on other numbers of nodes")
    most = release.max_nodes_per_user * ask.query.clip_norm
    if release.mechanism.l2_sensitivity < most * (1 - 1e-9):
        raise WireError("the request's sensitivity is below its query's clip norm")
    if not 1 <= release.round <= ask.num_rounds:
        raise WireError("the request's round is none of the run's")
    sampling = release.sampling
    if isinstance(sampling, CyclicSampling) and sampling.round_number != release.round:
        # Else one group of users could be asked in every round as if it were its turn.
        raise WireError("the request's sampling is for another round")
    if isinstance(sampling, FixedSizeSampling) and not (
        0 <= ask.sample_count <= min(sampling.sample_size, ask.roster_users)
    ):
        raise WireError("the request draws more users than the whole cohort has, or the node")
    if isinstance(sampling, FixedSizeSampling) and release.max_nodes_per_user > 1:
        # Nobody accounts for one who may be drawn on each of several nodes.
        raise WireError("the request draws a cohort of a fixed size of users on several nodes")
    if ask.secure is not None and (
        correlation is not None or isinstance(sampling, FixedSizeSampling)
    ):
        raise WireError("the request's noise or sampling cannot be had by secure aggregation")
    if correlation is not None:
        correlation.step(release.round)
        if correlation.last_round > ask.num_rounds:
            raise WireError("the request's correlation is over more rounds than the run's")
        if sampling.min_separation != correlation.min_separation:
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
    up = pack_answer(answer, bound=ask.query.answer_bound(1))
    return Traffic.of(ask, down=[pack_ask(ask, broadcast)], up=[up])


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
    total = array_of(message, _ANSWER, "total")
    num_users = _config(message, _COHORT).get("num_users")
    if type(num_users) is not int or not 0 <= num_users <= most_users:
        raise WireError("absurd head-count")
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
    return next((one.text for one in ClientErrorCode if one == code), "an error of Flower")


def error_reply(code: ClientErrorCode, message: Message) -> Message:
    """The reply of a client that failed: a fixed code and its fixed sentence."""
    return Message(Error(code=int(code), reason=code.text), reply_to=message)


def unexpected_records(message: Message) -> list[str]:
    """Names of records in a client's message that are neither public, masked nor accounted."""
    if message.has_error():
        said = (message.error.code, message.error.reason)
        return [] if said in [(one, one.text) for one in ClientErrorCode] else ["error text"]
    found: list[str] = []
    for name, record in message.content.items():
        keys = set(record)
        if isinstance(record, MetricRecord) or name not in _REPLY_KEYS:
            found.append(name)
        else:
            found.extend(f"{name}.{key}" for key in sorted(keys - _REPLY_KEYS[name]))
    return found


def _config(message: Message, name: str) -> ConfigRecord:
    record = message.content.config_records.get(name)
    if record is None:
        raise WireError(f"the message lacks {name}")
    return record


def _only(message: Message, names: set[str]) -> None:
    if set(message.content) - names or unexpected_records(message):
        raise WireError("unexpected records")
