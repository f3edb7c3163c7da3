"""The client's half of every method: load the node's users, answer, say nothing else.

One handler serves the preparation request and one each query: the bundled ones, those that the app
was made with, and those that installed packages offer (`flower_privsyn.queries.known`). A new
method needs no change here. Replies hold the summed answer and the head-count. An exception
leaves the node as a fixed code: its text may quote private data, so it stays in the node's log.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_privsyn import environment
from flower_privsyn.client_apps.answers import answer_of, report
from flower_privsyn.client_apps.cpu_time import counted
from flower_privsyn.client_apps.deal import check_deal
from flower_privsyn.client_apps.recipe import DRAWN_RUN_IDS, dealt, users_of_node
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
    LedgerError,
    ModelError,
    NotAllowedError,
    PrivsynError,
)
from flower_privsyn.files import located
from flower_privsyn.messages import wire
from flower_privsyn.node import Charge, NodeGuard, in_simulation
from flower_privsyn.privacy import (
    FixedSizeSampling,
    PoissonSampling,
    RandomSource,
    SecureRandom,
    quarantine,
)
from flower_privsyn.privacy.grid import LARGEST_SUM
from flower_privsyn.queries import QUERIES, Query, TrainableModel
from flower_privsyn.queries.known import KnownQuery, known_queries

logger = logging.getLogger("flower_privsyn.client")

#: A recipe: from the node's context to the users it hosts.
UserLoader = Callable[[Context], Users]
#: From a model name and a precision to an embedder.
EmbedderLoader = Callable[[str, str], Embedder]

#: Memory of one process for users kept between messages, so that a round costs only the vote.
_KEPT_BYTES = 4 * 2**30
_ID_BYTES = 57  # of a text object and its place in a tuple, beside its characters


class Trainer(Protocol):
    """What trains models on the node: `flower_privsyn.client_apps.training.LocalTraining`."""

    def source(self, model: TrainableModel) -> RecordSource:
        """Load a model whose updates are asked for."""


class _ClientError(Exception):
    """Carries a fixed code out of a handler; never text."""

    def __init__(self, code: wire.ClientErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


def create_client_app(
    load: UserLoader | None = None,
    *,
    embedder: EmbedderLoader | None = None,
    cache_directory: str | Path | None = None,
    trainer: Trainer | None = None,
    queries: Sequence[type[Query]] = (),
    random: RandomSource | None = None,
) -> ClientApp:
    """Build the ClientApp that serves every strategy of this package.

    Args:
        load: from the node's context to its users. The default, `users_of_node`, reads the file
            or dataset named by `data` in the node's configuration (in a simulation also the run's).
        embedder: from (model name, precision) to an embedder; the default loads
            sentence-transformers models.
        cache_directory: where embeddings of the node's own text are kept. Default:
            `PRIVSYN_CACHE`, else `~/.cache/flower-privsyn`.
        trainer: for strategies that train models on the nodes; see
            `flower_privsyn.client_apps.training`. Without it such requests are refused.
        queries: classes of your own questions, answered beside the bundled ones and those that
            installed packages offer as entry points of the group "flower_privsyn.queries". Outside
            a simulation the owner of a node allows them by name (docs/node_policy.md).
        random: source of noise shares; only tests pass one.

    Returns:
        A ClientApp that answers `query.prepare` and `query.<name>` of every known query. To serve
        other actions too, call `add_handlers` on an app of your own.

    Raises:
        ConfigError: one of `queries` cannot be asked, or a name stands for two questions.
    """
    app = ClientApp()
    add_handlers(
        app,
        load,
        embedder=embedder,
        cache_directory=cache_directory,
        trainer=trainer,
        queries=queries,
        random=random,
    )
    return app


def add_handlers(
    app: ClientApp,
    load: UserLoader | None = None,
    *,
    embedder: EmbedderLoader | None = None,
    cache_directory: str | Path | None = None,
    trainer: Trainer | None = None,
    queries: Sequence[type[Query]] = (),
    random: RandomSource | None = None,
) -> None:
    """Add this package's handlers to an existing ClientApp; arguments as `create_client_app`."""
    node = _Node(
        load=load or users_of_node,
        load_embedder=embedder or default_embedder,
        cache_directory=Path(cache_directory) if cache_directory else None,
        trainer=trainer,
        queries=known_queries(QUERIES, queries),
        random=random or SecureRandom(),
    )

    @app.query("prepare")
    def prepare(message: Message, context: Context) -> Message:
        return _guarded(node, node.prepare, message, context)

    for name in node.queries:
        _register(app, node, name)


