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

import importlib.util
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol, Self, final

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import IN_PYTHON, NonNegativeInt, PositiveFloat, PositiveInt
from flower_privsyn.errors import ConfigError, GenerationError, MissingExtraError
from flower_privsyn.files import append_json_lines, located, read_json_lines, write_json
from flower_privsyn.generation.api_key import is_address
from flower_privsyn.generation.generators import GeneratorSettings
from flower_privsyn.privacy import RandomSource
from flower_privsyn.queries import MeanSimilarity, Moments, Query, expand_scores
from flower_privsyn.queries.similarity import AnswerSpace, Centre, Scale
from flower_privsyn.run.directory import EXPANDED, RoundFiles
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
from flower_privsyn.run.settings import Preset, PrivateSumConfig
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies._embedder import embedder_of, embeddings_by
from flower_privsyn.strategies._evolution import Population
from flower_privsyn.strategies._moments import (
    DIMENSIONS,
    MomentDimensions,
    MomentSketch,
    MomentSpace,
    SpaceChoice,
    question_outline,
    settled_space,
)

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.generation import Expand, Prompt, SamplingParameters, TextGenerator
    from flower_privsyn.run import RunDirectory
    from flower_privsyn.run.progress import Progress
    from flower_privsyn.training import PreferencePair, PreferenceTraining, TrainingReport


logger = logging.getLogger("flwr.privsyn")


@dataclass(frozen=True, kw_only=True)
class RankedPairs:
    """Which candidate of a prompt is preferred to which other.

    Attributes:
        chosen: (p,) int64 indices of candidates.
        rejected: (p,) int64 indices of candidates of the same prompts.
        dropped: how many prompts gave no pair, by reason: "one-response" (chosen and rejected are
            the same candidate), "equal-text".
    """

    chosen: npt.NDArray[np.int64]
    rejected: npt.NDArray[np.int64]
    dropped: dict[str, int]


def rank_pairs(
    scores: npt.NDArray[np.float64],
    group: npt.NDArray[np.int64],
    texts: Sequence[str],
    *,
    rejected_rank: int,
) -> RankedPairs:
    """Choose one pair per prompt: rank 1 against rank `rejected_rank`.

    Equal scores are ranked by index, so a text that was written twice is two candidates with two
    ranks. A prompt with fewer candidates than `rejected_rank` rejects its last.

    Args:
        scores: (m,) float64, higher is better.
        group: (m,) int64, the prompt of each candidate, in any order.
        texts: (m) the candidates.
        rejected_rank: 1-based, >= 2.

    Raises:
        ValueError: the lengths differ, the rank is below 2 or a score is not finite.

    References:
        Hou et al. 2025 (POPri), Algorithm 1: the pairs of a round.
    """
    if not len(scores) == len(group) == len(texts):
        raise ValueError(
            f"{len(scores)} scores, {len(group)} groups and {len(texts)} texts must be one number"
        )
    if rejected_rank < 2:
        raise ValueError(f"rejected_rank must be at least 2, got {rejected_rank}")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite")
    # Stable in both keys: prompts in ascending order, best first, ties by index.
    order = np.lexsort((-np.asarray(scores, dtype=np.float64), group))
    borders = np.flatnonzero(np.diff(group[order], prepend=group[order][:1] - 1))
    chosen: list[int] = []
    rejected: list[int] = []
    dropped: Counter[str] = Counter({"one-response": 0, "equal-text": 0})
    for start, stop in zip(borders, [*borders[1:], len(order)], strict=True):
        best = int(order[start])
        other = int(order[min(start + rejected_rank, stop) - 1])
        if best == other:
            dropped["one-response"] += 1
        elif texts[best] == texts[other]:
            dropped["equal-text"] += 1
        else:
            chosen.append(best)
            rejected.append(other)
    return RankedPairs(
        chosen=np.asarray(chosen, dtype=np.int64),
        rejected=np.asarray(rejected, dtype=np.int64),
        dropped=dict(dropped),
    )


