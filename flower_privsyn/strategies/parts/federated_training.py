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

import functools
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import IN_PYTHON, NonNegativeInt, PositiveInt
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located, write_json
from flower_privsyn.privacy import Plan
from flower_privsyn.private_path.method import (
    Finding,
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
from flower_privsyn.queries import Broadcast, ModelDelta, Query, TrainableModel
from flower_privsyn.queries.model_delta import (
    ClipNorm,
    LearningRate,
    LocalPrecision,
    LoraRank,
    Trainable,
)
from flower_privsyn.runs.rounds import TRAINED_MODEL, RoundFiles
from flower_privsyn.strategies.parts.noise_alone import LONGEST, noise_alone

if TYPE_CHECKING:
    from flower_privsyn.training.local import LocalModel

logger = logging.getLogger("flwr.privsyn")

#: Steps left to the noise that are worth a word.
_SHORT: Final = 0.1

#: PrE-Text's and POPri's baselines train on all of a user's samples, however many those are.
UNCAPPED: Final[Mapping[str, int]] = {"max_samples": 0, "local_steps": 0}


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
    lora_alpha: Annotated[
        PositiveInt,
        "their scale times their rank.",
        IN_PYTHON,
    ] = 8
    local_precision: Annotated[
        LocalPrecision,
        '"bfloat16" is for the products of local training on CPUs that multiply it natively.',
        IN_PYTHON,
    ] = "float32"
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
            lora_alpha=self.lora_alpha,
            precision=self.local_precision,
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
    the `longest_step` that the noise lets be at the first clip norm (None where nobody asked it),
    and in `base` the folder of a model of the run whose values stand where nodes train nothing.

    A subclass may say how the clip norm goes on (`following_clip_norm`), how the noise of the
    rounds is correlated (`phases`), and what becomes of the model after the last (`trained`).

    Formal guarantee:
        That of `PrivateSumStrategy`, for updates clipped as a whole to the clip norm of their
        round. Averages are over the users expected in a round, a public constant. The server's
        steps, the checkpoints and the final model are post-processing.

    Args:
        config: the settings.
    """

    #: Whether documents are trained on after something that an encoder could read.
    has_conditions: ClassVar[bool] = False

    config: FederatedTrainingConfig

    def __init__(self, config: FederatedTrainingConfig) -> None:
        self.config = config
        self._model: LocalModel | None = None
        self._bases: dict[str, LocalModel] = {}
        self._longest_step: float | None = None

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
        source = RecordSource(
            fingerprint="", dimension=look.parameters(spec), reads="tokens", trains=spec
        )
        zeros = np.zeros(source.dimension, dtype=np.float32)
        updates = self.config.question(self.config.clip_norm)
        alone = Question(updates, {"parameters": zeros})
        if spec.trainable == "full":
            return Outline(sources=(source,), question=lambda _: alone)
        count = look.parameters(replace(spec, trainable="full", layers=""))
        if spec.trainable == "layers":
            count -= source.dimension
        base = np.zeros(count, dtype=np.float32)
        both = Question(alone.query, {**alone.broadcast, "base": base})
        return Outline(
            sources=(source,), question=lambda number: both if self.base_moved(number) else alone
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
        self._longest_step = None
        config = self.config
        # Not those of an earlier start: it may have written its result with them, which leaves
        # the values of that run inside, or have failed between the two.
        self._model, self._bases = None, {}
        self._load()
        if self.model.encoder_decoder and not self.has_conditions:
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
            folder = str(self.run.path / name)
            self._bases[name] = LocalModel(replace(self.config.trained_model(), name=folder))
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
        config = self.config
        tried = functools.partial(
            noise_alone,
            self.base_of({}),
            plan,
            config,
            momentum=config.server_momentum,
            restarts=self.momentum_restarts,
        )
        chosen = config.server_learning_rate is None
        found = tried(learning_rate=config.server_learning_rate)
        if found is None:
            return None
        adapts = bool(config.question(config.clip_norm).bit_share)
        if chosen:
            self._longest_step = found.learning_rate
            if adapts and found.learning_rate == 1.0:
                more = tried(learning_rate=None, longest=LONGEST)
                self._longest_step = need(more).learning_rate
            begun = _shorter(None if state is None else state["longest_step"])
            if begun < found.learning_rate:
                found = need(tried(learning_rate=begun))
        if not config.accept_noise:
            found.refuse(chosen=chosen, spent=spent)
        said = found.describe()
        if chosen and adapts:
            said += ", and shorter as the clip norm grows"
        short = chosen and found.learning_rate < _SHORT
        if short:
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
        longest = _shorter(state["longest_step"], self._longest_step)
        step = config.server_learning_rate
        if step is None:
            step = min(1.0, longest * config.clip_norm / state["clip_norm"])
        clip_norm = self.following_clip_norm(query, release)
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
                **self.observed(query, release),
            },
        )
        return {
            **state,
            "parameters": (state["parameters"] + step * momentum).astype(np.float32),
            "momentum": momentum.astype(np.float32),
            "clip_norm": clip_norm,
            "longest_step": longest if math.isfinite(longest) else None,
        }

    def following_clip_norm(
        self,
        query: ModelDelta,
        release: ReleasedSum,  # noqa: ARG002 - for methods whose clip norm moves
    ) -> float:
        """The clip norm of the next round; here that of this one.

        Args:
            query: what was asked.
            release: what was released.
        """
        return query.clip_to

    def observed(self, query: ModelDelta, release: ReleasedSum) -> dict[str, float]:  # noqa: ARG002
        """Further released figures for the round's `server.json`; here none."""
        return {}

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


def _shorter(*steps: float | None) -> float:
    """The shortest of some longest steps; None is one that nobody asked the noise for."""
    return min(math.inf if step is None else step for step in steps)
