"""Whose text a node answers from, who decides that, and the records made of it."""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import logging
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from flwr.app import Context

from flower_privsyn import environment
from flower_privsyn.client_apps.guard import NodeGuard, in_simulation
from flower_privsyn.client_apps.records import (
    EmbeddingSource,
    FixedRecords,
    Records,
    RecordSource,
    TextSource,
    TokenSource,
)
from flower_privsyn.data import Users, load_configured
from flower_privsyn.data.load import COLUMNS
from flower_privsyn.embedding import Embedder, load_embedder, load_tokenizer
from flower_privsyn.embedding.records import RecordStore, StoredRecords, limit_bytes
from flower_privsyn.errors import (
    ConfigError,
    DataError,
    MissingExtraError,
    ModelError,
    NotAllowedError,
)
from flower_privsyn.files import default_cache_directory, own_folder, remove_old
from flower_privsyn.messages import wire
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.queries import Cohort
from flower_privsyn.queries.query import public_embedding
from flower_privsyn.run_config import unfolded

logger = logging.getLogger("flower_privsyn.client")

#: Flower draws run ids from 64 bits, so a smaller one was written down by somebody (a test, a
#: notebook) and will be written down again: nothing of such a run may be found by its id.
DRAWN_RUN_IDS: Final = 2**32

#: For how long a list of whose id is on which node is kept after it was last added to.
_KEPT_SECONDS: Final = 7 * 24 * 3600.0

_strict: Final = contextvars.ContextVar("strict", default=False)


@contextlib.contextmanager
def strictly() -> Iterator[None]:
    """In this block what `users_of_node` would leave out in silence is named.

    For whoever holds the data of a simulation and is about to begin it.
    """
    token = _strict.set(True)
    try:
        yield
    finally:
        _strict.reset(token)


def users_of_node(context: Context, *, labels: bool = True, sample: Path | None = None) -> Users:
    """The default recipe: the users of `data`.

    A SuperNode reads from its own configuration alone: `data` (a file, a folder, or the name of a
    data set, as `load_users` takes it), whose users are all its own, `client-column`,
    `text-column`, `date-column` and `label-column` (default `client_id`, `text`, `date`, `label`).
    In a simulation, where one person owns everything, the run's configuration counts where the
    node's says nothing, and the users are partitioned over the nodes by `partition-id` and
    `num-partitions`.

    Args:
        context: Of the node.
        labels: Whether the classes of documents are read too, as for a run that asks for classes.
        sample: A file of users that comes with an app: what a run means by ``data = "sample"`` in a
            simulation, in place of the 600 speakers who come with the package.

    Formal guarantee:
        Outside a simulation the unit of privacy, one value of the owner's `client-column`, and the
        data are the owner's choice; no run changes them.

    Raises:
        DataError: nothing names the data, or they cannot be read.
        NotAllowedError: outside a simulation, the run names data or a column that the owner did
            not name.
    """
    own, run = context.node_config, unfolded(context.run_config)
    if not in_simulation():
        _refuse_names_of(run, own)
        return load_configured(own, labels=labels)
    if sample is not None and run.get("data") == "sample":
        run = {**run, "data": str(sample)}
    if _strict.get():
        load_configured(own, run, labels=labels, strict=True)
    if "data" in own or "num-partitions" not in own:
        return load_configured(own, run, labels=labels)
    if context.run_id < DRAWN_RUN_IDS:
        assigned.cache_clear()
    settings = ((key, str(own.get(key) or run.get(key) or "")) for key in ("data", *COLUMNS))
    directory = os.environ.get(environment.WORKING_DIRECTORY, "")
    everybody = assigned(context.run_id, directory, labels, *settings)
    node, nodes = int(own["partition-id"]), int(own["num-partitions"])
    return everybody.partition(partition_id=node, num_partitions=nodes)


def users_by(load: Callable[[Context], Users], context: Context) -> Users:
    """The users of a node by a recipe, which may be an app's own.

    Args:
        load: The recipe.
        context: Of the node.

    Raises:
        DataError: It returns something else; the sentence says what, by its type alone.
        Exception: Whatever an app's own recipe raises.
    """
    users: object = load(context)
    if not isinstance(users, Users):
        name = getattr(load, "__qualname__", type(load).__name__)
        what = "nothing" if users is None else f"a {type(users).__name__}"
        raise DataError(
            f"The app's {name} must return Users, as load_users and Users.from_rows make them, and "
            f"returned {what}."
        )
    return users


