"""Kernel sketch: users are asked once, and every later round is scored from that one release.

Ours. A user's answer is the mean of kernel features of its texts; the noisy sum over users is a
sketch of their distribution. Whatever is compared with it afterwards, in however many rounds, is
post-processing: POPri's pairs, or private evolution's survivors.

Papers:
    Rahimi, Recht: "Random Features for Large-Scale Kernel Machines" (NIPS 2007).
    Balog, Tolstikhin, Schölkopf: "Differentially Private Database Release via Kernel Mean
    Embeddings" (ICML 2018).
    Chen, Welling, Smola: "Super-Samples from Kernel Herding" (UAI 2010), for survivors.
    Hou, Wang, Zhu, Lazar, Fanti: POPri (ICML 2025), Algorithm 1, for preferences.
    Hou et al.: PrE-Text (ICML 2024), Algorithms 1 and 2, for evolution and expansion.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, final

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import NonNegativeInt, PositiveInt
from flower_privsyn.privacy import RandomSource
from flower_privsyn.private_path.engine import PrivateSumStrategy
from flower_privsyn.private_path.method import Outline, Question, RecordSource, Workplace, need
from flower_privsyn.private_path.needs import Look, Needs
from flower_privsyn.queries import Query
from flower_privsyn.runs import RESEARCH_STAMP
from flower_privsyn.runs.rounds import Rounds
from flower_privsyn.strategies.parts.asked_again import AskedAgain
from flower_privsyn.strategies.parts.judge import best, stops, validation_sketch
from flower_privsyn.strategies.parts.population import Population
from flower_privsyn.strategies.parts.preference_rounds import PreferenceRounds
from flower_privsyn.strategies.parts.preferences import (
    FREE_SETTINGS,
    MEMORY_SETTINGS,
    WRITING_SETTINGS,
    PreferenceConfig,
    PreferenceTrainer,
)
from flower_privsyn.strategies.parts.public_side import PublicSide
from flower_privsyn.strategies.parts.sketch import Sketch, kernel_of, sketch_query
from flower_privsyn.strategies.parts.variation import MaskFraction, mask_filling, masked_model

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.generation import TextGenerator, Variation
    from flower_privsyn.runs import RunDirectory

logger = logging.getLogger("flwr.privsyn")

#: What the refinement is, of which no release knows.
_REFINEMENT_SETTINGS = frozenset(
    {
        "refine",
        "objective",
        "refinement-rounds",
        "patience",
        "num-candidates",
        "variations",
        "variation-model",
        "mask-fraction",
        "mask-steps",
        "num-prompts",
        "responses-per-prompt",
        "rejected-rank",
        "loss",
        "beta",
        "lora-rank",
        "lora-alpha",
        "learning-rate",
        "learning-rate-schedule",
        "warmup-steps",
        "training-epochs",
        "training-batch-size",
        "reference",
    }
)


@dataclass(frozen=True, kw_only=True)
class KernelSketchConfig(PreferenceConfig):
    """Settings of `KernelSketch`.

    `num_rounds` counts releases, as everywhere: one by default, with the whole budget. Refinement
    rounds are not releases and have no price.
    """

    num_rounds: int = 1
    checkpoint: Literal["last", "sketch-mmd", "validation"] = "sketch-mmd"
    refine: Annotated[
        Literal["preference", "evolution"],
        'what the sketch is used for: "preference" trains the generator as POPri does; '
        '"evolution" evolves public text as private evolution does, and expands the survivors.',
    ] = "preference"
    objective: Annotated[
        Literal["witness", "mean"],
        '"witness": how much more the users\' texts resemble a candidate than the current '
        'population does, so that what is covered is not rewarded again; "mean": how much they '
        "resemble it, POPri's objective.",
    ] = "witness"
    refinement_rounds: Annotated[
        NonNegativeInt,
        "rounds of preferences or of evolution; 0 writes the synthetic texts with the public "
        "model.",
    ] = 20
    num_candidates: Annotated[PositiveInt, 'for "evolution", texts that survive a round.'] = 1024
    variations: Annotated[
        PositiveInt,
        'for "evolution", variations of each survivor that compete with it in the next round. The '
        "first round draws `num_candidates` x (1 + `variations`) public texts.",
    ] = 1
    variation_model: Annotated[
        str, 'for "evolution", the masked language model that varies texts.'
    ] = "privsyn-mlm"
    mask_fraction: Annotated[MaskFraction, "share of a text's tokens masked in one step."] = 0.3
    mask_steps: Annotated[PositiveInt, "how often a text is masked and filled."] = 2

    @property
    def needs_training(self) -> bool:
        """Evolution changes texts, not the generator."""
        return self.refine == "preference" and self.refinement_rounds > 0


@final
class KernelSketch(PrivateSumStrategy):
    """Release one kernel mean, then refine synthetic text against it for free.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            config = KernelSketchConfig(epsilon=1.0, refinement_rounds=10)
            KernelSketch(config).start(grid)
        ```

    Formal guarantee:
        Unit: user; relation: `config.relation`; `num_rounds` Gaussian releases (one by default) of
        the sum of kernel means of L2 sensitivity 1, composed with the sampling in use. Refinement,
        of any number of rounds, is post-processing of public text and those releases.

    Args:
        config: the settings.
        embedder: in place of `config.embedding_model`; nodes must use the same.
        generator: in place of `config.generator`.
        variation: in place of mask-filling with `config.variation_model`.
        trainer: in place of `flower_privsyn.training.train_preferences`.
        random: source of noise and coins; only tests pass one.
    """

    def __init__(
        self,
        config: KernelSketchConfig,
        *,
        embedder: Embedder | None = None,
        generator: TextGenerator | None = None,
        variation: Variation | None = None,
        trainer: PreferenceTrainer | None = None,
        random: RandomSource | None = None,
    ) -> None:
        KernelSketchConfig.refuse_other(config, strategy="KernelSketch")
        method = SketchRefinement(
            config, embedder=embedder, generator=generator, variation=variation, trainer=trainer
        )
        super().__init__(config, method, random=random)


class SketchRefinement(AskedAgain):
    """The server's half of `KernelSketch`: texts refined against a released kernel mean.

    Args:
        config: the settings.
        embedder: in place of `config.embedding_model`.
        generator: in place of `config.generator`.
        variation: in place of mask-filling with `config.variation_model`.
        trainer: in place of `flower_privsyn.training.train_preferences`.
    """

    changeable = MEMORY_SETTINGS | FREE_SETTINGS
    changeable_once_released = WRITING_SETTINGS

    def __init__(
        self,
        config: KernelSketchConfig,
        *,
        embedder: Embedder | None = None,
        generator: TextGenerator | None = None,
        variation: Variation | None = None,
        trainer: PreferenceTrainer | None = None,
    ) -> None:
        self.config = config
        self._embedder = embedder
        self.given_writer = generator
        self._variation = variation
        self._trainer = trainer
        self._public: PublicSide | None = None
        self._rounds: PreferenceRounds | None = None
        self._validation: Sketch | None = None
        self._kernel = kernel_of(config, bandwidth=config.bandwidth or 1.0)

    @property
    def queries(self) -> tuple[Query, ...]:
        """The kernel mean; its bandwidth is settled by `prepare`."""
        return (self._kernel,)

    def needs(self) -> Needs:
        """Models and public text, and what trains adapters or varies texts."""
        needs = PublicSide.needs(self.config)
        if self.config.refine != "evolution":
            return needs
        return replace(needs, models=(*needs.models, masked_model(self.config)))

    def outline(self, look: Look) -> Outline:
        """The kernel mean in every round."""
        source = RecordSource(fingerprint="", dimension=look.dimension(self.config.embedding_model))
        question = Question(self._kernel, self._kernel.broadcast(source.dimension))
        return Outline(sources=(source,), question=lambda _: question)

    @property
    def stamp(self) -> str | None:
        """Marks a run that chooses its round by private text."""
        return RESEARCH_STAMP if self.config.research else None

    @property
    def rounds(self) -> PreferenceRounds:
        """Candidates and adapters of the refinement; available from `start` on."""
        return need(self._rounds)

    def free_settings(self, run: RunDirectory, *, all_released: bool) -> frozenset[str]:
        """With the releases made, the refinement is free to be another until it has begun."""
        free = super().free_settings(run, all_released=all_released)
        if all_released and not run.refinement.folder.exists():
            free |= _REFINEMENT_SETTINGS
        return free

    # ------------------------------------------------------------------ the release

    def prepare(self, place: Workplace) -> tuple[RecordSource, ...]:
        """Load the models and the public text, and settle the kernel."""
        config, self._place = self.config, place
        self._public = self._rounds = None  # of an earlier start, before other models take memory
        public = self._public = PublicSide.load(
            config,
            embedder=self._embedder,
            generator=self.given_writer,
            check_training=config.needs_training and self._trainer is None,
        )
        if config.refine == "evolution" and self._variation is None:
            self._variation = mask_filling(config)
        self._rounds = PreferenceRounds(
            config,
            public,
            rounds=self.run.refinement,
            progress=self.progress,
            trainer=self._trainer,
        )
        self._rounds.rehearse(training=config.needs_training)
        self._kernel = sketch_query(self.run.path, config, public=public, progress=self.progress)
        if config.checkpoint == "validation":
            self._validation = validation_sketch(
                config, public, query=self._kernel, progress=self.progress
            )
        return (public.source,)

    def first(self) -> Question:
        """The length of the embeddings: all else the users need is in the query."""
        dimension = self._need_public().embedder.dimension
        return Question(self._kernel, self._kernel.broadcast(dimension))

    def sketch(self) -> Sketch | None:
        """All releases of the run together; None when every round was lost."""
        return Sketch.combine(self._kernel, self.releases())

    # ------------------------------------------------------------------ refinement

    def finish(self) -> dict[str, Any]:
        """Refine against the sketch, then write the synthetic texts."""
        sketch = self.sketch()
        if sketch is None:
            raise RuntimeError("a run that released nothing has no result")
        sketch.save(self.run.path)
        if self.config.refinement_rounds == 0:
            return self.rounds.corpus(self.run, round_number=1)
        if self.config.refine == "preference":
            return self._prefer(sketch)
        return self._evolve(sketch)

    def _prefer(self, sketch: Sketch) -> dict[str, Any]:
        """POPri's rounds, scored from the sketch."""
        config, rounds = self.config, self.rounds
        last = config.refinement_rounds
        judge = self._validation or sketch
        distances: dict[int, float] = {}
        for number in range(1, config.refinement_rounds + 1):
            candidates = rounds.candidates(number)
            distances[number] = judge.squared_mmd(candidates.embeddings)
            if stops(distances, patience=config.patience):
                last = number - 1
                logger.info(
                    "refinement ends before round %d: the responses have not come nearer for %d "
                    "rounds",
                    number,
                    config.patience,
                )
                break
            record = rounds.learn(number, self._scores(sketch, candidates.embeddings))
            logger.info(
                "refinement round %d: squared distance %.6f, %d pairs",
                number,
                distances[number],
                record["pairs"],
            )
        chosen = last + 1
        if config.checkpoint != "last":
            distances[chosen] = judge.squared_mmd(rounds.candidates(chosen).embeddings)
            chosen = best(distances)
        figures = rounds.corpus(self.run, round_number=chosen)
        return {
            **figures,
            "squared_mmd": {str(number): value for number, value in distances.items()},
            "writer": f"the adapter that wrote in refinement round {chosen}",
        }

    def _scores(
        self, sketch: Sketch, embeddings: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float64]:
        """One score per candidate; the candidates of the round are its population."""
        if self.config.objective == "mean":
            return sketch.mean_scores(embeddings)
        return sketch.witness_scores(embeddings, embeddings)

    def _evolve(self, sketch: Sketch) -> dict[str, Any]:
        """Private evolution's rounds, with survivors chosen from the sketch.

        Survivors compete with their variations, so that no round can lose what an earlier one
        found: scoring is free and without new noise.
        """
        config = self.config
        evolution = SketchEvolution(
            sketch,
            rounds=self.run.refinement,
            objective=config.objective,
            num_candidates=config.num_candidates,
        )
        judge = self._validation or sketch
        distances: dict[int, float] = {}
        for number in range(1, config.refinement_rounds + 1):
            survivors = evolution.survivors(number)
            if survivors is None:
                survivors = evolution.choose(number, self._pool(evolution, number))
            if survivors.embeddings is None:
                raise RuntimeError("survivors are stored with their embeddings")
            distances[number] = judge.squared_mmd(survivors.embeddings)
            logger.info("refinement round %d: squared distance %.6f", number, distances[number])
            if stops(distances, patience=config.patience):
                break
        chosen = max(distances) if config.checkpoint == "last" else best(distances)
        survivors = evolution.survivors(chosen)
        if survivors is None:
            raise RuntimeError(f"the survivors of round {chosen} are gone")
        figures = self.rounds.corpus(
            self.run,
            round_number=chosen,
            seeds=survivors.texts,
            ids=survivors.ids,
            source="expanded",
        )
        return {
            **figures,
            "survivors": len(survivors),
            "squared_mmd": {str(number): value for number, value in distances.items()},
        }

    def _pool(self, evolution: SketchEvolution, number: int) -> Population:
        """What competes in a round: public texts in the first, then survivors and variations."""
        config, public = self.config, self._need_public()
        if number == 1:
            chooser = np.random.default_rng(self.rounds.seed("pool"))
            size = min(len(public.seeds), config.num_candidates * (1 + config.variations))
            drawn = np.sort(chooser.choice(len(public.seeds), size=size, replace=False))
            texts = [public.seeds[index] for index in drawn]
            fresh = Population.create(
                texts,
                round_number=1,
                source="public",
                parents=[(f"public:{index}",) for index in drawn],
            )
            return fresh.with_embeddings(self._embed(number, fresh.texts))
        parents, variation = evolution.survivors(number - 1), self._variation
        if parents is None or parents.embeddings is None or variation is None:
            raise RuntimeError(f"round {number} begins before round {number - 1} has survivors")
        known = set(parents.texts)
        texts, origins = [], []
        total = config.variations * len(parents)
        with self.progress.stage(f"Refinement round {number}: vary survivors", total) as stage:
            for copy in range(config.variations):
                varied = variation.vary(
                    parents.texts,
                    seed=self.rounds.seed("variation", number, copy),
                    progress=stage.update,
                )
                for text, parent in zip(varied, parents.ids, strict=True):
                    if text.strip() and text not in known:
                        known.add(text)
                        texts.append(text)
                        origins.append((parent,))
        fresh = Population.create(texts, round_number=number, source="variation", parents=origins)
        return Population(
            texts=parents.texts + fresh.texts,
            ids=parents.ids + fresh.ids,
            parents=parents.parents + fresh.parents,
            source=parents.source + fresh.source,
            embeddings=np.concatenate((parents.embeddings, self._embed(number, fresh.texts))),
        )

    def _embed(self, number: int, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        embedder = self._need_public().embedder
        if not texts:
            return np.empty((0, embedder.dimension), dtype=np.float32)
        with self.progress.stage(f"Refinement round {number}: embed", len(texts)) as stage:
            return embedder.embed(texts, progress=stage.update)

    def _need_public(self) -> PublicSide:
        return need(self._public)


class SketchEvolution:
    """Survivors on disk, chosen by a sketch: of each round `population.parquet`.

    Args:
        sketch: what survivors are to resemble.
        rounds: where the files of the rounds are.
        objective: "witness" chooses the texts that together resemble the users' texts (kernel
            herding); "mean" those that do so one by one.
        num_candidates: survivors of a round.
    """

    def __init__(
        self,
        sketch: Sketch,
        *,
        rounds: Rounds,
        objective: Literal["witness", "mean"],
        num_candidates: int,
    ) -> None:
        self._sketch = sketch
        self._rounds = rounds
        self._objective = objective
        self._num_candidates = num_candidates

    def survivors(self, number: int) -> Population | None:
        """The survivors of a round, with their embeddings; None before it."""
        import pyarrow.parquet as pq

        file = self._rounds.files(number).population
        if not file.exists():
            return None
        survived = pq.read_table(file, columns=["survived"]).column("survived").to_numpy()
        return Population.from_parquet(file).take(np.flatnonzero(survived))

    def choose(self, number: int, pool: Population) -> Population:
        """Let `num_candidates` texts of a pool survive, and write the round down."""
        if pool.embeddings is None:
            raise ValueError("the pool must be embedded")
        if self._objective == "witness":
            chosen = self._sketch.herd(pool.embeddings, self._num_candidates)
        else:
            scores = self._sketch.mean_scores(pool.embeddings)
            chosen = np.argsort(-scores, kind="stable")[: self._num_candidates]
        survived = np.zeros(len(pool), dtype=np.bool_)
        survived[chosen] = True
        files = self._rounds.files(number)
        files.folder.mkdir(parents=True, exist_ok=True)
        pool.to_parquet(files.population, survived=survived.tolist())
        return pool.take(np.flatnonzero(survived))
