"""The one private path: a question, answers of bounded norm, their sum, ledger, noise, a release.

A method says what is asked and what is done with what was released (`Method`). Everything that
touches private answers is here and is the same for all methods.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flower_privsyn import files
from flower_privsyn.checks import check_number
from flower_privsyn.errors import ConfigError, FederationError, LedgerError
from flower_privsyn.files import leftovers
from flower_privsyn.messages import secure as secure_wire
from flower_privsyn.messages import wire
from flower_privsyn.messages.window import WindowedGrid
from flower_privsyn.messages.wire import refuse_uncarried
from flower_privsyn.privacy import (
    CorrelatedNoise,
    Correlation,
    GaussianMechanism,
    NeighboringRelation,
    Phase,
    Plan,
    PrivacyLedger,
    RandomSource,
    ReleaseSpec,
    SecureRandom,
)
from flower_privsyn.privacy.mechanisms import LARGEST_SUM, from_grid
from flower_privsyn.progress import Progress
from flower_privsyn.queries.query import try_query
from flower_privsyn.run import RunDirectory, how_to_resume
from flower_privsyn.run.aggregation import AskedRound, Central, Secure, answered_by
from flower_privsyn.run.changes import changes_of_run, recorded
from flower_privsyn.run.directory import place_of_run
from flower_privsyn.run.federation import Federation, Preparation, Roster, source_of
from flower_privsyn.run.method import (
    Method,
    Question,
    RecordSource,
    ReleasedSum,
    RunContext,
    State,
    need,
)
from flower_privsyn.run.rounds import KeptRounds, Releases, last_state
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.run.trackers import Following, Tracker
from flower_privsyn.secure_aggregation.terms import Terms

logger = logging.getLogger("flwr.privsyn")


def refuse_unfit(
    question: Question, number: int, *, phase: Phase, source: RecordSource, roster: Roster
) -> None:
    """Refuse what a round may not ask, before it is begun: what was begun is charged.

    Nodes check for themselves. But a question that all of them refuse would cost what one that they
    answer does, in this round and in every one that is asked when the run goes on.

    Args:
        question: that the round is about to ask, with the broadcast as it travels.
        number: of the round.
        phase: of the round.
        source: what makes the records that the question is about.
        roster: everybody who may answer.

    Raises:
        ConfigError: it cannot be carried to the nodes, its own check refuses what is sent, it
            cannot answer about public records, or its sums may leave the exact numbers.
        RuntimeError: the phase does not ask it.
    """
    query, broadcast = question.query, question.broadcast
    if query.name not in {one.name for one in phase.asks}:
        raise RuntimeError(f'the phase "{phase.name}" does not ask {query.name}')
    refuse_uncarried(query)
    try:
        query.check(broadcast, dimension=source.dimension)
        # Ours answer in the package's tests, and a sum as long as a model is not made for nothing.
        if not query.bundled:
            try_query(query, broadcast, dimension=source.dimension)
    except Exception as error:
        raise ConfigError(
            f"no node can answer {query.name} as round {number} would ask it "
            f"({type(error).__name__}: {error}); the round is not asked and not charged"
        ) from error
    largest = query.answer_bound(roster.total)
    if largest > LARGEST_SUM:
        # A node can announce what it likes.
        most = max(roster.users.values(), default=0)
        raise ConfigError(
            f"a clip norm of {query.clip_norm:g} for {roster.total} users, of whom one node alone "
            f"announces {most}, lets the sum reach {largest:g}; sums are exact up to 2^23 = "
            f"{LARGEST_SUM:,.0f}: choose a smaller clip norm, or look whether it has so many"
        )


def broadcast_of(question: Question, settings: PrivateSumConfig) -> ArrayRecord:
    """A question's broadcast as it travels."""
    return wire.broadcast_record(
        question.broadcast,
        precision=settings.broadcast_precision,
        unrounded=question.query.unrounded,
    )


