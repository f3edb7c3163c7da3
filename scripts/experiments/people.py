"""Who takes part in an experiment and who does not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flower_privsyn.comparison.people import joined
from flower_privsyn.data import Users, load_users
from flower_privsyn.errors import DataError
from flower_privsyn.evaluation.sealed import without_sealed


def deal(files: Sequence[Path], *sizes: int) -> list[Users]:
    """Deal the users of several files into groups that share nobody, by a hash of their ids.

    Args:
        files: of users.
        sizes: of the groups; the last one may be smaller, but not empty.

    Returns:
        A group for each size.

    Raises:
        DataError: There are too few users.
    """
    users = without_sealed(joined([load_users(file) for file in files]), what="--private")
    first = sum(sizes[:-1])
    if len(users) <= first:
        raise DataError(
            f"{len(users)} users, which must be more than the {first} who are set apart"
        )
    order = sorted(
        range(len(users)),
        key=lambda user: hashlib.blake2b(users.user_ids[user].encode()).digest(),
    )
    groups = []
    for size in sizes:
        mask = np.zeros(len(users), dtype=np.bool_)
        mask[order[:size]] = True
        groups.append(users.select(mask))
        order = order[size:]
    return groups
