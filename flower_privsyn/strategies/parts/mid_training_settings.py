"""Settings of public mid-training: those of DP-FTRL, its halves, and the public text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import NonNegativeInt, PositiveFloat, PositiveInt
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located
from flower_privsyn.privacy import DisjointCyclicSampling, Sampling
from flower_privsyn.strategies.parts.correlated_training import (
    CorrelatedTrainingConfig,
    wang_federation,
)
from flower_privsyn.strategies.parts.student import StudentConfig

if TYPE_CHECKING:
    from flower_privsyn.training.distillation import Distillation


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
    cohorts: Annotated[
        Literal["disjoint", "everybody"],
        'for position = "middle": who takes part in the second half: "disjoint": users who did not '
        'in the first, so that both cost the larger one of them; "everybody": the same users '
        "again, so that both costs are added up.",
    ] = "disjoint"
    noise_stream: Annotated[
        Literal["restart", "continue"],
        'for position = "middle": whether the noise of the second half begins anew, or '
        '("continue", as the paper accounts for it) takes up that of the first: one mechanism over '
        "all rounds.",
    ] = "restart"
    public_text: Annotated[
        str,
        'text to train on, with no person\'s data, of any size: "bundled", a JSONL file with '
        "`text`, a folder, or a data set by name (docs/distillation.md).",
    ] = "bundled"
    public_rows: Annotated[
        Literal["matched", "contrasted", "random", "all"],
        '"matched": the public rows that the model of the rounds so far and `public_model` find '
        'likeliest (distribution matching); "contrasted": those that the rounds so far made '
        'likeliest, against the model they began from; "random": as many drawn at random; "all": '
        "every row of `least_row_tokens`. Rows that are there twice count once.",
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
    row_lengths: Annotated[
        Literal["average", "sum"],
        'how lengths count in a row\'s score: "average" over its tokens, as printed; "sum": the '
        "log-probability of the whole row.",
    ] = "average"
    teacher: Annotated[
        str,
        'causal language model with the same tokens that teaches it on the public text; "" for '
        "the text alone.",
    ] = "privsyn-lm"
    teacher_beta: Annotated[
        PositiveFloat, "weight of the teacher beside the whole loss of the text."
    ] = 0.1
    teacher_alone: Annotated[bool, "learn from the teacher and not from the text."] = False
    teacher_top_k: Annotated[
        PositiveInt, "the teacher's largest probabilities kept at a position; 10 as printed."
    ] = 10
    teacher_rest: Annotated[
        Literal["lumped", "drawn", "dropped"],
        'what the other tokens are: "lumped": one class; "drawn": a draw of 16 stands for them; '
        '"dropped": nothing follows but the kept ones.',
    ] = "lumped"
    teacher_temperature: Annotated[PositiveFloat, "of both models in the divergence."] = 1.0

    def __post_init__(self) -> None:
        """Check every value on its own and against the others."""
        super().__post_init__()
        if self.teacher_alone and not self.teacher:
            raise ConfigError('teacher-alone = true needs a teacher, got teacher = ""')
        self._check_place()
        self._check_halves()

    def _check_place(self) -> None:
        if self.position != "middle" and self.first_rounds:
            raise ConfigError(
                f'first-rounds = {self.first_rounds} needs position = "middle", got position = '
                f'"{self.position}"'
            )
        if self.position == "middle" and not 1 <= self.rounds_of_halves[0] < self.num_rounds:
            raise ConfigError(
                f"first-rounds = {self.first_rounds} must be from 1 to num-rounds - 1 = "
                f'{self.num_rounds - 1}, or 0 for half of them; position = "before" or "after" '
                "trains on public text before the first round or after the last"
            )
        if self.position == "before" and self.public_rows in ("matched", "contrasted"):
            raise ConfigError(
                f'public-rows = "{self.public_rows}" needs rounds before the public text, got '
                'position = "before": choose "random" or "all"'
            )

    def _check_halves(self) -> None:
        """Refuse halves whose cohorts or turns cannot be."""
        if self.position != "middle" or self.cohorts == "everybody":
            return
        if not self.in_halves:
            if self.min_separation < self.num_rounds:
                raise ConfigError(
                    'noise-stream = "continue" with cohorts = "disjoint" needs every user to take '
                    f"part once at most: min-separation = {self.min_separation} must be at least "
                    f"num-rounds = {self.num_rounds}"
                )
            return
        if self.relation == "replace-one":
            raise ConfigError(
                'cohorts = "disjoint" needs relation = "zero-out" or "add-remove", got '
                '"replace-one": who takes a user\'s place may be of the other half'
            )
        if self.min_separation < 2:
            raise ConfigError(
                'cohorts = "disjoint" needs groups to share among the halves: min-separation must '
                f"be at least 2, got {self.min_separation}"
            )
        groups, rounds = self.groups_of_halves, self.rounds_of_halves
        turns = max(-(-one // many) for one, many in zip(rounds, groups, strict=True))
        if 0 < self.max_participations < turns:
            raise ConfigError(
                f"max-participations = {self.max_participations} is less than the {turns} turns of "
                f"a user in a half of {max(rounds)} rounds: use fewer rounds or a larger "
                "min-separation"
            )
        fewest = min(groups)
        if self.noise_bands > fewest:
            raise ConfigError(
                f"noise-bands = {self.noise_bands} must be at most the {fewest} groups of the "
                f'smaller half (min-separation = {self.min_separation}, cohorts = "disjoint")'
            )

    @property
    def rounds_before(self) -> int | None:
        """Rounds before the training on public text; None where it ends the run or is none."""
        if self.position == "middle":
            return self.first_rounds or self.num_rounds // 2
        return 0 if self.position == "before" else None

    @property
    def in_halves(self) -> bool:
        """Whether the rounds are two mechanisms."""
        return self.position == "middle" and self.noise_stream == "restart"

    @property
    def rounds_of_halves(self) -> tuple[int, int]:
        """T' and T - T'."""
        first = self.rounds_before or 0
        return first, self.num_rounds - first

    @property
    def groups_of_halves(self) -> tuple[int, int]:
        """How many of the `min_separation` groups are of each half, as its rounds are."""
        first, _ = self.rounds_of_halves
        groups = self.min_separation
        share = min(max(1, round(groups * first / self.num_rounds)), groups - 1)
        return share, groups - share

    def samplings_of_halves(self, population: int) -> tuple[Sampling, Sampling]:
        """Who takes part in each half.

        Args:
            population: users on the roster.
        """
        if self.cohorts == "everybody":
            again = self.sampling_of(population)
            return again, again
        first, second = self.rounds_of_halves
        return tuple(  # type: ignore[return-value]
            DisjointCyclicSampling(
                groups=self.groups_of_halves,
                share=share,
                first_round=1 + share * first,
                rounds=rounds,
                salt=self.salt,
                population=population,
            )
            for share, rounds in enumerate((first, second))
        )

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
            "tree_restart": 1_600,
            "noise_stream": "continue",
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
        loss: dict[str, Any] = (
            {"weight": 1.0} if self.teacher_alone else {"beta": self.teacher_beta}
        )
        return Distillation(
            located(self.teacher),
            top_k=self.teacher_top_k,
            rest=self.teacher_rest,
            temperature=self.teacher_temperature,
            **loss,
        )
