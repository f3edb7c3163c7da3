"""A node's answer to a question: who takes part, their sum, and the count of what is not in it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
from flwr.app import Context

from flower_privsyn.client_apps.guard import in_simulation
from flower_privsyn.client_apps.records import Records
from flower_privsyn.files import own_folder
from flower_privsyn.messages import wire
from flower_privsyn.privacy import FixedSizeSampling, quarantine
from flower_privsyn.privacy.grid import LARGEST_SUM
from flower_privsyn.queries import Broadcast, Cohort, Query

logger = logging.getLogger("flower_privsyn.client")

#: The node's own log of what was left out, in its cache directory.
QUARANTINE_LOG = "quarantine.log"


def chosen_users(ask: wire.Ask, user_ids: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Who takes part in a round: (num_users,).

    Args:
        ask: the question.
        user_ids: of the node's users.

    Raises:
        WireError: the sampling cannot be true here, or the sum would not be exact.
    """
    sampling, announced = ask.sampling, ask.announced(len(user_ids))
    if isinstance(sampling, FixedSizeSampling):
        if sampling.population < len(user_ids):
            raise wire.WireError("the request's population is smaller than this node's users alone")
        # Of fewer each would be likelier to be drawn than was accounted for.
        if announced > len(user_ids):
            raise wire.WireError(
                "fewer users are on this node than when it was asked how many: begin another run"
            )
    elif len(user_ids) > announced:
        # The server would leave the answer out. Cutting it to as many would let somebody in for
        # everybody who leaves.
        raise wire.WireError(
            "more users are on this node than when it was asked how many: begin another run"
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

    Formal guarantee:
        Unit: user. Where the contributions of some users cannot be computed, or make a sum that is
        not finite, what is added is `query.answer` of the same cohort in which these users have no
        records: the same to the bit as if they had written nothing.

    Args:
        query: the question, which answers where there are no records: so what fails is a user's.
        cohort: the users who take part.
        broadcast: public; has passed `query.check`.
        total: (answer_length,) the sum, in numbers of the grid; changed in place.
    """
    if _is_added(query, cohort, broadcast, total):
        return

    def contribute(users: Sequence[int]) -> list[bool]:
        chosen = np.zeros(cohort.num_users, dtype=np.bool_)
        chosen[users] = True
        _answer(query, cohort.select(chosen), broadcast)
        return [True] * len(users)

    found = quarantine.spare(range(cohort.num_users), contribute)
    failing = np.array([one is None for one in found], dtype=np.bool_)
    rest = cohort.rows(~failing[cohort.owners])
    if not _is_added(query, rest, broadcast, total):
        # Each is well alone, and not all together: nobody may take the others along.
        for user, alone in enumerate(rest.blocks(1)):
            if not _is_added(query, alone, broadcast, total):
                failing[user] = True
                _is_added(query, alone.rows(slice(0)), broadcast, total)
    quarantine.note((object() for _ in range(int(failing.sum()))), records=0)


def _is_added(
    query: Query, cohort: Cohort, broadcast: Broadcast, total: npt.NDArray[np.float64]
) -> bool:
    """Add a cohort's contributions; false, and the sum as it was, where that fails."""
    try:
        total += _answer(query, cohort, broadcast)
    except quarantine.ENDING:
        raise
    except BaseException:
        return False
    return True


def _answer(query: Query, cohort: Cohort, broadcast: Broadcast) -> npt.NDArray[np.float64]:
    """A cohort's answer.

    Raises:
        ValueError: it is not finite.
    """
    answer = query.answer(cohort, broadcast)
    if not np.isfinite(answer).all():
        raise ValueError("the sum is not finite")
    return answer


def report(tally: quarantine.Tally, context: Context, directory: Path) -> None:
    """Write how much was left out into the node's own log: counts, no id and no text.

    The counts depend on private text. A deployed node's log is its owner's. In a simulation what
    nodes log is read by whoever follows the run, so there it is the file in the node's cache alone.
    Which of the two it is, is not asked of the configuration: SuperNodes have partitions too.

    Args:
        tally: from `quarantine.counting`.
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
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(directory / QUARANTINE_LOG, flags, 0o600)
        try:
            os.write(descriptor, f"{line}{tally}\n".encode())  # one write, so lines stay whole
        finally:
            os.close(descriptor)
    except OSError as error:
        logger.warning(
            "%s cannot be written (%s)", directory / QUARANTINE_LOG, type(error).__name__
        )
