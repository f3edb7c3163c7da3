"""Public text that holds what users wrote: what is chosen of it would be published as it is.

No ledger knows of that. It is looked for where the users' text is at hand: on the machine of a
simulation, before it begins. What was changed by a letter, or put together otherwise than by lines,
is not found.
"""

from __future__ import annotations

import itertools
import json
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from flower_privsyn.data import Users
from flower_privsyn.data.public_corpus import PublicCorpus
from flower_privsyn.data.public_rows import count_long_rows, none_long_enough
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import expanded, located
from flower_privsyn.run.method import ChosenRows

#: The public text that comes with the package, which is nobody's.
BUNDLED: Final = "bundled"

#: Letters of a text or of a line of it, blanks aside, from which on two are not equal by chance.
_LEAST_LETTERS: Final = 24

#: So many users may quote what is public, as a letter that is passed on.
_FEW: Final = 3

#: Share of the users' texts, and of the public ones, from which on they are no quotations.
_MOST_SHARED: Final = 0.01

#: Rows to choose from for each that is chosen, below which there is little choice.
_LEAST_CHOICE: Final = 2

#: Documents of public text that are looked at.
_MOST_DOCUMENTS: Final = 1_000_000


def fingerprints(parts: Iterable[Users]) -> frozenset[int]:
    """What tells the longer texts of users apart, and the lines of them, within this process.

    Args:
        parts: users, held out or not.
    """
    return frozenset(
        found for users in parts for text in users.texts for found in _fingerprints(text)
    )


def check_public_text(source: str, written: frozenset[int], *, data: str) -> str | None:
    """Refuse public text that is the users' own; of a data set of the hub nothing is read.

    Args:
        source: the setting `public-text`.
        written: by users: `fingerprints`.
        data: what the users are read from.

    Returns:
        A sentence where some users wrote what is in it; None where nobody did.

    Raises:
        ConfigError: it is the users' file, or more than three texts are in both and these are more
            than a hundredth of the one or of the other.
        DataError: it cannot be read.
    """
    if source == BUNDLED:
        return None
    corpus = PublicCorpus.find(source, setting="public-text")
    end = (
        "what is chosen of it is published as it is, and models learn it, at no cost in any "
        "ledger; name text that is public, without theirs"
    )
    if source == data or _same_file(corpus.path, data):
        raise ConfigError(f'public-text = "{source}" is the text of the users (data): {end}')
    if corpus.path is None or not written:
        return None
    shared, documents = _shared(source, json.dumps(corpus.identity()), written)
    if not shared:
        return None
    said = (
        f'public-text = "{source}" holds {shared:,} of the users\' {len(written):,} longer texts '
        f"and lines, in {documents:,} of its own: {end}"
    )
    if shared > _FEW and shared > _MOST_SHARED * min(len(written), documents):
        raise ConfigError(said)
    return said


def check_rows(source: str, rows: ChosenRows, *, folder: Path) -> str | None:
    """Refuse public text of which nothing can be chosen.

    Args:
        source: the setting `public-text`.
        rows: which of its rows may be chosen, and how many are.
        folder: of the model whose tokens they are cut by.

    Returns:
        A sentence where the users' answers leave out hardly any row; None elsewhere. A data set of
        the hub is not read.

    Raises:
        ConfigError: no row is long enough.
        DataError: it cannot be read.
        ModelError: the model has no tokenizer that can be read.
    """
    corpus = PublicCorpus.find(source, setting="public-text")
    if corpus.path is None and source != BUNDLED:
        return None
    _, fingerprint = load_tokenizer(str(folder))
    found = _long_rows(source, json.dumps(corpus.identity()), rows, folder, fingerprint)
    if not found:
        raise none_long_enough(source, rows.least_tokens)
    if found >= _LEAST_CHOICE * rows.fewest:
        return None
    several = "" if found == 1 else "s"
    return (
        f'public-text = "{source}" has {found:,} row{several} of least-row-tokens = '
        f"{rows.least_tokens} tokens or more, of which {min(found, rows.fewest):,} are chosen at "
        "least: the users' answers leave out few or none; give more public text"
    )


def _same_file(path: Path | None, data: str) -> bool:
    try:
        return path is not None and bool(data) and path.samefile(expanded(located(data)))
    except OSError:
        return False


@lru_cache(maxsize=2)
def _shared(source: str, identity: str, written: frozenset[int]) -> tuple[int, int]:  # noqa: ARG001
    """How many of the users' texts are in a corpus, and of how many of its own.

    Counted once while its files stay as they are (`identity`): many methods of one comparison name
    the same corpus.
    """
    every = PublicCorpus.find(source, setting="public-text").documents()
    shared, longer = set[int](), 0
    for document in itertools.islice(every, _MOST_DOCUMENTS):
        for found in _fingerprints(document):
            longer += 1
            if found in written:
                shared.add(found)
    return len(shared), longer


@lru_cache(maxsize=8)
def _long_rows(
    source: str,
    identity: str,  # noqa: ARG001
    rows: ChosenRows,
    folder: Path,
    fingerprint: str,  # noqa: ARG001
) -> int:
    """How many rows of a corpus may be chosen; counted no further than is enough.

    Counted once while its files (`identity`) and the tokenizer (`fingerprint`) stay as they are,
    for the reason of `_shared`.
    """
    return count_long_rows(
        PublicCorpus.find(source, setting="public-text"),
        tokenizer=load_tokenizer(str(folder))[0],
        max_tokens=rows.max_tokens,
        least=rows.least_tokens,
        enough=_LEAST_CHOICE * rows.fewest,
    )


def _fingerprints(text: str) -> Iterator[int]:
    """Of a text, and of its lines where it has several, whatever their blanks and capitals."""
    lines = text.splitlines()
    for part in (text, *(lines if len(lines) > 1 else ())):
        letters = "".join(unicodedata.normalize("NFKC", part).casefold().split())
        if len(letters) >= _LEAST_LETTERS:
            yield hash(letters)
