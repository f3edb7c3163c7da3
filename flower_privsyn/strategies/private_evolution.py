"""Private evolution of synthetic text, user level, federated; PrE-Text is its preset.

Papers:
    Hou, Shrivastava, Zhan, Conway, Le, Sagar, Fanti, Lazar: "PrE-Text: Training Language Models on
    Private Federated Data in the Age of LLMs" (ICML 2024), Algorithms 1 and 2 (Histogram).
    Lin, Gopi, Kulkarni, Nori, Yekhanin: "Differentially Private Synthetic Data via Foundation
    Model APIs 1: Images" (2023), Algorithm 1.

Algorithm 1 of PrE-Text, line by line:
    2      S_1 <- N_syn random public samples                          `Evolution.first`
    6      Histogram: Algorithm 2
    7, 8   draw N_syn survivors with replacement, P ~ histogram        `Resample`
    9      S_{t+1} <- Variation(survivors)                             `Evolution.following`
    11     Expand(the union of the survivors of all rounds)            `finish`
Algorithm 2:
    8-13   users vote for the nearest sample; the distance is to the
           mean embedding of K variations of it (section 3, lookahead) `NearestNeighborHistogram`,
                                                                       `Evolution._lookahead`
    14     Gaussian noise, here on the sum                             `PrivateSumStrategy`
    15, 16 votes are summed                                            `PrivateSumStrategy`
    17     subtract the threshold H, cut at zero                       `Resample`
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Unpack, final

import numpy as np

from flower_privsyn.checks import NonNegativeInt, check_choice
from flower_privsyn.errors import ConfigError, FederationError
from flower_privsyn.files import write_json
from flower_privsyn.generation.generator_settings import SERVER_SETTINGS
from flower_privsyn.privacy import RandomSource
from flower_privsyn.private_path.engine import PrivateSumStrategy
from flower_privsyn.private_path.method import Outline, Question, RecordSource, Workplace, need
from flower_privsyn.private_path.needs import Look, Needs
from flower_privsyn.private_path.release import ReleasedSum
from flower_privsyn.queries import Query
from flower_privsyn.runs.rounds import EXPANDED
from flower_privsyn.strategies.more_text import MoreText
from flower_privsyn.strategies.parts.evolution import (
    Evolution,
    EvolutionConfig,
    survivor_records,
)
from flower_privsyn.strategies.parts.judge import MomentsJudge, best, stops
from flower_privsyn.strategies.parts.moment_settings import (
    DIMENSIONS,
    MomentDimensions,
    SpaceChoice,
)
from flower_privsyn.strategies.parts.moments import MomentSketch
from flower_privsyn.strategies.parts.population import Population, survivors
from flower_privsyn.strategies.parts.selected_text import (
    SKETCH_MODEL,
    InitialText,
    SelectedText,
    SketchModel,
    check_initial_text,
)

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.generation import Expand, TextGenerator, Variation
    from flower_privsyn.preset_keywords import PrivateEvolutionKeywords

logger = logging.getLogger("flwr.privsyn")

#: What the authors' experiments subtract at epsilon 7.58: 8 samples x 1.541 x sqrt(2) votes.
PRE_TEXT_THRESHOLD_VOTES = 8 * 1.541 * math.sqrt(2)


@dataclass(frozen=True, kw_only=True)
class PrivateEvolutionConfig(EvolutionConfig):
    """Settings of `PrivateEvolution`; the defaults are PrE-Text with our corrections.

    References:
        Hou et al. 2024, section 4 and appendix; the defaults are from there unless said.
    """

    num_rounds: int = 11
    delta: float = 3e-6
    initial_text: InitialText = "public"
    sketch_model: SketchModel = SKETCH_MODEL
    prompt: Annotated[str, "the expansion prompt, a bundled name or a JSON file."] = "pre-text"
    expand_samples: Annotated[
        NonNegativeInt, 'synthetic texts to write; 0 with `output = "survivors"` alone.'
    ] = 2000
    survivors_of: Annotated[
        Literal["all", "fred"],
        'which rounds\' survivors are expanded: "all" (PrE-Text), or "fred": those of the round '
        "whose survivors have the smallest Fréchet distance to a released mean and covariance "
        "(docs/fred.md), which is the first of the `num_rounds` releases.",
    ] = "all"
    survivor_patience: Annotated[
        NonNegativeInt,
        "end the rounds when survivors have not come nearer for so many of them, at the cost of "
        'all that were planned; 0 for never. Needs `survivors_of = "fred"`.',
    ] = 0
    moment_dimensions: MomentDimensions = DIMENSIONS
    survivor_weights: Annotated[
        Literal["distinct", "counted"],
        '"distinct": a text that survived in several rounds is one seed; "counted": it is as many '
        "seeds, as in the authors' code.",
    ] = "distinct"
    opening_words: Annotated[
        NonNegativeInt,
        "words of a survivor that an expanded text begins with: a small model begins in the middle "
        "of a sentence by itself. 0 in PrE-Text.",
    ] = 0
    refuse_repetition: Annotated[
        bool,
        "drop an expanded text that says the same three words twice, as small models do; PrE-Text "
        "keeps it.",
    ] = False
    output: Annotated[
        Literal["expanded", "survivors", "both"],
        'what `synthetic.jsonl` holds: "expanded" texts (PrE-Text), "survivors", or "both".',
    ] = "expanded"

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if self.output != "survivors" and self.expand_samples == 0:
            raise ConfigError(
                f'expand-samples = 0 needs output = "survivors", got output = "{self.output}"'
            )
        if self.survivor_patience and self.survivors_of != "fred":
            raise ConfigError(
                f'survivor-patience = {self.survivor_patience} needs survivors-of = "fred", got '
                f'survivors-of = "{self.survivors_of}": nothing else that is released says how '
                "near a round came"
            )
        if self.survivors_of == "fred" and self.num_rounds < 2:
            raise ConfigError(
                'survivors-of = "fred" makes the first release mean and covariance, so num-rounds '
                f"must be at least 2, got {self.num_rounds}"
            )
        check_initial_text(self.initial_text, self.num_rounds - (self.survivors_of == "fred"))

    def released_judge(self) -> MomentsJudge | None:
        """What is released for rounds to be compared with; None where nothing is."""
        if self.survivors_of == "all":
            return None
        choice = SpaceChoice(
            dimensions=self.moment_dimensions,
            public_text=self.public_text,
            max_tokens=self.max_tokens,
            precision=self.broadcast_precision,
            seed=self.seed,
        )
        return MomentsJudge(choice, max_samples=self.max_samples)

    @classmethod
    def pre_text(
        cls, *, epsilon: float | None = None, **overrides: Unpack[PrivateEvolutionKeywords]
    ) -> Self:
        """PrE-Text: 11 rounds, full participation, 64-token samples, at most 8 per user.

        Noise is added exactly as accounted, the cap is enforced on the client, masks are counted
        per text and the threshold follows the noise. `pre_text_as_printed` has the paper's votes.
        """
        preset: dict[str, Any] = {"num_candidates": 2048, "lookahead": 4, **overrides}
        return cls(epsilon=epsilon, **preset)

    @classmethod
    def pre_text_as_printed(
        cls, *, epsilon: Literal["1.29", "7.58"], **overrides: Unpack[PrivateEvolutionKeywords]
    ) -> Self:
        """The published settings of one of PrE-Text's two budgets.

        Noise multiplier 11.3 (epsilon 1.29 by the papers' RDP accountant) or 2.31 (7.58), N_syn
        1,024 or 2,048, H in votes, embeddings in float32. Two things stay this package's: the
        models (printed: RoBERTa-large and LLaMA-2-7B) and how many texts are written.

        Raises:
            ConfigError: no such epsilon is printed.
        """
        check_choice("epsilon", epsilon, ("1.29", "7.58"))
        strong = epsilon == "1.29"
        preset: dict[str, Any] = {
            "noise_multiplier": 11.3 if strong else 2.31,
            "accountant": "rdp",
            "num_candidates": 1024 if strong else 2048,
            "threshold": PRE_TEXT_THRESHOLD_VOTES * (5.9 if strong else 1.0),
            "threshold_unit": "votes",
            "broadcast_precision": "float32",
            **overrides,
        }
        return cls(**preset)


@final
class PrivateEvolution(PrivateSumStrategy):
    """Evolve public text towards private text by differentially private votes.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            config = PrivateEvolutionConfig.pre_text(epsilon=1.29, num_users=1250, num_nodes=50)
            PrivateEvolution(config).start(grid)
        ```

    Formal guarantee:
        Unit: user; relation: `config.relation`; `num_rounds` Gaussian releases of a histogram of
        L2 sensitivity `max_samples` (or `clip_to`), composed with the sampling in use; with
        `initial_text = "selected"` the first is a joint sketch of sensitivity 1, with
        `survivors_of = "fred"` one before the histograms a vector of moments of sensitivity 1. All
        else is post-processing of public text and releases.

    Args:
        config: the settings.
        embedder: in place of `config.embedding_model`; nodes must use the same.
        variation: in place of mask-filling with `config.variation_model`.
        generator: in place of `config.generator`.
        random: source of noise and coins; only tests pass one.

    References:
        Hou et al. 2024 (PrE-Text), Algorithms 1 and 2.
    """

    def __init__(
        self,
        config: PrivateEvolutionConfig,
        *,
        embedder: Embedder | None = None,
        variation: Variation | None = None,
        generator: TextGenerator | None = None,
        random: RandomSource | None = None,
    ) -> None:
        PrivateEvolutionConfig.refuse_other(config, strategy="PrivateEvolution")
        method = EvolutionByVotes(
            config, embedder=embedder, variation=variation, generator=generator
        )
        super().__init__(config, method, random=random)


class EvolutionByVotes(Evolution):
    """The server's half of `PrivateEvolution`: a population of texts, chosen by released votes.

    Args:
        config: the settings.
        embedder: in place of `config.embedding_model`.
        variation: in place of mask-filling with `config.variation_model`.
        generator: in place of `config.generator`.
    """

    # Nothing but the expansion after the last release reads these, or no text depends on them.
    changeable = SERVER_SETTINGS | {
        "generator",
        "generator-interface",
        "generator-parameters",
        "prompt",
        "expand-samples",
        "max-new-tokens",
        "opening-words",
        "refuse-repetition",
        "output",
        "survivor-weights",
    }
    changeable_once_released = frozenset({"temperature", "top-p"})

    config: PrivateEvolutionConfig

    def __init__(
        self,
        config: PrivateEvolutionConfig,
        *,
        embedder: Embedder | None = None,
        variation: Variation | None = None,
        generator: TextGenerator | None = None,
    ) -> None:
        super().__init__(config, embedder=embedder, variation=variation, generator=generator)
        self._selected: SelectedText | None = None
        if config.initial_text == "selected":
            self._selected = SelectedText(config, needed=config.num_candidates, least=1)
        self._judge = config.released_judge()

    @property
    def writes(self) -> bool:
        """Whether survivors are expanded."""
        return self.config.output != "survivors"

    @property
    def queries(self) -> tuple[Query, ...]:
        """Nearest-neighbour votes, after what is released before them."""
        first = () if self._selected is None else (self._selected.query,)
        judge = () if self._judge is None else (self._judge.query,)
        return (*first, *judge, *super().queries)

    def needs(self) -> Needs:
        """Embedder, mask-filling model, public text; and what expands the survivors."""
        needs = replace(super().needs(), prompt=self.config.prompt)
        return needs if self._selected is None else self._selected.needs_with(needs)

    def outline(self, look: Look) -> Outline:
        """Votes for as many candidates in every round, after what is released before them."""
        outline = super().outline(look)
        if self._judge is not None:
            asked, votes = self._judge.outline(outline.sources[0].dimension), outline.question
            outline = replace(
                outline, question=lambda number: asked if number == 1 else votes(number - 1)
            )
        return outline if self._selected is None else self._selected.before(outline, look)

    def prepare(self, place: Workplace) -> tuple[RecordSource, ...]:
        """Load the models and the public text."""
        sources = super().prepare(place)
        if self._judge is not None:
            self._judge.prepare(place, need(self._embedder))
        return sources if self._selected is None else (self._selected.prepare(place), *sources)

    def _rehearse(self) -> None:
        super()._rehearse()
        if self.writes:
            # The generator is needed after the last release: it must not be missing then.
            with self.progress.stage("Try the generator", total=None):
                self._expansion().rehearse(self._seeds)

    def first(self) -> Question:
        """Line 2; before it what line 2 is to draw from, and what rounds are to be judged by."""
        return self._judge_or(1) if self._selected is None else self._selected.question()

    def _judge_or(self, number: int) -> Question:
        """What rounds are judged by where it is released, else the candidates of a round."""
        return self._begin(number) if self._judge is None else self._judge.question()

    def _drawn(self, number: int) -> Population:
        """Line 2: among all public samples, or among those that a sketch chose."""
        if self._selected is None:
            return super()._drawn(number)
        config = self.config
        tokenizer = need(self._embedder).tokenizer
        seeds = self._selected.texts(tokenizer=tokenizer) or self._seeds
        # Of chosen texts, many of which may be alike, fewer than `num_candidates` may be left.
        again = len(seeds) < config.num_candidates
        chooser = np.random.default_rng([config.seed, 1])
        drawn = chooser.choice(len(seeds), size=config.num_candidates, replace=again)
        return Population.create([seeds[i] for i in drawn], round_number=number, source="selected")

    def following(self, release: ReleasedSum, *, last: bool) -> Question | None:
        """Lines 7 to 9, and 17 of Algorithm 2: choose survivors, keep them, vary them."""
        number = release.round_number
        if not self._has_candidates(number):
            if self._selected is not None and self._selected.asked_in(number):
                self._selected.choose(release)
                return None if last else self._judge_or(number + 1)
            need(self._judge).keep(release)
            return None if last else self._begin(number + 1)
        question = super().following(release, last=last)
        if question is not None and stops(
            self._distances(), patience=self.config.survivor_patience
        ):
            logger.info(
                "round %d: survivors have not come nearer for %d rounds; no more is asked",
                number,
                self.config.survivor_patience,
            )
            return None
        return question

    def _distances(self) -> dict[int, float]:
        """How far the survivors of each round are from what was released to judge them by."""
        judge = None if self._judge is None else self._judge.judge()
        if judge is None:
            return {}
        found = {}
        for number, files in self.run.rounds:
            chosen = survivors(self.run, counted=True, rounds=[number])
            if not len(chosen):
                continue
            known = files.record("judged").get(judge.figure)
            if known is None:
                # The texts, and not what stood for them in the round: a mean of variations.
                with self.progress.stage(f"Round {number}: embed survivors", len(chosen)) as stage:
                    embeddings = need(self._embedder).embed(chosen.texts, progress=stage.update)
                known = judge.distance(embeddings)
                write_json(files.judged, {judge.figure: known})
            found[number] = float(known)
        return found

    def restore(self, round_number: int) -> Question:
        """The stored candidates of a round; a sketch that was lost is asked for again."""
        if self._has_candidates(round_number):
            return super().restore(round_number)
        if self._selected is not None and self._selected.asked_in(round_number):
            return self._selected.question()
        return need(self._judge).question()

    def carry_over(self, round_number: int) -> None:
        """The candidates of a lost round stand again in the next one, under their old ids."""
        if self._has_candidates(round_number):
            super().carry_over(round_number)

    # ------------------------------------------------------------------ the result

    def finish(self) -> dict[str, Any]:
        """Algorithm 1, line 11: expand the survivors of all rounds into the synthetic corpus.

        Expanded texts are written down batch by batch, so that a generator that fails, or a run
        that is killed, loses none; a resumed run writes the ones that are missing.
        """
        config = self.config
        distances = self._distances()
        chosen = best(distances) if distances else None
        seeds = self._all_survivors(chosen)
        records: list[dict[str, Any]] = []
        if config.output in ("survivors", "both"):
            records += survivor_records(seeds)
        dropped: dict[str, int] = {}
        if self.writes:
            expanded, dropped = self._expand(seeds)
            records += expanded
        self.run.write_synthetic(records)
        self._expanded_file.unlink(missing_ok=True)
        return {
            "synthetic_texts": len(records),
            "survivors": len(set(seeds.texts)),
            "dropped": dropped,
            **self._judged(distances, chosen),
        }

    def _judged(self, distances: dict[int, float], chosen: int | None) -> dict[str, Any]:
        if self._judge is None:
            return {}
        if chosen is None:
            logger.warning("%s was lost: survivors of all rounds are taken", self._judge.known_as)
            return {}
        named = {str(number): value for number, value in distances.items()}
        return {MomentSketch.figure: named, "survivors_of_round": chosen}

    def _expand(self, seeds: Population) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Expand until `expand_samples` texts are kept; what an earlier attempt kept counts."""
        from flower_privsyn.strategies.parts.synthesis import expand_resumably, refuse_nothing

        config, expand = self.config, self._expansion()
        records, dropped = expand_resumably(
            expand,
            seeds.texts,
            ids=seeds.ids,
            num_samples=config.expand_samples,
            kept=self._expanded_file,
            seed=self._seed_of(0, 2),
            round_number=config.num_rounds,
            source="expanded",
            stage="Expand survivors",
            progress=self.progress,
        )
        refuse_nothing(
            records, dropped, num_samples=config.expand_samples, generator=expand.generator.name
        )
        return records, dropped

    def _expansion(self) -> Expand:
        return MoreText.like(self.config).expansion(need(self._generator))

    @property
    def _expanded_file(self) -> Path:
        """Expanded texts kept so far; gone once `synthetic.jsonl` holds them."""
        return self.run.path / EXPANDED

    def _all_survivors(self, chosen: int | None) -> Population:
        """The union of the survivors of all rounds, or those of the round that was chosen."""
        found = survivors(
            self.run,
            counted=self.config.survivor_weights == "counted",
            rounds=None if chosen is None else [chosen],
        )
        if len(found):
            return found
        if self._selected is not None:
            logger.warning("no votes were released: what the joint sketch chose is expanded")
            return self._drawn(self.config.num_rounds)
        raise FederationError(
            "no votes were released, and mean and covariance alone choose no text: a result would "
            "be public text under the name of a private one. Resumed, the run asks again what was "
            "discarded at no charge; where nothing was, start a new run"
        )
