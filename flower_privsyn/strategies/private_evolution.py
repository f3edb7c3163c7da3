"""Private evolution of synthetic text, user level, federated; PrE-Text is its preset.

Papers:
    Hou, Shrivastava, Zhan, Conway, Le, Sagar, Fanti, Lazar: "PrE-Text: Training Language Models on
    Private Federated Data in the Age of LLMs" (ICML 2024), Algorithms 1 (DP seed collection) and
    2 (Expand).
    Lin, Gopi, Kulkarni, Nori, Yekhanin: "Differentially Private Synthetic Data via Foundation
    Model APIs 1: Images" (2023), Algorithm 1.

Algorithm 1 of PrE-Text, line by line:
    1      S_1 <- N_syn random public samples                          `first`
    3-5    lookahead: mean embedding of K variations of each sample    `_lookahead`
    6-10   users vote for the nearest sample, votes are summed         `NearestNeighborHistogram`
    11     Gaussian noise                                              `PrivateSumStrategy`
    12     subtract the threshold H, cut at zero                       `_survivors`
    13     draw N_syn survivors with replacement, P ~ histogram        `_survivors`
    14     S_{t+1} <- Variation(survivors)                             `following`
Algorithm 2: Expand(all survivors of all rounds)                       `finish`
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, Unpack, final

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located
from flower_privsyn.generation.api_key import API_KEY_VARIABLE, ApiKeyVariable, check_generator
from flower_privsyn.privacy import RandomSource
from flower_privsyn.private_path.engine import PrivateSumStrategy
from flower_privsyn.private_path.method import Method, Outline, Question, RecordSource, Workplace
from flower_privsyn.private_path.needs import Look, Needs
from flower_privsyn.private_path.release import ReleasedSum
from flower_privsyn.private_path.settings import PrivateSumConfig
from flower_privsyn.queries import NearestNeighborHistogram, Query
from flower_privsyn.queries.nearest_neighbor import VoteClip
from flower_privsyn.runs.rounds import RoundFiles
from flower_privsyn.strategies.more_text import MoreText
from flower_privsyn.strategies.parts.likelihood import (
    LikelihoodModel,
    LikelihoodQuantile,
    WholeSentences,
    hold_to_public_text,
)
from flower_privsyn.strategies.parts.outlines import about_candidates, evolution_needs
from flower_privsyn.strategies.parts.population import Population, survivors
from flower_privsyn.strategies.parts.selected_text import (
    SKETCH_MODEL,
    InitialText,
    SelectedText,
    SketchModel,
    check_initial_text,
)
from flower_privsyn.strategies.parts.variation import MaskFraction, MaskUnitSetting, mask_filling

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.generation import Expand, TextGenerator, Variation
    from flower_privsyn.host.progress import Progress
    from flower_privsyn.preset_keywords import PrivateEvolutionKeywords
    from flower_privsyn.runs import RunDirectory

logger = logging.getLogger("flwr.privsyn")

T = TypeVar("T")

#: What the authors' experiments subtract at epsilon 7.58: 8 samples x 1.541 x sqrt(2) votes.
PRE_TEXT_THRESHOLD_VOTES = 8 * 1.541 * math.sqrt(2)


@dataclass(frozen=True, kw_only=True)
class PrivateEvolutionConfig(PrivateSumConfig):
    """Settings of `PrivateEvolution`; the defaults are PrE-Text with our corrections.

    References:
        Hou et al. 2024, section 4 and appendix; values above are from there unless said.
    """

    num_rounds: int = 11
    delta: float = 3e-6
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
        "scaled to norm `clip_to`, with less noise.",
    ] = "count"
    clip_to: Annotated[NonNegativeFloat, 'norm for `clip = "l2"`; 0 for sqrt(max_samples).'] = 0.0
    threshold: Annotated[NonNegativeFloat, "H, subtracted from the noisy votes."] = 1.0
    threshold_unit: Annotated[
        Literal["noise-std", "votes"],
        '"noise-std": H is `threshold` standard deviations of the noise; "votes": H is `threshold` '
        "votes, as in PrE-Text.",
    ] = "noise-std"
    public_text: Annotated[
        str, 'seeds: "bundled", or a JSONL file with `text` and no person\'s data.'
    ] = "bundled"
    initial_text: InitialText = "public"
    sketch_model: SketchModel = SKETCH_MODEL
    variation_model: Annotated[str, "masked language model that varies texts."] = "privsyn-mlm"
    mask_fraction: Annotated[
        MaskFraction, "share of a text's tokens masked in one step; 0.3 in PrE-Text."
    ] = 0.3
    mask_steps: Annotated[PositiveInt, "how often a text is masked and filled; 2 in PrE-Text."] = 2
    mask_unit: MaskUnitSetting = "token"
    whole_sentences: WholeSentences = False
    likelihood_quantile: LikelihoodQuantile = 0.0
    likelihood_model: LikelihoodModel = "privsyn-lm"
    generator: Annotated[
        str,
        'causal language model that expands the survivors: a name, a folder, "gguf:FILE" for '
        'llama.cpp, or "http://host:port/v1#model" for an OpenAI-compatible server like vLLM\'s.',
    ] = "privsyn-lm"
    generator_api_key_env: ApiKeyVariable = API_KEY_VARIABLE
    prompt: Annotated[str, "the expansion prompt, a bundled name or a JSON file."] = "pre-text"
    expand_samples: Annotated[
        NonNegativeInt, "synthetic texts to write; 0 writes the survivors themselves."
    ] = 2000
    max_new_tokens: Annotated[PositiveInt, "tokens per synthetic text; 85 in PrE-Text."] = 85
    temperature: Annotated[PositiveFloat, "sampling temperature of variation and expansion."] = 1.0
    top_p: Annotated[float, Gt(0), Le(1), "nucleus of variation and expansion."] = 1.0
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
        # First, because its sentences do not quote what may be a key.
        check_generator(self.generator, self.generator_api_key_env)
        super().__post_init__()
        if self.output != "survivors" and self.expand_samples == 0:
            raise ConfigError(
                f'expand-samples = 0 needs output = "survivors", got output = "{self.output}"'
            )
        check_initial_text(self.initial_text, self.num_rounds)
        self.histogram()

    def histogram(self) -> NearestNeighborHistogram:
        """The query these settings ask."""
        return NearestNeighborHistogram(
            max_samples=self.max_samples, clip=self.clip, clip_to=self.clip_to
        )

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
        1,024 or 2,048, H in votes, survivors counted once per round.
        """
        strong = epsilon == "1.29"
        preset: dict[str, Any] = {
            "noise_multiplier": 11.3 if strong else 2.31,
            "accountant": "rdp",
            "num_candidates": 1024 if strong else 2048,
            "threshold": PRE_TEXT_THRESHOLD_VOTES * (5.9 if strong else 1.0),
            "threshold_unit": "votes",
            "survivor_weights": "counted",
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
        `initial_text = "selected"` the first is a joint sketch of sensitivity 1. All else is
        post-processing of public text and released histograms.

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
        method = EvolutionByVotes(
            config, embedder=embedder, variation=variation, generator=generator
        )
        super().__init__(config, method, random=random)


class EvolutionByVotes(Method):
    """The server's half of `PrivateEvolution`: a population of texts, chosen by released votes.

    Args:
        config: the settings.
        embedder: in place of `config.embedding_model`.
        variation: in place of mask-filling with `config.variation_model`.
        generator: in place of `config.generator`.
    """

    # Nothing but the expansion after the last release reads these.
    changeable = frozenset(
        {
            "generator",
            "generator-api-key-env",
            "prompt",
            "expand-samples",
            "max-new-tokens",
            "opening-words",
            "refuse-repetition",
            "output",
            "survivor-weights",
        }
    )
    changeable_once_released = frozenset({"temperature", "top-p"})

    def __init__(
        self,
        config: PrivateEvolutionConfig,
        *,
        embedder: Embedder | None = None,
        variation: Variation | None = None,
        generator: TextGenerator | None = None,
    ) -> None:
        self.config = config
        self._query = config.histogram()
        self._embedder = embedder
        self._variation = variation
        self._generator = generator
        self._place: Workplace | None = None
        self._population: Population | None = None
        self._careful: Variation | None = None
        self._seeds: list[str] = []
        self._selected: SelectedText | None = None
        if config.initial_text == "selected":
            self._selected = SelectedText(config, needed=config.num_candidates, least=1)

    @property
    def queries(self) -> tuple[Query, ...]:
        """Nearest-neighbour votes, after a joint sketch where one chooses what they begin with."""
        first = () if self._selected is None else (self._selected.query,)
        return (*first, self._query)

    def needs(self) -> Needs:
        """Embedder, mask-filling model, public text; and what expands the survivors."""
        writes = self.config.output != "survivors"
        needs = evolution_needs(
            self.config,
            judge=self.config.likelihood_model if self.config.likelihood_quantile > 0 else "",
            generator=self.config.generator if writes else "",
        )
        return needs if self._selected is None else self._selected.needs_with(needs)

    def outline(self, look: Look) -> Outline:
        """Votes for as many candidates in every round."""
        dimension, m = look.dimension(self.config.embedding_model), self.config.num_candidates
        outline = about_candidates(self._query, candidates=m, dimension=dimension)
        return outline if self._selected is None else self._selected.before(outline, look)

    @property
    def run(self) -> RunDirectory:
        """The run directory; available from `prepare` on."""
        return _need(self._place).run

    @property
    def progress(self) -> Progress:
        """Where long work reports its steps; available from `prepare` on."""
        return _need(self._place).progress

    # ------------------------------------------------------------------ before the first round

    def prepare(self, place: Workplace) -> tuple[RecordSource, ...]:
        """Load the models and the public text."""
        self._place = place
        from flower_privsyn.data import public_texts
        from flower_privsyn.embedding import default_cache_directory, load_embedder, require_company
        from flower_privsyn.generation import load_generator

        config = self.config
        if self._embedder is None:
            self._embedder = load_embedder(
                located(config.embedding_model), precision=config.embedding_precision
            )
        require_company(self._embedder, default_cache_directory())
        if self._variation is None:
            self._variation = mask_filling(config, unit=config.mask_unit)
        if config.output != "survivors" and self._generator is None:
            self._generator = load_generator(
                located(config.generator), api_key_env=config.generator_api_key_env
            )
        self._seeds = public_texts(
            located(config.public_text),
            tokenizer=self._embedder.tokenizer,
            max_tokens=config.max_tokens,
            at_sentences=config.whole_sentences,
        )
        self._seeds, self._careful = hold_to_public_text(
            self._seeds, self._variation, config, progress=self.progress
        )
        if len(self._seeds) < config.num_candidates:
            raise ConfigError(
                f"num-candidates = {config.num_candidates} is more than the {len(self._seeds)} "
                f"public texts of at most {config.max_tokens} tokens in public-text = "
                f'"{config.public_text}"'
                + (" that are likely enough" if config.likelihood_quantile > 0 else "")
            )
        if config.output != "survivors":
            # The generator is needed after the last release: it must not be missing then.
            with self.progress.stage("Try the generator", total=None):
                self._expansion().rehearse(self._seeds)
        embedded = RecordSource(
            fingerprint=self._embedder.fingerprint, dimension=self._embedder.dimension
        )
        if self._selected is None:
            return (embedded,)
        return (self._selected.prepare(place), embedded)

    def first(self) -> Question:
        """Line 1; before it, where `initial_text` says so, what line 1 is to draw from."""
        return self._begin(1) if self._selected is None else self._selected.question()

    def _begin(self, number: int) -> Question:
        """Line 1: random public samples, drawn without replacement, as a round's candidates."""
        population = self._drawn(number)
        return self._question(self._set_candidates(population, round_number=number))

    def _drawn(self, number: int) -> Population:
        config, seeds, source = self.config, self._seeds, "public"
        if self._selected is not None:
            tokenizer = _need(self._embedder).tokenizer
            seeds, source = self._selected.texts(tokenizer=tokenizer) or seeds, "selected"
        # Of chosen texts, many of which may be alike, fewer than `num_candidates` may be left.
        again = len(seeds) < config.num_candidates
        chooser = np.random.default_rng([config.seed, 1])
        drawn = chooser.choice(len(seeds), size=config.num_candidates, replace=again)
        return Population.create([seeds[i] for i in drawn], round_number=number, source=source)

    # ------------------------------------------------------------------ a round

    def following(self, release: ReleasedSum, *, last: bool) -> Question | None:
        """Lines 12 to 14: choose survivors, keep them, vary them."""
        number = release.round_number
        if self._selected is not None and not self._has_candidates(number):
            self._selected.choose(release)
            return None if last else self._begin(number + 1)
        population = self._current(number)
        counts = self._survivors(release)
        population.to_parquet(
            self._population_file(number),
            votes=release.values.tolist(),
            survived=counts.tolist(),
        )
        if last:
            return None
        chosen = np.repeat(np.arange(len(population)), counts)
        parents = population.take(chosen)
        variation = _need(self._careful)
        with self.progress.stage(f"Round {number}: vary survivors", len(parents)) as stage:
            texts = variation.vary(
                parents.texts, seed=self._seed_of(number, 0), progress=stage.update
            )
        following = Population.create(
            texts,
            round_number=number + 1,
            source="variation",
            parents=[(parent,) for parent in parents.ids],
        )
        return self._question(self._set_candidates(following, round_number=number + 1))

    def _question(self, population: Population) -> Question:
        return Question(self._query, {"candidates": _need(population.embeddings)})

    def _survivors(self, release: ReleasedSum) -> npt.NDArray[np.int64]:
        """How often each candidate survives, (m,) integers that sum to `num_candidates`.

        When no candidate stands above the threshold the histogram says nothing: the population
        survives as it is, and the round counts.
        """
        config, m = self.config, len(release.values)
        unit = release.noise_std if config.threshold_unit == "noise-std" else 1.0
        above = np.maximum(release.values - config.threshold * unit, 0.0)
        total = float(above.sum())
        if not total > 0.0:
            logger.warning(
                "round %d: no candidate stands above the threshold; the population stays",
                release.round_number,
            )
            return np.ones(m, dtype=np.int64)
        chooser = np.random.default_rng([config.seed, 2, release.round_number])
        drawn = chooser.choice(m, size=config.num_candidates, replace=True, p=above / total)
        return np.bincount(drawn, minlength=m)

    def _set_candidates(self, population: Population, *, round_number: int) -> Population:
        """Embed a population, and store it as the candidates of a round."""
        population = population.with_embeddings(self._lookahead(population, round_number))
        population.to_parquet(self._population_file(round_number))
        self._population = population
        return population

    def _lookahead(self, population: Population, round_number: int) -> npt.NDArray[np.float32]:
        """Lines 3 to 5: the mean embedding of K variations, or of the text itself for K = 0."""
        embedder, variation = _need(self._embedder), _need(self._variation)
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
                )
                total += embedder.embed(texts, progress=stage.update)
        return (total / copies).astype(np.float32)

    # ------------------------------------------------------------------ resuming

    def restore(self, round_number: int) -> Question:
        """The stored candidates of a round; a joint sketch that was lost is asked for again."""
        if self._selected is not None and not self._has_candidates(round_number):
            return self._selected.question()
        return self._question(self._current(round_number))

    def carry_over(self, round_number: int) -> None:
        """The candidates of a lost round stand again in the next one, under their old ids."""
        if self._selected is not None and not self._has_candidates(round_number):
            return
        population = self._current(round_number)
        population.to_parquet(self._population_file(round_number + 1))

    def _current(self, round_number: int) -> Population:
        population = self._population
        if population is None or not self._is_of(population, round_number):
            population = Population.from_parquet(self._population_file(round_number))
            self._population = population
        return population

    def _is_of(self, population: Population, round_number: int) -> bool:
        return bool(population.ids) and population.ids[0] == f"{round_number}:0"

    # ------------------------------------------------------------------ the result

    def finish(self) -> dict[str, Any]:
        """Algorithm 2: expand the survivors of all rounds into the synthetic corpus.

        Expanded texts are written down batch by batch, so that a generator that fails, or a run
        that is killed, loses none; a resumed run writes the ones that are missing.
        """
        config = self.config
        seeds = self._all_survivors()
        records: list[dict[str, Any]] = []
        if config.output in ("survivors", "both"):
            records += [
                {
                    "text": text,
                    "round": int(identifier.split(":")[0]),
                    "parent": list(parents),
                    "source": "survivor",
                }
                for text, identifier, parents in zip(
                    seeds.texts, seeds.ids, seeds.parents, strict=True
                )
            ]
        dropped: dict[str, int] = {}
        if config.output in ("expanded", "both"):
            expanded, dropped = self._expand(seeds)
            records += expanded
        self.run.write_synthetic(records)
        self._expanded_file.unlink(missing_ok=True)
        return {
            "synthetic_texts": len(records),
            "survivors": len(set(seeds.texts)),
            "dropped": dropped,
        }

    def _expand(self, seeds: Population) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Expand until `expand_samples` texts are kept; what an earlier attempt kept counts."""
        from flower_privsyn.strategies.parts.synthesis import expand_resumably

        config = self.config
        return expand_resumably(
            self._expansion(),
            seeds.texts,
            ids=seeds.ids,
            num_samples=config.expand_samples,
            kept=self._expanded_file,
            seed_after=lambda kept: self._seed_of(0, 2 + kept),
            round_number=config.num_rounds,
            source="expanded",
            stage="Expand survivors",
            progress=self.progress,
        )

    def _expansion(self) -> Expand:
        return MoreText.like(self.config).expansion(_need(self._generator))

    @property
    def _expanded_file(self) -> Path:
        """Expanded texts kept so far; gone once `synthetic.jsonl` holds them."""
        return self.run.path / "expanded.jsonl"

    def _all_survivors(self) -> Population:
        """The union of the survivors of all rounds."""
        found = survivors(self.run, counted=self.config.survivor_weights == "counted")
        if self._selected is not None and not len(found):
            logger.warning("no votes were released: what the joint sketch chose is expanded")
            return self._drawn(self.config.num_rounds)
        return found

    # ------------------------------------------------------------------ small things

    def _has_candidates(self, round_number: int) -> bool:
        return self._population_file(round_number).exists()

    def _population_file(self, round_number: int) -> Path:
        return RoundFiles(self.run.round_dir(round_number)).population

    def _seed_of(self, round_number: int, purpose: int) -> int:
        """A seed of public randomness, different for every round and purpose."""
        sequence = np.random.SeedSequence([self.config.seed, 3, round_number, purpose])
        return int(sequence.generate_state(1, dtype=np.uint64)[0])


def _need(value: T | None) -> T:
    if value is None:
        raise RuntimeError("the strategy has not been started")
    return value
