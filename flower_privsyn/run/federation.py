"""The nodes of a run: who can be asked, and all that is settled before the first question."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Message

from flower_privsyn.errors import FederationError
from flower_privsyn.messages import wire
from flower_privsyn.messages.window import WindowedGrid
from flower_privsyn.messages.wire import Announcement
from flower_privsyn.models import provenance
from flower_privsyn.privacy import FullParticipation, Plan, RandomSource, Sampling
from flower_privsyn.privacy.calibrated import calibrated
from flower_privsyn.progress import Progress, Stage
from flower_privsyn.queries import Query
from flower_privsyn.run import RunDirectory, how_to_resume
from flower_privsyn.run.aggregation import first_replies
from flower_privsyn.run.changes import changes_of_run, may_leave_out_nodes, record_changes
from flower_privsyn.run.method import Method, RecordSource, RunContext
from flower_privsyn.run.plan import announcement, check_noise, plan_of, refuse_unfit_noise
from flower_privsyn.run.rounds import (
    Releases,
    all_asked,
    last_state,
    ledger_of,
    nothing_spent,
    rounds_behind,
)
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.secure_aggregation.terms import Terms

logger = logging.getLogger("flwr.privsyn")

#: Connected nodes of one user that are asked in every round of a secret cohort, drawn or not.
ROLL_CALL = 64


def roll_call(
    roster: Mapping[int, int], *, connected: Collection[int], random: RandomSource
) -> frozenset[int]:
    """Nodes that are asked in a round of a secret cohort whoever is drawn.

    Whether such a node replies says nothing about who was drawn. Every node of several users is
    one; of the nodes of one user, which else are asked when that user is drawn and not otherwise,
    `ROLL_CALL` of those that are connected, chosen anew in every round.

    Args:
        roster: users by node.
        connected: nodes that Flower reaches now.
        random: chooses among the nodes of one user.
    """
    several = [node for node, users in roster.items() if users > 1]
    single = sorted(node for node in connected if roster.get(node) == 1)
    if len(single) > ROLL_CALL:
        chosen = np.argsort(random.uint64(len(single)), kind="stable")[:ROLL_CALL]
        single = [single[index] for index in chosen]
    return frozenset([*several, *single])


_POLL_SECONDS = 0.5

_INSTALL = (
    "install the server's flower-privsyn on the node, or the package with the entry point in "
    "flower_privsyn.queries, and serve model_delta with flower_privsyn.client_apps.training:app"
)


@dataclass(frozen=True, kw_only=True)
class Roster:
    """The public roster: who can be asked.

    Attributes:
        users: by node, how many users it hosts.
    """

    users: Mapping[int, int]

    @property
    def total(self) -> int:
        """Users on all nodes."""
        return sum(self.users.values())

    def always_asked(
        self,
        sampling: Sampling,
        *,
        connected: Collection[int],
        random: RandomSource,
        everybody: bool = False,
    ) -> frozenset[int]:
        """Nodes that a round asks whoever is drawn.

        Args:
            sampling: of the round.
            connected: nodes that Flower reaches now.
            random: chooses among the nodes of one user.
            everybody: whether every node is asked, because the coins are flipped there.
        """
        if everybody or not sampling.hides_cohort:
            return frozenset(node for node, users in self.users.items() if users > 0)
        return roll_call(self.users, connected=connected, random=random)

    def recipients(
        self, ask: wire.Ask, *, always: Collection[int], random: RandomSource
    ) -> dict[int, wire.Ask]:
        """The question as each node gets it that is asked, with the draw which that node applies.

        A node with one user is only sent the broadcast when that user takes part, so the server
        flips its coin; on a node with many users each flips their own. Nodes of the roll call are
        asked in every round, so that who is asked does not tell who was drawn; without a user who
        was, they answer zeros.

        Args:
            ask: the question, with the sampling of the round.
            always: nodes of the roll call.
            random: flips the server's coins, and draws the keys of the nodes'.
        """
        nodes, sampling = sorted(self.users), ask.release.sampling
        counts = sampling.allocate([self.users[node] for node in nodes], random)
        # By node, what it applies and how many users it draws.
        shares: dict[int, tuple[Sampling, int]] = {}
        if counts is not None:
            drawn = zip(nodes, counts, strict=True)
            shares = {
                node: (sampling, count) for node, count in drawn if count > 0 or node in always
            }
        for node in nodes if counts is None else ():
            if sampling.method != "poisson" or node in always:
                if self.users[node]:
                    shares[node] = sampling.of_round(ask.release.round), -1
            elif self.users[node] and sampling.participants([""], key=_key(random))[0]:
                shares[node] = FullParticipation(population=self.total), -1
        return {
            node: replace(
                ask,
                release=replace(ask.release, sampling=share),
                # One key per node: equal ids on two nodes must not share a coin, and no node may
                # know the coins of another's users.
                sampling_key=_key(random),
                sample_count=count,
                roster_users=self.users[node],
            )
            for node, (share, count) in shares.items()
        }


def _key(random: RandomSource) -> bytes:
    """A fresh key of coins."""
    return random.uint64(4).tobytes()


#: What makes the records of each kind, at the server, by how the nodes make them.
Sources: TypeAlias = Mapping[wire.DataRequest, RecordSource]


def data_request(settings: PrivateSumConfig, source: RecordSource) -> wire.DataRequest:
    """How the nodes make their records, the same in every round."""
    return wire.DataRequest(
        embedding_model=source.model or settings.embedding_model,
        embedding_precision=settings.embedding_precision,
        max_tokens=settings.max_tokens,
        max_samples=settings.max_samples,
        min_date=settings.min_date,
        held_out_fraction=settings.held_out_fraction,
        seed=settings.seed,
        max_nodes_per_user=settings.max_nodes_per_user,
        trains=source.trains,
        reads=source.reads,
        classes=settings.class_names,
        conditioned=source.conditioned,
    )


def source_of(sources: Sources, query: Query) -> tuple[wire.DataRequest, RecordSource]:
    """What makes the records that a question is about: at the nodes, and at the server.

    Raises:
        RuntimeError: none of them does.
    """
    found = next((one for one in sources.items() if one[0].suits(query)), None)
    if found is None:
        raise RuntimeError(f"the method prepared no records for {query.name}")
    return found


def set_up(
    method: Method, settings: PrivateSumConfig, run: RunDirectory, *, progress: Progress
) -> Sources:
    """Load and check all that a method needs at the server, for a run as for `privsyn check`.

    Args:
        method: of the run.
        settings: of the run.
        run: its directory.
        progress: where the work reports.

    Raises:
        PrivsynError: something is missing or unusable, or a model has learnt private text outside
            of any budget.
    """
    provenance.refuse(settings.to_dict())
    found = method.setup(RunContext(run=run, progress=progress, released=Releases(run).of))
    return {data_request(settings, source): source for source in found}


@dataclass(frozen=True, kw_only=True)
class Federation:
    """What a run knows of its nodes and their noise, from the meeting on.

    Attributes:
        roster: who can be asked.
        settled: phases and their noise.
        required: by phase, users whose answers a round needs to be released.
        sources: what makes records, one for each kind.
        terms: of secure aggregation; None without it.
    """

    roster: Roster
    settled: Plan
    required: Mapping[str, int]
    sources: Sources
    terms: Terms | None = None


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Everything that must hold before the first question.

    Attributes:
        run: the run directory.
        settings: the settings.
        method: to be prepared.
        strategy: the name of the strategy that runs it.
        grid: exchanges with the nodes.
        timeout: seconds to wait for their replies.
    """

    run: RunDirectory
    settings: PrivateSumConfig
    method: Method
    strategy: str
    grid: WindowedGrid
    timeout: float

    def get_ready(self, *, resume: bool) -> Federation | None:
        """Prepare the method, meet the nodes and settle the noise.

        Args:
            resume: whether the run directory holds a run to go on with.

        Returns:
            What is known of the nodes; None where every round of a resumed run has been asked.

        Raises:
            PrivsynError: a setting, a file, a model, the federation or the budget is at fault.
        """
        run, settings, method = self.run, self.settings, self.method
        changes: dict[str, tuple[Any, Any]] = {}
        if resume:
            run.ledger()  # a cut ledger is refused before anybody is asked
            changes = changes_of_run(
                run, settings, method, strategy=self.strategy, grid=self.grid.flower
            )
        progress = run.progress()
        logger.info("run directory: %s", run.path)
        sources = set_up(method, settings, run, progress=progress)
        if resume:
            record_changes(run, changes)
        if resume and all_asked(run, num_rounds=settings.num_rounds):
            logger.info("every round has been asked: the result is made without the nodes")
            return None
        # The noise of a fixed-size cohort depends on the roster.
        settled = None
        if settings.sampling != "fixed-size":
            settled = self._settled(population=max(1, settings.num_users))
        spent = nothing_spent(run)
        known = announcement(method, settings, settled, behind=rounds_behind(run))
        roster = self._registered(sources, known, spent=spent, resume=resume)
        if said := settings.large_delta(roster.total):
            logger.warning("%s", said)
        # Nodes without users have nothing to hide and are asked nothing.
        asked = sum(users > 0 for users in roster.users.values())
        terms = settings.secure_terms(asked)
        if settled is None:
            settled = self._settled(population=roster.total)
        settled = settled.for_population(roster.total)
        # Refuses more than there will be.
        required = {phase.name: settings.required_users(phase.sampling) for phase in settled.phases}
        logger.info(
            "%d users on %d nodes; noise multiplier %s",
            roster.total,
            len(roster.users),
            ", ".join(f"{phase.noise_multiplier:.5g}" for phase in settled.phases),
        )
        if terms is not None:
            refuse_unfit_noise(settled, terms, nodes=asked)
            logger.info(
                "secure aggregation: sums of at least %d of %d nodes, %d of which may collude with "
                "the server; each adds noise of %.3g times that of the sum",
                terms.least_nodes,
                asked,
                terms.colluding,
                terms.noise_share,
            )
        check_noise(settled, settings, progress=progress, spent=spent)
        state = (last_state(run) or (0, None))[1]
        if (found := method.check(settled, spent=spent, state=state)) is not None:
            if found.level == "warning":  # which `privsyn run` shows as one
                logger.warning("%s", found.sentence)
            else:
                progress.note(found.sentence)
        return Federation(
            roster=roster, settled=settled, required=required, sources=sources, terms=terms
        )

    def _registered(
        self,
        sources: Sources,
        announcement: Announcement,
        *,
        spent: str,
        resume: bool,
    ) -> Roster:
        """Wait for the planned nodes, have them prepare, and return the public roster.

        Args:
            sources: what makes records, one for each kind.
            announcement: what the run may still ask.
            spent: words for what a run has cost that stops now.
            resume: whether it goes on, and keeps its settings.

        Raises:
            FederationError: nodes or users are missing.
        """
        settings = self.settings
        nodes = self._wait_for_nodes(spent=spent, resume=resume)
        roster, problems = dict.fromkeys(nodes, -1), Counter[str]()
        times = len(sources)
        often = f" for {times} kinds of questions" if times > 1 else ""
        progress = self.run.progress()
        with progress.stage(f"Nodes read their text{often}", len(nodes) * times) as stage:
            for kind in sources.items():
                ready = self._ask_to_prepare(list(roster), kind, announcement, problems, stage)
                # Whoever cannot make one kind of records takes no part in the others, either.
                alike = {
                    node: users for node, users in ready.items() if roster[node] in (-1, users)
                }
                if unlike := len(ready) - len(alike):
                    problems["other users for one kind of question than for another"] += unlike
                roster = alike
        users = sum(roster.values())
        told = "; ".join(f"{count} x {text}" for text, count in problems.most_common())
        if problems:
            logger.warning(
                "%d of %d nodes are not ready: %s", len(nodes) - len(roster), len(nodes), told
            )
        because = f" ({told})" if told else ""
        if len(roster) < len(nodes) and not settings.num_users:
            # Going ahead without them would let one broken record decide who takes part.
            # A run that goes on keeps its num-users, on which the noise of its rounds stands.
            advice = (
                "set num-users to the number of users that is enough to go ahead without them; "
                if roster and not resume
                else ""
            )
            raise FederationError(
                f"{len(nodes) - len(roster)} of {len(nodes)} nodes are not ready{because}; {advice}"
                f"{spent}"
            )
        planned, key = max(
            (settings.num_users, "num-users"),
            (settings.min_users or 0, "min-users"),
            (1, "at least"),
        )
        if users < planned:
            raise FederationError(
                f"{users} users are ready on {len(roster)} of {len(nodes)} nodes, {planned} were "
                f"planned ({key}){because}; {spent}"
            )
        return Roster(users=roster)

    def _ask_to_prepare(
        self,
        nodes: list[int],
        kind: tuple[wire.DataRequest, RecordSource],
        announcement: Announcement,
        problems: Counter[str],
        stage: Stage,
    ) -> dict[int, int]:
        """Users of the nodes that have made one kind of records; why the others have not."""
        request, source = kind
        messages = (
            Message(
                wire.pack_prepare(request, plan=announcement),
                dst_node_id=node,
                message_type=wire.PREPARE,
            )
            for node in nodes
        )

        def arriving() -> Iterator[Message]:
            for reply in self.grid.send_and_receive(messages, timeout=self.timeout):
                stage.update()
                yield reply

        roster: dict[int, int] = {}
        counts, wrong = Counter[str](), Counter[str]()
        for reply in first_replies(arriving(), asked=nodes, counts=counts):
            try:
                entry = wire.unpack_roster(reply)
            except wire.WireError as error:
                wrong[str(error)] += 1
                continue
            if (entry.embedder, entry.dimension) == (source.fingerprint, source.dimension):
                roster[reply.metadata.src_node_id] = entry.num_users
            else:
                asked = [source.trains.name] if source.trains else []
                if not asked or source.conditioned:
                    asked.append(f"{request.embedding_model} ({request.embedding_precision})")
                wrong[f"another model or tokenizer than the server's {' or '.join(asked)}"] += 1
        unknown = wire.words_of(wire.ClientErrorCode.UNKNOWN_QUERY)
        for why, count in counts.items():
            more = f" ({', '.join(announcement.queries)}): {_INSTALL}" if why == unknown else ""
            wrong[why.replace("missing", "no reply") + more] += count
        problems += +wrong
        return roster

    def _wait_for_nodes(self, *, spent: str, resume: bool) -> list[int]:
        """Block until `num_nodes` nodes are connected.

        Simulations start the server before their nodes are registered; going ahead with those
        that happen to be there would change the sampling that the accountant is told of.
        """
        wanted, begun = self.settings.num_nodes, time.monotonic()
        with self.run.progress().stage("Wait for nodes to connect", wanted) as stage:
            while True:
                nodes = sorted(self.grid.flower.get_node_ids())
                stage.reach(len(nodes), wanted)
                if len(nodes) >= wanted:
                    return nodes
                instead = getattr(self.grid.flower, "all_there", "")  # of a `LocalGrid`
                if instead:
                    raise FederationError(
                        f"{len(nodes)} nodes are there, {wanted} were planned; {instead}; {spent}"
                    )
                if time.monotonic() - begun >= self.settings.node_timeout:
                    if (
                        resume
                        and nodes
                        and may_leave_out_nodes(self.run, self.settings, self.grid.flower)
                    ):
                        command = how_to_resume(self.run.path, num_nodes=len(nodes))
                        instead = f"to go on without those that are gone for good: {command}; "
                    raise FederationError(
                        f"{len(nodes)} nodes are connected after {self.settings.node_timeout:g} s, "
                        f"{wanted} were planned (num-nodes); {instead}{spent}"
                    )
                time.sleep(_POLL_SECONDS)

    def _settled(self, *, population: int) -> Plan:
        plan = plan_of(self.method, self.settings, population=population)
        return calibrated(plan, epsilon=self.settings.epsilon, ledger=ledger_of(self.run))
