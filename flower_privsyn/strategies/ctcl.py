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
    3.4 sampling by the histogram                               `quotas`, `write_by_topic`
    4.1.3, appendix E: multiplier 10 for the histogram          `first_noise_multiplier`
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, final

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import LARGEST_WHOLE, NonNegativeInt, PositiveInt
from flower_privsyn.embedding import Embedder
from flower_privsyn.errors import ConfigError, GenerationError
from flower_privsyn.files import append_json_lines, read_json, read_json_lines, write_json
from flower_privsyn.generation import SamplingParameters, TextGenerator, load_trained_generator
from flower_privsyn.generation.backends import WritingSettings, derive_seed
from flower_privsyn.generation.prompts import flattened, unusable
from flower_privsyn.generation.topics import Topics, load_topics, quotas
from flower_privsyn.privacy import Sampling
from flower_privsyn.progress import Progress
from flower_privsyn.queries import Broadcast, ConditionalDelta, NearestNeighborHistogram, Query
from flower_privsyn.queries.model_delta import TrainOnEos, conditioned_fingerprint, pack_conditions
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import WRITTEN
from flower_privsyn.run.method import Question, RecordSource, ReleasedSum, RunContext, State, need
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies._embedder import embedder_of, embeddings_by
from flower_privsyn.strategies._first_release import (
    FIRST_ROUND,
    FirstReleaseConfig,
    ReleaseThenTraining,
)

logger = logging.getLogger("flwr.privsyn")

#: The topics of a run, in its directory: what its texts are conditioned on, and how often.
TOPICS_FILE: Final = "topics.json"

_PARENT: Final = "topic:"

#: Texts asked for at a time: what a killed process loses.
_BATCH: Final = 256

#: Batches one after the other of which nothing could be kept.
_MOST_IN_VAIN: Final = 20


@dataclass(frozen=True, kw_only=True)
class TopicsOfRun:
    """The topics of a run as they stand in its directory.

    Attributes:
        digest: of their centres.
        conditions: (k,) what stands before a text of each.
        weights: (k,) of the texts, once they are written; what a release said, or public shares.
    """

    digest: str
    conditions: list[str]
    weights: Sequence[float] = ()

    @classmethod
    def read(cls, run: RunDirectory) -> TopicsOfRun | None:
        """Those of a run; None where it has none."""
        stored = read_json(run.path / TOPICS_FILE)
        return cls(**stored) if stored else None

    def write(self, run: RunDirectory) -> None:
        """Keep them in the directory of a run, for its owner alone: the weights are a release."""
        write_json(run.path / TOPICS_FILE, asdict(self), for_the_owner=True)


