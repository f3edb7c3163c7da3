"""DP-Adam at record level, in one place: the published baselines of CTCL.

Here the unit of privacy is a RECORD and the records are at the server, unlike everywhere else in
this package: an epsilon of this module stands on no axis with that of a run. The gradients of all
records of a batch are made at once by Opacus; clipping, the grid, the sum and the noise are the
code that a run's updates go through.

Papers:
    Abadi et al., "Deep Learning with Differential Privacy" (CCS 2016), Algorithm 1.
    Li, Tramer, Liang, Hashimoto, "Large Language Models Can Be Strong Differentially Private
    Learners" (ICLR 2022): DP-Adam for language models.
    Tan et al., "Synthesizing Privacy-Preserving Text Data via Finetuning without Finetuning
    Billion-Scale LLMs" (CTCL, 2025), section 4.1.3.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt
import torch

from flower_privsyn.checks import NonNegativeFloat, NonNegativeInt, PositiveInt, Settings
from flower_privsyn.errors import MissingExtraError, ModelError
from flower_privsyn.models.library import shorten
from flower_privsyn.models.pretrained import accepted_arguments
from flower_privsyn.privacy import (
    FullParticipation,
    GaussianMechanism,
    NeighboringRelation,
    Phase,
    Plan,
    PoissonSampling,
    RandomSource,
    SecureRandom,
)
from flower_privsyn.queries import Cohort, ModelDelta, TrainableModel
from flower_privsyn.queries.model_delta import ClipNorm, LearningRate
from flower_privsyn.queries.nearest_neighbor import NearestNeighborHistogram
from flower_privsyn.training.local import _IGNORED, LocalModel

#: What every figure of a central baseline carries.
RECORD_LEVEL: Final = "record level, central: not to be compared with the epsilons of runs"

#: How far gradients of a batch may be from those of its records one by one, over their length.
_TOLERANCE: Final = 1e-4

#: How far every parameter is moved before they are compared: the standard deviation.
_MOVED: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class Example:
    """A record as it is trained on.

    Attributes:
        tokens: of it, those that are given first.
        given: how many of them are given and not predicted, >= 1; of an encoder-decoder, whose
            encoder reads them, >= 0.
    """

    tokens: tuple[int, ...]
    given: int = 1

    @property
    def usable(self) -> bool:
        """Whether anything is left to predict."""
        return len(self.tokens) > self.given


@dataclass(frozen=True, kw_only=True)
class DPAdam(Settings):
    """How a model is trained on records.

    References:
        Tan et al. 2025, section 4.1.3, whose values the defaults are; the learning rate is one of
        those they searched, {1, 2, 3, 4} x {1e-3, 1e-4, 1e-5}.
    """

    steps: Annotated[PositiveInt, "releases."] = 2000
    batch_size: Annotated[PositiveInt, "records of a step on average: each flips a coin."] = 4096
    clip_norm: Annotated[ClipNorm, "bound on the L2 norm of a record's whole gradient."] = 1.0
    learning_rate: Annotated[LearningRate, "AdamW's at its peak."] = 1e-3
    weight_decay: Annotated[NonNegativeFloat, "AdamW's."] = 0.1
    warmup_steps: Annotated[NonNegativeInt, "of linear warm-up; linear decay follows."] = 100
    micro_batch_size: Annotated[PositiveInt, "records in memory at a time."] = 16

    def _called(self, name: str) -> str:
        return f"DP-Adam setting {name}"

    def sampling(self, records: int) -> PoissonSampling:
        """Who takes part in a step: every record flips a coin."""
        return PoissonSampling(rate=min(1.0, self.batch_size / records), population=records)

    def question(self) -> ModelDelta:
        """What bounds a record: its whole gradient is clipped."""
        return ModelDelta(clip_to=self.clip_norm)

    def plan(
        self,
        records: int,
        *,
        delta: float,
        epsilon: float,
        histogram_multiplier: float | None = None,
    ) -> Plan:
        """The noise that keeps a budget, at record level.

        Formal guarantee:
            Unit: RECORD; relation: zero-out, one record's text is replaced by nothing. How many
            records there are is public: the rate of the coins and the divisor follow from it. All
            steps, and the histogram of topics where there is one, compose by privacy loss
            distributions.

        Args:
            records: N.
            delta: in (0, 1).
            epsilon: of everything; infinity for no noise at all.
            histogram_multiplier: of a histogram to which a record adds 1; None without any.

        Raises:
            ConfigError: no noise keeps the budget.
        """
        without = math.isinf(epsilon)
        phases = [
            Phase(
                name="steps",
                rounds=self.steps,
                sampling=self.sampling(records),
                asks=(self.question(),),
                noise_multiplier=0.0 if without else None,
            )
        ]
        if histogram_multiplier is not None:
            topics = Phase(
                name="topics",
                rounds=1,
                sampling=FullParticipation(population=records),
                asks=(NearestNeighborHistogram(max_samples=1),),
                noise_multiplier=0.0 if without else histogram_multiplier,
            )
            phases.insert(0, topics)
        plan = Plan(phases=tuple(phases), delta=delta, relation=NeighboringRelation.ZERO_OUT)
        return plan if without else plan.calibrated(epsilon)


class RecordModel(LocalModel):
    """A language model of which each record of a batch has its own gradient.

    It is causal, or an encoder-decoder, as `LocalModel` has them. Opacus makes the gradients of all
    records at once; of which models they are right is not known beforehand, so that
    `check_gradients` is asked before anything is trained. With Opacus 1.6.0 they are for adapters
    of BART and T5, and not for all parameters of either, because of BART's positions and T5's
    distances between tokens.

    Args:
        model: which model, and what of it is trained.
        device: as PyTorch names it; None takes the first accelerator, else the CPU.

    Raises:
        MissingExtraError: Opacus is not installed.
        ModelError: Opacus knows no gradients of a layer of the model.
    """

    def __init__(self, model: TrainableModel, *, device: str | None = None) -> None:
        super().__init__(model, device=device)
        try:
            from opacus import GradSampleModule
        except ImportError as error:
            raise MissingExtraError(
                f"central baselines need Opacus ({shorten(error)}): "
                "pip install 'flower-privsyn[central]'"
            ) from error
        self._positions_asked = "position_ids" in accepted_arguments(self._model)
        try:
            self._graded = GradSampleModule(self._model, batch_first=True, loss_reduction="sum")
        except (NotImplementedError, ValueError) as error:
            raise ModelError(
                f"model {model.name!r} has no gradients by record: {shorten(error)}"
            ) from error

    def gradients(self, examples: Sequence[Example]) -> npt.NDArray[np.float32]:
        """The gradient of each record's mean loss per predicted token.

        Args:
            examples: at least one; each with something to predict.

        Returns:
            (n, dimension) float32.

        Raises:
            ModelError: a parameter has no gradient by record.
        """
        self._drop_gradients()
        for parameter in self._named.values():
            parameter.grad_sample = None  # type: ignore[attr-defined]
        logits, targets = self._predicted(examples)
        losses = torch.nn.functional.cross_entropy(
            logits.float().transpose(1, 2), targets, ignore_index=_IGNORED, reduction="none"
        )
        counts = (targets != _IGNORED).sum(dim=1).clamp(min=1)
        with warnings.catch_warnings():
            # Of the embedding, whose input has no gradient.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            (losses.sum(dim=1) / counts).sum().backward()  # type: ignore[no-untyped-call]
        parts = []
        for name, parameter in self._named.items():
            own = getattr(parameter, "grad_sample", None)
            if own is None or len(own) != len(examples):
                raise ModelError(
                    f"Opacus makes no gradients by record of {name}: train {self._instead}"
                )
            parts.append(own.detach().reshape(len(examples), -1))
            parameter.grad_sample = None  # type: ignore[attr-defined]
        return torch.cat(parts, dim=1).float().cpu().numpy()

    def _predicted(self, examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
        """(n, t, v) logits and the (n, t) tokens that they are of; `_IGNORED` where none is."""
        if self._first is not None:
            pairs = [(example.tokens, example.given) for example in examples]
            return self._logits_of_pairs(self._graded, pairs, self._first)
        width = max(len(example.tokens) for example in examples)
        tokens = torch.zeros((len(examples), width), dtype=torch.long)
        mask = torch.zeros((len(examples), width), dtype=torch.long)
        targets = torch.full((len(examples), width), _IGNORED, dtype=torch.long)
        for row, example in enumerate(examples):
            size = len(example.tokens)
            tokens[row, :size] = torch.tensor(example.tokens)
            mask[row, :size] = 1
            targets[row, example.given : size] = tokens[row, example.given : size]
        tokens, mask = tokens.to(self._device), mask.to(self._device)
        positions = torch.arange(width, device=self._device).expand(tokens.shape)
        more = {"position_ids": positions.contiguous()} if self._positions_asked else {}
        logits = self._graded(input_ids=tokens, attention_mask=mask, use_cache=False, **more).logits
        return logits[:, :-1], targets[:, 1:].to(self._device)

    def check_gradients(self, examples: Sequence[Example]) -> None:
        """Hold the gradients of a batch against those of its records one by one.

        Opacus and PEFT are known to disagree in silence, by versions (opacus issue 820). The model
        is moved a little for the comparison, and back: new adapters are half zeros, and what the
        other half learns through zeros is zero whether it is right or wrong.

        Args:
            examples: public ones, of different lengths.

        Raises:
            ModelError: they differ.
        """
        random = np.random.default_rng(0)
        moved = random.normal(0.0, _MOVED, self.dimension).astype(np.float32)
        self._weights.copy_(self._start + torch.from_numpy(moved).to(self._device))
        try:
            self._compare_gradients(examples)
        finally:
            self._begin_anew()

    def _compare_gradients(self, examples: Sequence[Example]) -> None:
        try:
            together = self.gradients(examples)
        except (AttributeError, TypeError, RuntimeError, NotImplementedError) as error:
            raise ModelError(
                f"Opacus makes no gradients by record of model {self.spec.name!r} "
                f"({shorten(error)}): train {self._instead}"
            ) from error
        for example, own in zip(examples, together, strict=True):
            alone = self.alone(example)
            # Written so that what is no number is refused as well.
            if not np.linalg.norm(own - alone) <= _TOLERANCE * np.linalg.norm(alone):
                raise ModelError(
                    f"Opacus makes other gradients of a batch of model {self.spec.name!r} than of "
                    f"its records: train {self._instead}"
                )

    @property
    def _instead(self) -> str:
        """What may be trained where this cannot be."""
        full = self.spec.trainable == "full"
        other = 'adapters (trainable = "lora")' if full else 'all parameters (trainable = "full")'
        return f"{other}, or another model"

    def alone(self, example: Example) -> npt.NDArray[np.float32]:
        """The gradient of one record by PyTorch itself, (dimension,) float32."""
        self._drop_gradients()
        with torch.enable_grad():
            self._graded.disable_hooks()
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Full backward hook is firing")
                    self._loss([(example.tokens, example.given)]).backward()  # type: ignore[no-untyped-call]
            finally:
                self._graded.enable_hooks()
        flat = torch.cat(
            [
                (torch.zeros_like(one) if one.grad is None else one.grad).flatten()
                for one in self._named.values()
            ]
        )
        return flat.detach().cpu().numpy()

    def fit(
        self,
        examples: Sequence[Example],
        settings: DPAdam,
        *,
        noise_multiplier: float,
        random: RandomSource | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Train on records by DP-Adam; the parameters are those of the last step.

        It begins with the parameters that the model was loaded with, those of `start_from`, or
        those that training ended with before.

        Formal guarantee:
            Unit: RECORD; relation: zero-out, with the number of records public. In every step each
            record takes part by a coin of its own, its whole gradient is clipped to
            `settings.clip_norm` and cut to the grid, and Gaussian noise of standard deviation
            `noise_multiplier` x clip norm is added once to the sum, whose divisor is the number of
            records expected. A record with nothing to predict flips its coin and adds zero. AdamW
            and its schedule are post-processing. What it costs: `DPAdam.plan`. Up to rounding:
            gradients that are made together are rounded together, so that a record also moves those
            of its batch in their last bits, which no central library accounts for and a run of this
            package avoids.

        Args:
            examples: all records, those with nothing to predict included.
            settings: how.
            noise_multiplier: over the clip norm; 0 for no noise and no privacy.
            random: source of noise and coins; only tests pass one.
            progress: called with the number of steps just made.
        """
        source: RandomSource = random or SecureRandom()
        query, sampling = settings.question(), settings.sampling(len(examples))
        mechanism = GaussianMechanism(
            noise_multiplier=noise_multiplier, l2_sensitivity=query.clip_norm
        )
        # Not where training that was interrupted has come to: its steps are in no account.
        self._begin_anew()
        flat = torch.nn.Parameter(self._weights)
        optimiser = torch.optim.AdamW(
            [flat], lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        for step in range(settings.steps):
            chosen = poisson_batch(len(examples), rate=sampling.rate, random=source)
            total = self.clipped_sum([examples[place] for place in chosen], query, settings)
            released = mechanism.release(total, random=source)
            mean = query.mean_update(released, sampling.expected_users)
            flat.grad = torch.from_numpy(mean.astype(np.float32)).to(self._device)
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * _schedule(step, settings)
            optimiser.step()
            if progress is not None:
                progress(1)
        self._start.copy_(self._weights)

    def clipped_sum(
        self, examples: Sequence[Example], query: ModelDelta, settings: DPAdam
    ) -> npt.NDArray[np.float64]:
        """The sum of the clipped gradients of some records, on the grid; zero of none.

        Args:
            examples: any number; those with nothing to predict add zero.
            query: bounds each of them.
            settings: how many are in memory at a time.

        Returns:
            (dimension,) float64, in multiples of `query.unit`.
        """
        total = np.zeros(self.dimension, dtype=np.float64)
        size = settings.micro_batch_size
        examples = [example for example in examples if example.usable]
        for first in range(0, len(examples), size):
            gradients = self.gradients(examples[first : first + size])
            cohort = Cohort(gradients, np.arange(len(gradients)), len(gradients))
            total += query.answer(cohort, {"parameters": gradients[0]})
        return total


def poisson_batch(records: int, *, rate: float, random: RandomSource) -> npt.NDArray[np.int64]:
    """The records of a step: each takes part by a coin of its own.

    Args:
        records: how many there are.
        rate: the coin's probability, in (0, 1]; a multiple of 2^-64 at most as large is meant.
        random: flips the coins.

    Returns:
        (k,) their places, ascending.
    """
    if rate >= 1.0:
        return np.arange(records)
    bound = np.uint64(min(math.floor(rate * 2.0**64), 2**64 - 1))
    return np.flatnonzero(random.uint64(records) < bound)


def _schedule(step: int, settings: DPAdam) -> float:
    """The share of the peak rate in a step, counted from 0."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    left = settings.steps - step
    return left / max(1, settings.steps - settings.warmup_steps)
