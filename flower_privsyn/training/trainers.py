"""The training loops: TRL's DPO trainer and a supervised one, made quiet, local and resumable.

Importing this module loads PyTorch, PEFT and TRL.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from flower_privsyn.errors import ConfigError, ModelError, TrainingError
from flower_privsyn.models.library import shorten
from flower_privsyn.training.encoding import EncodedPair
from flower_privsyn.training.log_probabilities import accepts, sequence_log_probabilities
from flower_privsyn.training.output_layer import is_last
from flower_privsyn.training.preference_settings import PreferenceTraining
from flower_privsyn.training.storage import mark_complete, write_adapter

peft: Any = importlib.import_module("peft")
transformers: Any = importlib.import_module("transformers")
trl: Any = importlib.import_module("trl")
use_adapter: Any = importlib.import_module("trl.trainer.utils").use_adapter

_LOSS_TYPES = {"dpo": "sigmoid", "ipo": "ipo"}

#: Seconds between checkpoints. What is lost in a crash is at most this; writing one takes far less.
CHECKPOINT_SECONDS = 30.0


class Collator:
    """Pads prompts on the left and responses on the right, so that all responses line up.

    Models then need the logits of the last columns only, and a short prompt costs no logits.
    The rows are all chosen responses, then all rejected ones, as in TRL.
    """

    def __init__(self, *, padding: int, with_positions: bool, chosen_only: bool) -> None:
        self._padding = padding
        self._with_positions = with_positions
        self._names = ("chosen",) if chosen_only else ("chosen", "rejected")

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Make a batch of (b, t) tensors, b = examples times responses each."""
        rows = [(example["prompt"], example[name]) for name in self._names for example in examples]
        before = max(len(prompt) for prompt, _ in rows)
        after = max(len(response) for _, response in rows)
        tokens = torch.full((len(rows), before + after), self._padding)
        attention = torch.zeros_like(tokens)
        completion = torch.zeros_like(tokens)
        for row, (prompt, response) in enumerate(rows):
            begin, end = before - len(prompt), before + len(response)
            tokens[row, begin:end] = torch.tensor([*prompt, *response])
            attention[row, begin:end].fill_(1)
            completion[row, before:end].fill_(1)
        batch = {"input_ids": tokens, "attention_mask": attention, "completion_mask": completion}
        if self._with_positions:
            batch["position_ids"] = (attention.cumsum(-1) - 1).clamp_(min=0)
        for name in self._names:
            key = f"ref_{name}_logps"
            if key in examples[0]:
                batch[key] = torch.tensor([example[key] for example in examples])
        return batch


class _LocalTrainer(transformers.Trainer):  # type: ignore[misc]
    """What both trainers share: nothing printed or sent, adapters saved alone, exact averages.

    A step's loss is the mean over all its pairs (its response tokens for supervised fine-tuning)
    however they were split into micro-batches.
    """

    loss_is_scaled_for_ga = True
    _tallies: dict[str, float]

    def _send_telemetry(self) -> None:
        """Send nothing; TRL would report the kind of model and data."""

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write none: it names paths of this machine."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        # The parent would add the frozen reference, the tokenizer and the arguments.
        write_adapter(self.model, Path(output_dir or self.args.output_dir), base="")

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Draw the micro-batches of one step, and count what its loss is a mean over."""
        samples, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        return samples, sum(self._weight(sample) for sample in samples)

    def _weight(self, batch: dict[str, torch.Tensor]) -> int:
        return len(batch["input_ids"]) // 2

    def _note(self, share: float, **values: float) -> None:
        for key, value in values.items():
            self._tallies[key] = self._tallies.get(key, 0.0) + share * value

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Keep a step's figures in the state, which the checkpoints hold."""
        logs.update({f"privsyn/{key}": value for key, value in self._tallies.items()})
        self._tallies.clear()
        super().log(logs, start_time)