def write_by_topic(
    generator: TextGenerator,
    conditions: Sequence[str],
    weights: Sequence[float] | npt.NDArray[np.float64],
    num_samples: int,
    *,
    sampling: SamplingParameters,
    source: str = "topic",
    round_number: int = 1,
    kept: Path,
    progress: Progress,
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Write texts after conditions until every topic has its own; what was kept before counts.

    Texts are written down batch by batch. Empty ones and exact duplicates are dropped, and others
    written in their place.

    Args:
        generator: what writes.
        conditions: (k,) texts that the generator goes on with.
        weights: (k,) by which the texts are dealt to topics.
        num_samples: texts in all, >= 1.
        sampling: how the generator draws; its seed is that of the first batch.
        source: stored with every text.
        round_number: stored with every text.
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
    missing = quotas(np.asarray(weights), num_samples)
    records, known = [], set()
    for record in read_json_lines(kept):
        known.add(str(record["text"]))
        topic = int(record["parent"][0].removeprefix(_PARENT))
        if topic < len(missing) and missing[topic]:
            missing[topic] -= 1
            records.append(record)
    dropped: Counter[str] = Counter()
    in_vain = 0
    with progress.stage("Write texts by topic", num_samples) as stage:
        stage.update(len(records))
        while pending := np.repeat(np.arange(len(missing)), missing)[:_BATCH].tolist():
            seed = derive_seed(sampling.seed, "texts by topic", len(known), in_vain)
            texts = generator.generate(
                [conditions[topic] for topic in pending],
                sampling=replace(sampling, seed=seed),
            )
            fresh = []
            for topic, (text,) in zip(pending, texts, strict=True):
                flat = flattened(text)
                if reason := unusable(flat, known=known):
                    dropped[reason] += 1
                else:
                    known.add(flat)
                    missing[topic] -= 1
                    fresh.append(
                        {
                            "text": flat,
                            "round": round_number,
                            "parent": [f"{_PARENT}{topic}"],
                            "source": source,
                        }
                    )
            append_json_lines(kept, fresh)
            records += fresh
            stage.update(len(fresh))
            in_vain = 0 if fresh else in_vain + 1
            if in_vain == _MOST_IN_VAIN:
                raise GenerationError(
                    f"the generator {generator.name} writes nothing that can be kept: "
                    f"{in_vain} times in a row each of {len(pending)} texts was empty, broken "
                    f"or a duplicate; {len(records)} of {num_samples} texts are kept in {kept}"
                )
    return records, dict(dropped)


@dataclass(frozen=True, kw_only=True)
class CTCLConfig(WritingSettings, FirstReleaseConfig):
    """Settings of `CTCL`.

    The first of the rounds asks for the histogram of topics, all others train. Adapters are trained
    by default: the noise in a model grows with the square root of what is trained.

    References:
        Tan et al. 2025, sections 3 and 4.1.3.
    """

    afterwards = frozenset({"synthetic-samples", "temperature", "top-p", "max-new-tokens"})

    sampling: Literal["cyclic", "full", "poisson", "fixed-size"] = "cyclic"  # type: ignore[assignment]
    """Who takes part in a round of training. "cyclic": users are dealt to `min_separation` groups
    that take turns, and the noise is correlated (DP-FTRL); with the others it is independent
    (DP-FedAvg). Everybody is asked for the histogram.
    """
    max_samples: NonNegativeInt = 64
    """Samples of one user that take part, a random subset fixed per user and seed; 0 for all of
    them.
    """
    model: str = "privsyn-lm"
    """Language model to train, causal or an encoder-decoder such as BART or T5; a bundled short
    name, a path, or a hub name.
    """
    trainable: str = "lora"
    topics: str = "bundled"
    """Either "bundled", or a file that `make_topics` made with the same embedding model, of public
    text that is nearer to the users'.
    """
    num_topics: PositiveInt = 64
    """Which coarseness of them."""
    keywords: bool = True
    """Whether a document stands after the keywords of its topic; without them documents are trained
    on and written alone, as by the vanilla generator of the paper's tables.
    """
    train_on_eos: TrainOnEos = "documents"
    """Where the generator learns that a text ends. "documents": where one of the users' does;
    "samples": after each sample, cut off or not.
    """
    synthetic_samples: PositiveInt = 2000
    """Texts to write; 400,000 in the paper."""
    max_new_tokens: int = 85
    """Most tokens of a text; 512 in the paper."""
    top_p: float = 0.95
    """The nucleus, as in the paper."""

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if self.sampling != "cyclic" and self.correlation != "blt":
            raise ConfigError(
                f'correlation = "{self.correlation}" needs sampling = "cyclic", got sampling = '
                f'"{self.sampling}": the noise of its rounds is independent'
            )

    @property
    def histogram(self) -> NearestNeighborHistogram:
        """The question of the first round: a user weighs 1 in all, whatever they wrote."""
        return NearestNeighborHistogram(max_samples=self.max_samples or LARGEST_WHOLE, clip="share")

    def question(self, clip_norm: float) -> ConditionalDelta:
        """The question of a round that trains, at a clip norm."""
        plain = asdict(super().question(clip_norm))
        return ConditionalDelta(**plain, train_on_eos=self.train_on_eos)

    def sampling_of(self, population: int) -> Sampling:
        """Who takes part in a round that trains."""
        if self.sampling == "cyclic":
            return super().sampling_of(population)
        return PrivateSumConfig.sampling_of(self, population)


class TopicsAndTraining(ReleaseThenTraining):
    """The server's half of `CTCL`: a histogram, then training, then texts by the one of the other.

    Args:
        config: the settings.
        embedder: in place of `config.embedding_model`.
    """

    config: CTCLConfig
    first_phase = "topics"

    def __init__(self, config: CTCLConfig, *, embedder: Embedder | None = None) -> None:
        super().__init__(config)
        self._embedder = embedder
        self._topics: Topics | None = None
        self._described: TopicsOfRun

    @property
    def queries(self) -> tuple[Query, ...]:
        """The histogram, and updates clipped to the first clip norm."""
        return (self.config.histogram, *super().queries)

    # ------------------------------------------------------------------ before the first round

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        """Load topics, the model that finds them, and the generator."""
        config, hierarchy = self.config, load_topics(self.config.topics)
        topics = self._topics = hierarchy.at(config.num_topics)
        embedder = self._embedder = embedder_of(config, self._embedder)
        hierarchy.check_embedder(embedder, setting=f'topics = "{config.topics}"')
        (training,) = super().setup(place)
        if self.model.encoder_decoder and not config.keywords:
            raise ConfigError(
                f"keywords = false leaves the encoder of model {config.model!r} nothing to read: "
                "name a causal model"
            )
        self._check_room()
        before = TopicsOfRun.read(place.run)
        self._described = TopicsOfRun(
            digest=topics.digest(),
            conditions=self._texts_before(topics),
        )
        if before is not None and replace(before, weights=()) != self._described:
            raise ConfigError(
                f'topics = "{config.topics}" are not those that the run in {place.run.path} began '
                "with: its histogram counts others"
            )
        return (
            embeddings_by(embedder),
            replace(
                training,
                fingerprint=conditioned_fingerprint(training.fingerprint, embedder.fingerprint),
                conditioned=True,
            ),
        )

    def _check_room(self) -> None:
        """Refuse texts that do not fit the model behind their conditions."""
        config, room = self.config, self.model.max_tokens
        longest = max(map(len, self.model.encode(self._texts_before(need(self._topics)))))
        for key in ("max_tokens", "max_new_tokens"):
            count = getattr(config, key)
            if room is not None and longest + count > room:
                raise ConfigError(
                    f"{key.replace('_', '-')} = {count} and conditions of up to {longest} tokens "
                    f"are more than the {room} tokens that model {config.model!r} takes"
                )

    def init(self, scratch: Path) -> State:
        """The public parameters; the run directory says what the topics are."""
        self._described.write(self.run)
        return super().init(scratch)

    # ------------------------------------------------------------------ a round

    def ask(self, state: State, number: int) -> Question:
        """The centres of the topics, which are public; then updates."""
        if number == FIRST_ROUND:
            return Question(self.config.histogram, {"candidates": need(self._topics).centres})
        return super().ask(state, number)

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:
        """The histogram of topics; after every other round a step."""
        if release.round_number != FIRST_ROUND:
            return super().step(state, release, scratch)
        return {**state, "histogram": release.values}

    def arrays(self, state: State) -> Broadcast:
        """The parameters, the centres of the topics, and what stands before a document of each."""
        topics = need(self._topics)
        return {
            **super().arrays(state),
            "centres": topics.centres,
            "conditions": pack_conditions(self._texts_before(topics)),
        }

    def _texts_before(self, topics: Topics) -> list[str]:
        return topics.conditions() if self.config.keywords else [""] * len(topics)

    # ------------------------------------------------------------------ the result

    def finish(self, state: State) -> dict[str, Any]:
        """Write the generator, and have it write texts by the histogram.

        By public shares where the histogram was lost, or says nothing.
        """
        config, figures = self.config, super().finish(state)
        weights, topics_by = np.maximum(state.get("histogram", 0.0), 0.0), "histogram"
        if not weights.any():
            reason = "no topic has a count above zero"
            reason = reason if "histogram" in state else "the histogram was lost"
            logger.warning("%s: texts are dealt to topics as public text is", reason)
            weights, topics_by = need(self._topics).shares, f"public text, as {reason}"
        topics = replace(self._described, weights=weights.tolist())
        topics.write(self.run)
        records, dropped = write_by_topic(
            load_trained_generator(self.run.path / str(figures["model"])),
            topics.conditions,
            weights,
            config.synthetic_samples,
            sampling=config.sampling_parameters(config.seed),
            round_number=max(self.run.finished_rounds(), default=0),
            kept=self.run.path / WRITTEN,
            progress=self.progress,
        )
        return {
            **figures,
            "topics_by": topics_by,
            "synthetic": self.run.write_synthetic(records),
            "dropped": dropped,
        }


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
        weighs 1, and `num_rounds` - 1 Gaussian releases of clipped
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
    method_class = TopicsAndTraining
