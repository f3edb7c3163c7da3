"""The users of a node: their text read, cut and made into records, once for many messages."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal, Protocol

from flwr.app import Context

from flower_privsyn import environment
from flower_privsyn.client_apps.deal import check_deal
from flower_privsyn.client_apps.guard import NodeGuard, in_simulation
from flower_privsyn.client_apps.recipe import DRAWN_RUN_IDS, users_by, users_of_node
from flower_privsyn.client_apps.records import (
    EmbeddingSource,
    FixedRecords,
    Records,
    RecordSource,
    TextSource,
    TokenSource,
    open_store,
)
from flower_privsyn.data import Cut, Users
from flower_privsyn.embedding import (
    Embedder,
    RecordStore,
    default_cache_directory,
    load_embedder,
    load_tokenizer,
)
from flower_privsyn.errors import (
    ConfigError,
    DataError,
    ModelError,
    NotAllowedError,
    PrivsynError,
)
from flower_privsyn.files import located
from flower_privsyn.messages import wire
from flower_privsyn.queries import TrainableModel

logger = logging.getLogger("flower_privsyn.client")

#: A recipe: from the node's context to the users it hosts.
UserLoader = Callable[[Context], Users]
#: From a model name and a precision to an embedder.
EmbedderLoader = Callable[[str, str], Embedder]

#: Memory of one process for users kept between messages, so that a round costs only the vote.
_KEPT_BYTES = 4 * 2**30
#: Runs whose users are kept: two may be under way at once.
_MOST_RUNS = 2
#: ClientApps of other processes whose users are kept: a process of a simulation meets one.
_MOST_ARRIVED = 4
#: Embedders that are kept: a server says which, run after run, and a node lives for months.
_MOST_EMBEDDERS = 2
_ID_BYTES = 57  # of a text object and its place in a tuple, beside its characters

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
    """Carries a fixed code out of a handler; never text."""

    def __init__(self, code: wire.ClientErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


def default_embedder(name: str, precision: str) -> Embedder:
    """A sentence-transformers model by name or path, relative to where the command was typed."""
    return load_embedder(located(name), precision=precision)  # type: ignore[arg-type]


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

    @property
    def nbytes(self) -> int:
        """Bytes of this process's own memory; what is mapped from the disk is shared."""
        return self.records.nbytes + sum(_ID_BYTES + len(user) for user in self.user_ids)


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
        *,
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
        self._embedders: OrderedDict[tuple[str, str, str], Embedder] = OrderedDict()
        self._kept: OrderedDict[int, dict[tuple[object, ...], Prepared]] = OrderedDict()  # by run
        self._bytes = 0
        self._records: RecordStore | None = None
        self._opened = False
        self._lock = threading.Lock()
        self._loading = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """Travel to another process without locks, models or private records."""
        given = (self._load, self._load_embedder, self._cache_directory, self._trainer)
        return _arrived, (self._name, *given)

    @property
    def cache_directory(self) -> Path:
        """Where the node keeps what it has made of its text."""
        return self._cache_directory or default_cache_directory()

    @property
    def trains(self) -> bool:
        """Whether models are trained here."""
        return self._trainer is not None

    def _check_deal(
        self, user_ids: Sequence[str], data: wire.DataRequest, context: Context
    ) -> None:
        """In a simulation: refuse a recipe that puts a user on more nodes than declared.

        Whenever a node's users were read: another process may read others than the first one did.
        Not in a deployment, also where several nodes are on one machine and name partitions: which
        people two owners have in common is nothing that a server may learn.

        Raises:
            ClientError: it does, or the list that tells cannot be kept.
        """
        own = context.node_config
        if not in_simulation() or "num-partitions" not in own or context.run_id < DRAWN_RUN_IDS:
            return
        if self._load is users_of_node and "data" not in own:
            return  # dealt, and each to one
        try:
            check_deal(
                self.cache_directory,
                run_id=context.run_id,
                node_id=context.node_id,
                user_ids=user_ids,
                max_nodes=data.max_nodes_per_user,
            )
        except (ConfigError, DataError) as error:
            logger.error("%s", error)
            several = isinstance(error, ConfigError)
            code = wire.ClientErrorCode
            raise ClientError(code.USER_ON_SEVERAL_NODES if several else code.INTERNAL) from None

    def prepared(
        self,
        request: wire.DataRequest,
        context: Context,
        guard: NodeGuard,
        *,
        begins: bool = False,
    ) -> Prepared:
        """The users of a node, ready to be asked about.

        Args:
            request: how their text becomes records.
            context: of the node.
            guard: which models may be named.
            begins: whether a run begins with it, so that an earlier one of a number that somebody
                wrote down is over, and what was read for it may have changed.

        Raises:
            ClientError: text or model cannot be had; the node's log says why.
            NotAllowedError: the owner does not allow the model.
        """
        digests = models_of(request, guard)
        # The policy may be edited during a run: other people are read anew, and another model's
        # files compared.
        owner = (guard.dataset, *digests)
        key = (
            context.node_id,
            tuple(sorted((k, v) for k, v in context.node_config.items())),
            # A run id that somebody wrote down comes again, with other settings.
            tuple(sorted((k, v) for k, v in context.run_config.items())),
            request,
            owner,
        )
        with self._lock:
            kept = self._kept.get(context.run_id, {}).get(key)
            again = begins and context.run_id < DRAWN_RUN_IDS
            if kept is not None and not again:
                return kept
        prepared = self._prepare(request, context, guard, owner)
        with self._lock:
            self._keep(context.run_id, key, prepared)
        return prepared

    def _keep(self, run_id: int, key: tuple[object, ...], prepared: Prepared) -> None:
        """Keep what was made for a node, and let go of the first ones where memory is short.

        A node answers one run after another for months, and what is kept refers to its model: what
        was made for runs before the last two goes.
        """
        of_run = self._kept.setdefault(run_id, {})
        self._kept.move_to_end(run_id)
        if key in of_run:
            self._bytes -= of_run.pop(key).nbytes
        of_run[key] = prepared
        self._bytes += prepared.nbytes
        while len(self._kept) > _MOST_RUNS or (len(self._kept) > 1 and self._bytes > _KEPT_BYTES):
            _, others = self._kept.popitem(last=False)
            self._bytes -= sum(one.nbytes for one in others.values())
        while self._bytes > _KEPT_BYTES and len(of_run) > 1:
            self._bytes -= of_run.pop(next(iter(of_run))).nbytes

    def _prepare(
        self, request: wire.DataRequest, context: Context, guard: NodeGuard, owner: Sequence[str]
    ) -> Prepared:
        ticket = self._ticket(request, context, owner)
        try:
            store = None if ticket is None else self._store()
            stored = None if ticket is None or store is None else store.recall(ticket)
            if stored is not None:
                # Neither text nor model has been read.
                return Prepared(
                    records=FixedRecords.stored(stored),
                    user_ids=stored.user_ids,
                    fingerprint=stored.fingerprint,
                    dimension=stored.records.shape[1],
                )
            source = self._source(request, guard)
        except NotAllowedError:
            raise
        except PrivsynError as error:
            logger.error("%s", error)
            raise ClientError(wire.ClientErrorCode.EMBEDDER_UNAVAILABLE) from None
        try:
            cut = request.cut
            users = cut.asked(self._users(context, cut))
            self._check_deal(users.user_ids, request, context)
            records = self._read(source, users, cut, ticket)
        except ModelError as error:
            logger.error("%s", error)
            raise ClientError(wire.ClientErrorCode.EMBEDDER_UNAVAILABLE) from None
        except (DataError, ConfigError) as error:
            # Our own sentences name files, lines and keys, never text.
            logger.error("%s", error)
            raise ClientError(wire.ClientErrorCode.DATA_UNAVAILABLE) from None
        return Prepared(
            records=records,
            user_ids=tuple(users.user_ids),
            fingerprint=source.fingerprint,
            dimension=source.dimension,
        )

    def _users(self, context: Context, cut: Cut) -> Users:
        """Everybody; with labels from the default recipe only where the run asks for classes."""
        if self._load is users_of_node:
            return users_of_node(context, labels=bool(cut.classes))
        return users_by(self._load, context)

    def _read(self, source: RecordSource, users: Users, cut: Cut, ticket: str | None) -> Records:
        """The users' records: from the store where they are, else made and put there."""
        if not isinstance(source, EmbeddingSource) or source.store is None:
            samples = cut.samples(users, tokenizer=source.tokenizer)
            return source.read(samples, users.user_ids)
        key = source.key(users, cut)
        records = source.find(key)
        if records is None:
            samples = cut.samples(users, tokenizer=source.tokenizer)
            records = source.keep(key, source.read(samples, users.user_ids), users.user_ids)
        if ticket is not None and records.mapped:
            try:
                source.store.remember(ticket, key)
            except DataError as error:
                logger.warning("%s Every process reads the text once.", error)
        return records

    def _store(self) -> RecordStore | None:
        """The node's record store, opened once in a process."""
        with self._lock:
            if not self._opened:
                self._records = open_store(self.cache_directory)
                self._opened = True
            return self._records

    def _ticket(
        self, request: wire.DataRequest, context: Context, owner: Sequence[str]
    ) -> str | None:
        """Names what this run asked this node for, in every process of the node.

        A digest of the run's values and the owner's. None where nothing is stored, which is all but
        embeddings, and where the values do not settle whose text it is: for run ids that are used
        again, and for recipes that no import finds.
        """
        recipe, embedder = _importable(self._load), _importable(self._load_embedder)
        if recipe is None or embedder is None:
            return None
        if request.reads != "embeddings" or context.run_id < DRAWN_RUN_IDS:
            return None
        values = [
            context.run_id,
            context.node_id,
            sorted(context.node_config.items()),
            sorted(context.run_config.items()),
            os.environ.get(environment.WORKING_DIRECTORY, ""),
            recipe,
            embedder,
            asdict(request),
            *owner,
        ]
        return digest(json.dumps(values, default=str).encode())

    def _source(self, request: wire.DataRequest, guard: NodeGuard) -> RecordSource:
        if request.reads == "text":
            return TextSource()
        if request.trains is not None:
            if self._trainer is None:
                raise wire.WireError(TRAINS_NOTHING)
            name = guard.check_files("trained", request.trains.name)
            trains = replace(request.trains, name=name)
            if not request.conditioned:
                return self._trainer.source(trains)
            return self._trainer.source(trains, embeddings=self._embeddings(request, guard))
        if request.reads == "tokens":
            name = guard.check_files(_kind_of(request, guard), request.embedding_model)
            tokenizer, fingerprint = load_tokenizer(located(name))
            return TokenSource(tokenizer, fingerprint, request.max_tokens)
        return self._embeddings(request, guard)

    def _embeddings(self, request: wire.DataRequest, guard: NodeGuard) -> EmbeddingSource:
        """The embedding model of a request, loaded once, with the node's cache and store."""
        name = guard.check_files("embedding", request.embedding_model)
        # Files are replaced under one name, and what was loaded of the old ones has their digest.
        digest_of_files = guard.check_model("embedding", request.embedding_model)
        key = (name, request.embedding_precision, digest_of_files)
        with self._loading:
            embedder = self._embedders.pop(key, None)
            if embedder is None:
                embedder = self._load_embedder(name, request.embedding_precision)
            self._embedders[key] = embedder  # the last, where it was
            if len(self._embedders) > _MOST_EMBEDDERS:
                self._embedders.popitem(last=False)
        return EmbeddingSource(embedder, self.cache_directory, self._store())


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


