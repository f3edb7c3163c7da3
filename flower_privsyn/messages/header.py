"""What requests and rosters say beside arrays: classes whose fields are the keys of a record.

`written` makes the record, `read` makes the class of a record again: pydantic checks every type and
bound, and what a field's own reader refuses is refused with its key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from annotated_types import Ge, Gt, Le
from flwr.app import ConfigRecord
from pydantic import (
    AfterValidator,
    Field,
    FiniteFloat,
    Json,
    PlainValidator,
    StrictBool,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
)

from flower_privsyn.data import Cut
from flower_privsyn.data.cut import CLASS_NAMES, are_class_names
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import MOST_PHASES, NeighboringRelation, Sampling
from flower_privsyn.queries import Query, Reads, TrainableModel

#: What server and nodes must agree on.
PROTOCOL: Final = 6

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


def from_json(make: Callable[[Any], Any]) -> PlainValidator:
    """What reads a field that travels as JSON.

    Args:
        make: of the field's value from what was in the JSON.
    """
    return PlainValidator(lambda text: make(json.loads(text)))


Name: TypeAlias = Annotated[StrictStr, AfterValidator(printable)]


def _model(description: Mapping[str, Any] | None) -> TrainableModel | None:
    if description is None:
        return None
    for value in description.values():
        if isinstance(value, str):
            printable(value)
    return TrainableModel.from_dict(description)


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
        newer_than: ISO date; only text dated after it takes part; "" for all.
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
    newer_than: Name = ""
    held_out_fraction: FiniteFloat
    seed: StrictInt
    max_nodes_per_user: StrictInt = 1
    trains: Annotated[TrainableModel | None, from_json(_model)] = None
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
    def cut(self) -> Cut:
        """How the node cuts its text.

        Raises:
            ConfigError: A value is out of range.
        """
        return Cut(
            max_tokens=None if self.reads == "text" else self.max_tokens,
            max_samples=self.max_samples or None,
            newer_than=self.newer_than,
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

    count: int
    noise_multiplier: float
    sampling: Sampling


def _to_come(kinds: list[Any]) -> tuple[ToCome, ...]:
    """What a plan has left, of few kinds: a node's accountant is at work on each."""
    found = tuple(
        ToCome(count=count, noise_multiplier=float(noise), sampling=Sampling.from_dict(sampling))
        for count, noise, sampling in kinds
    )
    if len(found) > MOST_PHASES or not all(
        type(one.count) is int and one.count >= 1 and 0.0 <= one.noise_multiplier < math.inf
        for one in found
    ):
        raise WireError("the request's plan holds an absurd number")
    return found


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
    to_come: Annotated[tuple[ToCome, ...], from_json(_to_come)] = ()
    noise_multiplier: Json[Annotated[FiniteFloat, Ge(0)] | None] = None
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
    if isinstance(value, tuple):
        return list(value)
    if value is None or hasattr(value, "to_dict"):
        return json.dumps(value and value.to_dict())
    return value


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
        header: T = _reader(kind).validate_python(values)  # type: ignore[arg-type]
    except ValidationError as error:
        wrong = error.errors()[0]
        cause = wrong.get("ctx", {}).get("error")
        if isinstance(cause, WireError):
            raise cause from None
        raise WireError(f"the message's {wrong['loc'][0]} cannot be read") from error
    except (KeyError, TypeError, ValueError) as error:
        raise WireError("the message cannot be read") from error
    return header


@lru_cache(maxsize=16)
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a record without what is empty or false, which readers take as default.

    Flower's `message_size_mod`, which counts the bytes of a record, fails on empty values.

    Args:
        values: by key, what a `ConfigRecord` may hold.
    """
    empty: tuple[Any, ...] = ("", b"", [])
    return {key: one for key, one in values.items() if one not in empty and one is not False}


def request_record(data: DataRequest) -> ConfigRecord:
    """The request as part of a message."""
    return ConfigRecord({"protocol": PROTOCOL, **written(data)})


def data_request(record: Mapping[str, Any]) -> DataRequest:
    """Read the request from a message on a node.

    Raises:
        WireError: It cannot be read, or cannot be.
        VersionError: It is of another protocol.
    """
    if record.get("protocol") != PROTOCOL:
        raise VersionError(
            f"the server speaks protocol {record.get('protocol')!r}, this client {PROTOCOL}: "
            "install the same flower-privsyn on both sides"
        )
    data = read(DataRequest, record)
    if data.conditioned and data.trains is None:
        raise WireError("the request does not say what conditions are for")
    embeds = data.conditioned or (data.trains is None and data.reads != "text")
    if embeds and not data.embedding_model:
        raise WireError("the request names no embedding model")
    return data


_CARRIED: Final = (
    "a whole number of 64 bits, a number, a text, bytes, true or false, or a tuple of one of these"
)


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
    arrived = {}
    for key, value in sent.items():
        try:
            record = ConfigRecord({key: value})
            arrived[key] = ConfigRecord.inflate(record.deflate())[key]
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the parameter {key.replace('-', '_')} of the query {query.name} is {value!r} "
                f"({type(value).__name__}), which Flower's messages do not carry: it must be "
                f"{_CARRIED}"
            ) from error
    try:
        received = type(query).from_wire(arrived).to_wire()
    except Exception as error:
        raise ConfigError(
            f"the query {query.name} cannot be made of its own parameters ({', '.join(sent)}) "
            f"after a message has carried them ({type(error).__name__}: {error}): its `from_wire` "
            "must take what its `to_wire` gives"
        ) from error
    changed = [key for key in sent if key not in received or received[key] != sent[key]]
    if changed:
        raise ConfigError(
            f"the parameter {changed[0].replace('-', '_')} of the query {query.name} is "
            f"{sent[changed[0]]!r} and arrives on a node as {received.get(changed[0])!r}: its "
            "`from_wire` must make the same query of what its `to_wire` gives"
        )
