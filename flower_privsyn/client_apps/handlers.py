"""The client's half of every method: load the node's users, answer, say nothing else.

One handler serves the preparation request and one each query: the bundled ones, those that the app
was made with, and those that installed packages offer (`flower_privsyn.client_apps.known`). A new
method needs no change here. Replies hold the summed answer and the head-count. An exception
leaves the node as a fixed code: its text may quote private data, so it stays in the node's log.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_privsyn import environment
from flower_privsyn.checks import raised_as
from flower_privsyn.client_apps.guard import charge_of, guard_of, in_simulation
from flower_privsyn.client_apps.guard import logger as owners_log
from flower_privsyn.client_apps.known import known_queries
from flower_privsyn.client_apps.node_users import (
    TRAINS_NOTHING,
    ClientError,
    EmbedderLoader,
    NodeUsers,
    Trainer,
    UserLoader,
    assigned,
    default_embedder,
    users_of_node,
)
from flower_privsyn.client_apps.records import Records
from flower_privsyn.client_apps.secure import SecureRounds, own_key
from flower_privsyn.environment import CPU_TIME
from flower_privsyn.errors import (
    ConfigError,
    LedgerError,
    NotAllowedError,
    PrivsynError,
    ProtocolError,
)
from flower_privsyn.files import own_folder, user_path
from flower_privsyn.messages import secure as secure_wire
from flower_privsyn.messages import wire
from flower_privsyn.privacy import FixedSizeSampling, skipping
from flower_privsyn.privacy.mechanisms import LARGEST_SUM, to_grid
from flower_privsyn.queries import Broadcast, Cohort, Query

logger = logging.getLogger("flower_privsyn.client")


@contextlib.contextmanager
def counted(message: Message, context: Context) -> Iterator[None]:
    """Count the CPU seconds of this process while a message is answered: on the node, never sent.

    How long a node works depends on what its users wrote, so the time is a side channel: in a
    private run it must not reach the server, and no message holds it. For research, whoever owns a
    node may have it counted by setting `PRIVSYN_CPU_TIME` to a file on that node; in a simulation
    all nodes write to one file. The server cannot ask for it. The figures are not private.

    All threads of the process count, so messages must be answered one at a time, as Flower's
    simulation and `flwr-clientapp` processes do. Starting the process is not counted; loading a
    model inside the first answer is.

    Args:
        message: what is being answered; its type is recorded.
        context: of the node; its number in a simulation is recorded.
    """
    target = os.environ.get(CPU_TIME)
    if not target:
        yield
        return
    started = time.process_time()
    try:
        yield
    finally:
        line = {
            "message": message.metadata.message_type,
            "node": int(context.node_config.get("partition-id", -1)),
            "cpu_seconds": time.process_time() - started,
        }
        try:
            _append(user_path(target), json.dumps(line))
        except OSError as error:
            logger.warning("%s = %s cannot be written: %s", CPU_TIME, target, error.strerror)


def _append(path: Path, line: str) -> None:
    """Add a line to a file that nobody else can read, by one write: several processes do."""
    with open(path, "a", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
        file.write(f"{line}\n")


#: The node's own log of what was left out, in its cache directory.
SKIPPED_LOG = "skipped.log"


def chosen_users(ask: wire.Ask, user_ids: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Who takes part in a round: (num_users,).

    Args:
        ask: the question.
        user_ids: of the node's users.

    Raises:
        WireError: the sampling cannot be true here, or the sum would not be exact.
    """
    sampling, announced = ask.release.sampling, ask.announced(len(user_ids))
    fixed = isinstance(sampling, FixedSizeSampling)
    if isinstance(sampling, FixedSizeSampling) and sampling.population < len(user_ids):
        raise wire.WireError("the request's population is smaller than this node's users alone")
    # Of a fixed number each of fewer users would be likelier to be drawn than was accounted for.
    # The answer of more users the server would leave out, and cutting it to as many would let
    # somebody in for everybody who leaves.
    if (len(user_ids) < announced) if fixed else (len(user_ids) > announced):
        raise wire.WireError(
            f"{len(user_ids)} users are on this node, and {announced} when it was asked how many: "
            "begin another run"
        )
    # Of everybody whom the node announced, as the server asks before it begins: a refusal must not
    # tell who was drawn.
    if ask.query.answer_bound(announced) > LARGEST_SUM:
        raise wire.WireError("the clip norm lets sums leave the numbers that are exact")
    chosen: npt.NDArray[np.bool_] = sampling.participants(
        user_ids,
        key=ask.sampling_key,
        count=ask.sample_count if ask.sample_count >= 0 else None,
    )
    return chosen


