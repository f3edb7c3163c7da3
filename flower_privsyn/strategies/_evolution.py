"""A population of texts that users vote on: what private evolution and Aug-PE share.

Each round broadcasts the embeddings of the population; users vote for the texts nearest to theirs;
the released votes say which texts survive; survivors and what is varied of them are the next
population. What a method begins with and what it writes in the end is its own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le, Lt

from flower_privsyn.checks import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from flower_privsyn.data.sentences import is_whole
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located, replacing
from flower_privsyn.generation.generators import ExpandingSettings
from flower_privsyn.generation.streams import derive_seed
from flower_privsyn.generation.variation import MaskUnit
from flower_privsyn.queries import NearestNeighborHistogram, Query
from flower_privsyn.queries.nearest_neighbor import VoteClip
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import RoundFiles
from flower_privsyn.run.method import (
    Look,
    Method,
    NeededModel,
    Needs,
    Outline,
    Question,
    RecordSource,
    ReleasedSum,
    RunContext,
    State,
    need,
)
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.strategies._embedder import embedder_of, embeddings_by

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.generation import ByInstruction, TextGenerator, Variation
    from flower_privsyn.run.progress import Progress


logger = logging.getLogger("flwr.privsyn")

Counts = npt.NDArray[np.int64]

Votes = npt.NDArray[np.float64]

SelectionName = Annotated[
    Literal["resample", "rank"],
    'who survives: "resample", candidates drawn with replacement in proportion to their votes '
    'above the threshold (PrE-Text); "rank", those with most votes, each once (Aug-PE).',
]
"""The setting `selection`."""

Threshold = Annotated[
    NonNegativeFloat, 'H, subtracted from the noisy votes before "resample" draws.'
]
"""The setting `threshold`."""

ThresholdUnit = Annotated[
    Literal["noise-std", "votes"],
    '"noise-std": H is `threshold` standard deviations of the noise; "votes": H is `threshold` '
    "votes, as in PrE-Text.",
]
"""The setting `threshold-unit`."""


def resampled(
    votes: Votes, *, keep: int, threshold: float, chooser: np.random.Generator
) -> Counts | None:
    """How often each candidate survives, drawn with replacement by its votes above a threshold.

    Post-processing, with public randomness.

    Args:
        votes: (m,) as released.
        keep: how many survive, counted as often as they do; >= 1.
        threshold: H, in votes.
        chooser: public randomness.

    Returns:
        (m,) that sum to `keep`; None where no candidate stands above the threshold.
    """
    above = np.maximum(votes - threshold, 0.0)
    total = float(above.sum())
    if not total > 0.0:
        return None
    drawn = chooser.choice(len(votes), size=keep, replace=True, p=above / total)
    return np.bincount(drawn, minlength=len(votes))


def ranked(votes: Votes, *, keep: int) -> Counts:
    """The candidates with most votes, each once; of equal ones the first.

    Args:
        votes: (m,) as released.
        keep: how many survive, from 1 to m.

    Returns:
        (m,) 1 for whoever survives.
    """
    if keep > len(votes):
        raise ValueError(f"{keep} of {len(votes)} candidates cannot survive once each")
    counts = np.zeros(len(votes), dtype=np.int64)
    counts[np.argsort(-votes, kind="stable")[:keep]] = 1
    return counts


VariationName = Annotated[
    Literal["mask-fill", "prompt"],
    'how texts are varied: "mask-fill", by `variation_model` (PrE-Text); "prompt", by `generator`, '
    "which is asked for it (Aug-PE).",
]
"""The setting `variation`."""

VariationPrompt = Annotated[
    str,
    'what it is asked, for "prompt": "paraphrase", "style", "fill-blanks", or a JSON file.',
]
"""The setting `variation-prompt`."""

Domain = Annotated[
    str,
    'what the texts are, in public words, for prompts that ask for them: "reviews of restaurants".',
]
"""The setting `domain`."""

BlankFraction = Annotated[
    float, Ge(0), Le(1), 'share of the words that "fill-blanks" leaves out of a text.'
]
"""The setting `blank-fraction`."""

WordSpread = Annotated[
    NonNegativeFloat,
    "standard deviation of the number of words that a prompt asks for, about that of the text "
    "which is varied.",
]
"""The setting `word-spread`."""

MaskFraction = Annotated[float, Gt(0), Le(1)]
"""Share of a text's tokens that are masked in one step."""

