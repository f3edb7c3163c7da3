"""CTCL: a conditional generator adapted on the nodes, and a private histogram of topics to it.

Paper:
    Tan, Xu, Xing, Hu, Wu: "Synthesizing Privacy-Preserving Text Data via Finetuning without
    Finetuning Billion-Scale LLMs" (2025). There the records are in one place and the unit of
    privacy is a record; here they are on the nodes and the unit is a user.

Section by section:
    3.1 a generator trained on (condition, document) pairs      privsyn-lm, `topics.condition`
    3.2 topics of public text with ten keywords each            `generation/topics.py`
    3.3 DP topic histogram                                      `NearestNeighborHistogram`, round 1
    3.3 DP fine-tuning on (keywords of the topic, document)     `ConditionalDelta`, all other rounds
    3.4 sampling by the histogram                               `quotas`, `TopicWriter`
    4.1.3, appendix E: multiplier 10 for the histogram          `CTCLConfig.histogram_multiplier`
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, final

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le, Lt

from flower_privsyn.checks import (
    IN_PYTHON,
    LARGEST_WHOLE,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from flower_privsyn.errors import ConfigError, GenerationError
from flower_privsyn.files import append_json_lines, located, read_json, read_json_lines, write_json
from flower_privsyn.generation import SamplingParameters, TextGenerator
from flower_privsyn.generation.streams import derive_seed
from flower_privsyn.generation.topics import check_document_type, quotas
from flower_privsyn.privacy import Phase, RandomSource, Sampling
from flower_privsyn.queries import Broadcast, ConditionalDelta, NearestNeighborHistogram, Query
from flower_privsyn.queries.model_delta import LearnEnds, conditioned_fingerprint, pack_conditions
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import WRITTEN, RoundFiles
from flower_privsyn.run.method import (
    Look,
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
from flower_privsyn.run.progress import ProgressReporter
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies._embedder import embedder_of, embeddings_by
from flower_privsyn.strategies._training import (
    FIRST_ROUND,
    CorrelatedTrainingConfig,
    FederatedTraining,
    check_stated_noise,
    first_then_training,
    multiplier_of_share,
)

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.generation.topics import TopicHierarchy, Topics
    from flower_privsyn.run import RunDirectory
    from flower_privsyn.training.local import LocalModel


logger = logging.getLogger("flwr.privsyn")

#: The topics of a run, in its directory: what its texts are conditioned on, and how often.
TOPICS_FILE: Final = "topics.json"

_PARENT: Final = "topic:"

_WORD: Final = re.compile(r"\w+")

#: Which texts are not kept for their words, beside empty ones and duplicates.
WordFilter = Literal["none", "released"]

#: Of the filter in the code that Tan et al. released: words and marks, how long and how often one
#: may be, and those that may come as often as they like.
_WORD_OR_MARK: Final = re.compile(r"[\w'-]+|[^\w\s]")

_LONGEST_WORD: Final = 25

_MOST_TIMES: Final = 20

_ANY_NUMBER: Final = frozenset({"the", "a", ",", "."})

#: Texts asked for at a time: what a killed process loses.
_BATCH: Final = 256

#: Batches one after the other of which nothing could be kept.
_MOST_IN_VAIN: Final = 20


def check_room(
    model: LocalModel, conditions: Sequence[str], *, name: str, tokens: Mapping[str, int]
) -> None:
    """Refuse texts that do not fit a model behind their conditions, before anything is spent.

    Args:
        model: that is trained, and writes.
        conditions: what stands before a text.
        name: of the model, as it was named.
        tokens: of a text, by the settings that say so.

    Raises:
        ConfigError: one is more than the model takes.
    """
    room = model.max_tokens
    if room is None:
        return
    longest = max(map(len, model.encode(conditions)))
    for key, count in tokens.items():
        if longest + count > room:
            raise ConfigError(
                f"{key} = {count} and conditions of up to {longest} tokens are more than the "
                f"{room} tokens that model {name!r} takes"
            )


@dataclass(frozen=True, kw_only=True)
class TopicsOfRun:
    """The topics of a run as they stand in its directory.

    Attributes:
        about: where they come from, in words.
        digest: of their centres.
        conditions: (k,) what stands before a text of each.
        weights: (k,) of the texts, once they are written; what a release said, or public shares.
    """

    about: str
    digest: str
    conditions: tuple[str, ...]
    weights: tuple[float, ...] = ()

    @classmethod
    def read(cls, run: RunDirectory) -> TopicsOfRun | None:
        """Those of a run; None where it has none."""
        stored = read_json(run.path / TOPICS_FILE)
        if not stored:
            return None
        return cls(
            about=str(stored["about"]),
            digest=str(stored["digest"]),
            conditions=tuple(stored["conditions"]),
            weights=tuple(stored["weights"]),
        )

    def write(self, run: RunDirectory) -> None:
        """Keep them in the directory of a run, for its owner alone: the weights are a release."""
        write_json(run.path / TOPICS_FILE, asdict(self), for_the_owner=True)


@dataclass(frozen=True, kw_only=True)
class TopicWriter:
    """Writes texts after conditions, an exact number after each.

    Attributes:
        generator: what writes.
        conditions: (k,) texts that the generator goes on with.
        sampling: how it draws; its seed is that of the first batch.
        word_filter: "released" drops texts with a word of more than 25 characters, without a
            word in letters, or with one word or mark more than 20 times ("the", "a", comma and
            full stop may be there as often as they like).
        source: stored with every text.
        round_number: stored with every text.
    """

    generator: TextGenerator
    conditions: Sequence[str]
    sampling: SamplingParameters
    word_filter: WordFilter = "none"
    source: str = "topic"
    round_number: int = 1

    def write(
        self,
        weights: Sequence[float] | npt.NDArray[np.float64],
        num_samples: int,
        *,
        kept: Path,
        progress: ProgressReporter,
    ) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Write until every topic has its texts; what an earlier attempt kept counts.

        Texts are written down batch by batch. Empty ones and exact duplicates are dropped, and
        others written in their place.

        Args:
            weights: (k,) by which the texts are dealt to topics.
            num_samples: texts in all, >= 1.
            kept: JSON-lines file of the texts kept so far.
            progress: where the work reports.

        Returns:
            The records, as many of each topic as `quotas` says, and how many texts were dropped, by
            reason.

        Raises:
            ConfigError: no topic has a weight above zero.
            GenerationError: the generator failed, or writes nothing that can be kept; what it wrote
                before is in `kept`.
        """
        wanted = quotas(np.asarray(weights), num_samples)
        records, extra = self._kept_before(kept, wanted)
        dropped: Counter[str] = Counter()
        vain: Counter[str] = Counter()  # of the batches since the last one of which a text was kept
        known = {str(record["text"]) for record in (*records, *extra)}
        written = len(known)
        in_vain = 0
        with progress.stage("Write texts by topic", num_samples) as stage:
            stage.update(len(records))
            while pending := self._pending(wanted, records):
                seed = derive_seed(self.sampling.seed, "texts by topic", written, in_vain)
                reasons: Counter[str] = Counter()
                texts = self.generator.generate(
                    [self.conditions[topic] for topic in pending],
                    sampling=replace(self.sampling, seed=seed),
                )
                fresh = []
                for topic, (text,) in zip(pending, texts, strict=True):
                    flat = " ".join(text.split())
                    if reason := self._refused(flat, known):
                        reasons[reason] += 1
                        continue
                    known.add(flat)
                    fresh.append(self._record(flat, topic))
                append_json_lines(kept, fresh)
                records += fresh
                written += len(fresh)
                stage.update(len(fresh))
                dropped += reasons
                vain = Counter() if fresh else vain + reasons
                in_vain = 0 if fresh else in_vain + 1
                if in_vain == _MOST_IN_VAIN:
                    raise GenerationError(
                        f"the generator {self.generator.name} writes nothing that can be kept: of "
                        f"the last {vain.total()} texts each was {' or '.join(vain)}; "
                        f"{len(records)} of {num_samples} texts are kept in {kept}"
                    )
        return records, dict(dropped)

    def _kept_before(
        self, kept: Path, wanted: npt.NDArray[np.int64]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """What earlier attempts kept: as many of each topic as are wanted now, and the rest."""
        records: list[dict[str, Any]] = []
        extra: list[dict[str, Any]] = []
        seen: Counter[int] = Counter()
        for record in read_json_lines(kept):
            topic = _topic_of(record)
            seen[topic] += 1
            inside = topic < len(wanted) and seen[topic] <= wanted[topic]
            (records if inside else extra).append(record)
        return records, extra

    def _pending(
        self, wanted: npt.NDArray[np.int64], records: Sequence[dict[str, Any]]
    ) -> list[int]:
        """The topics of the texts that are still to be written, in one batch."""
        missing = wanted - np.bincount(
            [_topic_of(record) for record in records], minlength=len(wanted)
        )
        return [int(topic) for topic in np.repeat(np.arange(len(missing)), missing)[:_BATCH]]

    def _refused(self, text: str, known: set[str]) -> str:
        """Why a text is not kept; "" for one that is."""
        if not text or "\ufffd" in text:
            return "empty or broken"
        if text in known:
            return "a duplicate"
        if self.word_filter == "released":
            return _by_released_filter(text)
        return ""

    def _record(self, text: str, topic: int) -> dict[str, Any]:
        return {
            "text": text,
            "round": self.round_number,
            "parent": [f"{_PARENT}{topic}"],
            "source": self.source,
        }


def _by_released_filter(text: str) -> str:
    """Why the authors' code would leave a text out; "" for one that it keeps."""
    words = [word.lower() for word in _WORD_OR_MARK.findall(text)]
    if not any(word.isalpha() for word in words):
        return "without a word in letters"
    if max(map(len, words)) > _LONGEST_WORD:
        return "with an overlong word"
    often = Counter(word for word in words if word not in _ANY_NUMBER)
    if not often:
        return "without a word of its own"
    return "one word over and over" if max(often.values()) > _MOST_TIMES else ""


def _topic_of(record: dict[str, Any]) -> int:
    return int(record["parent"][0].removeprefix(_PARENT))


@dataclass(frozen=True, kw_only=True)
class CTCLConfig(CorrelatedTrainingConfig):
    """Settings of `CTCL`.

    The first of the rounds asks for the histogram of topics, all others train. Adapters are trained
    by default: the noise in a model grows with the square root of what is trained.

    References:
        Tan et al. 2025, sections 3 and 4.1.3.
    """

    afterwards = frozenset(
        {
            "synthetic-samples",
            "temperature",
            "top-p",
            "max-new-tokens",
            "repetition-penalty",
            "word-filter",
        }
    )

    num_rounds: Annotated[
        int, Ge(2), "rounds of the run: one for the histogram, and all others train."
    ] = 21
    sampling: Annotated[
        Literal["cyclic", "full", "poisson", "fixed-size"],
        'who takes part in a round of training. "cyclic": users are dealt to `min_separation` '
        "groups that take turns, and the noise is correlated (DP-FTRL); with the others it is "
        "independent (DP-FedAvg). Everybody is asked for the histogram.",
    ] = "cyclic"  # type: ignore[assignment]
    noise_multiplier: Annotated[
        float | None,
        "of the rounds that train; of correlated noise the fresh part of a round's. It needs "
        "`histogram_noise_multiplier` beside it.",
    ] = None
    max_samples: Annotated[
        NonNegativeInt,
        "samples of one user that take part, a random subset fixed per user and seed; 0 for all of "
        'them, where `user_weight` is "share".',
    ] = 64
    model: Annotated[
        str,
        "language model to train, causal or an encoder-decoder such as BART or T5; a bundled short "
        "name, a path, or a hub name.",
    ] = "privsyn-lm"
    trainable: Literal["full", "lora", "layers"] = "lora"
    topics: Annotated[
        str,
        '"bundled", or a file that `make_topics` made with the same embedding model, of public '
        "text that is nearer to the users'.",
    ] = "bundled"
    num_topics: Annotated[PositiveInt, "which coarseness of them."] = 64
    user_weight: Annotated[
        Literal["share", "documents"],
        'what a user weighs in the histogram. "share": 1 in all, whatever they wrote; "documents": '
        "1 for each of at most `max_samples` samples, to which the noise is scaled.",
        IN_PYTHON,
    ] = "share"
    histogram_share: Annotated[
        float,
        Gt(0),
        Lt(1),
        "of the budget, the part that the histogram has: its noise is that of a single release of "
        "the whole budget over the root of the share. At 0.1 the rounds that train have 5 % more "
        "noise than without a histogram.",
    ] = 0.1
    histogram_noise_multiplier: Annotated[
        float | None,
        Ge(0),
        Le(1e6),
        "standard deviation of the histogram's noise over what a user weighs, in place of "
        "`histogram_share`; 10 in the paper.",
    ] = None
    keywords: Annotated[
        bool,
        "whether a document stands after the keywords of its topic; without them documents are "
        "trained on and written alone, as by the vanilla generator of the paper's tables.",
    ] = True
    learn_ends: Annotated[
        LearnEnds,
        'where the generator learns that a text ends. "documents": where one of the users\' does; '
        '"samples": after each sample, cut off or not.',
    ] = "documents"
    document_type: Annotated[
        str,
        'what the documents are, in public words, for the conditions; "" for none.',
        IN_PYTHON,
    ] = ""
    synthetic_samples: Annotated[PositiveInt, "texts to write; 400,000 in the paper."] = 2000
    max_new_tokens: Annotated[PositiveInt, "most tokens of a text; 512 in the paper."] = 85
    temperature: Annotated[PositiveFloat, "of sampling."] = 1.0
    top_p: Annotated[float, Gt(0), Le(1), "the nucleus; 0.95 in the paper."] = 0.95
    repetition_penalty: Annotated[
        float,
        Ge(1),
        Le(100),
        "logits of tokens that a text already holds are divided by this; 1 for none, as in the "
        "paper, 1.5 in its released code.",
        IN_PYTHON,
    ] = 1.0
    word_filter: Annotated[
        WordFilter,
        '"released": texts with a word of more than 25 characters, without a word in letters, or '
        "with one word more than 20 times are written anew, which the paper's released code leaves "
        'out; "none", as in the paper.',
        IN_PYTHON,
    ] = "none"

    def __post_init__(self) -> None:
        """Check every value on its own and against the others."""
        super().__post_init__()
        check_stated_noise(
            self,
            key="histogram-noise-multiplier",
            stated=self.histogram_noise_multiplier,
            example=" (10 in the paper)",
        )
        if self.user_weight == "documents" and not self.max_samples:
            raise ConfigError(
                'max-samples = 0 needs user-weight = "share", got "documents": the noise is scaled '
                "to what a user may weigh"
            )
        check_document_type("document-type", self.document_type)
        if self.document_type and not self.keywords:
            raise ConfigError(
                f'document-type = "{self.document_type}" stands before keywords: leave it empty '
                "with keywords = false"
            )

    def histogram(self) -> NearestNeighborHistogram:
        """The question of the first round."""
        clip: Literal["share", "count"] = "share" if self.user_weight == "share" else "count"
        most = self.max_samples or LARGEST_WHOLE
        return NearestNeighborHistogram(max_samples=most, clip=clip)

    def question(self, clip_norm: float) -> ConditionalDelta:
        """The question of a round that trains, at a clip norm."""
        return ConditionalDelta(
            clip_to=clip_norm,
            learning_rate=self.local_learning_rate,
            epochs=self.local_epochs,
            batch_size=self.local_batch_size,
            max_steps=self.local_steps,
            learn_ends=self.learn_ends,
        )

    def sampling_of(self, population: int) -> Sampling:
        """Who takes part in a round that trains."""
        if self.sampling == "cyclic":
            return super().sampling_of(population)
        return PrivateSumConfig.sampling_of(self, population)

    def histogram_multiplier(self) -> float:
        """The noise multiplier of the histogram: as it is stated, or as it follows from its share.

        Raises:
            ConfigError: no noise keeps the budget.
        """
        if self.histogram_noise_multiplier is not None:
            return self.histogram_noise_multiplier
        return multiplier_of_share(self, self.histogram(), share=self.histogram_share)


@final
class CTCL(PrivateSumStrategy):
    """Ask once which topics users write about, adapt a generator to their text, and have it write.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            CTCL(epsilon=4.0, num_users=3000, num_nodes=50).start(grid)
        ```
    with `clientapp = "flower_privsyn.client_apps.training:app"`. The generator is in
    `<run-dir>/models/final`, the texts in `<run-dir>/synthetic.jsonl`.

    Formal guarantee:
        Unit: user; relation: `config.relation`. One Gaussian release of a histogram in which a user
        weighs 1 (or `max_samples` documents), and `num_rounds` - 1 Gaussian releases of clipped
        updates, independent or correlated as in `DPFedAvg` and `DPFTRL`, compose to
        (epsilon, delta). A document's topic decides what the node trains on it after and where it
        votes; it leaves the node in no other way. Dealing texts to topics and writing them are
        post-processing, however many. The topics are public: what they were made of is not
        protected by any of this.

    Args:
        config: the settings, where they are not given as keywords.
        embedder: in place of `config.embedding_model`.
        random: source of noise and coins; only tests pass one.
        settings: by the names of the fields of `CTCLConfig`.

    References:
        Tan et al. 2025 (CTCL), section 3.
    """

    config_class = CTCLConfig

    def __init__(
        self,
        config: CTCLConfig | None = None,
        *,
        embedder: Embedder | None = None,
        random: RandomSource | None = None,
        **settings: Any,
    ) -> None:
        config = CTCLConfig.given(config, settings, strategy="CTCL")
        super().__init__(config, TopicsAndTraining(config, embedder=embedder), random=random)


class TopicsAndTraining(FederatedTraining):
    """The server's half of `CTCL`: a histogram, then training, then texts by the one of the other.

    Args:
        config: the settings.
        embedder: in place of `config.embedding_model`.
    """

    has_conditions = True

    config: CTCLConfig

    def __init__(self, config: CTCLConfig, *, embedder: Embedder | None = None) -> None:
        super().__init__(config)
        self._embedder = embedder
        self._topics: Topics | None = None

    @property
    def queries(self) -> tuple[Query, ...]:
        """The histogram, and updates clipped to the first clip norm."""
        return (self.config.histogram(), self.config.question(self.config.clip_norm))

    def phases(self, population: int) -> tuple[Phase, ...]:
        """One round for the histogram, and those that train."""
        histogram, updates = self.queries
        return first_then_training(
            self.config,
            population,
            name="topics",
            query=histogram,
            multiplier=self.config.histogram_multiplier(),
            updates=updates,
        )

    def needs(self) -> Needs:
        """The generator, and the embedding model that finds topics."""
        config, training = self.config, super().needs()
        embedding = NeededModel(
            setting="embedding-model", name=config.embedding_model, kind="embedding"
        )
        return replace(
            training,
            models=(embedding, *training.models),
            libraries=("sentence_transformers", *training.libraries),
        )

    def outline(self, look: Look) -> Outline:
        """Votes for topics, then updates of all that is trained."""
        config, topics = self.config, self._load_topics()
        training = super().outline(look)
        (source,) = training.sources
        histogram, updates = self.queries
        voting = Question(histogram, {"candidates": topics.centres})
        parameters = training.question(2).broadcast
        learning = Question(updates, {**parameters, **self._conditions(topics)})
        embeddings = RecordSource(fingerprint="", dimension=look.dimension(config.embedding_model))
        return Outline(
            sources=(embeddings, replace(source, conditioned=True)),
            question=lambda number: voting if number == FIRST_ROUND else learning,
        )

    # ------------------------------------------------------------------ before the first round

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        """Load topics, the model that finds them, and the generator."""
        config = self.config
        self._topics = self._load_topics()
        embedder = self._embedder = embedder_of(config, self._embedder)
        self._hierarchy().check_embedder(embedder, setting=f'topics = "{config.topics}"')
        (training,) = super().setup(place)
        if self.model.encoder_decoder and not config.keywords:
            raise ConfigError(
                f"keywords = false leaves the encoder of model {config.model!r} nothing to read: "
                "name a causal model"
            )
        check_room(
            self.model,
            self._texts_before(self._need_topics()),
            name=config.model,
            tokens={"max-tokens": config.max_tokens, "max-new-tokens": config.max_new_tokens},
        )
        self._refuse_other_topics(place.run)
        return (
            embeddings_by(embedder),
            replace(
                training,
                fingerprint=conditioned_fingerprint(training.fingerprint, embedder.fingerprint),
                conditioned=True,
            ),
        )

    def _refuse_other_topics(self, run: RunDirectory) -> None:
        """Refuse to go on with other topics than those that users were asked about."""
        before, here = TopicsOfRun.read(run), self._described()
        if before is not None and replace(before, weights=()) != here:
            raise ConfigError(
                f'topics = "{self.config.topics}" are not those that the run in {run.path} began '
                "with: its histogram counts others"
            )

    def _described(self) -> TopicsOfRun:
        topics = self._need_topics()
        return TopicsOfRun(
            about=self._hierarchy().about,
            digest=topics.digest(),
            conditions=tuple(self._texts_before(topics)),
        )

    def init(self, scratch: Path) -> State:
        """The public parameters; the run directory says what the topics are."""
        self._described().write(self.run)
        return super().init(scratch)

    # ------------------------------------------------------------------ a round

    def ask(self, state: State, number: int) -> Question:
        """The centres of the topics, which are public; then updates."""
        if number == FIRST_ROUND:
            return Question(self.config.histogram(), {"candidates": self._need_topics().centres})
        return super().ask(state, number)

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:
        """The histogram of topics; after every other round a step."""
        number = release.round_number
        if number != FIRST_ROUND:
            return super().step(state, release, scratch)
        write_json(
            RoundFiles(self.run.round_dir(number)).server,
            {
                "noise_std": release.noise_std,
                "topics": len(self._need_topics()),
                "topics_above_noise": int((release.values > 2.0 * release.noise_std).sum()),
                "topics_below_zero": int((release.values < 0.0).sum()),
                "total": float(release.values.sum()),
            },
        )
        return {**state, "histogram": release.values}

    def arrays(self, state: State) -> Broadcast:
        """The parameters, the centres of the topics, and what stands before a document of each."""
        return {**super().arrays(state), **self._conditions(self._need_topics())}

    def _conditions(self, topics: Topics) -> dict[str, npt.NDArray[Any]]:
        return {
            "centres": topics.centres,
            "conditions": pack_conditions(self._texts_before(topics)),
        }

    def _texts_before(self, topics: Topics) -> list[str]:
        if not self.config.keywords:
            return [""] * len(topics)
        return topics.conditions(document_type=self.config.document_type)

    # ------------------------------------------------------------------ the result

    def finish(self, state: State) -> dict[str, Any]:
        """Write the generator, and have it write texts by the histogram."""
        figures = super().finish(state)
        return {**figures, **self._write_texts(str(figures["model"]), state.get("histogram"))}

    def _write_texts(self, model: str, histogram: npt.NDArray[np.float64] | None) -> dict[str, Any]:
        from flower_privsyn.generation import SamplingParameters, load_trained_generator

        config = self.config
        writer = TopicWriter(
            generator=load_trained_generator(self.run.path / model),
            conditions=self._texts_before(self._need_topics()),
            sampling=SamplingParameters(
                seed=config.seed,
                max_new_tokens=config.max_new_tokens,
                temperature=config.temperature,
                top_p=config.top_p,
                repetition_penalty=config.repetition_penalty,
            ),
            word_filter=config.word_filter,
            round_number=max(self.run.finished_rounds(), default=0),
        )
        weights, figures = self._weights(histogram)
        replace(self._described(), weights=tuple(weights.tolist())).write(self.run)
        records, dropped = writer.write(
            weights,
            config.synthetic_samples,
            kept=self.run.path / WRITTEN,
            progress=self.progress,
        )
        return {
            **figures,
            "topics_written_about": len({record["parent"][0] for record in records}),
            "synthetic": self.run.write_synthetic(records),
            "dropped": dropped,
        }

    def _weights(
        self, histogram: npt.NDArray[np.float64] | None
    ) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
        """What texts are dealt to topics by: the histogram, or public shares where it says nothing.

        Args:
            histogram: (k,) as released; None where it was lost.

        Returns:
            (k,) weights, and figures that say which.
        """
        if histogram is not None and (histogram > 0).any():
            return np.maximum(histogram, 0.0), {"topics_by": "histogram"}
        reason = (
            "the histogram was lost" if histogram is None else "no topic has a count above zero"
        )
        logger.warning("%s: texts are dealt to topics as public text is", reason)
        return self._need_topics().shares, {"topics_by": f"public text, as {reason}"}

    # ------------------------------------------------------------------ topics

    def _hierarchy(self) -> TopicHierarchy:
        from flower_privsyn.generation.topics import load_topics

        return load_topics(located(self.config.topics))

    def _load_topics(self) -> Topics:
        return self._hierarchy().at(self.config.num_topics)

    def _need_topics(self) -> Topics:
        return need(self._topics)
