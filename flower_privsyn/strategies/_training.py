"""The server's half of training a model on the nodes: its state, its steps, its files.

What differs between `DPFedAvg` and `DPFTRL` is the noise; what they do with a released sum of
updates is the same and is here.

Papers:
    McMahan, Ramage, Talwar, Zhang: "Learning Differentially Private Recurrent Language Models"
    (ICLR 2018), Algorithm 1.
    Hsu, Qi, Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification" (2019), section 4.3: the server's momentum, FedAvgM.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import logging
import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import IN_PYTHON, NonNegativeInt, PositiveInt
from flower_privsyn.data.public_corpus import PublicCorpus
from flower_privsyn.errors import ConfigError, RunDirectoryError
from flower_privsyn.files import located, write_json
from flower_privsyn.privacy import (
    BandedToeplitz,
    BufferedLinearToeplitz,
    CyclicSampling,
    Factorisation,
    FullParticipation,
    NeighboringRelation,
    Phase,
    Plan,
    RandomSource,
    Sampling,
    TreeAggregation,
)
from flower_privsyn.privacy.plan import BoundedQuestion
from flower_privsyn.queries import Broadcast, ModelDelta, Query, TrainableModel
from flower_privsyn.queries.model_delta import (
    ClipNorm,
    LearningRate,
    LoraRank,
    Trainable,
)
from flower_privsyn.run.directory import TRAINED_MODEL, RoundFiles
from flower_privsyn.run.method import (
    Finding,
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
from flower_privsyn.run.plan import NoiseAgainstUsers
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.run.strategy import PrivateSumStrategy

if TYPE_CHECKING:
    from flower_privsyn.training.local import LocalModel


logger = logging.getLogger("flwr.privsyn")

#: Nats a token by which noise alone may set the model back. Models that it set back by 0.15 ended
#: above the public one, by 0.4 above it in bits and below it in accuracy, by 1.0 below it in both
#: (docs/dp_ftrl.md).
MOST_LOST: Final = 0.5

#: The same where the step is chosen by it: a longer one costs more than it gains, a shorter one
#: gains less than it saves (docs/dp_ftrl.md).
LOST_BY_CHOICE: Final = 0.04

#: Public documents that the model reads, from the beginning of each. Four times as many changed
#: what it lost by a tenth; another draw of the noise changed it by up to a factor of two.
_DOCUMENTS: Final = 16

#: Draws of the noise that the model reads them with.
_DRAWS: Final = 4

#: Numbers that stand for all parameters where the spread of the noise is found: to about 1 %.
_NUMBERS: Final = 4096

#: The shortest step that is tried.
_SHORTEST: Final = 2.0**-10

#: The longest, where the clip norm may grow: so many times, and no step need be cut.
LONGEST: Final = 32.0

#: What a step may be where there is no noise that says otherwise.
_UNBOUNDED: Final = 1e9


@dataclass(frozen=True, kw_only=True)
class NoiseAlone:
    """What the noise of all rounds does to the model where no user says anything.

    Where the clip norm adapts, or public text teaches the model before or between rounds, it is the
    noise at the first clip norm, on the model of the first round.

    Attributes:
        model: that the rounds begin with.
        rows: public text, in its tokens.
        spread: standard deviation of what server steps of length 1 add to each trained parameter,
            > 0.
    """

    model: LocalModel
    rows: list[list[int]]
    spread: float

    @classmethod
    def of(
        cls,
        model: LocalModel,
        plan: Plan,
        settings: FederatedTrainingConfig,
        *,
        restarts: Collection[int] = (),
    ) -> Self | None:
        """That of a plan; None where it has no noise, or the model makes nothing of the text.

        Args:
            model: that the rounds begin with.
            plan: settled.
            settings: of the run.
            restarts: rounds after which the momentum begins again, from 1.
        """
        momentum, variance = settings.server_momentum, 0.0
        for phase in plan.phases:
            for query in phase.asks:
                if isinstance(query, ModelDelta) and phase.noise_multiplier:
                    signal = NoiseAgainstUsers.of(phase, settings).signal
                    deviation = query.clip_norm * query.unit / signal
                    variance += (deviation * _spread(phase, momentum, restarts)) ** 2
        rows = [row[: settings.max_tokens + 1] for row in model.encode(_public_documents())]
        rows = [row for row in rows if len(row) > 1]
        if not (variance and rows):
            return None
        return cls(model=model, rows=rows, spread=math.sqrt(variance))

    def lost(self, step: float) -> float:
        """Nats a token of public text that the noise takes from the model, on average over draws.

        No number where it is none.

        Args:
            step: of the server's optimiser, along the momentum.
        """
        # Noise that nobody will ever add to a release: any generator will do.
        random, after, start = np.random.default_rng(0), 0.0, self.model.parameters
        for _ in range(_DRAWS):
            shift = random.standard_normal(self.model.dimension, dtype=np.float32)
            shift *= np.float32(step * self.spread)
            after += self.model.loss(self.rows, parameters=shift + start) / _DRAWS
        return after - self.model.loss(self.rows)

    def longest_step(self, longest: float) -> float:
        """The longest step at which little is lost, or the shortest: more noise takes more.

        Args:
            longest: that is tried; the others are shorter by the root of two each.
        """
        count = round(2 * math.log2(longest / _SHORTEST))
        steps: list[float] = [longest * 2.0 ** (-k / 2) for k in range(count + 1)]
        little = bisect.bisect_left(
            steps, True, hi=count, key=lambda step: self.lost(step) <= LOST_BY_CHOICE
        )
        return steps[little]


@functools.cache
def _public_documents() -> tuple[str, ...]:
    """Bundled documents from all over the file, which has one kind after the other."""
    documents = list(PublicCorpus.find("bundled", setting="public-text").documents())
    return tuple(documents[:: len(documents) // _DOCUMENTS][:_DOCUMENTS])


def _spread(phase: Phase, momentum: float, restarts: Collection[int]) -> float:
    """Of the sum of all steps of length 1, over that of a round's innovations."""
    random = np.random.default_rng(1)
    recurrence = None if phase.factorisation is None else phase.factorisation.recurrence()
    velocity, moved = np.zeros(_NUMBERS), np.zeros(_NUMBERS)
    for number in range(1, phase.rounds + 1):
        if recurrence is None:
            noise = random.standard_normal(_NUMBERS)
        else:
            noise = recurrence.next(lambda: random.standard_normal(_NUMBERS))
        velocity = momentum * velocity + noise
        moved += velocity
        if number in restarts:
            velocity = np.zeros(_NUMBERS)
    return float(np.sqrt(np.mean(moved**2)))


