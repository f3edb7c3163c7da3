"""What the files of a run say about how it goes on: who is left to ask, and with which noise."""

from __future__ import annotations

import math

from flower_privsyn.errors import BudgetExceededError
from flower_privsyn.privacy import (
    GaussianMechanism,
    NeighboringRelation,
    PrivacyLedger,
    Sampling,
)
from flower_privsyn.privacy.mechanisms import mechanism_from_dict
from flower_privsyn.runs import RunDirectory

#: How far above the least noise that fits the noise of the rounds that are left may be.
_TOLERANCE = 0.01

#: Beyond this many times the planned noise nothing is searched.
_MOST_TIMES = 100.0


def rounds_behind(run: RunDirectory) -> int:
    """Rounds of a resumed run that no node will be asked again; 0 of a run without a ledger."""
    if not run.ledger_file.exists():
        return 0
    ledger = PrivacyLedger.read(run.ledger_file)
    # A round that was discarded last is asked again.
    return max((0, *ledger.rounds_charged, *ledger.rounds_started))


def all_released(run: RunDirectory, *, num_rounds: int) -> bool:
    """Whether a run that is resumed has no round left to ask.

    Args:
        run: its directory.
        num_rounds: rounds that it is resumed for.
    """
    finished = run.finished_rounds()
    if not run.ledger_file.exists() or not finished:
        return False
    ledger = PrivacyLedger.read(run.ledger_file)
    charged = {*ledger.rounds_charged, *ledger.rounds_started}
    reached = max((*charged, *finished))
    if not ledger.correlations:
        # Those that were discarded last are asked again.
        discarded = set(run.rounds_with_outcome("discarded"))
        while reached in discarded - charged:
            reached -= 1
    state = run.round_state(reached) or {}
    return reached >= num_rounds or bool(state.get("ended"))


def earliest_end(run: RunDirectory) -> int | None:
    """The number of rounds with which a run can end now, with what was released; None if none can.

    It is that of the last round that was charged. Noise that is correlated was charged for all
    rounds, and a run without any release has nothing to end with.
    """
    behind = rounds_behind(run)
    if behind == 0 or PrivacyLedger.read(run.ledger_file).correlations:
        return None
    released = any(
        (run.round_path(number) / "release.npy").exists() for number in range(1, behind + 1)
    )
    return behind if released else None


def asked_last(run: RunDirectory) -> tuple[Sampling, GaussianMechanism]:
    """Who was drawn from in the last round that was begun, and its noise, by the ledger.

    Args:
        run: the directory of a run of which a round was begun.
    """
    begun = [line for line in run.ledger_lines() if line["event"] == "started"]
    return Sampling.from_dict(begun[-1]["sampling"]), mechanism_from_dict(begun[-1])


def multiplier_for_the_rest(
    run: RunDirectory,
    planned: float,
    *,
    num_rounds: int,
    sampling: Sampling,
    relation: NeighboringRelation,
    max_nodes_per_user: int,
) -> float:
    """The noise with which the rounds that are left fit into what is left of the budget.

    The users may be fewer than when the run began: a round that draws as many of them then costs
    more than was planned, and those that were charged are charged.

    *Formal guarantee.* With the noise returned, all rounds that are left and everything charged or
    started cost at most the ledger's budget, by the ledger's accountant, if every one of them is as
    stated. The ledger holds to the budget whatever is returned here.

    Args:
        run: its directory; without a ledger, or a budget there, the planned noise is returned.
        planned: noise multiplier with which all rounds of the run, as the users are now, keep the
            budget, > 0.
        num_rounds: of the whole run.
        sampling: how the cohorts to come are drawn.
        relation: which collections of users are neighbours.
        max_nodes_per_user: on how many nodes one user may be, >= 1.

    Returns:
        The planned one or the least above it that fits, at most 1% too large.

    Raises:
        BudgetExceededError: no noise makes the rounds fit.
    """
    left = num_rounds - rounds_behind(run)
    if left <= 0 or not run.ledger_file.exists():
        return planned
    ledger = PrivacyLedger.read(run.ledger_file)

    def fits(multiplier: float) -> bool:
        return ledger.allows(
            left,
            mechanism=GaussianMechanism(noise_multiplier=multiplier, l2_sensitivity=1.0),
            sampling=sampling,
            relation=relation,
            max_nodes_per_user=max_nodes_per_user,
        )

    if fits(planned):
        return planned
    low, high, factor = planned, planned * (1.0 + _TOLERANCE), 1.0 + _TOLERANCE
    while not fits(high):
        factor *= factor
        low, high = high, high * factor
        if high > _MOST_TIMES * planned:
            raise BudgetExceededError(
                f"the {left} rounds that are left do not fit into what the {ledger.num_releases} "
                f"charged ones leave of epsilon = {ledger.epsilon_budget:g}, whatever their noise"
            )
    while high > low * (1.0 + _TOLERANCE):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
