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
from flower_privsyn.files import located, replacing, write_json
from flower_privsyn.privacy import Plan
from flower_privsyn.private_path.method import (
    Finding,
    Method,
    Outline,
    Question,
    RecordSource,
    Workplace,
    need,
)
from flower_privsyn.private_path.needs import Look, NeededModel, Needs
from flower_privsyn.private_path.release import ReleasedSum
from flower_privsyn.private_path.settings import PrivateSumConfig
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
    from flower_privsyn.runs import RunDirectory
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
    checkpoints: Annotated[
        Literal["last", "all"],
        '"last": only the latest model is kept; "all": that of every round.',
        IN_PYTHON,
    ] = "last"

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


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """What the server knows after a round, and all that the next one needs.

    Attributes:
        parameters: (p,) float32, what users train from in the next round.
        momentum: (p,) float32, decaying sum of the average updates.
        clip_norm: C of the next round.
        longest_step: that the noise lets be at the first clip norm; infinite where nobody asked it.
    """

    parameters: npt.NDArray[np.float32]
    momentum: npt.NDArray[np.float32]
    clip_norm: float
    longest_step: float


class FederatedTraining(Method):
    """A model trained on the nodes, seen by the server as noisy sums of updates.

    A subclass may say how the clip norm goes on (`following_clip_norm`), how the noise of the
    rounds is correlated (`phases`), and what becomes of the model between two rounds
    (`next_start`) and after the last (`trained`).

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
        self._initial: LocalModel | None = None
        self._place: Workplace | None = None
        self._longest_step = math.inf

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

    @property
    def run(self) -> RunDirectory:
        """The run directory; available from `prepare` on."""
        return self._need_place().run

    # ------------------------------------------------------------------ before the first round

    def prepare(self, place: Workplace) -> tuple[RecordSource, ...]:
        """Load the model."""
        self._place = place
        self._longest_step = math.inf
        config = self.config
        # Not those of an earlier start: it may have written its result with them, which leaves
        # the values of that run inside, or have failed between the two.
        self._model = self._initial = None
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
        if self.config.initial_model:
            self._initial = self._loaded_initial(on_disk)

    @property
    def model(self) -> LocalModel:
        """The model at the server; available from `prepare` on."""
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

    def loaded(self, folder: Path) -> LocalModel:
        """The model that is trained, with the values of one that was trained from it.

        Args:
            folder: of the other one.
        """
        from flower_privsyn.training.local import LocalModel

        return LocalModel(replace(self.config.trained_model(), name=str(folder)))

    def base_of(self, number: int) -> LocalModel:  # noqa: ARG002 - for methods that move it later
        """The model whose values a round has where nodes train nothing.

        Args:
            number: of the round.
        """
        return self.model if self._initial is None else self._initial

    def first(self) -> Question:
        """The public parameters."""
        parameters = self.base_of(0).parameters
        state = ServerState(
            parameters=parameters,
            momentum=np.zeros_like(parameters),
            clip_norm=self.config.clip_norm,
            longest_step=self._longest_step,
        )
        state = self.next_start(state, 0)
        self._write(state, 0)
        return self._question(state, 1)

    def next_start(
        self,
        state: ServerState,
        number: int,  # noqa: ARG002 - for methods that do more than average
    ) -> ServerState:
        """What the round after a given one starts from; here what that round left.

        Called again with the same values where a run was interrupted in it.

        Args:
            state: after the server's step, or as it was where the round was lost.
            number: of the round that is over; 0 before the first.
        """
        return state

    def check_plan(self, plan: Plan, *, spent: str) -> Finding | None:
        """Try the noise of all rounds on the model, choose the step, refuse what would destroy it.

        A run that goes on keeps its step, or takes a shorter one where there are fewer users now.
        """
        self._load()
        config = self.config
        tried = functools.partial(
            noise_alone,
            self.base_of(0),
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
            begun = self._begun_with()
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

    def _begun_with(self) -> float:
        """The longest step of a run that goes on, or infinity."""
        if self._place is None:
            return math.inf
        known = (
            self._read(number).longest_step
            for number in self.run.finished_rounds()
            if RoundFiles(self.run.round_path(number)).server_state.exists()
        )
        return min(known, default=math.inf)

    @property
    def momentum_restarts(self) -> frozenset[int]:
        """Rounds after which the momentum begins again; here none."""
        return frozenset()

    def _step_after(self, state: ServerState) -> float:
        """The server's in the next round; a larger clip norm's noise moves the model no farther."""
        stated = self.config.server_learning_rate
        if stated is not None:
            return stated
        return min(1.0, state.longest_step * self.config.clip_norm / state.clip_norm)

    # ------------------------------------------------------------------ a round

    def following(self, release: ReleasedSum, *, last: bool) -> Question | None:
        """One step of the server's optimiser along the average update.

        v <- mu v + average update; x <- x + eta v (Hsu et al. 2019). Float64, stored as float32.
        """
        config, number = self.config, release.round_number
        before = self._read(number - 1)
        query = config.question(before.clip_norm)
        average = query.mean_update(release.values, release.expected_users)
        momentum = config.server_momentum * before.momentum.astype(np.float64) + average
        step = self._step_after(before)
        parameters = before.parameters + step * momentum
        after = ServerState(
            parameters=parameters.astype(np.float32),
            momentum=momentum.astype(np.float32),
            clip_norm=self.following_clip_norm(query, release),
            longest_step=before.longest_step,
        )
        after = after if last else self.next_start(after, number)
        self._write(after, number)
        write_json(
            RoundFiles(self.run.round_dir(number)).server,
            {
                "clip_norm": before.clip_norm,
                "learning_rate": step,
                "next_clip_norm": after.clip_norm,
                "average_update_norm": float(np.linalg.norm(average)),
                "average_noise_norm": release.noise_std
                * query.unit
                / release.expected_users
                * float(np.sqrt(len(average))),
                **self.observed(query, release),
            },
        )
        self._forget_until(number - 2)
        return None if last else self._question(after, number + 1)

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

    def restore(self, round_number: int) -> Question:
        """The stored parameters of a round."""
        return self._question(self._read(round_number - 1), round_number)

    def carry_over(self, round_number: int) -> None:
        """A lost round changes nothing; what was before it stays, as it may be asked again."""
        self._write(self.next_start(self._read(round_number - 1), round_number), round_number)

    def closing(self) -> Broadcast:
        """The parameters after the last round, and what is not trained, if it moved."""
        return {"parameters": self._last_state().parameters, **self.beside(self.config.num_rounds)}

    def _question(self, state: ServerState, number: int) -> Question:
        query = self.config.question(state.clip_norm)
        return Question(query, {"parameters": state.parameters, **self.beside(number)})

    def beside(self, number: int) -> dict[str, npt.NDArray[Any]]:
        """Further public arrays of a round's broadcast: what is not trained, if it moved.

        Args:
            number: of the round.
        """
        if self.config.trainable == "full" or not self.base_moved(number):
            return {}
        return {"base": self.base_of(number).base}

    def _need_place(self) -> Workplace:
        return need(self._place)

    # ------------------------------------------------------------------ the result

    def finish(self) -> dict[str, Any]:
        """Write the trained model as a folder that Transformers loads."""
        state = self._last_state()
        model, parameters = self.trained(state)
        (self.run.path / "models").mkdir(exist_ok=True)
        return {
            **self.written(model, parameters),
            "trained_parameters": self.model.dimension,
            "clip_norm": state.clip_norm,
        }

    def written(self, model: LocalModel, parameters: npt.NDArray[np.float32]) -> dict[str, Any]:
        """Write the result to `models/final`.

        Args:
            model: that was trained.
            parameters: what was trained of it.

        Returns:
            Which folders the models are in, for the end of the run.
        """
        with self._need_place().progress.stage("Write the model", total=None):
            model.save(self.run.path / TRAINED_MODEL, parameters)
        return {"model": TRAINED_MODEL}

    def trained(self, state: ServerState) -> tuple[LocalModel, npt.NDArray[np.float32]]:
        """The result: a model, and what its trained parameters are; here those of the last round.

        Args:
            state: after the last round that was released.
        """
        return self.base_of(self.config.num_rounds), state.parameters

    # ------------------------------------------------------------------ the state on disk

    def _write(self, state: ServerState, number: int) -> None:
        """Store what was known after a round; 0 is before the first."""
        from safetensors.numpy import save_file

        files = RoundFiles(self.run.round_dir(number))
        with replacing(files.model) as temporary:
            save_file(self.model.named(state.parameters), temporary, metadata={"format": "pt"})
        rest: dict[str, npt.NDArray[Any]] = {
            "momentum": state.momentum,
            "clip_norm": np.array([state.clip_norm], dtype=np.float64),
            "longest_step": np.array([state.longest_step], dtype=np.float64),
        }
        with replacing(files.server_state) as temporary:
            save_file(rest, temporary)

    def _last_state(self) -> ServerState:
        # A lost round leaves its state to the next one; a lost last round has none to leave it to.
        return self._read(
            max(
                n
                for n in self.run.finished_rounds()
                if RoundFiles(self.run.round_path(n)).model.exists()
            )
        )

    def _read(self, number: int) -> ServerState:
        from safetensors.numpy import load_file

        files = RoundFiles(self.run.round_path(number))
        named, rest = load_file(files.model), load_file(files.server_state)
        return ServerState(
            parameters=np.concatenate([named[name].ravel() for name in self.model.shapes]),
            momentum=rest["momentum"],
            clip_norm=float(rest["clip_norm"][0]),
            longest_step=min(float(rest["longest_step"][0]), self._longest_step),
        )

    def _forget_until(self, number: int) -> None:
        """Delete what no resumed run can need: the round after it was released as well."""
        while number >= 0:
            files = RoundFiles(self.run.round_path(number))
            if not files.server_state.exists():
                return
            files.server_state.unlink()
            if self.config.checkpoints == "last":
                files.model.unlink(missing_ok=True)
            number -= 1  # a round that was lost has left the one before it as well