#: Steps left to the noise that are worth a word.
_SHORT: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class FederatedTrainingConfig(PrivateSumConfig):
    """Settings of every strategy that trains a model on the nodes.

    `embedding_model` and `embedding_precision` are not used: text is cut by the model's own
    tokenizer, `max_tokens` tokens to a sample.

    References:
        McMahan et al. 2018, Algorithm 1; Hsu et al. 2019.
    """

    delta: float = 3e-6
    num_rounds: int = 20
    broadcast_precision: Annotated[
        Literal["float16", "float32"],
        'how parameters travel; "float16" halves the download, and users train from the rounded '
        "parameters.",
    ] = "float32"
    max_samples: Annotated[
        int,
        "samples of one user that are trained on, a random subset fixed per user and seed; 0 for "
        "all of them: the clip bounds a user whatever their number. The default bounds the time a "
        "user's training takes, which nothing noises.",
    ] = 64
    model: Annotated[
        str, "causal language model to train; a bundled short name, a path, or a hub name."
    ] = "privsyn-lm"
    initial_model: Annotated[
        str,
        "model of the same architecture and tokens that the rounds start from, such as "
        '`models/final` of another run; "" for `model` itself. The server alone needs it: nodes '
        "load `model` and are sent what differs.",
    ] = ""
    trainable: Annotated[
        Trainable,
        '"full": all parameters; "lora": adapters on all linear layers but the output; "layers": '
        "the parameters named by `trainable_layers`.",
    ] = "full"
    trainable_layers: Annotated[
        str, 'patterns of parameter names separated by commas, for "layers".'
    ] = ""
    lora_rank: Annotated[LoraRank, "rank of the adapters."] = 4
    local_learning_rate: Annotated[LearningRate, "of a user's stochastic gradient descent."] = 0.1
    local_epochs: Annotated[
        PositiveInt,
        "passes over a user's samples in a round.",
        IN_PYTHON,
    ] = 1
    local_batch_size: Annotated[PositiveInt, "samples per local step."] = 4
    local_steps: Annotated[
        NonNegativeInt,
        "steps after which a user's training ends, or 0 for all of the epochs. By default as many "
        "as one pass over `max_samples` takes one by one.",
    ] = 64
    clip_norm: Annotated[ClipNorm, "bound on the L2 norm of a user's whole update."] = 0.1
    server_learning_rate: Annotated[
        float | None,
        Gt(0),
        "step along the momentum. None, in a run configuration a negative number: the longest, "
        "from 1 to 0.001, at which the noise of all rounds alone takes at most 0.04 nats a token "
        "of public text from the model; tried before anybody is asked.",
    ] = None
    server_momentum: Annotated[
        float,
        Ge(0),
        Le(0.999999),
        "0 is plain averaging.",
        IN_PYTHON,
    ] = 0.9

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        self.trained_model()
        self.question(self.clip_norm)

    def trained_model(self) -> TrainableModel:
        """The model these settings train, and what of it."""
        return TrainableModel(
            name=self.model,
            trainable=self.trainable,
            layers=self.trainable_layers,
            lora_rank=self.lora_rank,
        )

    def question(self, clip_norm: float) -> ModelDelta:
        """The query these settings ask at a clip norm."""
        return ModelDelta(
            clip_to=clip_norm,
            learning_rate=self.local_learning_rate,
            epochs=self.local_epochs,
            batch_size=self.local_batch_size,
            max_steps=self.local_steps,
        )


