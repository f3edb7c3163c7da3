"""The one private path: a question, answers of bounded norm, their sum, ledger, noise, a release.

A method says what is asked and what is done with what was released (`Method`). Everything that
touches private answers is here and is the same for all methods.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flower_privsyn import clock
from flower_privsyn.errors import LedgerError
from flower_privsyn.files import leftovers
from flower_privsyn.messages import wire
from flower_privsyn.messages.window import MESSAGES_UNDER_WAY, WindowedGrid
from flower_privsyn.models import stamped
from flower_privsyn.privacy import (
    CorrelatedNoise,
    Correlation,
    NeighboringRelation,
    Plan,
    PoissonSampling,
    PrivacyLedger,
    RandomSource,
    ReleaseSpec,
    SecureRandom,
)
from flower_privsyn.privacy.grid import from_grid
from flower_privsyn.private_path import flower_loop
from flower_privsyn.private_path.aggregation import Central, Expected, Secure
from flower_privsyn.private_path.asked import AskedRound, refuse_unfit
from flower_privsyn.private_path.asking import Asking
from flower_privsyn.private_path.finished import result_of
from flower_privsyn.private_path.method import Method, need
from flower_privsyn.private_path.outline import (
    ask_of,
    broadcast_of,
    mechanism_of,
    shown,
    spending_of,
    traffic_of,
)
from flower_privsyn.private_path.preparation import Federation, Preparation
from flower_privsyn.private_path.release import (
    ReleasedSum,
    give_room_back,
    largest_clip_norm,
    leave_room,
    make_room,
)
from flower_privsyn.private_path.rounds import Next, RoundEnds
from flower_privsyn.private_path.settings import PrivateSumConfig
from flower_privsyn.runs import RunDirectory, how_to_resume, named_run, unnamed_run
from flower_privsyn.runs.directory import FOR_THE_OWNER
from flower_privsyn.runs.opened import OpenedRun
from flower_privsyn.runs.trackers import Following, Tracker

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger("flwr.privsyn")

#: The memory of correlated noise, in the run directory while there are rounds to come. Secret: with
#: the releases it reveals the sums without noise.
NOISE_FILE = "noise.npz"


class PrivateSumStrategy(Strategy):
    """A Flower strategy whose only view of private data is a noised, accounted sum.

    A subclass gives a `Method` and nothing else.

    Formal guarantee:
        Unit: user, one `client_id` on at most `config.max_nodes_per_user` nodes. Relation:
        `config.relation`. In every round each user's contribution has L2 norm at most the clip norm
        of the question on each node; Gaussian noise of standard deviation noise multiplier x
        clip norm x `max_nodes_per_user` is added once to the sum. The phases of the method compose
        to (epsilon, delta) as accounted by `config.accountant` (`flower_privsyn.privacy.Plan`); a
        round is written to the ledger and synced to disk before its release is used, and a round
        that was interrupted is charged. Where a phase correlates its noise, its rounds are one
        Gaussian mechanism, charged with the first of them (`flower_privsyn.privacy.Correlation`).
        Two epsilons are kept: for those who see only what is released, with the sampling secret,
        and for those who also know who took part. The server itself sees the raw sums of the nodes,
        and is trusted with them (`Central`), or sees none of them (`Secure`, with
        `config.secure_aggregation`: the nodes then add the noise, at least as much of it).

    Args:
        config: the settings.
        method: what is asked, and what is done with what was released.
        random: source of noise and coins; only tests pass one, and the ledger says so.

    Attributes:
        tracker: one of your own, told in place of the setting's; set it before `start`.
    """

    #: Messages to nodes that are built and not yet answered, at most.
    messages_under_way: ClassVar[int] = MESSAGES_UNDER_WAY

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a subclass that replaces anything of the private path, itself or by a base."""
        super().__init_subclass__(**kwargs)
        for name in sorted(_PRIVATE_PATH):
            owner = next(base for base in cls.__mro__ if name in base.__dict__)
            if owner is not PrivateSumStrategy:
                raise TypeError(
                    f"{cls.__name__} must not override {name}: sums, noise and accounting are the "
                    "same code for every method"
                )

    def __init__(
        self, config: PrivateSumConfig, method: Method, *, random: RandomSource | None = None
    ) -> None:
        self.config = config
        self.method = method
        self.tracker: Tracker | None = None
        self._random: RandomSource = random or SecureRandom()
        self._run: RunDirectory | None = None
        self._asking: Asking | None = None

    # ------------------------------------------------------------------ Flower's interface

    @property
    def run(self) -> RunDirectory:
        """The run directory; available from `start` on."""
        return need(self._run)

    @property
    def plan(self) -> Plan:
        """The phases of the run with their noise; available from the first question on."""
        return need(self._asking).federation.settled.plan

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: flower_loop.Evaluate | None = None,
    ) -> Result:
        """Run the method from the first round, or from where an earlier run stopped.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: must be None: the method makes its own first broadcast.
            num_rounds: must be None or `config.num_rounds`: the noise depends on it.
            timeout: seconds for the replies to what is sent at a time, in a round or before the
                first one, above 0; None for `config.round_timeout`.
            train_config: must be None.
            evaluate_config: must be None: no evaluate phase is sent.
            evaluate_fn: called by Flower with (round, arrays): with 0 and what round 1 is asked of,
                then after every round with what the next one is asked of. Where the nodes train,
                that is the model so far, after the last round as well. A run that goes on begins
                with the number of rounds that are over, if any are left; there is no call for
                rounds after an early end.

        Returns:
            Flower's Result, by the run's own rounds: in `train_metrics_clientapp` the counts of
            this call's, in `arrays` what `evaluate_fn` gets last, if a release changed it. What was
            made of it all is in the run directory, `self.run.path`.

        Raises:
            PrivsynError: a setting, a file, the federation or the budget is at fault. The run
                directory keeps everything finished so far.
        """
        settings = self.config
        own = (initial_arrays, train_config, evaluate_config)
        flower_loop.refuse_own_messages(type(self).__name__, *own)
        flower_loop.refuse_other_rounds(num_rounds, settings)
        timeout = flower_loop.seconds_per_round(timeout, settings)
        tracker = Following.of(settings.tracker, self.tracker)
        secure = settings.secure_aggregation
        run = self._open_run()
        if run.status == "finished":  # which resume = "auto" allows
            return result_of(run, settings, self.method, type(self).__name__, tracker)
        with run.session():
            window = WindowedGrid(grid, window=self.messages_under_way)
            rounds = RoundEnds(
                run=run, method=self.method, total=settings.num_rounds, tracker=tracker
            )
            federation = self._prepare(window, timeout)
            with self._open_ledger(run) as ledger:
                following = self._following(rounds, ledger, federation)
                if federation is not None and following.question is not None:
                    self._asking = Asking(
                        grid=window,
                        aggregation=Secure(timeout=timeout) if secure else Central(),
                        ledger=ledger,
                        federation=federation,
                        rounds=rounds,
                        behind=following.behind,
                        question=following.question,
                    )
                result = self._ask_all(timeout, evaluate_fn)
                rounds.close(ledger, go_on=self._go_on)
                result = flower_loop.completed(result, following.behind, self.method, settings)
                with self._timed("finish"):
                    summary = {**self.method.finish(), **ledger.spent, **self._stamped()}
                    stamped.mark_all(run.path / "models", self.method.stamp)
                run.settle_metrics()  # what may fail comes before the word that all is done
                run.mark_finished(summary)
                rounds.settle()
            logger.info(
                "epsilon of the release %s, for one who knows the cohorts %s, at delta = %g",
                shown(summary["epsilon_release"]),
                shown(summary["epsilon_known_cohorts"]),
                settings.delta,
            )
            logger.info("the run is in %s", run.path)
        return result

    def summary(self) -> None:
        """Log what the run will spend."""
        for sentence in spending_of(self.plan, self.config, name=type(self).__name__):
            logger.info("\t%s", sentence)
        for sentence in self.method.describe(self.plan):
            logger.info("\t%s", sentence)

    def texts(self) -> Dataset:
        """The synthetic texts of the run, in memory; see `flower_privsyn.open_run` for the rest.

        Raises:
            RunDirectoryError: the run has none: it is not finished, or its method writes none.
        """
        return OpenedRun(self.run).dataset()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the ledger, then pack one message per node, each when there is room for it.

        The ledger records that the round has begun before anything is sent, so a run that dies
        inside the round finds it there and charges it. The messages can be read once.
        """
        asking = need(self._asking)
        if asking.question is None:
            # Flower's loop goes on to the number of rounds it was given; nobody is asked in them.
            return []
        number = asking.behind + server_round
        # As nodes see it after the journey.
        question = replace(asking.question, broadcast=wire.read_broadcast(arrays))
        started = clock.seconds()
        phase = self.plan.at(number)
        roster, source = asking.federation.roster, asking.federation.source_of(question.query)
        refuse_unfit(question, number, phase=phase, source=source, roster=roster)
        always = roster.always_asked(
            phase.sampling,
            connected=set(asking.grid.get_node_ids()),
            random=self._random,
            everybody=self.config.secure_aggregation,
        )
        recipients = roster.recipients(phase.sampling, always=always, random=self._random)
        mechanism = mechanism_of(question.query, phase, self.config)
        ask = ask_of(
            question,
            self.config,
            asking.federation.settled,
            number=number,
            mechanism=mechanism,
            source=source,
            secure=asking.federation.terms,
        )
        asked = AskedRound(
            number=number,
            question=question,
            mechanism=mechanism,
            sampling=phase.sampling,
            most_users={node: one.most_users for node, one in recipients.items()},
            roster_users={node: one.roster_users for node, one in recipients.items()},
            always_asked=always,
            started=started,
            # Packed before it is paid for: what cannot be packed is not asked.
            traffic=traffic_of(ask, arrays, nodes=len(recipients)),
            secure=self.config.secure_aggregation,
        )
        self._begin(asked)

        def asks() -> Iterator[tuple[int, wire.Ask]]:
            for node, one in recipients.items():
                yield (
                    node,
                    replace(
                        ask,
                        sampling=one.sampling.of_round(number),
                        # One key per node: equal ids on two nodes must not share a coin, and no
                        # node may know the coins of another's users.
                        sampling_key=self._random.uint64(4).tobytes(),
                        sample_count=one.count,
                        roster_users=one.roster_users,
                    ),
                )

        return asking.aggregation.messages(asks(), arrays, grid=asking.grid)

    def _begin(self, asked: AskedRound) -> None:
        """Have the ledger say that a round has begun; nothing of it is sent before."""
        asking, settings = need(self._asking), self.config
        asking.rounds.refuse_where_stopped(asked.number)
        numbers = asked.question.query.answer_length(asked.question.broadcast)
        correlation = self._open_noise(asked.number)
        memory = numbers * correlation.factorisation.buffers if correlation else 0
        # What is begun is charged, whether or not its release finds room on the disk.
        make_room(self.run, asked.number, numbers=numbers, beside=memory)
        spec = ReleaseSpec(
            round=asked.number,
            query=asked.question.query.name,
            mechanism=asked.mechanism,
            relation=NeighboringRelation(settings.relation),
            sampling=asked.sampling,
            correlation=correlation,
            max_nodes_per_user=settings.max_nodes_per_user,
        )
        asking.ledger.begin(
            spec,
            planned_users=max(1, round(asked.sampling.expected_users)),
            secure_randomness=self._random.secure,
        )
        asking.asked = asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Release the noisy sum of a round and hand it to the method."""
        asking = need(self._asking)
        if asking.question is None:
            return None, None
        asked, rounds = need(asking.asked), asking.rounds
        released, counts = self._release(asked, replies)
        if late := asking.grid.take_late():
            counts["rejected: late reply"] = late
        answered = clock.seconds()
        spent = {**asking.ledger.spent, **self._stamped()}
        metrics = {**asked.outcome(released, counts), **spent, **asdict(asked.traffic)}
        # On the disk before anything is made of the release: a round that is killed from here on
        # keeps its line.
        self.run.hold_metrics(asked.number, metrics)
        if released is None:
            rounds.lose(asked.number, asking.ledger)
            asking.question = rounds.after_skipped(asked.number)
        else:
            asking.question = rounds.finish(released)
        # How long it took may say how much somebody wrote: that is for the owner alone.
        self.run.owner.record(
            "round",
            round=asked.number,
            seconds_feedback=answered - asked.started,
            seconds_server=clock.seconds() - answered,
        )
        rounds.settle()
        asking.federation.attendance.check(consequence=self._after_silence(asked))
        return (
            flower_loop.arrays_of(asking.question, self.method, self.config),
            flower_loop.numbers_of(metrics),
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Send nothing: what nodes could report of an evaluation is not accounted."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """There is nothing to aggregate."""
        return None

    # ------------------------------------------------------------------ the private sum

    def _release(
        self, asked: AskedRound, replies: Iterable[Message]
    ) -> tuple[ReleasedSum | None, Counter[str]]:
        """Sum the answers, charge the ledger, add the noise: the raw sum never leaves this frame.

        Args:
            asked: the round.
            replies: what the nodes sent.

        Returns:
            The release, or None when too few users answered for it to be made; and how many
            replies were used, and why others were not.
        """
        asking, query = need(self._asking), asked.question.query
        expected = Expected(
            query=query,
            length=query.answer_length(asked.question.broadcast),
            most_users=asked.most_users,
            roster_users=asked.roster_users,
        )
        collected = asking.aggregation.collect(replies, expected=expected, grid=asking.grid)
        leave_room(self.run, numbers=expected.length)
        counts, num_users = collected.counts, collected.num_users
        required = self.config.required_users(asked.sampling)
        reason = collected.lost
        if not reason and num_users < required:
            reason = (
                f"{num_users} users on {counts['answers']} of {len(asked.most_users)} nodes "
                f"answered, {required} are required{asked.told(counts)}"
            )
        if reason:
            self._leave_out(asked, reason, num_users=num_users, charged=collected.charged)
            return None, counts
        self._note_attendance(asked, collected.answering, counts)
        random: RandomSource = self._random
        noise_std = asked.mechanism.standard_deviation
        if asking.noise is not None:
            # On the disk before the ledger says that the sum is out: what is out, later rounds
            # must take up. The round's noise then comes from there in place of fresh noise.
            asking.noise.prepare(asked.number, expected.length)
            noise_std *= asking.noise.deviation(asked.number)
            random = asking.noise
        asking.ledger.charge(round=asked.number, num_users=num_users, extra=collected.facts)
        if collected.noise_std:
            # The nodes have added it.
            values, noise_std = from_grid(collected.total), collected.noise_std
        else:
            values = from_grid(asked.mechanism.release_steps(collected.total, random=random))
        del collected
        return (
            ReleasedSum(
                round_number=asked.number,
                values=values,
                noise_std=float(noise_std),
                num_users=None if asked.sampling.hides_cohort else num_users,
                expected_users=asked.sampling.expected_users,
                largest_clip_norm=largest_clip_norm(asked.sampling),
                rate=asked.sampling.rate,
                by_coins=isinstance(asked.sampling, PoissonSampling),
            ),
            counts,
        )

    def _leave_out(self, asked: AskedRound, reason: str, *, num_users: int, charged: bool) -> None:
        """Close a round without a release; it is charged where nodes have charged it, too."""
        asking, told = need(self._asking), asked.why_lost(reason)
        asking.federation.attendance.lost(asked.number, told)
        if charged or asked.sampling.hides_cohort:
            asking.ledger.charge(round=asked.number, num_users=num_users)
        else:
            asking.ledger.discard(round=asked.number, num_users=num_users, reason=reason)
        logger.warning("round %d is left out: %s", asked.number, told)

    def _note_attendance(
        self, asked: AskedRound, answering: frozenset[int], counts: Counter[str]
    ) -> None:
        """Note who answered a round that is released, and tell the server's owner of silence."""
        attendance = need(self._asking).federation.attendance
        if not asked.sampling.hides_cohort or answering & asked.always_asked:
            attendance.answered()
        else:
            attendance.lost(asked.number, "no node that is asked in every round answered")
        if asked.most_users and not answering:
            # It depends on the draw where nodes of one user are drawn.
            logger.warning(
                "round %d: none of the nodes that were asked answered; it is released, as noise "
                "alone, and charged",
                asked.number,
                extra=FOR_THE_OWNER,
            )
        attendance.missed(asked.number, asked.told(counts))

    def _open_noise(self, number: int) -> Correlation | None:
        """Begin the stream of a phase's correlated noise, or go on with it."""
        asking = need(self._asking)
        settled = asking.federation.settled
        correlation = settled.correlation_at(number)
        if number == settled.plan.first_round(settled.plan.at(number)):
            # That of the phase before, which no round takes up, also of a process that is gone.
            self._forget_noise()
        if correlation is None or asking.noise is not None:
            return correlation
        path = self.run.path / NOISE_FILE
        asking.noise = CorrelatedNoise(correlation, random=self._random, path=path)
        released = asking.ledger.last_released(correlation)
        if released is not None and released > asking.noise.last_round:
            raise LedgerError(
                f"{path} does not reach round {released}, which was released: the noise of the "
                "rounds to come must take that round's noise up, and the run cannot continue"
            )
        return correlation

    def _forget_noise(self) -> None:
        """Delete the memory of the noise: no round is left that would take it up.

        Not only after a last round that was released. One that was lost leaves the memory of the
        round before on the disk, and a process killed while writing leaves a file of its own.
        """
        if self._asking is not None:
            self._asking.noise = None
        for file in (self.run.path / NOISE_FILE, *leftovers(self.run.path / NOISE_FILE)):
            file.unlink(missing_ok=True)

    # ------------------------------------------------------------------ before the first round

    def _open_run(self) -> RunDirectory:
        """The run directory, new or with a run to go on with."""
        settings = self.config
        if settings.run_dir:
            resume: bool | Literal["auto"] = settings.resume
            path = named_run(settings.run_dir, resume=resume)
        else:  # which takes a home
            path, resume = unnamed_run(type(self).__name__)
        self._run = RunDirectory.start(
            path,
            config={**settings.to_dict(), **dict(settings.node_settings)},
            strategy=type(self).__name__,
            resume=resume,
        )
        self._asking = None  # of an earlier start
        return self._run

    def _prepare(self, grid: Grid, timeout: float) -> Federation | None:
        """What must hold before the first question; None where every round has been asked."""
        return Preparation(
            run=self.run,
            settings=self.config,
            method=self.method,
            strategy=type(self).__name__,
            grid=grid,
            timeout=timeout,
        ).get_ready(resume=self.run.goes_on)

    def _open_ledger(self, run: RunDirectory) -> PrivacyLedger:
        settings, path = self.config, run.ledger_file
        expected: dict[str, Any] = {
            "delta": settings.delta,
            "epsilon_budget": settings.epsilon,
            "accountant": settings.accountant,
        }
        if path.exists():
            ledger = PrivacyLedger.open(path, expected=expected, stated=run.stated_digests())
        else:
            ledger = PrivacyLedger.create(path, **expected)
        run.follow_ledger(lambda: ledger.digest)
        return ledger

    # ------------------------------------------------------------------ the rounds

    def _following(
        self, rounds: RoundEnds, ledger: PrivacyLedger, federation: Federation | None
    ) -> Next:
        """What is asked first, or after the rounds that are over."""
        plan = None if federation is None else federation.settled.plan
        if self.run.goes_on:
            return rounds.go_on(ledger, plan)
        with self._timed("begin"):
            return rounds.begin(plan)

    def _ask_all(self, timeout: float, evaluate_fn: flower_loop.Evaluate | None) -> Result:
        """Ask every round that is left, in Flower's own loop."""
        result, asking = Result(), self._asking
        try:
            if asking is not None:
                evaluate = evaluate_fn and flower_loop.evaluated_by(
                    evaluate_fn, asking.behind, lambda: asking.last_asked
                )
                result = super().start(
                    asking.grid,
                    initial_arrays=broadcast_of(need(asking.question), self.config),
                    num_rounds=self.config.num_rounds - asking.behind,
                    timeout=timeout,
                    evaluate_fn=evaluate,
                )
        finally:
            give_room_back(self.run)  # also what a killed process had taken
        self._forget_noise()
        return result

    @contextlib.contextmanager
    def _timed(self, event: str) -> Iterator[None]:
        """Record for the owner how long the server works on something."""
        begun = clock.seconds()
        yield
        self.run.owner.record(event, seconds_server=clock.seconds() - begun)

    def _after_silence(self, asked: AskedRound) -> str:
        """What rounds that too few answered have cost, and how the run goes on."""
        makes_up = self.plan.at(asked.number).makes_up
        return asked.consequence_of_silence(makes_up=makes_up, go_on=self._go_on)

    @property
    def _go_on(self) -> str:
        return f"bring the nodes back and continue with {how_to_resume(self.run.path)}"

    def _stamped(self) -> dict[str, str]:
        return {} if self.method.stamp is None else {"stamp": self.method.stamp}


#: What a subclass may not replace: everything but how it is made.
_PRIVATE_PATH = frozenset(PrivateSumStrategy.__dict__) - {
    "__init__",
    "messages_under_way",
    "__module__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__abstractmethods__",
    "_abc_impl",
    "__annotations__",
    "__orig_bases__",
    "__parameters__",
    "__qualname__",
    "__firstlineno__",
    "__static_attributes__",
}
