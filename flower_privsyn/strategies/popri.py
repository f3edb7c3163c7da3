"""POPri: preference training of a generator on noised similarity scores; PE+SFT is an option.

Papers:
    Hou, Wang, Zhu, Lazar, Fanti: "Private Federated Learning using Preference-Optimized Synthetic
    Data" (POPri, ICML 2025), Algorithm 1.
    Rafailov et al.: "Direct Preference Optimization: Your Language Model is Secretly a Reward
    Model" (NeurIPS 2023).

Algorithm 1 of POPri, step by step:
    K prompts of random public samples, J responses to each by the current generator
                                                                 `PreferenceRounds.candidates`
    the server sends the embeddings of the responses, or the     `_preferences`
    root of their Gram matrix, which says all that users need
    each user: mean cosine similarity to its texts, clipped      `MeanSimilarity`
    sum, Gaussian noise                                          `PrivateSumStrategy`
    per prompt: chosen = rank 1, rejected = rank l               `rank_pairs`
    preference optimisation of the generator on the pairs        `PreferenceRounds.learn`
    after T rounds: synthetic texts by the final generator       `finish`
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, final

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import IN_PYTHON
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import RandomSource
from flower_privsyn.private_path.engine import PrivateSumStrategy
from flower_privsyn.private_path.method import (
    Method,
    Outline,
    Question,
    RecordSource,
    RunContext,
    need,
)
from flower_privsyn.private_path.needs import Look, Needs
from flower_privsyn.private_path.release import ReleasedSum
from flower_privsyn.private_path.settings import Preset
from flower_privsyn.private_path.state import State
from flower_privsyn.queries import MeanSimilarity, Query, expand_scores
from flower_privsyn.queries.similarity import AnswerSpace, Centre, Scale
from flower_privsyn.strategies.parts.candidates import Candidates
from flower_privsyn.strategies.parts.judge import MomentsJudge, best
from flower_privsyn.strategies.parts.moment_settings import (
    DIMENSIONS,
    MomentDimensions,
    SpaceChoice,
)
from flower_privsyn.strategies.parts.moments import MomentSketch
from flower_privsyn.strategies.parts.preference_rounds import PreferenceRounds
from flower_privsyn.strategies.parts.preferences import (
    PreferenceConfig,
    PreferenceTrainer,
)
from flower_privsyn.strategies.parts.public_side import PublicSide

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.generation import TextGenerator

logger = logging.getLogger("flwr.privsyn")

Participation = Literal["full", "1000-of-72000", "1000-of-133000"]

#: Noise multipliers of the paper's Table 3, by (epsilon, participation), for 20 rounds and
#: delta = 3e-6; computed there by Renyi accounting of Poisson sampling.
PRINTED_NOISE_MULTIPLIERS: dict[tuple[str, str], float] = {
    ("1", "full"): 19.3,
    ("7", "full"): 3.35,
    ("1", "1000-of-72000"): 1.14,
    ("7", "1000-of-72000"): 0.52,
    ("1", "1000-of-133000"): 1.05,
    ("7", "1000-of-133000"): 0.475,
}


@dataclass(frozen=True, kw_only=True)
class POPriConfig(PreferenceConfig):
    """Settings of `POPri`; the defaults are the paper's with our corrections.

    `num_rounds` counts releases, as everywhere and as `privsyn budget --rounds` does. With
    `checkpoint = "fred"` the first of them is the mean and covariance that rounds are compared
    with, so `num_rounds` = T + 1 makes T rounds of preferences; all have the same noise multiplier.

    References:
        Hou et al. 2025, section 4, Table 3 and appendix.
    """

    num_rounds: int = 20
    checkpoint: Annotated[
        Literal["last", "fred"],
        'which round\'s adapter writes the texts: "last", or "fred": the one whose responses have '
        "the smallest Fréchet distance to a released mean and covariance (docs/fred.md), the first "
        "of the `num_rounds` releases.",
    ] = "last"
    moment_dimensions: MomentDimensions = DIMENSIONS
    centre: Annotated[
        Centre,
        'what is subtracted from a user\'s scores before clipping: "prompt", their mean over the '
        'responses to the same prompt (ours); "all", over all responses (the authors\' code); '
        '"none" (as printed).',
    ] = "prompt"
    scale: Annotated[
        Scale,
        '"clip" to norm 1 at most (as printed), or "unit": every user with any preference to norm '
        "1 (the authors' code).",
        IN_PYTHON,
    ] = "clip"
    answer_space: Annotated[
        AnswerSpace,
        '"candidates": the embeddings of all responses go down and users answer one number per '
        'response (as printed); "span": one (d, d) root goes down, in float32, and one number per '
        "dimension of the embedding comes up, from which the server computes all scores. Same "
        "sensitivity, and the noise is confined to what scores can be: `queries/similarity.py`.",
    ] = "span"

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if self.checkpoint == "fred" and self.num_rounds < 2:
            raise ConfigError(
                'checkpoint = "fred" makes the first release mean and covariance, so num-rounds '
                f"must be at least 2, got {self.num_rounds}"
            )

    def released_judge(self) -> MomentsJudge | None:
        """What is released first, for rounds to be compared with; None where nothing is."""
        if self.checkpoint == "last":
            return None
        choice = SpaceChoice(
            dimensions=self.moment_dimensions,
            public_text=self.public_text,
            max_tokens=self.max_tokens,
            precision=self.broadcast_precision,
            seed=self.seed,
        )
        return MomentsJudge(choice, max_samples=self.max_samples)

    def similarity(self) -> MeanSimilarity:
        """The query these settings ask in a round of preferences."""
        return MeanSimilarity(
            centre=self.centre,
            scale=self.scale,
            max_samples=self.max_samples,
            answer_space=self.answer_space,
        )

    @classmethod
    def popri(cls, *, epsilon: float | None = None, **overrides: Any) -> Self:
        """POPri at the paper's size with our corrections: give `epsilon`."""
        return cls(epsilon=epsilon, **overrides)

    @classmethod
    def popri_as_printed(
        cls,
        *,
        epsilon: Literal["1", "7"],
        participation: Participation = "full",
        **overrides: Any,
    ) -> Self:
        """The published settings: scores not centred, clipped, one number per response.

        T = 20, K = 1,800, J = 10, DPO with rank 4 and alpha 8, 8e-7 (the upper end of the paper's
        range) on a cosine, 24 pairs a step, 2 epochs; the noise multiplier of Table 3 by Renyi
        accounting of Poisson sampling, which is what is drawn here.
        """
        preset: dict[str, Any] = {
            **_printed_noise(epsilon, participation),
            **_poisson(participation),
            "max_samples": 0,
            "centre": "none",
            "scale": "clip",
            "answer_space": "candidates",
            "learning_rate": 8e-7,
            **overrides,
        }
        return cls(**preset)

    @classmethod
    def popri_as_coded(
        cls,
        *,
        epsilon: Literal["1", "7"],
        participation: Participation = "full",
        **overrides: Any,
    ) -> Self:
        """What the authors released: scores centred over all responses and scaled to norm 1.

        beta 0.01, rank 16, alpha 16, 1 epoch, constant 8e-7 after 10 steps of warm-up, each round
        measured against the one before. Its cohorts have a fixed size and are accounted for as
        such, so the ledger shows a larger epsilon than the paper prints, where they are sampled.
        """
        fixed: dict[str, Any] = {}
        if participation != "full":
            fixed = {"sampling": "fixed-size", "sample_size": 1000}
        preset: dict[str, Any] = {
            **_printed_noise(epsilon, participation),
            **fixed,
            "max_samples": 0,
            "centre": "all",
            "scale": "unit",
            "answer_space": "candidates",
            "beta": 0.01,
            "lora_rank": 16,
            "lora_alpha": 16,
            "learning_rate": 8e-7,
            "learning_rate_schedule": "constant",
            "warmup_steps": 10,
            "training_epochs": 1,
            "reference": "previous",
            **overrides,
        }
        return cls(**preset)


