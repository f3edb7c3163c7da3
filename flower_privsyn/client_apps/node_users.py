"""Whose text a node answers from, who decides that, and the records that are made of it."""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import json
import logging
import os
import sqlite3
import sys
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
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
    open_store,
)
from flower_privsyn.data import Chunking, Gathered, Users, gather_configured, load_configured
from flower_privsyn.data.load import COLUMNS
from flower_privsyn.embedding import Embedder, load_embedder, load_tokenizer
from flower_privsyn.embedding.records import RecordStore
from flower_privsyn.environment import WORKING_DIRECTORY
from flower_privsyn.errors import (
    ConfigError,
    DataError,
    ModelError,
    NotAllowedError,
    PrivsynError,
)
from flower_privsyn.files import default_cache_directory, located, own_folder
from flower_privsyn.messages import wire
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy import skipping
from flower_privsyn.run_config import unfolded

logger = logging.getLogger("flower_privsyn.client")

_BUSY_SECONDS = 60.0
_KEPT_SECONDS = 7 * 24 * 3600.0


def check_partition(
    directory: Path, *, run_id: int, node_id: int, user_ids: Sequence[str], max_nodes: int
) -> None:
    """Note a node's users, and refuse a user who is on too many nodes of the run.

    The sensitivity of a sum rests on it. In a deployment nobody can check it: no node sees another
    one's users. The nodes of a simulation run on one machine for one owner, so there they can keep
    one list.

    Args:
        directory: the node's cache, which the nodes of one machine share; a list of hashes is kept
            there for a week.
        run_id: of the run; lists of two runs have nothing to do with each other.
        node_id: whose users they are.
        user_ids: who they are.
        max_nodes: on how many nodes one user may be.

    Raises:
        ConfigError: A user is on more nodes than that. The sentence names nobody.
        DataError: The list cannot be kept.
    """
    key = run_id.to_bytes(16, "big", signed=True)
    hashes = [
        hashlib.blake2b(user.encode(), digest_size=16, key=key, person=b"privsyn-deal").digest()
        for user in user_ids
    ]
    try:
        path = _list_of_run(directory / "partitions", run_id)
        with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)) as deal:
            # One node after the other: of two that share a user the second one sees the first.
            deal.execute("BEGIN IMMEDIATE")
            deal.execute(
                "CREATE TABLE IF NOT EXISTS deal (user BLOB, node TEXT, PRIMARY KEY (user, node)) "
                "WITHOUT ROWID"
            )
            deal.executemany(
                "INSERT OR IGNORE INTO deal VALUES (?, ?)",
                ((user, str(node_id)) for user in hashes),
            )
            (users, most) = deal.execute(
                "SELECT count(*), max(nodes) FROM (SELECT count(*) AS nodes FROM deal WHERE user "
                "IN (SELECT user FROM deal WHERE node = ?) GROUP BY user HAVING nodes > ?)",
                (str(node_id), max_nodes),
            ).fetchone()
            deal.execute("COMMIT")
    except (OSError, sqlite3.Error) as error:
        raise DataError(
            f"{directory / 'partitions'} cannot be written ({type(error).__name__}), so nobody can "
            "tell on how many nodes a user is."
        ) from None
    if users:
        raise ConfigError(
            f"the app's recipe puts {users} users of this node on {most} nodes, where "
            f"max-nodes-per-user = {max_nodes}: give every node users of its own, or set "
            "max-nodes-per-user, for more noise."
        )


def _list_of_run(folder: Path, run_id: int) -> Path:
    """The file of a run's list; a run that begins takes away those of long ago."""
    for place in (folder.parent, folder):
        own_folder(place)
    path = folder / f"{run_id}.sqlite"
    if not path.exists():
        for old in folder.glob("*.sqlite*"):
            with suppress(FileNotFoundError):  # a journal ends with its transaction
                if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
                    old.unlink()
    path.touch(mode=0o600)  # kept for as long as from now on
    return path


