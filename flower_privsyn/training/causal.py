"""Fine-tuning a causal language model on texts, at the server: what synthetic text is for.

The loop is written out here instead of leaving it to a trainer class because three things are
needed together that those do not give: the same weights after an interruption as without one, exact
averages over tokens however a step is split, and no file or message besides the model.
"""

from __future__ import annotations

import importlib
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import check_whole
from flower_privsyn.environment import library_versions
from flower_privsyn.errors import ConfigError, MissingExtraError, TrainingError
from flower_privsyn.models import resolve_model, stamped
from flower_privsyn.models.adapters import with_adapters
from flower_privsyn.models.library import quiet_transformers, shorten
from flower_privsyn.models.pretrained import choose_device, load_pretrained
from flower_privsyn.training import storage
from flower_privsyn.training.causal_settings import CausalTraining
from flower_privsyn.training.common import check_weights, own_random_state
from flower_privsyn.training.distillation import Distillation, check_same_tokens
from flower_privsyn.training.fingerprint import digest_of_texts, weight_files
from flower_privsyn.training.loss import add_gradient
from flower_privsyn.training.teacher import TeacherTargets, teacher_targets
from flower_privsyn.training.tokens import first_token, text_window, token_rows

#: Seconds between checkpoints: what is lost in a crash is at most this.
CHECKPOINT_SECONDS = 60.0

_STATE = "state.pt"


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """What a fine-tuning did.

    Attributes:
        steps: Optimiser steps, those before an interruption included.
        epochs: Passes over the rows, as a fraction.
        rows: Rows of one pass.
        tokens: Predicted tokens of one pass.
        first_loss: Loss of the first step, nats per token; of text and teacher as they are mixed.
        loss: Mean loss of the last tenth of the steps, nats per token.
        losses: The loss of every step.
    """

    steps: int
    epochs: float
    rows: int
    tokens: int
    first_loss: float
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
        distillation: A teacher as well; None, or one of weight 0, for texts alone.
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
    if distillation is not None and distillation.shares[1] == 0:
        distillation = None
    resolved = _checked(model, texts, output=output, seed=seed)
    fingerprint = _fingerprint(resolved, texts, settings, seed, distillation)
    partial = output.with_name(output.name + ".partial")
    known = storage.finished(output, fingerprint)
    if known is not None:
        storage.discard(partial)  # a crash right after the end leaves it, too
        report = FineTuning(**{**known, "losses": tuple(known["losses"])})
        if progress is not None:
            progress(report.steps, report.steps)
        return report
    if distillation is not None:
        check_same_tokens(model, distillation.teacher)
    output.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = storage.last_checkpoint(partial, fingerprint)
    built, report = _train(
        model,
        texts,
        settings=settings,
        seed=seed,
        distillation=distillation,
        progress=progress,
        partial=partial,
        checkpoint=checkpoint,
    )
    teachers = () if distillation is None else (str(distillation.teacher),)
    stamp = stamp or stamped.stamp_of(str(model), *teachers)
    storage.install(built, output, fingerprint=fingerprint, report=asdict(report), stamp=stamp)
    shutil.rmtree(partial)
    return report


def _checked(model: str | Path, texts: Sequence[str], *, output: Path, seed: int) -> str:
    """The folder or hub name of a model, once nothing is wrong with what it is to be trained on."""
    check_whole("training setting seed", seed, ge=0, le=2**63 - 1)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"fine-tuning needs a list of texts, got {len(texts)} items")
    resolved = resolve_model(model)
    if Path(resolved).exists() and Path(resolved).resolve() == output.resolve():
        raise ConfigError(f"output must be another folder than the model's, got {output} for both")
    storage.refuse_other(output, holds=storage.MODEL)
    return resolved


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
    closing = [int(end)] if settings.learn_ends and end is not None else []
    sequences = [[*row, *closing] for row in token_rows(tokenizer, texts) if row]
    pieces = [
        [begin, *sequence[start : start + window]]
        for sequence in sequences
        for start in range(0, len(sequence), window)
        if start == 0 or settings.long_texts == "split"
    ]
    return [piece for piece in pieces if len(piece) > 1]