class MomentsJudge:
    """Released mean and covariance: the Fréchet distance of texts to them, FreD.

    Args:
        choice: of the coordinates.
        max_samples: of one user that count; 0 for all.

    Attributes:
        choice: the same.
    """

    def __init__(self, choice: SpaceChoice, *, max_samples: int) -> None:
        self.choice, self._max_samples = choice, max_samples
        self._place: RunContext | None = None
        self._space: MomentSpace | None = None

    @property
    def query(self) -> Moments:
        """The moments."""
        radius = 1.0 if self._space is None else self._space.radius
        return Moments(radius=radius, max_samples=self._max_samples)

    def setup(self, place: RunContext, embedder: Embedder) -> None:
        """Settle the coordinates.

        Args:
            place: of the run.
            embedder: whose embeddings users are asked about.
        """
        self._place = place
        self._space = settled_space(
            place.run.path, self.choice, embedder=embedder, progress=place.progress
        )

    def outline(self, dimension: int) -> Question:
        """The question in the shape it will have.

        Args:
            dimension: of an embedding.
        """
        asked = self.query
        outline = question_outline(
            asked, asked, dimensions=self.choice.dimensions, dimension=dimension
        )
        return outline.question(1)

    def question(self) -> Question:
        """The question, with its coordinates, which are public."""
        asked = self.query
        return Question(asked, need(self._space).broadcast(asked))

    def keep(self, release: ReleasedSum) -> None:
        """Write `moments.npz`."""
        sketch = MomentSketch.of_joint(need(self._space), self.query, [release.of_users])
        if sketch is not None:
            sketch.warn()
            sketch.save(need(self._place).run.path)

    def judge(self) -> MomentSketch | None:
        """What was released; None before, and where it was lost."""
        folder = need(self._place).run.path
        return MomentSketch.load(folder) if (folder / "moments.json").exists() else None


def best(distances: Mapping[int, float]) -> int:
    """The round with the smallest distance, the first of equal ones."""
    return min(distances, key=lambda number: (distances[number], number))


#: Prompt and response of four samples of `max_tokens` = 64 stay below it with any tokenizer.
_MAX_TRAINING_TOKENS = 1024


