"""The one private path: broadcast, answers of bounded norm, sum, ledger, noise, post-processing.

A method is a subclass of `PrivateSumStrategy` that says which query is asked and what is done with
the released sum. Everything that touches private answers is here and is the same for all methods.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flower_privsyn import clock
from flower_privsyn.errors import ConfigError, FederationError, LedgerError
from flower_privsyn.files import leftovers, replacing, user_path
from flower_privsyn.host.progress import Progress
from flower_privsyn.messages import wire
from flower_privsyn.messages.window import MESSAGES_UNDER_WAY, WindowedGrid
from flower_privsyn.node import Plan
from flower_privsyn.privacy import (
    CorrelatedNoise,
    Correlation,
    Factorisation,
    FullParticipation,
    GaussianMechanism,
    NeighboringRelation,
    Participation,
    PrivacyLedger,
    RandomSource,
    Sampling,
    SecureRandom,
    calibrate_noise_multiplier,
    participation_of,
)
from flower_privsyn.privacy.grid import LARGEST_SUM, LEAST_SHARE, from_grid, to_grid
from flower_privsyn.private_path.attendance import Attendance, roll_call
from flower_privsyn.private_path.changes import changes_of_resume
from flower_privsyn.private_path.noise_check import NoiseAgainstUsers
from flower_privsyn.private_path.resumption import (
    all_released,
    asked_last,
    earliest_end,
    multiplier_for_the_rest,
    rounds_behind,
)
from flower_privsyn.private_path.settings import NODE_KEYS, PrivateSumConfig
from flower_privsyn.queries import Broadcast, Query, TrainableModel
from flower_privsyn.runs import RunDirectory, unnamed_run

logger = logging.getLogger("flwr.privsyn")

_POLL_SECONDS = 0.5

#: Standard deviations that no draw of the noise goes beyond.
_FARTHEST = 14.0

#: The memory of correlated noise, in the run directory while there are rounds to come. Secret: with
#: the releases it gives sums away.
NOISE_FILE = "noise.npz"

#: What a subclass may not replace.
_PRIVATE_PATH = (
    "configure_train",
    "aggregate_train",
    "configure_evaluate",
    "aggregate_evaluate",
    "_release",
    "_correlation_of",
    "_mechanism_of",
    "_noise_multiplier",
    "_settle_noise",
    "_open_noise",
    "_forget_noise",
    "start",
)


@dataclass(frozen=True, kw_only=True)
class ReleasedSum:
    """A noisy sum that has been charged to the ledger; everything made from it is free.

    Attributes:
        round_number: 1-based.
        values: (m,) float64, the sum over users plus noise.
        noise_std: standard deviation of the noise in `values`; public.
        num_users: users whose answers are in the sum; None where who was drawn is secret, under
            Poisson and fixed-size sampling: how many of them answered is not released.
    """

    round_number: int
    values: npt.NDArray[np.float64]
    noise_std: float
    num_users: int | None


class PrivateSumStrategy(Strategy):
    """A Flower strategy whose only view of private data is a noised, accounted sum.

    A subclass gives `query`, `embedder_identity`, `check`, `first_broadcast`, `update`, `restore`,
    `keep` and `finish`.

    Formal guarantee:
        Unit: user, one `client_id` on at most `config.max_nodes_per_user` nodes. Relation:
        `config.relation`. In every round each user's contribution has L2 norm at most
        `query.clip_norm` on each node; Gaussian noise of standard deviation noise multiplier x
        clip norm x `max_nodes_per_user` is added once to the sum. The rounds compose to (epsilon,
        delta) as accounted by `config.accountant` for the sampling in use; a round is written to
        the ledger and synced to disk before its release is used, and a round that was interrupted
        is charged. Where `factorisation` correlates the noise, all rounds are one Gaussian
        mechanism, charged with the first of them (`flower_privsyn.privacy.Correlation`). Two
        epsilons are kept: for those who see only what is released, with the sampling secret, and
        for those who also know who took part. With central noise the server itself sees the raw
        sums of the nodes, and is trusted with them.

    Args:
        config: the settings.
        random: source of noise and coins; only tests pass one, and the ledger says so.
    """

    #: Settings that a resumed run may change: no release, made or to come, depends on them.
    changeable: ClassVar[frozenset[str]] = frozenset(
        {"resume", "run-dir", "node-timeout", "round-timeout", "accept-noise"}
    )

    #: The same once all releases are made.
    changeable_once_released: ClassVar[frozenset[str]] = frozenset()

    #: Messages to nodes that are built and not yet answered, at most.
    messages_under_way: ClassVar[int] = MESSAGES_UNDER_WAY

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a method that replaces the private path."""
        super().__init_subclass__(**kwargs)
        for name in _PRIVATE_PATH:
            if name in cls.__dict__:
                raise TypeError(
                    f"{cls.__name__} must not override {name}: sums, noise and accounting are the "
                    "same code for every method"
                )

    def __init__(self, config: PrivateSumConfig, *, random: RandomSource | None = None) -> None:
        self._settings = config
        self._random: RandomSource = random or SecureRandom()
        self._run: RunDirectory | None = None
        self._progress: Progress | None = None
        self._grid: WindowedGrid | None = None
        self._ledger: PrivacyLedger | None = None
        self._roster: dict[int, int] = {}
        self._sampling: Sampling | None = None
        self._mechanism: GaussianMechanism | None = None
        self._correlation: Correlation | None = None
        self._planned_multiplier: float | None = None
        self._noise: CorrelatedNoise | None = None
        self._rounds_before = 0
        self._round_started = 0.0
        self._traffic: wire.Traffic | None = None
        self._asked: dict[int, int] = {}  # node -> most users that may be in its answer
        self._asked_query: Query | None = None
        self._sent: Broadcast | None = None
        self._ended = False  # the method asks nothing more, although rounds are left
        self._required = 0  # users whose answers a round needs
        self._always_asked: frozenset[int] = frozenset()  # nodes, whoever is drawn
        self._attendance = Attendance(secret=False)

    # ------------------------------------------------------------------ what a method gives

    @property
    @abstractmethod
    def query(self) -> Query:
        """The question of every round."""

    @property
    def queries(self) -> tuple[Query, ...]:
        """Every question the run may ask; settled by `check`."""
        return (self.query,)

    @abstractmethod
    def check(self) -> None:
        """Load and check everything the server needs, before any budget is spent.

        Raises:
            PrivsynError: something is missing or unusable.
        """

    @abstractmethod
    def first_broadcast(self) -> Broadcast:
        """Make what round 1 sends; store what a resumed run needs."""

    @abstractmethod
    def update(self, release: ReleasedSum, *, last: bool) -> Broadcast | None:
        """Post-process a release into the next broadcast.

        Must store in the run directory whatever `restore` needs for the next round before it
        returns. It may be called again with the same release when a run is resumed.

        Args:
            release: the noisy sum.
            last: no further round follows; return None.

        Returns:
            What the next round sends. None after the last round, and before it to end the run
            early: the rounds that are left are neither asked nor charged.
        """

    @abstractmethod
    def restore(self, round_number: int) -> Broadcast:
        """What a round sends whose predecessor has finished, from the run directory."""

    @abstractmethod
    def keep(self, round_number: int) -> None:
        """Let what this round sent, whose release was lost, be sent again in the next round."""

    def take_back(self, round_number: int) -> None:
        """Undo what `keep` did for a round that is asked again after all.

        Called before `restore`, for the last round first.
        """

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """Make and write the result; return figures for the end of the run."""

    def factorisation(self, participation: Participation) -> Factorisation | None:
        """How the noise of the rounds is correlated; None: every round has noise of its own.

        Asked once, when a run begins; a resumed run goes on with the matrix of its ledger.

        Args:
            participation: in which sets of rounds a user may take part, by the sampling in use.
        """
        return None

    @property
    def stamp(self) -> str | None:
        """What marks every figure of a run whose result the ledger does not cover; else None."""
        return None

    # ------------------------------------------------------------------ Flower's interface

    @property
    def run(self) -> RunDirectory:
        """The run directory; available from `start` on."""
        if self._run is None:
            raise RuntimeError("the strategy has not been started")
        return self._run

    @property
    def progress(self) -> Progress:
        """Where long work reports its steps."""
        if self._progress is None:
            raise RuntimeError("the strategy has not been started")
        return self._progress

    @property
    def expected_users(self) -> float:
        """Users that take part in a round on average, public; available from `start` on."""
        if self._sampling is None:
            raise RuntimeError("the strategy has not been started")
        return self._sampling.expected_users

    @property
    def largest_bound(self) -> float:
        """The largest clip norm of a query whose sums the grid holds; from `start` on."""
        if self._sampling is None:
            raise RuntimeError("the strategy has not been started")
        return LARGEST_SUM / (self._sampling.population or 1)

    @property
    def correlation(self) -> Correlation | None:
        """The rounds as one mechanism, where their noise is correlated; from `start` on."""
        return self._correlation

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation over the sensitivity; available from `start` on.

        The sensitivity is the clip norm, for each of the nodes that a user may be on.

        Of correlated noise, that of the fresh part of every round, which is what papers state.
        """
        if self._mechanism is None:
            raise RuntimeError("the strategy has not been started")
        return self._mechanism.noise_multiplier

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the method from the first round, or from where an earlier run stopped.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: must be None: the method makes its own first broadcast.
            num_rounds: must be None or `config.num_rounds`: the noise depends on it.
            timeout: seconds per round; default `config.round_timeout`.
            train_config: must be None.
            evaluate_config: must be None: no evaluate phase is sent.
            evaluate_fn: called by Flower with (round, broadcast) before the first round and
                after each one.

        Returns:
            Flower's Result; `train_metrics_clientapp` holds the counts of each round.

        Raises:
            PrivsynError: a setting, a file, the federation or the budget is at fault. The run
                directory keeps everything finished so far.
        """
        if initial_arrays is not None or train_config is not None or evaluate_config is not None:
            raise ConfigError(
                f"{type(self).__name__}.start makes its own messages: leave initial_arrays, "
                "train_config and evaluate_config out"
            )
        settings = self._settings
        if num_rounds is not None and num_rounds != settings.num_rounds:
            raise ConfigError(
                f"num_rounds = {num_rounds} differs from num-rounds = {settings.num_rounds}, for "
                "which the noise is computed: set it in the configuration"
            )
        if settings.run_dir:
            path, resume = user_path(settings.run_dir), settings.resume
        else:
            path, resume = unnamed_run(type(self).__name__)
        self._run = RunDirectory.start(
            path,
            config={**settings.to_dict(), **dict(settings.node_settings)},
            strategy=type(self).__name__,
            resume=resume,
        )
        with self._run.session():
            if resume:
                self._run.ledger_lines()  # a cut ledger is refused before anybody is asked
            changes = self._changes() if resume else {}
            self._progress = self._run.progress()
            logger.info("run directory: %s", self._run.path)
            if self.stamp is not None:
                logger.warning("%s", self.stamp)
            self.check()
            if changes:
                self._record(changes)
            self._grid = grid = WindowedGrid(grid, window=self.messages_under_way)
            if resume and self._all_released():
                self._go_on_without_nodes()
            else:
                self._prepare_nodes(grid)
            with self._open_ledger():
                broadcast = self._continue() if resume else self._begin()
                result = Result()
                remaining = settings.num_rounds - self._rounds_before
                if remaining > 0 and broadcast is not None:
                    self._open_noise()
                    result = super().start(
                        grid,
                        initial_arrays=self._packed(broadcast),
                        num_rounds=remaining,
                        timeout=settings.round_timeout if timeout is None else timeout,
                        evaluate_fn=evaluate_fn,
                    )
                self._forget_noise()
                self._refuse_to_end_empty_handed()
                with self._timed("finish"):
                    summary = {**self.finish(), **self._spent(), **self._stamped()}
                self._run.mark_finished(summary)
            logger.info(
                "epsilon of the release %s, for one who knows the cohorts %s, at delta = %g",
                _shown(summary["epsilon_release"]),
                _shown(summary["epsilon_known_cohorts"]),
                settings.delta,
            )
            logger.info("the run is in %s", self._run.path)
        return result

    def summary(self) -> None:
        """Log what the run will spend."""
        settings = self._settings
        logger.info(
            "\t%s: %d rounds, %s; noise multiplier %.5g, clip norm %.5g, relation %s, "
            "accountant %s, noise %s",
            type(self).__name__,
            settings.num_rounds,
            self._sampling,
            self.noise_multiplier,
            self.query.clip_norm,
            settings.relation,
            settings.accountant,
            settings.noise,
        )

    @final
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the ledger, then pack one message per node, each when there is room for it.

        The ledger records that the round has begun before anything is sent, so a run that dies
        inside the round finds it there and charges it. The messages can be read once.
        """
        settings, sampling = self._settings, self._sampling
        if sampling is None or self._ledger is None:
            raise RuntimeError("the strategy has not been started")
        if self._ended:
            # Flower's loop goes on to the number of rounds it was given; nobody is asked in them.
            return []
        # A method may ask another question in every round; noise and ledger follow its clip norm.
        query = self._asked_query = self.query
        mechanism = self._mechanism = self._mechanism_of(query, self.noise_multiplier)
        _refuse_off_the_grid(
            query,
            mechanism,
            roster=self._roster.values(),
            shares_required=settings.shares_required,
        )
        number = self._rounds_before + server_round
        self._round_started = clock.seconds()
        recipients = self._recipients(sampling)
        self._ledger.begin(
            round=number,
            query=query.name,
            mechanism=mechanism,
            relation=NeighboringRelation(settings.relation),
            sampling=sampling,
            planned_users=max(1, round(sampling.expected_users)),
            noise=settings.noise,
            shares_required=settings.shares_required or None,
            secure_randomness=self._random.secure,
            correlation=self._correlation,
            max_nodes_per_user=settings.max_nodes_per_user,
        )
        self._sent = broadcast = wire.read_broadcast(arrays)
        ask = wire.Ask(
            round_number=number,
            query=query,
            broadcast=broadcast,
            data=self._data_request(),
            sampling=sampling,
            sampling_key=bytes(32),
            noise=settings.noise,
            mechanism=mechanism,
            num_rounds=settings.num_rounds,
            relation=NeighboringRelation(settings.relation),
            correlation=self._correlation,
            shares_required=settings.shares_required,
        )
        self._traffic = wire.traffic(ask, arrays)
        self._asked = {
            node: count if count >= 0 else self._roster[node]
            for node, (_, count) in recipients.items()
        }

        def pack() -> Iterator[Message]:
            for node, (share, count) in recipients.items():
                own = replace(
                    ask,
                    sampling=share.of_round(number),
                    # One key per node: equal ids on two nodes must not share a coin, and no node
                    # may know the coins of another's users.
                    sampling_key=self._random.uint64(4).tobytes(),
                    sample_count=count,
                )
                yield Message(
                    wire.pack_ask(own, arrays),
                    dst_node_id=node,
                    message_type=wire.message_type(query),
                )

        return pack()

    @final
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Release the noisy sum of a round and hand it to `update`."""
        if self._ended:
            return None, None
        number = self._rounds_before + server_round
        counts: Counter[str] = Counter()
        released = self._release(number, replies, counts)
        if self._grid is not None and (late := self._grid.take_late()):
            counts["rejected: late reply"] = late
        answered = clock.seconds()
        last = number >= self._settings.num_rounds
        arrays = None
        if released is None:
            self._skip_round(number, "discarded")
        else:
            following = self._finish_round(released, last=last)
            if following is not None:
                arrays = self._packed(following)
        metrics: dict[str, Any] = {"round": number, "released": released is not None}
        if not self._cohort_is_secret:
            metrics["num_nodes"] = len(self._asked)
            metrics["num_users"] = 0 if released is None else released.num_users
        else:
            # Who was asked, answered or failed to is part of what the amplification by sampling
            # assumes unseen, and who is late was asked in an earlier round.
            counts.clear()
        metrics |= {key: counts[key] for key in sorted(counts)}
        metrics |= {**self._spent(), **self._stamped()}
        if self._traffic is not None:
            metrics |= asdict(self._traffic)
        # How long it took may say how much somebody wrote: that is for the owner alone.
        self.run.owner.record(
            "round",
            round=number,
            seconds_feedback=answered - self._round_started,
            seconds_server=clock.seconds() - answered,
        )
        self.run.append_metrics(metrics)
        self._attendance.check(consequence=self._after_silence())
        return arrays, MetricRecord(
            {
                key: value
                for key, value in metrics.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            }
        )

    @final
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Send nothing: what nodes could report of an evaluation is not accounted."""
        return []

    @final
    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """There is nothing to aggregate."""
        return None

    # ------------------------------------------------------------------ the private sum

    @final
    def _release(
        self, number: int, replies: Iterable[Message], counts: Counter[str]
    ) -> ReleasedSum | None:
        """Sum the answers, charge the ledger, add the noise: the raw sum never leaves this frame.

        Args:
            number: the round.
            replies: what the nodes sent.
            counts: filled with how many replies were used and why others were not.

        Returns:
            The release, or None when too few users answered for it to be made.
        """
        settings, ledger, mechanism = self._settings, self._ledger, self._mechanism
        query = self._asked_query
        if ledger is None or mechanism is None or query is None or self._sent is None:
            raise RuntimeError("the strategy has not been started")
        length = query.answer_length(self._sent)
        # Every coordinate of an honest answer is bounded by the clip norm; shares add noise to it.
        bound = query.answer_bound(1)
        if settings.noise == "shares":
            bound += _FARTHEST * mechanism.standard_deviation / settings.shares_required**0.5
        total = np.zeros(length, dtype=np.int64)  # in steps of the grid
        num_users = 0
        answering: set[int] = set()
        seen: set[int] = set()
        unreachable = 0
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in self._asked:
                if reply.has_error():
                    # Flower's own word about a node that is gone, or whose reply is.
                    unreachable += 1
                    counts[_error_key(reply.error.code)] += 1
                else:
                    counts["rejected: not asked"] += 1
                continue
            if node in seen:
                counts["rejected: second reply"] += 1
                continue
            seen.add(node)
            if reply.has_error():
                counts[_error_key(reply.error.code)] += 1
                continue
            try:
                answer = wire.unpack_answer(
                    reply, length=length, roster_users=self._asked[node], bound=bound
                )
            except wire.WireError as error:
                counts[f"rejected: {error}"] += 1
                continue
            counts["answers"] += 1
            answering.add(node)
            num_users += answer.num_users
            total += to_grid("an answer", answer.total)
        counts["missing"] = max(0, len(self._asked) - len(seen) - unreachable)
        if num_users < self._required:
            del total
            reason = (
                f"{num_users} users on {counts['answers']} of {len(self._asked)} nodes answered, "
                f"{self._required} are required"
            )
            self._attendance.lost(number, reason)
            if settings.noise == "central" or not num_users:
                ledger.discard(round=number, num_users=num_users, reason=reason)
            else:
                # The server has seen the shares, so the round is spent although it is not used.
                ledger.charge(round=number, num_users=num_users, used=False)
            logger.warning("round %d is left out: %s", number, reason)
            return None
        self._note_attendance(number, answering)
        random: RandomSource = self._random
        noise_std = mechanism.standard_deviation
        if self._noise is not None:
            # On the disk before the ledger says that the sum is out: what is out, later rounds
            # must take up. The round's noise then comes from there in place of fresh noise.
            self._noise.prepare(number, length)
            noise_std *= self._noise.deviation(number)
            random = self._noise
        ledger.charge(round=number, num_users=num_users)
        if settings.noise == "central":
            values = mechanism.release(from_grid(total), random=random)
        else:
            values = from_grid(total)
            noise_std *= np.sqrt(num_users / settings.shares_required)
        del total
        return ReleasedSum(
            round_number=number,
            values=values,
            noise_std=float(noise_std),
            num_users=None if self._cohort_is_secret else num_users,
        )

    def _note_attendance(self, number: int, answering: set[int]) -> None:
        """Note who answered a round that is released, and tell the server's owner of silence."""
        if not self._cohort_is_secret or answering & self._always_asked:
            self._attendance.answered()
        else:
            self._attendance.lost(number, "no node that is asked in every round answered")
        if self._asked and not answering:
            # To the log, which is the owner's and not in the run directory.
            logger.warning(
                "round %d: none of the nodes that were asked answered; it is released, as noise "
                "alone, and charged",
                number,
            )

    # ------------------------------------------------------------------ meeting the nodes

    def _prepare_nodes(self, grid: Grid) -> None:
        """Wait for the planned nodes, have them prepare, and learn the public roster."""
        settings = self._settings
        nodes = self._wait_for_nodes(grid)
        request, plan = self._data_request(), self._plan()
        messages = (
            Message(
                wire.pack_prepare(request, plan=plan),
                dst_node_id=node,
                message_type=wire.PREPARE,
            )
            for node in nodes
        )
        with self.progress.stage("Nodes read their text", total=None):
            replies = grid.send_and_receive(messages, timeout=settings.round_timeout)
            roster, problems = self._roster_of(replies, asked=set(nodes))
        users = sum(roster.values())
        told = "; ".join(f"{count} x {text}" for text, count in problems.most_common())
        if problems:
            logger.warning(
                "%d of %d nodes are not ready: %s", len(nodes) - len(roster), len(nodes), told
            )
        because = f" ({told})" if told else ""
        if len(roster) < len(nodes) and not settings.num_users:
            # Going ahead without them would let one broken record decide who takes part.
            raise FederationError(
                f"{len(nodes) - len(roster)} of {len(nodes)} nodes are not ready{because}; set "
                "num-users to the number of users that is enough to go ahead without them; "
                f"{self._nothing_spent}"
            )
        planned = max(settings.num_users, settings.min_users or 0, 1)
        if users < planned:
            raise FederationError(
                f"{users} users are ready on {len(roster)} of {len(nodes)} nodes, {planned} were "
                f"planned (num-users){because}; {self._nothing_spent}"
            )
        if settings.shares_required > users:
            raise FederationError(
                f"shares-required = {settings.shares_required} is more than the {users} users "
                f"there are; {self._nothing_spent}"
            )
        self._roster = roster
        settings.check_delta(users)
        self._sampling = settings.sampling_of(users)
        self._required = settings.required_users(self._sampling)
        self._attendance = Attendance(secret=self._cohort_is_secret)
        multiplier = self._planned_multiplier
        if multiplier is None:
            multiplier = self._settle_noise(self._sampling)
        self._mechanism = self._mechanism_of(self.query, multiplier)
        logger.info("%d users on %d nodes; noise multiplier %.5g", users, len(roster), multiplier)
        self._check_noise(self._sampling, multiplier)

    def _check_noise(self, sampling: Sampling, multiplier: float) -> None:
        """Set the noise against the users, in words, and refuse what would be noise alone."""
        settings = self._settings
        if settings.noise == "shares":
            # Every user adds a share: more users than are required add more noise.
            shares = max(1.0, sampling.expected_users / settings.shares_required)
            multiplier *= float(np.sqrt(shares))
        multiplier *= settings.max_nodes_per_user  # over the clip norm: a user's answer of one node
        against = NoiseAgainstUsers(users=sampling.expected_users, noise_multiplier=multiplier)
        if not settings.accept_noise:
            against.refuse(self.queries, spent=self._nothing_spent)
        logger.info("%s", against.describe(self.queries))
        self.progress.note(against.describe(self.queries))

    @final
    def _settle_noise(self, sampling: Sampling) -> float:
        """Settle the correlation of the rounds, and return the noise multiplier of a round."""
        self._correlation, multiplier = self._correlation_of(sampling)
        return self._noise_multiplier(sampling) if multiplier is None else multiplier

    def _plan(self) -> Plan:
        """What the run may still ask, for nodes to refuse before anything is spent.

        The noise of a fixed-size cohort depends on the roster: each node then hears of it with the
        first question.
        """
        settings = self._settings
        sampling = multiplier = None
        left = max(0, settings.num_rounds - rounds_behind(self.run))
        releases, stream = left, ""
        if settings.sampling != "fixed-size":
            sampling = settings.sampling_of(max(1, settings.num_users))
            multiplier = self._planned_multiplier = self._settle_noise(sampling)
            if self._correlation is not None:
                multiplier = self._correlation.noise_multiplier(multiplier)
                sampling, releases = FullParticipation(), min(1, left)
                stream = self._correlation.stream
        return Plan(
            queries=tuple(query.name for query in self.queries),
            num_rounds=settings.num_rounds,
            clip_norm=max(query.clip_norm for query in self.queries),
            releases=releases,
            noise_multiplier=multiplier,
            relation=NeighboringRelation(settings.relation),
            sampling=sampling,
            stream=stream,
        )

    def _go_on_without_nodes(self) -> None:
        """Learn from the ledger what post-processing needs of the users: nobody is asked again."""
        self._sampling, self._mechanism = asked_last(self.run)
        self._correlation, _ = self._correlation_of(self._sampling)
        logger.info("every round has been asked: the result is made without the nodes")

    @property
    def _nothing_spent(self) -> str:
        """What a run that stops before it asks anybody has cost, and how a paid one can end."""
        if not rounds_behind(self.run):
            return "nothing was spent"
        end = earliest_end(self.run)
        if end is None:
            return "nothing more was spent"
        return (
            "nothing more was spent; to end with what was released: "
            f"`privsyn resume {self.run.path} --set num-rounds={end}`"
        )

    def _roster_of(
        self, replies: Iterable[Message], *, asked: set[int]
    ) -> tuple[dict[int, int], Counter[str]]:
        """Users per node that is ready, and why the others are not."""
        settings = self._settings
        roster: dict[int, int] = {}
        problems: Counter[str] = Counter()
        seen: set[int] = set()
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in asked or node in seen:
                problems["a reply that was not asked for"] += 1
                continue
            seen.add(node)
            if reply.has_error():
                told = _error_sentence(reply.error.code)
                if reply.error.code == wire.ClientErrorCode.UNKNOWN_QUERY:
                    asks = ", ".join(query.name for query in self.queries)
                    told += (
                        f" ({asks}): install the server's flower-privsyn on the node, and serve "
                        "model_delta with flower_privsyn.client_apps.training:app"
                    )
                problems[told] += 1
                continue
            try:
                entry = wire.unpack_roster(reply)
            except wire.WireError as error:
                problems[str(error)] += 1
                continue
            if (entry.embedder, entry.dimension) != self.embedder_identity():
                problems[
                    f"another embedding model or precision than the server's "
                    f"{settings.embedding_model} ({settings.embedding_precision})"
                    if self.trains is None
                    else f"another model or tokenizer than the server's {self.trains.name}"
                ] += 1
                continue
            roster[node] = entry.num_users
        if len(seen) < len(asked):
            problems["no reply"] += len(asked) - len(seen)
        return roster, problems

    @final
    def _mechanism_of(self, query: Query, noise_multiplier: float) -> GaussianMechanism:
        """The noise on a question's sum: every node clips, so a user counts once on each."""
        return GaussianMechanism(
            noise_multiplier=noise_multiplier,
            l2_sensitivity=self._settings.max_nodes_per_user * query.clip_norm,
        )

    @final
    def _noise_multiplier(self, sampling: Sampling) -> float:
        """The noise multiplier that was given, or the one the budget asks for."""
        settings, correlation = self._settings, self._correlation
        if settings.epsilon is None:
            return settings.noise_multiplier or 0.0
        # Correlated rounds are one release, and nothing is gained from who takes part in which.
        multiplier = calibrate_noise_multiplier(
            epsilon=settings.epsilon,
            delta=settings.delta,
            rounds=settings.num_rounds if correlation is None else 1,
            sampling=sampling if correlation is None else FullParticipation(),
            accountant=settings.accountant,
            relation=NeighboringRelation(settings.relation),
            max_nodes_per_user=settings.max_nodes_per_user,
        )
        if correlation is not None:
            return correlation.round_multiplier(multiplier)
        rest = multiplier_for_the_rest(
            self.run,
            multiplier,
            num_rounds=settings.num_rounds,
            sampling=sampling,
            relation=NeighboringRelation(settings.relation),
            max_nodes_per_user=settings.max_nodes_per_user,
        )
        if rest > multiplier:
            logger.warning(
                "noise multiplier %.5g from now on, in place of %.5g: the rounds that were charged "
                "leave no room for less",
                rest,
                multiplier,
            )
        return rest

    @final
    def _correlation_of(self, sampling: Sampling) -> tuple[Correlation | None, float | None]:
        """The correlation of this run's noise, and the noise multiplier if the ledger has it."""
        if self.run.ledger_file.exists():
            known = PrivacyLedger.read(self.run.ledger_file).correlations
            if known:
                return next(iter(known.items()))
        participation = participation_of(sampling, rounds=self._settings.num_rounds)
        factorisation = self.factorisation(participation)
        if factorisation is None:
            return None, None
        return Correlation.create(factorisation, participation), None

    @final
    def _open_noise(self) -> None:
        """Begin the stream of correlated noise, or go on with it."""
        correlation, ledger = self._correlation, self._ledger
        if correlation is None or ledger is None:
            return
        path = self.run.path / NOISE_FILE
        self._noise = CorrelatedNoise(correlation, random=self._random, path=path)
        released = ledger.last_released(correlation)
        if released is not None and released > self._noise.last_round:
            raise LedgerError(
                f"{path} does not reach round {released}, which was released: the noise of the "
                "rounds to come must take that round's noise up, and the run cannot continue"
            )

    @final
    def _forget_noise(self) -> None:
        """Delete the memory of the noise: no round is left that would take it up.

        Not only after a last round that was released. One that was lost leaves the memory of the
        round before on the disk, and a process killed while writing leaves a file of its own.
        """
        self._noise = None
        for file in (self.run.path / NOISE_FILE, *leftovers(self.run.path / NOISE_FILE)):
            file.unlink(missing_ok=True)

    @abstractmethod
    def embedder_identity(self) -> tuple[str, int]:
        """Fingerprint and dimension of the server's embedding model, or of `trains`."""

    @property
    def trains(self) -> TrainableModel | None:
        """The model whose updates the query is about; None where it is about embeddings."""
        return None

    def _wait_for_nodes(self, grid: Grid) -> list[int]:
        """Block until `num_nodes` nodes are connected.

        Simulations start the server before their nodes are registered; going ahead with those
        that happen to be there would change the sampling that the accountant is told of.
        """
        wanted = self._settings.num_nodes
        deadline = time.monotonic() + self._settings.node_timeout
        while True:
            nodes = sorted(grid.get_node_ids())
            if len(nodes) >= wanted:
                return nodes
            if time.monotonic() >= deadline:
                raise FederationError(
                    f"{len(nodes)} nodes are connected after {self._settings.node_timeout:g} s, "
                    f"{wanted} were planned (num-nodes); {self._nothing_spent}"
                )
            time.sleep(_POLL_SECONDS)

    def _recipients(self, sampling: Sampling) -> dict[int, tuple[Sampling, int]]:
        """Nodes to ask in a round, with the sampling and the draw each of them applies.

        A node with one user is only sent the broadcast when that user takes part, so the server
        flips its coin; on a node with many users each flips their own. Nodes of the roll call are
        asked all the same, and answer zero when none of their users takes part.
        """
        nodes = sorted(self._roster)
        self._always_asked = self._roll_call()
        counts = sampling.allocate([self._roster[node] for node in nodes], self._random)
        if counts is not None:
            return {
                node: (sampling, count)
                for node, count in zip(nodes, counts, strict=True)
                if count > 0 or node in self._always_asked
            }
        recipients: dict[int, tuple[Sampling, int]] = {}
        for node in nodes:
            if self._roster[node] == 0:
                continue
            share: Sampling = sampling
            if sampling.method == "poisson" and node not in self._always_asked:
                mine = sampling.participants([""], key=self._random.uint64(4).tobytes())
                if not mine[0]:
                    continue
                share = self._everyone()
            recipients[node] = (share, -1)
        return recipients

    def _roll_call(self) -> frozenset[int]:
        """Nodes that this round asks whoever is drawn."""
        if not self._cohort_is_secret or self._grid is None:
            return frozenset(node for node, users in self._roster.items() if users > 0)
        connected = set(self._grid.get_node_ids())
        return roll_call(self._roster, connected=connected, random=self._random)

    @property
    def _cohort_is_secret(self) -> bool:
        return self._sampling is not None and self._sampling.hides_cohort

    def _everyone(self) -> Sampling:
        return FullParticipation(population=sum(self._roster.values()))

    def _data_request(self) -> wire.DataRequest:
        settings = self._settings
        return wire.DataRequest(
            embedding_model=settings.embedding_model,
            embedding_precision=settings.embedding_precision,
            max_tokens=settings.max_tokens,
            max_samples=settings.max_samples,
            newer_than=settings.newer_than,
            held_out_fraction=settings.held_out_fraction,
            seed=settings.seed,
            max_nodes_per_user=settings.max_nodes_per_user,
            trains=self.trains,
        )

    # ------------------------------------------------------------------ rounds on disk

    def _open_ledger(self) -> PrivacyLedger:
        settings, path = self._settings, self.run.ledger_file
        expected: dict[str, Any] = {
            "delta": settings.delta,
            "epsilon_budget": settings.epsilon,
            "accountant": settings.accountant,
        }
        if path.exists():
            ledger = PrivacyLedger.open(path, **expected, stated=self.run.stated_digests())
        else:
            ledger = PrivacyLedger.create(path, **expected)
        self.run.follow_ledger(lambda: ledger.digest)
        self._ledger = ledger
        return ledger

    @contextlib.contextmanager
    def _timed(self, event: str) -> Iterator[None]:
        """Record for the owner how long the server works on something."""
        begun = clock.seconds()
        yield
        self.run.owner.record(event, seconds_server=clock.seconds() - begun)

    def _begin(self) -> Broadcast:
        with self._timed("begin"):
            broadcast = self.first_broadcast()
        self.run.finish_round(0)
        return broadcast

    def _continue(self) -> Broadcast | None:
        """Bring the run directory to the end of a round and return the next broadcast.

        A charged round whose release reached the disk is post-processed again, which is free. A
        charged round whose release was lost stays charged, and what it sent is sent again.
        """
        if self._ledger is None:
            raise RuntimeError("the ledger is not open")
        if not self.run.finished_rounds():
            return self._begin()
        self._refuse_missing_lines(self._ledger)
        total = self._settings.num_rounds
        reached = max((*self._ledger.rounds_charged, *self.run.finished_rounds()))
        if self._correlation is not None:
            # A correlated round that was discarded is not asked again, either.
            reached = max(reached, self._ledger.last_started(self._correlation) or 0)
        reached = self._take_back(self._ledger, reached)
        for number in range(1, reached + 1):
            if self.run.round_state(number) is not None:
                continue
            release = self._stored_release(number)
            if release is None:
                logger.warning("round %d was interrupted: it is charged and left out", number)
                self._skip_round(number, "interrupted")
            else:
                self._finish_round(release, last=number >= total)
        self._rounds_before = reached
        ended = bool((self.run.round_state(reached) or {}).get("ended"))
        if self._rounds_before >= total or ended:
            return None
        return self.restore(self._rounds_before + 1)

    def _refuse_to_end_empty_handed(self) -> None:
        """A result without any release would be public text under the name of a private one."""
        if self._ledger is not None and not self.run.rounds_with_outcome("released"):
            charged = self._ledger.num_releases
            again = self._correlation is None and not charged
            raise FederationError(
                "no round was released, so nothing was learned from the users and no result is "
                f"written; {f'{charged} rounds were charged' if charged else 'nothing was spent'}; "
                + (f"{self._go_on}, which asks again" if again else "start a new run")
            )

    def _take_back(self, ledger: PrivacyLedger, reached: int) -> int:
        """Let rounds at the end that were discarded at no charge be asked again.

        Not of correlated noise: there the second answer of a user would be one more than the
        sensitivity allows for.
        """
        if self._correlation is not None:
            return reached
        charged, discarded = ledger.rounds_charged, self.run.rounds_with_outcome("discarded")
        while reached in discarded and reached not in charged:
            # In this order: a round that is not open is taken back again after a kill in between.
            self.take_back(reached)
            self.run.reopen_round(reached)
            reached -= 1
        return reached

    def _refuse_missing_lines(self, ledger: PrivacyLedger) -> None:
        """A ledger that was removed or cut must not make a resumed run look cheaper."""
        charged = set(ledger.rounds_charged)
        released = set(self.run.rounds_with_outcome("released"))
        for number in range(1, self._settings.num_rounds + 1):
            stored = (self.run.round_path(number) / "release.npy").exists()
            if (stored or number in released) and number not in charged:
                raise LedgerError(
                    f"{self.run.ledger_file} has no line for round {number}, which was released: "
                    "the ledger was removed or cut, and the run cannot continue"
                )

    def _finish_round(self, release: ReleasedSum, *, last: bool) -> Broadcast | None:
        self._store_release(release)
        following = self.update(release, last=last)
        self._ended = following is None and not last
        self.run.finish_round(
            release.round_number,
            {
                "num_users": release.num_users,
                "noise_std": release.noise_std,
                "outcome": "released",
                **({"ended": True} if self._ended else {}),
            },
        )
        return following

    def _after_silence(self) -> str:
        """What rounds that too few answered have cost, and how the run goes on."""
        if self._cohort_is_secret:
            return f"they are charged; {self._go_on}"
        if self._settings.noise == "shares":
            return f"what was seen of them is charged; {self._go_on}"
        if self._correlation is not None:
            return f"they are not asked again; {self._go_on}, which goes on with the next"
        return f"they cost nothing; {self._go_on}, which asks them again"

    @property
    def _go_on(self) -> str:
        return f"bring the nodes back and continue with `privsyn resume {self.run.path}`"

    def _skip_round(self, number: int, outcome: str) -> None:
        if number < self._settings.num_rounds:
            self.keep(number)
        self.run.finish_round(number, {"outcome": outcome})

    def _store_release(self, release: ReleasedSum) -> None:
        folder = self.run.round_dir(release.round_number)
        num_users = np.nan if release.num_users is None else release.num_users
        header = np.array([release.noise_std, num_users], dtype=np.float64)
        target = folder / "release.npy"
        with replacing(target, for_the_owner=True) as temporary, temporary.open("wb") as file:
            # One file, so that the sum and what is known of its noise cannot be parted.
            np.save(file, release.values)
            np.save(file, header)

    def _stored_release(self, number: int) -> ReleasedSum | None:
        path = self.run.round_path(number) / "release.npy"
        if not path.exists():
            return None
        with path.open("rb") as file:
            values, header = np.load(file), np.load(file)
        return ReleasedSum(
            round_number=number,
            values=values,
            noise_std=float(header[0]),
            num_users=None if np.isnan(header[1]) else int(header[1]),
        )

    def _all_released(self) -> bool:
        """Whether a run that is resumed has no round left to ask."""
        return all_released(self.run, num_rounds=self._settings.num_rounds)

    def free_settings(self, *, all_released: bool) -> frozenset[str]:
        """Settings that this resumed run may change now.

        Args:
            all_released: whether no round is left to ask.
        """
        return self.changeable | (self.changeable_once_released if all_released else frozenset())

    def _record(self, changes: dict[str, tuple[Any, Any]]) -> None:
        """Keep what is changed, and since when: the run directory says what made its texts."""
        for key, (before, now) in changes.items():
            logger.info("%s = %r from now on, in place of %r", key, now, before)
        if "num-rounds" in changes and self._settings.num_rounds in self.run.rounds_with_outcome(
            "released"
        ):
            # Before the change is recorded: until then the round is done as one among others.
            self.run.reopen_round(self._settings.num_rounds)
        self.run.record_changes(changes)

    def _changes(self) -> dict[str, tuple[Any, Any]]:
        """What a resumed run does otherwise; refused where releases depend on it."""
        strategy = self.run.document.get("strategy") or type(self).__name__
        if strategy != type(self).__name__:
            raise ConfigError(
                f"the run in {self.run.path} was started by {strategy} and is resumed by "
                f"{type(self).__name__}: a resumed run keeps its strategy"
            )
        settings, released = self._settings, self._all_released()
        free = self.free_settings(all_released=released)
        if released:
            free |= NODE_KEYS
        if settings.num_rounds == earliest_end(self.run):
            free |= {"num-rounds"}
        before = self.run.config
        return changes_of_resume(
            # A setting that is younger than the run had its default, whether it knew or not.
            {**settings.defaults(), **before},
            # What nodes read is checked where it is known: not of runs of old, nor of settings
            # that were made in code.
            {**settings.to_dict(), **{key: before[key] for key in NODE_KEYS & set(before)}}
            | {key: value for key, value in settings.node_settings if key in before},
            free=free,
            run=self.run.path,
        )

    def _packed(self, broadcast: Broadcast) -> ArrayRecord:
        return wire.broadcast_record(broadcast, precision=self._settings.broadcast_precision)

    def _stamped(self) -> dict[str, str]:
        return {} if self.stamp is None else {"stamp": self.stamp}

    def _spent(self) -> dict[str, float | None]:
        if self._ledger is None:
            raise RuntimeError("the ledger is not open")
        return {
            "epsilon_release": self._ledger.epsilon_release,
            "epsilon_known_cohorts": self._ledger.epsilon_known_cohorts,
        }


