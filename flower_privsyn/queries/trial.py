"""A question is tried on nobody's records and on public ones before it is asked of anybody."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flower_privsyn.privacy import quarantine
from flower_privsyn.queries.query import Broadcast, Cohort, Float32Array, IntArray, Query


def public_embedding(dimension: int) -> Float32Array:
    """A unit vector that says nothing of anybody: (dimension,)."""
    vector = np.zeros(dimension, dtype=np.float32)
    vector[:1] = 1.0
    return vector


def public_cohorts(
    example: Float32Array | IntArray | str, *, labelled: bool
) -> tuple[Cohort, Cohort]:
    """One user without records, and one with a public one, of the first class if any.

    Args:
        example: the public record: (d,) float32, (k,) int64 of tokens, or text.
        labelled: whether records are of classes.
    """
    owners = np.zeros(1, dtype=np.int64)
    labels = owners if labelled else None
    if isinstance(example, np.ndarray) and example.dtype == np.float32:
        one = Cohort(example[None], owners, 1, labels)
    else:
        one = Cohort.of([example], owners, 1, labels)
    return replace(one.rows(slice(0)), num_users=1), one


def try_query(query: Query, broadcast: Broadcast, *, dimension: int) -> None:
    """Answer a question as a node does before it looks at its users' records.

    Args:
        query: the question.
        broadcast: public; has passed `query.check`.
        dimension: of the records, as for `query.check`.

    Raises:
        Exception: whatever the query raises; a ValueError where its answer has the wrong shape.
    """
    example: Float32Array | IntArray | str = public_embedding(dimension)
    if query.reads == "text":
        example = quarantine.PROBE
    elif query.reads == "tokens" and not query.trains:
        example = np.zeros(1, dtype=np.int64)
    nobody, one = public_cohorts(example, labelled=query.labelled)
    query.answer(nobody, broadcast)
    if not query.trains:  # an update is what only training makes
        query.answer(one, broadcast)
