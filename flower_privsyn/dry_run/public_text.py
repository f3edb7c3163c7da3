"""Public text that holds what users wrote: what is chosen of it would be published as it is.

No ledger knows of that. It is looked for where the users' text is at hand: on the machine of a
simulation, before it begins.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from flower_privsyn.data import Users
from flower_privsyn.data.public_corpus import PublicCorpus
from flower_privsyn.errors import ConfigError

#: The public text that comes with the package, which is nobody's.
BUNDLED: Final = "bundled"

#: Words of a text from which on nobody writes the same by chance.
_LEAST_WORDS: Final = 8

#: Share of the users' texts up to which they may quote what is public: letters that are passed on.
_MOST_SHARED: Final = 0.01

#: Documents of public text that are looked at.
_MOST_DOCUMENTS: Final = 1_000_000


def fingerprints(parts: Iterable[Users]) -> frozenset[int]:
    """What tells the longer texts of users apart, within this process.

    Args:
        parts: users, held out or not.
    """
    return frozenset(found for users in parts for found in map(_fingerprint, users.texts) if found)


def check_public_text(source: str, written: frozenset[int]) -> str | None:
    """Refuse public text that is the users' own; of a data set of the hub nothing is read.

    Args:
        source: the setting `public-text`.
        written: by users: `fingerprints`.

    Returns:
        A sentence where some users wrote what is in it; None where nobody did.

    Raises:
        ConfigError: more than a hundredth of the users' longer texts are in it.
        DataError: it cannot be read.
    """
    corpus = PublicCorpus.find(source, setting="public-text")
    if source == BUNDLED or corpus.path is None or not written:
        return None
    shared = _shared(source, json.dumps(corpus.identity()), written)
    if not shared:
        return None
    said = (
        f'public-text = "{source}" holds {shared:,} of the {len(written):,} longer texts of the '
        "users, word for word: what is chosen of it is published as it is, and models learn it, at "
        "no cost in any ledger"
    )
    if shared > _MOST_SHARED * len(written):
        raise ConfigError(f"{said}; name text that is public, without them")
    return said


@lru_cache(maxsize=8)
def _shared(source: str, identity: str, written: frozenset[int]) -> int:  # noqa: ARG001 - a key
    """How many of the users' texts are in a corpus, counted once while its files stay as they are.

    Many methods of one comparison name the same corpus.
    """
    documents = PublicCorpus.find(source, setting="public-text").documents()
    return len(
        written.intersection(map(_fingerprint, itertools.islice(documents, _MOST_DOCUMENTS)))
    )


def _fingerprint(text: str) -> int:
    """Of a text, whatever its blanks and capitals; 0 where it is too short to tell anything."""
    words = text.casefold().split()
    return hash(" ".join(words)) if len(words) >= _LEAST_WORDS else 0
