"""How text is cut: whose documents count, and into which samples. The one place that says so.

Which documents count is public, and is applied to each user by what that user wrote alone. So
nobody's text makes others lose theirs, and nobody makes them wait for long.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Self

import numpy as np
from annotated_types import Ge, Le, Lt
from numpy.typing import NDArray

from flower_privsyn.checks import Settings
from flower_privsyn.data.sentences import sentence_ends
from flower_privsyn.data.users import Users, few, parse_min_date, seed_key
from flower_privsyn.errors import ConfigError
from flower_privsyn.models.text_batches import MOST_CHARACTERS, text_batches
from flower_privsyn.privacy import skipping

# A shorter tail carries no meaning of its own; it is kept only where a document has nothing else.
MIN_TOKENS = 4

#: What names of classes are: they stand in messages, in ledgers and in sentences of logs.
MOST_CLASSES: Final = 1000
LONGEST_CLASS: Final = 200
CLASS_NAMES: Final = (
    f"printable and of at most {LONGEST_CLASS} characters, at most {MOST_CLASSES:,} of them"
)

_CAP: Final = b"user-cap"
#: Characters of one document; a longer one is none.
MAX_DOCUMENT_CHARACTERS: Final = 2**20
#: Documents of one user.
MAX_DOCUMENTS: Final = 4096
#: Characters of all documents of one user together.
MAX_CHARACTERS: Final = 2**22

_DOCUMENTS: Final = b"user-documents"


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """What the users of a node are asked about: short texts and whose they are.

    Args:
        texts: The n samples, those of one user next to one another.
        owners: int64 (n,), index of the user, nondecreasing.
        num_users: Number of users, those without samples included.
        labels: int64 (n,), which of the run's classes each sample is of; None where there are none.
        ends: bool (n,), whether its document ends with each sample; None where each is a
            whole document.
    """

    texts: list[str]
    owners: NDArray[np.int64]  # (n,)
    num_users: int
    labels: NDArray[np.int64] | None = None  # (n,)
    ends: NDArray[np.bool_] | None = None  # (n,)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.texts)

    def __repr__(self) -> str:
        """Sizes alone, as of `Users`."""
        return f"Samples({self.num_users} users, {len(self.texts)} samples)"


@dataclass(frozen=True, kw_only=True)
class Chunking(Settings):
    """How users' text is cut into samples: the same for nodes, evaluation and comparison.

    Documents are cut at token borders by character offsets, at white space wherever the piece
    holds any, so that no word is torn unless it alone is longer than a piece. A document border
    is always a sample border. Tokens are counted in the document, without special tokens.

    The cap bounds what one user can contribute, which is what the sensitivity of a vote rests on.
    Which samples survive depends on the seed, the user id and the user's own samples only (the
    lowest keyed hashes win): not on other users, their order, or the node. The same seed gives
    the same subset in every round of a run.

    Raises:
        ConfigError: If a value is out of range.

    References:
        Hou et al., "PrE-Text: Training Language Models on Private Federated Data in the Age of
        LLMs", ICML 2024: samples of at most 64 tokens, at most 8 (16 for code) each.
    """

    max_tokens: Annotated[int | None, Ge(1)] = 64
    """Longest sample, in tokens; None keeps documents whole."""
    max_samples: Annotated[int | None, Ge(1)] = None
    """Most samples of a user; None keeps all."""
    min_date: str = ""
    """ISO day; only documents of it and later days count; "" for all."""
    held_out_fraction: Annotated[float, Ge(0), Le(1)] = 0.0
    """Share of users kept out of the run for evaluation."""
    seed: Annotated[int, Ge(-(2**127)), Lt(2**127)] = 0
    """Key of the subset and of the held-out coins; public."""
    classes: tuple[str, ...] = ()
    """Classes of documents; public. Those of another one do not count."""

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if self.min_date:
            parse_min_date(self.min_date)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """The cut of a run's settings, under the keys of its configuration.

        Raises:
            ConfigError: If a value is out of range.
        """
        return cls(
            max_tokens=int(settings["max-tokens"]),
            max_samples=int(settings["max-samples"]) or None,
            min_date=str(settings.get("min-date") or ""),
            held_out_fraction=float(settings.get("held-out-fraction") or 0.0),
            seed=int(settings["seed"]),
            classes=class_names(str(settings.get("classes") or "")),
        )

    def split(self, users: Users) -> tuple[Users, Users]:
        """Those whom a run asks, and those it holds out; everybody is in exactly one of them."""
        return users.split_held_out(fraction=self.held_out_fraction, seed=self.seed)

    def documents(self, users: Users) -> Users:
        """The same users with the documents that count: new, of a class, and within the limits.

        Raises:
            DataError: If `min_date` is set and the source has no column of dates, or `classes`
                and it has no column of labels.
        """
        return within_limits(self.selected(users), seed=self.seed)

    def selected(self, users: Users) -> Users:
        """The same users with the documents that are new and of a class, however much that is.

        Raises:
            DataError: As `documents`.
        """
        if self.min_date:
            users = users.since(self.min_date)
        return users.of_classes(self.classes) if self.classes else users

    def asked(self, users: Users) -> Users:
        """The users whom a run asks, with the documents that count.

        Raises:
            DataError: As `documents`.
        """
        return self.documents(self.split(users)[0] if self.held_out_fraction > 0 else users)

    def samples(self, users: Users, *, tokenizer: Any = None) -> Samples:
        """Cut every document into samples and keep at most `max_samples` per user.

        A document that the tokenizer fails on gives no samples.

        Args:
            users: Users with whole documents, of which all count.
            tokenizer: A transformers fast tokenizer or a ``tokenizers.Tokenizer``; not needed
                where documents stay whole.

        Raises:
            ConfigError: If the tokenizer gives no offsets.
        """
        whose = [users.user_ids[owner] for owner in users.owners.tolist()]
        pieces = self.pieces(users.texts, tokenizer=tokenizer, whose=whose)
        texts = list(itertools.chain.from_iterable(pieces))
        ends = np.array(
            [end for one in zip(users.texts, pieces, strict=True) for end in _ends(*one)],
            dtype=np.bool_,
        )
        documents = np.repeat(np.arange(len(pieces)), list(map(len, pieces)))
        owners = users.owners[documents]
        labels = self._class_of(users)[documents] if self.classes else None
        if self.max_samples is not None:
            keep = np.ones(len(texts), dtype=np.bool_)
            heavy = np.bincount(owners, minlength=len(users)) > self.max_samples
            seed, most = self.seed, self.max_samples
            _cap(keep, users, owners, texts, heavy, seed=seed, purpose=_CAP, most=most)
            texts = list(itertools.compress(texts, keep))
            owners, ends = owners[keep], ends[keep]
            labels = None if labels is None else labels[keep]
        return Samples(texts=texts, owners=owners, num_users=len(users), labels=labels, ends=ends)

    def _class_of(self, users: Users) -> NDArray[np.int64]:
        """Which class each document is of, all of which count."""
        places = {name: place for place, name in enumerate(self.classes)}
        labels = users.labels or []
        return np.array([places[str(label)] for label in labels], dtype=np.int64)

    def pieces(
        self,
        texts: Sequence[str],
        *,
        tokenizer: Any,
        at_sentences: bool = False,
        whose: Sequence[str] = (),
    ) -> list[list[str]]:
        """The pieces of each text, in order; no cap applies.

        Args:
            texts: The n texts.
            tokenizer: As for `samples`.
            at_sentences: Cut only where a sentence ends, and leave out a sentence that alone is
                longer than a piece; a text with hardly any end of a sentence is cut as usual.
            whose: Of each text, whom it is counted for where the tokenizer fails on it; empty for
                texts that are public, or written by a generator.

        Returns:
            n lists; empty for a text that is blank or that the tokenizer fails on.
        """
        cut: Callable[[Sequence[str]], Iterable[list[str]]] = _whole
        if self.max_tokens is not None:
            cut = functools.partial(
                _cut, tokenizer, max_tokens=self.max_tokens, at_sentences=at_sentences
            )
        skipping.check(cut, probe=skipping.PUBLIC_EXAMPLE)
        found: list[list[str] | None] = []
        for batch in text_batches(texts):
            found += skipping.retry_by_halves(texts[batch], cut)
        failed = [place for place, pieces in enumerate(found) if pieces is None]
        if failed:
            skipping.note((whose[n] if whose else n for n in failed), records=len(failed))
        return [pieces or [] for pieces in found]


def within_limits(users: Users, *, seed: int) -> Users:
    """Leave out documents that are too long, and of heavy users what is beyond the caps.

    What is unusable is counted, and so is what was when it was read.

    Of a user with more than `MAX_DOCUMENTS` documents or `MAX_CHARACTERS` characters those with
    the lowest keyed hashes stay, until one is reached: a random subset that depends on the seed,
    the user's id and the user's own documents only. Every user stays on the roster.

    Args:
        users: Of a node.
        seed: Key of the subset; public.

    """
    if users.unusable is not None and users.unusable.any():
        whose = [users.user_ids[user] for user in np.flatnonzero(users.unusable)]
        skipping.note(whose, records=int(users.unusable.sum()))
        users = replace(users, unusable=None)
    lengths = np.array([len(text) for text in users.texts], dtype=np.int64)
    keep = lengths <= MAX_DOCUMENT_CHARACTERS
    users.note_left_out(~keep)
    documents = np.bincount(users.owners[keep], minlength=len(users))
    characters = np.bincount(users.owners, lengths * keep, minlength=len(users))
    heavy = (documents > MAX_DOCUMENTS) | (characters > MAX_CHARACTERS)
    _cap(
        keep, users, users.owners, users.texts, heavy,
        seed=seed, purpose=_DOCUMENTS, most=MAX_DOCUMENTS, most_characters=MAX_CHARACTERS,
    )  # fmt: skip
    return users.only(keep)


def _cap(
    keep: NDArray[np.bool_],
    users: Users,
    owners: NDArray[np.int64],
    texts: Sequence[str],
    heavy: NDArray[np.bool_],
    *,
    seed: int,
    purpose: bytes,
    most: int,
    most_characters: float = np.inf,
) -> None:
    """Of some users keep the texts with the lowest hashes, until as many or as long are kept.

    Args:
        keep: (n,) which texts are kept; those of these users are decided anew among them.
        users: whose they are.
        owners: (n,) of the texts, nondecreasing.
        texts: the n texts.
        heavy: (u,) of which users.
        seed: key of the hashes; public.
        purpose: as of `ranked`.
        most: texts of a user.
        most_characters: of all texts of a user together.
    """
    for user in np.flatnonzero(heavy).tolist():
        first, last = np.searchsorted(owners, [user, user + 1]).tolist()
        rows = first + np.flatnonzero(keep[first:last])
        own = [texts[row] for row in rows.tolist()]
        order = ranked(users.user_ids[user], own, key=seed_key(seed), purpose=purpose)[:most]
        fits = np.cumsum([len(own[place]) for place in order]) <= most_characters
        keep[first:last] = False
        keep[rows[order][fits]] = True


def ranked(user_id: str, texts: Sequence[str], *, key: bytes, purpose: bytes) -> list[int]:
    """Places of a user's texts in an order that only the key, the id and the texts decide.

    Args:
        user_id: Whose they are.
        texts: All of them.
        key: Of the hashes.
        purpose: At most 16 bytes; another one gives another order.
    """
    name = user_id.encode("utf-8", "surrogatepass")
    prefix = len(name).to_bytes(8, "big") + name
    # Copies of one text get different hashes, else they would survive or fall together.
    seen: Counter[str] = Counter()
    order = []
    for place, text in enumerate(texts):
        copy = seen[text]
        seen[text] += 1
        digest = hashlib.blake2b(
            prefix + copy.to_bytes(8, "big") + text.encode("utf-8", "surrogatepass"),
            digest_size=16,
            key=key,
            person=purpose,
        ).digest()
        order.append((digest, place))
    return [place for _, place in sorted(order)]


def are_class_names(names: Sequence[object]) -> bool:
    """Whether these may be the classes of a run; the same rule for settings and for messages.

    Args:
        names: Of classes, each once.
    """
    # What is printable cannot write lines of its own into a log, nor is it half of a pair.
    printable = all(
        isinstance(name, str) and name.strip() and len(name) <= LONGEST_CLASS and name.isprintable()
        for name in names
    )
    return printable and len(set(names)) == len(names) <= MOST_CLASSES


def class_names(setting: str) -> tuple[str, ...]:
    """The classes that a setting names, with semicolons between them.

    Raises:
        ConfigError: One is empty, occurs twice, is too long or cannot be printed, or there are too
            many.
    """
    names = tuple(name.strip() for name in setting.split(";")) if setting.strip() else ()
    if not are_class_names(names):
        raise ConfigError(
            f"classes must be different names with semicolons between them, {CLASS_NAMES}, "
            f"got {few(names)}."
        )
    return names


def token_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of each text, special ones left out.

    Args:
        tokenizer: As for `Chunking.samples`.
        texts: The n texts.

    Raises:
        ConfigError: If the tokenizer is not a fast one.
    """
    return [
        list(encoding.ids)
        for batch in text_batches(texts)
        for encoding in _encode(tokenizer, list(texts[batch]))
    ]