class FederatedTraining(Method):
    """A model trained on the nodes, seen by the server as noisy sums of updates.

    Its state: the trained `parameters`, the server's `momentum`, the `clip_norm` of the next round,
    the `longest_step` that the noise lets be at the first clip norm, and in `base` the folder of a
    model of the run whose values stand where nodes train nothing.

    A subclass may say how the clip norm goes on (`next_clip_norm`), what the rounds are (`phases`)
    and what becomes of the model after the last (`trained`).

    Formal guarantee:
        That of `PrivateSumStrategy`, for updates clipped as a whole to the clip norm of their
        round. Averages are over the users expected in a round, a public constant. The server's
        steps, the checkpoints and the final model are post-processing.

    Args:
        config: the settings.
    """

    config: FederatedTrainingConfig

    def __init__(self, config: FederatedTrainingConfig) -> None:
        self.config = config
        self._model: LocalModel | None = None
        self._bases: dict[str, LocalModel] = {}
        self._longest_step = _UNBOUNDED

    @property
    def queries(self) -> tuple[Query, ...]:
        """Updates, clipped to the first clip norm."""
        return (self.config.question(self.config.clip_norm),)

    def needs(self) -> Needs:
        """The model that is trained."""
        config = self.config
        adapters = ("peft",) if config.trainable == "lora" else ()
        named = {"model": config.model, "initial-model": config.initial_model}
        return Needs(
            models=tuple(
                NeededModel(setting=setting, name=name, kind="causal")
                for setting, name in named.items()
                if name
            ),
            libraries=("torch", "transformers", *adapters),
        )

    def outline(self, look: Look) -> Outline:
        """Updates of all that is trained, in every round."""
        spec = self.config.trained_model()
        size = look.parameters(spec)
        query = self.config.question(self.config.clip_norm)
        alone = Question(query, {"parameters": np.zeros(size, dtype=np.float32)})
        both = alone
        if spec.trainable != "full":
            rest = look.parameters(replace(spec, trainable="full", layers=""))
            rest -= size if spec.trainable == "layers" else 0
            both = Question(query, {**alone.broadcast, "base": np.zeros(rest, dtype=np.float32)})
        return Outline(
            sources=(RecordSource(fingerprint="", dimension=size, reads="tokens", trains=spec),),
            question=lambda number: both if self.base_moved(number) else alone,
        )

    def base_moved(self, number: int) -> bool:  # noqa: ARG002 - for methods that move it later
        """Whether what nodes do not train has other values in a round than `model` has.

        Args:
            number: of the round.
        """
        return bool(self.config.initial_model)

    # ------------------------------------------------------------------ before the first round

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        """Load the model."""
        self.place = place
        self._longest_step = _UNBOUNDED
        config = self.config
        # Not those of an earlier start: it may have written its result with them, which leaves
        # the values of that run inside, or have failed between the two.
        self._model, self._bases = None, {}
        self._load()
        if self.model.encoder_decoder and not any(query.conditioned for query in self.queries):
            raise ConfigError(
                f"model = {config.model!r} is an encoder-decoder, of which only CTCL has something "
                "for the encoder to read: name a causal language model"
            )
        most = self.model.max_tokens
        if most is not None and config.max_tokens > most:
            raise ConfigError(
                f"max-tokens = {config.max_tokens} is more than the {most} tokens that model "
                f"{config.model!r} takes"
            )
        logger.info("%s: %d parameters are trained", config.model, self.model.dimension)
        return (
            RecordSource(
                fingerprint=self.model.fingerprint,
                dimension=self.model.dimension,
                reads="tokens",
                trains=config.trained_model(),
            ),
        )

    def _load(self) -> None:
        """Load the model, once, and the one that the rounds start from."""
        from flower_privsyn.training.local import LocalModel

        if self._model is not None:
            return
        spec = self.config.trained_model()
        on_disk = TrainableModel.from_dict({**spec.to_dict(), "name": located(spec.name)})
        self._model = LocalModel(on_disk)
        initial = self.config.initial_model
        self._bases[""] = self._loaded_initial(on_disk) if initial else self._model

    @property
    def model(self) -> LocalModel:
        """The model at the server; available from `setup` on."""
        return need(self._model)

    def _loaded_initial(self, spec: TrainableModel) -> LocalModel:
        from flower_privsyn.training.local import LocalModel

        config = self.config
        found = LocalModel(replace(spec, name=located(config.initial_model)))
        tokens, others = (one.tokenizer.backend_tokenizer.to_str() for one in (self.model, found))
        same = found.shapes == self.model.shapes and len(found.base) == len(self.model.base)
        if tokens != others or not same:
            raise ConfigError(
                f'initial-model = "{config.initial_model}" is of another architecture or other '
                f'tokens than model = "{config.model}": it must be the same model, trained further'
            )
        return found

    def base_of(self, state: State) -> LocalModel:
        """The model whose values stand where nodes train nothing: what the rounds start from.

        Args:
            state: names the folder of one that the run has made.
        """
        from flower_privsyn.training.local import LocalModel

        name = state.get("base", "")
        if name not in self._bases:
            folder, home = (self.run.path / name).resolve(), self.run.path.resolve()
            if home not in folder.parents:  # of a run that somebody handed over
                raise RunDirectoryError(
                    f"{home} goes on from the model in {folder}, which is not one of its own"
                )
            self._bases[name] = LocalModel(replace(self.config.trained_model(), name=str(folder)))
        return self._bases[name]

    def begun_from(self, state: State, base: str) -> State:
        """The state whose rounds go on from a model that was trained from theirs.

        Args:
            state: before.
            base: the folder of that model, below the run directory.
        """
        model = self.base_of({"base": base})
        return {**state, "base": base, "parameters": model.parameters}

    def init(self, scratch: Path) -> State:  # noqa: ARG002
        """The public parameters."""
        parameters = self.base_of({}).parameters
        return {
            "parameters": parameters,
            "momentum": np.zeros_like(parameters),
            "clip_norm": self.config.clip_norm,
            "longest_step": self._longest_step,
        }

    def check(self, plan: Plan, *, spent: str, state: State | None = None) -> Finding | None:
        """Try the noise of all rounds on the model, choose the step, refuse what would destroy it.

        A run that goes on keeps its step, or takes a shorter one where there are fewer users now.
        """
        self._load()
        config, step = self.config, self.config.server_learning_rate
        alone = NoiseAlone.of(self.base_of({}), plan, config, restarts=self.momentum_restarts)
        if alone is None:
            return None
        adapts = bool(config.question(config.clip_norm).bit_share)
        if step is None:
            self._longest_step = alone.longest_step(LONGEST if adapts else 1.0)
            begun = 1.0 if state is None else state["longest_step"]
            step = min(1.0, begun, self._longest_step)
        lost = alone.lost(step)
        said = (
            "noise alone: without a word of any user, that of all rounds would take "
            f"{lost:.2f} nats a token of public text from the model, at server-learning-rate = "
            f"{step:.2g}"
        )
        if not (lost <= MOST_LOST or config.accept_noise):  # so where it is no number
            raise ConfigError(
                f"{said}, and no model that lost more than {MOST_LOST:g} was seen to recover: take "
                "more users, a larger epsilon or fewer rounds, train fewer parameters (trainable, "
                "lora-rank), lower clip-norm, leave the step to the noise (server-learning-rate = "
                "-1 in a run configuration, None in Python), or set accept-noise = true to run all "
                f"the same; {spent}"
            )
        if config.server_learning_rate is not None:
            return Finding(sentence=said)
        said += ", and shorter as the clip norm grows" if adapts else ""
        if short := step < _SHORT:
            said += "; with steps as short as that little of what users say is learnt"
        return Finding(sentence=said, warning=short)

    @property
    def momentum_restarts(self) -> frozenset[int]:
        """Rounds after which the momentum begins again; here none."""
        return frozenset()

    # ------------------------------------------------------------------ a round

    def ask(self, state: State, number: int) -> Question:  # noqa: ARG002
        """Updates of the parameters, and what is not trained, if it moved."""
        return Question(self.config.question(state["clip_norm"]), self.arrays(state))

    def arrays(self, state: State) -> Broadcast:
        """The parameters, and what is not trained, if it moved."""
        moved = self.config.trainable != "full" and (state.get("base") or self.config.initial_model)
        base = {"base": self.base_of(state).base} if moved else {}
        return {"parameters": state["parameters"], **base}

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:  # noqa: ARG002
        """One step of the server's optimiser along the average update.

        v <- mu v + average update; x <- x + eta v (Hsu et al. 2019). Float64, stored as float32.
        """
        config = self.config
        query = config.question(state["clip_norm"])
        average = query.mean_update(release.values, release.expected_users)
        momentum = config.server_momentum * state["momentum"].astype(np.float64) + average
        # A larger clip norm's noise moves the model no farther.
        longest = min(state["longest_step"], self._longest_step)
        step = config.server_learning_rate
        if step is None:
            step = min(1.0, longest * config.clip_norm / state["clip_norm"])
        clip_norm, figures = self.next_clip_norm(query, release)
        write_json(
            RoundFiles(self.run.round_dir(release.round_number)).server,
            {
                "clip_norm": state["clip_norm"],
                "learning_rate": step,
                "next_clip_norm": clip_norm,
                "average_update_norm": float(np.linalg.norm(average)),
                "average_noise_norm": release.noise_std
                * query.unit
                / release.expected_users
                * float(np.sqrt(len(average))),
                **figures,
            },
        )
        return {
            **state,
            "parameters": (state["parameters"] + step * momentum).astype(np.float32),
            "momentum": momentum.astype(np.float32),
            "clip_norm": clip_norm,
            "longest_step": longest,
        }

    def next_clip_norm(
        self,
        query: ModelDelta,
        release: ReleasedSum,  # noqa: ARG002 - for methods whose clip norm moves
    ) -> tuple[float, dict[str, float]]:
        """The clip norm of the next round, here that of this one, and what it follows from.

        Args:
            query: what was asked.
            release: what was released.

        Returns:
            The clip norm, and released figures for the round's `server.json`.
        """
        return query.clip_to, {}

    # ------------------------------------------------------------------ the result

    def finish(self, state: State) -> dict[str, Any]:
        """Write the trained model as a folder that Transformers loads."""
        model, parameters = self.trained(state)
        (self.run.path / "models").mkdir(exist_ok=True)
        return {
            **self.written(model, parameters, state),
            "trained_parameters": self.model.dimension,
            "clip_norm": state["clip_norm"],
        }

    def written(
        self,
        model: LocalModel,
        parameters: npt.NDArray[np.float32],
        state: State,  # noqa: ARG002 - for methods that write more
    ) -> dict[str, Any]:
        """Write the result to `models/final`.

        Args:
            model: that was trained.
            parameters: what was trained of it.
            state: after the last round.

        Returns:
            Which folders the models are in, for the end of the run.
        """
        with self.progress.stage("Write the model", total=None):
            model.save(self.run.path / TRAINED_MODEL, parameters)
        return {"model": TRAINED_MODEL}

    def trained(self, state: State) -> tuple[LocalModel, npt.NDArray[np.float32]]:
        """The result: a model, and what its trained parameters are; here those of the last round.

        Args:
            state: after the last round.
        """
        return self.base_of(state), state["parameters"]


