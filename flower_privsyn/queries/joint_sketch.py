"""What a user's text is made of, asked once: counts of tokens and of public bigrams in one vector.

Ours. Each block of counts is brought to length 1 and gets its share of the norm, so that one noisy
sum over users tells which tokens and pairs of tokens their text has more of than public text.
Reading it (`flower_privsyn.strategies._sketch_reading`) and choosing public text by it
(`flower_privsyn.training.selection`) are post-processing.

Kim, Gopi, Kulkarni, Yekhanin, "Differentially Private n-gram Extraction" (NeurIPS 2021) releases
n-grams of users that are not known in advance, in several rounds; here the pairs are public.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le, Lt

from flower_privsyn.privacy.mechanisms import GRID
from flower_privsyn.queries.arrays import Broadcast, Float64Array, Form, IntArray, Reads
from flower_privsyn.queries.query import Cohort, Query, check_arrays, once_per_array

#: Arrays of tokens, in a list or in an array of objects.
_Records = Sequence[npt.NDArray[Any]] | npt.NDArray[np.object_]


def frequent_bigrams(parts: Iterable[_Records], *, vocabulary: int, most: int) -> IntArray:
    """The bigrams that public text has most of.

    Args:
        parts: public texts, as many at a time as are sorted at a time, the tokens of each in
            `range(vocabulary)`.
        vocabulary: V.
        most: K, how many at most, >= 1.

    Returns:
        (K,) keys first * V + second, increasing. Of bigrams that are as frequent as one another
        those with the smaller keys are kept.
    """
    keys, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for part in parts:
        text = _Text.of(part, np.zeros(len(part), dtype=np.int64))
        # Few of so many pairs are distinct, and these alone are sorted beside what is there.
        found, times = np.unique(text.bigrams(vocabulary)[1], return_counts=True)
        keys, places = np.unique(np.concatenate((keys, found)), return_inverse=True)
        numbers = np.concatenate((counts, times))
        counts = np.bincount(places, weights=numbers, minlength=len(keys)).astype(np.int64)
    chosen = np.lexsort((keys, -counts))[:most]
    return np.sort(keys[chosen])


def find_bigrams(keys: IntArray, pairs: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Look pairs of tokens up in a table.

    Args:
        keys: (K,) first * vocabulary + second, increasing, K >= 1.
        pairs: (n,) the same, of what is looked for.

    Returns:
        (n,) places in the table, and (n,) whether a pair is there.
    """
    places = np.searchsorted(keys, pairs)
    np.minimum(places, len(keys) - 1, out=places)
    return places, keys[places] == pairs


#: Tokens worked on at a time: their keys, 2 MiB, stay in the processor's cache.
_BATCH_TOKENS: Final = 2**18

#: Every row is this much shorter than its share of the norm: more than what rounding adds to the
#: length of a row of `_MOST_NUMBERS`, so that the clip finds nothing to do and `answer` may do
#: without the zeros of a row.
_SHORTER: Final = 1.0 - 2.0**-26
_MOST_NUMBERS: Final = 2**23

_MOST_TOKENS: Final = 2**24
_MOST_VOCABULARY: Final = 2**24


@dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive numbers of an answer: the counts of one kind of item.

    Attributes:
        name: "tokens" or "bigrams".
        num_items: items that are counted, a number each.
        keys: (num_items,) increasing, first * vocabulary + second of a bigram; None of tokens.
        weight: share of the vector's length, > 0; squares of all blocks add up to 1.
        start: place of the first number in the answer.
    """

    name: str
    num_items: int
    keys: IntArray | None
    weight: float
    start: int

    @property
    def columns(self) -> slice:
        """Where the block is in an answer."""
        return slice(self.start, self.start + self.num_items)


@dataclass(frozen=True, kw_only=True)
class ItemMoments:
    """How much users count of each item of a block, before its weight.

    A user's amount of an item is its count over the length of the user's block.

    Attributes:
        mean: (num_items,) mean amount over users, those without text included.
        square: (num_items,) mean of its square.
        num_users: users that were looked at.
    """

    mean: Float64Array
    square: Float64Array
    num_users: int


@dataclass(frozen=True, kw_only=True)
class JointSketch(Query):
    """Counts of tokens and of public bigrams, each brought to length 1, side by side.

    With t (V,) a user's counts of the tokens of a public vocabulary and g (K,) those of K public
    bigrams, of the user's first `max_tokens_per_user` tokens, the answer is

        (sqrt(1 - b) t / |t|,  sqrt(b) g / |g|),        b = `bigram_share`.

    A block in which nothing was counted stays zero, and its share is not given to the other.

    `max_occurrences` bounds every count before that. The words that every text repeats take most of
    the length of a user's counts; where they count a few times at most, what remains, and with it
    what can be told from the noise, is that of the words that make the difference.

    A bigram is two tokens that follow one another in one record: across the border of two samples
    none is counted, nor is one that is not in the public table. Asked with `max-tokens` and
    `max-samples` both equal to `max_tokens_per_user`, a sample is a document as far as it can
    count, and no sample is lost that could.

    What the tokens say about an embedding that is linear in them, such as the mean of a model's
    token vectors, follows from the release. For a mean of sentence embeddings ask `Moments` in a
    phase of its own: where everybody takes part, blocks of weights w1 and w2 in one vector at noise
    multiplier z cost exactly what two releases at z / w1 and z / w2 do.

    The broadcast (`broadcast`) holds "vocabulary", (1,) integers: V; and with b > 0 "bigrams",
    (K,) uint32 or int64: the keys of the table, increasing.

    Formal guarantee:
        Unit: user. Blocks have norm 1 at most and weights whose squares add up to 1, so the vector
        has norm 1 at most, whoever wrote how much; it is shorter by 2^-26 of itself than that,
        which is more than rounding adds. Sensitivity 1 under zero-out and add/remove, 2 under
        replace-one. Counts and their squares are whole numbers, and quotients and roots are those
        of IEEE 754: the answer is the same bits on every machine.

    Counting is O(n log n) in the n tokens of a cohort, whatever V and K are.
    """

    name: ClassVar[str] = "joint_sketch"
    reads: ClassVar[Reads] = "tokens"

    bigram_share: Annotated[float, Ge(0), Lt(1)] = 0.0
    """b, the bigrams' share of the squared norm; 0 asks for tokens alone."""
    max_tokens_per_user: Annotated[int, Ge(1), Le(_MOST_TOKENS)] = 1024
    """Tokens of one user that count, the first ones over all records."""
    max_occurrences: Annotated[int, Ge(0)] = 0
    """How often one token or bigram of a user counts at most; 0 for no bound."""

    @property
    def clip_norm(self) -> float:
        """1, the norm of the vector."""
        return 1.0

    # ------------------------------------------------------------------ what travels down

    def broadcast(
        self, vocabulary: int, bigrams: IntArray | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """What the server sends: the size of the vocabulary, and the table of bigrams.

        Args:
            vocabulary: V, tokens of the public tokenizer, those that were added included.
            bigrams: (K,) their keys, first * V + second, increasing (`frequent_bigrams`); needed
                where `bigram_share` > 0.

        Raises:
            ValueError: the table is needed and missing.
        """
        sent: dict[str, npt.NDArray[Any]] = {"vocabulary": np.array([vocabulary], dtype=np.int64)}
        if self.bigram_share > 0:
            if bigrams is None:
                raise ValueError("a share of bigrams needs a table of them")
            keys = np.asarray(bigrams, dtype=np.int64)
            # Half the bytes, where the keys have room.
            sent["bigrams"] = keys.astype(np.uint32) if keys[-1] < 2**32 else keys
        return sent

    def check(self, broadcast: Broadcast, *, dimension: int) -> None:
        """Refuse another vocabulary than the users', and a table that is none.

        Args:
            broadcast: as it arrived.
            dimension: tokens of the vocabulary that the users' records are of.

        Raises:
            ValueError: an array is missing or too many, is malformed, or is of another vocabulary;
                or the answer would be too long.
        """
        forms: dict[str, Form] = {"vocabulary": ((1,), ("i", "u"))}
        if self.bigram_share > 0:
            forms["bigrams"] = ((None,), ("uint32", "int64"))
        check_arrays(self.name, broadcast, forms)
        vocabulary = int(broadcast["vocabulary"][0])
        if vocabulary != dimension or not 1 <= vocabulary <= _MOST_VOCABULARY:
            raise ValueError(f"vocabulary must be {dimension}, got {vocabulary}")
        if self.bigram_share > 0 and not _ascends(broadcast["bigrams"], vocabulary**2):
            raise ValueError(f"bigrams must be increasing keys of {vocabulary} tokens")
        if self.answer_length(broadcast) > _MOST_NUMBERS:
            raise ValueError(f"{self.name} answers at most {_MOST_NUMBERS} numbers")

    def answer_length(self, broadcast: Broadcast) -> int:
        """The numbers of all blocks."""
        return sum(block.num_items for block in self.blocks(broadcast))

    def blocks(self, broadcast: Broadcast) -> tuple[Block, ...]:
        """What the numbers of an answer are, in their order: the tokens, then the bigrams."""
        vocabulary = int(broadcast["vocabulary"][0])
        tokens = Block(
            name="tokens",
            num_items=vocabulary,
            keys=None,
            weight=math.sqrt(1.0 - self.bigram_share),
            start=0,
        )
        if not self.bigram_share:
            return (tokens,)
        keys = _wide(broadcast["bigrams"])
        bigrams = Block(
            name="bigrams",
            num_items=len(keys),
            keys=keys,
            weight=math.sqrt(self.bigram_share),
            start=vocabulary,
        )
        return tokens, bigrams

    # ------------------------------------------------------------------ what users answer

    def statistic(self, cohort: Cohort, broadcast: Broadcast) -> Float64Array:
        """The vectors of all users, (num_users, answer_length)."""
        rows = np.zeros((cohort.num_users, self.answer_length(broadcast)), dtype=np.float64)
        for block, users, items, amounts in self._amounts(cohort, broadcast):
            rows[users, block.start + items] = amounts * (block.weight * _SHORTER)
        return rows

    def answer(self, cohort: Cohort, broadcast: Broadcast) -> Float64Array:
        """Sum the contributions without writing down their zeros.

        A row is below the clip norm by more than rounding, so the clip leaves it as it is; what
        remains of a contribution is to cut its numbers to the grid, of which every sum is exact.
        """
        total = np.zeros(self.answer_length(broadcast), dtype=np.float64)
        for block, _, items, amounts in self._amounts(cohort, broadcast):
            steps = np.trunc(amounts * (block.weight * _SHORTER) / GRID)
            total[block.columns] += np.bincount(items, steps * GRID, minlength=block.num_items)
        return total

    def item_moments(self, cohort: Cohort, broadcast: Broadcast) -> dict[str, ItemMoments]:
        """How much each item counts with users whose records are known, such as public ones.

        Args:
            cohort: the users; at least one.
            broadcast: as for the users who are asked.

        Returns:
            By the name of the block.
        """
        sums = {
            block.name: np.zeros((2, block.num_items), dtype=np.float64)
            for block in self.blocks(broadcast)
        }
        for block, _, items, amounts in self._amounts(cohort, broadcast):
            for total, values in zip(sums[block.name], (amounts, amounts**2), strict=True):
                total += np.bincount(items, weights=values, minlength=block.num_items)
        count = cohort.num_users
        return {
            name: ItemMoments(mean=first / count, square=second / count, num_users=count)
            for name, (first, second) in sums.items()
        }

    def _amounts(
        self, cohort: Cohort, broadcast: Broadcast
    ) -> Iterator[tuple[Block, IntArray, IntArray, Float64Array]]:
        """What counts, batch by batch and block by block: users, items, and how much each counts.

        Each pair of a user and an item once; an amount is over the length of the user's block.
        """
        blocks, most = self.blocks(broadcast), self.max_tokens_per_user
        vocabulary = int(broadcast["vocabulary"][0])
        for first_user, batch in _batches(cohort, most):
            # A long text is cut before it is copied: how much memory it takes shall not be its own.
            text = _Text.of([record[:most] for record in batch.records], batch.owners).first(most)
            for block in blocks:
                owners, items = text.items(block, vocabulary)
                users, items, counts = _counted(owners, items, block.num_items)
                if self.max_occurrences:
                    np.minimum(counts, self.max_occurrences, out=counts)
                # The root of a whole number below 2^53.
                lengths = np.sqrt(np.bincount(users, weights=counts * counts))
                yield block, users + first_user, items, counts / lengths[users]


@dataclass(frozen=True, repr=False)
class _Text:
    """Tokens, one after another.

    Attributes:
        tokens: (n,).
        owners: (n,) whose they are, nondecreasing.
        follows: (n,) whether the token before is the one before in the same record.
    """

    tokens: IntArray
    owners: IntArray
    follows: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, records: _Records, owners: IntArray) -> _Text:
        """The tokens of records, and whose each record is."""
        lengths = _lengths(records)
        tokens = np.concatenate([np.zeros(0, dtype=np.int64), *records])
        if tokens.dtype.kind != "i":
            raise ValueError(f"tokens must be whole numbers, got {tokens.dtype}")
        follows = np.ones(len(tokens), dtype=np.bool_)
        follows[(np.cumsum(lengths) - lengths)[lengths > 0]] = False
        return cls(tokens, np.repeat(owners, lengths), follows)

    def first(self, most: int) -> _Text:
        """The first `most` tokens of each user."""
        begins = np.flatnonzero(np.diff(self.owners, prepend=-1))
        counts = np.diff(begins, append=len(self.owners))
        if counts.max(initial=0) <= most:
            return self
        keep = np.arange(len(self.owners)) - np.repeat(begins, counts) < most
        return _Text(self.tokens[keep], self.owners[keep], self.follows[keep])

    def items(self, block: Block, vocabulary: int) -> tuple[IntArray, IntArray]:
        """What a block counts of the text: owners and items, one entry per occurrence."""
        if block.keys is None:
            usable = self._usable(vocabulary)
            return self.owners[usable], self.tokens[usable]
        owners, pairs = self.bigrams(vocabulary)
        places, known = find_bigrams(block.keys, pairs)
        return owners[known], places[known]

    def bigrams(self, vocabulary: int) -> tuple[IntArray, IntArray]:
        """Owners and keys, first * vocabulary + second, of all pairs that stand in one record."""
        usable, second = self._usable(vocabulary), np.flatnonzero(self.follows)
        second = second[usable[second] & usable[second - 1]]
        return self.owners[second], self.tokens[second - 1] * vocabulary + self.tokens[second]

    def _usable(self, vocabulary: int) -> npt.NDArray[np.bool_]:
        """A number that is no token of the vocabulary counts for nothing."""
        return (self.tokens >= 0) & (self.tokens < vocabulary)