def ask_of(
    question: Question,
    settings: PrivateSumConfig,
    phase: Phase,
    *,
    number: int,
    data: wire.DataRequest,
    secure: Terms | None = None,
) -> wire.Ask:
    """What a round asks, as a node that answers for all of its users gets it.

    Args:
        question: with the broadcast as it travels.
        settings: of the run.
        phase: of the round, its noise settled.
        number: of the round, 1-based.
        data: how the nodes make the records.
        secure: the terms of secure aggregation; None without it.
    """
    return wire.Ask(
        release=ReleaseSpec(
            round=number,
            query=question.query.name,
            # Every node clips, so a user counts once on each.
            mechanism=GaussianMechanism(
                noise_multiplier=phase.noise_multiplier or 0.0,
                l2_sensitivity=settings.max_nodes_per_user * question.query.clip_norm,
            ),
            sampling=phase.sampling,
            relation=NeighboringRelation(settings.relation),
            correlation=phase.correlation,
            max_nodes_per_user=settings.max_nodes_per_user,
        ),
        query=question.query,
        broadcast=question.broadcast,
        data=data,
        sampling_key=bytes(32),
        num_rounds=settings.num_rounds,
        secure=secure,
    )


def traffic_of(ask: wire.Ask, broadcast: ArrayRecord, *, nodes: int) -> wire.Traffic:
    """What a round carries to one node and back, all its exchanges together.

    Args:
        ask: the question as any node might get it.
        broadcast: `ask.broadcast` packed.
        nodes: that are asked.
    """
    if ask.secure is None:
        return wire.traffic(ask, broadcast)
    return secure_wire.traffic(ask, broadcast, ask.secure, nodes=nodes)


def shown(epsilon: float | None) -> str:
    """An epsilon in the log; None is that of a run without noise."""
    return "none (no privacy)" if epsilon is None else f"{epsilon:.4g}"


#: The memory of correlated noise, in the run directory while there are rounds to come. Secret: with
#: the releases it reveals the sums without noise.
NOISE_FILE = "noise.npz"


@dataclass(kw_only=True)
class Started:
    """What one start asks its rounds with, from the first of them to the last.

    A start makes its own: another process may have gone on with the run since an earlier one, and
    noise that takes up other noise than that of the rounds which are out is not what was accounted
    for.

    Attributes:
        grid: exchanges with the nodes.
        aggregation: what makes a sum of answers.
        ledger: open.
        federation: the nodes and their noise.
        rounds: the method's state, and what is over.
        asked: the round under way, or the one that was last; None before the first.
        noise: the stream of the phase under way; None where its rounds draw their own.
        lost: why each of the last rounds was lost, in words that the run directory may hold.
        missing: why nodes were not in the last sum, as `AskedRound.told` has it.
    """

    grid: WindowedGrid
    aggregation: Central | Secure
    ledger: PrivacyLedger
    federation: Federation
    rounds: KeptRounds
    asked: AskedRound | None = None
    noise: CorrelatedNoise | None = None
    lost: list[str] = field(default_factory=list)
    missing: str = ""


