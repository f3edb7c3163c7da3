"""What a method knows between two rounds, as the engine keeps it in the run directory."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.format import read_array

from flower_privsyn.errors import RunDirectoryError
from flower_privsyn.files import replacing
from flower_privsyn.privacy import PoissonSampling, Sampling
from flower_privsyn.privacy.mechanisms import LARGEST_SUM
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.round_files import RoundFiles

if TYPE_CHECKING:
    from flower_privsyn.run import RunDirectory


#: For the lines and small files that close a round: a page of the disk each.
_BESIDE_BYTES: Final = 2**16

_PIECE_BYTES: Final = 2**20


class SumOfUsers(NamedTuple):
    """A noisy sum over users, or several ones of the same question added up.

    Attributes:
        total: (m,) float64.
        users: answers in it, or where that is secret as many as are expected, > 0.
        noise_std: standard deviation of its noise.
        rate: share of the people who are drawn for a round, in (0, 1].
        by_coins: whether each of them is drawn by a coin, so that nobody knows how many are.
        rounds: sums that were added up.
    """

    total: npt.NDArray[np.float64]
    users: float
    noise_std: float
    rate: float = 1.0
    by_coins: bool = False
    rounds: int = 1

    @property
    def sample(self) -> tuple[float, float]:
        """How the mean of a number over these users varies, with them and with who is drawn.

        Of a number with mean p and variance v among people, the sum over `users` has the variance
        v / n + b p^2 around p. There are N = users / (rate x rounds) people, the same ones in every
        round: 1 / n = 1 / N + (1 - rate) / users, and b = (1 - rate) / users where coins decide how
        many are drawn, else 0.

        Returns:
            n and b.
        """
        n = self.users / (self.rate * self.rounds + (1.0 - self.rate))
        return n, (1.0 - self.rate) / self.users if self.by_coins else 0.0


@dataclass(frozen=True, kw_only=True)
class ReleasedSum:
    """A noisy sum that has been charged to the ledger; everything made from it is free.

    Attributes:
        round_number: 1-based.
        values: (m,) float64, the sum over users plus noise.
        noise_std: standard deviation of the noise in `values`; public. Where nodes add it and who
            was drawn is secret, that of a sum of all nodes: how many answered is not released. For
            reading the release; what protects a user is in the ledger, and may be less.
        num_users: users whose answers are in the sum; None where who was drawn is secret, under
            Poisson and fixed-size sampling: how many of them answered is not released.
        expected_users: users that take part in such a round on average; public.
        largest_clip_norm: the largest clip norm that a next question may have: beyond, the grid
            does not hold the sum of everybody on the roster.
        rate: share of the people who are drawn for such a round.
        by_coins: whether each of them is drawn by a coin.
    """

    round_number: int
    values: npt.NDArray[np.float64]
    noise_std: float
    num_users: int | None
    expected_users: float
    largest_clip_norm: float
    rate: float = 1.0
    by_coins: bool = False

    @property
    def users(self) -> float:
        """Users in the sum, or where that is secret as many as are expected."""
        return self.expected_users if self.num_users is None else self.num_users

    @property
    def of_users(self) -> SumOfUsers:
        """The sum with what it takes to read it.

        Where who was drawn is secret, the expected number of users stands for theirs: the mean
        stays unbiased, and varies with the coins (`SumOfUsers.sample`).
        """
        return SumOfUsers(self.values, float(self.users), self.noise_std, self.rate, self.by_coins)


def added_up(releases: Sequence[SumOfUsers]) -> SumOfUsers | None:
    """Releases of the same question as one; None where there is none, or nobody in them."""
    if not releases or sum(one.users for one in releases) <= 0:
        return None
    return releases[0]._replace(
        total=np.sum([one.total for one in releases], axis=0),
        users=float(sum(one.users for one in releases)),
        noise_std=float(np.sqrt(sum(one.noise_std**2 for one in releases))),
        rounds=sum(one.rounds for one in releases),
    )


def largest_clip_norm(sampling: Sampling) -> float:
    """The largest clip norm of a question whose sums of everybody the grid holds."""
    return LARGEST_SUM / (sampling.population or 1)


def is_stored(run: RunDirectory, number: int) -> bool:
    """Whether the release of a round is on the disk."""
    return RoundFiles(run.round_path(number)).release.exists()


def make_room(run: RunDirectory, number: int, *, numbers: int, beside: int = 0) -> None:
    """Take the disk space of a round's release, and of what is written before it, from the disk.

    What is charged can then be stored: see `leave_room` and `store_release`.

    Args:
        run: the run directory.
        number: of the round.
        numbers: of the release.
        beside: numbers of float64 that are written before the release is, in files of their own.

    Raises:
        OSError: the disk has not so much left.
    """
    run.round_dir(number)
    left = _release_bytes(numbers) + 8 * beside + _BESIDE_BYTES
    with _room(run).open("wb", buffering=0) as file:
        while left > 0:  # written, not merely claimed: a file with holes takes no room
            left -= file.write(bytes(min(left, _PIECE_BYTES)))
        os.fsync(file.fileno())


def leave_room(run: RunDirectory, *, numbers: int) -> None:
    """Give all that was taken back to the disk but the space of the release itself."""
    with contextlib.suppress(FileNotFoundError):
        os.truncate(_room(run), _release_bytes(numbers))


def give_room_back(run: RunDirectory) -> None:
    """Give all back, where nothing is going to be stored."""
    _room(run).unlink(missing_ok=True)


def _room(run: RunDirectory) -> Path:
    return run.path / ".room"


def _release_bytes(numbers: int) -> int:
    return 8 * numbers + 2**10


def store_release(run: RunDirectory, release: ReleasedSum) -> None:
    """Write a release, for the eyes of the run's owner alone, where room was made for it."""
    num_users = np.nan if release.num_users is None else release.num_users
    header = np.array([release.noise_std, num_users], dtype=np.float64)
    target = RoundFiles(run.round_dir(release.round_number)).release
    with replacing(target, for_the_owner=True) as temporary:
        with contextlib.suppress(FileNotFoundError):  # of one that is made of its release again
            _room(run).chmod(0o600)
            _room(run).replace(temporary)
        # In place, so that no other program can take the space.
        with temporary.open("rb+") as file:
            # One file, so that the sum and what is known of its noise cannot be parted.
            np.save(file, release.values)
            np.save(file, header)
            file.truncate()