class PreferenceTrainer(Protocol):
    """What turns pairs into the next adapter: `flower_privsyn.training.train_preferences`."""

    def __call__(
        self,
        model: str | Path,
        pairs: Sequence[PreferencePair],
        *,
        adapter: Path | None,
        output: Path,
        settings: PreferenceTraining,
        seed: int,
        progress: Callable[[int], None] | None = None,
    ) -> TrainingReport:
        """Write the adapter `output` and say what was done."""
        ...


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig(GeneratorSettings, PrivateSumConfig):
    """Settings of every strategy that trains a generator on preferences among its own texts.

    References:
        Hou et al. 2025 (POPri), section 4 and appendix; the defaults are from
            there unless said.
    """

    afterwards = frozenset(
        {
            "synthetic-samples",
            "generator",
            "generator-parameters",
            "training-model",
            "prompt",
            "temperature",
            "top-p",
            "max-new-tokens",
        }
    )

    delta: float = 3e-6
    max_samples: Annotated[
        int,
        "samples of one user that count, a random subset fixed per user and seed; 0 for all of "
        "them, as in the paper: the clip bounds a user whatever their number. The default bounds "
        "the time a user's answer takes, which nothing noises: 64 samples of 64 tokens are about "
        "3,000 words, and the mean over so many has an eighth of one sample's spread.",
    ] = 64
    num_prompts: Annotated[
        PositiveInt, "prompts per round (K), each of three random public samples."
    ] = 1800
    responses_per_prompt: Annotated[int, Ge(2), "responses to each prompt (J)."] = 10
    rejected_rank: Annotated[
        int,
        Ge(2),
        "rank of the rejected response, 1-based, at most `responses_per_prompt`; the chosen one "
        "has rank 1. A prompt with fewer usable responses rejects its last.",
    ] = 5
    loss: Annotated[
        Literal["dpo", "ipo", "sft"],
        '"sft" is cross-entropy on the chosen responses alone, the PE+SFT baseline of the paper.',
    ] = "dpo"
    beta: Annotated[
        PositiveFloat, "DPO's beta or IPO's tau; 0.01 in the authors' code.", IN_PYTHON
    ] = 0.1
    lora_rank: Annotated[
        PositiveInt, "rank of the adapter; 4 printed, 16 in the authors' code."
    ] = 4
    lora_alpha: Annotated[
        PositiveInt, "its scale times its rank; 8 printed, 16 in the authors' code.", IN_PYTHON
    ] = 8
    learning_rate: Annotated[
        PositiveFloat,
        "peak rate of AdamW. The default suits `privsyn-lm`; for LLaMA-3-8B the paper has 3e-7 to "
        "8e-7.",
    ] = 1e-3
    learning_rate_schedule: Annotated[
        Literal["cosine", "constant"], "of the learning rate; the cosine ends at zero.", IN_PYTHON
    ] = "cosine"
    warmup_steps: Annotated[
        NonNegativeInt,
        "steps of linear warm-up.",
        IN_PYTHON,
    ] = 0
    training_epochs: Annotated[PositiveInt, "passes over a round's pairs."] = 2
    training_batch_size: Annotated[PositiveInt, "pairs per step."] = 24
    training_micro_batch_size: Annotated[
        PositiveInt,
        "at most this many pairs go through the model at a time. It changes memory, and hardly the "
        "result, so a resumed run may have another one.",
    ] = 8
    gradient_checkpointing: Annotated[
        bool,
        "recompute activations in the backward pass, for large models; a resumed run may have it "
        "otherwise.",
        IN_PYTHON,
    ] = False
    reference: Annotated[
        Literal["base", "previous"],
        'what the loss measures against: "base", the public model, or "previous", the adapter the '
        "round began with.",
        IN_PYTHON,
    ] = "base"
    temperature: Annotated[
        PositiveFloat, "sampling temperature; 1.0 was best in the paper's ablation."
    ] = 1.0
    top_p: Annotated[float, Gt(0), Le(1), "nucleus."] = 1.0
    max_new_tokens: Annotated[
        PositiveInt,
        "tokens of the generator per response. Responses are cut to `max_tokens` tokens of the "
        "embedding model, the length of the users' own samples.",
    ] = 85
    prompt: Annotated[str, "the prompt, a bundled name or a JSON file."] = "pre-text"
    generator: Annotated[
        str,
        'causal language model that writes: a name, a folder, "gguf:FILE" for llama.cpp (where '
        'no adapters are trained), or "http://host:port/v1#model" for an OpenAI-compatible server '
        "like vLLM's.",
    ] = "privsyn-lm"
    training_model: Annotated[
        str,
        'the same model as a local folder or hub name, to train adapters on; "" for `generator` '
        "itself, unless that is a server.",
    ] = ""
    public_text: Annotated[
        str,
        'the samples in the prompts: "bundled", or a JSONL file with `text` and no person\'s data; '
        "also a folder or a data set by name (docs/own_data.md).",
    ] = "bundled"
    synthetic_samples: Annotated[PositiveInt, "texts to write at the end."] = 2000

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if self.rejected_rank > self.responses_per_prompt:
            raise ConfigError(
                f"rejected-rank = {self.rejected_rank} must be at most responses-per-prompt = "
                f"{self.responses_per_prompt}"
            )
        if self.generator.startswith("gguf:"):
            raise ConfigError(
                f'generator = "{self.generator}" is run by llama.cpp, which loads no adapters: '
                'name the folder of the model itself, or "smollm2-135m"'
            )
        if not self.model_to_train:
            raise ConfigError(
                f'generator = "{self.generator}" is a server: set training-model to the folder or '
                "hub name of the model it serves, on which the adapters are trained"
            )

    @property
    def model_to_train(self) -> str:
        """The model adapters are trained on; empty when only a server is named."""
        if self.training_model:
            return self.training_model
        if is_address(self.generator):
            return ""
        return self.generator

    def training(self) -> PreferenceTraining:
        """The settings of one round's training."""
        from flower_privsyn.training import PreferenceTraining

        return PreferenceTraining(
            loss=self.loss,
            beta=self.beta,
            lora_rank=self.lora_rank,
            lora_alpha=self.lora_alpha,
            learning_rate=self.learning_rate,
            schedule=self.learning_rate_schedule,
            warmup_steps=self.warmup_steps,
            epochs=self.training_epochs,
            batch_size=self.training_batch_size,
            micro_batch_size=self.training_micro_batch_size,
            gradient_checkpointing=self.gradient_checkpointing,
            max_tokens=_MAX_TRAINING_TOKENS,
            max_new_tokens=self.max_new_tokens,
            reference=self.reference,
        )


