"""How a node is to turn its text into records: the part of a request that all rounds share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from flwr.app import ConfigRecord

from flower_privsyn.data import Cut
from flower_privsyn.data.cut import CLASS_NAMES, are_class_names
from flower_privsyn.queries import READS, Query, Reads, TrainableModel

#: What server and nodes must agree on.
PROTOCOL: Final = 6


class WireError(ValueError):
    """A message does not have the agreed form. The text names the record, never its content."""


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

    embedding_model: str
    embedding_precision: str
    max_tokens: int
    max_samples: int
    newer_than: str
    held_out_fraction: float
    seed: int
    max_nodes_per_user: int = 1
    trains: TrainableModel | None = None
    reads: Reads = "embeddings"
    classes: tuple[str, ...] = ()
    conditioned: bool = False

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


def request_record(data: DataRequest) -> ConfigRecord:
    """The request as part of a message."""
    fields: dict[str, Any] = {key.replace("_", "-"): value for key, value in asdict(data).items()}
    fields["trains"] = json.dumps(data.trains.to_dict() if data.trains else None)
    fields["classes"] = list(data.classes)
    if not data.conditioned:
        del fields["conditioned"]
    return ConfigRecord(without_empty({"protocol": PROTOCOL, **fields}))


def without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a record without empty texts, bytes and lists, which readers take as default.

    Flower's `message_size_mod`, which counts the bytes of a record, fails on empty values.

    Args:
        values: by key, what a `ConfigRecord` may hold.
    """
    return {key: value for key, value in values.items() if value not in ("", b"", [])}


def data_request(record: ConfigRecord) -> DataRequest:
    """Read the request from a message on a node.

    Raises:
        WireError: It is of another protocol, or cannot be read.
    """
    if record.get("protocol") != PROTOCOL:
        raise WireError(
            f"the server speaks protocol {record.get('protocol')!r}, this client {PROTOCOL}: "
            "install the same flower-privsyn on both sides"
        )
    try:
        trains = json.loads(str(record["trains"]))
        check_printable(record.get("embedding-model"), record["embedding-precision"], trains)
        reads = str(record["reads"])
        if reads not in READS or (trains is not None and reads != "tokens"):
            raise WireError("the request does not say what is read")
        conditioned = record.get("conditioned", False)
        if not isinstance(conditioned, bool) or (conditioned and trains is None):
            raise WireError("the request does not say what conditions are for")
        embeds = conditioned or (trains is None and reads != "text")
        model = str(record.get("embedding-model", ""))
        if embeds and not model:
            raise WireError("the request names no embedding model")
        return DataRequest(
            embedding_model=model,
            embedding_precision=str(record["embedding-precision"]),
            max_tokens=int(record["max-tokens"]),  # type: ignore[arg-type]
            max_samples=int(record["max-samples"]),  # type: ignore[arg-type]
            newer_than=str(record.get("newer-than", "")),
            held_out_fraction=float(record["held-out-fraction"]),  # type: ignore[arg-type]
            seed=int(record["seed"]),  # type: ignore[arg-type]
            max_nodes_per_user=int(record["max-nodes-per-user"]),  # type: ignore[arg-type]
            trains=None if trains is None else TrainableModel.from_dict(trains),
            reads=reads,  # type: ignore[arg-type]
            classes=_classes(record.get("classes", [])),
            conditioned=conditioned,
        )
    except WireError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise WireError("the request's data settings cannot be read") from error


def check_printable(*found: object) -> None:
    """Refuse names that could write lines of their own into the log of a node.

    Args:
        found: texts, or lists and tables of them; what is neither is let through.

    Raises:
        WireError: one of them is not printable.
    """
    for one in found:
        if isinstance(one, Mapping):
            check_printable(*one.values())
        elif isinstance(one, list):
            check_printable(*one)
        elif isinstance(one, str) and not one.isprintable():
            raise WireError("the request holds a name that is not printable")


def _classes(found: object) -> tuple[str, ...]:
    """The classes of a request, which are different names."""
    names = tuple(found) if isinstance(found, list) else (None,)
    if not are_class_names(names):
        raise WireError(f"the request's classes are not different names, {CLASS_NAMES}")
    return tuple(map(str, names))