def _register(app: ClientApp, node: _Node, name: str) -> None:
    @app.query(name)
    def answer(message: Message, context: Context) -> Message:
        return _guarded(node, lambda msg, ctx: node.answer(msg, ctx, name), message, context)


def _guarded(
    node: _Node,
    handler: Callable[[Message, Context], Message],
    message: Message,
    context: Context,
) -> Message:
    """Run a handler; whatever goes wrong leaves as a code."""
    try:
        with counted(message, context), quarantine.counting() as tally:
            reply = handler(message, context)
        report(tally, context, node.cache_directory)
        return reply
    except _ClientError as error:
        return wire.error_reply(error.code, message)
    except NotAllowedError as error:
        # Our own sentences: what was asked, what is allowed, and what public runs have spent.
        logger.error("%s", error)
        return wire.error_reply(wire.ClientErrorCode.NOT_ALLOWED, message)
    except LedgerError as error:
        logger.error("%s", error)
        return wire.error_reply(wire.ClientErrorCode.INTERNAL, message)
    except wire.WireError as error:
        logger.error("request refused: %s", error)
        return wire.error_reply(wire.ClientErrorCode.BAD_REQUEST, message)
    except BaseException as error:
        # The type is safe to log; the text and the traceback may quote private data, so they are
        # shown on the node alone, and only when its owner asks for them.
        logger.error(
            "the client app failed with %s (set %s=1 on this node to see where)",
            type(error).__name__,
            environment.CLIENT_TRACEBACK,
            exc_info=bool(os.environ.get(environment.CLIENT_TRACEBACK)),
        )
        return wire.error_reply(wire.ClientErrorCode.INTERNAL, message)


def _guard(context: Context) -> NodeGuard:
    """The owner's word; a node whose policy cannot be used answers nothing."""
    try:
        return NodeGuard.of(context.node_config)
    except ConfigError as error:
        raise NotAllowedError(str(error)) from None


def default_embedder(name: str, precision: str) -> Embedder:
    """A sentence-transformers model by name or path, relative to where the command was typed."""
    return load_embedder(located(name), precision=precision)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Prepared:
    """A node's users, in memory between messages."""

    records: Records
    user_ids: tuple[str, ...]
    fingerprint: str
    dimension: int

    @property
    def nbytes(self) -> int:
        """Bytes of this process's own memory; what is mapped from the disk is shared."""
        return self.records.nbytes + sum(_ID_BYTES + len(user) for user in self.user_ids)