def stored_release(run: RunDirectory, number: int, *, sampling: Sampling) -> ReleasedSum | None:
    """Read the release of a round; None where it did not reach the disk.

    Args:
        run: the run directory.
        number: of the round.
        sampling: who was drawn from in it.

    Raises:
        RunDirectoryError: the file is damaged, or cannot be read.
    """
    if not is_stored(run, number):
        return None
    path = RoundFiles(run.round_path(number)).release
    try:
        with path.open("rb") as file:
            # Not `np.load`, which also opens archives and says of bad ones whatever these say.
            values, header = read_array(file), read_array(file)
        if (
            values.ndim != 1
            or header.shape != (2,)
            or {values.dtype.kind, header.dtype.kind} != {"f"}
        ):
            raise ValueError("other arrays than those of a release")
    except PermissionError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror}.") from error
    except (OSError, ValueError) as error:
        raise RunDirectoryError(
            f"{path} is damaged: it does not hold the release of round {number}, which was "
            "charged; put back a copy of it."
        ) from error
    return ReleasedSum(
        round_number=number,
        values=values,
        noise_std=float(header[0]),
        num_users=None if np.isnan(header[1]) else int(header[1]),
        expected_users=sampling.expected_users,
        largest_clip_norm=largest_clip_norm(sampling),
        rate=sampling.rate,
        by_coins=isinstance(sampling, PoissonSampling),
    )


#: Arrays of numbers, and small values that JSON can say, by name. It is read and never changed: a
#: step makes another one.
State: TypeAlias = Mapping[str, Any]

#: In the file, what is no array.
_REST: Final = "json"


def keep_state(run: RunDirectory, number: int, state: State) -> State:
    """Write what is known after a round, and delete what was known before it.

    The file is whole or not there, whenever the process is killed.

    Args:
        run: the run directory.
        number: of the round; 0 is before the first.
        state: what is known.

    Returns:
        The same as a process finds it that goes on with the run, tuples being lists.
    """
    rest = {name: value for name, value in state.items() if not isinstance(value, np.ndarray)}
    arrays = {name: value for name, value in state.items() if name not in rest}
    if {_REST, "file"} & set(state) or any(array.dtype.hasobject for array in arrays.values()):
        raise TypeError("a state holds arrays of numbers, and no value named json or file")
    path, packed = run.path / f"checkpoint-{number:04d}.npz", json.dumps(rest).encode()
    with replacing(path, for_the_owner=True) as temporary, temporary.open("wb") as file:
        np.savez(file, **{**arrays, _REST: np.frombuffer(packed, dtype=np.uint8)})
    for other in set(_kept(run)) - {path}:
        other.unlink(missing_ok=True)
    return {**arrays, **json.loads(packed)}


def last_state(run: RunDirectory) -> tuple[int, State] | None:
    """The last state that was kept, and after which round; None of a run that has none.

    Raises:
        RunDirectoryError: the file is damaged, or cannot be read.
    """
    if not (kept := _kept(run)):
        return None
    path = kept[-1]
    try:
        with np.load(path) as found:
            arrays = {name: found[name] for name in found.files if name != _REST}
            rest = dict(json.loads(found[_REST].tobytes()))
    except Exception as error:  # whatever is raised by what somebody has put there
        raise RunDirectoryError(
            f"{path} is damaged, or cannot be read: it does not hold what the run had made of its "
            "releases; put back a copy of it."
        ) from error
    return _number_of(path), {**arrays, **rest}


def _kept(run: RunDirectory) -> list[Path]:
    """The states on the disk, the last one last; of a run that was killed there may be two."""
    return sorted(run.path.glob("checkpoint-*.npz"), key=_number_of)


def _number_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])
