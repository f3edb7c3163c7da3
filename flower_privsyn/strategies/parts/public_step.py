"""Training at the server on public text, between rounds of training on the nodes.

What is trained is a checkpoint that rounds under differential privacy released, so all of this is
post-processing: it reads public text and that checkpoint, and costs no budget.

Paper:
    Wang et al., "Can Public Large Language Models Help Private Cross-device Federated Learning?"
        (NAACL 2024), Algorithm 1: rows of public text chosen by the log-probabilities of the
        checkpoint and of a public model, and training on them with the public model as teacher.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located, replacing, write_json
from flower_privsyn.private_path.method import need

if TYPE_CHECKING:
    from flower_privsyn.data.public_rows import PublicRows
    from flower_privsyn.host.progress import Progress
    from flower_privsyn.strategies.parts.mid_training_settings import PublicMidTrainingConfig
    from flower_privsyn.training.distribution_matching import Matched

#: Folders of a run's models: before the public text, after it.
BEFORE: Final = "before-public-text"
AFTER: Final = "after-public-text"

#: In the first of them: of which parameters it was made.
_NOTE: Final = "parameters.sha256"

#: Begins the seeds of what is drawn from the public text.
_DRAW = 0xD4A3


class PublicStep:
    """Public text, what is chosen of it, and a model that is trained on it.

    Scores, the choice's figures and the models stay in the run directory; a training that was
    interrupted goes on where it was and ends with the same weights.

    Args:
        config: the settings.
        run: the run directory's path.
        progress: shows what is being done.
    """

    def __init__(self, config: PublicMidTrainingConfig, *, run: Path, progress: Progress) -> None:
        self._config, self._run, self._progress = config, run, progress
        self._public: PublicRows | None = None
        self._scores = run / "public_scores"

    # ------------------------------------------------------------------ before the first round

    def check(self) -> None:
        """Read the public text and refuse, before anything is spent, what could not work later.

        Raises:
            ConfigError: a model has other tokens than the one that is trained, the teacher's
                context is too short, or the share that is kept may hold fewer rows than a batch.
            DataError: the public text cannot be read.
            ModelError: a model is not on this machine.
        """
        from flower_privsyn.data.public_rows import PublicRows
        from flower_privsyn.embedding import load_tokenizer
        from flower_privsyn.training.distillation import check_same_tokens

        config, model = self._config, located(self._config.model)
        if config.teacher:
            check_same_tokens(model, located(config.teacher), setting="teacher")
        if config.scores_by_public_model:
            check_same_tokens(model, located(config.public_model), setting="public-model")
        with self._progress.stage("Read the public text", total=None):
            public = self._public = PublicRows.of(
                located(config.public_text),
                tokenizer=load_tokenizer(model)[0],
                max_tokens=config.max_tokens,
                setting="public-text",
            )
        self._check_size(public)
        if config.teacher:
            self._check_context(int(public.lengths.max()))

    def _check_size(self, public: PublicRows) -> None:
        """Refuse a share of the public text that may hold fewer rows than a batch of training.

        How long the chosen rows are is not known yet; with the longest they are the fewest.
        """
        config, lengths = self._config, public.lengths
        usable = public.long_enough(config.least_row_tokens, source=config.public_text)
        share = 1.0 if config.public_rows == "all" else config.select_share
        fewest = min(int(share * int(lengths.sum())) // int(usable.max()), len(usable))
        if fewest < config.student_batch_size:
            raise ConfigError(
                f'select-share = {share:g} of public-text = "{config.public_text}" '
                f"({len(public):,} rows) may leave {fewest:,} rows, fewer than student-batch-size ="
                f" {config.student_batch_size}: raise the share, or give more public text"
            )

    def _check_context(self, longest: int) -> None:
        from flower_privsyn.models.pretrained import load_pretrained
        from flower_privsyn.training.tokens import check_window

        teacher = self._config.teacher
        network, _ = load_pretrained(located(teacher), kind="causal", dtype="float32", device="cpu")
        check_window(
            network,
            longest + 1,  # and the end of its text
            called=f'teacher = "{teacher}"',
            max_tokens=self._config.max_tokens,
        )

    # ------------------------------------------------------------------ the step

    def take(self, parameters: npt.NDArray[np.float32]) -> Path:
        """Train the model of the rounds so far on the public text that suits it.

        All of its parameters are trained, whichever the nodes train.

        Args:
            parameters: (dimension,) of that model; of the public one where there were no rounds.

        Returns:
            The folder of the model that was made, `<run>/models/after-public-text`.

        Raises:
            ConfigError: fewer rows are left than a batch.
            TrainingError: the loss is no longer finite.
        """
        from flower_privsyn.training.causal import fine_tune

        config, models = self._config, self._run / "models"
        before, after = models / BEFORE, models / AFTER
        self._keep(before, parameters)
        chosen = self._choose(before)
        public = self._need_public()
        texts = [public.text_of(int(index)) for index in chosen.indices]
        with self._progress.stage("Learn from public text", config.student_steps) as stage:
            training = fine_tune(
                before,
                texts,
                settings=config.student_training(),
                output=after,
                seed=config.seed,
                progress=stage.reach,
                distillation=config.distillation(),
            )
        write_json(
            self._run / "public_step.json",
            {
                "public_rows": len(public),
                "public_tokens": chosen.all_tokens,
                "chosen_rows": len(chosen.indices),
                "chosen_tokens": chosen.tokens,
                "duplicates": chosen.duplicates,
                "steps": training.steps,
                "epochs": training.epochs,
                "first_loss": training.first_loss,
                "loss": training.loss,
            },
        )
        return after

    def _keep(self, folder: Path, parameters: npt.NDArray[np.float32]) -> None:
        """Write the model of the rounds so far, once: what is made of it goes by its files."""
        from flower_privsyn.training.local import LocalModel

        note, digest = folder / _NOTE, hashlib.sha256(parameters.tobytes()).hexdigest()
        if note.exists() and note.read_text(encoding="ascii") == digest:
            return
        shutil.rmtree(self._scores / "private", ignore_errors=True)
        config = self._config
        start = replace(config.trained_model(), name=config.first_model)
        LocalModel(start).save(folder, parameters)
        with replacing(note) as temporary:
            temporary.write_text(digest, encoding="ascii")

    def _choose(self, private: Path) -> Matched:
        """The rows to train on, best first."""
        from flower_privsyn.training.distribution_matching import TokenShare, keep_share

        config, public = self._config, self._need_public()
        if config.public_rows == "matched":
            scores = self._liked(private)
        else:
            draw = np.random.default_rng([_DRAW, config.seed])
            scores = draw.permutation(len(public)).astype(np.float64)
        # Short rows have the average log-probabilities that vary most.
        scores = np.where(public.lengths < config.least_row_tokens, -np.inf, scores)
        share = 1.0 if config.public_rows == "all" else config.select_share
        rule = TokenShare(share=share, least_rows=config.student_batch_size)
        return keep_share(public, scores, rule)

    def _liked(self, private: Path) -> npt.NDArray[np.float64]:
        """What the model of the rounds so far says of every row.

        log p_private(x) + log p_public(x), or the first of them alone, as the paper has it.
        """
        config = self._config
        scores = np.array(self._scored("Score public text privately", str(private), "private"))
        if config.scores_by_public_model:
            scores += self._by_public_model(located(config.public_model))
        return scores

    def _by_public_model(self, model: str) -> npt.NDArray[np.float64]:
        """Log-probabilities of every row, which no run changes: they stay beside the rows."""
        from flower_privsyn.training.distribution_matching import LanguageModelScorer

        public = self._need_public()
        scorer = LanguageModelScorer(model=model)
        made_of = json.dumps(scorer.fingerprint(), sort_keys=True).encode()
        kept = public.folder / f"scores-{hashlib.blake2b(made_of, digest_size=16).hexdigest()}.npy"
        with contextlib.suppress(OSError, ValueError, EOFError):  # the last two: damaged
            found: npt.NDArray[np.float64] = np.load(kept)
            if found.shape == (len(public),):
                return found
        scores = self._scored("Score public text publicly", model, "public")
        # Other runs do without where the disk is full, or the rows have left the cache meanwhile.
        with (
            contextlib.suppress(OSError),
            replacing(kept) as temporary,
            temporary.open("wb") as file,
        ):
            np.save(file, scores)
        return scores

    def _scored(self, stage_name: str, model: str, name: str) -> npt.NDArray[np.float64]:
        from flower_privsyn.training.distribution_matching import (
            LanguageModelScorer,
            stored_scores,
        )

        public = self._need_public()
        scorer = LanguageModelScorer(model=model)
        with self._progress.stage(stage_name, len(public)) as stage:
            return stored_scores(
                public,
                scorer,
                folder=self._scores / name,
                fingerprint=scorer.fingerprint(),
                progress=stage.reach,
            )

    def _need_public(self) -> PublicRows:
        return need(self._public)
