"""The training of one network: batches, the clock, the loop."""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from corpus import MASKED_ROWS, PAD, Corpus
from networks import (
    Recipe,
    build,
    causal_loss,
    flops_per_token,
    initialise,
    masked_loss,
    optimisers,
    rate,
)

from flower_privsyn.models.library import quiet_transformers

SECONDS_BETWEEN_LINES = 15.0
# The first half minute holds compilation: not part of the speed.
_WARM_AFTER_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run trains.

    Attributes:
        minutes: of processor time for all models together; a model gets its recipe's share.
        wall_minutes: at most this long per model.
        threads: PyTorch threads per model.
        seed: of weights and rows.
        compile: use `torch.compile`, which needs a C++ compiler on CPUs.
        hardware: what the model card says about the machine.
    """

    minutes: float = 120.0
    wall_minutes: float = 240.0
    threads: int = 1
    seed: int = 20240601
    compile: bool = True
    hardware: str = ""


# ----------------------------------------------------------------------------------------- batches


def batches(recipe: Recipe, work: Path, seed: int) -> Iterator[list[list[Any]]]:
    """An endless stream of training steps, each a list of batches of token ids.

    Args:
        recipe: the model.
        work: the folder `prepare` wrote.
        seed: of the rows.
    """
    import torch

    corpus = Corpus(work, "train", [seed, 0])
    step = 0
    while True:
        first, second = recipe.rows
        if recipe.kind == "masked":
            # One batch a step: a masked LM learns from 30 % of the tokens and needs many steps.
            rows, length = ((second, MASKED_ROWS[1]), (first, MASKED_ROWS[0]))[step % 2]
            made = [corpus.masked(rows, length)]
        else:
            made = [(corpus.prompts(first),), (corpus.mixed(second),)]
        step += 1
        yield [[torch.from_numpy(array) for array in batch] for batch in made]


# ----------------------------------------------------------------------------------------- training


def matmul_peak() -> float:
    """Measured bfloat16 matrix products, flops per second, of what this process may use."""
    import torch

    size = 1024
    a = torch.randn(size, size, dtype=torch.bfloat16)
    best = 0.0
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(4):
            a @ a
        best = max(best, 4 * 2 * size**3 / (time.perf_counter() - started))
    return best


def train(recipe: Recipe, work: Path, settings: Settings) -> dict[str, Any]:
    """Train one model until its share of the time, or its number of passes, is spent.

    Args:
        recipe: the model.
        work: the folder `prepare` wrote; the model is left in `work/<name>` in float16.
        settings: the run's.

    Returns:
        The training log, which is also written beside the model.
    """
    import torch

    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    torch.use_deterministic_algorithms(True)
    facts = json.loads((work / "facts.json").read_text())
    most_tokens = recipe.passes * facts["train"]["tokens"]
    model = build(recipe)
    initialise(model, recipe, settings.seed, work)
    model.train()
    optimisers_ = optimisers(model, recipe)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    peak, flops = matmul_peak(), flops_per_token(model, recipe)
    tag = f"[{recipe.name}]"
    print(f"{tag} {parameters:,} parameters, matmul peak {peak / 1e12:.2f} TFLOP/s", flush=True)
    loss_of = masked_loss if recipe.kind == "masked" else causal_loss
    # A third faster on CPUs; --no-compile does without a C++ compiler. The LSTM is one kernel.
    compiled = loss_of
    if settings.compile and recipe.kind != "lstm":
        compiled = torch.compile(loss_of, dynamic=False)
    # The LSTM stays in float32: its kernel trains in nothing else.
    precision: Any = contextlib.nullcontext()
    if recipe.kind != "lstm":
        precision = torch.autocast("cpu", dtype=torch.bfloat16)
    budget, wall_budget = settings.minutes * 60 * recipe.share, settings.wall_minutes * 60
    steps = batches(recipe, work, settings.seed)
    cpu_start, wall_start = time.process_time(), time.monotonic()
    said, step, tokens = -1e9, 0, 0
    warm: tuple[float, int] | None = None
    before = (0.0, 0)
    window: list[list[Any]] = []
    curve: list[dict[str, Any]] = []

    def note(spent: float, fraction: float) -> None:
        nonlocal before
        means = np.mean([[float(loss) for loss in row] for row in window], axis=0)
        losses = [round(float(value), 4) for value in means]
        curve.append({"step": step, "tokens": tokens, "seconds": round(spent, 1), "loss": losses})
        # Of the time since the last line: the first ones hold compilation.
        speed = (tokens - before[1]) / max(spent - before[0], 1e-9)
        before = (spent, tokens)
        print(
            f"{tag} {100 * fraction:5.1f} % step {step} tokens {tokens:,} loss {losses} "
            f"{speed:,.0f} tokens/s {100 * speed * flops / peak:.0f} % of the matmul peak",
            flush=True,
        )

    def clock() -> tuple[float, float]:
        """Seconds of the processor and of the wall."""
        return time.process_time() - cpu_start, time.monotonic() - wall_start

    while True:
        spent, wall = clock()
        fraction = max(spent / budget, wall / wall_budget, tokens / most_tokens)
        if fraction >= 1.0:
            break
        for optimiser in optimisers_:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * rate(fraction)
        losses, made = [], next(steps)
        for batch in made:
            with precision:
                loss = compiled(model, *batch)
            (loss / len(made)).backward()
            losses.append(loss.detach())
            tokens += int((batch[0] != PAD).sum())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers_:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        step += 1
        window = [*window[-49:], losses]
        if wall - said >= SECONDS_BETWEEN_LINES:
            said = wall
            spent, _ = clock()
            note(spent, fraction)
            if warm is None and wall >= _WARM_AFTER_SECONDS:
                warm = (spent, tokens)
    if not window:
        raise SystemExit(f"{recipe.name}: the time was over before the first step; give more")
    spent, wall = clock()
    note(spent, 1.0)
    warm = warm or (0.0, 0)
    speed = (tokens - warm[1]) / max(spent - warm[0], 1e-9)
    log = {
        "name": recipe.name,
        "kind": recipe.kind,
        "parameters": parameters,
        "steps": step,
        "tokens": tokens,
        "passes": round(tokens / facts["train"]["tokens"], 3),
        "train_minutes": round(spent / 60, 1),
        "wall_minutes": round(wall / 60, 1),
        "prepare_cpu_minutes": round(facts["cpu_seconds"] / 60, 1),
        "tokens_per_second": round(speed),
        "share_of_matmul_peak": round(speed * flops / peak, 3),
        "device": "cpu",
        "hardware": settings.hardware,
        "threads": settings.threads,
        "seed": settings.seed,
        "optimiser": {"muon_lr": recipe.muon_lr, "adamw_lr": recipe.adam_lr},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "loss_names": ["masked"] if recipe.kind == "masked" else ["prompt", "mixed"],
        "curve": curve,
    }
    print(f"{tag} {json.dumps({k: v for k, v in log.items() if k != 'curve'})}", flush=True)
    folder = work / recipe.name
    folder.mkdir(exist_ok=True)
    with quiet_transformers():
        model.half().save_pretrained(folder)
    (folder / "training_log.json").write_text(json.dumps(log, indent=1) + "\n")
    return log
