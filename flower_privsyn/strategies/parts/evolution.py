"""A population of texts that users vote on: what private evolution and Aug-PE share.

Each round broadcasts the embeddings of the population; users vote for the texts nearest to theirs;
the released votes say which texts survive; survivors and what is varied of them are the next
population. What a method begins with and what it writes in the end is its own.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import NonNegativeInt, PositiveFloat, PositiveInt
from flower_privsyn.data.sentences import is_whole
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located
from flower_privsyn.generation.generator_settings import ExpandingSettings
from flower_privsyn.generation.variation import MaskUnit, vary
from flower_privsyn.private_path.method import (
    Method,
    Outline,
    Question,
    RecordSource,
    RunContext,
    need,
)
from flower_privsyn.private_path.needs import Look, NeededModel, Needs
from flower_privsyn.private_path.release import ReleasedSum
from flower_privsyn.private_path.settings import PrivateSumConfig
from flower_privsyn.private_path.state import State
from flower_privsyn.queries import NearestNeighborHistogram, Query
from flower_privsyn.queries.nearest_neighbor import VoteClip
from flower_privsyn.runs.rounds import RoundFiles
from flower_privsyn.strategies.parts.embedder import embedder_of, embeddings_by
from flower_privsyn.strategies.parts.likelihood import (
    Likelihood,
    LikelihoodModel,
    LikelihoodQuantile,
    LikelyVariation,
    WholeSentences,
    texts_before_quantile,
)
from flower_privsyn.strategies.parts.population import Population
from flower_privsyn.strategies.parts.selection import (
    SelectionName,
    Threshold,
    ThresholdUnit,
    ranked,
    resampled,
)
from flower_privsyn.strategies.parts.variation import (
    BlankFraction,
    Domain,
    MaskFraction,
    MaskUnitSetting,
    VariationName,
    VariationPrompt,
    WordSpread,
)

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.generation import ByInstruction, TextGenerator, Variation
    from flower_privsyn.host.progress import Progress

logger = logging.getLogger("flwr.privsyn")

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
                texts += vary(
                    need(self._careful),
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
                texts = vary(
                    variation,
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
        Asking,
        ByInstruction,
        SamplingParameters,
        load_instruction,
    )

    return ByInstruction(
        generator,
        load_instruction(located(prompt), purpose=purpose),
        asking=Asking(
            domain=config.domain,
            blank_fraction=config.blank_fraction,
            word_spread=config.word_spread,
        ),
        sampling=SamplingParameters(
            seed=0,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
        ),
        chat=config.generator_interface == "chat",
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