def _ends(document: str, pieces: Sequence[str]) -> list[bool]:
    """Of each piece of a document whether the document ends with it.

    None does where a tail too short for a sample was left out.
    """
    last = bool(pieces) and document.rstrip().endswith(pieces[-1].rstrip())
    return [False] * (len(pieces) - 1) + [last] if pieces else []


def _whole(documents: Sequence[str]) -> list[list[str]]:
    """Each document as it is."""
    return [[document] for document in documents]


def _cut(
    tokenizer: Any, documents: Sequence[str], max_tokens: int, at_sentences: bool = False
) -> list[list[str]]:
    """The samples of each document, in order.

    A document of more than `MOST_CHARACTERS` characters is cut into sections first, by itself.
    """
    cut = _sentence_pieces if at_sentences else _pieces
    sections = [_sections(document) for document in documents]
    together = list(itertools.chain.from_iterable(sections))
    pieces = (
        list(cut(text, encoding, max_tokens))
        for batch in text_batches(together)
        for text, encoding in zip(together[batch], _encode(tokenizer, together[batch]), strict=True)
    )
    return [[piece for _ in parts for piece in next(pieces)] for parts in sections]


def _sections(document: str) -> list[str]:
    """A document in parts of at most `MOST_CHARACTERS`, parted before white space if there is."""
    sections, start = [], 0
    while len(document) - start > MOST_CHARACTERS:
        last = start + MOST_CHARACTERS
        space = max(document.rfind(white, start + 1, last) for white in " \n")
        end = space if space > 0 else last
        sections.append(document[start:end])
        start = end
    return [*sections, document[start:]]


