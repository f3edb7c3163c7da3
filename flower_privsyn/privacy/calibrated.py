"""A plan whose noise is calibrated: by its budget, and by what a run has begun and spent."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from flower_privsyn.errors import BudgetExceededError, ConfigError
from flower_privsyn.privacy.accounting import Release
from flower_privsyn.privacy.correlated_noise import Correlation
from flower_privsyn.privacy.ledger import PrivacyLedger
from flower_privsyn.privacy.plan import Phase, Plan, calibrate_open_releases

#: Room for rounding when the noise of a plan is held against a budget, relative.
_ROUNDING = 1e-6


def calibrated(plan: Plan, *, epsilon: float | None, ledger: PrivacyLedger | None = None) -> Plan:
    """The plan with the correlation and the noise of every phase.

    Formal guarantee:
        With a budget, what the ledger has charged and all rounds that are left cost at most
        `epsilon`, by the plan's accountant, if every one of them is as stated. The ledger holds to
        the budget whatever is returned here.

    Args:
        plan: some phases perhaps open.
        epsilon: the budget; None where every phase states its noise.
        ledger: of the run: what was begun goes on with the correlation and noise it has. None of a
            run that is not started.

    Raises:
        BudgetExceededError: no noise makes the rounds that are left fit.
        ConfigError: a phase has no noise and there is no budget, or the phases exceed it.
    """
    begun = (
        {} if ledger is None else {c.first_round: (c, m) for c, m in ledger.correlations.items()}
    )
    phases: list[Phase] = []
    for phase in plan.phases:
        first = plan.first_round(phase)
        if phase.factorisation is None:
            phases.append(phase)
        elif first in begun:
            correlation, multiplier = begun[first]
            stated = phase.noise_multiplier
            if stated is not None and not math.isclose(stated, multiplier, rel_tol=_ROUNDING):
                raise ConfigError(
                    f'the phase "{phase.name}" was begun with a noise multiplier of '
                    f"{multiplier:.6g}, by the ledger, and the settings state {stated:.6g}"
                )
            phases.append(
                replace(
                    phase,
                    factorisation=correlation.factorisation,
                    noise_multiplier=multiplier,
                    correlation=correlation,
                )
            )
        else:
            correlation = Correlation(
                factorisation=phase.factorisation,
                min_separation=phase.sampling.min_separation,
                first_round=first,
            )
            phases.append(replace(phase, correlation=correlation))
    plan = replace(plan, phases=tuple(phases))
    if plan.open and epsilon is None:
        raise ConfigError(
            f'the phase "{plan.open[0].name}" states no noise multiplier, and there is no epsilon '
            "for it to follow from"
        )
    if plan.open and epsilon is not None:
        multiplier = plan.calibrated_multiplier(epsilon)
        if ledger is not None:
            multiplier = _for_the_rest(plan, multiplier, ledger)
        return plan.with_multiplier(multiplier)
    if epsilon is not None and plan.epsilon() > epsilon * (1.0 + _ROUNDING):
        raise ConfigError(
            f"the phases cost epsilon = {plan.epsilon():.6g} together, above the budget of "
            f"{epsilon:g}: give them more noise, or choose a larger epsilon"
        )
    return plan


def _for_the_rest(plan: Plan, planned: float, ledger: PrivacyLedger) -> float:
    """The noise with which the rounds that are left fit into what is left of the budget.

    The users may be fewer than when the run began: a round that draws as many of them then costs
    more than was planned, and those that were charged are charged.

    Returns:
        The planned multiplier, or the least that fits.
    """
    behind = ledger.rounds_behind

    def left(multiplier: float) -> Counter[Release]:
        return left_after(plan.with_multiplier(multiplier), behind)

    if ledger.epsilon_budget is None or ledger.allows(left(planned)):
        return planned
    try:
        return calibrate_open_releases(
            left,
            settled=ledger.committed,
            epsilon=ledger.epsilon_budget,
            delta=ledger.delta,
            accountant=ledger.accountant,
        )
    except ConfigError as error:
        raise BudgetExceededError(f"the rounds that are left do not fit: {error}") from error


def left_after(plan: Plan, behind: int) -> Counter[Release]:
    """What the rounds after a given one release; a correlated phase was paid for when it began."""
    total = Counter[Release]()
    for phase, rounds in plan.following(behind):
        begun = rounds < phase.rounds
        if phase.factorisation is not None and begun:
            continue
        total += plan.released_by(phase, rounds=rounds)
    return total
