"""`privsyn distil`: a small model learns from text, and from a larger model where one is named."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flower_privsyn.cli.options import Seed, option
from flower_privsyn.cli.signals import Stopped, ended_by_signals
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import user_path

if TYPE_CHECKING:
    from flower_privsyn.training.causal import FineTuning
    from flower_privsyn.training.causal_settings import CausalTraining
    from flower_privsyn.training.distillation import Distillation

#: The weight of the teacher beside the text, the largest of the paper's three.
_BETA = 0.1


def distil(
    text: Annotated[
        str, option("FILE|DIR", 'JSON lines with a "text", .txt files, or a folder of them')
    ],
    student: Annotated[str, option("NAME", "the model to begin from, with the teacher's tokens")],
    output: Annotated[Path, option("DIR", "folder to become the model")],
    teacher: Annotated[
        str | None,
        option("NAME", "causal language model: a name or a folder (default: none, the text alone)"),
    ] = None,
    top_k: Annotated[int, option("K", "probabilities kept at every position")] = 10,
    rest: Annotated[
        Literal["lumped", "drawn", "dropped"],
        typer.Option(help="the other tokens count as one class, are drawn from, or left out"),
    ] = "lumped",
    temperature: Annotated[float, option("T")] = 1.0,
    beta: Annotated[
        float | None, option("B", f"of the teacher beside the loss of the text (default: {_BETA})")
    ] = None,
    pure: Annotated[bool, typer.Option("--pure", help="learn from the teacher alone")] = False,
    steps: Annotated[int, option("N", "in all; 0 for what --epochs says")] = 0,
    epochs: Annotated[int, option("N", "passes over the text")] = 3,
    batch_size: Annotated[int, option("N", "rows per step")] = 32,
    learning_rate: Annotated[float, option("RATE")] = 5e-4,
    max_tokens: Annotated[int, option("N", "tokens of a row; a longer text is several")] = 64,
    teacher_logits: Annotated[
        Path | None,
        option("DIR", "where the teacher's probabilities stay, for other students of the text"),
    ] = None,
    seed: Seed = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> int:
    """Train a model on public text, taught by the probabilities of a larger one.

    Without --teacher it learns from the text alone; a teacher reads every row of text once. The
    command goes on with what was interrupted, and ends with the same weights. On private text there
    is no guarantee whatever, for the model and for what is kept of the teacher.
    """
    loss = _loss(teacher, pure=pure, beta=beta, teacher_logits=teacher_logits)
    from flower_privsyn.data.public_text import public_documents
    from flower_privsyn.training.causal_settings import CausalTraining

    settings = CausalTraining(
        learning_rate=learning_rate,
        batch_size=batch_size,
        epochs=epochs,
        max_steps=steps,
        max_tokens=max_tokens,
        device=device,
    )
    taught = None if teacher is None else _taught(student, teacher, top_k, rest, temperature, loss)
    texts = public_documents(text, setting="--text")
    folder = user_path(output)
    kept = None if teacher_logits is None else user_path(teacher_logits)
    if kept is not None and folder.resolve() in (kept.resolve(), *kept.resolve().parents):
        raise ConfigError(
            f"--teacher-logits must be outside of --output, which is replaced, got {teacher_logits}"
        )
    try:
        report = _distil(student, texts, settings, taught, folder, kept, seed)
    except (KeyboardInterrupt, Stopped):
        sys.stderr.write("What was done is kept; the same command goes on with it.\n")
        raise
    print(
        f"Student: {output}, {report.steps:,} steps on {report.rows:,} rows of {len(texts):,} "
        f"texts, loss {report.first_loss:.4g} to {report.loss:.4g} nats a token"
    )
    if kept is not None:
        print(f"Teacher's probabilities: {teacher_logits}")
    return 0


def _loss(
    teacher: str | None, *, pure: bool, beta: float | None, teacher_logits: Path | None
) -> dict[str, float]:
    """What a teacher weighs, as `Distillation` takes it, once the options fit together."""
    if pure and beta is not None:
        raise ConfigError("give either --pure or --beta")
    given = {"--pure": pure or None, "--beta": beta, "--teacher-logits": teacher_logits}
    for name, value in given.items():
        if teacher is None and value is not None:
            raise ConfigError(f"{name} needs --teacher")
    return {"weight": 1.0} if pure else {"beta": _BETA if beta is None else beta}


def _taught(
    student: str,
    teacher: str,
    top_k: int,
    rest: Literal["lumped", "drawn", "dropped"],
    temperature: float,
    loss: dict[str, Any],
) -> Distillation:
    """The settings of a teacher that has the student's tokens."""
    from flower_privsyn.training.distillation import Distillation, check_same_tokens

    found = Distillation(teacher, top_k=top_k, rest=rest, temperature=temperature, **loss)
    check_same_tokens(student, teacher, setting="--teacher")
    return found


def _distil(
    student: str,
    texts: list[str],
    settings: CausalTraining,
    taught: Distillation | None,
    output: Path,
    kept: Path | None,
    seed: int,
) -> FineTuning:
    """Train, with a stage for what the teacher reads and one for the student's steps."""
    from flower_privsyn.host.progress import ShownProgress, Stage
    from flower_privsyn.host.terminal import follower
    from flower_privsyn.models import stamped
    from flower_privsyn.training.causal import fine_tune

    with ended_by_signals(), follower() as follow, contextlib.ExitStack() as running:
        progress = ShownProgress(follow)

        def counted(name: str) -> Callable[[int, int], None]:
            stage: Stage | None = None

            def count(done: int, total: int) -> None:
                nonlocal stage
                if stage is None:
                    running.close()  # the stage before has ended
                    stage = running.enter_context(progress.stage(name, total))
                stage.reach(done, total)

            return count

        return fine_tune(
            student,
            texts,
            settings=settings,
            output=output,
            seed=seed,
            distillation=taught,
            teacher_folder=kept,
            reading=counted("Teacher reads"),
            progress=counted("Student learns"),
            # What has learnt from such a model is such a model.
            stamp=stamped.stamp_of(student, *(() if taught is None else (taught.teacher,))),
        )
