"""Fine-tuning a causal language model on texts, at the server: what synthetic text is for.

The loop is written out here instead of leaving it to a trainer class because three things are
needed together that those do not give: the same weights after an interruption as without one, exact
averages over tokens however a step is split, and no file or message besides the model.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Settings,
)
from flower_privsyn.errors import ConfigError, TrainingError
from flower_privsyn.models import provenance, resolve_model
from flower_privsyn.models.adapters import with_adapters
from flower_privsyn.models.attention import attend_by_products
from flower_privsyn.models.library import save_model
from flower_privsyn.models.pretrained import choose_dtype, load_pretrained
from flower_privsyn.training import storage
from flower_privsyn.training.common import check_weights, own_random_state
from flower_privsyn.training.distillation import (
    Distillation,
    check_same_tokens,
    divergence,
    load_teacher,
)
from flower_privsyn.training.tokens import (
    first_token,
    next_token_logits,
    predictions,
    text_window,
    token_rows,
)

#: Seconds between checkpoints: what is lost in a crash is at most this.
CHECKPOINT_SECONDS = 60.0

_STATE = "state.pt"

#: Logits held at a time on a CPU, 32 MiB of them: larger blocks glibc gives back when they are
#: freed, and every step would have their pages brought anew, which takes as long as its products.
_MOST_LOGITS = 2**23

#: Tokens of the longest rows on which plain products are faster than fused attention.
_SHORT = 256


@dataclass(frozen=True, kw_only=True)
class CausalTraining(Settings):
    """How texts become a fine-tuned model.

    Raises:
        ConfigError: A value is out of range; the message names the key.
    """

    learning_rate: PositiveFloat = 5e-4
    """AdamW's."""
    batch_size: PositiveInt = 32
    """Rows per step."""
    micro_batch_size: NonNegativeInt = 0
    """Rows in memory at a time; 0 for all, on a CPU as many as hold 32 MiB of logits. It changes
    memory and time, not the result: a step's loss is the mean over all its tokens.
    """
    epochs: PositiveInt = 3
    """Passes over the texts; not used with `max_steps`."""
    max_steps: NonNegativeInt = 0
    """Steps in all, however many passes that takes, or 0 for as many as `epochs` says."""
    max_tokens: PositiveInt = 64
    """Tokens of text in a row besides the beginning token; the end of a text counts. Bounded by the
    model's context.
    """
    long_texts: Literal["split", "cut"] = "split"
    """Of long texts: "split": a text of more than `max_tokens` becomes several rows; "cut": only
    its beginning is used.
    """
    train_on_eos: bool = True
    """Whether the end of a text is predicted as well. Text that a generator's limit cut off has
    none, and a model that learnt one there ends its own text anywhere.
    """
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Either "constant", or "linear" or "cosine" to zero, after the warm-up."""
    warmup_steps: NonNegativeInt = 10
    """Steps of linear warm-up."""
    weight_decay: NonNegativeFloat = 0.01
    """AdamW's."""
    max_gradient_norm: NonNegativeFloat = 1.0
    """Gradients longer than this are scaled to it; 0 for no bound."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it runs: "auto" takes a GPU if there is one; else "cpu" or "cuda"."""
    lora_rank: NonNegativeInt = 0
    """Rank of LoRA adapters on all linear layers but the output, which are trained alone and put
    into the weights at the end; 0 trains all weights.
    """
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the products; "auto" is bfloat16 where the hardware multiplies it natively, else float32.
    Weights and the optimiser are float32 always.
    """

    _noun: ClassVar = "training setting"


def on_public_rows(settings: Mapping[str, Any]) -> CausalTraining:
    """How a run trains its student on public text.

    Args:
        settings: of the run, by their hyphenated keys.
    """
    return CausalTraining(
        max_steps=settings["student-steps"],
        batch_size=settings["training-batch-size"],
        learning_rate=settings["learning-rate"],
        max_tokens=settings["max-tokens"],
        train_on_eos=False,  # rows are pieces of documents, and end where they were cut
    )


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """What a fine-tuning did.

    Attributes:
        epochs: Passes over the rows, as a fraction.
        loss: Mean loss of the last tenth of the steps, nats per token.
        losses: The loss of every step, those before an interruption included; of text and teacher
            as they are mixed.
    """

    epochs: float
    loss: float
    losses: tuple[float, ...]


def fine_tune(
    model: str | Path,
    texts: Sequence[str],
    *,
    settings: CausalTraining,
    output: str | Path,
    seed: int,
    distillation: Distillation | None = None,
    progress: Callable[[int, int], None] | None = None,
    stamp: str = "",
) -> FineTuning:
    """Train a causal language model on texts.

    On a CPU with one thread the same arguments give the same weights, bit for bit, also when the
    training was interrupted: checkpoints are kept in `<output>.partial`, which is deleted at the
    end, and are used only for the same model, texts, settings, seed and library versions. A
    training that is already finished in `output` is not run again. Nothing is printed or sent.

    Formal guarantee:
        Post-processing where the texts are public or were made from released values. On private
        text (epsilon = infinity) none whatever, for the model, the report and the checkpoints.

    Args:
        model: A bundled short name, a folder, or a hub name of a causal language model.
        texts: At least one with a token.
        settings: How to train.
        output: Folder of the model and its tokenizer; at the end it replaces an older model there.
        seed: 0 <= seed < 2**63, of the order of the rows and of dropout.
        distillation: A teacher as well; None for texts alone.
        progress: Called after every step with the steps made and the steps there will be.
        stamp: Of private texts, what the folder says of itself: runs refuse to begin with it. What
            has learnt from a model that says so, says so as well.

    Returns:
        What was done.

    Raises:
        ConfigError: A setting does not fit the texts or the model, or there is nothing to learn.
        ModelError: The model cannot be loaded, or `output` holds something that is no model.
        TrainingError: The loss is no longer finite; `output` is as it was.
        MissingExtraError: PyTorch or Transformers is not installed, or PEFT for adapters.
    """
    output = Path(output)
    texts = tuple(texts)
    resolved = Path(resolve_model(model))
    if resolved.exists() and resolved.resolve() == output.resolve():
        raise ConfigError(f"output must be another folder than the model's, got {output} for both")
    depends: dict[str, Any] = storage.of_training(model, texts, settings, seed)
    if distillation is not None:
        depends["distillation"] = distillation.fingerprint()
        check_same_tokens(model, distillation.teacher)

    def build(partial: Path, checkpoint: Path | None) -> tuple[Path, dict[str, Any]]:
        training = _Training(model, texts, settings, seed, distillation, partial)
        with own_random_state():
            training.take_steps(checkpoint, progress)
        return training.write(), asdict(training.report())

    teachers = () if distillation is None else (str(distillation.teacher),)
    stamp = stamp or provenance.stamp_of(str(model), *teachers)
    report = storage.once(output, depends, build, holds=storage.MODEL, stamp=stamp)
    return FineTuning(**{**report, "losses": tuple(report["losses"])})


def training_rows(
    tokenizer: Any, texts: Sequence[str], *, settings: CausalTraining, window: int
) -> list[list[int]]:
    """Texts as rows of tokens, each with a first token that is given and not predicted.

    Args:
        tokenizer: The model's.
        texts: (n,).
        settings: How to lay them out.
        window: Tokens of text in a row, >= 1.

    Returns:
        Rows of 2 to `window + 1` tokens.
    """
    begin, end = first_token(tokenizer), tokenizer.eos_token_id
    closing = [int(end)] if settings.train_on_eos and end is not None else []
    sequences = [[*row, *closing] for row in token_rows(tokenizer, texts) if row]
    return [
        [begin, *sequence[start : start + window]]
        for sequence in sequences
        for start in range(0, len(sequence), window)
        if start == 0 or settings.long_texts == "split"
    ]


class _Training:
    """A model, its rows and its optimiser, and the steps that were taken.

    Args:
        model: that is trained.
        texts: that it is trained on.
        settings: how.
        seed: of the order of the rows, of dropout, and of new adapters.
        distillation: a teacher as well; None for the text alone.
        partial: the folder of checkpoints.
    """

    def __init__(
        self,
        model: str | Path,
        texts: Sequence[str],
        settings: CausalTraining,
        seed: int,
        distillation: Distillation | None,
        partial: Path,
    ) -> None:
        self._settings, self._seed, self._partial = settings, seed, partial
        network, self._tokenizer = load_pretrained(
            model,
            kind="causal",
            dtype="float32",
            device=None if settings.device == "auto" else settings.device,
        )
        import torch  # which is there: the model was loaded with it

        self._bfloat16 = choose_dtype(settings.precision, network.device) is torch.bfloat16
        window = text_window(network, settings.max_tokens)
        if self._bfloat16 and window <= _SHORT:
            attend_by_products(network)
        if settings.lora_rank:
            network = with_adapters(
                network,
                name=str(model),
                rank=settings.lora_rank,
                alpha=2 * settings.lora_rank,
                seed=_mixed(seed, 0),
            )
        else:
            network.requires_grad_(True)
        self._network = network.train()
        self._rows = rows = training_rows(self._tokenizer, texts, settings=settings, window=window)
        if not rows:
            raise ConfigError("there is nothing to learn from: no text has a token")
        self._micro = settings.micro_batch_size or settings.batch_size
        if network.device.type == "cpu" and not settings.micro_batch_size:
            tokens = int(network.get_output_embeddings().weight.shape[0])
            self._micro = max(1, _MOST_LOGITS // (max(map(len, rows)) * tokens))
        self._per_epoch = math.ceil(len(rows) / settings.batch_size)
        self._total = settings.max_steps or settings.epochs * self._per_epoch
        self._distillation, self._teacher = distillation, None
        if distillation is not None:
            self._teacher = load_teacher(
                distillation.teacher,
                longest=max(map(len, rows)) - 1,
                max_tokens=settings.max_tokens,
                device=str(network.device),
            )
        self._optimiser = torch.optim.AdamW(
            [weight for weight in network.parameters() if weight.requires_grad],
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
        )
        self._losses: list[float] = []

    def take_steps(
        self, checkpoint: Path | None, progress: Callable[[int, int], None] | None
    ) -> None:
        """Take the steps that are left, from a checkpoint where there is one."""
        import torch

        settings, network, losses = self._settings, self._network, self._losses
        if checkpoint is not None:
            # To the CPU, where AdamW counts its steps: counts on a GPU would be waited for.
            state = torch.load(checkpoint / _STATE, map_location="cpu", weights_only=True)
            network.load_state_dict(state["network"], strict=False)  # what is trained of it
            self._optimiser.load_state_dict(state["optimiser"])
            losses += state["losses"]
        saved = time.monotonic()
        while len(losses) < self._total:
            step = len(losses)
            for group in self._optimiser.param_groups:
                group["lr"] = settings.learning_rate * _rate(settings, step, self._total)
            # Dropout is drawn anew for every step, so that a resumed training draws the same.
            torch.manual_seed(_mixed(self._seed, step))
            chosen = _rows_of_step(len(self._rows), settings.batch_size, step, self._seed)
            loss = self._add_gradient(chosen)
            if not math.isfinite(loss):
                raise TrainingError(
                    f"the loss of step {step + 1} is not finite: lower learning_rate, now "
                    f"{settings.learning_rate:g}"
                )
            if settings.max_gradient_norm:
                torch.nn.utils.clip_grad_norm_(network.parameters(), settings.max_gradient_norm)
            self._optimiser.step()
            self._optimiser.zero_grad(set_to_none=True)
            losses.append(loss)
            if time.monotonic() - saved >= CHECKPOINT_SECONDS and len(losses) < self._total:
                self._save()
                saved = time.monotonic()
            if progress is not None:
                progress(len(losses), self._total)
        check_weights(network)

    def _add_gradient(self, chosen: Sequence[int]) -> float:
        """Add up the gradient of the mean loss over all tokens of some rows; return that loss."""
        import torch

        rows, taught, micro = self._rows, self._distillation, self._micro
        predicted = sum(len(rows[index]) - 1 for index in chosen)
        loss = 0.0
        if micro < len(chosen):  # of like lengths, so that they are hardly padded
            chosen = sorted(chosen, key=lambda index: -len(rows[index]))
        for first in range(0, len(chosen), micro):
            part = chosen[first : first + micro]
            read = [rows[index] for index in part]
            logits, following = predictions(self._network, read, bfloat16=self._bfloat16)
            summed = torch.nn.functional.cross_entropy(logits, following, reduction="sum")
            if taught is not None:
                said = next_token_logits(self._teacher, read, bfloat16=self._bfloat16)
                apart = divergence(logits, said, top_k=taught.top_k)
                summed = taught.of_text * summed + taught.of_teacher * apart
            (summed / predicted).backward()  # type: ignore[no-untyped-call]
            loss += float(summed.detach()) / predicted
        return loss

    def _save(self) -> None:
        """Write a checkpoint, and let go of the one before."""
        import torch

        folder = self._partial / f"checkpoint-{len(self._losses)}"
        folder.mkdir()
        weights = self._network.named_parameters()
        state = {
            "network": {name: weight for name, weight in weights if weight.requires_grad},
            "optimiser": self._optimiser.state_dict(),
            "losses": self._losses,
        }
        torch.save(state, folder / _STATE)
        storage.mark_complete(folder)
        for older in self._partial.glob("checkpoint-*"):
            if older != folder:
                shutil.rmtree(older)

    def write(self) -> Path:
        """Write the model and its tokenizer to a folder of their own."""
        built = self._partial / "model"
        network = self._network.eval().requires_grad_(False)
        if self._settings.lora_rank:
            # A writer: as large on the disk as it is unpacked and run.
            network = network.merge_and_unload().bfloat16()
        save_model(network, self._tokenizer, built)
        return built

    def report(self) -> FineTuning:
        """What was done."""
        losses = self._losses
        tail = losses[-max(1, len(losses) // 10) :]
        return FineTuning(
            epochs=self._total / self._per_epoch,
            loss=sum(tail) / len(tail),
            losses=tuple(losses),
        )


def _rate(settings: CausalTraining, step: int, total: int) -> float:
    """The learning rate of a step as a share of its peak."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return 1.0
    past = (step - settings.warmup_steps) / max(1, total - settings.warmup_steps)
    return 1.0 - past if settings.schedule == "linear" else (1.0 + math.cos(math.pi * past)) / 2.0


def _rows_of_step(num_rows: int, batch_size: int, step: int, seed: int) -> list[int]:
    """The rows of a step: consecutive in the order of its epoch, which is drawn from the seed."""
    epoch, place = divmod(step, math.ceil(num_rows / batch_size))
    order = _order(num_rows, seed, epoch)
    chosen: list[int] = order[place * batch_size : (place + 1) * batch_size].tolist()
    return chosen


@lru_cache(maxsize=1)
def _order(num_rows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, 1 + epoch]).permutation(num_rows)


def _mixed(seed: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0]) >> 1
