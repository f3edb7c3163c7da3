"""Public mid-training: DP-FTRL in two halves, with training on public text between them.

Paper:
    Wang, Zhang, Cao, Li, McMahan, Oh, Xu, Zaheer: "Can Public Large Language Models Help Private
    Cross-device Federated Learning?" (NAACL 2024), Algorithm 1:

    lines of the paper                                            here
    DP-FTRL for T' rounds                                         rounds up to `rounds_before`
    score public rows by log p_private + log p_public, keep q     `_choose`, public-rows
    train on them by cross-entropy + beta x distillation          `_learn_from_public_text`, teacher
    DP-FTRL for the other T - T' rounds from there                `step`; the same mechanism
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, final

import numpy as np
from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import NonNegativeInt
from flower_privsyn.data.public_rows import PublicRows
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import write_json
from flower_privsyn.run.method import RecordSource, ReleasedSum, RunContext, State, need
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies._student import StudentConfig
from flower_privsyn.strategies._training import FederatedTraining
from flower_privsyn.strategies.dp_ftrl import DPFTRLConfig
from flower_privsyn.training.causal import fine_tune
from flower_privsyn.training.distillation import Distillation, check_same_tokens, load_teacher
from flower_privsyn.training.selection import Selection, likelihoods, select

#: Weight of the teacher beside the whole loss of the text: the paper has one, and does not print
#: it. At a tenth the text decides, and the teacher says what else might have followed.
TEACHER_BETA: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class PublicMidTrainingConfig(DPFTRLConfig, StudentConfig):
    """Settings of `PublicMidTraining`: those of `DPFTRL`, and what is done with public text.

    References:
        Wang et al. 2023, Algorithm 1.
    """

    model: str = "privsyn-tiny"
    """Causal language model to train; a bundled short name, a path, or a hub name."""
    position: Literal["middle", "before", "after", "none"] = "middle"
    """Where the training on public text stands among the rounds; "none" is `DPFTRL`."""
    first_rounds: NonNegativeInt = 0
    """For position = "middle": rounds before the public text (T'), or 0 for half of `num_rounds`.
    """
    public_text: str = "bundled"
    """Text to train on, with no person's data, of any size: "bundled", a JSONL file with `text`, a
    folder, or a data set by name (docs/own_data.md).
    """
    public_rows: Literal["matched", "random", "all"] = "matched"
    """Which rows: "matched": the public rows that the model of the rounds so far and `public_model`
    find likeliest (distribution matching); "random": as many drawn at random; "all": every row of
    `least_row_tokens`. Rows that are there twice count once.
    """
    select_share: Annotated[float, Gt(0), Le(1)] = 0.03
    """Share q of the public tokens that are kept, at most; not for "all"."""
    least_row_tokens: Annotated[int, Ge(1)] = 32
    """Rows with fewer tokens are not chosen: their averages vary most."""
    public_model: str = "privsyn-lm"
    """Causal language model with the same tokens whose log-probabilities count in "matched"; "" for
    the private ones alone.
    """
    teacher: str = "privsyn-lm"
    """Causal language model with the same tokens that teaches it on the public text; "" for the
    text alone.
    """
    teacher_top_k: NonNegativeInt = 0
    """Largest probabilities of the teacher that are taught, scaled to a sum of 1, 10 in the paper;
    0 for all of them.
    """

    def __post_init__(self) -> None:
        """Check every value on its own and against the others."""
        super().__post_init__()
        if self.position != "middle" and self.first_rounds:
            raise ConfigError(
                f'first-rounds = {self.first_rounds} needs position = "middle", got position = '
                f'"{self.position}"'
            )
        if self.position == "middle" and not 1 <= (self.rounds_before or 0) < self.num_rounds:
            raise ConfigError(
                f"first-rounds = {self.first_rounds} must be from 1 to num-rounds - 1 = "
                f'{self.num_rounds - 1}, or 0 for half of them; position = "before" or "after" '
                "trains on public text before the first round or after the last"
            )
        if self.position == "before" and self.public_rows == "matched":
            raise ConfigError(
                'public-rows = "matched" needs rounds before the public text, got position = '
                '"before": choose "random" or "all"'
            )

    @property
    def rounds_before(self) -> int | None:
        """Rounds before the training on public text; None where it ends the run or is none."""
        if self.position == "middle":
            return self.first_rounds or self.num_rounds // 2
        return 0 if self.position == "before" else None

    @property
    def scores_by_public_model(self) -> bool:
        """Whether rows are chosen by the public model as well."""
        return self.public_rows == "matched" and bool(self.public_model)

    def distillation(self) -> Distillation | None:
        """What it is taught by; None for nothing but the text."""
        if not self.teacher:
            return None
        return Distillation(
            self.teacher,
            of_text=1.0,
            of_teacher=TEACHER_BETA,
            top_k=self.teacher_top_k,
        )


#: Folders of a run's models: before the public text, after it.
BEFORE: Final = "before-public-text"

AFTER: Final = "after-public-text"

#: Begins the seeds of what is drawn from the public text.
_DRAW = 0xD4A3


class TrainingInHalves(FederatedTraining):
    """The server's half of `PublicMidTraining`.

    Scores, the choice's figures and the models stay in the run directory; a training that was
    interrupted goes on where it was and ends with the same weights.

    Args:
        config: the settings.
    """

    config: PublicMidTrainingConfig

    def __init__(self, config: PublicMidTrainingConfig) -> None:
        super().__init__(config)
        self._public: PublicRows | None = None

    def momentum_after(self, number: int) -> float:
        """Where the public text stands, an optimiser begins anew."""
        return 0.0 if number == self.config.rounds_before else super().momentum_after(number)

    # ------------------------------------------------------------------ before the first round

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        """Load the model, read the public text, and refuse what could not work later.

        Raises:
            ConfigError: a model has other tokens than the one that is trained, the teacher's
                context is too short, or the share that is kept may hold fewer rows than a batch.
            DataError: the public text cannot be read.
            ModelError: a model is not on this machine.
        """
        sources, config = super().setup(place), self.config
        if config.position == "none":
            return sources
        if config.teacher:
            check_same_tokens(config.model, config.teacher, setting="teacher")
        if config.scores_by_public_model:
            check_same_tokens(config.model, config.public_model, setting="public-model")
        with self.progress.stage("Read the public text", total=None):
            public = self._public = PublicRows.of(
                config.public_text,
                tokenizer=load_tokenizer(config.model)[0],
                max_tokens=config.max_tokens,
            )
        self._check_size(public)
        if config.teacher:
            longest = int(public.lengths.max()) + 1  # and the end of its text
            load_teacher(config.teacher, longest=longest, max_tokens=config.max_tokens)
        return sources

    def _check_size(self, public: PublicRows) -> None:
        """Refuse a share of the public text that may hold fewer rows than a batch of training.

        How long the chosen rows are is not known yet; with the longest they are the fewest.
        """
        config, lengths = self.config, public.lengths
        usable = public.long_enough(config.least_row_tokens, source=config.public_text)
        share = 1.0 if config.public_rows == "all" else config.select_share
        fewest = min(int(share * int(lengths.sum())) // int(usable.max()), len(usable))
        if fewest < config.training_batch_size:
            raise ConfigError(
                f'select-share = {share:g} of public-text = "{config.public_text}" '
                f"({len(public):,} rows) may leave {fewest:,} rows, fewer than training-batch-size "
                f"= {config.training_batch_size}: raise the share, or give more public text"
            )

    # ------------------------------------------------------------------ a round

    def init(self, scratch: Path) -> State:
        """The public parameters; where the public text stands first, those that it makes."""
        return self._taught(super().init(scratch), 0)

    def example_states(self, scratch: Path) -> dict[int, State]:
        """The public parameters; from where the public text stands on a base of the run."""
        begun, before = super().init(scratch), self.config.rounds_before
        if before is None:
            return {1: begun}
        return {1: begun, before + 1: self.example_on(f"models/{AFTER}", begun)}

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:
        """The server's step; after T' rounds the model that public text makes of theirs, as well.

        Where the last of these was lost, after the first that is released.
        """
        return self._taught(super().step(state, release, scratch), release.round_number)

    def _taught(self, state: State, number: int) -> State:
        before = self.config.rounds_before
        if before is None or number < before or state.get("base"):
            return state
        # The optimiser begins anew.
        momentum = np.zeros_like(state["momentum"])
        return {**self._learn_from_public_text(state), "momentum": momentum}

    def finish(self, state: State) -> dict[str, Any]:
        """The last model, on the base that public text made; or what public text makes of it."""
        if self.config.position == "after":
            state = self._learn_from_public_text(state)
        return super().finish(state)

    # ------------------------------------------------------------------ the public text

    def _learn_from_public_text(self, state: State) -> State:
        """Train the model of the rounds so far on the public text that suits it, and go on from it.

        All of its parameters are trained, whichever the nodes train.

        Args:
            state: with the parameters of that model; of the public one where there were no rounds.

        Raises:
            TrainingError: the loss is no longer finite.
        """
        from flower_privsyn.training.local import LocalModel

        config, models = self.config, self.run.path / "models"
        before, after = models / BEFORE, models / AFTER
        start = replace(config.trained_model(), name=config.initial_model or config.model)
        LocalModel(start).save(before, state["parameters"])
        chosen = self._choose(before)
        public = need(self._public)
        texts = [public.text_of(index) for index in chosen.indices.tolist()]
        with self.progress.stage("Learn from public text", config.student_steps) as stage:
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
            self.run.path / "public_step.json",
            {
                "public_rows": len(public),
                "public_tokens": int(public.lengths.sum()),
                "chosen_rows": len(chosen.indices),
                "chosen_tokens": sum(map(len, chosen.tokens)),
                "duplicates": chosen.overlapping,
                "steps": len(training.losses),
                "epochs": training.epochs,
                "first_loss": training.losses[0],
                "loss": training.loss,
            },
        )
        return self.begun_from(state, f"models/{AFTER}")

    def _choose(self, private: Path) -> Selection:
        """The rows to train on, best first.

        log p_private(x) + log p_public(x) says which, or the first of them alone, as the paper has
        it. What the public model says of rows no run changes: it stays beside them.
        """
        config, public = self.config, need(self._public)
        if config.public_rows == "matched":
            with self.progress.stage("Score public text privately", len(public)) as stage:
                folder = self.run.path / "public_scores"
                scores = np.array(likelihoods(public, private, folder=folder, progress=stage.reach))
            if config.scores_by_public_model:
                with self.progress.stage("Score public text publicly", len(public)) as stage:
                    scores += likelihoods(
                        public,
                        config.public_model,
                        folder=public.folder,
                        progress=stage.reach,
                    )
        else:
            draw = np.random.default_rng([_DRAW, config.seed])
            scores = draw.permutation(len(public)).astype(np.float64)
        # Short rows have the average log-probabilities that vary most.
        scores = np.where(public.lengths < config.least_row_tokens, -np.inf, scores)
        share = 1.0 if config.public_rows == "all" else config.select_share
        return select(public, scores, share=share)


@final
class PublicMidTraining(PrivateSumStrategy):
    """Train a language model on the users' own text, with public text in the middle.

    DP-FTRL for T' rounds; at the server, the public text that the model of these rounds and a
    public one find likeliest, and training on it with a larger public model as the teacher; DP-FTRL
    for the other rounds, from the model that this made. The trained model is in
    `<run-dir>/models/final`, those before and after the public text beside it.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            PublicMidTraining(
                epsilon=1.0, num_rounds=40, min_separation=40, num_users=1250, num_nodes=50
            ).start(grid)
        ```
    with `clientapp = "flower_privsyn.client_apps.training:app"`.

    Formal guarantee:
        Unit: user; relation: `config.relation`. All rounds, those before and those after the public
        text, are one Gaussian mechanism with the sensitivity of its correlation matrix, charged as
        a whole with the first round, as for `DPFTRL`: a user takes part at most
        ceil(`num_rounds` / `min_separation`) times, and with `min_separation` >= `num_rounds`, as
        in the paper, once in the whole run. What is done between the rounds reads public text and
        the released checkpoint: it is post-processing.

        The choice of T' and of the public training must not look at private text, or it costs what
        looking costs.

    Args:
        config: the settings, where they are not given as keywords.
        random: source of noise; only tests pass one.
        settings: by the names of the fields of `PublicMidTrainingConfig`.

    References:
        Wang et al. 2023, Algorithm 1.
    """

    config_class = PublicMidTrainingConfig
    method_class = TrainingInHalves