def digest(data: bytes) -> str:
    """What names public values in the node's account and in its store."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _kind_of(request: wire.DataRequest, guard: NodeGuard) -> Literal["embedding", "trained"]:
    """As what the owner must allow a request's model; a tokenizer alone, as either."""
    if request.reads == "tokens" and guard.trains(request.embedding_model):
        return "trained"
    return "embedding"


def _importable(function: Callable[..., object]) -> str | None:
    """Where a function can be imported from; None for one that carries values of its own."""
    module, name = (getattr(function, key, None) for key in ("__module__", "__qualname__"))
    if not module or not name or "<" in name or "." in name:
        return None
    # A name may be borrowed, as by functools.wraps.
    if getattr(sys.modules.get(module), name, None) is not function:
        return None
    return f"{module}:{name}"


#: What has come from other processes, the latest last.
_ARRIVED: Final[OrderedDict[str, NodeUsers]] = OrderedDict()
_ARRIVING: Final = threading.Lock()


def _arrived(
    name: str,
    load: UserLoader,
    load_embedder: EmbedderLoader,
    cache_directory: Path | None,
    trainer: Trainer | None,
) -> NodeUsers:
    """What came with an earlier message, or else a new one."""
    with _ARRIVING:
        found = _ARRIVED.pop(name, None) or NodeUsers(
            load=load,
            load_embedder=load_embedder,
            cache_directory=cache_directory,
            trainer=trainer,
        )
        found._name = name  # that of its first process, should it travel on
        _ARRIVED[name] = found
        while len(_ARRIVED) > _MOST_ARRIVED:
            _ARRIVED.popitem(last=False)
    return found