class PreferenceTrainer(_LocalTrainer, trl.DPOTrainer):  # type: ignore[misc]
    """TRL's DPO trainer on tokens of our own making.

    On a CPU the two losses are computed here, from the logits of the responses alone: TRL's
    portable form scores every prompt and padding position and gathers statistics nobody reads,
    which takes most of the time of a small model. With a GPU its fused kernel does better, and
    is used, unless the model does something to the logits that the kernel does not know of.
    """

    train_dataset: Any

    def __init__(self, *, fused: bool, **arguments: Any) -> None:
        self._fused = fused
        self._tallies = {}
        super().__init__(**arguments)

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        # TRL would tokenize across the boundary of prompt and response, and append its own end.
        return dataset

    def reference_log_probabilities(
        self, batch: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of the chosen and the rejected responses under the reference."""
        if self._fused:
            chosen, rejected = self.compute_ref_log_probs(self.model, batch)
            return chosen, rejected
        reference = "ref" if "ref" in self.model.peft_config else None
        with torch.no_grad(), use_adapter(self.model, reference), self.accelerator.autocast():
            chosen, rejected = sequence_log_probabilities(self.model, batch).chunk(2)
        return chosen, rejected

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """This micro-batch's part of the step's loss."""
        share = self._weight(inputs) / num_items_in_batch
        if self._fused:
            loss: torch.Tensor = super().compute_loss(model, inputs)
            metrics = self._metrics["train"]
            margin = metrics["rewards/margins"][-1]
            accuracy = metrics["rewards/accuracies"][-1]
        else:
            loss, margins = self._loss(model, inputs)
            margin, accuracy = margins.mean().item(), (margins > 0).float().mean().item()
        _check_finite(loss, self.state.global_step)
        self._note(share, loss=loss.item(), margin=margin, accuracy=accuracy)
        part: torch.Tensor = loss * share
        return part

    def _loss(
        self, model: Any, batch: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """DPO's equation 7 or IPO's equation 17, and beta times the differences inside."""
        chosen, rejected = sequence_log_probabilities(model, batch).chunk(2)  # (n,) each
        reference_chosen, reference_rejected = self.reference_log_probabilities(batch)
        good, bad = chosen - reference_chosen, rejected - reference_rejected
        if self.loss_types == ["ipo"]:
            lengths = batch["completion_mask"].sum(1).chunk(2)
            # Per token, as IPO's authors told TRL that they run it.
            difference = good / lengths[0] - bad / lengths[1]
            losses = (difference - 1 / (2 * self.beta)) ** 2
        else:
            losses = -torch.nn.functional.logsigmoid(self.beta * (good - bad))
        return losses.mean(), self.beta * (good - bad).detach()


class SupervisedTrainer(_LocalTrainer):
    """Cross-entropy on the chosen responses: what PE+SFT does with the best candidates."""

    def __init__(self, **arguments: Any) -> None:
        self._tallies = {}
        super().__init__(**arguments)

    def _weight(self, batch: dict[str, torch.Tensor]) -> int:
        return int(batch["completion_mask"].sum())

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """This micro-batch's part of the step's loss."""
        loss: torch.Tensor = -sequence_log_probabilities(model, inputs).sum() / num_items_in_batch
        _check_finite(loss, self.state.global_step)
        self._note(1.0, loss=loss.item())
        return loss


class _Watch(transformers.TrainerCallback):  # type: ignore[misc]
    """Moves the progress, asks for checkpoints by the clock, and seals finished ones."""

    def __init__(
        self, *, num_pairs: int, batch_size: int, progress: Callable[[int], None] | None
    ) -> None:
        self._num_pairs = num_pairs
        self._batch_size = batch_size
        self._progress = progress
        self._done = 0
        self._saved = time.monotonic()

    def _advance(self, step: int) -> None:
        epoch, step = divmod(step, math.ceil(self._num_pairs / self._batch_size))
        done = epoch * self._num_pairs + min(step * self._batch_size, self._num_pairs)
        if self._progress is not None and done > self._done:
            self._progress(done - self._done)
        self._done = done

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved = time.monotonic()
        self._advance(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if time.monotonic() - self._saved >= CHECKPOINT_SECONDS:
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}")
        self._saved = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # After the step's figures are in the state, and before its checkpoint.
        if state.global_step:
            self._advance(state.global_step)


def build_trainer(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[EncodedPair],
    *,
    settings: PreferenceTraining,
    folder: Path,
    seed: int,
    bfloat16: bool,
    progress: Callable[[int], None] | None,
    fused: bool | None = None,
) -> Any:
    """Make the trainer for a PEFT model whose adapter is called ``default``.

    Args:
        model: A PEFT model; its adapter "ref", if TRL adds one, is the reference.
        tokenizer: The model's tokenizer.
        pairs: At least one pair.
        settings: How to train.
        folder: Where checkpoints go; nothing else is written.
        seed: 0 <= seed < 2**32.
        bfloat16: Whether to compute in bfloat16.
        progress: Called with the number of pairs just passed.
        fused: Whether TRL computes the loss; None for on a GPU, where nothing comes behind the
            model's output layer.

    Returns:
        A `transformers.Trainer`.
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    options = _options(settings, folder=folder, seed=seed, bfloat16=bfloat16, on_cpu=on_cpu)
    collator = Collator(
        padding=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
        with_positions=accepts(model, "position_ids"),
        chosen_only=settings.loss == "sft",
    )
    columns = {
        "prompt": [pair.prompt for pair in pairs],
        "chosen": [pair.chosen for pair in pairs],
        "rejected": [pair.rejected for pair in pairs],
    }
    arguments: dict[str, Any] = {
        "model": model,
        "data_collator": collator,
        "train_dataset": Dataset.from_dict(columns),
        "processing_class": tokenizer,
        "callbacks": [
            _Watch(num_pairs=len(pairs), batch_size=settings.batch_size, progress=progress)
        ],
    }
    trainer: Any
    if settings.loss == "sft":
        if settings.gradient_checkpointing:
            model.enable_input_require_grads()  # TRL does so itself
        trainer = SupervisedTrainer(
            args=_one_device(transformers.TrainingArguments(**options)), **arguments
        )
    else:
        trainer = _preference_trainer(
            model,
            settings=settings,
            options=options,
            arguments=arguments,
            # The kernel takes what goes into the output layer, and nothing that is done behind it.
            fused=not on_cpu and is_last(model) if fused is None else fused,
        )
    trainer.remove_callback(transformers.PrinterCallback)  # it prints every step's figures
    return trainer


def _options(
    settings: PreferenceTraining, *, folder: Path, seed: int, bfloat16: bool, on_cpu: bool
) -> dict[str, Any]:
    """What both trainers are told, in the words of `transformers.TrainingArguments`."""
    micro = next(
        size
        for size in range(min(settings.micro_batch_size, settings.batch_size), 0, -1)
        if settings.batch_size % size == 0
    )
    return {
        "output_dir": str(folder),
        "use_cpu": on_cpu,
        "bf16": bfloat16,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": settings.batch_size // micro,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "num_train_epochs": settings.epochs,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": (
            "cosine" if settings.schedule == "cosine" else "constant_with_warmup"
        ),
        "warmup_steps": settings.warmup_steps,
        "optim": "adamw_torch",
        "weight_decay": 0.0,
        "seed": seed,
        "data_seed": seed,
        "remove_unused_columns": False,
        "dataloader_pin_memory": not on_cpu,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",  # by the clock instead
        "save_total_limit": 2,
    }


def _preference_trainer(
    model: Any,
    *,
    settings: PreferenceTraining,
    options: dict[str, Any],
    arguments: dict[str, Any],
    fused: bool,
) -> PreferenceTrainer:
    """Make the trainer for DPO and IPO, its reference as the settings say."""
    config = trl.DPOConfig(
        loss_type=[_LOSS_TYPES[settings.loss]],
        beta=settings.beta,
        max_length=None,  # too long pairs are left out by name, not cut
        disable_dropout=False,  # done for the model, but not for the adapter, before
        **options,
    )
    trainer = PreferenceTrainer(fused=fused, args=_one_device(config), **arguments)
    if settings.reference == "base" and "ref" in model.peft_config:
        model.delete_adapter("ref")
    _silence_dropout(model, "ref")
    return trainer


def wrap(base: Any, settings: PreferenceTraining, *, seed: int) -> Any:
    """Put a new adapter on all linear layers but the output: A random, B zero, so no change."""
    disable_dropout(base)
    torch.manual_seed(seed)
    model = peft.get_peft_model(
        base,
        peft.LoraConfig(
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
    )
    # PEFT lists every layer by its path; the last parts say the same, and are what servers read.
    layers = dict(model.get_base_model().named_modules())
    adapted = set(model.peft_config["default"].target_modules)
    ends = {name.rpartition(".")[2] for name in adapted}
    if not any(name.rpartition(".")[2] in ends for name in layers.keys() - adapted):
        model.peft_config["default"].target_modules = ends
    return model


def resume_adapter(base: Any, folder: Path, settings: PreferenceTraining) -> Any:
    """Put the adapter of the round before onto the model, to be trained further.

    Raises:
        ConfigError: It has another rank or scale than the settings say.
        ModelError: It does not fit the model.
    """
    disable_dropout(base)
    try:
        config = peft.PeftConfig.from_pretrained(str(folder))
        for key, found, asked in (
            ("lora_rank", getattr(config, "r", None), settings.lora_rank),
            ("lora_alpha", getattr(config, "lora_alpha", None), settings.lora_alpha),
        ):
            if found != asked:
                raise ConfigError(
                    f"training setting {key} must stay that of adapter {folder}, {found}, "
                    f"got {asked}"
                )
        config.inference_mode = False
        model = peft.PeftModel(base, config)
        report = model.load_adapter(str(folder), "default", is_trainable=True)
        missing = sorted(key for key in report.missing_keys if "lora_" in key)
        if missing:
            # PEFT would leave them at random values and only warn.
            raise ValueError(f"its file lacks {missing[0]} and {len(missing) - 1} more weights")
    except ConfigError:
        raise
    except Exception as error:
        raise ModelError(
            f"adapter {folder} cannot be loaded onto the model: {shorten(error)}"
        ) from error
    return model


def check_weights(model: Any) -> None:
    """Refuse an adapter that is no longer finite: the last step's loss cannot show it.

    Raises:
        TrainingError: It is not.
    """
    for name, weight in model.named_parameters():
        if weight.requires_grad and not torch.isfinite(weight).all():
            raise TrainingError(
                f"preference training broke down: weight {name} is no longer finite; lower "
                "learning_rate, or set precision to 'float32'"
            )


def disable_dropout(base: Any) -> None:
    """Switch dropout off for good: the reference must give the same numbers every time."""
    for module in base.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):  # as in Llama's attention
                setattr(module, name, 0.0)


def _silence_dropout(model: Any, adapter: str) -> None:
    for module in model.modules():
        layers = getattr(module, "lora_dropout", None)
        if isinstance(layers, torch.nn.ModuleDict) and adapter in layers:
            layers[adapter] = torch.nn.Identity()


def _one_device(arguments: Any) -> Any:
    """Use the first GPU: the trainer would spread a batch over all of them, and TRL refuses."""
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _check_finite(loss: torch.Tensor, step: int) -> None:
    if not torch.isfinite(loss):
        raise TrainingError(
            f"preference training broke down in step {step + 1}: the loss is {loss.item()}; "
            "lower learning_rate, or set precision to 'float32'"
        )