def _encode(tokenizer: Any, documents: list[str]) -> Sequence[Any]:
    """The ``tokenizers.Encoding`` of each document, special tokens left out."""
    tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)  # of transformers
    if not hasattr(tokenizer, "encode_batch"):
        raise ConfigError(
            f"tokenizer must be a fast tokenizer (one that gives character offsets), "
            f"got {type(tokenizer).__name__}."
        )
    if tokenizer.truncation is not None or tokenizer.padding is not None:
        # Both are settings of the object: change them on a copy, not on the caller's.
        tokenizer = type(tokenizer).from_str(tokenizer.to_str())
        tokenizer.no_truncation()
        tokenizer.no_padding()
    encodings: Sequence[Any] = tokenizer.encode_batch(documents, add_special_tokens=False)
    return encodings


def _pieces(text: str, encoding: Any, max_tokens: int) -> Iterator[str]:
    """The samples of one document, in order."""
    # Looked up one by one: a list of all offsets takes as long as the tokenisation itself.
    span: Callable[[int], tuple[int, int]] = encoding.token_to_chars
    total = len(encoding)
    start = 0
    while start < total:
        end = min(start + max_tokens, total)
        if end < total:
            end = _border(text, span, start, end)
        if end - start >= MIN_TOKENS or (start == 0 and end == total):
            piece = text[span(start)[0] : span(end - 1)[1]].strip()
            if piece:
                yield piece
        start = end


