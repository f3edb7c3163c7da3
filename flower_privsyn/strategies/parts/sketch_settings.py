"""Settings of the joint sketch: what is asked, and what is made of the release."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import OrZero
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located
from flower_privsyn.generation.generator_settings import ExpandingSettings
from flower_privsyn.private_path.needs import ChosenRows
from flower_privsyn.queries import JointSketch as JointSketchQuery
from flower_privsyn.strategies.parts.student import StudentConfig

if TYPE_CHECKING:
    from flower_privsyn.strategies.parts.token_sketch import TokenSketch
    from flower_privsyn.training.distillation import Distillation
    from flower_privsyn.training.selection import Rows, Scorer, Selection


@dataclass(frozen=True, kw_only=True)
class SketchedStudentConfig(StudentConfig):
    """Settings of what is asked, of the public text that is chosen, and of the student."""

    delta: float = 3e-6
    max_samples: int = 64
    model: Annotated[
        str,
        "student: a bundled name, a folder or a hub name of a causal language model. The sketch "
        "counts its tokens.",
    ] = "privsyn-tiny"
    max_tokens_per_user: Annotated[
        int, Ge(1), Le(2**24), "tokens of one user that count, the first ones over all samples."
    ] = 1024
    max_occurrences: Annotated[
        int,
        OrZero("no bound"),
        Ge(1),
        "times that one token or pair of a user counts: what every text repeats leaves more of an "
        "answer's length to what differs.",
    ] = 4
    num_bigrams: Annotated[
        int,
        OrZero("tokens alone"),
        Ge(2),
        Le(2**22),
        "most frequent bigrams of the public text that are counted; their table travels down.",
    ] = 16_384
    bigram_share: Annotated[
        float, Ge(0), Le(1), "the bigrams' part of the squared norm of an answer; 0 without any."
    ] = 0.5
    public_text: Annotated[
        str,
        'text to choose from: "bundled", or a JSONL file with `text` and no person\'s data; of any '
        "size. Also a folder or a data set by name (docs/own_data.md).",
    ] = "bundled"
    select_share: Annotated[
        float,
        Gt(0),
        Le(1),
        "share of the public rows that are chosen.",
    ] = 0.015
    least_selected: Annotated[
        int,
        Ge(1),
        "rows that are chosen at least, where there are so many: a student that reads few rows "
        "again and again learns them by heart.",
    ] = 2000
    least_row_tokens: Annotated[
        int,
        Ge(1),
        "rows with fewer tokens are not chosen, and written texts are the last to be kept: their "
        "scores are the noisiest.",
    ] = 32
    most_overlap: Annotated[
        float,
        Gt(0),
        Le(1),
        "a row of whose 8-grams more than this share are in rows chosen before is left out.",
    ] = 0.5
    teacher: Annotated[
        str,
        'causal language model with the student\'s tokens that teaches it on the chosen text; "" '
        "for none.",
    ] = "privsyn-lm"
    teacher_steps: Annotated[
        int,
        OrZero("the teacher as it is"),
        Ge(1),
        "steps in which the teacher itself first learns from the chosen text; then it gets what it "
        "lacks in its logits, as the student does.",
    ] = 0
    token_bias: Annotated[
        float,
        Ge(0),
        "what is added to the student's logits, times this: the log-ratios of how often users "
        "write each token to how often the student does. A release that tells little is trusted "
        "less, and adds less.",
    ] = 1.0
    bigram_bias: Annotated[float, Ge(0), "the same of the bigrams' log-ratios."] = 1.0

    def __post_init__(self) -> None:
        """Check the values against one another."""
        super().__post_init__()
        if bool(self.num_bigrams) != (self.bigram_share > 0):
            raise ConfigError(
                "num-bigrams and bigram-share go together: both 0 for tokens alone; got num-bigrams"
                f" = {self.num_bigrams} and bigram-share = {self.bigram_share:g}"
            )
        if self.teacher_steps and not self.teacher:
            raise ConfigError(
                f'teacher-steps = {self.teacher_steps} needs a teacher, got teacher = ""'
            )
        self.sketch_question()

    def sketch_question(self) -> JointSketchQuery:
        """The query these settings ask."""
        return JointSketchQuery(
            bigram_share=self.bigram_share,
            max_tokens_per_user=self.max_tokens_per_user,
            max_occurrences=self.max_occurrences,
        )

    def distillation(self) -> Distillation | None:
        """What the student is taught by; None for nothing but the text."""
        from flower_privsyn.training.distillation import Distillation

        return Distillation(located(self.teacher)) if self.teacher else None

    def scorer_of_long_rows(self, sketch: TokenSketch) -> Scorer:
        """How much a text is like the users'; -inf for fewer tokens than `least_row_tokens`.

        Args:
            sketch: what was released.
        """
        scorer = sketch.scorer()

        def score(rows: Rows) -> npt.NDArray[np.float64]:
            short = np.array([len(row) < self.least_row_tokens for row in rows.tokens])
            return np.where(short, -np.inf, scorer(rows))

        return score

    def chosen_rows(self) -> ChosenRows:
        """Which rows of the public text may be chosen, and how many are at least."""
        return ChosenRows(
            model=self.model,
            max_tokens=self.max_tokens,
            least_tokens=self.least_row_tokens,
            fewest=self.least_selected,
        )

    def choose(self, chunks: Iterable[Rows], sketch: TokenSketch, *, num_rows: int) -> Selection:
        """Choose public rows by a release.

        Args:
            chunks: of the public text.
            sketch: what was released.
            num_rows: of the public text.
        """
        from flower_privsyn.training.selection import SelectionRule, select

        rule = SelectionRule(
            count=max(SelectionRule.count_of(self.select_share, num_rows), self.least_selected),
            most_overlap=self.most_overlap,
        )
        return select(chunks, self.scorer_of_long_rows(sketch), rule)


@dataclass(frozen=True, kw_only=True)
class JointSketchConfig(ExpandingSettings, SketchedStudentConfig):
    """Settings of `JointSketch`.

    `num_rounds` counts releases: one by default, with the whole budget. The defaults were set on
    public text alone (research/README.md has the figures).
    """

    # How public text is chosen, the student made of it, and what `synthetic.jsonl` is to hold.
    afterwards = frozenset(
        {
            "select-share",
            "least-selected",
            "least-row-tokens",
            "most-overlap",
            "student-steps",
            "student-batch-size",
            "student-learning-rate",
            "teacher",
            "teacher-steps",
            "token-bias",
            "bigram-bias",
            "synthesis",
            "synthetic-samples",
            "generator",
            "generator-interface",
            "generator-parameters",
            "best-of",
            "generator-steps",
            "generator-bias",
            "prompt",
            "temperature",
            "top-p",
            "max-new-tokens",
        }
    )

    num_rounds: int = 1
    synthesis: Annotated[
        Literal["selected", "written"],
        "what synthetic.jsonl holds: the best of the chosen public rows, or text that `generator` "
        "wrote after them, of which the best by the same score are kept.",
    ] = "selected"
    synthetic_samples: Annotated[int, Ge(1), "texts of synthetic.jsonl."] = 2000
    generator: Annotated[
        str,
        'causal language model that writes, for synthesis = "written": a name, a folder, '
        '"gguf:FILE", or "http://host:port/v1#model".',
    ] = "smollm2-135m"
    best_of: Annotated[
        int, Ge(1), "texts that are written for each one that is kept; 1 keeps all of them."
    ] = 2
    generator_steps: Annotated[
        int,
        OrZero("the generator as it is"),
        Ge(1),
        "steps in which the generator first learns from whole sentences of the chosen text, for a "
        "model that runs in this process: LoRA adapters, or all weights of a bundled model.",
    ] = 0
    generator_bias: Annotated[
        float,
        Ge(0),
        "what is added to the generator's logits, times this, where its tokens are the student's: "
        "how much more often users write each token than it does.",
    ] = 1.0
    prompt: Annotated[
        str,
        "the generator's prompt, a bundled name or a JSON file; it is shown whole sentences of the "
        'chosen text. "" for a generator that learnt from them (`generator-steps`): it begins anew '
        "every time, and what repeats itself or holds no whole sentence is dropped.",
    ] = "pre-text"
    temperature: Annotated[float, Gt(0), "sampling temperature of the generator."] = 1.0
    top_p: Annotated[float, Gt(0), Le(1), "nucleus of the generator."] = 1.0
    max_new_tokens: Annotated[int, Ge(1), "tokens of the generator per text."] = 85

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if self.synthesis == "written" and not (self.prompt or self.generator_steps):
            raise ConfigError(
                'prompt = "" is for a generator that learns from the chosen text first: give '
                'generator-steps above 0, or prompt = "pre-text"'
            )
        if not self.prompt and self.generator_interface == "chat":
            raise ConfigError(
                'generator-interface = "chat" answers a prompt, got prompt = "": give "pre-text"'
            )
