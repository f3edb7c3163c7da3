"""Topics: what public text is about, each a point in the embedding space with words for it.

    make_topics(documents, embedder=load_embedder("all-MiniLM-L6-v2")).save(file)

One passage of each document is embedded and clustered; the words of a cluster are those that its
passages have more of than all passages do (class-based TF-IDF, as in BERTopic). One file has
several levels: few coarse topics, which many users' votes fill, and finer ones. The text must be
nobody's private text: keywords go to every node and stand before every text, without noise.

Papers:
    Tan et al., "Synthesizing Privacy-Preserving Text Data via Finetuning without Finetuning
    Billion-Scale LLMs" (CTCL, 2025), section 3.2: 1,300 topics of Wikipedia, ten keywords each.
    Grootendorst, "BERTopic: Neural topic modeling with a class-based TF-IDF procedure" (2022).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import check_whole
from flower_privsyn.data.chunking import Chunking
from flower_privsyn.embedding import Embedder
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import replacing, user_path
from flower_privsyn.models.library import import_extra
from flower_privsyn.queries import nearest_candidates

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: The topics that ship with the package.
BUNDLED: Final = Path(__file__).parents[1] / "data" / "topics" / "topics.npz"

#: What an embedder makes of it says whether topics are its own: another precision moves a vector
#: by 1e-4 of its length, another model by more than half.
_PROBE: Final = "The quick brown fox jumps over the lazy dog."
_LEAST_COSINE: Final = 0.99

#: Keywords of a topic, as in the paper.
_NUM_KEYWORDS: Final = 10

#: Words that may be keywords: of four letters or more, in some documents and not in too many.
_WORD: Final = r"(?u)\b[^\W\d_]{4,}\b"
_LEAST_DOCUMENTS: Final = 5
_COMMON: Final = 0.25

#: Topics of the levels, coarse to fine, for a corpus of some ten thousand documents.
COUNTS: Final = (32, 64, 128, 256)


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

    def __len__(self) -> int:
        return len(self.centres)

    def nearest(self, embeddings: Float32Array) -> IntArray:
        """The topic of each embedding, (n,): the one with the nearest centre."""
        return nearest_candidates(embeddings, self.centres)

    def digest(self) -> str:
        """Of the centres: what a histogram counted."""
        return hashlib.blake2b(self.centres.tobytes(), digest_size=16).hexdigest()

    def conditions(self) -> list[str]:
        """What stands before a text of each topic, for a generator to go on with."""
        return [condition(words) for words in self.keywords]


@dataclass(frozen=True, kw_only=True, eq=False)
class TopicHierarchy:
    """Topics of several coarsenesses; every finer one falls into one of the next coarser.

    Attributes:
        levels: from few topics to many.
        probe: (d,) float32, what the embedding model made of a sentence of its own.
    """

    levels: tuple[Topics, ...]
    probe: Float32Array

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
            "counts": np.array(self.counts, dtype=np.int64),
        }
        for level in self.levels:
            arrays[f"centres-{len(level)}"] = level.centres.astype(np.float16)
            arrays[f"keywords-{len(level)}"] = _bytes(level.keywords)
            arrays[f"shares-{len(level)}"] = level.shares.astype(np.float32)
        with replacing(path) as file:
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
    path = BUNDLED if source == "bundled" else user_path(source)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return TopicHierarchy(
            levels=tuple(_level(arrays, count) for count in arrays["counts"].tolist()),
            probe=arrays["probe"].astype(np.float32),
        )
    except ConfigError as error:
        raise ConfigError(f'topics = "{source}": {error}') from error
    except Exception as error:  # whatever its bytes make of the library
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


# ---- making them


def make_topics(
    documents: Iterable[str],
    *,
    embedder: Embedder,
    counts: Sequence[int] = COUNTS,
    seed: int = 0,
    max_tokens: int = 64,
    progress: Callable[[int], None] | None = None,
) -> TopicHierarchy:
    """Make topics of one passage of each document; `save` writes what the setting `topics` takes.

    Passages are clustered by k-means; coarse topics are clusters of fine ones.

    Args:
        documents: public, whole, each once; some thousands, of the kind that the users write.
        embedder: of all of them, the run's.
        counts: topics of every level, ascending.
        seed: of where k-means begins and of where passages do, 0 to 2^32 - 1.
        max_tokens: of a passage, >= 1; the run's.
        progress: called with the number of texts that were embedded since the last call.

    Raises:
        ConfigError: there are fewer different texts than topics, or no words for keywords; a topic
            has none; the counts do not ascend.
        MissingExtraError: scikit-learn is not installed.
    """
    cluster = import_extra("sklearn.cluster", needed_by="make_topics", extra="evaluation")
    from sklearn.feature_extraction.text import CountVectorizer

    if not counts or sorted(set(counts)) != list(counts) or counts[0] < 1:
        raise ConfigError(f"counts must ascend, and there must be one, got {list(counts)}")
    random, cut = np.random.default_rng(seed), Chunking(max_tokens=max_tokens)
    pieces = cut.pieces(list(documents), tokenizer=embedder.tokenizer)
    texts = [found[int(random.integers(len(found)))] for found in pieces if found]
    least = min(_LEAST_DOCUMENTS, max(1, len(texts) // 20))
    most = max(least, int(_COMMON * len(texts)))
    counter = CountVectorizer(token_pattern=_WORD, min_df=least, max_df=most, stop_words="english")
    try:
        words = counter.fit_transform(texts)  # (n, v), sparse
    except ValueError:
        raise ConfigError(
            f"no word of four letters or more, between blanks, is in {least} to {most} of "
            f"{len(texts)} texts: topics of them would have no keywords"
        ) from None
    names: list[str] = counter.get_feature_names_out().tolist()
    vectors = unit(np.asarray(embedder.embed(texts, progress=progress), dtype=np.float32))
    different = len(np.unique(vectors, axis=0))
    if different < counts[-1]:
        raise ConfigError(f"counts {counts[-1]}: of {len(texts)} passages only {different} differ")
    levels: list[Topics] = []
    belongs: IntArray = np.arange(len(texts))
    points, weights = vectors, None
    for count in reversed(counts):
        found = cluster.KMeans(count, n_init=1, random_state=seed).fit(
            points, sample_weight=weights
        )
        # Equal vectors may leave a cluster without any.
        belongs = np.unique(found.labels_, return_inverse=True)[1].astype(np.int64)[belongs]
        levels.insert(0, _named(vectors, belongs, words, names))
        if not all(levels[0].keywords):
            raise ConfigError(f"counts {count}: a topic has no keywords: fewer, or more documents")
        points, weights = levels[0].centres, levels[0].shares
    return TopicHierarchy(levels=tuple(levels), probe=probe_of(embedder))


def _named(vectors: Float32Array, belongs: IntArray, words: Any, names: Sequence[str]) -> Topics:
    """Topics of clusters: means, shares, and the words with the largest class-based TF-IDF.

    tf(word, topic) log(1 + A / f(word)), with A the words of a topic on average and f a word's
    number in all topics (Grootendorst 2022). A plural of a word that is there is left out.

    Args:
        vectors: (n, d) of the texts.
        belongs: (n,) the topic of each.
        words: (n, v) sparse, how often each has each word.
        names: (v,) the words.
    """
    from scipy import sparse  # comes with scikit-learn

    count, places = int(belongs.max()) + 1, np.arange(len(belongs))
    centres = np.zeros((count, vectors.shape[1]), dtype=np.float64)
    np.add.at(centres, belongs, vectors.astype(np.float64))
    sizes = np.bincount(belongs, minlength=count)
    member = sparse.csr_matrix((np.ones(len(places)), (belongs, places)), (count, len(places)))
    frequency = np.asarray((member @ words).todense(), dtype=np.float64)  # (k, v)
    everywhere = np.maximum(frequency.sum(axis=0), 1.0)
    telling = frequency * np.log1p(frequency.sum() / count / everywhere)
    keywords = []
    for row in telling:
        chosen: list[str] = []
        for place in np.argsort(-row, kind="stable")[: 4 * _NUM_KEYWORDS]:
            word = names[place]
            stems = {word.removesuffix("s"), word.removesuffix("es"), word + "s", word + "es"}
            if row[place] > 0 and not stems & set(chosen):
                chosen.append(word)
        keywords.append(tuple(chosen[:_NUM_KEYWORDS]))
    return Topics(
        centres=unit(centres.astype(np.float32)),
        keywords=tuple(keywords),
        shares=sizes / sizes.sum(),
    )
