"""A student of a released joint sketch: what was chosen, what is learnt of it, what is lacking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located
from flower_privsyn.models import BUNDLED_MODELS
from flower_privsyn.strategies.parts.sketched_text import SketchedText
from flower_privsyn.strategies.parts.token_sketch import what_is_lacking

if TYPE_CHECKING:
    from flower_privsyn.models.bias import LogitBias
    from flower_privsyn.private_path.release import SumOfUsers
    from flower_privsyn.strategies.parts.sketch_settings import SketchedStudentConfig
    from flower_privsyn.training.causal import FineTuning
    from flower_privsyn.training.distillation import Distillation

#: Folder of a teacher that learnt from the chosen text, beside the student's.
_TEACHER: Final = "teacher"

#: How a generator learns by adapters; set by what SmolLM2-135M makes of some 400 sentences.
_ADAPTERS: Final[dict[str, Any]] = {
    "lora_rank": 16,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "schedule": "constant",
    "warmup_steps": 4,
    "precision": "float32",
}


def check_student(config: SketchedStudentConfig, begins: str) -> None:
    """Refuse a model that could not become the student, before anybody is asked.

    Args:
        config: the settings.
        begins: the model that is trained, whose tokens are those of `config.model`.

    Raises:
        ConfigError: the teacher has other tokens, one of them cannot read a row of `max_tokens`,
            or the model predicts fewer tokens than it has.
        ModelError: a model is not on this machine, is no causal language model, or has a bias where
            it is to get one.
    """
    from flower_privsyn.models.pretrained import load_pretrained
    from flower_privsyn.training.bias import load_plain
    from flower_privsyn.training.distillation import check_same_tokens
    from flower_privsyn.training.tokens import check_window

    network, tokenizer = load_plain(located(begins))
    predicted = int(network.get_output_embeddings().weight.shape[0])
    if len(tokenizer) > predicted:
        raise ConfigError(
            f'model = "{begins}" has {len(tokenizer)} tokens and predicts {predicted} of them: a '
            "student needs a number for each"
        )
    length = config.max_tokens  # of a row, at most
    check_window(network, length, called=f'model = "{begins}"', max_tokens=length)
    taught = config.distillation()
    if taught is not None:
        check_same_tokens(located(begins), taught.teacher, setting="teacher")
        if config.teacher_steps:
            teacher, _ = load_plain(taught.teacher)
        else:
            teacher, _ = load_pretrained(
                taught.teacher, kind="causal", dtype="float32", device="cpu"
            )
        named = f'teacher = "{config.teacher}"'
        check_window(teacher, length, called=named, max_tokens=length)


class SketchedStudent:
    """What is made of such a release.

    Made again from the same releases it chooses the same rows, and trains the same weights.

    Formal guarantee:
        All of it is post-processing of the releases and of public text.

    Args:
        config: the settings.
        text: what was asked, and the public text.
        releases: at least one.

    Attributes:
        sketch: what was released.
        selection: the rows that were chosen.
        texts: of these rows, in the order in which they were chosen.
        sentences: the whole sentences of these rows that hold some, and their place in public text.
    """

    def __init__(
        self, config: SketchedStudentConfig, text: SketchedText, releases: Sequence[SumOfUsers]
    ) -> None:
        self._config, self._text, self._releases = config, text, releases
        self.sketch = text.read(releases)
        self.selection = text.select(self.sketch)
        self.texts = text.texts_of(self.selection)
        self.sentences = text.sentences_of(self.selection)

    @property
    def figures(self) -> dict[str, Any]:
        """What was released and chosen, for the end of the run."""
        return {
            "public_rows": self.selection.num_rows,
            "selected_rows": len(self.selection.indices),
            "overlapping_rows": self.selection.overlapping,
            "least_score": float(self.selection.scores.min()),
            "users": self.sketch.num_users,
            "noise_std": self.sketch.noise_std,
            "trust": self.sketch.trust,
            "tokens_per_user": self.sketch.tokens_per_user,
        }

    def train(self, model: str, output: Path) -> dict[str, Any]:
        """Train a model on what was chosen, taught by the teacher; free where it was done before.

        Args:
            model: that begins.
            output: the folder of the one that it becomes.

        Returns:
            Figures for the end of the run.

        Raises:
            TrainingError: the loss is no longer finite.
        """
        training = self._fine_tune(
            model,
            output,
            who="student",
            steps=self._config.student_steps,
            distillation=self._distillation(output.with_name(_TEACHER)),
        )
        return {"student_steps": training.steps, "student_epochs": training.epochs}

    def _distillation(self, folder: Path) -> Distillation | None:
        """What the student is taught by; a teacher that is to learn first has done so."""
        config = self._config
        taught = config.distillation()
        if taught is None or not config.teacher_steps:
            return taught
        plain = self.trained(config.teacher, steps=config.teacher_steps, output=folder)
        if not (config.token_bias or config.bigram_bias):
            return replace(taught, teacher=plain)
        biased = folder.with_name(f"{folder.name}-biased")
        self.add_bias(plain, biased, who="teacher")
        return replace(taught, teacher=biased)

    def trained(self, model: str, *, steps: int, output: Path) -> Path:
        """Train a model that teaches or writes on what was chosen; free where it was done before.

        Args:
            model: that begins, a public one.
            steps: of the student's batch size and rate.
            output: the folder of the one that it becomes, named after what it does.

        Returns:
            That folder.

        Raises:
            TrainingError: the loss is no longer finite.
        """
        self._fine_tune(model, output, who=output.name, steps=steps)
        return output

    def trained_writer(self, model: str, *, steps: int, output: Path) -> Path:
        """Train a generator on the whole sentences that were chosen; free where it was done before.

        All weights of a bundled model, at the student's rate; LoRA adapters of a larger one, whose
        weights a few hundred sentences would rather harm.

        Args:
            model: that begins, a public one.
            steps: of training.
            output: the folder of the one that it becomes.

        Returns:
            That folder.

        Raises:
            TrainingError: the loss is no longer finite.
        """
        adapters: dict[str, Any] = {} if model in BUNDLED_MODELS else _ADAPTERS
        self._fine_tune(
            model,
            output,
            who="generator",
            steps=steps,
            texts=[text for _, text in self.sentences],
            learn_ends=True,  # a whole sentence is one
            **adapters,
        )
        return output

    def _fine_tune(
        self,
        model: str,
        output: Path,
        *,
        who: str,
        steps: int,
        texts: Sequence[str] | None = None,
        distillation: Distillation | None = None,
        **otherwise: Any,
    ) -> FineTuning:
        from flower_privsyn.training.causal import fine_tune

        config = self._config
        output.parent.mkdir(exist_ok=True)
        with self._text.place.progress.stage(f"Train the {who}", steps) as stage:
            return fine_tune(
                located(model),
                self.texts if texts is None else texts,
                settings=replace(config.student_training(), max_steps=steps, **otherwise),
                output=output,
                seed=config.seed,
                progress=stage.reach,
                distillation=distillation,
            )

    def add_bias(self, plain: Path, output: Path, *, who: str = "student") -> None:
        """Write a model with what it lacks in its logits, as much of it as the settings say.

        Args:
            plain: folder of the model, trained on what was chosen and on whatever else.
            output: folder of the one with the bias inside.
            who: what the model is called where the work reports.

        Raises:
            ModelError: the model cannot be loaded, or `output` holds something else.
        """
        from flower_privsyn.training.bias import save_biased

        save_biased(plain, output, self.bias_of(plain, who=who))

    def bias_of(self, plain: Path, *, who: str = "student") -> LogitBias:
        """What a model lacks in its logits, as much of it as the settings say.

        Args:
            plain: folder of the model, trained on what was chosen and on whatever else.
            who: what the model is called where the work reports.

        Raises:
            ModelError: the model cannot be loaded.
        """
        config = self._config
        with self._text.place.progress.stage(f"Read what the {who} lacks", total=None):
            return self.lacking(plain).scaled(config.token_bias, config.bigram_bias)

    def lacking(self, model: str | Path) -> LogitBias:
        """What a model must say more often to say each token as often as users do.

        Args:
            model: a bundled short name, a folder or a hub name, of the sketch's tokens.
        """
        return what_is_lacking(
            self._config.sketch_question(),
            self._text.question.broadcast,
            self._releases,
            model=model,
            chosen=self.selection.tokens,
            sketch=self.sketch,
            seed=self._config.seed,
        )
