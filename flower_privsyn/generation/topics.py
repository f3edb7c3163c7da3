"""Topics: what public text is about, each a point in the embedding space with words for it.

Clusters of the embeddings of a public corpus; the words of each are those that its texts have more
of than all texts do (class-based TF-IDF, as in BERTopic). Topics are made once, of public text
alone (`scripts/public_models/topics.py`), and lie in one file: few coarse ones, which many users'
votes fill, and the finer ones that each of them falls into.

Papers:
    Tan et al., "Synthesizing Privacy-Preserving Text Data via Finetuning without Finetuning
    Billion-Scale LLMs" (CTCL, 2025), section 3.2: 1,300 topics of Wikipedia, ten keywords each.
    Grootendorst, "BERTopic: Neural topic modeling with a class-based TF-IDF procedure" (2022).
    Campello, Moulavi, Sander, "Density-Based Clustering Based on Hierarchical Density Estimates"
    (HDBSCAN, PAKDD 2013).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import ConfigError, MissingExtraError
from flower_privsyn.files import expanded, replacing
from flower_privsyn.queries.nearest_neighbor import nearest_candidates

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

Clustering = Literal["k-means", "hdbscan"]

#: The topics that ship with the package.
BUNDLED: Final = Path(__file__).parents[1] / "data" / "topics" / "topics.npz"

#: Keywords of a topic, as in the paper.
NUM_KEYWORDS: Final = 10

#: What an embedder makes of it says whether topics are its own: another precision moves a vector
#: by 1e-4 of its length, another model by more than half.
_PROBE: Final = "The quick brown fox jumps over the lazy dog."
_LEAST_COSINE: Final = 0.99

#: Words that may be keywords: of four letters or more, in some documents and not in too many.
_WORD: Final = r"(?u)\b[a-zA-Z]{4,}\b"
_LEAST_DOCUMENTS: Final = 5
_COMMON: Final = 0.25

#: Dimensions in which densities are estimated: in hundreds, all distances are alike.
_DENSE: Final = 8


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
        """Refuse what no histogram and no condition could be made of."""
        if not len(self.centres) == len(self.keywords) == len(self.shares) >= 1:
            raise ConfigError(
                f"topics need a centre, keywords and a share each, got {len(self.centres)}, "
                f"{len(self.keywords)} and {len(self.shares)}"
            )
        for number, words in enumerate(self.keywords):
            if not words or not all(word.strip() for word in words):
                raise ConfigError(
                    f"topic {number} of {len(self)} has no keywords: make fewer topics, or of "
                    "more documents"
                )
            if not all(word.isprintable() for word in words):
                # They stand in a line of a condition, and conditions travel as one text.
                raise ConfigError(
                    f"topic {number} of {len(self)} has a keyword with a line break or another "
                    "character that cannot be printed"
                )
        if self.centres.ndim != 2 or not np.isfinite(self.centres).all():
            raise ConfigError("the centres of topics must be finite vectors of one length")
        if not (np.isfinite(self.shares).all() and self.shares.min() >= 0.0 and self.shares.any()):
            raise ConfigError(
                "the shares of topics must be numbers of at least 0, one of them above"
            )

    def __len__(self) -> int:
        return len(self.centres)

    def nearest(self, embeddings: Float32Array) -> IntArray:
        """The topic of each embedding, (n,): the one with the nearest centre."""
        return nearest_candidates(embeddings, self.centres)

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

    def __post_init__(self) -> None:
        """Refuse levels that are not nested."""
        counts = self.counts
        if not counts or sorted(set(counts)) != list(counts):
            raise ConfigError(f"topics need levels from few to many, got {list(counts)}")
        nested = len(self.parents) == len(counts) - 1 and all(
            parents.shape == (fine,) and parents.min() >= 0 and parents.max() < coarse
            for parents, (coarse, fine) in zip(
                self.parents, itertools.pairwise(counts), strict=True
            )
        )
        if not nested:
            raise ConfigError("every topic must fall into one of the next coarser level")
        if any(level.centres.shape[1:] != self.probe.shape for level in self.levels):
            raise ConfigError("the centres of topics must be as long as what the embedder makes")

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
                "with it by scripts/public_models/topics.py, or use the model they were made with"
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
        centres=_unit(centres),
        keywords=tuple(tuple(map(str, words)) for words in keywords),
        shares=shares / max(shares.sum(), np.finfo(np.float64).tiny),
    )


def _bytes(value: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value, ensure_ascii=False).encode(), dtype=np.uint8)


def probe_of(embedder: Embedder) -> Float32Array:
    """(d,) float32, what an embedding model makes of a sentence: whose topics they are."""
    found: Float32Array = np.asarray(embedder.embed([_PROBE])[0], dtype=np.float32)
    return found


# ---- making them -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class TopicModel:
    """How topics are made of public text.

    Attributes:
        counts: topics of every level, ascending. With "hdbscan" the last one is not asked for:
            the finest level has as many as there are dense places.
        clustering: "k-means", or "hdbscan" as in the paper, whose texts outside of every dense
            place count for no topic.
        least_texts: with "hdbscan", texts of the smallest dense place.
        seed: of where k-means begins.
    """

    counts: tuple[int, ...] = (64, 256)
    clustering: Clustering = "k-means"
    least_texts: int = 30
    seed: int = 0

    def fit(
        self, texts: Sequence[str], embeddings: Float32Array, *, probe: Float32Array, about: str
    ) -> TopicHierarchy:
        """Cluster public texts and name the clusters.

        Args:
            texts: (n,) public.
            embeddings: (n, d) of the texts.
            probe: from `probe_of`, of the model that embedded them.
            about: where the texts come from.

        Raises:
            ConfigError: there are fewer texts than topics, or a topic has no keywords.
            MissingExtraError: scikit-learn is not installed.
        """
        counts = tuple(check_whole("topics", count, ge=1) for count in self.counts)
        if len(texts) < max(counts):
            raise ConfigError(
                f"{max(counts)} topics need at least as many documents, got {len(texts)}"
            )
        if len(embeddings) != len(texts):
            raise ConfigError(f"{len(texts)} texts have {len(embeddings)} embeddings")
        vectors = _unit(np.asarray(embeddings, dtype=np.float32))
        if self.clustering == "hdbscan":
            belongs = self._dense(vectors)
            counts = (*(count for count in counts if count < belongs.max()), int(belongs.max()) + 1)
        else:
            belongs = self._clusters(vectors, counts[-1], None)
        words = _Words(texts)
        levels = [_named(vectors, belongs, words)]
        parents: list[IntArray] = []
        for count in reversed(counts[:-1]):
            finer = levels[0]
            parent = self._clusters(finer.centres, count, finer.shares)
            belongs = np.where(belongs < 0, -1, parent[belongs])
            levels.insert(0, _named(vectors, belongs, words))
            parents.insert(0, parent)
        return TopicHierarchy(
            levels=tuple(levels), parents=tuple(parents), probe=probe, about=about
        )

    def _clusters(
        self, vectors: Float32Array, count: int, weights: Float64Array | None
    ) -> IntArray:
        """(n,) the cluster of each vector, by k-means; none is empty."""
        cluster = _sklearn("cluster")
        model = cluster.KMeans(count, n_init=1, random_state=self.seed)
        found = model.fit(vectors, sample_weight=weights).labels_
        # Equal vectors may leave a cluster without any.
        return np.unique(found, return_inverse=True)[1].astype(np.int64)

    def _dense(self, vectors: Float32Array) -> IntArray:
        """(n,) the dense place of each vector, by HDBSCAN; -1 for those in none."""
        cluster, decomposition = _sklearn("cluster"), _sklearn("decomposition")
        dimensions = min(_DENSE, *vectors.shape)
        reduced = decomposition.PCA(dimensions, random_state=self.seed).fit_transform(vectors)
        model = cluster.HDBSCAN(
            min_cluster_size=self.least_texts,
            min_samples=5,
            cluster_selection_method="leaf",
            copy=True,
        )
        found: IntArray = model.fit(reduced).labels_.astype(np.int64)
        if found.max() < 1:
            raise ConfigError(
                f"HDBSCAN finds {found.max() + 1} dense places of {self.least_texts} texts in "
                f"{len(vectors)}: lower the least number of texts, or use k-means"
            )
        return found


class _Words:
    """How often each document has each word that may be a keyword.

    Args:
        texts: (n,).
    """

    def __init__(self, texts: Sequence[str]) -> None:
        text = _sklearn("feature_extraction.text")
        least = min(_LEAST_DOCUMENTS, max(1, len(texts) // 20))
        most = max(least, int(_COMMON * len(texts)))
        counter = text.CountVectorizer(
            token_pattern=_WORD, min_df=least, max_df=most, stop_words="english"
        )
        try:
            self.counts = counter.fit_transform(texts)  # (n, v), sparse
        except ValueError:
            raise ConfigError(
                f"no word is in {least} to {most} of {len(texts)} texts: topics of them would "
                "have no keywords"
            ) from None
        self.names: list[str] = counter.get_feature_names_out().tolist()

    def of_topics(self, belongs: IntArray, count: int) -> list[tuple[str, ...]]:
        """Of each topic the words with the largest class-based TF-IDF.

        tf(word, topic) log(1 + A / f(word)), with A the words of a topic on average and f a word's
        number in all topics (Grootendorst 2022). A plural of a word that is there is left out.
        """
        sparse = _scipy_sparse()
        inside = np.flatnonzero(belongs >= 0)
        member = sparse.csr_matrix(
            (np.ones(len(inside)), (belongs[inside], inside)), shape=(count, len(belongs))
        )
        frequency = np.asarray((member @ self.counts).todense(), dtype=np.float64)  # (k, v)
        everywhere = np.maximum(frequency.sum(axis=0), 1.0)
        telling = frequency * np.log1p(frequency.sum() / count / everywhere)
        found = []
        for row in telling:
            chosen: list[str] = []
            for place in np.argsort(-row, kind="stable")[: 4 * NUM_KEYWORDS]:
                word = self.names[place]
                stems = {word.removesuffix("s"), word.removesuffix("es"), word + "s", word + "es"}
                if row[place] > 0 and not stems & set(chosen):
                    chosen.append(word)
            found.append(tuple(chosen[:NUM_KEYWORDS]))
        return found


def _named(vectors: Float32Array, belongs: IntArray, words: _Words) -> Topics:
    """Topics of clusters: means, shares and keywords."""
    count = int(belongs.max()) + 1
    inside = belongs >= 0
    centres = np.zeros((count, vectors.shape[1]), dtype=np.float64)
    np.add.at(centres, belongs[inside], vectors[inside].astype(np.float64))
    sizes = np.bincount(belongs[inside], minlength=count)
    return Topics(
        centres=_unit(centres.astype(np.float32)),
        keywords=tuple(words.of_topics(belongs, count)),
        shares=sizes / sizes.sum(),
    )


def _unit(rows: Float32Array) -> Float32Array:
    """Rows scaled to length 1."""
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    units: Float32Array = (rows / np.maximum(lengths, 1e-30)).astype(np.float32)
    return units


def _sklearn(module: str) -> Any:
    """A module of scikit-learn."""
    from importlib import import_module

    try:
        return import_module(f"sklearn.{module}")
    except ImportError as error:
        raise MissingExtraError(
            "making topics needs scikit-learn: pip install 'flower-privsyn[evaluation]'"
        ) from error


def _scipy_sparse() -> Any:
    from scipy import sparse  # comes with scikit-learn

    return sparse
