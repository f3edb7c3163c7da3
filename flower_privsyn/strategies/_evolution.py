"""A population of texts that users vote on: what private evolution and Aug-PE share.

Each round broadcasts the embeddings of the population; users vote for the texts nearest to theirs;
the released votes say which texts survive; survivors and what is varied of them are the next
population. What a method begins with, who survives and what is written in the end is its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from flower_privsyn.checks import NonNegativeInt, PositiveInt
from flower_privsyn.data import public_texts
from flower_privsyn.embedding import Embedder
from flower_privsyn.generation import (
    ByInstruction,
    MaskFill,
    TextGenerator,
    Variation,
    load_instruction,
)
from flower_privsyn.generation.generators import ExpandingSettings
from flower_privsyn.queries import NearestNeighborHistogram, Query
from flower_privsyn.queries.nearest_neighbor import VoteClip
from flower_privsyn.run.directory import RoundFiles
from flower_privsyn.run.method import (
    Method,
    Question,
    RecordSource,
    ReleasedSum,
    RunContext,
    State,
    need,
)
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.strategies._embedder import embedder_of, embeddings_by
from flower_privsyn.strategies._population import IntArray, Population


@dataclass(frozen=True, kw_only=True)
class EvolutionConfig(ExpandingSettings, PrivateSumConfig):
    """Settings of a population of texts that users vote on, and that are varied."""

    max_samples: PositiveInt = 8
    """Samples of one user that vote, a random subset fixed per user and seed."""
    lookahead: NonNegativeInt = 0
    """Variations whose mean embedding stands for a candidate (K); 0 embeds the candidate itself, 4
    in the code of PrE-Text's authors, whose masks are filled in no time.
    """
    clip: VoteClip = "count"
    """Either "count", the papers' votes with sensitivity `max_samples`; or "l2", each user's votes
    scaled to norm sqrt(max_samples), with less noise.
    """
    num_candidates: Annotated[int, Ge(2)] = 1024
    """Texts in the population (N_syn); 1,024 at epsilon 1.29 and 2,048 at epsilon 7.58 in PrE-Text.
    """
    public_text: str = "bundled"
    """Seeds: "bundled", or a JSONL file with `text` and no person's data; also a folder or a data
    set by name (docs/own_data.md). Of prose whole sentences are taken; of many documents and more
    than 16 million characters evenly fewer.
    """
    variation: str = "paraphrase"
    """How texts are varied: by `generator`, which is asked for it: "paraphrase", "style",
    "fill-blanks", or a JSON file (Aug-PE); or "mask-fill", by `variation_model` (PrE-Text).
    """
    variation_model: str = "privsyn-mlm"
    """Masked language model that varies texts, for variation = "mask-fill"."""

    @property
    def asks_for_variations(self) -> bool:
        """Whether the generator varies texts."""
        return self.variation != "mask-fill"

    @property
    def prompting(self) -> Mapping[str, float]:
        """What else a prompt depends on, as keywords of `ByInstruction`."""
        return {}

    def histogram(self) -> NearestNeighborHistogram:
        """The query these settings ask."""
        return NearestNeighborHistogram(max_samples=self.max_samples, clip=self.clip)

    def asked(
        self,
        generator: TextGenerator,
        prompt: str,
        purpose: Literal["variation", "beginning"],
    ) -> ByInstruction:
        """The generator, asked for texts.

        Args:
            generator: what is asked.
            prompt: a bundled name, or a JSON file.
            purpose: of the prompt.

        Raises:
            ConfigError: the prompt cannot be read, or is not for such models.
        """
        return ByInstruction(
            generator,
            load_instruction(prompt, purpose=purpose),
            domain=self.domain,
            sampling=self.sampling_parameters(),
            chat=self.generator_interface == "chat",
            **self.prompting,
        )


class Evolution(Method):
    """The server's half of a method that evolves a population by released votes.

    Args:
        config: the settings.
        embedder: in place of `config.embedding_model`.
        variation: in place of the one that the settings say.
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
        self._query = config.histogram()
        self._embedder = embedder
        self._given_variation, self.given_writer = variation, generator
        self._variation: Variation | None = None
        self._generator: TextGenerator | None = None
        self._seeds: list[str] = []

    @property
    def queries(self) -> tuple[Query, ...]:
        """Nearest-neighbour votes."""
        return (self._query,)

    # ------------------------------------------------------------------ before the first round

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        """Load the models and the public text."""
        config, self.place = self.config, place
        self._generator = None  # that of an earlier start: its server, or a key, may be no more
        self._embedder = embedder_of(config, self._embedder)
        self._seeds = self._read_seeds()
        self._variation = self._given_variation or self._load_variation()
        with self.progress.stage("Try the generator", total=None):
            self._rehearse()
        return (embeddings_by(self._embedder),)

    def _writer(self) -> TextGenerator:
        """The generator, loaded where it is first asked for."""
        if self._generator is None:
            self._generator = self.given_writer or self.config.load_generator()
        return self._generator

    def _load_variation(self) -> Variation:
        """What varies texts as the settings have it."""
        config = self.config
        if config.asks_for_variations:
            return config.asked(self._writer(), config.variation, "variation")
        return MaskFill(
            config.variation_model,
            temperature=config.temperature,
            top_p=config.top_p,
            max_tokens=config.max_tokens,
        )

    def _read_seeds(self, fewest: int | None = None) -> list[str]:
        """The public texts, at least so many as the first population needs."""
        config = self.config
        return public_texts(
            config.public_text,
            tokenizer=need(self._embedder).tokenizer,
            max_tokens=config.max_tokens,
            whole_sentences=True,
            fewest=fewest or config.num_candidates,
            wanted_by=f"num-candidates = {config.num_candidates}",
        )

    def _rehearse(self) -> None:
        """Have the generator write once: it must not fail after a release."""
        if isinstance(self._variation, ByInstruction):
            self._variation.rehearse(self.config.class_names or None)

    def init(self, scratch: Path) -> State:  # noqa: ARG002
        """The first population."""
        return self._candidates(self._first(), 1)

    def example_states(self, scratch: Path) -> dict[int, State]:  # noqa: ARG002
        """As many candidates in every round."""
        m, dimension = self.config.num_candidates, need(self._embedder).dimension
        embeddings = np.zeros((m, dimension), dtype=np.float32)
        return {1: {"embeddings": embeddings, "labels": self.config.class_names[:1] * m}}

    @abstractmethod
    def _first(self) -> Population:
        """The texts that round 1 asks about."""

    # ------------------------------------------------------------------ a round

    def ask(self, state: State, number: int) -> Question:  # noqa: ARG002
        """Which of the candidates are near."""
        return Question(self._query, {"candidates": state["embeddings"]})

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
        survivors = population.take(np.repeat(np.arange(len(counts)), counts))
        return self._candidates(self._following(survivors, number), number + 1)

    @abstractmethod
    def _survivors(self, population: Population, release: ReleasedSum) -> IntArray:
        """How often each candidate survives: (m,) integers."""

    @abstractmethod
    def _following(self, survivors: Population, number: int) -> Population:
        """The texts that are asked about after round `number`."""

    def _varied(
        self, parents: Population, number: int, stage_name: str, *, copies: int = 1
    ) -> list[str]:
        """Variations of all texts that survived round `number`, `copies` times over."""
        texts: list[str] = []
        with self.progress.stage(stage_name, copies * len(parents)) as stage:
            for copy in range(copies):
                texts += need(self._variation).vary(
                    parents.texts,
                    seed=self._seed_of(number, 0, *([copy] if copy else [])),
                    progress=stage.update,
                    labels=parents.labels,
                )
        return texts

    def _candidates(self, population: Population, number: int) -> State:
        """A population as what a round asks about.

        Each text's embedding is the mean of K variations of it, or its own for K = 0.
        """
        embedder, copies = need(self._embedder), self.config.lookahead
        steps = len(population) * (2 * copies or 1)
        with self.progress.stage(f"Round {number}: embed candidates", steps) as stage:
            if not copies:
                embeddings = embedder.embed(population.texts, progress=stage.update)
            else:
                total = np.zeros((len(population), embedder.dimension), dtype=np.float64)
                for copy in range(copies):
                    varied = need(self._variation).vary(
                        population.texts,
                        seed=self._seed_of(number, copy + 1),
                        progress=stage.update,
                        labels=population.labels,
                    )
                    total += embedder.embed(varied, progress=stage.update)
                embeddings = (total / copies).astype(np.float32)
        return replace(population, embeddings=embeddings).state()

    def _seed_of(self, round_number: int, *purpose: int) -> int:
        """A seed of public randomness, different for every round and purpose."""
        sequence = np.random.SeedSequence([self.config.seed, 3, round_number, *purpose])
        return int(sequence.generate_state(1, dtype=np.uint64)[0])
