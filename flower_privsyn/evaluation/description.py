"""What a file of users holds, for the one person who may know: its owner.

Every figure is computed from private text without noise. It helps to choose settings; it is no part
of a run, and nothing of it is written or sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flower_privsyn.data import Chunking, Users
from flower_privsyn.data.chunking import token_ids, within_limits
from flower_privsyn.evaluation.result import NotPrivate
from flower_privsyn.privacy import skipping

Counts = npt.NDArray[np.int64]

_QUANTILES: Final = {"5 %": 0.05, "25 %": 0.25, "50 %": 0.5, "75 %": 0.75, "95 %": 0.95}


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How a number is spread over users.

    Attributes:
        least: the smallest.
        quantiles: those of 5, 25, 50, 75 and 95 %, by their names; each is some user's number.
        most: the largest.
        mean: over all users.
    """

    least: int
    quantiles: dict[str, int]
    most: int
    mean: float

    @classmethod
    def of(cls, counts: Counts) -> Spread:
        """The spread of one number per user, of at least one user."""
        found = np.quantile(counts, list(_QUANTILES.values()), method="inverted_cdf")
        return cls(
            least=int(counts.min()),
            quantiles=dict(zip(_QUANTILES, map(int, found), strict=True)),
            most=int(counts.max()),
            mean=float(counts.mean()),
        )


@dataclass(frozen=True, kw_only=True)
class DataDescription(NotPrivate):
    """Figures of a file of users.

    Attributes:
        source: as it was named.
        users: all of them.
        users_without_text: those without a document.
        texts: documents that count.
        no_text: rows without text in their column.
        unusable: texts that no tokenizer should be given, as a rule for their length.
        beyond_limits: texts beyond the limits of one user.
        repeated: texts that are equal to one before them.
        shared: distinct texts that more than one user has.
        texts_per_user: number of documents.
        characters_per_user: of all documents of a user together.
        first_date: of the texts, ISO; None where none has a date.
        last_date: of the texts.
        undated: texts without a date; None where there is no column of dates.
        tokenizer: the model whose tokens are counted.
        tokens_per_user: of all documents of a user together.
        unknown: share of tokens that stand for characters which the tokenizer does not know; None
            where it knows every byte.
        max_tokens: longest sample of the run that is planned.
        max_samples: most samples of a user; 0 for all.
        samples: into which the texts are cut.
        taken: samples that could vote, at most `max_samples` of each user.
        users_cut: users with more samples than that.
    """

    source: str
    users: int
    users_without_text: int
    texts: int
    no_text: int
    unusable: int
    beyond_limits: int
    repeated: int
    shared: int
    texts_per_user: Spread
    characters_per_user: Spread
    first_date: str | None
    last_date: str | None
    undated: int | None
    tokenizer: str
    tokens_per_user: Spread
    unknown: float | None
    max_tokens: int
    max_samples: int
    samples: int
    taken: int
    users_cut: int


def describe(
    users: Users,
    *,
    source: str,
    chunking: Chunking,
    tokenizer: Any,
    tokenizer_name: str,
) -> DataDescription:
    """Count what users wrote.

    Args:
        users: at least one.
        source: where they were read.
        chunking: of the run that is planned, whose limits count.
        tokenizer: a `tokenizers.Tokenizer`.
        tokenizer_name: the model it belongs to.
    """
    selected = chunking.selected(users)
    no_text = 0 if selected.unusable is None else int(selected.unusable.sum())
    with skipping.counting() as tally:
        users = within_limits(selected, seed=chunking.seed)
    unusable = tally.records - no_text
    owners = users.owners
    texts = np.bincount(owners, minlength=len(users))
    lengths = np.array([len(text) for text in users.texts], dtype=np.int64)
    seen: dict[str, int] = {}
    shared: set[str] = set()
    for text, owner in zip(users.texts, owners.tolist(), strict=True):
        if seen.setdefault(text, owner) != owner:
            shared.add(text)
    days = [day for day in users.dates or () if day is not None]
    tokens, unknown = _tokens(users, tokenizer)
    whole = Chunking(max_tokens=chunking.max_tokens, seed=chunking.seed)
    samples = np.bincount(whole.samples(users, tokenizer=tokenizer).owners, minlength=len(users))
    taken = samples if chunking.max_samples is None else np.minimum(samples, chunking.max_samples)
    return DataDescription(
        source=source,
        users=len(users),
        users_without_text=int((texts == 0).sum()),
        texts=len(users.texts),
        no_text=no_text,
        unusable=unusable,
        beyond_limits=len(selected.texts) - unusable - len(users.texts),
        repeated=len(users.texts) - len(seen),
        shared=len(shared),
        texts_per_user=Spread.of(texts),
        characters_per_user=Spread.of(_per_user(users, lengths)),
        first_date=min(days).isoformat() if days else None,
        last_date=max(days).isoformat() if days else None,
        undated=None if users.dates is None else len(users.dates) - len(days),
        tokenizer=tokenizer_name,
        tokens_per_user=Spread.of(_per_user(users, tokens)),
        unknown=unknown,
        max_tokens=chunking.max_tokens or 0,
        max_samples=chunking.max_samples or 0,
        samples=int(samples.sum()),
        taken=int(taken.sum()),
        users_cut=int((samples > taken).sum()),
    )


def _per_user(users: Users, counts: Counts) -> Counts:
    """The sum of one number per text over the texts of each user, (u,)."""
    return np.bincount(users.owners, counts, minlength=len(users)).astype(np.int64)


def _tokens(users: Users, tokenizer: Any) -> tuple[Counts, float | None]:
    """Tokens of each whole document, and the share of unknown ones."""
    name = getattr(tokenizer.model, "unk_token", None)
    unknown_id = None if name is None else tokenizer.token_to_id(name)
    encoded = skipping.map_isolating_errors(
        users.texts, lambda texts: token_ids(tokenizer, texts), probe=skipping.PUBLIC_EXAMPLE
    )
    counts = [len(ids or ()) for ids in encoded]
    unknown = sum(token == unknown_id for ids in encoded for token in ids or ())
    share = None if unknown_id is None else unknown / max(1, sum(counts))
    return np.array(counts, dtype=np.int64), share
