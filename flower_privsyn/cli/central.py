"""`privsyn central`: CTCL and its baselines as published, at record level."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flower_privsyn.cli.options import Column, Seed, option
from flower_privsyn.cli.signals import ended_by_signals

if TYPE_CHECKING:
    from flower_privsyn.comparison.central import CentralBaseline, CentralResult, CentralRun
    from flower_privsyn.data import Users
    from flower_privsyn.host.progress import ShownProgress


def central(
    data: Annotated[str, typer.Argument(metavar="DATA", hidden=True)],
    epsilon: Annotated[float, option("E", "of everything; inf for no privacy")],
    output: Annotated[Path, option("DIR", "folder to become the result, one in it per method")],
    methods: Annotated[
        list[str] | None,
        option("NAME ...", "ctcl, vanilla, resampled, downstream (default: all)"),
    ] = None,
    held_out: Annotated[
        str | None, option("FILE", "other people's text, to measure downstream models on")
    ] = None,
    delta: Annotated[float, option("D", "0: 1 / (n ln n) of the n records")] = 0.0,
    model: Annotated[str, option("MODEL", "generator that is trained")] = "privsyn-lm",
    downstream: Annotated[str, option("MODEL", "model that learns from texts")] = "privsyn-tiny",
    trainable: Annotated[str, option("full|lora", "what of a model is trained")] = "full",
    steps: Annotated[int, option("N", "of DP-Adam; 2,000 in the paper")] = 2000,
    batch_size: Annotated[int, option("N", "records of a step on average; 4,096")] = 4096,
    learning_rate: Annotated[float, option("X", "of DP-Adam")] = 1e-3,
    warmup_steps: Annotated[int, option("N", "of them")] = 100,
    histogram_noise_multiplier: Annotated[float, option("Z", "of topics; 10 in the paper")] = 10.0,
    topics: Annotated[
        str, option("FILE", "bundled, or topics that privsyn topics made of public text")
    ] = "bundled",
    num_topics: Annotated[int, option("N", "how many topics")] = 64,
    samples: Annotated[int, option("N", "texts to write")] = 2000,
    max_new_tokens: Annotated[int, option("N", "of a text; 512 in the paper")] = 85,
    repetition_penalty: Annotated[
        float, option("X", "of what is written; 1.5 in the released code")
    ] = 1.0,
    word_filter: Annotated[
        str, option("none|released", "released: leave out what the released code leaves out")
    ] = "none",
    seed: Seed = 0,
    client_column: Column = "client_id",
    text_column: Column = "text",
    date_column: Column = "date",
) -> int:
    """Train with DP-Adam on records that are all in one place, and have the models write.

    DATA is a file of documents, each a record, whoever wrote it. What comes out is private at
    RECORD level and stands on no axis with a run, whose unit is a user. Every method spends an
    epsilon of its own, whoever publishes several their sum. Killed, it goes on.
    """
    from flower_privsyn.comparison.central import CentralBaseline
    from flower_privsyn.data import load_users
    from flower_privsyn.training.dp_adam import DPAdam

    optimiser = DPAdam(
        steps=steps, batch_size=batch_size, learning_rate=learning_rate, warmup_steps=warmup_steps
    )
    baselines = [
        CentralBaseline(
            method=name,  # type: ignore[arg-type]
            epsilon=epsilon,
            delta=delta,
            model=downstream if name == "downstream" else model,
            trainable=trainable,  # type: ignore[arg-type]
            histogram_noise_multiplier=histogram_noise_multiplier,
            topics=topics,
            num_topics=num_topics,
            synthetic_samples=samples,
            max_new_tokens=max_new_tokens,
            repetition_penalty=repetition_penalty,
            word_filter=word_filter,  # type: ignore[arg-type]
            seed=seed,
            optimiser=optimiser,
        )
        for name in _named(methods)
    ]
    columns = {
        "client_column": client_column,
        "text_column": text_column,
        "date_column": date_column,
    }
    people = load_users(data, **columns, strict=True)
    others = None if held_out is None else load_users(held_out, **columns, strict=True)
    rows = _rows(baselines, people, others, downstream=downstream, output=output)
    _show(rows, records=len(people.texts))
    return 0


def _named(methods: list[str] | None) -> list[str]:
    """The methods, each named once; all of them where none is named."""
    from flower_privsyn.comparison.central import CENTRAL_METHODS
    from flower_privsyn.errors import ConfigError

    names = methods or list(CENTRAL_METHODS)
    if len(set(names)) < len(names):
        raise ConfigError(f"--methods must name each method once, got {' '.join(names)}")
    return names


def _rows(
    baselines: list[CentralBaseline],
    people: Users,
    others: Users | None,
    *,
    downstream: str,
    output: Path,
) -> list[tuple[Any, ...]]:
    """Run the baselines one after the other, and measure what each gives."""
    from flower_privsyn.files import user_path
    from flower_privsyn.host.progress import ShownProgress
    from flower_privsyn.host.terminal import follower

    rows: list[tuple[Any, ...]] = []
    with ended_by_signals(), follower() as follow:
        progress = ShownProgress(follow)
        # All of them before the first: what the last one lacks must not cost what the others spend.
        for baseline in baselines:
            _work(baseline, user_path(output) / baseline.method, progress).check(people.texts)
        if others is not None:
            rows.append(("public model", 0.0, 0.0, *_measured(downstream, others, progress)))
        for baseline in baselines:
            folder = user_path(output) / baseline.method
            found = _run(baseline, folder, people, progress)
            figures: tuple[float, ...] = ()
            if others is not None:
                learned = _learned(baseline, found, downstream, folder, progress)
                figures = _measured(str(learned), others, progress)
            spent = found.privacy["epsilon"]
            noise = found.privacy["phases"][-1]["noise_multiplier"]
            rows.append((baseline.method, math.inf if spent is None else spent, noise, *figures))
    return rows


def _work(baseline: CentralBaseline, folder: Path, progress: ShownProgress) -> CentralRun:
    from flower_privsyn.comparison.central import CentralRun

    return CentralRun(baseline, folder, progress=progress)


def _run(
    baseline: CentralBaseline, folder: Path, people: Users, progress: ShownProgress
) -> CentralResult:
    sys.stderr.write(f"{baseline.method}, at record level, in {folder}\n")
    return _work(baseline, folder, progress).run(people.texts)


def _learned(
    baseline: CentralBaseline,
    found: CentralResult,
    downstream: str,
    folder: Path,
    progress: ShownProgress,
) -> Path:
    """The downstream model: trained itself, or on what was written."""
    from flower_privsyn.files import located
    from flower_privsyn.training.causal import fine_tune
    from flower_privsyn.training.causal_settings import CausalTraining

    if baseline.method == "downstream":
        return found.model
    with progress.stage("Train the downstream model", total=None) as stage:
        fine_tune(
            located(downstream),
            found.texts,
            settings=CausalTraining(learning_rate=2e-4, max_steps=200, learn_ends=False),
            output=folder / "downstream",
            seed=baseline.seed,
            progress=stage.reach,
        )
    return folder / "downstream"


def _measured(model: str, others: Users, progress: ShownProgress) -> tuple[float, float]:
    """Next-token accuracy and bits per byte on other people's text."""
    from flower_privsyn.evaluation.language_model import evaluate_language_model
    from flower_privsyn.files import located

    with progress.stage("Measure", len(others.texts)) as stage:
        found = evaluate_language_model(
            located(model), others.texts, owners=others.owners, progress=stage.update
        )
    bits = found.bits_per_byte
    return found.next_token_accuracy.value, math.nan if bits is None else bits.value


def _show(rows: list[tuple[Any, ...]], *, records: int) -> None:
    from flower_privsyn.training.dp_adam import RECORD_LEVEL

    print(f"{records:,} records; {RECORD_LEVEL}.")
    if sum(epsilon > 0.0 for _, epsilon, *_ in rows) > 1:
        print("Every method spends an epsilon of its own: who publishes several spends the sum.")
    print("| method | epsilon (record) | noise multiplier | accuracy | bits per byte |")
    print("|---|---|---|---|---|")
    for name, epsilon, noise, *figures in rows:
        shown = [f"{100 * figures[0]:.2f} %", f"{figures[1]:.4f}"] if figures else ["", ""]
        print(f"| {name} | {epsilon:.4g} | {noise:.4g} | {' | '.join(shown)} |")
