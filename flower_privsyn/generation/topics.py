"""Topics: what public text is about, each a point in the embedding space with words for it.

They are made once (`flower_privsyn.generation.topic_model`), and lie in one file: few coarse ones,
which many users' votes fill, and the finer ones that each of them falls into. The text that they
are made of is public: keywords go to every node and stand before every text, without noise.

Paper:
    Tan et al., "Synthesizing Privacy-Preserving Text Data via Finetuning without Finetuning
    Billion-Scale LLMs" (CTCL, 2025), section 3.2: 1,300 topics of Wikipedia, ten keywords each.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import expanded, replacing
from flower_privsyn.queries import nearest_candidates

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: The topics that ship with the package.
BUNDLED: Final = Path(__file__).parents[1] / "data" / "topics" / "topics.npz"

#: What an embedder makes of it says whether topics are its own: another precision moves a vector
#: by 1e-4 of its length, another model by more than half.
_PROBE: Final = "The quick brown fox jumps over the lazy dog."
_LEAST_COSINE: Final = 0.99


@dataclass(frozen=True, kw_only=True, eq=False)
class Topics:
    """Topics of one coarseness.

    Attributes:
        centres: (k, d) float32, of length 1.
        keywords: of each topic, the most telling first; at least one.
        shares: (k,) of the public documents; adds up to 1.
    """

    centres: Float32Array
    keywords: tuple[tuple[str, ...], ...]
    shares: Float64Array

    def __post_init__(self) -> None:
        """Refuse what no condition could be made of."""
        for number, words in enumerate(self.keywords):
            if not words:
                raise ConfigError(
                    f"topic {number} of {len(self)} has no keywords: make fewer topics, or of "
                    "more documents"
                )

    def __len__(self) -> int:
        return len(self.centres)

    def nearest(self, embeddings: Float32Array) -> IntArray:
        """The topic of each embedding, (n,): the one with the nearest centre."""
        return nearest_candidates(embeddings, self.centres)

    def digest(self) -> str:
        """Of the centres: what a histogram counted."""
        return hashlib.blake2b(self.centres.tobytes(), digest_size=16).hexdigest()

    def conditions(self, *, document_type: str = "") -> list[str]:
        """What stands before a text of each topic, for a generator to go on with."""
        return [condition(words, document_type=document_type) for words in self.keywords]


@dataclass(frozen=True, kw_only=True, eq=False)
class TopicHierarchy:
    """Topics of several coarsenesses; every finer one falls into one of the next coarser.

    Attributes:
        levels: from few topics to many.
        parents: for every level but the first, (k,) which topic of the level before each one
            falls into.
        probe: (d,) float32, what the embedding model made of a sentence of its own.
        about: where the topics come from, for people.
    """

    levels: tuple[Topics, ...]
    parents: tuple[IntArray, ...]
    probe: Float32Array
    about: str = ""

    @property
    def counts(self) -> tuple[int, ...]:
        """How many topics each level has."""
        return tuple(map(len, self.levels))

    def at(self, count: int) -> Topics:
        """The level of so many topics.

        Raises:
            ConfigError: there is none.
        """
        for level in self.levels:
            if len(level) == count:
                return level
        known = ", ".join(map(str, self.counts))
        raise ConfigError(f"num-topics must be one of {known}, which the topics have, got {count}")

    def check_embedder(self, embedder: Embedder, *, setting: str) -> None:
        """Refuse topics that were made with another embedding model.

        Args:
            embedder: that embeds what topics are looked up for.
            setting: what named the topics, for the sentence.

        Raises:
            ConfigError: they were.
        """
        alike = 0.0
        if embedder.dimension == len(self.probe):
            found = probe_of(embedder).astype(np.float64)
            length = float(np.linalg.norm(found) * np.linalg.norm(self.probe))
            alike = float(found @ self.probe) / max(length, 1e-30)
        if alike < _LEAST_COSINE:
            raise ConfigError(
                f"{setting} were made with another embedding model than the run's: make topics "
                "with it (make_topics), or use the model they were made with"
            )

    def save(self, path: Path) -> None:
        """Write one `.npz` file; centres in half precision."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "probe": self.probe.astype(np.float32),
            "about": _bytes(self.about),
            "counts": np.array(self.counts, dtype=np.int64),
        }
        for place, level in enumerate(self.levels):
            arrays[f"centres-{len(level)}"] = level.centres.astype(np.float16)
            arrays[f"keywords-{len(level)}"] = _bytes(level.keywords)
            arrays[f"shares-{len(level)}"] = level.shares.astype(np.float32)
            if place:
                arrays[f"parents-{len(level)}"] = self.parents[place - 1].astype(np.int32)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)


