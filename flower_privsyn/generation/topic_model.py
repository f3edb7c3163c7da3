"""Making topics of public text: what `privsyn topics` does, and what made the bundled ones.

One passage of each document is embedded and clustered; the words of a cluster are those that its
passages have more of than all passages do (class-based TF-IDF, as in BERTopic). A passage of either
half of other documents is then looked up: how much oftener the two fall into one topic than those
of two documents says for how many topics there is text enough.

Papers:
    Tan et al., "Synthesizing Privacy-Preserving Text Data via Finetuning without Finetuning
    Billion-Scale LLMs" (CTCL, 2025), section 3.2.
    Grootendorst, "BERTopic: Neural topic modeling with a class-based TF-IDF procedure" (2022).
    Campello, Moulavi, Sander, "Density-Based Clustering Based on Hierarchical Density Estimates"
    (HDBSCAN, PAKDD 2013).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import check_whole
from flower_privsyn.data.cut import Cut
from flower_privsyn.errors import ConfigError, MissingExtraError
from flower_privsyn.generation.topics import TopicHierarchy, Topics, probe_of, unit

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.host.progress import ProgressReporter

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

Clustering = Literal["k-means", "hdbscan"]

#: Keywords of a topic, as in the paper.
NUM_KEYWORDS: Final = 10

#: Words that may be keywords: of four letters or more, in some documents and not in too many.
_WORD: Final = r"(?u)\b[a-zA-Z]{4,}\b"
_LEAST_DOCUMENTS: Final = 5
_COMMON: Final = 0.25

#: Dimensions in which densities are estimated: in hundreds, all distances are alike.
_DENSE: Final = 8

#: Topics of the levels, coarse to fine, for a corpus of some ten thousand documents.
COUNTS: Final = (32, 64, 128, 256)

#: Letters that hold a token of any text of the bundled corpus, and then some.
_LETTERS_PER_TOKEN: Final = 12.5


def passage_of_each(
    documents: Iterable[str], *, tokenizer: Any, seed: int, max_tokens: int = 64
) -> list[str]:
    """One passage of each document, begun at a word drawn at random and cut as samples are.

    Args:
        documents: whole, in an order that does not change.
        tokenizer: the embedding model's.
        seed: of where passages begin.
        max_tokens: of a passage, >= 1.

    Returns:
        The passages in the order of the documents; of a document without text there is none.
    """
    found = _passages(documents, tokenizer=tokenizer, seed=seed, max_tokens=max_tokens)
    return [passage for passage in found if passage]


def two_passages_of_each(
    documents: Sequence[str], *, tokenizer: Any, seed: int, max_tokens: int = 64
) -> tuple[list[str], list[str]]:
    """A passage of either half of each document, so that no word is in both.

    Args:
        documents: as for `passage_of_each`.
        tokenizer: as for `passage_of_each`.
        seed: as for `passage_of_each`.
        max_tokens: as for `passage_of_each`.

    Returns:
        The passages of the first halves, and those of the second, of the same documents: those
        whose halves both have text.
    """
    words = [document.split() for document in documents]
    halves = (
        [" ".join(own[: len(own) // 2]) for own in words],
        [" ".join(own[len(own) // 2 :]) for own in words],
    )
    first, second = (
        _passages(half, tokenizer=tokenizer, seed=seed + number, max_tokens=max_tokens)
        for number, half in enumerate(halves)
    )
    both = [pair for pair in zip(first, second, strict=True) if all(pair)]
    return [one for one, _ in both], [two for _, two in both]


def _passages(documents: Iterable[str], *, tokenizer: Any, seed: int, max_tokens: int) -> list[str]:
    """A passage of every document; "" where there is no text."""
    random = np.random.default_rng(seed)
    letters = int(_LETTERS_PER_TOKEN * check_whole("--max-tokens", max_tokens, ge=1))
    windows = []
    for document in documents:
        text = " ".join(document.split())
        start = int(random.integers(max(1, len(text) - letters)))
        start = text.find(" ", start) + 1 if start else 0
        windows.append(text[start : start + letters])
    pieces = Cut(max_tokens=max_tokens).pieces(windows, tokenizer=tokenizer)
    return [found[0] if found else "" for found in pieces]


@dataclass(frozen=True, kw_only=True, eq=False)
class TopicModel:
    """How topics are made of public text.

    Attributes:
        counts: topics of every level, ascending. With "hdbscan" of every coarser level: the finest
            has as many as there are dense places, and counts that are not below that are left out.
        clustering: "k-means", or "hdbscan" as in the paper, whose texts outside of every dense
            place count for no topic.
        least_texts: with "hdbscan", texts of the smallest dense place, >= 2.
        seed: of where k-means begins and of where passages do, 0 to 2^32 - 1.
    """

    counts: tuple[int, ...] = COUNTS
    clustering: Clustering = "k-means"
    least_texts: int = 30
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no clustering takes, by the names of the command's options."""
        counts = [check_whole("--counts", count, ge=1) for count in self.counts]
        if not counts or sorted(set(counts)) != counts:
            told = " ".join(map(str, counts)) or "none"
            raise ConfigError(f"--counts must ascend, and there must be one, got {told}")
        check_whole("--least-texts", self.least_texts, ge=2)
        check_whole("--seed", self.seed, ge=0, le=2**32 - 1)

    def check(self, texts: Sequence[str]) -> None:
        """Refuse texts of which no topics can be made, before they are embedded.

        Args:
            texts: (n,) public.

        Raises:
            ConfigError: there are fewer texts than topics, or no words for keywords.
            MissingExtraError: scikit-learn is not installed.
        """
        self._words_of(texts)

    def _words_of(self, texts: Sequence[str]) -> _Words:
        """The words of texts that are enough to be clustered."""
        least = self.counts[-1] if self.clustering == "k-means" else self.least_texts
        if len(texts) < max(2, least):
            what = "--counts" if self.clustering == "k-means" else "--least-texts"
            raise ConfigError(
                f"{what} {least} needs at least {max(2, least)} passages to cluster, and there are "
                f"{len(texts)}"
            )
        return _Words(texts)

    def fit(
        self, texts: Sequence[str], embeddings: Float32Array, *, probe: Float32Array, about: str
    ) -> MadeTopics:
        """Cluster public texts and name the clusters.

        Args:
            texts: (n,) public.
            embeddings: (n, d) of the texts.
            probe: from `probe_of`, of the model that embedded them.
            about: where the texts come from.

        Raises:
            ConfigError: as of `check`; a number of embeddings that is not that of the texts; fewer
                different ones than topics; a topic has no keywords; HDBSCAN finds no two dense
                places.
            MissingExtraError: scikit-learn is not installed.
        """
        words = self._words_of(texts)
        if len(embeddings) != len(texts):
            raise ConfigError(f"{len(texts)} texts have {len(embeddings)} embeddings")
        vectors = unit(np.asarray(embeddings, dtype=np.float32))
        counts = self.counts
        if self.clustering == "hdbscan":
            belongs = self._dense(vectors)
            finest = int(belongs.max()) + 1
            counts = (*(count for count in counts if count < finest), finest)
        else:
            different = len(np.unique(vectors, axis=0))
            if different < counts[-1]:
                raise ConfigError(
                    f"--counts {counts[-1]}: of {len(texts)} passages only {different} differ"
                )
            belongs = self._clusters(vectors, counts[-1], None)
        outside = int((belongs < 0).sum())
        levels = [_named(vectors, belongs, words)]
        parents: list[IntArray] = []
        for count in reversed(counts[:-1]):
            finer = levels[0]
            parent = self._clusters(finer.centres, count, finer.shares)
            belongs = np.where(belongs < 0, -1, parent[belongs])
            levels.insert(0, _named(vectors, belongs, words))
            parents.insert(0, parent)
        hierarchy = TopicHierarchy(
            levels=tuple(levels), parents=tuple(parents), probe=probe, about=about
        )
        return MadeTopics(hierarchy=hierarchy, inside=len(texts) - outside, outside=outside)

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
            min_samples=min(5, len(vectors)),
            cluster_selection_method="leaf",
            copy=True,
        )
        found: IntArray = model.fit(reduced).labels_.astype(np.int64)
        if found.max() < 1:
            raise ConfigError(
                f"HDBSCAN finds {found.max() + 1} dense places of --least-texts "
                f"{self.least_texts} in {len(vectors)}: lower it, or use k-means"
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
                f"no word of four letters or more, between blanks, is in {least} to {most} of "
                f"{len(texts)} texts: topics of them would have no keywords"
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
        centres=unit(centres.astype(np.float32)),
        keywords=tuple(words.of_topics(belongs, count)),
        shares=sizes / sizes.sum(),
    )


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


