"""Who takes part in a comparison, and whose text measures it: dealt by ids alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

import numpy as np

from flower_privsyn.checks import check_whole
from flower_privsyn.data import Users, load_configured
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.evaluation.sealed import only_sealed, without_sealed

#: Where the users of a comparison are dealt to private and held-out: nobody's seed.
_SPLIT: Final = b"privsyn split"


@dataclass(frozen=True, kw_only=True)
class People:
    """Everybody in the data, and how they are dealt.

    Attributes:
        source: what the data is called in the report.
        newer_than: only text dated after this day is read, or "".
        every: of the data but the sealed ones.
        apart: of another file, who are held out; None to hold out some of `every`.
        aside: how many of `every` are.
        sealed: those that are held out in place of others; None to leave them alone.
        left_alone: sealed users of the data that are on neither side.
    """

    source: str
    newer_than: str
    every: Users
    apart: Users | None
    aside: int
    sealed: Users | None
    left_alone: int = 0

    @classmethod
    def read(
        cls,
        data: Sequence[str],
        held_out: str | None = None,
        *,
        held_out_users: int | None = None,
        newer_than: str = "",
        columns: Mapping[str, str] | None = None,
        open_sealed: bool = False,
        sealed_users: int = 0,
    ) -> Self:
        """Read files of users.

        Args:
            data: files, folders or data set names, each as `load_users` takes it.
            held_out: file of users that do not take part, in place of `held_out_users`.
            held_out_users: drawn from the data; None for 500, or a fifth where there are fewer
                than 2,500 users.
            newer_than: only text dated after this day; "" for all.
            columns: their names, by the keys of a run (`load_configured`).
            open_sealed: hold out sealed users and no others; the same users take part.
            sealed_users: how many of them, drawn by a hash of their ids; 0 for all.

        Raises:
            ConfigError: options that contradict each other, or users on both sides.
            DataError: a file cannot be read, or only sealed users are in it.
        """
        check_whole("--sealed-users", sealed_users, ge=0)
        if sealed_users and not open_sealed:
            raise ConfigError("--sealed-users says how many --open-sealed holds out: give both")
        if held_out is not None and held_out_users is not None:
            raise ConfigError("give either --held-out or --held-out-users, not both")
        read = partial(_read, newer_than=newer_than, columns=columns or {})
        every = joined([read(source) for source in data])
        apart = None if held_out is None else read(held_out)
        closed = None
        if open_sealed:
            name = "--data" if apart is None else "--held-out"
            closed = only_sealed(every if apart is None else apart, what=name)
            if len(closed) < sealed_users:
                raise DataError(
                    f"{name} has {len(closed)} sealed users, fewer than the {sealed_users} of "
                    "--sealed-users"
                )
            closed = _select(closed, _order(closed)[: sealed_users or len(closed)])
        everybody = len(every)
        every = without_sealed(every, what="--data")
        opened = 0 if closed is None or apart is not None else len(closed)
        if apart is not None:
            apart = apart if open_sealed else without_sealed(apart, what="--held-out")
            if both := set(apart.user_ids) & set(every.user_ids):
                raise ConfigError(
                    f"{len(both)} users of --held-out are in --data as well: held-out users must "
                    "not take part"
                )
        if held_out_users is None:
            held_out_users = 500 if len(every) >= 2500 else max(1, len(every) // 5)
        return cls(
            source=", ".join(Path(source).name for source in data),
            newer_than=newer_than,
            every=every,
            apart=apart,
            aside=held_out_users,
            sealed=closed,
            left_alone=everybody - len(every) - opened,
        )

    def groups(self, users: int) -> tuple[Users, Users]:
        """Users that take part, and users that never do.

        Args:
            users: how many take part; 0 for all.

        Raises:
            ConfigError: numbers that cannot be.
            DataError: there are too few.
        """
        if self.apart is None:
            private, others = split_users(self.every, private=users, held_out=self.aside)
        else:
            others, private = self.apart, self.every
            if users and users != len(self.every):
                private, _ = split_users(self.every, private=users, held_out=1)
        if len(private) < 2:
            raise DataError(f"{len(private)} users take part, at least 2 are needed")
        return private, others if self.sealed is None else self.sealed


def _read(source: str, *, newer_than: str, columns: Mapping[str, str]) -> Users:
    found = load_configured({"data": source}, columns, strict=True, labels=True)
    found.check_documents(dated=bool(newer_than))
    return found.newer_than(newer_than) if newer_than else found


def split_users(users: Users, *, private: int, held_out: int) -> tuple[Users, Users]:
    """Draw users that take part and users that never do, by a hash of their ids.

    The same people are held out whatever the order of the file and the seed of a run.

    Args:
        users: all there are but the sealed ones.
        private: how many take part; 0 for all that are not held out.
        held_out: how many do not, >= 1.

    Raises:
        DataError: There are fewer.
    """
    if held_out < 1 or private < 0:
        raise ConfigError(
            f"held-out users must be at least 1 and private users at least 0, got {held_out} and "
            f"{private}"
        )
    if len(users) < held_out + max(private, 1):
        raise DataError(
            f"the data has {len(users)} users that are not sealed, fewer than the {held_out} to "
            f"hold out and the {max(private, 1)} to take part"
        )

    order, last = _order(users), held_out + private if private else len(users)
    return _select(users, order[held_out:last]), _select(users, order[:held_out])


def _order(users: Users) -> list[int]:
    """Their places by a hash of their ids: the same order in whatever file they stand."""

    def place(index: int) -> bytes:
        user = users.user_ids[index].encode("utf-8", "surrogatepass")
        return hashlib.blake2b(user, digest_size=16, key=_SPLIT).digest()

    return sorted(range(len(users)), key=place)


def _select(users: Users, chosen: Sequence[int]) -> Users:
    mask = np.zeros(len(users), dtype=np.bool_)
    mask[list(chosen)] = True
    return users.select(mask)


def joined(parts: Sequence[Users]) -> Users:
    """Users of several files; people who are in more than one of them are one user each.

    Documents of a file without dates, or labels, have none, as where a run reads a folder of both.
    """
    if len(parts) == 1:
        return parts[0]
    ids = list(dict.fromkeys(user for part in parts for user in part.user_ids))
    number = {user: place for place, user in enumerate(ids)}
    rows = [
        (
            number[part.user_ids[owner]],
            text,
            None if part.dates is None else part.dates[place],
            None if part.labels is None else part.labels[place],
        )
        for part in parts
        for place, (owner, text) in enumerate(zip(part.owners.tolist(), part.texts, strict=True))
    ]
    rows.sort(key=lambda row: row[0])
    return Users(
        user_ids=tuple(ids),
        texts=[text for _, text, _, _ in rows],
        owners=np.array([owner for owner, _, _, _ in rows], dtype=np.int64),
        dates=[day for _, _, day, _ in rows] if any(part.dates for part in parts) else None,
        labels=[label for *_, label in rows] if any(part.labels for part in parts) else None,
    )
