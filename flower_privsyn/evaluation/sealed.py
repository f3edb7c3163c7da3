"""Users that nobody looks at before the last table: one in ten, by a hash of the id.

Whatever is chosen while looking at held-out users fits them better than others. So a part of
all people is in no private set, no held-out set and no tuning, whoever splits and whatever the
order of a file, until the choices are made. Who they are does not depend on a data set, so that a
person in two of them is on the same side in both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from flower_privsyn.data import Users
from flower_privsyn.errors import DataError

#: Stands in whatever was measured on sealed users.
OPENED: Final = "sealed users opened"

_PREFIX: Final = b"privsyn-sealed:"
_BELOW: Final = 26


def sealed(user_ids: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which users are sealed: those whose SHA-256 of "privsyn-sealed:" and id begins below 26.

    Args:
        user_ids: (u,).

    Returns:
        (u,), true for about 26 in 256.
    """
    return np.array(
        [
            hashlib.sha256(_PREFIX + user.encode("utf-8", "surrogatepass")).digest()[0] < _BELOW
            for user in user_ids
        ],
        dtype=np.bool_,
    )


def without_sealed(users: Users, *, what: str) -> Users:
    """The users that may be looked at.

    Args:
        users: all.
        what: they are called in the sentence of an error.

    Raises:
        DataError: All of them are sealed.
    """
    closed = sealed(users.user_ids)
    if len(users) and closed.all():
        raise DataError(
            f"all {len(users)} users of {what} are sealed: they are kept for one last table, which "
            "privsyn compare --open-sealed makes"
        )
    return users.select(~closed)


def only_sealed(users: Users, *, what: str) -> Users:
    """The users that are sealed; whatever is made of them must say `OPENED`.

    Raises:
        DataError: None of them is.
    """
    closed = sealed(users.user_ids)
    if not closed.any():
        raise DataError(f"none of the {len(users)} users of {what} is sealed")
    return users.select(closed)