@dataclass(frozen=True, kw_only=True)
class Supported:
    """What a corpus gives topics of one coarseness to go by.

    Attributes:
        topics: how many.
        smallest: passages of the smallest topic.
        median: passages of the topic in the middle.
        same: share of other documents whose two passages fall into one topic.
        chance: the same of passages of two documents.
    """

    topics: int
    smallest: int
    median: int
    same: float
    chance: float


@dataclass(frozen=True, kw_only=True, eq=False)
class MadeTopics:
    """Topics, and what they were made of.

    Attributes:
        hierarchy: the topics.
        inside: passages that are in one.
        outside: passages that are in none.
    """

    hierarchy: TopicHierarchy
    inside: int
    outside: int

    def supported(self, first: Float32Array, second: Float32Array) -> list[Supported]:
        """Look up two passages of each document that topics were not made of.

        Args:
            first: (m, d) embeddings of a passage of each of the documents, m >= 1.
            second: (m, d) of another one of each.

        Returns:
            One of every level.
        """
        found = []
        for level in self.hierarchy.levels:
            sizes = np.sort(level.shares) * self.inside
            one, two = level.nearest(first), level.nearest(second)
            here, there = Counter(one.tolist()), Counter(two.tolist())
            found.append(
                Supported(
                    topics=len(level),
                    smallest=round(float(sizes[0])),
                    median=round(float(np.median(sizes))),
                    same=float(np.mean(one == two)),
                    chance=sum(here[topic] * there[topic] for topic in here) / len(one) / len(two),
                )
            )
        return found


