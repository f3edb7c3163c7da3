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

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import IN_PYTHON, NonNegativeInt, PositiveInt
from flower_privsyn.files import write_json
from flower_privsyn.models.trainable import LoraRank, TrainableModel
from flower_privsyn.privacy import Plan
from flower_privsyn.queries import Broadcast, ModelDelta, Query
from flower_privsyn.queries.model_delta import ClipNorm, LearningRate
from flower_privsyn.run.directory import TRAINED_MODEL, RoundFiles
from flower_privsyn.run.method import (
    Diagnostic,
    Method,
    Question,
    RecordSource,
    ReleasedSum,
    RunContext,
    State,
    need,
)
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.strategies._noise_alone import NoiseAlone

if TYPE_CHECKING:
    from flower_privsyn.training.local import LocalModel
    from flower_privsyn.training.server_model import ServerModel

#: What a step may be where there is no noise that says otherwise.
_UNBOUNDED: Final = 1e9


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
    broadcast_precision: Literal["float16", "float32"] = "float32"
    """How parameters travel; "float16" halves the download, and users train from the rounded
    parameters.
    """
    max_samples: int = 64
    """Samples of one user that are trained on, a random subset fixed per user and seed; 0 for all
    of them: the clip bounds a user whatever their number. The default bounds the time a user's
    training takes, which nothing noises.
    """
    model: str = "privsyn-lm"
    """Causal language model to train; a bundled short name, a path, or a hub name."""
    initial_model: str = ""
    """Model of the same architecture and tokens that the rounds start from, such as `models/final`
    of another run; "" for `model` itself. The server alone needs it: nodes load `model` and are
    sent what differs.
    """
    trainable: str = "full"
    """What is trained: "full": all parameters; "lora": adapters on all linear layers but the
    output; else patterns of parameter names separated by commas, such as
    "lm_head.*,model.layers.3.*".
    """
    lora_rank: Annotated[LoraRank, IN_PYTHON] = 4
    """Rank of the adapters."""
    local_learning_rate: LearningRate = 0.1
    """Of a user's stochastic gradient descent."""
    local_epochs: Annotated[PositiveInt, IN_PYTHON] = 1
    """Passes over a user's samples in a round."""
    local_batch_size: PositiveInt = 4
    """Samples per local step."""
    local_steps: NonNegativeInt = 64
    """Steps after which a user's training ends, or 0 for all of the epochs. By default as many as
    one pass over `max_samples` takes one by one.
    """
    clip_norm: ClipNorm = 0.1
    """Bound on the L2 norm of a user's whole update."""
    server_learning_rate: Annotated[float | None, Gt(0), Le(1e12)] = None
    """Step along the momentum. None, in a run configuration a negative number: the longest, from 1
    to 0.001, at which the noise of all rounds alone takes at most 0.04 nats a token of public text
    from the model; tried before anybody is asked.
    """
    server_momentum: Annotated[float, Ge(0), Le(0.999999), IN_PYTHON] = 0.9
    """0 is plain averaging."""

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

    def next_clip_norm(self, query: ModelDelta, release: ReleasedSum) -> dict[str, float]:  # noqa: ARG002
        """The `next_clip_norm`, here that of this round, and released figures that it follows from.

        Args:
            query: what was asked.
            release: what was released.
        """
        return {"next_clip_norm": query.clip_to}