@once_per_array
def _wide(keys: npt.NDArray[Any]) -> IntArray:
    """The keys of a table as it travelled."""
    return keys.astype(np.int64)


@once_per_array
def _ascends(keys: npt.NDArray[Any], below: int) -> bool:
    """Whether keys increase, from 0 or more on to less than a bound."""
    return bool(keys[0] >= 0 and keys[-1] < below and (keys[1:] > keys[:-1]).all())


def _batches(cohort: Cohort, most: int) -> Iterator[tuple[int, Cohort]]:
    """The cohort in pieces of whole users, with the first user of each."""
    lengths = _lengths(cohort.records)
    tokens = np.bincount(cohort.owners, weights=lengths, minlength=cohort.num_users)
    batch = np.cumsum(np.minimum(tokens, most)) // _BATCH_TOKENS
    edges = [0, *(np.flatnonzero(np.diff(batch)) + 1).tolist(), cohort.num_users]
    for start, stop in itertools.pairwise(edges):
        yield start, cohort.between(start, stop)


def _counted(
    owners: IntArray, items: IntArray, num_items: int
) -> tuple[IntArray, IntArray, IntArray]:
    """How often each user has each item: users and items, each pair once, and the counts."""
    keys = owners * num_items + items
    if not len(keys):
        return owners, items, keys
    keys.sort()
    starts = np.flatnonzero(np.concatenate((np.ones(1, dtype=np.bool_), keys[1:] != keys[:-1])))
    counts = np.diff(starts, append=len(keys))
    users, found = np.divmod(keys[starts], num_items)
    return users, found, counts


def _lengths(records: _Records) -> IntArray:
    return np.fromiter(map(len, records), dtype=np.int64, count=len(records))