def make_topics(
    model: TopicModel,
    documents: Iterable[str],
    apart: Sequence[str],
    *,
    embedder: Embedder,
    source: str,
    max_tokens: int,
    progress: ProgressReporter,
) -> tuple[MadeTopics, list[Supported]]:
    """Make topics of one passage of each document, and look up others in them.

    Args:
        model: how.
        documents: public, whole, each once.
        apart: public documents that are not clustered.
        embedder: of all of them.
        source: where they come from, in words.
        max_tokens: of a passage.
        progress: where "Embed passages" and "Cluster them" report.

    Returns:
        The topics, and what there is for them to go by at every level; empty where `apart` has no
        document with text in both halves.

    Raises:
        ConfigError: as of `TopicModel.check`, before anything is embedded, and of
            `TopicModel.fit`.
        MissingExtraError: scikit-learn is not installed.
    """
    cut: dict[str, Any] = {"tokenizer": embedder.tokenizer, "max_tokens": max_tokens}
    passages = passage_of_each(documents, seed=model.seed, **cut)
    model.check(passages)
    halves = two_passages_of_each(apart, seed=model.seed + 1, **cut)
    with progress.stage("Embed passages", len(passages) + 2 * len(halves[0])) as stage:
        vectors = embedder.embed(passages, progress=stage.update)
        first, second = (embedder.embed(half, progress=stage.update) for half in halves)
    with progress.stage("Cluster them"):
        made = model.fit(
            passages,
            vectors,
            probe=probe_of(embedder),
            about=f"{model.clustering} of {len(passages)} passages of {source}",
        )
    return made, made.supported(first, second) if len(first) else []
