"""What a round asks, in full; and what a run will send and spend, before it begins."""

from __future__ import annotations

from collections.abc import Iterator

from flwr.app import ArrayRecord

from flower_privsyn.messages import secure as secure_wire
from flower_privsyn.messages import wire
from flower_privsyn.privacy import GaussianMechanism, NeighboringRelation, Phase, Plan
from flower_privsyn.private_path.meeting import data_request
from flower_privsyn.private_path.method import Outline, Question, RecordSource
from flower_privsyn.private_path.settings import PrivateSumConfig
from flower_privsyn.private_path.settling import SettledPlan
from flower_privsyn.queries import Query
from flower_privsyn.secure_aggregation import Terms


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
    plan: SettledPlan,
    *,
    number: int,
    mechanism: GaussianMechanism,
    source: RecordSource,
    secure: Terms | None = None,
) -> wire.Ask:
    """What a round asks, as a node that answers for all of its users gets it.

    Args:
        question: with the broadcast as it travels.
        settings: of the run.
        plan: settled.
        number: of the round, 1-based.
        mechanism: the noise on the question's sum.
        source: what makes the records.
        secure: the terms of secure aggregation; None without it.
    """
    return wire.Ask(
        round_number=number,
        query=question.query,
        broadcast=question.broadcast,
        data=data_request(settings, source),
        sampling=plan.plan.at(number).sampling,
        sampling_key=bytes(32),
        mechanism=mechanism,
        num_rounds=settings.num_rounds,
        relation=NeighboringRelation(settings.relation),
        correlation=plan.correlation_at(number),
        secure=secure,
    )


def mechanism_of(query: Query, phase: Phase, settings: PrivateSumConfig) -> GaussianMechanism:
    """The noise on a question's sum: every node clips, so a user counts once on each.

    Args:
        query: with its clip norm.
        phase: settled, of the round.
        settings: of the run.
    """
    return GaussianMechanism(
        noise_multiplier=phase.noise_multiplier or 0.0,
        l2_sensitivity=settings.max_nodes_per_user * query.clip_norm,
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


def planned_traffic(
    outline: Outline, settings: PrivateSumConfig, plan: SettledPlan
) -> list[wire.Traffic]:
    """What every round will carry to a node and back, counted as a run counts it.

    Args:
        outline: of the method.
        settings: of the run.
        plan: settled, for the population there is.
    """
    found: list[wire.Traffic] = []
    counted: dict[tuple[object, ...], wire.Traffic] = {}
    packed: tuple[Question, ArrayRecord] | None = None
    for number in range(1, settings.num_rounds + 1):
        question, phase = outline.question(number), plan.plan.at(number)
        # Rounds differ in nothing but their number, which takes more room the longer it is.
        alike = (id(question), phase.name, len(str(number)), -(-number.bit_length() // 7))
        if alike not in counted:
            if packed is None or packed[0] is not question:
                packed = question, broadcast_of(question, settings)
            source = next(one for one in outline.sources if one.suits(question.query))
            ask = ask_of(
                question,
                settings,
                plan,
                number=number,
                mechanism=mechanism_of(question.query, phase, settings),
                source=source,
                secure=settings.secure_terms(settings.num_nodes),
            )
            counted[alike] = traffic_of(ask, packed[1], nodes=settings.num_nodes)
        found.append(counted[alike])
    return found


def spending_of(plan: Plan, settings: PrivateSumConfig, *, name: str) -> Iterator[str]:
    """A sentence per phase: what it will spend.

    Args:
        plan: its noise settled.
        settings: of the run.
        name: of the strategy, for a run of one phase.
    """
    for phase in plan.phases:
        yield (
            f"{name if len(plan.phases) == 1 else phase.name}: {phase.rounds} rounds, "
            f"{phase.sampling}; noise multiplier {phase.noise_multiplier:.5g}, "
            f"clip norm {max(query.clip_norm for query in phase.asks):.5g}, "
            f"relation {settings.relation}, accountant {settings.accountant}"
        )


def shown(epsilon: float | None) -> str:
    """An epsilon in the log; None is that of a run without noise."""
    return "none (no privacy)" if epsilon is None else f"{epsilon:.4g}"