def _refuse_off_the_grid(
    query: Query, mechanism: GaussianMechanism, *, roster: Collection[int], shares_required: int
) -> None:
    """Refuse, before anybody is asked, sums that may leave the exact numbers, and tiny shares."""
    share = mechanism.standard_deviation / max(1, shares_required) ** 0.5
    if shares_required and 0.0 < share < LEAST_SHARE:
        raise ConfigError(
            f"a share of the noise has standard deviation {share:g}, and the grid takes "
            f"{LEAST_SHARE:g} at least: choose a larger clip norm or fewer shares-required"
        )
    if query.largest_cohort is not None and max(roster, default=0) > query.largest_cohort:
        raise ConfigError(
            f"{query.name} as it is set adds up {query.largest_cohort:,} users on a node at most, "
            f'and one node has {max(roster):,}: answer-space = "span" has no such limit'
        )
    users = sum(roster)
    largest = query.answer_bound(users)
    if largest > LARGEST_SUM:
        raise ConfigError(
            f"a clip norm of {query.clip_norm:g} for {users} users lets the sum reach {largest:g}; "
            f"sums are exact up to 2^23 = {LARGEST_SUM:,.0f}: choose a smaller clip norm"
        )


def _shown(epsilon: float | None) -> str:
    return "none (no privacy)" if epsilon is None else f"{epsilon:.4g}"


def _error_key(code: int) -> str:
    """A name for an error code: a client could put anything into a number that is not agreed."""
    if code in set(wire.ClientErrorCode):
        return f"error code {code}"
    return "error of Flower or another code"


def _error_sentence(code: int) -> str:
    """Words for an error code; a node's own text is never shown."""
    known = {int(c): text for c, text in wire.CLIENT_ERROR_TEXT.items()}
    return known.get(code, "an error of Flower")