class TrainingStrategy(PrivateSumStrategy):
    """A strategy that is made of its settings alone: `method_class` is its server's half.

    Args:
        config: the settings, where they are not given as keywords.
        random: source of noise and coins; only tests pass one.
        settings: by the names of the fields of `config_class`.
    """

    method_class: ClassVar[type[Method]]

    def __init__(
        self,
        config: PrivateSumConfig | None = None,
        *,
        random: RandomSource | None = None,
        **settings: Any,
    ) -> None:
        config = self.config_class.given(config, settings, strategy=type(self).__name__)
        made: Any = self.method_class
        super().__init__(config, made(config), random=random)


@dataclass(frozen=True, kw_only=True)
class CorrelatedTrainingConfig(FederatedTrainingConfig):
    """Settings of every strategy whose training has correlated noise.

    References:
        Kairouz et al. 2021, Algorithm 1; McMahan, Xu, Zhang 2024; Choquette-Choo et al. 2023.
    """

    sampling: Annotated[
        Literal["cyclic"],
        "who takes part: users are dealt to `min_separation` groups that take turns.",
    ] = "cyclic"  # type: ignore[assignment]
    noise_multiplier: Annotated[
        float | None,
        "standard deviation of the fresh part of a round's noise over the clip norm, as papers on "
        "DP-FTRL state it: of one node of a tree. What all rounds cost is this over the "
        "sensitivity of the correlation, and follows from the participation.",
    ] = None
    min_separation: Annotated[
        PositiveInt,
        "b, rounds from one participation of a user to the next. About num_users / min_separation "
        "users take part in a round. At 1 everybody takes part in every round, and no correlation "
        "is worth having: that is DP-FedAvg.",
    ] = 10
    correlation: Annotated[
        Literal["blt", "banded", "tree"],
        '"blt": buffers; "banded": bands; "tree": binary trees as published.',
    ] = "blt"

    def sampling_of(self, population: int) -> Sampling:
        """Groups that take turns, dealt by a public hash of the users' ids and the seed."""
        return CyclicSampling(
            groups=self.min_separation,
            rounds=self.num_rounds,
            salt=self.salt,
            population=population,
        )

    @property
    def salt(self) -> str:
        """By which users are dealt to groups, public."""
        return hashlib.blake2b(f"turns {self.seed}".encode(), digest_size=16).hexdigest()

    def phase(self, population: int, *, asks: tuple[BoundedQuestion, ...]) -> Phase:
        """All rounds as one phase, under the matrix of these settings."""
        return self.correlated(super().phase(population, asks=asks))

    def correlated(self, phase: Phase) -> Phase:
        """A phase with the matrix for how often it asks a user; as it is where coins decide."""
        if isinstance(phase.sampling, CyclicSampling):
            matrix = self.factorisation(phase.rounds, phase.sampling.min_separation)
            phase = replace(phase, factorisation=matrix)
        return phase

    def factorisation(self, rounds: int, min_separation: int) -> Factorisation:
        """The matrix that correlates the noise, for the momentum of the server.

        Args:
            rounds: >= 1.
            min_separation: of the rounds of one user, >= 1.
        """
        if self.correlation == "blt":
            return BufferedLinearToeplitz.optimal(
                rounds=rounds, min_separation=min_separation, momentum=self.server_momentum
            )
        if self.correlation == "banded":
            bands = min(min_separation, rounds)
            return BandedToeplitz.optimal(rounds=rounds, bands=bands, momentum=self.server_momentum)
        return TreeAggregation(rounds=rounds, restart_every=min_separation)