def _train(
    model: str | Path,
    texts: Sequence[str],
    *,
    settings: CausalTraining,
    seed: int,
    distillation: Distillation | None,
    progress: Callable[[int, int], None] | None,
    partial: Path,
    checkpoint: Path | None,
) -> tuple[Path, FineTuning]:
    """Load, train from the checkpoint if there is one, and write the model to a folder."""
    torch = _torch()
    built = partial / "model"
    if built.exists():
        shutil.rmtree(built)
    device = choose_device(None if settings.device == "auto" else settings.device)
    network, tokenizer = load_pretrained(model, kind="causal", dtype="float32", device=str(device))
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
    network.train()
    rows = training_rows(
        tokenizer,
        texts,
        settings=settings,
        window=text_window(network, settings.max_tokens),
    )
    if not rows:
        raise ConfigError("there is nothing to learn from: no text has a token")
    per_epoch = math.ceil(len(rows) / settings.batch_size)
    total = settings.max_steps or settings.epochs * per_epoch
    bfloat16 = _multiplies_in_bfloat16(settings, device)
    taught = None
    if distillation is not None:
        taught = teacher_targets(
            rows,
            _order(len(rows), seed, 0)[: total * settings.batch_size],  # what the steps visit
            distillation=distillation,
            tokenizer=tokenizer,
            vocabulary=int(network.get_output_embeddings().weight.shape[0]),
            folder=partial / "teacher",
            device=str(device),
            bfloat16=bfloat16,
        )
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(
        trained, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    losses: list[float] = []
    if checkpoint is not None:
        # To the CPU, where AdamW counts its steps: counts on a GPU would be waited for one by one.
        state = torch.load(checkpoint / _STATE, map_location="cpu", weights_only=True)
        network.load_state_dict(state["network"], strict=False)  # what is trained of it
        optimiser.load_state_dict(state["optimiser"])
        losses = list(state["losses"])
    _take_steps(
        torch,
        network,
        optimiser,
        rows,
        losses,
        settings=settings,
        seed=seed,
        total=total,
        device=device,
        bfloat16=bfloat16,
        taught=taught,
        partial=partial,
        progress=progress,
    )
    check_weights(network)
    network.eval().requires_grad_(False)
    if settings.lora_rank:
        # A writer: as large on the disk as it is unpacked and run.
        network = network.merge_and_unload().to(torch.bfloat16)
    with quiet_transformers():
        network.save_pretrained(built)
        tokenizer.save_pretrained(built)
    return built, _report(losses, rows, epochs=total / per_epoch)


def _report(losses: list[float], rows: Sequence[Sequence[int]], *, epochs: float) -> FineTuning:
    tail = losses[-max(1, len(losses) // 10) :]
    return FineTuning(
        steps=len(losses),
        epochs=epochs,
        rows=len(rows),
        tokens=sum(len(row) - 1 for row in rows),
        first_loss=losses[0],
        loss=sum(tail) / len(tail),
        losses=tuple(losses),
    )


def _multiplies_in_bfloat16(settings: CausalTraining, device: Any) -> bool:
    automatic = settings.precision == "auto" and device.type == "cuda"
    return automatic or settings.precision == "bfloat16"


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise MissingExtraError(
            f"fine-tuning needs PyTorch and Transformers ({shorten(error)}): "
            "pip install 'flower-privsyn[server]'"
        ) from error


def _take_steps(
    torch: Any,
    network: Any,
    optimiser: Any,
    rows: Sequence[Sequence[int]],
    losses: list[float],
    *,
    settings: CausalTraining,
    seed: int,
    total: int,
    device: Any,
    bfloat16: bool,
    taught: TeacherTargets | None,
    partial: Path,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Take the steps that are left, adding the loss of each; write checkpoints to `partial`."""
    saved = time.monotonic()
    with own_random_state():
        while len(losses) < total:
            step = len(losses)
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * _rate(settings, step, total)
            chosen = _rows_of_step(len(rows), settings.batch_size, step, seed)
            # Dropout is drawn anew for every step, so that a resumed training draws the same.
            torch.manual_seed(_mixed(seed, step))
            loss = add_gradient(
                torch,
                network,
                rows,
                chosen,
                micro=settings.micro_batch_size or settings.batch_size,
                device=device,
                bfloat16=bfloat16,
                taught=taught,
            )
            if not math.isfinite(loss):
                raise TrainingError(
                    f"the loss of step {step + 1} is not finite: lower learning_rate, now "
                    f"{settings.learning_rate:g}"
                )
            if settings.max_gradient_norm:
                torch.nn.utils.clip_grad_norm_(network.parameters(), settings.max_gradient_norm)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            losses.append(loss)
            if time.monotonic() - saved >= CHECKPOINT_SECONDS and len(losses) < total:
                _save(torch, partial, network, optimiser, losses)
                saved = time.monotonic()
            if progress is not None:
                progress(len(losses), total)


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


def _save(torch: Any, partial: Path, network: Any, optimiser: Any, losses: list[float]) -> None:
    folder = partial / f"checkpoint-{len(losses)}"
    folder.mkdir()
    state = {
        "network": {
            name: weight for name, weight in network.named_parameters() if weight.requires_grad
        },
        "optimiser": optimiser.state_dict(),
        "losses": losses,
    }
    torch.save(state, folder / _STATE)
    storage.mark_complete(folder)
    for older in partial.glob("checkpoint-*"):
        if older != folder:
            shutil.rmtree(older)


def _fingerprint(
    resolved: str,
    texts: Sequence[str],
    settings: CausalTraining,
    seed: int,
    distillation: Distillation | None,
) -> dict[str, Any]:
    """Everything the trained weights depend on, short of the machine, as JSON can hold it."""
    found = {
        "kind": "causal",
        "model": weight_files(resolved),
        "texts": digest_of_texts(texts),
        "settings": asdict(settings),
        "seed": seed,
        "versions": library_versions("torch", "transformers"),
    }
    return found | ({} if distillation is None else {"distillation": distillation.fingerprint()})
