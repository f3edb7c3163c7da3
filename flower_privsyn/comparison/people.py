"""Who takes part in a comparison, who tunes it, and whose text measures it: dealt by ids alone.

Whatever is chosen while looking at users fits them better than others. So how long and fast a
student learns is chosen on tuning users, who are in no other set; and one in ten, by a hash of the
id, is sealed: in no private set, no held-out set and no tuning, whatever the order of a file, until
the choices are made and one last table is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import check_whole
from flower_privsyn.data import Users, load_configured
from flower_privsyn.errors import ConfigError, DataError

#: Stands in whatever was measured on sealed users.
OPENED: Final = "sealed users opened"

#: Where the users of a comparison are dealt to private and held-out: nobody's seed.
_SPLIT: Final = b"privsyn split"

_SEALED: Final = b"privsyn-sealed:"
_BELOW: Final = 26


def sealed(user_ids: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which users are sealed: those whose SHA-256 of "privsyn-sealed:" and id begins below 26.

    Args:
        user_ids: (u,).

    Returns:
        (u,), true for about 26 in 256; who they are does not depend on a data set.
    """
    return np.array(
        [hashlib.sha256(_SEALED + _bytes(user)).digest()[0] < _BELOW for user in user_ids],
        dtype=np.bool_,
    )


@dataclass(frozen=True, kw_only=True)
class People:
    """Who takes part and who is held out.

    Attributes:
        source: the data, as it was named.
        groups: users that take part, at least one group of them, no user in two: a seed asks one,
            the next seed the next.
        tuning: users that never do; how long and fast a student learns is chosen on them.
        held_out: users that never do; all figures are about them.
        opened: whether the held-out users are sealed ones.
    """

    source: str
    groups: tuple[Users, ...]
    tuning: Users
    held_out: Users
    opened: bool = False

    def group_of(self, seed: int) -> int:
        """Which group a seed asks."""
        return seed % len(self.groups)

    def private(self, seed: int) -> Users:
        """The users that take part where a cell has this seed."""
        return self.groups[self.group_of(seed)]

    @property
    def number(self) -> int:
        """Users that take part, the same of every seed."""
        return len(self.groups[0])

    @classmethod
    def read(
        cls,
        data: str,
        held_out: str | None = None,
        *,
        users: int = 0,
        seeds: int = 1,
        held_out_users: int | None = None,
        tuning_users: int | None = None,
        columns: Mapping[str, str] | None = None,
        sealed_users: int = 0,
    ) -> Self:
        """Read users and draw all sides by a hash of their ids.

        The same people are held out whatever the order of the file and the seed of a run.

        Args:
            data: a file, folder or data set name, as `load_users` takes it.
            held_out: the same of users that do not take part, in place of `held_out_users`.
            users: how many take part, and as many others for the next seed while there are some; 0
                for all of them for every seed.
            seeds: for which that is.
            held_out_users: drawn from the data; None for 500, or a fifth where there are fewer
                than 2,500 users.
            tuning_users: the same; None for 300, or a tenth where there are fewer than 3,000.
            columns: their names, by the keys of a run (`load_configured`); and `min-date`, an ISO
                day: only text of it and later days.
            sealed_users: hold out as many sealed users and no others; the same users take part as
                with 0.

        Raises:
            ConfigError: options that contradict each other, or users on both sides.
            DataError: a file cannot be read, or has too few users.
        """
        check_whole("--sealed-users", sealed_users, ge=0)
        check_whole("--users", users, ge=0)
        if held_out is not None and held_out_users is not None:
            raise ConfigError("give either --held-out or --held-out-users, not both")
        every = _read(data, columns or {})
        others = every if held_out is None else _read(held_out, columns or {})
        closed = sealed(others.user_ids)
        kept = others.select(closed)
        if len(kept) < sealed_users:
            raise DataError(
                f"there are {len(kept)} sealed users, fewer than the {sealed_users} of "
                "--sealed-users"
            )
        private, others = every.select(~sealed(every.user_ids)), others.select(~closed)
        size = len(private)
        if held_out is None:
            aside = min(500, max(1, size // 5)) if held_out_users is None else held_out_users
            others, private = _parted(private, check_whole("--held-out-users", aside, ge=1))
        elif both := set(others.user_ids) & set(private.user_ids):
            raise ConfigError(
                f"{len(both)} users of --held-out are in --data as well: held-out users must "
                "not take part"
            )
        tunes = min(300, max(1, size // 10)) if tuning_users is None else tuning_users
        tuning, private = _parted(private, check_whole("--tuning-users", tunes, ge=1))
        if len(private) < max(users, 2):
            raise DataError(
                f"the data has {len(private)} users that are neither held out nor sealed nor for "
                f"tuning, fewer than the {max(users, 2)} that take part"
            )
        others = kept.select(_first(kept, sealed_users)) if sealed_users else others
        if not len(others):
            raise DataError("all users of --held-out are sealed: --sealed-users opens them")
        groups, taking = list[Users](), users or len(private)
        while len(private) >= taking and len(groups) < seeds:
            group, private = _parted(private, taking)
            groups.append(replace(group, dates=None))
        return cls(
            source=data,
            groups=tuple(groups),
            tuning=replace(tuning, dates=None),
            held_out=replace(others, dates=None),
            opened=bool(sealed_users),
        )

    def fingerprint(self) -> str:
        """What the figures of every cell depend on besides its own settings."""
        digest = hashlib.blake2b(digest_size=16)
        for users in (self.groups[0], self.tuning, self.held_out):
            for part in (users.user_ids, users.texts, users.owners.tolist(), users.labels or ()):
                for item in part:
                    encoded = _bytes(str(item))
                    digest.update(len(encoded).to_bytes(8, "big") + encoded)
            digest.update(b"|")
        return digest.hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _read(source: str, columns: Mapping[str, str]) -> Users:
    found = load_configured({"data": source}, columns, strict=True, labels=True)
    if (min_date := columns.get("min-date")) and not (found := found.since(min_date)).texts:
        raise DataError(f"{source}: no text has a date from min-date = {min_date} on")
    return found


def _parted(users: Users, count: int) -> tuple[Users, Users]:
    """So many users, by a hash of their ids, and the others."""
    chosen = _first(users, count)
    return users.select(chosen), users.select(~chosen)


def _first(users: Users, count: int) -> npt.NDArray[np.bool_]:
    """So many users, (u,), by a hash of their ids: the same in whatever file they stand."""
    places = sorted(
        range(len(users)),
        key=lambda place: hashlib.blake2b(
            _bytes(users.user_ids[place]), digest_size=16, key=_SPLIT
        ).digest(),
    )
    mask = np.zeros(len(users), dtype=np.bool_)
    mask[places[:count]] = True
    return mask