def _refuse_names_of(run: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse a run that says what a SuperNode reads; what its owner has said stands."""
    for key, default in {"data": "", **COLUMNS}.items():
        named = str(run.get(key, ""))
        if own.get(key) or named in ("", default):
            continue
        if key == "data":
            raise NotAllowedError(
                f'The run names the data "{named}", and this node\'s owner names none: what a node '
                "reads is its owner's choice (--node-config 'data=\"/path/users.jsonl\"')."
            )
        unit = ", and with it whom the guarantee is for" if key == "client-column" else ""
        raise NotAllowedError(
            f'The run names the {key} "{named}"; this node reads "{default}"{unit}, unless its '
            f"owner names another (--node-config '{key}=\"{named}\"')."
        )


@lru_cache(maxsize=1)
def assigned(run_id: int, directory: str, labels: bool, *named: tuple[str, str]) -> Users:  # noqa: ARG001
    """What the users of a simulation are assigned to nodes from, read once for several nodes.

    A process prepares several nodes one after the other, and reading the file takes longer than
    all else once the records are on the disk. What was read is kept until a question comes.

    Args:
        run_id: as Flower drew it.
        directory: where the command was typed, for `data` is relative to it.
        labels: whether classes are read too.
        named: `data` and the columns, by their keys.
    """
    return load_configured(dict(named), labels=labels)


#: A recipe: from the node's context to the users it hosts.
UserLoader = Callable[[Context], Users]
#: From a model name and a precision to an embedder.
EmbedderLoader = Callable[[str, str], Embedder]

TRAINS_NOTHING: Final = (
    "this client app trains no models: serve flower_privsyn.client_apps.training:app, or in your "
    "own app add_handlers(app, load, trainer=LocalTraining())"
)
"""What is said where a server asks for training."""


class Trainer(Protocol):
    """What trains models on the node: `flower_privsyn.client_apps.training.LocalTraining`."""

    def source(
        self, model: TrainableModel, *, embeddings: EmbeddingSource | None = None
    ) -> RecordSource:
        """Load a model whose updates are asked for.

        Args:
            model: which, and what of it.
            embeddings: finds the conditions that documents are trained on after; None where they
                have none.
        """


class ClientError(Exception):
    """Carries a fixed code out of a handler, and a sentence of ours for the node's own log."""

    def __init__(self, code: wire.ClientErrorCode, said: object) -> None:
        super().__init__(str(said))
        self.code = code


def default_embedder(name: str, precision: str) -> Embedder:
    """A sentence-transformers model by name or path, relative to where the command was typed."""
    return load_embedder(name, precision=precision)  # type: ignore[arg-type]


@dataclass(frozen=True, repr=False)
class Prepared:
    """A node's users, in memory between messages.

    Attributes:
        records: of all of them.
        user_ids: who they are.
        fingerprint: of the model that made the records.
        dimension: numbers in a record.
    """

    records: Records
    user_ids: tuple[str, ...]
    fingerprint: str
    dimension: int

    @classmethod
    def stored(cls, stored: StoredRecords) -> Prepared:
        """Those on the disk; neither text nor model is read."""
        cohort = Cohort(stored.records, stored.owners, len(stored.user_ids), stored.labels)
        dimension = stored.records.shape[1]
        records = FixedRecords(cohort, public_embedding(dimension))
        return cls(records, stored.user_ids, stored.fingerprint, dimension)


class NodeUsers:
    """Reads the users of the nodes that one process answers for, and keeps their records.

    Copies of one that reach another process are one there: Flower's simulation sends its ClientApp
    with every message, and what a process has read once it reads no second time.

    Args:
        load: from a node's context to its users.
        load_embedder: from a model name and a precision to an embedder.
        cache_directory: of the node; None for the default.
        trainer: trains models; None where none is trained.
    """

    def __init__(
        self,
        load: UserLoader,
        load_embedder: EmbedderLoader,
        cache_directory: Path | None,
        trainer: Trainer | None,
    ) -> None:
        self._load = load
        self._load_embedder = load_embedder
        self._cache_directory = cache_directory
        self._trainer = trainer
        self._name = uuid.uuid4().hex
        self._run: int | None = None
        self._kept: dict[tuple[object, ...], Prepared] = {}  # of that run
        # Files are replaced under one name, and what was loaded of the old ones has their digest.
        self._embedder = lru_cache(maxsize=1)(
            lambda name, precision, digest: load_embedder(name, precision)  # noqa: ARG005
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Travel to another process without models or private records."""
        given = (self._load, self._load_embedder, self._cache_directory, self._trainer)
        return _arrived, (self._name, given)

    @property
    def cache_directory(self) -> Path:
        """Where the node keeps what it has made of its text."""
        return self._cache_directory or default_cache_directory()

    @property
    def trains(self) -> bool:
        """Whether models are trained here."""
        return self._trainer is not None

    def _refuse_copies(self, users: Users, data: wire.DataRequest, context: Context) -> None:
        """In a simulation: refuse a recipe that puts a user on more nodes than the run declares.

        The sensitivity of a sum rests on it. The nodes keep a list of hashes of their ids, a file
        for each run. Not in a deployment, also where several nodes are on one machine: which people
        two owners have in common is nothing that a server may learn.

        Raises:
            ConfigError: it does. The sentence names nobody.
            OSError: the list cannot be kept.
            sqlite3.Error: the same.
        """
        dealt = self._load is users_of_node and "data" not in context.node_config  # each to one
        if dealt or not in_simulation() or context.run_id < DRAWN_RUN_IDS:
            return
        key, node = str(context.run_id).encode(), str(context.node_id)
        file = self.cache_directory / f"partition-{context.run_id}.sqlite"
        own_folder(file.parent)
        file.touch(mode=0o600)
        remove_old(file.parent.glob("partition-*.sqlite"), seconds=_KEPT_SECONDS)
        rows = ((hashlib.blake2b(user.encode(), key=key).digest(), node) for user in users.user_ids)
        on = "SELECT count(*) FROM deal JOIN deal own USING (user) WHERE own.node = ? GROUP BY user"
        with contextlib.closing(sqlite3.connect(file, timeout=60.0)) as deal:
            deal.execute("CREATE TABLE IF NOT EXISTS deal (user, node, PRIMARY KEY (user, node))")
            with deal:
                deal.executemany("INSERT OR IGNORE INTO deal VALUES (?, ?)", rows)
            # Once its own are noted: of two nodes that share a user the later one sees it.
            most = max((count for (count,) in deal.execute(on, (node,))), default=0)
        if most > data.max_nodes_per_user:
            raise ConfigError(
                f"the app's recipe puts users on {most} nodes, where max-nodes-per-user = "
                f"{data.max_nodes_per_user}: give every node users of its own, or set "
                "max-nodes-per-user, for more noise."
            )

    def prepared(
        self,
        request: wire.DataRequest,
        context: Context,
        guard: NodeGuard,
        *,
        begins: bool = False,
    ) -> Prepared:
        """The node's users, in memory between the messages of one run.

        Args:
            request: how records are made.
            context: of the message.
            guard: the owner's word. The owner's data set and digests count: the policy may be
                edited during a run, and then other people are read anew.
            begins: whether a run begins, so that nothing that was read before counts.

        Raises:
            ClientError: text or model cannot be had; the node's log says why.
            NotAllowedError: the owner does not allow the model.
        """
        key = (
            context.node_id,
            request,
            *sorted(context.node_config.items()),
            *sorted(context.run_config.items()),
            guard.dataset,
            *models_of(request, guard),
        )
        if self._run != context.run_id:
            self._run, self._kept = context.run_id, {}
        if begins or key not in self._kept:
            self._kept[key] = self._prepare(request, context, guard, key)
        return self._kept[key]

    def _prepare(
        self,
        request: wire.DataRequest,
        context: Context,
        guard: NodeGuard,
        key: tuple[object, ...],
    ) -> Prepared:
        # Of what a run asked this node for, in every process of the node: a run has one app.
        name = ""
        if request.reads == "embeddings" and context.run_id >= DRAWN_RUN_IDS:
            values = repr((context.run_id, key)).encode()
            name = hashlib.blake2b(values, digest_size=16).hexdigest()
        try:
            store = self._store if name else None
            stored = None if store is None else store.find(name)
            if stored is not None:
                return Prepared.stored(stored)
            source = self._source(request, guard)
            chunking = request.chunking
            load = self._load
            if load is users_of_node:  # which reads labels only where the run asks for classes
                load = partial(users_of_node, labels=bool(chunking.classes))
            users = chunking.asked(users_by(load, context))
            self._refuse_copies(users, request, context)
            samples = chunking.samples(users, tokenizer=source.tokenizer)
            records = source.read(samples, users.user_ids)
        except (DataError, ConfigError) as error:
            # Our own sentences name files, lines and keys, never text.
            raise ClientError(wire.ClientErrorCode.DATA_UNAVAILABLE, error) from None
        except (ModelError, MissingExtraError) as error:
            raise ClientError(wire.ClientErrorCode.EMBEDDER_UNAVAILABLE, error) from None
        if store is not None and isinstance(records, FixedRecords):
            made = StoredRecords(
                records=records.cohort.records,
                owners=records.cohort.owners,
                labels=records.cohort.labels,
                user_ids=tuple(users.user_ids),
                fingerprint=source.fingerprint,
            )
            try:
                return Prepared.stored(store.put(name, made))
            except DataError as error:
                logger.warning("%s They stay in the memory of this process.", error)
        return Prepared(
            records=records,
            user_ids=tuple(users.user_ids),
            fingerprint=source.fingerprint,
            dimension=source.dimension,
        )

    @cached_property
    def _store(self) -> RecordStore | None:
        """The node's record store; None, with a warning, where it cannot be written.

        Without one every process keeps the records of its nodes in its own memory.
        """
        if limit_bytes() == 0:
            return None
        try:
            return RecordStore(self.cache_directory)
        except DataError as error:
            logger.warning("%s Every process keeps records in its own memory.", error)
            return None

    def _source(self, request: wire.DataRequest, guard: NodeGuard) -> RecordSource:
        if request.reads == "text":
            return TextSource()
        if request.trains is not None:
            if self._trainer is None:
                raise wire.WireError(TRAINS_NOTHING)
            name = guard.check_files("trained", request.trains.name)
            trains = replace(request.trains, name=name)
            embeddings = self._embeddings(request, guard) if request.conditioned else None
            return self._trainer.source(trains, embeddings=embeddings)
        if request.reads == "tokens":
            name = guard.check_files(_kind_of(request, guard), request.embedding_model)
            tokenizer, fingerprint = load_tokenizer(name)
            return TokenSource(tokenizer, fingerprint, request.max_tokens)
        return self._embeddings(request, guard)

    def _embeddings(self, request: wire.DataRequest, guard: NodeGuard) -> EmbeddingSource:
        """The embedding model of a request, loaded once, with the node's cache and store."""
        name = guard.check_files("embedding", request.embedding_model)
        digest = guard.check_model("embedding", request.embedding_model)
        embedder = self._embedder(name, request.embedding_precision, digest)
        return EmbeddingSource(embedder, self._store)


def models_of(request: wire.DataRequest, guard: NodeGuard) -> tuple[str, ...]:
    """The digests that a node's owner states of a request's models; "" for any files.

    Raises:
        NotAllowedError: the owner does not allow one of them.
    """
    if request.trains is not None:
        trained = guard.check_model("trained", request.trains.name)
        if not request.conditioned:
            return (trained,)
        return trained, guard.check_model("embedding", request.embedding_model)
    if request.reads == "text":
        return ()
    return (guard.check_model(_kind_of(request, guard), request.embedding_model),)


def _kind_of(request: wire.DataRequest, guard: NodeGuard) -> Literal["embedding", "trained"]:
    """As what the owner must allow a request's model; a tokenizer alone, as either."""
    if request.reads == "tokens" and guard.trains(request.embedding_model):
        return "trained"
    return "embedding"


#: What has come from other processes; a process of a simulation meets one.
_ARRIVED: Final[dict[str, NodeUsers]] = {}


def _arrived(name: str, given: tuple[Any, ...]) -> NodeUsers:
    """What came with an earlier message, or else a new one."""
    found = _ARRIVED.setdefault(name, NodeUsers(*given))
    found._name = name  # that of its first process, should it travel on
    return found