#: The round that asks it; all others train.
FIRST_ROUND = 1


def first_then_training(
    config: CorrelatedTrainingConfig,
    population: int,
    queries: tuple[Query, ...],
    *,
    name: str,
    key: str,
    share: float,
) -> tuple[Phase, Phase]:
    """A phase of one round for the first release, and one of those that train.

    The first one's noise multiplier is stated, or follows from its share of the budget. A single
    Gaussian release that spends the whole budget has noise multiplier z. One of z / sqrt(s) takes
    the part s of what a budget is made of, for Gaussian releases compose by the sum of 1 / z^2:
    what is left for training is that of z / sqrt(1 - s).

    Formal guarantee:
        Everybody may be asked for the first release, so a user pays for it and for the rounds that
        train: both phases compose. Cohorts of the second are counted from the first round of the
        run, as `CyclicSampling` does.

    Args:
        config: the settings; their `num_rounds` counts both.
        population: users on the roster, or the fewest there must be.
        queries: what the first round asks, and what the rounds ask that train.
        name: of the first phase.
        key: the setting that states its noise multiplier.
        share: s, in (0, 1).

    Raises:
        ConfigError: no noise keeps the budget, or there is none to share.
    """
    first, updates = queries
    everybody = Phase(
        name=name,
        rounds=1,
        sampling=FullParticipation(population=population),
        asks=(first,),
        noise_multiplier=getattr(config, key.replace("-", "_")),
    )
    if everybody.noise_multiplier is None:
        if config.epsilon is None:
            raise ConfigError(
                f"noise-multiplier = {config.noise_multiplier:g} needs {key} beside it: without an "
                "epsilon there is nothing to share"
            )
        alone = Plan(
            phases=(everybody,),
            delta=config.delta,
            relation=NeighboringRelation(config.relation),
            accountant=config.accountant,
            max_nodes_per_user=config.max_nodes_per_user,
        )
        multiplier = alone.calibrated_multiplier(config.epsilon) / math.sqrt(share)
        everybody = replace(everybody, noise_multiplier=multiplier)
    training = PrivateSumConfig.phase(config, population, asks=(updates,))
    training = replace(training, name="training", rounds=config.num_rounds - 1)
    return everybody, config.correlated(training)
