"""Settings of public mid-training: those of DP-FTRL, and the public text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import NonNegativeInt
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located
from flower_privsyn.strategies.parts.correlated_training import (
    CorrelatedTrainingConfig,
    wang_federation,
)
from flower_privsyn.strategies.parts.student import StudentConfig

if TYPE_CHECKING:
    from flower_privsyn.training.distillation import Distillation

#: Weight of the teacher beside the whole loss of the text: the paper has one, and does not print
#: it. At a tenth the text decides, and the teacher says what else might have followed.
TEACHER_BETA: Final = 0.1

#: The teacher's largest probabilities that are kept at a position, as printed.
TEACHER_TOP_K: Final = 10


@dataclass(frozen=True, kw_only=True)
class PublicMidTrainingConfig(CorrelatedTrainingConfig, StudentConfig):
    """Settings of `PublicMidTraining`: those of `DPFTRL`, and what is done with public text.

    References:
        Wang et al. 2023, Algorithm 1.
    """

    model: Annotated[
        str, "causal language model to train; a bundled short name, a path, or a hub name."
    ] = "privsyn-tiny"
    position: Annotated[
        Literal["middle", "before", "after", "none"],
        'where the training on public text stands among the rounds; "none" is `DPFTRL`.',
    ] = "middle"
    first_rounds: Annotated[
        NonNegativeInt,
        'for position = "middle": rounds before the public text (T\'), or 0 for half of '
        "`num_rounds`.",
    ] = 0
    public_text: Annotated[
        str,
        'text to train on, with no person\'s data, of any size: "bundled", a JSONL file with '
        "`text`, a folder, or a data set by name (docs/own_data.md).",
    ] = "bundled"
    public_rows: Annotated[
        Literal["matched", "random", "all"],
        '"matched": the public rows that the model of the rounds so far and `public_model` find '
        'likeliest (distribution matching); "random": as many drawn at random; "all": every row of '
        "`least_row_tokens`. Rows that are there twice count once.",
    ] = "matched"
    select_share: Annotated[
        float,
        Gt(0),
        Le(1),
        'share q of the public tokens that are kept, at most; not for "all".',
    ] = 0.03
    least_row_tokens: Annotated[
        int, Ge(1), "rows with fewer tokens are not chosen: their averages vary most."
    ] = 32
    public_model: Annotated[
        str,
        'causal language model with the same tokens whose log-probabilities count in "matched"; "" '
        "for the private ones alone.",
    ] = "privsyn-lm"
    teacher: Annotated[
        str,
        'causal language model with the same tokens that teaches it on the public text; "" for '
        "the text alone.",
    ] = "privsyn-lm"
    teacher_rest: Annotated[
        Literal["lumped", "dropped"],
        'what the other tokens are: "lumped": one class; "dropped": nothing follows but the kept '
        "ones.",
    ] = "lumped"

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

    @property
    def first_model(self) -> str:
        """What the rounds begin from, as a folder or a name."""
        return located(self.initial_model or self.model)

    @classmethod
    def wang(
        cls,
        *,
        epsilon: Literal["1.77", "18.71"] = "1.77",
        **overrides: Any,
    ) -> Self:
        """The paper's settings, as far as it prints them: 100 of 342,000 users in a round, once.

        Noise, rounds and accounting as printed: one tree over all 1,600 rounds. So are a user's
        batches and samples, and the teacher, share and steps of the public text. What the paper
        does not print (optimisers, rates, clip norm, beta) is this package's.

        Args:
            epsilon: as printed.
            overrides: further settings.

        Raises:
            ConfigError: no such epsilon is printed.
        """
        preset: dict[str, Any] = {
            **wang_federation(epsilon),
            "least_row_tokens": 1,
            "select_share": 0.0008,
            "student_steps": 8_000,
            "student_batch_size": 128,
            "teacher_rest": "dropped",
            **overrides,
        }
        return cls(**preset)

    def distillation(self) -> Distillation | None:
        """What it is taught by; None for nothing but the text."""
        from flower_privsyn.training.distillation import Distillation

        if not self.teacher:
            return None
        return Distillation(
            located(self.teacher),
            beta=TEACHER_BETA,
            top_k=TEACHER_TOP_K,
            rest=self.teacher_rest,
        )