class PrivateSumStrategy(Strategy):
    """A Flower strategy whose only view of private data is a noised, accounted sum.

    A subclass names its `config_class` and its `method_class` and has nothing else.

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
        config: the settings, where they are not given as keywords.
        method: what is asked, and what is done with what was released; None for one of
            `method_class`.
        random: source of noise and coins; only tests pass one, and the ledger says so.
        settings: what `method_class` takes beside its settings, such as a writer in place of the
            setting `generator`; and settings, by the names of the fields of `config_class`. A text
            is always a setting.

    Attributes:
        tracker: one of your own, told in place of the setting's; set it before `start`.
    """

    #: Its settings.
    config_class: ClassVar[type[PrivateSumConfig]] = PrivateSumConfig

    #: What is asked, and what is done with what was released: made of the settings.
    method_class: ClassVar[Callable[..., Method]] = Method

    #: What it gives, to a comparison: "on-device training" where it ends with a model.
    kind: ClassVar[Literal["synthetic text", "on-device training"]] = "synthetic text"

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
        self,
        config: PrivateSumConfig | None = None,
        method: Method | None = None,
        *,
        random: RandomSource | None = None,
        **settings: Any,
    ) -> None:
        made = type(self).method_class
        taken = {} if method is not None else inspect.signature(made).parameters
        parts = {
            name: settings.pop(name)
            for name in taken
            if name in settings and not isinstance(settings[name], str | Path)
        }
        self.config = self.config_class.given(config, settings, strategy=type(self).__name__)
        self.method: Method = made(self.config, **parts) if method is None else method
        self.tracker: Tracker | None = None
        self._random: RandomSource = random or SecureRandom()
        self._run: RunDirectory | None = None
        self._started: Started | None = None

    @classmethod
    def from_run_config(
        cls, run_config: Mapping[str, Any], *, other_keys: Collection[str] = (), **parts: Any
    ) -> Self:
        """The strategy with the settings of a run configuration.

        Args:
            run_config: `context.run_config`: flat hyphenated keys, as in `[tool.flwr.app.config]`.
            other_keys: keys that belong to the rest of your app.
            parts: what the strategy takes beside its settings, such as `generator`.

        Raises:
            ConfigError: a key is unknown, or its value has the wrong type or is out of range.
        """
        return cls(cls.config_class.from_run_config(run_config, other_keys=other_keys), **parts)

    # ------------------------------------------------------------------ Flower's interface

    @property
    def run(self) -> RunDirectory:
        """The run directory; available from `start` on."""
        return need(self._run)

    @property
    def plan(self) -> Plan:
        """The phases of the run with their noise; available from the first question on."""
        return need(self._started).federation.settled

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
            timeout: seconds for the replies to what is sent at a time, in a round or before the
                first one, above 0; None for `config.round_timeout`.
            train_config: must be None.
            evaluate_config: must be None: no evaluate phase is sent.
            evaluate_fn: called by Flower with (round, arrays): with 0 and what round 1 is asked of,
                then after every round with what the next one is asked of. Where the nodes train,
                that is the model so far, after the last round as well. A run that goes on begins
                with the number of rounds that are over, if any are left.

        Returns:
            Flower's Result, by the run's own rounds: in `train_metrics_clientapp` the counts of
            this call's, in `arrays` what `evaluate_fn` gets last, if a release changed it. What was
            made of it all is in the run directory, `self.run.path`.

        Raises:
            PrivsynError: a setting, a file, the federation or the budget is at fault. The run
                directory keeps everything finished so far.
        """
        settings = self.config
        if any(one is not None for one in (initial_arrays, train_config, evaluate_config)):
            raise ConfigError(
                f"{type(self).__name__}.start makes its own messages: leave initial_arrays, "
                "train_config and evaluate_config out"
            )
        if num_rounds not in (None, settings.num_rounds):
            raise ConfigError(
                f"num_rounds = {num_rounds} differs from num-rounds = {settings.num_rounds}, for "
                "which the noise is computed: set it in the configuration"
            )
        # At 0 a round would be charged without waiting for anybody.
        timeout = settings.round_timeout if timeout is None else timeout
        timeout = check_number("timeout", timeout, gt=0)
        tracker = Following.of(settings.tracker, self.tracker)
        run = self._open_run()
        if run.status == "finished":  # which resume = "auto" allows
            return self._result_again()
        rounds = KeptRounds(run=run, method=self.method, total=settings.num_rounds, tracker=tracker)
        with run.session(failed=rounds.tell):
            window = WindowedGrid(grid)
            federation = Preparation(
                run=run,
                settings=settings,
                method=self.method,
                strategy=type(self).__name__,
                grid=window,
                timeout=timeout,
            ).get_ready(resume=run.goes_on)
            with self._open_ledger(run) as ledger:
                plan = None if federation is None else federation.settled
                with self._timed("begin"):
                    rounds.go_on(ledger, plan)
                result = Result()
                if federation is not None:
                    secure = settings.secure_aggregation
                    self._started = Started(
                        grid=window,
                        aggregation=Secure(window, timeout=timeout) if secure else Central(),
                        ledger=ledger,
                        federation=federation,
                        rounds=rounds,
                    )
                    self._ask_all(result, timeout, evaluate_fn)
                self._forget_noise()
                rounds.close(ledger, go_on=self._go_on)
                result.arrays = result.arrays or self._arrays(rounds) or result.arrays
                with self._timed("finish"):
                    summary = {**self.method.finish(rounds.state), **ledger.spent}
                run.mark_finished(summary)
                rounds.tell()
            logger.info(
                "epsilon of the release %s, for one who knows the cohorts %s, at delta = %g",
                shown(summary["epsilon_release"]),
                shown(summary["epsilon_known_cohorts"]),
                settings.delta,
            )
            logger.info("the run is in %s", run.path)
        return result

    def _ask_all(
        self,
        result: Result,
        timeout: float,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> None:
        """Ask every round that is left, as Flower's own loop does; one nobody answered again."""
        started = need(self._started)
        grid, rounds = started.grid, started.rounds
        arrays, number = self._arrays(rounds), rounds.over
        while True:
            if evaluate_fn is not None and arrays is not None and number == rounds.over:
                evaluated = evaluate_fn(number, arrays)
                if evaluated is not None:
                    result.evaluate_metrics_serverapp[number] = evaluated
            if rounds.over >= rounds.total:
                return
            number = rounds.over + 1
            messages = self.configure_train(number, need(arrays), ConfigRecord(), grid.flower)
            replies = grid.send_and_receive(messages, timeout=timeout)
            arrays, metrics = self.aggregate_train(number, replies)
            if arrays is not None:
                result.arrays = arrays
            if metrics is not None:
                result.train_metrics_clientapp[number] = metrics

    def _arrays(self, rounds: KeptRounds) -> ArrayRecord | None:
        """What the next round is asked of; after the last one what the method has learnt."""
        if (question := rounds.question) is None:
            return self._learnt(rounds.state)
        return broadcast_of(question, self.config)

    def _learnt(self, state: State) -> ArrayRecord | None:
        """What the method has learnt, as it travels; None where that is no arrays."""
        if (learnt := self.method.arrays(state)) is None:
            return None
        return broadcast_of(Question(self.method.queries[-1], learnt), self.config)

    def _result_again(self) -> Result:
        """Flower's result of a finished run, from its directory; nobody is asked.

        Of every round the numbers of its line, and the arrays that the run ended with, for which
        the method loads its model. What `evaluate_fn` gave is not in the run directory.
        """
        run, name = self.run, type(self).__name__
        try:
            run.ledger()  # a cut ledger is refused, as wherever a run is opened
            changes = changes_of_run(run, self.config, self.method, strategy=name)
            for key, (made, now) in changes.items():
                logger.warning("%s = %r changes nothing: the run finished with %r", key, now, made)
            logger.info(
                "the run in %s has finished: this is its result; nobody is asked, nothing is spent",
                run.path,
            )
            result = Result()
            kept = last_state(run)
            if type(self.method).arrays is not Method.arrays and kept is not None:
                unseen = Progress()
                self.method.setup(RunContext(run=run, progress=unseen, released=Releases(run).of))
                result.arrays = self._learnt(kept[1]) or result.arrays
            for line in run.metrics():
                result.train_metrics_clientapp[int(line["round"])] = _numbers_of(line)
            return result
        finally:
            run.unlock()

    def summary(self) -> None:
        """Log what the run asks."""
        logger.info("\t%s", self.plan)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the ledger, then pack one message per node, each when there is room for it.

        The ledger records that the round has begun before anything is sent, so a run that dies
        inside the round finds it there and charges it. The messages can be read once.
        """
        started = need(self._started)
        number, begun = started.rounds.over + 1, files.seconds()
        # As nodes see it after the journey.
        question = replace(need(started.rounds.question), broadcast=wire.read_broadcast(arrays))
        phase = self.plan.at(number)
        roster = started.federation.roster
        data, source = source_of(started.federation.sources, question.query)
        refuse_unfit(question, number, phase=phase, source=source, roster=roster)
        always = roster.always_asked(
            phase.sampling,
            connected=set(started.grid.flower.get_node_ids()),
            random=self._random,
            everybody=self.config.secure_aggregation,
        )
        ask = ask_of(
            question,
            self.config,
            phase,
            number=number,
            data=data,
            secure=started.federation.terms,
        )
        recipients = roster.recipients(ask, always=always, random=self._random)
        asked = AskedRound(
            spec=ask.release,
            query=question.query,
            length=question.query.answer_length(question.broadcast),
            recipients=recipients,
            always_asked=always,
            begun=begun,
            # Packed before it is paid for: what cannot be packed is not asked.
            traffic=traffic_of(ask, arrays, nodes=len(recipients)),
        )
        # The ledger says that the round has begun; nothing of it is sent before.
        spec = asked.spec
        started.rounds.refuse_where_stopped(number)
        self._open_noise(number, spec.correlation)
        # A disk too full for the release and its lines is seen before they are paid for.
        files.try_file(self.run.path, size=8 * asked.length + 2**13)
        started.ledger.begin(
            spec,
            planned_users=max(1, round(spec.sampling.expected_users)),
            secure_randomness=self._random.secure,
        )
        started.asked = asked
        return started.aggregation.messages(recipients, arrays)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Release the noisy sum of a round and hand it to the method."""
        started = need(self._started)
        asked, rounds = need(started.asked), started.rounds
        number = asked.spec.round
        released, counts = self._release(asked, replies)
        if late := started.grid.take_late():
            counts["rejected: late reply"] = late
        answered = files.seconds()
        metrics = {
            **asked.outcome(released, counts),
            **started.ledger.spent,
            **asdict(asked.traffic),
        }
        correlated = self.plan.at(number).factorisation is not None
        rounds.record(released, metrics)
        if released is not None:
            rounds.release(released)
        elif number in started.ledger.rounds_charged:
            rounds.leave_out(number, "lost")
        elif self.config.secure_aggregation or answered_by(counts) or correlated:
            # A node begins a round of secure aggregation once in a run of Flower's, and one that
            # answered has charged it: asked again at once it would charge both as one sum. Where
            # the noise is correlated, a user's second turn would be one more than is accounted for.
            rounds.leave_out(number, "discarded")
        # How long it took may say how much somebody wrote: that is for the owner alone.
        self.run.owner.record(
            "round",
            round=number,
            seconds_feedback=answered - asked.begun,
            seconds_server=files.seconds() - answered,
        )
        rounds.tell()
        self._end_where_nobody_answers(number)
        return self._arrays(rounds), _numbers_of(metrics)

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
        started, spec = need(self._started), asked.spec
        collected = started.aggregation.collect(replies, asked=asked)
        counts, num_users = collected.counts, collected.num_users
        required = started.federation.required[self.plan.at(spec.round).name]
        reason = collected.lost
        if not reason and num_users < required:
            reason = (
                f"{num_users} users on {counts['answers']} of {len(asked.recipients)} nodes "
                f"answered, {required} are required{asked.told(counts)}"
            )
        if reason:
            self._leave_out(asked, reason, num_users=num_users, charged=collected.charged)
            return None, counts
        self._note_attendance(asked, collected.answering, counts)
        random: RandomSource = self._random
        noise_std = spec.mechanism.standard_deviation
        if started.noise is not None:
            # On the disk before the ledger says that the sum is out: what is out, later rounds
            # must take up. The round's noise then comes from there in place of fresh noise.
            started.noise.prepare(spec.round, asked.length)
            noise_std *= started.noise.deviation(spec.round)
            random = started.noise
        started.ledger.charge(round=spec.round, num_users=num_users, extra=collected.facts)
        if collected.noise_std:
            # The nodes have added it.
            values, noise_std = from_grid(collected.total), collected.noise_std
        else:
            values = from_grid(spec.mechanism.release_steps(collected.total, random=random))
        del collected
        return (
            ReleasedSum(
                round_number=spec.round,
                values=values,
                noise_std=float(noise_std),
                num_users=None if spec.sampling.hides_cohort else num_users,
                sampling=spec.sampling,
            ),
            counts,
        )

    def _leave_out(self, asked: AskedRound, reason: str, *, num_users: int, charged: bool) -> None:
        """Close a round without a release; it is charged where nodes have charged it, too."""
        started, told, spec = need(self._started), asked.why_lost(reason), asked.spec
        started.lost.append(told)
        if charged or spec.sampling.hides_cohort:
            started.ledger.charge(round=spec.round, num_users=num_users)
        else:
            started.ledger.discard(round=spec.round, num_users=num_users, reason=reason)
        logger.warning("round %d is left out: %s", spec.round, told)

    def _note_attendance(
        self, asked: AskedRound, answering: frozenset[int], counts: Counter[str]
    ) -> None:
        """Note who answered a round that is released, and tell the server's owner of silence."""
        started, spec = need(self._started), asked.spec
        if not spec.sampling.hides_cohort or answering & asked.always_asked:
            started.lost.clear()
        else:
            started.lost.append("no node that is asked in every round answered")
        told = asked.told(counts)
        if told and told != started.missing:  # a node that is gone is gone for many rounds
            logger.warning("round %d is released without some nodes%s", spec.round, told)
        started.missing = told

    def _end_where_nobody_answers(self, number: int) -> None:
        """End the run when two rounds in a row were lost: those to come would probably be as well.

        Formal guarantee:
            What is counted depends on head-counts and on which nodes replied, never on a sum. Where
            the cohort is secret, only nodes count that are asked whoever is drawn (`roll_call`), so
            that neither the end of a run nor its length depends on the draw; and nothing said here
            names a node, a round or a number. What is left: a node that is asked replies before
            `round-timeout` or does not, and a node whose users are drawn has more to compute than
            one whose users are not. Only where *every* node of two roll calls is late for that
            reason can the end of a run tell of it.

        Args:
            number: of the last round.

        Raises:
            FederationError: the sentence that says so.
        """
        started = need(self._started)
        if len(started.lost) > 1:
            reasons = "; ".join(dict.fromkeys(started.lost))
            charged = number in started.ledger.rounds_charged
            cost = "they are charged" if charged else "they cost nothing"
            raise FederationError(
                f"two rounds in a row were lost: {reasons}; {cost}; {self._go_on}"
            )

    def _open_noise(self, number: int, correlation: Correlation | None) -> None:
        """Begin the stream of a phase's correlated noise, or go on with it."""
        started = need(self._started)
        if number == self.plan.first_round(self.plan.at(number)):
            # That of the phase before, which no round takes up, also of a process that is gone.
            self._forget_noise()
        if correlation is None or started.noise is not None:
            return
        path = self.run.path / NOISE_FILE
        started.noise = CorrelatedNoise(correlation, random=self._random, path=path)
        released = started.ledger.last_released(correlation)
        if released is not None and released > started.noise.last_round:
            raise LedgerError(
                f"{path} does not reach round {released}, which was released: the noise of the "
                "rounds to come must take that round's noise up, and the run cannot continue"
            )

    def _forget_noise(self) -> None:
        """Delete the memory of the noise: no round is left that would take it up.

        Not only after a last round that was released. One that was lost leaves the memory of the
        round before on the disk, and a process killed while writing leaves a file of its own.
        """
        if self._started is not None:
            self._started.noise = None
        for file in (self.run.path / NOISE_FILE, *leftovers(self.run.path / NOISE_FILE)):
            file.unlink(missing_ok=True)

    # ------------------------------------------------------------------ before the first round

    def _open_run(self) -> RunDirectory:
        """The run directory, new or with a run to go on with."""
        settings, name = self.config, type(self).__name__
        path, resume = place_of_run(settings.run_dir, resume=settings.resume, app_name=name)
        self._run = RunDirectory.start(
            path,
            config={**recorded(settings, self.method), **dict(settings.node_settings)},
            strategy=name,
            resume=resume,
        )
        self._started = None  # of an earlier start
        return self._run

    def _open_ledger(self, run: RunDirectory) -> PrivacyLedger:
        settings, path = self.config, run.ledger_file
        if path.exists():
            ledger = PrivacyLedger.open(path, stated=run.stated_digests())
        else:
            ledger = PrivacyLedger.create(
                path,
                delta=settings.delta,
                epsilon_budget=settings.epsilon,
                accountant=settings.accountant,
            )
        run.ledger_digest = lambda: ledger.digest
        return ledger

    @contextlib.contextmanager
    def _timed(self, event: str) -> Iterator[None]:
        """Record for the owner how long the server works on something."""
        begun = files.seconds()
        yield
        self.run.owner.record(event, seconds_server=files.seconds() - begun)

    @property
    def _go_on(self) -> str:
        return f"bring the nodes back and continue with {how_to_resume(self.run.path)}"


def _numbers_of(metrics: Mapping[str, Any]) -> MetricRecord:
    """What of a round's line is a number, as Flower keeps it."""
    return MetricRecord(
        {
            key: value
            for key, value in metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
    )


#: What a subclass may not replace: everything but how it is made.
_PRIVATE_PATH = frozenset(
    name
    for name in PrivateSumStrategy.__dict__
    if name == "__init_subclass__" or not name.startswith("__")
) - {"config_class", "method_class", "kind", "_abc_impl"}
