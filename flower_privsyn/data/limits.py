"""Which documents count: those that any tokenizer takes, and so many of one user.

The rules are public, and are applied to each user by what that user wrote alone. So nobody's text
makes others lose theirs, and nobody makes them wait for long.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.data.users import Users, seed_key
from flower_privsyn.privacy import skipping

#: Characters of one document; a longer one is none.
MAX_DOCUMENT_CHARACTERS: Final = 2**20
#: Documents of one user.
MAX_DOCUMENTS: Final = 4096
#: Characters of all documents of one user together.
MAX_CHARACTERS: Final = 2**22

_DOCUMENTS = b"user-documents"


def is_usable(text: object) -> bool:
    """Whether a value is a document: text that UTF-8 can hold, without NUL, not absurdly long.

    Half a surrogate pair is no character, and neither tokenizers nor files take it.
    """
    if not isinstance(text, str) or len(text) > MAX_DOCUMENT_CHARACTERS or "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def within_limits(users: Users, *, seed: int) -> Users:
    """Leave out what is no document, and of heavy users what is beyond the caps.

    Of a user with more than `MAX_DOCUMENTS` documents or `MAX_CHARACTERS` characters those with
    the lowest keyed hashes stay, until one is reached: a random subset that depends on the seed,
    the user's id and the user's own documents only. Every user stays on the roster.

    Args:
        users: Of a node.
        seed: Key of the subset; public.

    Raises:
        ConfigError: If the seed does not fit 16 bytes.
    """
    key = seed_key(seed)
    keep = np.fromiter(map(is_usable, users.texts), bool, len(users.texts))
    if not keep.all():
        _note(users, ~keep)
    lengths = np.zeros(len(users.texts), dtype=np.int64)
    lengths[keep] = [len(users.texts[row]) for row in np.flatnonzero(keep).tolist()]
    documents = np.bincount(users.owners[keep], minlength=len(users))
    characters = np.zeros(len(users), dtype=np.int64)
    np.add.at(characters, users.owners, lengths)
    heavy = np.flatnonzero((documents > MAX_DOCUMENTS) | (characters > MAX_CHARACTERS))
    for user in heavy.tolist():
        first, last = np.searchsorted(users.owners, [user, user + 1]).tolist()
        rows = [row for row in range(first, last) if keep[row]]
        keep[first:last] = False
        texts = [users.texts[row] for row in rows]
        total = 0
        for place in ranked(users.user_ids[user], texts, key=key, purpose=_DOCUMENTS)[
            :MAX_DOCUMENTS
        ]:
            total += len(texts[place])
            if total > MAX_CHARACTERS:
                break
            keep[rows[place]] = True
    if keep.all():
        return users
    return users.only(keep)


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


def _note(users: Users, left_out: NDArray[np.bool_]) -> None:
    owners = np.unique(users.owners[left_out]).tolist()
    skipping.note((users.user_ids[user] for user in owners), records=int(left_out.sum()))
