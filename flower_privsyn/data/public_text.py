"""Public text: the seeds of synthesis. Nobody's data, so it may be read, sent and shown."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Final

from flower_privsyn.data.cut import Cut
from flower_privsyn.data.public_corpus import PublicCorpus
from flower_privsyn.errors import ConfigError, DataError

#: Documents that are cut at a time.
_DOCUMENTS: Final = 512


def public_texts(
    source: str = "bundled",
    *,
    tokenizer: Any,
    max_tokens: int = 64,
    at_sentences: bool = False,
    setting: str = "public-text",
    fewest: int = 0,
    wanted_by: str = "",
    enough: bool = False,
) -> list[str]:
    """Read public texts of at most `max_tokens` tokens, without duplicates, in file order.

    Args:
        source: "bundled" for the passages that ship with the package (their README gives sources
            and licences), a JSONL file (also .gz) with a `text` in every line, or another name of
            `flower_privsyn.data.public_corpus`. Longer texts are cut into pieces.
        tokenizer: the embedding model's.
        max_tokens: length of a piece, >= 1.
        at_sentences: cut longer texts only where a sentence ends (`Cut.pieces`).
        setting: what named the file, for the sentence that says it cannot be read.
        fewest: texts that there must be.
        wanted_by: what needs so many, such as "num-candidates = 24".
        enough: read no further than that, of a corpus that may be large.

    Raises:
        ConfigError: there are fewer than `fewest`.
        DataError: the file is missing or a line is not as described.
        MissingExtraError: it is a data set, and the library is not installed.
    """
    documents = PublicCorpus.find(source, setting=setting).documents()
    cut, found = Cut(max_tokens=max_tokens), dict[str, None]()
    while not (enough and len(found) >= fewest) and (
        part := list(itertools.islice(documents, _DOCUMENTS))
    ):
        pieces = cut.pieces(part, tokenizer=tokenizer, at_sentences=at_sentences)
        found |= dict.fromkeys(itertools.chain.from_iterable(pieces))
    if len(found) < fewest:
        raise ConfigError(
            f"{wanted_by} needs at least {fewest} different texts of at most {max_tokens} tokens, "
            f'and {setting} = "{source}" holds {len(found)}'
        )
    return list(found)


def labels_of_public_texts(
    source: str, *, tokenizer: Any, max_tokens: int = 64, at_sentences: bool = False
) -> dict[str, str]:
    """The class of each public text whose line has a `label`, by text as `public_texts` cuts it.

    Args:
        source: as for `public_texts`; the bundled passages have no labels.
        tokenizer: as for `public_texts`.
        max_tokens: as for `public_texts`.
        at_sentences: as for `public_texts`.

    Raises:
        DataError: as for `public_texts`.
    """
    corpus = PublicCorpus.find(source, setting="public-text")
    labelled = [(text, label) for text, label in corpus.labelled() if label is not None]
    cut = Cut(max_tokens=max_tokens)
    found = cut.pieces(
        [text for text, _ in labelled], tokenizer=tokenizer, at_sentences=at_sentences
    )
    pairs = zip(found, labelled, strict=True)
    return {piece: label for pieces, (_, label) in pairs for piece in pieces}


def public_documents(source: str | Path, *, setting: str) -> list[str]:
    """Read public documents whole, in the order of the files and of their lines.

    Args:
        source: as `flower_privsyn.data.public_corpus` names corpora; what begins with a dot in a
            folder is passed over.
        setting: what named it, for the sentence that says it cannot be read.

    Returns:
        The documents that are not empty, at least one.

    Raises:
        DataError: A file is missing, cannot be read or is not as described, or there is no text.
    """
    corpus = PublicCorpus.find(source, setting=setting)
    texts = [text for text in corpus.documents() if text.strip()]
    if not texts:
        raise DataError(f'{setting} = "{source}": {corpus.path or corpus.source} holds no text')
    return texts