def _printed_noise(epsilon: str, participation: str) -> dict[str, Any]:
    key = (epsilon, participation)
    if key not in PRINTED_NOISE_MULTIPLIERS:
        known = ", ".join(f"{e} with {p}" for e, p in PRINTED_NOISE_MULTIPLIERS)
        raise ConfigError(
            f"epsilon and participation must be one of {known}, got {epsilon} with {participation}"
        )
    return {"noise_multiplier": PRINTED_NOISE_MULTIPLIERS[key], "accountant": "rdp"}


def _poisson(participation: str) -> dict[str, Any]:
    if participation == "full":
        return {}
    cohort, population = (int(part) for part in participation.split("-of-"))
    return {"sampling": "poisson", "sampling_rate": cohort / population}


@final
class POPri(PrivateSumStrategy):
    """Train a generator on preferences that users' noised scores express.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            POPri.popri(epsilon=1.0, num_prompts=60, responses_per_prompt=6).start(grid)
        ```

    Formal guarantee:
        Unit: user; relation: `config.relation`; `num_rounds` Gaussian releases of L2 sensitivity 1
        (mean similarity scores; first, with `checkpoint = "fred"`, one vector of moments),
        composed with the sampling in use. Pairs, training and the choice of the checkpoint are
        post-processing of public text and releases.

    Args:
        config: the settings, where they are not given as keywords.
        embedder: in place of `config.embedding_model`; nodes must use the same.
        generator: in place of `config.generator`; a name is the setting.
        trainer: in place of `flower_privsyn.training.train_preferences`.
        random: source of noise and coins; only tests pass one.
        settings: by the names of the fields of `POPriConfig`.

    References:
        Hou et al. 2025 (POPri), Algorithm 1.
    """

    config_class = POPriConfig
    popri = Preset(POPriConfig.popri)
    popri_as_printed = Preset(POPriConfig.popri_as_printed)
    popri_as_coded = Preset(POPriConfig.popri_as_coded)

    def __init__(
        self,
        config: POPriConfig | None = None,
        *,
        embedder: Embedder | None = None,
        generator: TextGenerator | str | None = None,
        trainer: PreferenceTrainer | None = None,
        random: RandomSource | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(generator, str):
            settings, generator = {**settings, "generator": generator}, None
        config = POPriConfig.given(config, settings, strategy="POPri")
        method = PreferencesByScores(
            config, embedder=embedder, generator=generator, trainer=trainer
        )
        super().__init__(config, method, random=random)


class PreferencesByScores(Method):
    """The server's half of `POPri`: pairs of responses, ranked by released scores.

    Args:
        config: the settings.
        embedder: in place of `config.embedding_model`.
        generator: in place of `config.generator`.
        trainer: in place of `flower_privsyn.training.train_preferences`.
    """

    def __init__(
        self,
        config: POPriConfig,
        *,
        embedder: Embedder | None = None,
        generator: TextGenerator | None = None,
        trainer: PreferenceTrainer | None = None,
    ) -> None:
        self.config = config
        self._embedder = embedder
        self.given_writer = generator
        self._trainer = trainer
        self._public: PublicSide | None = None
        self._rounds: PreferenceRounds | None = None
        self._similarity = config.similarity()
        self._judge = config.released_judge()

    @property
    def queries(self) -> tuple[Query, ...]:
        """Mean similarities, after the moments where they are released."""
        return (self._similarity,) if self._judge is None else (self._judge.query, self._similarity)

    def needs(self) -> Needs:
        """Models and public text, and what trains adapters."""
        needs = PublicSide.needs(self.config)
        if self._judge is None:
            return needs
        return replace(needs, reads=(*needs.reads, partial(self._judge.choice.texts, enough=True)))

    def outline(self, look: Look) -> Outline:
        """What rounds are judged by, where it is released, then scores of all responses."""
        config = self.config
        source = RecordSource(fingerprint="", dimension=look.dimension(config.embedding_model))
        # A root is as large whatever it is made of.
        prompts = config.num_prompts if config.answer_space == "candidates" else 1
        scores = self._about(
            np.zeros((prompts * config.responses_per_prompt, source.dimension), dtype=np.float32),
            np.repeat(np.arange(prompts), config.responses_per_prompt),
        )
        first = scores
        if self._judge is not None:
            first = self._judge.outline(source.dimension)
        return Outline(
            sources=(source,),
            question=lambda number: first if number == 1 else scores,
            at_most=True,
        )

    # ------------------------------------------------------------------ before the first round

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        """Load the models and the public text, and settle what rounds are to be judged by."""
        config, self.place = self.config, place
        self._public = self._rounds = None  # of an earlier start, before other models take memory
        self._public = PublicSide.load(
            config,
            embedder=self._embedder,
            generator=self.given_writer,
            check_training=self._trainer is None,
        )
        self._rounds = PreferenceRounds(
            config,
            self._public,
            run=place.run,
            progress=place.progress,
            trainer=self._trainer,
        )
        self._rounds.rehearse()
        if self._judge is not None:
            self._judge.setup(place, self._public.embedder)
        return (self._public.source,)

    def init(self, scratch: Path) -> State:
        """The first candidates; where moments are released first, none yet."""
        state = {"adapter": 0, "learned": [], "pairs": 0, "distances": {}}
        return state if self._judge is not None else self._written(state, 1, scratch)

    def _written(self, state: State, number: int, scratch: Path) -> State:
        """The same with the candidates of a round, by the last adapter, and how near they are."""
        adapter, distances = state["adapter"], state["distances"]
        candidates = need(self._rounds).candidates(number, by=adapter, scratch=scratch)
        judge = None if self._judge is None else self._judge.judge()
        if judge is not None:
            distances = {**distances, str(number): [judge.distance(candidates.embeddings), adapter]}
        return {**state, **candidates.state(), "distances": distances}

    # ------------------------------------------------------------------ a round

    def ask(self, state: State, number: int) -> Question:  # noqa: ARG002
        """What rounds are judged by, until it is released; then how near the candidates are."""
        if "group" not in state:
            return need(self._judge).question()
        return self._about(state["embeddings"], state["group"])

    def _about(self, embeddings: npt.NDArray[np.float32], group: npt.NDArray[np.int64]) -> Question:
        """The question about responses.

        Args:
            embeddings: (m, d) of the responses.
            group: (m,) the prompt that each of them answers.
        """
        prompt = group if self.config.centre == "prompt" else None
        return Question(self._similarity, self._similarity.broadcast(embeddings, prompt=prompt))

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:
        """Rank, train, and write the next candidates; or keep the moments."""
        number = release.round_number
        if "group" not in state:
            need(self._judge).keep(release)
            return self._written(state, number + 1, scratch)
        candidates = Candidates.of_state(state)
        record = need(self._rounds).learn(
            number, candidates, self._scores(release, candidates), by=state["adapter"]
        )
        learnt = {
            **state,
            "adapter": number if record["pairs"] else state["adapter"],
            "learned": [*state["learned"], number],
            "pairs": state["pairs"] + record["pairs"],
        }
        # The last adapter answers no prompt, unless it is to be judged.
        if number == self.config.num_rounds and self._judge is None:
            return learnt
        return self._written(learnt, number + 1, scratch)

    def _scores(self, release: ReleasedSum, candidates: Candidates) -> npt.NDArray[np.float64]:
        """One score per candidate, up to a positive factor."""
        config = self.config
        prompt = candidates.group if config.centre == "prompt" else None
        if config.answer_space == "span":
            return expand_scores(
                release.values, candidates.embeddings, prompt=prompt, centre=config.centre
            )
        return release.values

    # ------------------------------------------------------------------ the result

    def finish(self, state: State) -> dict[str, Any]:
        """Choose the adapter, and write the synthetic texts with it."""
        learned, by, distances = state["learned"], state["adapter"], state["distances"]
        if not learned:
            logger.warning("no round of preferences was released: the public model writes")
        chosen = max(learned, default=0) + 1
        figures: dict[str, Any] = {}
        if learned and distances:
            chosen = best({int(number): one for number, (one, _) in distances.items()})
            by = distances[str(chosen)][1]
            figures[MomentSketch.figure] = {number: one for number, (one, _) in distances.items()}
        elif learned and self._judge is not None:
            logger.warning("mean and covariance were lost: the last adapter is taken")
        return {
            **figures,
            **need(self._rounds).corpus(round_number=chosen, by=by),
            "rounds_learned": learned,
            "pairs": state["pairs"],
            "writer": f"the adapter that wrote in round {chosen}",
        }