def sum_of(
    ask: wire.Ask, records: Records, chosen: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """The sum of what the chosen users answer, in numbers of the grid.

    Formal guarantee:
        Whether this raises, and what, depends on the question and the machine, and not on what
        anybody wrote or on who was drawn.

    Raises:
        BaseException: an error of the query, or of the training that it asks for, that comes with
            public records or with none as well. What private records alone cause is not raised.
    """
    # Contributions lie on a grid, so that the sum does not depend on how it is put together.
    total = np.zeros(ask.query.answer_length(ask.broadcast), dtype=np.float64)
    # A question that cannot be answered, or not in the memory there is, fails here, whoever was
    # drawn and whatever they wrote: no error must say that there was something to fail on.
    for public in records.public_cohorts:
        ask.query.answer(public, ask.broadcast)
    for cohort in records.cohorts(ask, chosen):
        add_answer(ask.query, cohort, ask.broadcast, total)
    return total


def add_answer(
    query: Query, cohort: Cohort, broadcast: Broadcast, total: npt.NDArray[np.float64]
) -> None:
    """Add a cohort's contributions to a sum; a user whose own cannot be computed adds zero.

    A cohort that fails is answered in halves, down to the users who fail on their own.

    Formal guarantee:
        Unit: user. Where the contributions of some users cannot be computed, what is added is
        `query.answer` of the same cohort in which these users have no records: the same to the bit
        as if they had written nothing.

    Args:
        query: the question, which answers where there are no records: so what fails is a user's.
        cohort: the users who take part.
        broadcast: public; has passed `query.check`.
        total: (answer_length,) the sum, in numbers of the grid; changed in place.
    """
    try:
        answer = query.answer(cohort, broadcast)
        if not np.isfinite(answer).all():
            raise ValueError("the sum is not finite")
        total += answer
    except skipping.FATAL:
        raise
    except BaseException:
        if cohort.num_users != 1:
            for half in cohort.blocks(max(1, (cohort.num_users + 1) // 2)):
                add_answer(query, half, broadcast, total)
            return
        skipping.note([object()], records=0)
        total += query.answer(cohort.rows(slice(0)), broadcast)


def report(tally: skipping.Tally, context: Context, directory: Path) -> None:
    """Write how much was left out into the node's own log: counts, no id and no text.

    The counts depend on private text. A deployed node's log is its owner's. In a simulation what
    nodes log is read by whoever follows the run, so there it is the file in the node's cache alone.
    Which of the two it is, is not asked of the configuration: SuperNodes have partitions too.

    Args:
        tally: from `skipping.counting`.
        context: of the message.
        directory: the node's cache.
    """
    if not tally:
        return
    if not in_simulation():
        logger.warning("%s", tally)
    line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} run {context.run_id} node {context.node_id}: "
    try:
        own_folder(directory)
        _append(directory / SKIPPED_LOG, f"{line}{tally}")
    except OSError as error:
        logger.warning("%s cannot be written (%s)", directory / SKIPPED_LOG, type(error).__name__)


#: Of each app in this process, from a node's context to its users.
RECIPES: WeakKeyDictionary[ClientApp, UserLoader] = WeakKeyDictionary()


def create_client_app(
    load: UserLoader | None = None,
    *,
    embedder: EmbedderLoader | None = None,
    cache_directory: str | Path | None = None,
    trainer: Trainer | None = None,
    queries: Sequence[type[Query]] = (),
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
) -> None:
    """Add this package's handlers to an existing ClientApp, once; arguments as `create_client_app`.

    Raises:
        ConfigError: as `create_client_app`; or the app has these handlers already, `load` is no
            function or `trainer` is a class.
    """
    if app in RECIPES:
        raise ConfigError("this ClientApp has the handlers of flower-privsyn: they are added once")
    if load is not None and not callable(load):
        raise ConfigError(
            "load must be a function from the node's context to its users, got a "
            f"{type(load).__name__}"
        )
    if isinstance(trainer, type):
        raise ConfigError(f"trainer must be an object, {trainer.__name__}(), got the class")
    load = load or users_of_node
    cache = user_path(cache_directory) if cache_directory else None
    users = NodeUsers(load, embedder or default_embedder, cache, trainer)
    node = _Node(users, known_queries(queries))
    RECIPES[app] = load

    _register(app, node, "prepare", node.prepare)
    for name in node.queries:
        _register(app, node, name, partial(node.answer, name=name))
    secure = node.secure
    for name, step in (
        (secure_wire.KEYS, secure.show_keys),
        (secure_wire.SHARES, secure.give_shares),
        (secure_wire.INPUT, secure.answer),
        (secure_wire.AGREE, secure.sign_survivors),
        (secure_wire.UNMASK, secure.unmask),
    ):
        _register(app, node, name.removeprefix("query."), step)


def _register(
    app: ClientApp, node: _Node, name: str, step: Callable[[Message, Context], Message]
) -> None:
    @app.query(name)
    def answer(message: Message, context: Context) -> Message:
        """Take a step; whatever goes wrong leaves as a code, but for what ends the process."""
        try:
            with counted(message, context), skipping.counting() as tally:
                reply = step(message, context)
            report(tally, context, node.users.cache_directory)
            return reply
        except ClientError as error:
            logger.error("%s", error)
            return wire.error_reply(error.code, message)
        except tuple(_REFUSALS) as error:
            # Our own sentences: what was asked, what is allowed, and what public runs have spent.
            said, code = next(_REFUSALS[kind] for kind in _REFUSALS if isinstance(error, kind))
            logger.error(said, error)
            return wire.error_reply(code, message)
        except skipping.FATAL:
            raise
        except BaseException as error:
            # The type is safe to log; the text and the traceback may quote private data, so they
            # are shown on the node alone, and only when its owner asks for them.
            logger.error(
                "the client app failed with %s (set %s=1 on this node to see where)",
                type(error).__name__,
                environment.CLIENT_TRACEBACK,
                exc_info=bool(os.environ.get(environment.CLIENT_TRACEBACK)),
            )
            return wire.error_reply(wire.ClientErrorCode.INTERNAL, message)


#: What the node's log and the server are told of what we refuse.
_REFUSALS: Mapping[type[Exception], tuple[str, wire.ClientErrorCode]] = {
    NotAllowedError: ("%s", wire.ClientErrorCode.NOT_ALLOWED),
    ProtocolError: ("secure aggregation: %s", wire.ClientErrorCode.PROTOCOL),
    LedgerError: ("%s", wire.ClientErrorCode.ACCOUNT),
    wire.VersionError: ("request refused: %s", wire.ClientErrorCode.OTHER_VERSION),
    wire.WireError: ("request refused: %s", wire.ClientErrorCode.BAD_REQUEST),
}


class _Node:
    """What the handlers share in one process.

    Args:
        users: of the nodes that this process answers for.
        queries: what they can be asked, by name.
    """

    def __init__(self, users: NodeUsers, queries: Mapping[str, type[Query]]) -> None:
        self.users = users
        self.queries = queries
        # What asks under secure aggregation is not named by the type of the message.
        self.secure = SecureRounds(
            lambda message: self._ask(message, wire.query_name(message)), self._charged_answer
        )

    def prepare(self, message: Message, context: Context) -> Message:
        """Load the node's text and what answers are made with; report the roster."""
        data, plan = wire.unpack_prepare(message)
        asked = self._asked(plan.queries)
        if asked and not any(map(data.suits, asked)):
            raise wire.WireError(f"{', '.join(plan.queries)}: asked about {_about(data)}")
        guard = guard_of(context)
        guard.check_classes(data.classes)
        guard.check_plan(plan, context.run_id, max_nodes_per_user=data.max_nodes_per_user)
        if plan.secure:
            own_key(context, guard)  # or it would take no part in the rounds
        prepared = self.users.prepared(data, context, guard, begins=True)
        entry = wire.RosterEntry(
            num_users=len(prepared.user_ids),
            embedder=prepared.fingerprint,
            dimension=prepared.dimension,
        )
        if guard.dataset:  # no simulation, whose log is not its nodes' owners'
            owners_log.info('%d users are read; account "%s"', entry.num_users, guard.dataset)
        return Message(wire.pack_roster(entry), reply_to=message)

    def _asked(self, names: Sequence[str]) -> list[type[Query]]:
        """The questions of these names; updates of models are asked for where the app trains."""
        unknown = {name for name in names if name not in self.queries}
        found = [self.queries[name] for name in names if name not in unknown]
        if not self.users.trains:
            unknown |= {query.name for query in found if query.trains}
        if unknown:
            hint = "" if self.users.trains else f"; {TRAINS_NOTHING}"
            raise ClientError(
                wire.ClientErrorCode.UNKNOWN_QUERY,
                f"the run asks {', '.join(sorted(unknown))}, which this client app does not "
                "answer: install the server's flower-privsyn here, or the package with the "
                f"entry point in flower_privsyn.queries{hint}",
            )
        return found

    def answer(self, message: Message, context: Context, name: str) -> Message:
        """Answer one round's question to a server that is trusted with the answer."""
        ask = self._ask(message, name)
        if ask.secure is not None:
            raise wire.WireError("a question of secure aggregation came as one in the clear")
        answer, bound = self._charged_answer(ask, message, context)
        return Message(wire.pack_answer(answer, bound=bound), reply_to=message)

    def _ask(self, message: Message, name: str) -> wire.Ask:
        (query_class,) = self._asked([name])
        with raised_as(wire.WireError, PrivsynError):
            ask = wire.unpack_ask(message, query_class)
        if not ask.data.suits(ask.query):
            raise wire.WireError(f"{name} is not asked about {_about(ask.data)}")
        return ask

    def _charged_answer(
        self, ask: wire.Ask, message: Message, context: Context
    ) -> tuple[wire.Answer, float]:
        """The sum of the users' answers, once the owner's word allows it and it is charged.

        And the largest number that the answers of everybody on this node can sum to.
        """
        guard = guard_of(context)
        guard.check_classes(ask.data.classes)
        charge = charge_of(ask, context, guard)
        guard.check(charge)
        ask = wire.with_broadcast(ask, message)
        prepared = self.users.prepared(ask.data, context, guard)
        assigned.cache_clear()
        with raised_as(wire.WireError, ValueError):
            ask.query.check(ask.broadcast, dimension=prepared.dimension)
        chosen = chosen_users(ask, prepared.user_ids)
        num_users = int(chosen.sum())
        total = sum_of(ask, prepared.records, chosen)
        # On the node's disk before anything leaves; what never leaves stays charged.
        guard.charge(charge)
        bound = ask.query.answer_bound(ask.announced(len(prepared.user_ids)))
        return wire.Answer(total=to_grid("the sum", total), num_users=num_users), bound


def _about(data: wire.DataRequest) -> str:
    """What a request has its questions about, for a sentence."""
    what = "updates of a model" if data.trains is not None else data.reads
    return f"{what} of classes" if data.classes else what