def _sentence_pieces(text: str, encoding: Any, max_tokens: int) -> Iterator[str]:
    """Pieces of whole sentences of one document, in order, each as long as it may be."""
    ends = sentence_ends(text)
    # Thai and code have a few ends, and between them text that should not be left out.
    if len(encoding) <= max_tokens or len(encoding) > 2 * max_tokens * len(ends):
        yield from _pieces(text, encoding, max_tokens)
        return
    firsts = [encoding.token_to_chars(token)[0] for token in range(len(encoding))]
    start = reached = 0
    for end in ends:
        # Tokens of the text between two places, by where they begin.
        if bisect_left(firsts, end) - bisect_left(firsts, start) <= max_tokens:
            reached = end
            continue
        if reached > start:
            yield text[start:reached].strip()
        one_alone = bisect_left(firsts, end) - bisect_left(firsts, reached) <= max_tokens
        start, reached = (reached, end) if one_alone else (end, end)
    if reached > start:
        yield text[start:reached].strip()


def _border(text: str, span: Callable[[int], tuple[int, int]], start: int, end: int) -> int:
    """The last good place to cut in (start, end]: at white space, else between characters."""
    fallback = 0
    for cut in range(end, start, -1):
        position = span(cut)[0]
        if position < span(cut - 1)[1]:
            continue  # byte-level tokens can share one character
        # A token may carry its leading space (byte-level BPE) or leave it out (WordPiece).
        if text[position].isspace() or (position and text[position - 1].isspace()):
            return cut
        fallback = fallback or cut
    return fallback or end