def condition(keywords: Sequence[str], *, document_type: str = "") -> str:
    """What stands before a document: its type, where it has one, and its keywords.

    The document follows the last newline. privsyn-lm has been trained on documents after it.

    Args:
        keywords: in any order.
        document_type: in public words, such as "abstract of a paper"; "" for none.

    References:
        Tan et al. 2025, sections 3.1 and 3.3.
    """
    kind = f"Document Type: {document_type}\n" if document_type else ""
    return f"{kind}Keywords: {', '.join(keywords)}\nDocument:\n"


def check_document_type(key: str, document_type: str) -> None:
    """Refuse words for documents that would be more than a line of a condition.

    Args:
        key: what the setting is called.
        document_type: in public words; "" for none.

    Raises:
        ConfigError: a line break, or another character that cannot be printed, is in them.
    """
    if not document_type.isprintable():
        raise ConfigError(f"{key} must be words in one line, got {document_type!r}")


def quotas(weights: npt.NDArray[Any], total: int) -> IntArray:
    """Deal a number of texts to topics by weight, exactly: by largest remainders.

    Args:
        weights: (k,) a noisy histogram; what is below zero counts as zero.
        total: texts, >= 1.

    Returns:
        (k,) whole numbers that add up to `total`, each less than 1 from its share; of equal
        remainders the first ones are rounded up.

    Raises:
        ConfigError: no topic has a weight above zero, or one is not finite.
    """
    check_whole("texts", total, ge=1)
    positive = np.maximum(np.asarray(weights, dtype=np.float64), 0.0)
    if not np.isfinite(positive).all() or not positive.any():
        raise ConfigError(
            f"none of {len(positive)} topics has a finite count above zero: there is nothing to "
            "deal texts by"
        )
    shares = positive / positive.max()
    shares *= total / shares.sum()
    found: IntArray = np.floor(shares).astype(np.int64)
    order = np.argsort(found - shares, kind="stable")
    found[order[: total - int(found.sum())]] += 1
    return found


def load_topics(source: str = "bundled") -> TopicHierarchy:
    """Read topics.

    Args:
        source: "bundled", or a file that `TopicHierarchy.save` wrote.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    path = BUNDLED if source == "bundled" else expanded(source)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        counts = arrays["counts"].tolist()
        return TopicHierarchy(
            levels=tuple(_level(arrays, count) for count in counts),
            parents=tuple(arrays[f"parents-{count}"].astype(np.int64) for count in counts[1:]),
            probe=arrays["probe"].astype(np.float32),
            about=str(json.loads(arrays["about"].tobytes())),
        )
    except ConfigError as error:
        raise ConfigError(f'topics = "{source}": {error}') from error
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
        BadZipFile,
    ) as error:
        reason = getattr(error, "strerror", None) or "it is no file of topics"
        raise ConfigError(f'topics = "{source}": {path} cannot be read ({reason})') from error


def _level(arrays: dict[str, npt.NDArray[Any]], count: int) -> Topics:
    centres = arrays[f"centres-{count}"].astype(np.float32)
    keywords = json.loads(arrays[f"keywords-{count}"].tobytes())
    shares = arrays[f"shares-{count}"].astype(np.float64)
    return Topics(
        centres=unit(centres),
        keywords=tuple(tuple(map(str, words)) for words in keywords),
        shares=shares / max(shares.sum(), np.finfo(np.float64).tiny),
    )


def _bytes(value: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value, ensure_ascii=False).encode(), dtype=np.uint8)


def probe_of(embedder: Embedder) -> Float32Array:
    """(d,) float32, what an embedding model makes of a sentence: whose topics they are."""
    found: Float32Array = np.asarray(embedder.embed([_PROBE])[0], dtype=np.float32)
    return found


def unit(rows: Float32Array) -> Float32Array:
    """(n, d) rows scaled to length 1; a row of zeros stays one."""
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    units: Float32Array = (rows / np.maximum(lengths, 1e-30)).astype(np.float32)
    return units
