"""The sum that the protocol gives, without any of it: the same integers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np

from flower_privsyn.errors import ProtocolError
from flower_privsyn.secure_aggregation.masks import Vector
from flower_privsyn.secure_aggregation.terms import Terms


class Step(IntEnum):
    """The messages of a round, in their order."""

    KEYS = 1
    SHARES = 2
    INPUT = 3
    AGREE = 4
    UNMASK = 5


def simulated_sum(
    answers: Mapping[int, Vector], terms: Terms, lost: Mapping[int, Step] | None = None
) -> Vector:
    """The sum modulo 2^64 where every node shares masks with every other.

    Args:
        answers: By node, (m,) uint64 with its noise.
        terms: Of the round.
        lost: Nodes whose answer to a message, and to all later ones, does not come.

    Raises:
        ProtocolError: Too few are left for the round to finish.
    """
    lost = lost or {}

    def left(step: Step) -> list[int]:
        return [name for name in sorted(answers) if lost.get(name, step + 1) > step]

    roster = left(Step.KEYS)
    signatures = terms.signatures(len(roster))
    for step, needed in (
        (Step.KEYS, terms.least_nodes),
        (Step.SHARES, terms.least_nodes),
        (Step.INPUT, terms.least_nodes),
        (Step.AGREE, signatures),
        (Step.UNMASK, signatures),
    ):
        if len(left(step)) < needed:
            raise ProtocolError(f"{len(left(step))} nodes are left, {needed} are needed")
    total = np.zeros(len(answers[roster[0]]), dtype=np.uint64)
    for name in left(Step.INPUT):
        total += answers[name]
    return total