class FederatedTraining(Method):
    """A model trained on the nodes, seen by the server as noisy sums of updates.

    Its state: the trained `parameters`, the server's `momentum`, the `clip_norm` of the next round
    and the `longest_step` that the noise lets be at the first clip norm; `base`, the folder of a
    model that the run has made and its rounds go on from, where there is one.

    Formal guarantee:
        That of `PrivateSumStrategy`, for updates clipped as a whole to the clip norm of their
        round. Averages are over the users expected in a round, a public constant. The server's
        steps, the checkpoints and the final model are post-processing.

    Args:
        config: the settings.
    """

    def __init__(self, config: FederatedTrainingConfig) -> None:
        self.config = config
        self._models: ServerModel | None = None
        self._longest_step = _UNBOUNDED

    @property
    def queries(self) -> tuple[Query, ...]:
        """Updates, clipped to the first clip norm."""
        return (self.config.question(self.config.clip_norm),)

    # ------------------------------------------------------------------ before the first round

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        """Load the model."""
        from flower_privsyn.training.server_model import ServerModel

        self.place, config = place, self.config
        self._longest_step = _UNBOUNDED
        # Not those of an earlier start: it may have written its result with them, which leaves
        # the values of that run inside, or have failed between the two.
        self._models = ServerModel(config.trained_model(), initial=config.initial_model)
        conditioned = any(query.conditioned for query in self.queries)
        self._models.check(max_tokens=config.max_tokens, conditioned=conditioned)
        return (
            RecordSource(
                fingerprint=self.model.fingerprint,
                dimension=self.model.dimension,
                reads="tokens",
                trains=config.trained_model(),
            ),
        )

    @property
    def model(self) -> LocalModel:
        """The model at the server; available from `setup` on."""
        return need(self._models).model

    def base_of(self, state: State) -> LocalModel:
        """The model whose values stand where nodes train nothing.

        Args:
            state: names the folder of one that the run has made; none of what the rounds start
                from.

        Raises:
            RunDirectoryError: the folder is elsewhere.
        """
        return need(self._models).base(state.get("base", ""), home=self.run.path)

    def begun_from(self, state: State, base: str) -> State:
        """The state whose rounds go on from a model that was trained from theirs.

        Args:
            state: before.
            base: the folder of that model, below the run directory.
        """
        parameters = self.base_of({"base": base}).parameters
        return {**state, "base": base, "parameters": parameters}

    def example_on(self, base: str, state: State) -> State:
        """A state whose rounds go on from a model of the run, here the one that they began with.

        Args:
            base: the folder of that model, below the run directory.
            state: before.
        """
        if self.config.trainable == "full":
            return state  # nodes train all of it, and nothing travels beside it
        self.model.save(self.run.path / base, state["parameters"])
        return self.begun_from(state, base)

    def init(self, scratch: Path) -> State:  # noqa: ARG002
        """The public parameters."""
        parameters = need(self._models).start.parameters
        return {
            "parameters": parameters,
            "momentum": np.zeros_like(parameters),
            "clip_norm": self.config.clip_norm,
            "longest_step": self._longest_step,
        }

    def check(self, plan: Plan, *, spent: str, state: State | None = None) -> Diagnostic | None:
        """Try the noise of all rounds on the model, choose the step, refuse what would destroy it.

        A run that goes on keeps its step, or takes a shorter one where there are fewer users now.
        """
        config = self.config
        alone = NoiseAlone.of(need(self._models).start, plan, config, self.momentum_after)
        if alone is None:
            return None
        step = config.server_learning_rate
        if step is None:
            self._longest_step = alone.longest_step()
            begun = 1.0 if state is None else state["longest_step"]
            step = min(1.0, begun, self._longest_step)
        return alone.diagnostic(step, chosen=config.server_learning_rate is None, spent=spent)

    def momentum_after(self, number: int) -> float:  # noqa: ARG002 - for what begins anew
        """What is kept of the momentum after a round.

        Args:
            number: of the round, from 1.
        """
        return self.config.server_momentum

    # ------------------------------------------------------------------ a round

    def ask(self, state: State, number: int) -> Question:  # noqa: ARG002
        """Updates of the parameters, and what is not trained, if it moved."""
        return Question(self.config.question(state["clip_norm"]), self.arrays(state))

    def arrays(self, state: State) -> Broadcast:
        """The parameters, and what is not trained, if it moved."""
        base = self.base_of(state)
        moved = self.config.trainable != "full" and base is not self.model
        return {"parameters": state["parameters"], **({"base": base.base} if moved else {})}

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
        step = config.server_learning_rate or min(
            1.0, longest * config.clip_norm / state["clip_norm"]
        )
        following = config.next_clip_norm(query, release)
        write_json(
            RoundFiles(self.run.round_dir(release.round_number)).server,
            {
                "clip_norm": state["clip_norm"],
                "learning_rate": step,
                "average_update_norm": float(np.linalg.norm(average)),
                "average_noise_norm": release.noise_std
                * query.unit
                / release.expected_users
                * float(np.sqrt(len(average))),
                **following,
            },
        )
        return {
            **state,
            "parameters": (state["parameters"] + step * momentum).astype(np.float32),
            "momentum": momentum.astype(np.float32),
            "clip_norm": following["next_clip_norm"],
            "longest_step": longest,
        }

    # ------------------------------------------------------------------ the result

    def finish(self, state: State) -> dict[str, Any]:
        """Write the trained model as a folder that Transformers loads."""
        return self.written(state, TRAINED_MODEL)

    def written(self, state: State, folder: str) -> dict[str, Any]:
        """Write the trained model to a folder of the run; figures for its end.

        Args:
            state: after the last round.
            folder: below the run directory.
        """
        with self.progress.stage("Write the model", total=None):
            self.base_of(state).save(self.run.path / folder, state["parameters"])
        return {
            "model": folder,
            "trained_parameters": self.model.dimension,
            "clip_norm": state["clip_norm"],
        }
