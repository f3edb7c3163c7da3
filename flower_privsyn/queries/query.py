"""The question a strategy asks: what one user answers, clipped, and nothing else.

A query is pure numpy over a cohort of users. It adds no noise, reads no file and sends nothing;
the noise belongs to the mechanism and the network to the client app.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Any, ClassVar, Final, Self, TypeVar, final

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import Settings
from flower_privsyn.privacy import skipping
from flower_privsyn.privacy.mechanisms import COLUMNS, GRID, STEPS, clip_factors
from flower_privsyn.queries.arrays import (
    Broadcast,
    Float32Array,
    Float64Array,
    Form,
    IntArray,
    Reads,
)

T = TypeVar("T")


def once_per_array(compute: Callable[..., T]) -> Callable[..., T]:
    """Remember a function's result for as long as its first argument lives.

    A process that answers for many nodes is given the same candidates each time, as the same
    objects, owning their memory and not writeable. For any other array, which may hold other
    numbers when it comes again, the function is called every time.

    Args:
        compute: a function of one array, of more arrays and of names; what it returns is shared and
            must not be changed.
    """
    known: dict[tuple[Hashable, ...], T] = {}  # by where arrays lie, while they do

    @wraps(compute)
    def remembered(*given: Any) -> T:
        arrays = [one for one in given if isinstance(one, np.ndarray)]
        if any(array.flags.writeable or not array.flags.owndata for array in arrays):
            return compute(*given)
        key = tuple(id(one) if isinstance(one, np.ndarray) else one for one in given)
        if key not in known:
            known[key] = compute(*given)
            for array in arrays:  # before its number is another one's
                weakref.finalize(array, known.pop, key, None)
        return known[key]

    return remembered


@once_per_array
def all_finite(array: npt.NDArray[Any]) -> bool:
    """Whether every number is finite."""
    return bool(np.isfinite(array).all())


def check_arrays(
    query: str, broadcast: Broadcast, forms: Mapping[str, Form], *, optional: Collection[str] = ()
) -> None:
    """Refuse a broadcast of other arrays than a question is asked with.

    Args:
        query: the name of the question.
        broadcast: what the server sent.
        forms: what each array must be.
        optional: arrays that may be missing.

    Raises:
        ValueError: an array is missing or too many, of another shape or kind, or not finite.
    """
    if not forms.keys() - set(optional) <= broadcast.keys() <= forms.keys():
        raise ValueError(f"{query} is asked with {sorted(forms)}, got {sorted(broadcast)}")
    for name, array in broadcast.items():
        shape, kinds = forms[name]
        fits = array.ndim == len(shape) and all(
            length >= 1 if wanted is None else length == wanted
            for length, wanted in zip(array.shape, shape, strict=True)
        )
        if not fits or not {array.dtype.kind, array.dtype.name} & set(kinds):
            told = ", ".join("n" if wanted is None else str(wanted) for wanted in shape)
            raise ValueError(
                f"{name} must be ({told}) of {' or '.join(kinds)}, got {array.shape} of "
                f"{array.dtype}"
            )
        if array.dtype.kind == "f" and not all_finite(array):
            raise ValueError(f"{name} must be finite")


#: Ceiling on the bytes of one dense (users, answer) block in `Query.answer`.
BLOCK_BYTES = 2 * 2**20


#: Whose shortcuts past `contribution` are shown to be identities of it.
_PACKAGE: Final = __name__.partition(".")[0]


def _bundled(query: type) -> bool:
    return query.__module__.partition(".")[0] == _PACKAGE


@dataclass(frozen=True)
class Cohort:
    """The records of the users that one node hosts.

    Attributes:
        records: one entry per record, grouped by user. What it is, the query declares (`reads`):

            "embeddings"  (n, d) float32, the embedding of a sample in each row;
            "tokens"      (n,) object, the tokens of a sample in each: (k,) int64, k >= 0;
            "text"        (n,) object, a document in each: str, never blank.

            For a query that `trains` it is (n, parameters) float32, a user's update in each row.
        owners: (n,) int64, nondecreasing; the user of each row, in `range(num_users)`.
        num_users: users in the cohort, those without any record included.
        labels: (n,) int64, which of the run's classes each record is of; None where it has none.
    """

    records: npt.NDArray[Any]
    owners: IntArray
    num_users: int
    labels: IntArray | None = None

    def __post_init__(self) -> None:
        """Check the shapes and the order that every kernel relies on."""
        shape = "(n,)" if self.records.dtype == np.object_ else "(n, d)"
        if self.records.ndim != len(shape.split()) or self.owners.shape != (len(self.records),):
            raise ValueError(
                f"records must be {shape} and owners (n,); got {self.records.shape} and "
                f"{self.owners.shape}"
            )
        if len(self.owners) and (
            self.owners[0] < 0
            or self.owners[-1] >= self.num_users
            or bool(np.any(self.owners[1:] < self.owners[:-1]))
        ):
            raise ValueError(f"owners must be nondecreasing and in range({self.num_users})")
        if self.labels is not None and self.labels.shape != self.owners.shape:
            raise ValueError(f"labels must be (n,), got {self.labels.shape}")

    def __repr__(self) -> str:
        """Sizes alone: a question that is traced or fails must not print what somebody wrote."""
        return f"Cohort({self.num_users} users, {len(self.records)} records)"

    @classmethod
    def of(
        cls,
        records: Sequence[Any],
        owners: Sequence[int] | IntArray,
        num_users: int,
        labels: IntArray | None = None,
    ) -> Self:
        """The cohort of records of unequal lengths: texts, or arrays of tokens.

        Args:
            records: the n records.
            owners: (n,) whose they are, nondecreasing.
            num_users: users in the cohort.
            labels: (n,) classes of the records; None where they have none.
        """
        held = np.empty(len(records), dtype=np.object_)
        for place, record in enumerate(records):  # all at once, equal lengths would be a matrix
            held[place] = record
        return cls(held, np.asarray(owners, dtype=np.int64), num_users, labels)

    def rows(self, keep: npt.NDArray[np.bool_] | slice) -> Cohort:
        """Return the cohort of the same users with some of its records.

        Args:
            keep: (n,) which, or a slice of them.
        """
        labels = None if self.labels is None else self.labels[keep]
        return Cohort(self.records[keep], self.owners[keep], self.num_users, labels)

    def select(self, users: npt.NDArray[np.bool_]) -> Cohort:
        """Return the cohort of the users where the (num_users,) mask is true."""
        if users.shape != (self.num_users,):
            raise ValueError(f"the mask must have shape ({self.num_users},), got {users.shape}")
        if bool(users.all()):
            return self
        kept = self.rows(users[self.owners])
        position = np.cumsum(users) - 1
        return replace(kept, owners=position[kept.owners], num_users=int(users.sum()))

    def cap(self, max_records: int) -> Cohort:
        """Return the cohort with at most `max_records` rows per user, the first ones kept."""
        first = np.searchsorted(self.owners, self.owners, side="left")
        keep = np.arange(len(self.owners)) - first < max_records
        if bool(keep.all()):
            return self
        return self.rows(keep)

    def blocks(self, users_per_block: int) -> Iterator[Cohort]:
        """Yield consecutive cohorts of at most `users_per_block` users."""
        for start in range(0, self.num_users, users_per_block):
            yield self.between(start, min(start + users_per_block, self.num_users))

    def between(self, first: int, stop: int) -> Cohort:
        """Return the cohort of the users from one on, up to another one."""
        part = self.rows(slice(*np.searchsorted(self.owners, [first, stop])))
        return replace(part, owners=part.owners - first, num_users=stop - first)


@dataclass(frozen=True, kw_only=True)
class Query(Settings, ABC):
    """One question, answered by every user with one vector of bounded L2 norm.

    Formal guarantee:
        With the user as the privacy unit, the vector that `contribution` returns for a user has
        L2 norm at most `clip_norm`, for every input. So the sum that `answer` returns moves by at
        most `clip_norm` when one user's contribution is zeroed or one user is added or removed,
        and by at most `2 * clip_norm` when one user's data are replaced.

    A subclass gives `name`, `clip_norm` and `statistic`, and where its broadcast is not a matrix
    of candidates `check` and `answer_length`. What bounds a user's answer cannot be given: a class
    that replaces it is refused where it is defined, and so is `answer`, which nodes sum with. Those
    of this package that are faster than summing `contribution` are algebraic identities of it,
    which their tests show (`flower_privsyn.testing.check_query`).
    """

    name: ClassVar[str]

    #: What the node makes of its users' text for this question: embeddings of samples, tokens of
    #: samples, or the documents as they are. Without embeddings no node loads an embedding model.
    reads: ClassVar[Reads] = "embeddings"

    #: Whether the node trains the model that was broadcast on each user's tokens, and the records
    #: that `statistic` gets are the updates: what `ModelDelta` asks, and its subclasses.
    trains: ClassVar[bool] = False

    #: Whether it asks of which class each record is: `Cohort.labels`.
    labelled: ClassVar[bool] = False

    #: Whether documents are trained on after a condition that was broadcast, which the node finds
    #: by the embedding of each: what `ConditionalDelta` asks. Only for one that `trains`.
    conditioned: ClassVar[bool] = False

    #: Arrays of the broadcast that travel in float32 whatever a run's `broadcast_precision` is.
    unrounded: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a subclass that replaces the clipping, itself or by a base.

        One of another package sums by `Query.answer`, whatever its base has: the shortcuts of the
        bundled questions are the sum of the contributions as these questions define them, and know
        nothing of another `clip_norm` or `statistic`.
        """
        super().__init_subclass__(**kwargs)
        for method in ("contribution", "answer_bound", "_clip"):
            owner = next(base for base in cls.__mro__ if method in base.__dict__)
            if owner is not Query:
                raise TypeError(
                    f"{cls.__name__} must not override {method}: the bound on what one user "
                    "contributes is the same code for every query"
                )
        owner = next(base for base in cls.__mro__ if "answer" in base.__dict__)
        if owner.__dict__["answer"] is not Query.answer and not _bundled(owner):
            raise TypeError(
                f"{cls.__name__} must not override answer: nodes sum with it, and nothing would "
                "clip what it says of a user; give `statistic`, and it is summed"
            )
        if not _bundled(cls):
            cls.answer = Query.answer  # type: ignore[method-assign]

    @property
    @abstractmethod
    def clip_norm(self) -> float:
        """The bound on the L2 norm of one user's contribution; public, positive."""

    @property
    def max_records(self) -> int | None:
        """How many records of one user may count, or None where the clip alone bounds them."""
        return None

    @property
    def bundled(self) -> bool:
        """Whether it is a question of this package."""
        return _bundled(type(self))

    def check(self, broadcast: Broadcast, *, dimension: int) -> None:
        """Refuse a broadcast that this query cannot be asked with.

        Args:
            broadcast: what the server sent.
            dimension: of the users' records: numbers in an embedding or in an update, tokens in
                the vocabulary, 1 for text.

        Raises:
            ValueError: an array is missing, not finite, or of the wrong shape.
        """
        check_arrays(self.name, broadcast, {"candidates": ((None, dimension), ("f",))})

    def answer_length(self, broadcast: Broadcast) -> int:
        """How many numbers one user answers: here one per candidate."""
        return len(broadcast["candidates"])

    @abstractmethod
    def statistic(self, cohort: Cohort, broadcast: Broadcast) -> Float64Array:
        """What each user would answer without clipping: the paper's formula.

        Args:
            cohort: the users; already capped at `max_records`, all rows finite.
            broadcast: public; has passed `check`.

        Returns:
            (num_users, answer_length) float64.
        """

    @final
    def contribution(self, cohort: Cohort, broadcast: Broadcast) -> Float64Array:
        """What each user sends: the statistic, clipped to `clip_norm` and rounded toward zero.

        Embeddings and updates that are not finite count for nothing. A statistic that is not finite
        becomes the zero vector. Rounding toward zero to `GRID` never enlarges a norm, and sums of
        grid points are exact, so a total does not depend on how users are dealt to nodes.

        Args:
            cohort: the users.
            broadcast: public.

        Returns:
            (num_users, answer_length) float64, every row of L2 norm at most `clip_norm`.
        """
        statistic = self.statistic(self._usable(cohort), broadcast)
        expected = (cohort.num_users, self.answer_length(broadcast))
        if statistic.shape != expected:
            raise ValueError(
                f"{type(self).__name__}.statistic returned {statistic.shape}, expected {expected}"
            )
        return self._clip(statistic)

    @final
    def _clip(self, rows: Float64Array) -> Float64Array:
        """Scale rows to norm `clip_norm` at most, then round toward zero to the grid."""
        # Whatever a subclass returns: in float32 neither norms nor the sum of a block are exact.
        # The bundled ones make their rows anew; a second array of a model's size would be slow.
        own: Callable[..., Float64Array] = np.asarray if _bundled(type(self)) else np.array
        clipped = own(rows, dtype=np.float64)
        # Scaled and rounded while in cache. STEPS is a power of two: no bit differs.
        factors = clip_factors(clipped, norm=self.clip_norm) * STEPS
        for left in range(0, clipped.shape[1], COLUMNS):
            part = clipped[:, left : left + COLUMNS]
            part *= factors
            np.trunc(part, out=part)
            part *= GRID
        return clipped

    def answer(self, cohort: Cohort, broadcast: Broadcast) -> Float64Array:
        """Sum the contributions of all users of the cohort.

        Works through blocks of users, so that no (num_users, answer_length) matrix is held.

        Formal guarantee:
            A user adds to the bit what the answer of that user alone would be, a function of the
            user's records and of what is public: contributions are points of the grid, of which
            sums are exact. Nodes may answer for their users in any parts and order.

        Returns:
            (answer_length,) float64.
        """
        if cohort.num_users == 1:  # as in training, where no second vector of its size is made
            row: Float64Array = self.contribution(cohort, broadcast)[0]
            return row
        length = self.answer_length(broadcast)
        total = np.zeros(length, dtype=np.float64)
        users_per_block = max(1, BLOCK_BYTES // max(1, 8 * length))
        for block in cohort.blocks(users_per_block):
            total += self.contribution(block, broadcast).sum(axis=0)
        return total

    @final
    def answer_bound(self, num_users: int) -> float:
        """Largest absolute coordinate that `num_users` well-behaved users can sum to."""
        return num_users * self.clip_norm

    def to_wire(self) -> dict[str, Any]:
        """The parameters by name for the message that carries the question, a tuple as a list."""
        found = {field.name.replace("_", "-"): getattr(self, field.name) for field in fields(self)}
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in found.items()
        }

    @classmethod
    def from_wire(cls, parameters: dict[str, Any]) -> Query:
        """Build the query from what `to_wire` gives, a list as a tuple.

        Raises:
            ConfigError: a value is not allowed.
            TypeError: a key is unknown.
        """
        named = {
            key.replace("-", "_"): tuple(value) if isinstance(value, list) else value
            for key, value in parameters.items()
        }
        return cls(**named)

    def _usable(self, cohort: Cohort) -> Cohort:
        """Drop rows that are not finite, then apply the cap."""
        if cohort.records.dtype != np.object_:
            finite = np.isfinite(cohort.records)
            if not finite.all():
                cohort = cohort.rows(finite.all(axis=1))
        return cohort if self.max_records is None else cohort.cap(self.max_records)


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
        example = skipping.PUBLIC_EXAMPLE
    elif query.reads == "tokens" and not query.trains:
        example = np.zeros(1, dtype=np.int64)
    nobody, one = public_cohorts(example, labelled=query.labelled)
    query.answer(nobody, broadcast)
    if not query.trains:  # an update is what only training makes
        query.answer(one, broadcast)