#: Flower draws run ids from 64 bits, so a smaller one was written down by somebody (a test, a
#: notebook) and will be written down again: nothing of such a run may be found by its id.
DRAWN_RUN_IDS: Final = 2**32

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
        with skipping.counting():  # what is left out is counted as it is read below
            load_configured(own, run, labels=labels, strict=True)
    if "data" in own or "num-partitions" not in own:
        return load_configured(own, run, labels=labels)
    return assigned.read(context.run_id, own, run, labels=labels)


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


class _AssignedUsers:
    """What the users of a simulation are assigned to nodes from, read as seldom as possible.

    A process prepares several nodes one after the other, and reading the file takes longer than
    all else once the records are on the disk. What was read last is kept until a question comes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[tuple[object, ...], Gathered] | None = None

    def read(
        self, run_id: int, own: Mapping[str, Any], run: Mapping[str, Any], *, labels: bool
    ) -> Users:
        """The users of a node.

        Args:
            run_id: As Flower drew it.
            own: The node's configuration.
            run: The run's.
            labels: Whether classes are read too.
        """
        node, nodes = (int(own[key]) for key in ("partition-id", "num-partitions"))
        names = [
            next(filter(None, (str(one.get(key, "")) for one in (own, run))), "")
            for key in ("data", *COLUMNS)
        ]
        key = (run_id, os.environ.get(WORKING_DIRECTORY, ""), labels, *names)
        with self._lock:
            if run_id < DRAWN_RUN_IDS or self._last is None or self._last[0] != key:
                self._last = None  # never two of them in memory
                self._last = key, gather_configured(own, run, labels=labels)
            return self._last[1].users(node, nodes)

    def forget(self) -> None:
        """Give up the memory."""
        with self._lock:
            self._last = None


assigned = _AssignedUsers()


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
        self._lock = threading.Lock()
        self._loading = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """Travel to another process without locks, models or private records."""
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

    def _check_partition(
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
            return  # partitioned, each on one
        try:
            check_partition(
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
            store = None if ticket is None else self._store
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
            chunking = request.chunking
            users = chunking.asked(self._users(context, chunking))
            self._check_partition(users.user_ids, request, context)
            records = self._read(source, users, chunking, ticket)
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

    def _users(self, context: Context, chunking: Chunking) -> Users:
        """Everybody; with labels from the default recipe only where the run asks for classes."""
        if self._load is users_of_node:
            return users_of_node(context, labels=bool(chunking.classes))
        return users_by(self._load, context)

    def _read(
        self, source: RecordSource, users: Users, chunking: Chunking, ticket: str | None
    ) -> Records:
        """The users' records: from the store where they are, else made and put there."""
        if not isinstance(source, EmbeddingSource) or source.store is None:
            samples = chunking.samples(users, tokenizer=source.tokenizer)
            return source.read(samples, users.user_ids)
        key = source.key(users, chunking)
        records = source.find(key)
        if records is None:
            samples = chunking.samples(users, tokenizer=source.tokenizer)
            records = source.keep(key, source.read(samples, users.user_ids), users.user_ids)
        if ticket is not None and records.mapped:
            try:
                source.store.remember(ticket, key)
            except DataError as error:
                logger.warning("%s Every process reads the text once.", error)
        return records

    @cached_property
    def _store(self) -> RecordStore | None:
        """The node's record store, opened once in a process."""
        return open_store(self.cache_directory)

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


def _arrived(name: str, given: tuple[Any, ...]) -> NodeUsers:
    """What came with an earlier message, or else a new one."""
    with _ARRIVING:
        found = _ARRIVED.pop(name, None) or NodeUsers(*given)
        found._name = name  # that of its first process, should it travel on
        _ARRIVED[name] = found
        while len(_ARRIVED) > _MOST_ARRIVED:
            _ARRIVED.popitem(last=False)
    return found