#: Public samples in a prompt, as in figure 5 of POPri (Hou et al. 2025).
NUM_EXAMPLES: Final = 3


@dataclass(frozen=True, kw_only=True)
class PublicSide:
    """What the server needs besides releases: models and public text.

    Attributes:
        embedder: the embedding model the nodes use as well.
        generator: the language model that writes.
        prompt: how public samples are laid out for it.
        seeds: public samples of at most `max_tokens` tokens.
    """

    embedder: Embedder
    generator: TextGenerator
    prompt: Prompt
    seeds: tuple[str, ...]

    @classmethod
    def load(
        cls,
        config: PreferenceConfig,
        *,
        embedder: Embedder | None = None,
        generator: TextGenerator | None = None,
        check_training: bool = True,
    ) -> PublicSide:
        """Load and check everything, before any budget is spent.

        Args:
            config: the settings.
            embedder: in place of `config.embedding_model`.
            generator: in place of `config.generator`.
            check_training: whether adapters are trained here, with the package's own training.

        Raises:
            PrivsynError: something is missing or unusable.
        """
        from flower_privsyn.models import resolve_model

        if check_training:
            missing = [name for name in ("trl", "peft") if not importlib.util.find_spec(name)]
            if missing:
                raise MissingExtraError(
                    f"preference training needs {' and '.join(missing)}: "
                    "pip install 'flower-privsyn[training]'"
                )
            resolve_model(located(config.model_to_train))
        embedder = embedder_of(config, embedder)
        if generator is None:
            generator = config.load_generator()
        prompt, seeds = cls.read(embedder.tokenizer, config=config)
        return cls(embedder=embedder, generator=generator, prompt=prompt, seeds=tuple(seeds))

    @staticmethod
    def read(
        tokenizer: Any, *, config: PreferenceConfig, enough: bool = False
    ) -> tuple[Prompt, list[str]]:
        """Read the prompt, and the public texts of which some stand in it.

        Args:
            tokenizer: of the embedding model.
            config: the settings.
            enough: read no more texts than a prompt needs.

        Raises:
            PrivsynError: one of them is unusable, or there are too few texts.
        """
        from flower_privsyn.data import public_texts
        from flower_privsyn.generation import load_prompt

        prompt = load_prompt(located(config.prompt))
        if prompt.num_samples <= NUM_EXAMPLES:
            raise ConfigError(
                f'prompt = "{config.prompt}" announces {prompt.num_samples} samples; prompts of '
                f"{NUM_EXAMPLES} public samples need one that announces more"
            )
        seeds = public_texts(
            config.public_text,
            tokenizer=tokenizer,
            max_tokens=config.max_tokens,
            fewest=NUM_EXAMPLES,
            wanted_by=f'prompt = "{config.prompt}"',
            enough=enough,
        )
        return prompt, seeds

    @classmethod
    def needs(cls, config: PreferenceConfig) -> Needs:
        """What `load` will load, and what training needs."""
        models = [
            NeededModel(setting="embedding-model", name=config.embedding_model, kind="embedding"),
            NeededModel(setting="generator", name=config.generator, kind="generator"),
        ]
        libraries = ["sentence_transformers", "torch", "transformers"]
        setting = "training-model" if config.training_model else "generator"
        models.append(NeededModel(setting=setting, name=config.model_to_train, kind="causal"))
        libraries += ["trl", "peft"]
        return Needs(
            models=tuple(models),
            libraries=tuple(libraries),
            public_text=config.public_text,
            prompt=config.prompt,
            reads=(partial(cls.read, config=config, enough=True),),
        )

    def expansion(self, config: PreferenceConfig) -> Expand:
        """How the generator writes more text, after prompts of public samples."""
        from flower_privsyn.generation import Expand, SamplingParameters

        return Expand(
            self.generator,
            prompt=self.prompt,
            sampling=SamplingParameters(
                seed=0,
                max_new_tokens=config.max_new_tokens,
                temperature=config.temperature,
                top_p=config.top_p,
            ),
        )

    @property
    def source(self) -> RecordSource:
        """What makes the users' records as well."""
        return embeddings_by(self.embedder)

    @property
    def seed_ids(self) -> list[str]:
        """Identifiers of the public samples, as parents of what is written after them."""
        return [f"public:{index}" for index in range(len(self.seeds))]


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The usable responses of a round.

    Attributes:
        population: (m) texts with ids "<round>:<index>", their examples as parents, and their
            embeddings as they travel.
        group: (m,) int64, the number of the prompt a response belongs to.
        prompts: (m) the prompt each response continues, as the generator got it.
        ends: (m) what ended each response and was cut off; "" where the response was cut short.
    """

    population: Population
    group: npt.NDArray[np.int64]
    prompts: tuple[str, ...]
    ends: tuple[str, ...]

    def __len__(self) -> int:
        """Number of responses."""
        return len(self.population)

    @property
    def embeddings(self) -> npt.NDArray[np.float32]:
        """(m, d) float32, exactly what nodes see."""
        if self.population.embeddings is None:
            raise RuntimeError("candidates are embedded when they are made")
        return self.population.embeddings

    def to_parquet(self, path: Path, **columns: Sequence[Any]) -> None:
        """Write the candidates, with extra columns such as their scores."""
        self.population.to_parquet(
            path,
            prompt=self.group.tolist(),
            prompt_text=self.prompts,
            end=self.ends,
            **columns,
        )

    def state(self) -> State:
        """The candidates as a method keeps them between two rounds."""
        return {
            **self.population.state(),
            "group": self.group,
            "prompts": self.prompts,
            "ends": self.ends,
        }

    @classmethod
    def of_state(cls, state: State) -> Candidates:
        """The candidates that a method has kept."""
        return cls(
            population=Population.of_state(state),
            group=state["group"],
            prompts=tuple(state["prompts"]),
            ends=tuple(state["ends"]),
        )


#: Responses asked of a server at a time, after which they are written down: of many requests the
#: slowest ends much later than most.
_SERVER_BATCH = 4096


class PreferenceRounds:
    """What the server does in a round: write responses, rank them, train on pairs of them.

    Responses are written down as they come, and an adapter is not trained again once it is there:
    so a run that is killed goes on where it was.

    Args:
        config: the settings.
        public: models and public text.
        run: the run directory.
        progress: where long work reports its steps.
        trainer: in place of `flower_privsyn.training.train_preferences`.
    """

    def __init__(
        self,
        config: PreferenceConfig,
        public: PublicSide,
        *,
        run: RunDirectory,
        progress: Progress,
        trainer: PreferenceTrainer | None = None,
    ) -> None:
        self._config = config
        self._public = public
        self._run = run
        self._progress = progress
        self._trainer = trainer

    def _adapter(self, number: int) -> Path | None:
        """The adapter that a round trained; None for round 0."""
        return self._run.rounds.files(number).adapter if number else None

    # ------------------------------------------------------------------ before the first release

    def rehearse(self) -> None:
        """Train an adapter on nothing and write with it, so that what cannot work fails early.

        A server that is down or loads no adapters, a model that cannot be trained, or a folder
        that server and run do not share would else be found after a release was paid for.

        Raises:
            PrivsynError: the generator or the training cannot do what the run needs.
        """
        from flower_privsyn.generation import rehearse
        from flower_privsyn.training import train_preferences

        config, public = self._config, self._public
        folder, adapter = self._run.rounds.folder / ".rehearsal", None
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        try:
            with self._progress.stage("Try the generator", total=None):
                if self._trainer is None:
                    adapter = folder / "adapter"
                    train_preferences(
                        located(config.model_to_train),
                        (),
                        adapter=None,
                        output=adapter,
                        settings=config.training(),
                        seed=0,
                    )
                rehearse(
                    public.generator,
                    public.prompt.render(list(public.seeds[:NUM_EXAMPLES])),
                    num_samples=config.responses_per_prompt,
                    sampling=self._sampling("rehearsal", 0),
                    adapter=adapter,
                )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _sampling(self, purpose: str, number: int) -> SamplingParameters:
        """How responses are drawn, with a seed of its own for a purpose and a round."""
        from flower_privsyn.generation import SamplingParameters

        config = self._config
        return SamplingParameters(
            seed=self.seed(purpose, number),
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            stop=(self._public.prompt.stop,),
        )

    @property
    def _batch_size(self) -> int:
        from flower_privsyn.generation.backends import at_once

        remote = is_address(self._config.generator)
        return _SERVER_BATCH if remote else at_once(self._public.generator)

    # ------------------------------------------------------------------ writing

    def candidates(self, number: int, *, by: int, scratch: Path) -> Candidates:
        """Write and embed the candidates of a round.

        Args:
            number: of the round.
            by: the round whose adapter writes; 0 for none.
            scratch: a folder for responses as they come.

        Raises:
            GenerationError: the generator failed, or no response can be used.
        """
        responses = scratch / "responses.jsonl"
        records = self._responses(number, self._adapter(by), responses)
        if (usable := self._usable(number, records)) is None:
            # A resumed run asks for others: with these it would end here every time.
            responses.unlink()
            raise GenerationError(
                f"round {number}: none of the responses to {len(records)} prompts can be used; a "
                "run that is resumed asks for them again"
            )
        return self._embed(number, usable)

    def _responses(self, number: int, adapter: Path | None, file: Path) -> list[dict[str, Any]]:
        """One record per prompt: its number, text, examples and raw responses."""
        config, public = self._config, self._public
        records = list(read_json_lines(file))
        plan = list(self._prompts(number))
        # One seed for the whole round: a response depends on it, its prompt and its number, and
        # so not on where an earlier attempt stopped.
        sampling = self._sampling("responses", number)
        batch = max(1, self._batch_size // config.responses_per_prompt)
        total = config.num_prompts * config.responses_per_prompt
        with self._progress.stage(f"Round {number}: write responses", total) as stage:
            stage.update(len(records) * config.responses_per_prompt)
            for start in range(len(records), len(plan), batch):
                part = plan[start : start + batch]
                responses = public.generator.generate(
                    [text for _, text in part],
                    num_samples=config.responses_per_prompt,
                    sampling=sampling,
                    adapter=adapter,
                    progress=stage.update,
                )
                fresh = [
                    {"prompt": start + place, "text": text, "examples": examples, "responses": row}
                    for place, ((examples, text), row) in enumerate(
                        zip(part, responses, strict=True)
                    )
                ]
                append_json_lines(file, fresh)
                records += fresh
        return records

    def _prompts(self, number: int) -> Iterator[tuple[list[int], str]]:
        """The prompts of a round, each of three different public samples, no two alike."""
        seeds, prompt = self._public.seeds, self._public.prompt
        chooser = np.random.default_rng(self.seed("examples", number))
        seen: set[tuple[int, ...]] = set()
        for _ in range(self._config.num_prompts):
            # With hardly any public text the same prompt is asked twice rather than never.
            for _ in range(16):
                drawn = chooser.choice(len(seeds), size=NUM_EXAMPLES, replace=False).tolist()
                if tuple(drawn) not in seen:
                    break
            seen.add(tuple(drawn))
            yield drawn, prompt.render([seeds[index] for index in drawn])

    def _usable(self, number: int, records: Sequence[dict[str, Any]]) -> Candidates | None:
        """Parse and cut the responses; leave out what cannot be a candidate, and say how many."""
        prompt, seeds = self._public.prompt, self._public.seeds
        ids = self._public.seed_ids
        raw = [prompt.parse(response) for record in records for response in record["responses"]]
        pieces = iter(zip(raw, self._cut(raw), strict=True))
        end = "\n" + prompt.marker.replace("{number}", str(NUM_EXAMPLES + 2))
        texts: list[str] = []
        parents: list[tuple[str, ...]] = []
        group: list[int] = []
        prompts: list[str] = []
        ends: list[str] = []
        dropped: Counter[str] = Counter()
        for record in records:
            examples = {_flat(seeds[index]) for index in record["examples"]}
            seen: set[str] = set()
            for _ in record["responses"]:
                whole, text = next(pieces)
                flat = _flat(text)
                if not flat:
                    dropped["empty"] += 1
                elif "\ufffd" in text:
                    dropped["broken-character"] += 1
                elif flat in examples:
                    dropped["copy-of-example"] += 1
                elif flat in seen:
                    dropped["duplicate"] += 1
                else:
                    seen.add(flat)
                    texts.append(text)
                    parents.append(tuple(ids[index] for index in record["examples"]))
                    group.append(int(record["prompt"]))
                    prompts.append(record["text"])
                    # The end of a text that was cut is no end, and must not be taught as one.
                    ends.append(end if whole.endswith(text) else "")
        if dropped:
            logger.info(
                "round %d: %d of %d responses are left out (%s)",
                number,
                dropped.total(),
                len(raw),
                _counted(dropped),
            )
        if not texts:
            return None
        return Candidates(
            population=Population.create(
                texts, round_number=number, source="generated", parents=parents
            ),
            group=np.asarray(group, dtype=np.int64),
            prompts=tuple(prompts),
            ends=tuple(ends),
        )

    def _cut(self, texts: Sequence[str]) -> list[str]:
        """The first `max_tokens` tokens of each text, cut as the users' samples are."""
        from flower_privsyn.data import Cut

        cut = Cut(max_tokens=self._config.max_tokens)
        pieces = cut.pieces(texts, tokenizer=self._public.embedder.tokenizer)
        return [own[0] if own else "" for own in pieces]

    def _embed(self, number: int, candidates: Candidates) -> Candidates:
        with self._progress.stage(f"Round {number}: embed candidates", len(candidates)) as stage:
            embeddings = self._public.embedder.embed(
                candidates.population.texts, progress=stage.update
            )
        # As they travel, where they do: scores are of the very numbers that nodes have seen.
        sent = embeddings.astype(self._config.broadcast_precision).astype(np.float32)
        return replace(candidates, population=candidates.population.with_embeddings(sent))

    # ------------------------------------------------------------------ learning

    def learn(
        self, number: int, candidates: Candidates, scores: npt.NDArray[np.float64], *, by: int
    ) -> dict[str, Any]:
        """Rank the candidates of a round, keep the pairs, and train the next adapter on them.

        Args:
            number: the round.
            candidates: that were asked about.
            scores: (m,) float64, one per candidate, higher is better.
            by: the round whose adapter is trained on; 0 for none.

        Returns:
            What was done: `pairs`, `dropped`, and where training ran its `steps`, `loss`,
            `margin`, `accuracy` and `too_long`. Also in `training.json`, which is
            written last; a round that has it is not learned from again.

        Raises:
            PrivsynError: training failed; the adapter of the round before is untouched.
        """
        from flower_privsyn.training import PreferencePair, train_preferences

        config, texts = self._config, candidates.population.texts
        files = RoundFiles(self._run.round_dir(number))
        if record := files.record("training"):
            return record
        ranked = rank_pairs(scores, candidates.group, texts, rejected_rank=config.rejected_rank)
        m = len(candidates)
        candidates.to_parquet(
            files.candidates,
            score=scores.tolist(),
            chosen=np.isin(np.arange(m), ranked.chosen).tolist(),
            rejected=np.isin(np.arange(m), ranked.rejected).tolist(),
        )
        record = {"pairs": len(ranked.chosen), "dropped": ranked.dropped}
        if len(ranked.chosen) == 0:
            logger.warning("round %d: no prompt gave a pair; the generator stays", number)
        else:
            pairs = [
                PreferencePair(
                    prompt=candidates.prompts[best],
                    chosen=texts[best],
                    rejected=texts[other],
                    chosen_end=candidates.ends[best],
                    rejected_end=candidates.ends[other],
                )
                for best, other in zip(ranked.chosen, ranked.rejected, strict=True)
            ]
            train = self._trainer or train_preferences
            passes = config.training_epochs * len(pairs)
            with self._progress.stage(f"Round {number}: train on pairs", passes) as stage:
                report = train(
                    located(config.model_to_train),
                    pairs,
                    adapter=self._adapter(by),
                    output=files.adapter,
                    settings=config.training(),
                    seed=self.seed("training", number),
                    progress=stage.update,
                )
            if report.too_long:
                logger.warning(
                    "round %d: %d of %d pairs are too long to train on",
                    number,
                    len(report.too_long),
                    len(pairs),
                )
            record |= {
                "steps": report.steps,
                "loss": report.loss,
                "margin": report.margin,
                "accuracy": report.accuracy,
                "too_long": len(report.too_long),
            }
        write_json(files.training, record)
        return record

    # ------------------------------------------------------------------ choosing and finishing

    def corpus(self, *, round_number: int, by: int) -> dict[str, Any]:
        """Write `synthetic.jsonl` with an adapter.

        Args:
            round_number: in which the adapter writes; stored with every text.
            by: the round that trained it; 0 for none.

        Returns:
            `synthetic_texts` and `dropped`, for the end of the run.

        Raises:
            GenerationError: the generator failed, or nothing that it wrote can be kept; a resumed
                run goes on with what is there.
        """
        from flower_privsyn.strategies._synthesis import expand_resumably, refuse_nothing

        config, public = self._config, self._public
        run = self._run
        kept = run.path / EXPANDED
        records, dropped = expand_resumably(
            public.expansion(config),
            public.seeds,
            ids=public.seed_ids,
            num_samples=config.synthetic_samples,
            kept=kept,
            seed=self.seed("corpus", 0),
            round_number=round_number,
            source="generated",
            stage="Write synthetic texts",
            progress=self._progress,
            adapter=self._adapter(by),
        )
        refuse_nothing(
            records,
            dropped,
            num_samples=config.synthetic_samples,
            generator=public.generator.name,
        )
        run.write_synthetic(records)
        kept.unlink(missing_ok=True)
        return {"synthetic_texts": len(records), "dropped": dropped}

    def seed(self, *purpose: str | int) -> int:
        """A seed of public randomness, different for every purpose and round."""
        from flower_privsyn.generation.streams import derive_seed

        return derive_seed(self._config.seed, *purpose)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common()) or "none"


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
            distances = {**distances, str(number): [judge.frechet(candidates.embeddings), adapter]}
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
            figures["fred"] = {number: one for number, (one, _) in distances.items()}
        elif learned and self._judge is not None:
            logger.warning("mean and covariance were lost: the last adapter is taken")
        return {
            **figures,
            **need(self._rounds).corpus(round_number=chosen, by=by),
            "rounds_learned": learned,
            "pairs": state["pairs"],
            "writer": f"the adapter that wrote in round {chosen}",
        }
