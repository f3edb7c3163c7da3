"""Making topics of public text: what made the bundled ones, and makes those of one's own text.

    make_topics(documents, embedder=load_embedder("all-MiniLM-L6-v2"), source="papers").save(file)

One passage of each document is embedded and clustered; the words of a cluster are those that its
passages have more of than all passages do (class-based TF-IDF, as in BERTopic). The text must be
nobody's private text: its words are sent to every node, and no noise protects it.

Papers:
    Tan et al., "Synthesizing Privacy-Preserving Text Data via Finetuning without Finetuning
    Billion-Scale LLMs" (CTCL, 2025), section 3.2.
    Grootendorst, "BERTopic: Neural topic modeling with a class-based TF-IDF procedure" (2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import check_whole
from flower_privsyn.data.cut import Cut
from flower_privsyn.errors import ConfigError, MissingExtraError
from flower_privsyn.generation.topics import TopicHierarchy, Topics, probe_of, unit

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Keywords of a topic, as in the paper.
NUM_KEYWORDS: Final = 10

#: Words that may be keywords: of four letters or more, in some documents and not in too many.
_WORD: Final = r"(?u)\b[a-zA-Z]{4,}\b"
_LEAST_DOCUMENTS: Final = 5
_COMMON: Final = 0.25

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
    random = np.random.default_rng(seed)
    letters = int(_LETTERS_PER_TOKEN * check_whole("max_tokens", max_tokens, ge=1))
    windows = []
    for document in documents:
        text = " ".join(document.split())
        start = int(random.integers(max(1, len(text) - letters)))
        start = text.find(" ", start) + 1 if start else 0
        windows.append(text[start : start + letters])
    pieces = Cut(max_tokens=max_tokens).pieces(windows, tokenizer=tokenizer)
    return [found[0] for found in pieces if found]


@dataclass(frozen=True, kw_only=True, eq=False)
class TopicModel:
    """How topics are made of public text.

    Attributes:
        counts: topics of every level, ascending.
        seed: of where k-means begins and of where passages do, 0 to 2^32 - 1.
    """

    counts: tuple[int, ...] = COUNTS
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no clustering takes."""
        counts = [check_whole("counts", count, ge=1) for count in self.counts]
        if not counts or sorted(set(counts)) != counts:
            told = " ".join(map(str, counts)) or "none"
            raise ConfigError(f"counts must ascend, and there must be one, got {told}")
        check_whole("seed", self.seed, ge=0, le=2**32 - 1)

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
            ConfigError: there are fewer different texts than topics, or no words for keywords; a
                topic has none; the number of embeddings is not that of the texts.
            MissingExtraError: scikit-learn is not installed.
        """
        if len(embeddings) != len(texts):
            raise ConfigError(f"{len(texts)} texts have {len(embeddings)} embeddings")
        words = _Words(texts)
        vectors = unit(np.asarray(embeddings, dtype=np.float32))
        different = len(np.unique(vectors, axis=0))
        if different < self.counts[-1]:
            raise ConfigError(
                f"counts {self.counts[-1]}: of {len(texts)} passages only {different} differ"
            )
        belongs = self._clusters(vectors, self.counts[-1], None)
        levels = [_named(vectors, belongs, words)]
        parents: list[IntArray] = []
        for count in reversed(self.counts[:-1]):
            finer = levels[0]
            parent = self._clusters(finer.centres, count, finer.shares)
            belongs = parent[belongs]
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
        from scipy import sparse  # comes with scikit-learn

        texts = np.arange(len(belongs))
        member = sparse.csr_matrix(
            (np.ones(len(texts)), (belongs, texts)), shape=(count, len(texts))
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
    centres = np.zeros((count, vectors.shape[1]), dtype=np.float64)
    np.add.at(centres, belongs, vectors.astype(np.float64))
    sizes = np.bincount(belongs, minlength=count)
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


def make_topics(
    documents: Iterable[str],
    *,
    embedder: Embedder,
    source: str,
    model: TopicModel | None = None,
    max_tokens: int = 64,
    progress: Callable[[int], None] | None = None,
) -> TopicHierarchy:
    """Make topics of one passage of each document; `save` writes what the setting `topics` takes.

    Args:
        documents: public, whole, each once; some thousands, of the kind that the users write.
        embedder: of all of them, the run's.
        source: where they come from, in words.
        model: how; by default `TopicModel()`.
        max_tokens: of a passage, >= 1; the run's.
        progress: called with the number of texts that were embedded since the last call.

    Raises:
        ConfigError: as of `TopicModel.fit`.
        MissingExtraError: scikit-learn is not installed.
    """
    model = model or TopicModel()
    passages = passage_of_each(
        documents, tokenizer=embedder.tokenizer, seed=model.seed, max_tokens=max_tokens
    )
    return model.fit(
        passages,
        embedder.embed(passages, progress=progress),
        probe=probe_of(embedder),
        about=f"k-means of {len(passages)} passages of {source}",
    )