class _Node:
    """What the handlers share in one process."""

    def __init__(
        self,
        *,
        load: UserLoader,
        load_embedder: EmbedderLoader,
        cache_directory: Path | None,
        trainer: Trainer | None,
        queries: Mapping[str, KnownQuery],
        random: RandomSource,
    ) -> None:
        self.queries = queries
        self._load = load
        self._load_embedder = load_embedder
        self._cache_directory = cache_directory
        self._trainer = trainer
        self._random = random
        self._embedders: dict[tuple[str, str], Embedder] = {}
        self._kept: OrderedDict[tuple[object, ...], _Prepared] = OrderedDict()
        self._records: RecordStore | None = None
        self._opened = False
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """Travel to another process without locks, models or private records."""
        return (
            _rebuild_node,
            (
                self._load,
                self._load_embedder,
                self._cache_directory,
                self._trainer,
                self.queries,
                self._random,
            ),
        )

    @property
    def cache_directory(self) -> Path:
        """Where the node keeps what it has made of its text."""
        return self._cache_directory or default_cache_directory()

    def prepare(self, message: Message, context: Context) -> Message:
        """Load the node's text and what answers are made with; report the roster."""
        data, plan = wire.unpack_prepare(message)
        asked = self._asked(plan.queries)
        if asked and not any(map(data.suits, asked)):
            raise wire.WireError(f"{', '.join(plan.queries)}: asked about {_about(data)}")
        guard = _guard(context)
        guard.check_plan(plan, context.run_id, max_nodes_per_user=data.max_nodes_per_user)
        prepared = self._prepared(data, context, guard)
        self._check_deal(prepared.user_ids, data, context)
        roster = wire.Roster(
            num_users=len(prepared.user_ids),
            embedder=prepared.fingerprint,
            dimension=prepared.dimension,
        )
        return wire.reply(wire.pack_roster(roster), message)

    def _check_deal(
        self, user_ids: Sequence[str], data: wire.DataRequest, context: Context
    ) -> None:
        """In a simulation: refuse a recipe that puts a user on more nodes than declared."""
        own = context.node_config
        if "num-partitions" not in own or context.run_id < DRAWN_RUN_IDS:
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
        except DataError as error:
            logger.error("%s", error)
            raise _ClientError(wire.ClientErrorCode.USER_ON_SEVERAL_NODES) from None

    def _asked(self, names: Sequence[str]) -> list[type[Query]]:
        """The questions of these names; updates of models are asked for where the app trains."""
        unknown = {name for name in names if name not in self.queries}
        try:
            found = [self.queries[name].load() for name in names if name not in unknown]
        except ConfigError as error:
            logger.error("%s", error)
            raise _ClientError(wire.ClientErrorCode.UNKNOWN_QUERY) from None
        if self._trainer is None:
            unknown |= {query.name for query in found if query.trains}
        if unknown:
            logger.error(
                "the run asks %s, which this client app does not answer: install the server's "
                "flower-privsyn here%s",
                ", ".join(sorted(unknown)),
                "" if self._trainer else ", or serve flower_privsyn.client_apps.training:app",
            )
            raise _ClientError(wire.ClientErrorCode.UNKNOWN_QUERY)
        return found

    def answer(self, message: Message, context: Context, name: str) -> Message:
        """Answer one round's question."""
        (query_class,) = self._asked([name])
        try:
            ask = wire.unpack_ask(message, query_class)
        except PrivsynError as error:
            raise wire.WireError(str(error)) from None
        if not ask.data.suits(ask.query):
            raise wire.WireError(f"{name} is not asked about {_about(ask.data)}")
        guard = _guard(context)
        charge = self._charge(ask, message, context, guard)
        guard.check(charge)
        prepared = self._prepared(ask.data, context, guard)
        dealt.forget()
        try:
            ask.query.check(ask.broadcast, dimension=prepared.dimension)
        except ValueError as error:
            raise wire.WireError(str(error)) from None
        sampling = ask.sampling
        if isinstance(sampling, FixedSizeSampling) and sampling.population < len(prepared.user_ids):
            raise wire.WireError("the request's population is smaller than this node's users alone")
        chosen = sampling.participants(
            prepared.user_ids,
            key=ask.sampling_key,
            count=ask.sample_count if ask.sample_count >= 0 else None,
        )
        num_users = int(chosen.sum())
        if ask.query.answer_bound(num_users) > LARGEST_SUM:
            raise wire.WireError("the clip norm lets sums leave the numbers that are exact")
        if (most := ask.query.largest_cohort) is not None and num_users > most:
            raise wire.WireError("the question is not asked about so many users on a node")
        # Contributions lie on a grid, so that the sum does not depend on how it is put together.
        total = np.zeros(ask.query.answer_length(ask.broadcast), dtype=np.float64)
        for cohort in prepared.records.cohorts(ask, chosen):
            total += answer_of(ask.query, cohort, ask.broadcast)
        if ask.noise == "shares":
            total = ask.mechanism.share(
                total,
                num_shares=num_users,
                of=ask.shares_required,
                random=self._random,
            )
        # On the node's disk before anything leaves; what never leaves stays charged.
        guard.charge(charge)
        answer = wire.Answer(total=total, num_users=num_users)
        return wire.reply(wire.pack_answer(answer), message)

    def _charge(
        self, ask: wire.Ask, message: Message, context: Context, guard: NodeGuard
    ) -> Charge:
        """What an answer is charged as in the node's own account."""
        config = context.node_config
        # Outside a simulation, whether a recipe deals its users, only its author knows.
        parts = in_simulation() and "partition-id" in config and "num-partitions" in config
        return Charge(
            server=guard.server,
            run=context.run_id,
            node=context.node_id,
            partition=(int(config["partition-id"]), int(config["num-partitions"]))
            if parts
            else None,
            round_number=ask.round_number,
            num_rounds=ask.num_rounds,
            query=ask.query.name,
            question=_question(message, context),
            clip_norm=ask.query.clip_norm,
            mechanism=ask.mechanism,
            relation=ask.relation,
            sampling=ask.sampling,
            noise=ask.noise,
            shares_required=ask.shares_required,
            correlation=ask.correlation,
            max_nodes_per_user=ask.data.max_nodes_per_user,
            coins=_coins(ask),
        )

    def _prepared(self, request: wire.DataRequest, context: Context, guard: NodeGuard) -> _Prepared:
        if request.trains is not None:
            guard.check_model("trained", request.trains.name)
        elif request.reads != "text":
            guard.check_model("embedding", request.embedding_model)
        key = (
            context.run_id,
            context.node_id,
            tuple(sorted((k, v) for k, v in context.node_config.items())),
            # A run id that somebody wrote down comes again, with other settings.
            tuple(sorted((k, v) for k, v in context.run_config.items())),
            request,
        )
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        prepared = self._prepare(request, context, guard)
        with self._lock:
            self._kept[key] = prepared
            while (
                len(self._kept) > 1
                and sum(kept.nbytes for kept in self._kept.values()) > _KEPT_BYTES
            ):
                self._kept.popitem(last=False)
        return prepared

    def _prepare(self, request: wire.DataRequest, context: Context, guard: NodeGuard) -> _Prepared:
        ticket = self._ticket(request, context)
        try:
            store = None if ticket is None else self._store()
            stored = None if ticket is None or store is None else store.recall(ticket)
            if stored is not None:
                # Neither text nor model has been read.
                return _Prepared(
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
            raise _ClientError(wire.ClientErrorCode.EMBEDDER_UNAVAILABLE) from None
        try:
            cut = request.cut
            users = cut.asked(self._load(context))
            records = self._read(source, users, cut, ticket)
        except ModelError as error:
            logger.error("%s", error)
            raise _ClientError(wire.ClientErrorCode.EMBEDDER_UNAVAILABLE) from None
        except (DataError, ConfigError) as error:
            # Our own sentences name files, lines and keys, never text.
            logger.error("%s", error)
            raise _ClientError(wire.ClientErrorCode.DATA_UNAVAILABLE) from None
        return _Prepared(
            records=records,
            user_ids=tuple(users.user_ids),
            fingerprint=source.fingerprint,
            dimension=source.dimension,
        )

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

    def _ticket(self, request: wire.DataRequest, context: Context) -> str | None:
        """Names what this run asked this node for, in every process of the node.

        A digest of public values. None where nothing is stored, which is all but embeddings, and
        where the values do not settle whose text it is: for run ids that are used again, and for
        recipes that no import finds.
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
        ]
        return _digest(json.dumps(values, default=str).encode())

    def _source(self, request: wire.DataRequest, guard: NodeGuard) -> RecordSource:
        if request.reads == "text":
            return TextSource()
        if request.trains is not None:
            if self._trainer is None:
                raise wire.WireError(
                    "this client app trains no models: make it with "
                    "flower_privsyn.client_apps.training.create_training_app"
                )
            name = guard.check_files("trained", request.trains.name)
            return self._trainer.source(replace(request.trains, name=name))
        name = guard.check_files("embedding", request.embedding_model)
        if request.reads == "tokens":
            tokenizer, fingerprint = load_tokenizer(located(name))
            return TokenSource(tokenizer, fingerprint, request.max_tokens)
        key = (name, request.embedding_precision)
        if key not in self._embedders:
            self._embedders[key] = self._load_embedder(*key)
        return EmbeddingSource(self._embedders[key], self.cache_directory, self._store())


def _about(data: wire.DataRequest) -> str:
    """What a request has its questions about, for a sentence."""
    return "updates of a model" if data.trains is not None else data.reads


def _question(message: Message, context: Context) -> str:
    """Digest of a request and of the configurations it is answered under.

    What a recipe reads may depend on either, and with it the answer. The node's `policy` decides
    only whether there is one.
    """
    node = {key: value for key, value in context.node_config.items() if key != "policy"}
    values = [
        wire.request_digest(message),
        sorted(node.items()),
        sorted(context.run_config.items()),
    ]
    return _digest(json.dumps(values, default=str).encode())


def _coins(ask: wire.Ask) -> str:
    """Digest of the key that the users' coins are flipped with, where the account counts them."""
    if ask.correlation is None and isinstance(ask.sampling, PoissonSampling | FixedSizeSampling):
        return _digest(ask.sampling_key)
    return ""


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _importable(function: Callable[..., object]) -> str | None:
    """Where a function can be imported from; None for one that carries values of its own."""
    module, name = (getattr(function, key, None) for key in ("__module__", "__qualname__"))
    if not module or not name or "<" in name or "." in name:
        return None
    # A name may be borrowed, as by functools.wraps.
    if getattr(sys.modules.get(module), name, None) is not function:
        return None
    return f"{module}:{name}"


def _rebuild_node(
    load: UserLoader,
    load_embedder: EmbedderLoader,
    cache_directory: Path | None,
    trainer: Trainer | None,
    queries: Mapping[str, KnownQuery],
    random: RandomSource,
) -> _Node:
    return _Node(
        load=load,
        load_embedder=load_embedder,
        cache_directory=cache_directory,
        trainer=trainer,
        queries=queries,
        random=random,
    )
