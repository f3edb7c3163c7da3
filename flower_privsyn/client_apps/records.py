"""What a node makes of its users' text, by what is read: embeddings, tokens or the text itself.

Embeddings are made once, kept on the node's disk, and mapped wherever they are asked for. Tokens
and text are made from the node's own file by every process that needs them.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from flower_privsyn.data import Samples
from flower_privsyn.data.chunking import token_ids
from flower_privsyn.embedding import Embedder
from flower_privsyn.embedding.batch_invariance import require_batch_invariance
from flower_privsyn.embedding.embedder import RecordForm
from flower_privsyn.embedding.records import RecordStore, embed_texts
from flower_privsyn.messages import wire
from flower_privsyn.privacy import skipping
from flower_privsyn.queries import Cohort
from flower_privsyn.queries.arrays import TEXT_DIMENSION, TEXT_FINGERPRINT
from flower_privsyn.queries.query import public_cohorts, public_embedding

logger = logging.getLogger("flower_privsyn.client")

#: Users whose records a process copies at a time.
_PART_USERS = 2048


class Records(Protocol):
    """A node's users as they are kept between messages, ready to be asked about."""

    @property
    def public_cohorts(self) -> tuple[Cohort, ...]:
        """What a question is tried on before anybody is asked: nobody's records, and public ones.

        One user without any, and where a record is not made anew for every question one user with a
        public one.
        """

    def cohorts(self, ask: wire.Ask, chosen: npt.NDArray[np.bool_]) -> Iterator[Cohort]:
        """The records of the users who take part, whole users at a time.

        Args:
            ask: the question, which has passed its query's `check`.
            chosen: (num_users,) who takes part.

        Yields:
            Cohorts; a user who is in none of them contributes nothing.

        Raises:
            BaseException: anything that the model raises on a public probe, before any user's
                record is read. After that nothing but MemoryError.
        """


class RecordSource(RecordForm, Protocol):
    """What turns samples into records."""

    def read(self, samples: Samples, user_ids: Sequence[str]) -> Records:
        """Take in the samples of a node's users.

        Args:
            samples: as the request cuts them.
            user_ids: of all users, those without samples included.
        """


@dataclass(frozen=True)
class FixedRecords:
    """Records that stay the same from round to round.

    Attributes:
        cohort: all users of the node.
        example: a public record.
    """

    cohort: Cohort
    example: str | npt.NDArray[np.int64] | npt.NDArray[np.float32]

    @property
    def public_cohorts(self) -> tuple[Cohort, ...]:
        """One user without records, and one with a public one, of the first class if any."""
        return public_cohorts(self.example, labelled=self.cohort.labels is not None)

    def cohorts(
        self,
        ask: wire.Ask,  # noqa: ARG002 (the same whatever is asked)
        chosen: npt.NDArray[np.bool_],
    ) -> Iterator[Cohort]:
        """The records of the users who take part, of `_PART_USERS` at a time.

        So that a process copies the mapped records of few of them however many a node has.
        """
        parts = self.cohort.blocks(_PART_USERS)
        for start, part in zip(itertools.count(step=_PART_USERS), parts, strict=False):
            yield part.select(chosen[start : start + _PART_USERS])


class EmbeddingSource:
    """An embedding model and the node's cache, as a source of records.

    Args:
        embedder: the model.
        store: in the node's cache; None keeps records in memory.
    """

    def __init__(self, embedder: Embedder, store: RecordStore | None) -> None:
        self.embedder = embedder
        self.store = store
        self.fingerprint: str = embedder.fingerprint
        self.dimension: int = embedder.dimension
        self.tokenizer: Any = embedder.tokenizer

    def read(self, samples: Samples, user_ids: Sequence[str]) -> FixedRecords:
        """Embed samples; one without an embedding, or with one that is not finite, is left out.

        Raises:
            ModelError: On this machine the embedder's vectors depend on what else is embedded.
        """
        records = self.vectors(samples.texts)
        usable = np.asarray(np.isfinite(records).all(axis=1))  # (n,)
        note_left_out(user_ids, samples.owners[~usable])
        cohort = Cohort(records, samples.owners, len(user_ids), samples.labels)
        kept = cohort if usable.all() else cohort.rows(usable)
        return FixedRecords(kept, public_embedding(records.shape[1]))

    def vectors(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Embed texts, each distinct one once in the life of the store; (n, dimension).

        Raises:
            ModelError: On this machine the embedder's vectors depend on what else is embedded.
        """
        require_batch_invariance(self.embedder)
        return embed_texts(self.embedder, texts, self.store)


def note_left_out(user_ids: Sequence[str], owners: npt.NDArray[np.int64]) -> None:
    """Count records that are left out, of these users."""
    if len(owners):
        skipping.note((user_ids[user] for user in owners.tolist()), records=len(owners))


@dataclass(frozen=True)
class TextSource:
    """The documents themselves, for questions that read text: no model, and no tokenizer."""

    fingerprint: str = TEXT_FINGERPRINT
    dimension: int = TEXT_DIMENSION
    tokenizer: None = None

    def read(self, samples: Samples, user_ids: Sequence[str]) -> FixedRecords:
        """Keep the documents as they are."""
        users = len(user_ids)
        cohort = Cohort.of(samples.texts, samples.owners, users, samples.labels)
        return FixedRecords(cohort, example=skipping.PUBLIC_EXAMPLE)


@dataclass(frozen=True)
class TokenSource:
    """A tokenizer, for questions that read tokens of a model that is not trained.

    Attributes:
        tokenizer: a fast one.
        fingerprint: of it.
        max_tokens: most tokens of a sample.
    """

    tokenizer: Any
    fingerprint: str
    max_tokens: int

    @property
    def dimension(self) -> int:
        """Tokens in the vocabulary, those that were added included."""
        return int(self.tokenizer.get_vocab_size())

    def read(self, samples: Samples, user_ids: Sequence[str]) -> FixedRecords:
        """Turn samples into tokens; a sample that the tokenizer fails on is left out."""
        found = skipping.map_isolating_errors(
            samples.texts,
            lambda texts: token_ids(self.tokenizer, texts),
            probe=skipping.PUBLIC_EXAMPLE,
        )
        usable = np.array([ids is not None for ids in found], dtype=np.bool_)  # (n,)
        note_left_out(user_ids, samples.owners[~usable])
        # A piece of a document may have more tokens than it had inside it.
        tokens = [
            np.array(ids[: self.max_tokens], dtype=np.int64) for ids in found if ids is not None
        ]
        labels = None if samples.labels is None else samples.labels[usable]
        (public,) = token_ids(self.tokenizer, [skipping.PUBLIC_EXAMPLE])
        return FixedRecords(
            Cohort.of(tokens, samples.owners[usable], len(user_ids), labels),
            example=np.array(public[: self.max_tokens], dtype=np.int64),
        )
