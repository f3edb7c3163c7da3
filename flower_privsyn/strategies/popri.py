"""POPri: preference training of a generator on noised similarity scores; PE+SFT is an option.

Papers:
    Hou, Wang, Zhu, Lazar, Fanti: "Private Federated Learning using Preference-Optimized Synthetic
    Data" (POPri, ICML 2025), Algorithm 1.
    Rafailov et al.: "Direct Preference Optimization: Your Language Model is Secretly a Reward
    Model" (NeurIPS 2023).

Algorithm 1 of POPri, step by step:
    K prompts of random public samples, J responses to each by the current generator    `_written`
    the server sends the embeddings of the responses, or the     `ask`
    root of their Gram matrix, which says all that users need
    each user: mean cosine similarity to its texts, clipped      `MeanSimilarity`
    sum, Gaussian noise                                          `PrivateSumStrategy`
    per prompt: chosen = rank 1, rejected = rank l               `rank_pairs`
    preference optimisation of the generator on the pairs        `_learn`
    after T rounds: synthetic texts by the final generator       `finish`
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, final

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import IN_PYTHON
from flower_privsyn.embedding import Embedder
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import read_json, write_json
from flower_privsyn.generation import TextGenerator
from flower_privsyn.generation.backends import derive_seed
from flower_privsyn.generation.generators import ExpandingSettings
from flower_privsyn.generation.openai_backend import is_address
from flower_privsyn.models import resolve_model
from flower_privsyn.queries import MeanSimilarity, Moments, Query, expand_scores
from flower_privsyn.queries.similarity import AnswerSpace, Centre, Scale
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
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies._embedder import embedder_of, embeddings_by
from flower_privsyn.strategies._moments import (
    WARN_ABOVE,
    MomentSettings,
    MomentSketch,
    MomentSpace,
    settled_space,
)
from flower_privsyn.strategies._population import Population
from flower_privsyn.strategies._responses import Responses, ResponseSettings, rank_pairs
from flower_privsyn.strategies._synthesis import write_corpus
from flower_privsyn.training.preference_settings import (
    PreferencePair,
    PreferenceSettings,
    PreferenceTraining,
    TrainingReport,
)

logger = logging.getLogger("flwr.privsyn")

PreferenceTrainer = Callable[..., TrainingReport]
"""What turns pairs into the next adapter, called as `training.preference.train_preferences`."""

#: Prompt and response of four samples of `max_tokens` = 64 stay below it with any tokenizer.
_MAX_TRAINING_TOKENS: Final = 1024

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class POPriConfig(PreferenceSettings, ResponseSettings, MomentSettings):
    """Settings of `POPri`; the defaults are the paper's with our corrections.

    `num_rounds` counts releases, as everywhere and as `privsyn budget --rounds` does. With
    `checkpoint = "fred"` the first of them is the mean and covariance that rounds are compared
    with, so `num_rounds` = T + 1 makes T rounds of preferences; all have the same noise multiplier.

    References:
        Hou et al. 2025, section 4, Table 3 and appendix.
    """

    afterwards = ExpandingSettings.of_lists() | {"synthetic-samples", "training-model"}

    num_rounds: int = 20
    delta: float = 3e-6
    max_samples: int = 64
    """Samples of one user that count, a random subset fixed per user and seed; 0 for all of them,
    as in the paper: the clip bounds a user whatever their number. The default bounds the time a
    user's answer takes, which nothing noises: 64 samples of 64 tokens are about 3,000 words, and
    the mean over so many has an eighth of one sample's spread.
    """
    learning_rate: float = 1e-3
    training_model: str = ""
    """The same model as a local folder or hub name, to train adapters on; "" for `generator`
    itself, unless that is a server.
    """
    checkpoint: Literal["last", "fred"] = "last"
    """Which round's adapter writes the texts: "last", or "fred": the one whose responses have the
    smallest Fréchet distance to a released mean and covariance (docs/private_evolution.md#fred),
    the first of the `num_rounds` releases.
    """
    centre: Annotated[Centre | None, IN_PYTHON] = None
    """What is subtracted from a user's scores before clipping: "prompt", their mean over the
    responses to the same prompt (ours); "all", over all responses (the authors' code); "none" (as
    printed). None: "prompt" where a "span" is asked about, "none" with "candidates".
    """
    scale: Annotated[Scale, IN_PYTHON] = "clip"
    """What bounds a user: "clip" to norm 1 at most (as printed), or "unit": every user with any
    preference to norm 1 (the authors' code).
    """
    answer_space: AnswerSpace = "span"
    """What is asked: "candidates": the embeddings of all responses go down and users answer one
    number per response, with nothing subtracted (as printed); "span": one (d, d) root goes down, in
    float32, and one number per dimension of the embedding comes up, from which the server computes
    all scores. Same sensitivity, and the noise is confined to what scores can be:
    `queries/similarity.py`.
    """

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if self.generator.startswith("gguf:"):
            raise ConfigError(
                f'generator = "{self.generator}" is run by llama.cpp, which loads no adapters: '
                'name the folder of the model itself, or "smollm2-135m"'
            )
        if is_address(self.generator) and not self.training_model:
            raise ConfigError(
                f'generator = "{self.generator}" is a server: set training-model to the folder or '
                "hub name of the model it serves, on which the adapters are trained"
            )
        if self.checkpoint == "fred" and self.num_rounds < 2:
            raise ConfigError(
                'checkpoint = "fred" makes the first release mean and covariance, so num-rounds '
                f"must be at least 2, got {self.num_rounds}"
            )

    @property
    def model_to_train(self) -> str:
        """The model adapters are trained on."""
        return self.training_model or self.generator

    def training(self) -> PreferenceTraining:
        """The settings of one round's training."""
        return PreferenceTraining(
            **{name: getattr(self, name) for name in PreferenceSettings.declared},
            max_tokens=_MAX_TRAINING_TOKENS,
        )

    def similarity(self) -> MeanSimilarity:
        """The query these settings ask in a round of preferences."""
        return MeanSimilarity(
            centre=self.centre or ("prompt" if self.answer_space == "span" else "none"),
            scale=self.scale,
            max_samples=self.max_samples,
            answer_space=self.answer_space,
        )


class PreferencesByScores(Method):
    """The server's half of `POPri`: pairs of responses, ranked by released scores.

    Responses are written down as they come, and an adapter is not trained again once it is there:
    so a run that is killed goes on where it was.

    Args:
        config: the settings.
        embedder: in place of `config.embedding_model`.
        generator: in place of `config.generator`.
        trainer: in place of `training.preference.train_preferences`.
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
        self._responses: Responses | None = None
        self._space: MomentSpace | None = None
        self._similarity = config.similarity()

    @property
    def queries(self) -> tuple[Query, ...]:
        """Mean similarities, after the moments where they are released."""
        return (self._moments, self._similarity) if self._judges else (self._similarity,)

    @property
    def _judges(self) -> bool:
        """Whether rounds are compared with moments, which are released first."""
        return self.config.checkpoint == "fred"

    @property
    def _moments(self) -> Moments:
        radius = 1.0 if self._space is None else self._space.radius
        return Moments(radius=radius, max_samples=self.config.max_samples)

    # ------------------------------------------------------------------ before the first round

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        """Load the models and the public text, and settle what rounds are to be judged by."""
        config, self.place = self.config, place
        self._responses = None  # of an earlier start, before other models take memory
        if self._trainer is None:
            resolve_model(config.model_to_train)
        self._embedder = embedder_of(config, self._embedder)
        self._responses = Responses(
            config, tokenizer=self._embedder.tokenizer, generator=self.given_writer
        )
        self._rehearse()
        if self._judges:
            self._space = settled_space(
                self.run.path,
                config,
                public_text=config.public_text,
                embedder=self._embedder,
                progress=self.progress,
            )
        return (embeddings_by(self._embedder),)

    def _rehearse(self) -> None:
        """Train an adapter on nothing and write with it, so that what cannot work fails early.

        A server that is down or loads no adapters, a model that cannot be trained, or a folder
        that server and run do not share would else be found after a release was paid for.
        """
        folder, adapter = self.run.rounds / ".rehearsal", None
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        try:
            with self.progress.stage("Try the generator", total=None):
                if self._trainer is None:
                    adapter = folder / "adapter"
                    self._train((), adapter=None, output=adapter, seed=0)
                need(self._responses).rehearse(adapter)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _train(self, pairs: Sequence[PreferencePair], **how: Any) -> TrainingReport:
        model, settings = self.config.model_to_train, self.config.training()
        if self._trainer is not None:
            return self._trainer(model, pairs, settings=settings, **how)
        from flower_privsyn.training.preference import train_preferences

        return train_preferences(model, pairs, settings=settings, **how)

    def init(self, scratch: Path) -> State:
        """The first candidates; where moments are released first, none yet."""
        state = {"adapter": 0, "learned": [], "pairs": 0, "distances": {}}
        return state if self._judges else self._written(state, 1, scratch)

    def example_states(self, scratch: Path) -> dict[int, State]:  # noqa: ARG002
        """All responses, as if each could be used; where moments are released first, none yet."""
        config = self.config
        # A root is as large whatever it is made of.
        prompts = config.num_prompts if config.answer_space == "candidates" else 1
        group = np.repeat(np.arange(prompts), config.responses_per_prompt)
        embeddings = np.zeros((len(group), need(self._embedder).dimension), dtype=np.float32)
        written: State = {"embeddings": embeddings, "group": group}
        return {1: {}, 2: written} if self._judges else {1: written}

    def _adapter(self, number: int) -> Path | None:
        """The adapter that a round trained; None for round 0."""
        return self.run.round_files(number).adapter if number else None

    def _written(self, state: State, number: int, scratch: Path) -> State:
        """The same with the candidates of a round, by the last adapter, and how near they are."""
        by, distances = state["adapter"], state["distances"]
        written = need(self._responses).written(
            number, adapter=self._adapter(by), scratch=scratch, progress=self.progress
        )
        texts = written["texts"]
        with self.progress.stage(f"Round {number}: embed candidates", len(texts)) as stage:
            embeddings = need(self._embedder).embed(texts, progress=stage.update)
        # As they travel, where they do: scores are of the very numbers that nodes have seen.
        embeddings = embeddings.astype(self.config.broadcast_precision).astype(np.float32)
        for fixed in (embeddings, written["group"]):
            fixed.flags.writeable = False  # question and release are of one factorisation
        if self._judges and (self.run.path / "moments.npz").exists():
            distance = MomentSketch.load(self.run.path).frechet(embeddings)
            distances = {**distances, str(number): [distance, by]}
        return {**state, **written, "embeddings": embeddings, "distances": distances}

    # ------------------------------------------------------------------ a round

    def ask(self, state: State, number: int) -> Question:  # noqa: ARG002
        """What rounds are judged by, until it is released; then how near the candidates are."""
        if "group" not in state:
            return Question(self._moments, need(self._space).broadcast(self._moments))
        prompt = state["group"] if self._similarity.centre == "prompt" else None
        sent = self._similarity.broadcast(state["embeddings"], prompt=prompt)
        return Question(self._similarity, sent)

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:
        """Rank, train, and write the next candidates; or keep the moments."""
        config, number = self.config, release.round_number
        if "group" not in state:
            space = need(self._space)
            sketch = MomentSketch.of(space, [self._moments], [release.of_users])
            if sketch is not None:
                sketch.save(self.run.path)
                if not sketch.noise_ratio <= WARN_ABOVE:
                    logger.warning(
                        "the noise of the covariance is %.2g of what it says, above %g: take fewer "
                        "dimensions, more users or a larger epsilon",
                        sketch.noise_ratio,
                        WARN_ABOVE,
                    )
            return self._written(state, number + 1, scratch)
        scores = release.values
        if config.answer_space == "span":
            scores = expand_scores(
                scores,
                state["embeddings"],
                prompt=state["group"] if self._similarity.centre == "prompt" else None,
                centre=self._similarity.centre,
            )
        record = self._learn(number, state, scores)
        learnt = {
            **state,
            "adapter": number if record["pairs"] else state["adapter"],
            "learned": [*state["learned"], number],
            "pairs": state["pairs"] + record["pairs"],
        }
        # The last adapter answers no prompt, unless it is to be judged.
        if number == config.num_rounds and not self._judges:
            return learnt
        return self._written(learnt, number + 1, scratch)

    def _learn(self, number: int, state: State, scores: Scores) -> dict[str, Any]:
        """Rank the candidates of a round, keep the pairs, and train the next adapter on them.

        Args:
            number: the round.
            state: with the candidates that were asked about.
            scores: (m,) float64, one per candidate, higher is better.

        Returns:
            What was done: `pairs`, `dropped`, and where training ran its `steps`, `loss`,
            `margin` and `accuracy`. Also in `training.json`, which is
            written last; a round that has it is not learned from again.

        Raises:
            PrivsynError: training failed; the adapter of the round before is untouched.
        """
        files = RoundFiles(self.run.round_dir(number))
        if record := read_json(files.training):
            return record
        texts, prompts, ends, group = (
            state[name] for name in ("texts", "prompts", "ends", "group")
        )
        chosen, rejected, dropped = rank_pairs(
            scores, group, texts, rejected_rank=self.config.rejected_rank
        )
        places = np.arange(len(texts))
        Population.of_state(state).to_parquet(
            files.candidates,
            prompt=group.tolist(),
            prompt_text=prompts,
            end=ends,
            score=scores.tolist(),
            chosen=np.isin(places, chosen).tolist(),
            rejected=np.isin(places, rejected).tolist(),
        )
        record = {"pairs": len(chosen), "dropped": dropped}
        if not chosen:
            logger.warning("round %d: no prompt gave a pair; the generator stays", number)
        else:
            pairs = [
                PreferencePair(
                    prompt=prompts[best],
                    chosen=texts[best] + ends[best],
                    rejected=texts[other] + ends[other],
                )
                for best, other in zip(chosen, rejected, strict=True)
            ]
            with self.progress.stage(f"Round {number}: train on pairs", total=None) as stage:
                report = self._train(
                    pairs,
                    adapter=self._adapter(state["adapter"]),
                    output=files.adapter,
                    seed=derive_seed(self.config.seed, "training", number),
                    progress=stage.reach,
                )
            record |= {
                "steps": len(report.losses),
                "loss": report.loss,
                "margin": report.margin,
                "accuracy": report.accuracy,
            }
        write_json(files.training, record)
        return record

    # ------------------------------------------------------------------ the result

    def finish(self, state: State) -> dict[str, Any]:
        """Choose the adapter, and write the synthetic texts with it."""
        learned, by, distances = state["learned"], state["adapter"], state["distances"]
        if not learned:
            logger.warning("no round of preferences was released: the public model writes")
        number = max(learned, default=0) + 1
        figures: dict[str, Any] = {}
        if learned and distances:
            figures["fred"] = {place: one for place, (one, _) in distances.items()}
            # The nearest round, of equal ones the first.
            number = min(map(int, distances), key=lambda place: (distances[str(place)][0], place))
            by = distances[str(number)][1]
        elif learned and self._judges:
            logger.warning("mean and covariance were lost: the last adapter is taken")
        responses = need(self._responses)
        figures |= write_corpus(
            responses.expansion(),
            responses.samples,
            ids=responses.ids,
            num_samples=self.config.synthetic_samples,
            seed=derive_seed(self.config.seed, "corpus", 0),
            round_number=number,
            source="generated",
            stage="Write synthetic texts",
            run=self.run,
            progress=self.progress,
            adapter=self._adapter(by),
        )
        return {
            **figures,
            "rounds_learned": learned,
            "pairs": state["pairs"],
            "writer": f"the adapter that wrote in round {number}",
        }


@final
class POPri(PrivateSumStrategy):
    """Train a generator on preferences that users' noised scores express.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            POPri(epsilon=1.0, num_prompts=60, responses_per_prompt=6).start(grid)
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
        trainer: in place of `training.preference.train_preferences`.
        random: source of noise and coins; only tests pass one.
        settings: by the names of the fields of `POPriConfig`.

    References:
        Hou et al. 2025 (POPri), Algorithm 1.
    """

    config_class = POPriConfig
    method_class = PreferencesByScores