MaskUnitSetting = Annotated[
    MaskUnit,
    '"token", as in PrE-Text; or "word": only words that are one token are masked and drawn, '
    "so that no word is torn and punctuation stays.",
]
"""The setting `mask-unit`."""

WholeSentences = Annotated[
    bool,
    "cut public text only where a sentence ends, keep variations of whole sentences whole, and "
    "end what is expanded with a sentence; PrE-Text does none of it.",
]
"""The setting `whole-sentences`."""

LikelihoodQuantile = Annotated[
    float,
    Ge(0),
    Lt(1),
    "a variation is kept only if its log-likelihood per token under `likelihood_model` is at "
    "least this quantile of the public text's. It is drawn three times; then the text it is "
    "made from stays. The first candidates are as likely, too. 0 keeps every variation, as in "
    "PrE-Text.",
]
"""The setting `likelihood-quantile`."""

LikelihoodModel = Annotated[str, "causal language model that judges so; a name or a path."]
"""The setting `likelihood-model`."""

Float64Array = npt.NDArray[np.float64]

#: How often a variation is drawn before the text it is made from stays.
_TRIES: Final = 3

#: Texts that a thread scores, and of them at a time: the logits of few stay in the cache.
_PIECE: Final = 64

_BATCH: Final = 8


class Likelihood:
    """Log-likelihood per token of texts under a causal language model.

    Args:
        model: a bundled short name, a folder, or a hub name.
        max_tokens: the model reads a text in windows of so many tokens.

    Raises:
        ModelError: the model cannot be found or is no causal language model.
    """

    def __init__(self, model: str | Path, *, max_tokens: int = 64) -> None:
        from flower_privsyn.models.pretrained import load_pretrained
        from flower_privsyn.models.threads import is_small

        self._network, self._tokenizer = load_pretrained(
            model, kind="causal", dtype="auto", device=None
        )
        self._is_small = is_small(self._network)
        self._max_tokens = max_tokens

    def per_token(
        self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
    ) -> Float64Array:
        """Mean log-probability of the tokens of each text, in nats.

        Args:
            texts: (n,).
            progress: called with the number of texts just done.

        Returns:
            (n,), at most 0; minus infinity for a text without tokens.
        """
        from flower_privsyn.models.threads import side_by_side

        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        batches = [order[start : start + _PIECE] for start in range(0, len(order), _PIECE)]
        result = np.full(len(texts), -np.inf)
        found = side_by_side(self._score, [[texts[index] for index in part] for part in batches])
        for places, values in zip(batches, found, strict=True):
            result[places] = values
            if progress is not None:
                progress(len(places))
        return result

    def _score(self, texts: list[str]) -> Float64Array:
        from flower_privsyn.evaluation.language_model import score_texts

        scores = score_texts(
            self._network,
            self._tokenizer,
            texts,
            max_tokens=self._max_tokens,
            batch_size=_BATCH,
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            means: Float64Array = np.where(scores.tokens > 0, -scores.nats / scores.tokens, -np.inf)
        return means


class LikelyVariation:
    """A variation that is drawn again while it is not likely enough, or no whole sentence.

    Args:
        variation: what draws.
        likelihood: the judge; None accepts every text.
        floor: log-likelihood per token that a text needs.
        whole_sentences: whether the variation of whole sentences must be whole sentences.
    """

    def __init__(
        self,
        variation: Variation,
        *,
        likelihood: Likelihood | None,
        floor: float,
        whole_sentences: bool,
    ) -> None:
        self.name = f"{variation.name}, as likely as public text"
        self._variation = variation
        self._likelihood = likelihood
        self._floor = floor
        self._whole_sentences = whole_sentences

    def vary(
        self,
        texts: Sequence[str],
        *,
        seed: int,
        progress: Callable[[int], None] | None = None,
        labels: Sequence[str] | None = None,
    ) -> list[str]:
        """One variation of every text that can stand; the text itself where none was drawn.

        Args:
            texts: the texts.
            seed: 0 <= seed < 2**64.
            progress: called with the number of texts just finished.
            labels: the class of each text; None where there are none.
        """
        result = list(texts)
        left = np.arange(len(texts), dtype=np.int64)
        for attempt in range(_TRIES):
            if not left.size:
                break
            drawn = self._variation.vary(
                [texts[index] for index in left.tolist()],
                seed=seed if attempt == 0 else derive_seed(seed, "again", attempt),
                labels=None if labels is None else [labels[index] for index in left.tolist()],
            )
            stands = self._stand([texts[index] for index in left.tolist()], drawn)
            for index, text, kept in zip(left.tolist(), drawn, stands.tolist(), strict=True):
                if kept:
                    result[index] = text
            if progress is not None:
                progress(int(stands.sum()))
            left = left[~stands]
        if progress is not None and left.size:
            progress(int(left.size))
        return result

    def _stand(self, texts: Sequence[str], drawn: Sequence[str]) -> npt.NDArray[np.bool_]:
        stands = np.ones(len(drawn), dtype=np.bool_)
        if self._whole_sentences:
            stands &= np.array(
                [is_whole(new) or not is_whole(old) for old, new in zip(texts, drawn, strict=True)],
                dtype=np.bool_,
            )
        if self._likelihood is not None and stands.any():
            places = np.flatnonzero(stands)
            scores = self._likelihood.per_token([drawn[place] for place in places.tolist()])
            stands[places] = scores >= self._floor
        return stands


def texts_before_quantile(fewest: int, quantile: float) -> int:
    """How many texts there must be so that at least `fewest` are above a quantile of them."""
    needed = fewest
    while needed - math.ceil(quantile * (needed - 1)) < fewest:
        needed += 1
    return needed


@dataclass(frozen=True, kw_only=True)
class Population:
    """Candidate texts of one round.

    Attributes:
        texts: the candidates.
        ids: one identifier per text, unique within a run: "<round>:<index>".
        parents: for each text the ids it was made from; empty for public seeds.
        source: for each text "public", "selected", "generated", "variation" or "survivor".
        embeddings: (n, d) float32, what is broadcast, or None before it is computed.
        labels: for each text the name of its class; None where texts have none.
    """

    texts: tuple[str, ...]
    ids: tuple[str, ...]
    parents: tuple[tuple[str, ...], ...]
    source: tuple[str, ...]
    embeddings: npt.NDArray[np.float32] | None = None
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check that the columns have one length."""
        lengths = {len(self.texts), len(self.ids), len(self.parents), len(self.source)}
        if len(lengths) != 1:
            raise ValueError("texts, ids, parents and source must have one length")
        if self.embeddings is not None and len(self.embeddings) != len(self.texts):
            raise ValueError(f"{len(self.embeddings)} embeddings for {len(self.texts)} texts")
        if self.labels is not None and len(self.labels) != len(self.texts):
            raise ValueError(f"{len(self.labels)} labels for {len(self.texts)} texts")

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.texts)

    @classmethod
    def create(
        cls,
        texts: Sequence[str],
        *,
        round_number: int,
        source: str | Sequence[str],
        parents: Sequence[tuple[str, ...]] | None = None,
        labels: Sequence[str] | None = None,
    ) -> Population:
        """A population of one round with ids "<round>:<index>", of one source or one each."""
        return cls(
            texts=tuple(texts),
            ids=tuple(f"{round_number}:{index}" for index in range(len(texts))),
            parents=tuple(parents) if parents is not None else ((),) * len(texts),
            source=(source,) * len(texts) if isinstance(source, str) else tuple(source),
            labels=None if labels is None else tuple(labels),
        )

    def with_embeddings(self, embeddings: npt.NDArray[np.float32]) -> Population:
        """The same texts with their embeddings."""
        return replace(self, embeddings=embeddings)

    def take(self, indices: npt.NDArray[np.int64]) -> Population:
        """The texts at `indices`, in that order, repetitions allowed."""
        return Population(
            texts=tuple(self.texts[i] for i in indices),
            ids=tuple(self.ids[i] for i in indices),
            parents=tuple(self.parents[i] for i in indices),
            source=tuple(self.source[i] for i in indices),
            embeddings=None if self.embeddings is None else self.embeddings[indices],
            labels=None if self.labels is None else tuple(self.labels[i] for i in indices),
        )

    def to_parquet(self, path: Path, **columns: Sequence[Any]) -> None:
        """Write the population, with extra columns such as votes or survivor counts.

        Readable by its owner alone, as the release is: votes and scores are the release.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        table: dict[str, Any] = {
            "id": list(self.ids),
            "text": list(self.texts),
            "parent": [list(parents) for parents in self.parents],
            "source": list(self.source),
        }
        if self.labels is not None:
            table["label"] = list(self.labels)
        if self.embeddings is not None:
            flat = pa.array(self.embeddings.astype(np.float32).reshape(-1))
            table["embedding"] = pa.FixedSizeListArray.from_arrays(flat, self.embeddings.shape[1])
        table.update({name: list(values) for name, values in columns.items()})
        with replacing(path, for_the_owner=True) as temporary:
            pq.write_table(pa.table(table), temporary)

    def state(self) -> State:
        """The population as a method keeps it between two rounds."""
        columns = (("texts", self.texts), ("ids", self.ids), ("parents", self.parents))
        arrays = {} if self.embeddings is None else {"embeddings": self.embeddings}
        return {**dict(columns), "source": self.source, "labels": self.labels, **arrays}

    @classmethod
    def of_state(cls, state: State) -> Population:
        """The population that a method has kept."""
        return cls(
            texts=tuple(state["texts"]),
            ids=tuple(state["ids"]),
            parents=tuple(tuple(parents) for parents in state["parents"]),
            source=tuple(state["source"]),
            embeddings=state.get("embeddings"),
            labels=None if state["labels"] is None else tuple(state["labels"]),
        )


def survivors(
    run: RunDirectory, *, counted: bool = False, rounds: Sequence[int] | None = None
) -> Population:
    """The union of the survivors of released rounds of a run.

    Args:
        run: its directory.
        counted: take a text that survived in several rounds several times.
        rounds: of which rounds; None for all that were released.

    Returns:
        The survivors; none of a run whose rounds choose no texts.
    """
    import pyarrow.parquet as pq

    texts: list[str] = []
    ids: list[str] = []
    parents: list[tuple[str, ...]] = []
    labels: list[str] = []
    seen: set[tuple[str, str]] = set()
    for number in run.rounds_with_outcome("released") if rounds is None else rounds:
        file = RoundFiles(run.round_path(number)).population
        names = pq.read_schema(file).names if file.is_file() else ()
        if "survived" not in names:
            continue
        named = ["label"] if "label" in names else []
        table = pq.read_table(file, columns=["id", "text", "parent", "survived", *named])
        for row in table.to_pylist():
            known = (row["text"], row.get("label", ""))
            if not row["survived"] or (known in seen and not counted):
                continue
            seen.add(known)
            texts.append(row["text"])
            ids.append(row["id"])
            parents.append(tuple(row["parent"]))
            if named:
                labels.append(row["label"])
    return Population(
        texts=tuple(texts),
        ids=tuple(ids),
        parents=tuple(parents),
        source=("survivor",) * len(texts),
        labels=tuple(labels) if labels else None,
    )


def votes_by_class(run: RunDirectory) -> dict[str, float]:
    """The released votes of every class, summed over its candidates and all released rounds.

    Each candidate's noise is in them: a sum may be below 0.

    Args:
        run: its directory.

    Returns:
        The sums by the names of the classes; empty where texts have none.
    """
    import pyarrow.parquet as pq

    found: dict[str, float] = {}
    for number in run.rounds_with_outcome("released"):
        file = RoundFiles(run.round_path(number)).population
        if not file.is_file() or not {"label", "votes"} <= set(pq.read_schema(file).names):
            continue
        for row in pq.read_table(file, columns=["label", "votes"]).to_pylist():
            found[row["label"]] = found.get(row["label"], 0.0) + row["votes"]
    return found


IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class EvolutionConfig(ExpandingSettings, PrivateSumConfig):
    """Settings of a population that users vote on."""

    max_samples: Annotated[
        PositiveInt, "samples of one user that vote, a random subset fixed per user and seed."
    ] = 8
    num_candidates: Annotated[
        int,
        Ge(2),
        "texts in the population (N_syn); 1,024 at epsilon 1.29 and 2,048 at epsilon 7.58 in "
        "PrE-Text.",
    ] = 1024
    lookahead: Annotated[
        NonNegativeInt,
        "variations whose mean embedding stands for a candidate (K); 4 in the authors' code, 0 "
        "embeds the candidate itself.",
    ] = 4
    clip: Annotated[
        VoteClip,
        '"count", the papers\' votes with sensitivity `max_samples`; or "l2", each user\'s votes '
        "scaled to norm sqrt(max_samples), with less noise.",
    ] = "count"
    selection: SelectionName = "resample"
    threshold: Threshold = 1.0
    threshold_unit: ThresholdUnit = "noise-std"
    num_variations: Annotated[
        PositiveInt,
        "texts of the next population for each survivor (L), of which there are so many fewer: "
        "itself and L - 1 variations (Aug-PE); with 1 a variation alone (PrE-Text).",
    ] = 1
    public_text: Annotated[
        str,
        'seeds: "bundled", or a JSONL file with `text` and no person\'s data; also a folder or a '
        "data set by name (docs/own_data.md).",
    ] = "bundled"
    variation: VariationName = "mask-fill"
    variation_model: Annotated[str, "masked language model that varies texts."] = "privsyn-mlm"
    mask_fraction: Annotated[
        MaskFraction, "share of a text's tokens masked in one step; 0.3 in PrE-Text."
    ] = 0.3
    mask_steps: Annotated[PositiveInt, "how often a text is masked and filled; 2 in PrE-Text."] = 2
    mask_unit: MaskUnitSetting = "token"
    variation_prompt: VariationPrompt = "paraphrase"
    domain: Domain = "text"
    blank_fraction: BlankFraction = 0.5
    word_spread: WordSpread = 0.0
    whole_sentences: WholeSentences = False
    likelihood_quantile: LikelihoodQuantile = 0.0
    likelihood_model: LikelihoodModel = "privsyn-lm"
    max_new_tokens: Annotated[PositiveInt, "tokens per synthetic text; 85 in PrE-Text."] = 85
    temperature: Annotated[PositiveFloat, "sampling temperature of variation and expansion."] = 1.0
    top_p: Annotated[float, Gt(0), Le(1), "nucleus of variation and expansion."] = 1.0

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        several, of = self.num_variations, f"num-variations = {self.num_variations}"
        if self.class_names:
            several *= len(self.class_names)
            of += f" times the {len(self.class_names)} classes"
        if self.num_candidates % several:
            raise ConfigError(
                f"num-candidates must be a multiple of {of}, got {self.num_candidates}"
            )
        self.histogram()

    def histogram(self) -> NearestNeighborHistogram:
        """The query these settings ask."""
        return NearestNeighborHistogram(max_samples=self.max_samples, clip=self.clip)


class Evolution(Method):
    """The server's half of a method that evolves a population by released votes.

    Args:
        config: the settings.
        embedder: in place of `config.embedding_model`.
        variation: in place of `config.variation`.
        generator: in place of `config.generator`.
    """

    config: EvolutionConfig

    def __init__(
        self,
        config: EvolutionConfig,
        *,
        embedder: Embedder | None = None,
        variation: Variation | None = None,
        generator: TextGenerator | None = None,
    ) -> None:
        self.config = config
        self._classes = config.class_names
        self._query: Query = config.histogram()
        self._embedder = embedder
        self._given_variation = self._variation = variation
        self.given_writer = self._generator = generator
        self._careful: Variation | None = None
        self._seeds: list[str] = []

    @property
    def writes(self) -> bool:
        """Whether the generator writes after the last release."""
        return False

    @property
    def queries(self) -> tuple[Query, ...]:
        """Nearest-neighbour votes."""
        return (self._query,)

    def needs(self) -> Needs:
        """Embedder, what varies texts, public text; and the generator where it is asked."""
        config, by_prompt = self.config, self.config.variation == "prompt"
        models = [
            NeededModel(setting="embedding-model", name=config.embedding_model, kind="embedding")
        ]
        if not by_prompt:
            models.append(masked_model(config))
        if config.likelihood_quantile > 0:
            name = config.likelihood_model
            models.append(NeededModel(setting="likelihood-model", name=name, kind="causal"))
        if self._asks_generator:
            name = config.generator
            models.append(NeededModel(setting="generator", name=name, kind="generator"))
        return Needs(
            models=tuple(models),
            libraries=("sentence_transformers", "torch", "transformers"),
            public_text=config.public_text,
            variation_prompt=config.variation_prompt if by_prompt else "",
            reads=(partial(self._read_seeds, enough=True),),
        )

    def outline(self, look: Look) -> Outline:
        """Votes for as many candidates in every round."""
        dimension, m = look.dimension(self.config.embedding_model), self.config.num_candidates
        broadcast: dict[str, npt.NDArray[Any]] = {
            "candidates": np.zeros((m, dimension), dtype=np.float32)
        }
        if self._classes:
            broadcast["classes"] = np.zeros(m, dtype=np.int32)
        question = Question(self._query, broadcast)
        source = RecordSource(fingerprint="", dimension=dimension)
        return Outline(sources=(source,), question=lambda _: question)

    # ------------------------------------------------------------------ before the first round

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        """Load the models and the public text."""
        config, self.place = self.config, place
        # Nothing of an earlier start: llama.cpp, or a key, may be no more.
        self._variation, self._careful = self._given_variation, None
        self._generator = self.given_writer
        self._embedder = embedder_of(config, self._embedder)
        if self._asks_generator and self._generator is None:
            self._generator = config.load_generator()
        if self._variation is None:
            self._variation = self._load_variation()
        self._prepare_seeds()
        self._rehearse()
        return (embeddings_by(self._embedder),)

    @property
    def _asks_generator(self) -> bool:
        return self.writes or (self.config.variation == "prompt" and self._given_variation is None)

    def _load_variation(self) -> Variation:
        config = self.config
        if config.variation == "mask-fill":
            return mask_filling(config, unit=config.mask_unit)
        return prompting(config, need(self._generator), prompt=config.variation_prompt)

    def _read_seeds(self, tokenizer: Any, *, enough: bool = False) -> list[str]:
        """The public texts, as many as there are, or only so many as the first population needs."""
        from flower_privsyn.data import public_texts

        return public_texts(
            self.config.public_text,
            tokenizer=tokenizer,
            max_tokens=self.config.max_tokens,
            at_sentences=self.config.whole_sentences,
            fewest=texts_before_quantile(self._seeds_needed, self.config.likelihood_quantile),
            wanted_by=f"num-candidates = {self.config.num_candidates}",
            enough=enough,
        )

    def _prepare_seeds(self) -> None:
        """Read the public text, and have everything stay as likely as it where that is asked."""
        self._seeds, self._careful = hold_to_public_text(
            self._read_seeds(need(self._embedder).tokenizer),
            need(self._variation),
            self.config,
            fewest=self._seeds_needed,
            progress=self.progress,
        )

    @property
    def _seeds_needed(self) -> int:
        """How many public texts the first population is drawn from at least."""
        return self.config.num_candidates

    def _rehearse(self) -> None:
        """Have the generator write once where it varies texts: it must not fail after a release."""
        from flower_privsyn.generation import ByInstruction

        if isinstance(self._variation, ByInstruction):
            with self.progress.stage("Try the generator", total=None):
                self._variation.rehearse(self._classes or None)

    def init(self, scratch: Path) -> State:  # noqa: ARG002
        """The first population."""
        return self._candidates(self._drawn(1), 1)

    def _drawn(self, number: int) -> Population:
        """The first population: random public samples, drawn without replacement."""
        config = self.config
        chooser = np.random.default_rng([config.seed, 1])
        drawn = chooser.choice(len(self._seeds), size=config.num_candidates, replace=False)
        texts = [self._seeds[i] for i in drawn]
        return Population.create(texts, round_number=number, source="public")

    # ------------------------------------------------------------------ a round

    def ask(self, state: State, number: int) -> Question:  # noqa: ARG002
        """Which of the candidates are near."""
        broadcast: dict[str, npt.NDArray[Any]] = {"candidates": state["embeddings"]}
        if self._classes:
            broadcast["classes"] = self._class_of(Population.of_state(state))
        return Question(self._query, broadcast)

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:  # noqa: ARG002
        """Choose survivors, keep them, vary them."""
        number, population = release.round_number, Population.of_state(state)
        counts = self._survivors(population, release)
        population.to_parquet(
            RoundFiles(self.run.round_dir(number)).population,
            votes=release.values.tolist(),
            survived=counts.tolist(),
        )
        if number == self.config.num_rounds:
            return state
        parents = population.take(np.repeat(np.arange(len(population)), counts))
        following = self._varied(parents, number, f"Round {number}: vary survivors")
        return self._candidates(following, number + 1)

    def _class_of(self, population: Population) -> npt.NDArray[np.int32]:
        """(m,) which of the classes each candidate is of."""
        places = {name: place for place, name in enumerate(self._classes)}
        labels = need(population.labels)
        return np.array([places[label] for label in labels], dtype=np.int32)

    def _survivors(self, population: Population, release: ReleasedSum) -> IntArray:
        """How often each candidate survives: (m,) integers; of every class equally many.

        When no candidate of a class stands above the threshold the histogram says nothing of it:
        its population survives as it is, or so many of it as are wanted, and the round counts.
        """
        number, m = release.round_number, len(release.values)
        if not self._classes:
            return self._chosen(release, np.arange(m), [number])
        counts = np.zeros(m, dtype=np.int64)
        classes = self._class_of(population)
        for place in range(len(self._classes)):
            members = np.flatnonzero(classes == place)
            counts[members] = self._chosen(release, members, [number, place])
        return counts

    def _chosen(self, release: ReleasedSum, members: IntArray, key: list[int]) -> IntArray:
        """How often each of some candidates survives, of which there are so many in the end."""
        chooser = np.random.default_rng([self.config.seed, 2, *key])
        keep = len(members) // self.config.num_variations
        config, votes = self.config, release.values[members]
        if config.selection == "rank":
            return ranked(votes, keep=keep)
        unit = release.noise_std if config.threshold_unit == "noise-std" else 1.0
        counts = resampled(votes, keep=keep, threshold=config.threshold * unit, chooser=chooser)
        if counts is not None:
            return counts
        logger.warning(
            "round %d: no candidate stands above the threshold; %s",
            release.round_number,
            "the population stays" if keep == len(members) else "survivors are drawn at random",
        )
        counts = np.zeros(len(members), dtype=np.int64)
        counts[chooser.permutation(len(members))[:keep]] = 1
        return counts

    def _varied(self, parents: Population, number: int, stage_name: str) -> Population:
        """The next population: variations of the survivors, after these where L is above 1."""
        copies = self.config.num_variations
        texts = list(parents.texts) if copies > 1 else []
        variations = max(1, copies - 1)
        with self.progress.stage(stage_name, variations * len(parents)) as stage:
            for copy in range(variations):
                texts += need(self._careful).vary(
                    parents.texts,
                    seed=self._seed_of(number, 0, *([copy] if copy else [])),
                    progress=stage.update,
                    labels=parents.labels,
                )
        sources = ["survivor"] * (len(texts) - variations * len(parents))
        return Population.create(
            texts,
            round_number=number + 1,
            source=sources + ["variation"] * (variations * len(parents)),
            parents=[(parent,) for parent in parents.ids] * copies,
            labels=None if parents.labels is None else parents.labels * copies,
        )

    def _candidates(self, population: Population, number: int) -> State:
        """A population with its embeddings, as what a round asks about."""
        return population.with_embeddings(self._lookahead(population, number)).state()

    def _lookahead(self, population: Population, round_number: int) -> npt.NDArray[np.float32]:
        """The mean embedding of K variations of each text, or of the text itself for K = 0."""
        embedder, variation = need(self._embedder), need(self._variation)
        copies, n = self.config.lookahead, len(population)
        if copies == 0:
            with self.progress.stage(f"Round {round_number}: embed candidates", n) as stage:
                return embedder.embed(population.texts, progress=stage.update)
        total = np.zeros((n, embedder.dimension), dtype=np.float64)
        with self.progress.stage(
            f"Round {round_number}: vary and embed candidates", 2 * copies * n
        ) as stage:
            for copy in range(copies):
                texts = variation.vary(
                    population.texts,
                    seed=self._seed_of(round_number, copy + 1),
                    progress=stage.update,
                    labels=population.labels,
                )
                total += embedder.embed(texts, progress=stage.update)
        return (total / copies).astype(np.float32)

    # ------------------------------------------------------------------ small things

    def _seed_of(self, round_number: int, *purpose: int) -> int:
        """A seed of public randomness, different for every round and purpose."""
        sequence = np.random.SeedSequence([self.config.seed, 3, round_number, *purpose])
        return int(sequence.generate_state(1, dtype=np.uint64)[0])


def survivor_records(survivors: Population) -> list[dict[str, Any]]:
    """Survivors as `RunDirectory.write_synthetic` takes them, with their labels."""
    records: list[dict[str, Any]] = [
        {
            "text": text,
            "round": int(identifier.split(":")[0]),
            "parent": list(parents),
            "source": "survivor",
        }
        for text, identifier, parents in zip(
            survivors.texts, survivors.ids, survivors.parents, strict=True
        )
    ]
    for record, label in zip(records, survivors.labels or (), strict=False):
        record["label"] = label
    return records


def masked_model(config: EvolutionConfig) -> NeededModel:
    """The model that `mask_filling` loads, for a check before a run."""
    return NeededModel(
        setting="variation-model",
        name=config.variation_model,
        kind="masked",
        max_tokens=config.max_tokens,
    )


def mask_filling(config: EvolutionConfig, *, unit: MaskUnit = "token") -> Variation:
    """Mask-filling as the settings have it.

    Args:
        config: the settings.
        unit: what is masked as one.

    Raises:
        PrivsynError: the model is missing or unusable.
    """
    from flower_privsyn.generation import MaskFill

    return MaskFill(
        located(config.variation_model),
        mask_fraction=config.mask_fraction,
        num_steps=config.mask_steps,
        unit=unit,
        temperature=config.temperature,
        top_p=config.top_p,
        max_tokens=config.max_tokens,
    )


def prompting(
    config: EvolutionConfig,
    generator: TextGenerator,
    *,
    prompt: str,
    purpose: Literal["variation", "beginning"] = "variation",
) -> ByInstruction:
    """A generator that is asked as the settings have it.

    Args:
        config: the settings.
        generator: that is asked.
        prompt: a bundled name, or a JSON file.
        purpose: of the prompt.

    Raises:
        ConfigError: the prompt cannot be read, or is not for such models.
    """
    from flower_privsyn.generation import (
        ByInstruction,
        SamplingParameters,
        load_instruction,
    )

    return ByInstruction(
        generator,
        load_instruction(located(prompt), purpose=purpose),
        sampling=SamplingParameters(
            seed=0,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
        ),
        chat=config.generator_interface == "chat",
        domain=config.domain,
        blank_fraction=config.blank_fraction,
        word_spread=config.word_spread,
    )


def hold_to_public_text(
    seeds: list[str],
    variation: Variation,
    config: EvolutionConfig,
    *,
    fewest: int,
    progress: Progress,
) -> tuple[list[str], Variation]:
    """Leave out unlikely and broken public texts, and have variations be like the others.

    Args:
        seeds: public texts.
        variation: what varies texts.
        config: the settings.
        fewest: texts that are left in any case, where there are `texts_before_quantile` of it.
        progress: where the work reports.

    Returns:
        The texts to begin with, and what varies them; both as given where no setting asks for more.
    """
    if config.whole_sentences:
        whole = [text for text in seeds if is_whole(text)]
        enough = texts_before_quantile(fewest, config.likelihood_quantile)
        seeds = whole if len(whole) >= max(enough, config.num_candidates) else seeds
    judge, floor = None, -math.inf
    if config.likelihood_quantile > 0:
        judge = Likelihood(located(config.likelihood_model), max_tokens=config.max_tokens)
        # So many that enough are left, and no more: reading all of a large corpus takes long.
        wanted = math.ceil(config.num_candidates * max(2, 1.5 / (1 - config.likelihood_quantile)))
        drawn = np.random.default_rng([config.seed, 4]).permutation(len(seeds))[:wanted]
        seeds = [seeds[index] for index in drawn.tolist()]
        with progress.stage("Judge public text", len(seeds)) as stage:
            scores = judge.per_token(seeds, progress=stage.update)
        floor = float(np.quantile(scores, config.likelihood_quantile))
        seeds = [text for text, score in zip(seeds, scores, strict=True) if score >= floor]
    if judge is not None or config.whole_sentences:
        variation = LikelyVariation(
            variation, likelihood=judge, floor=floor, whole_sentences=config.whole_sentences
        )
    return seeds, variation
