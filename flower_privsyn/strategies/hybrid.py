"""Hybrid: a joint sketch makes the student, and DP-FTRL trains it, in one budget.

Ours. Everybody is asked once what their text is made of; by that release public text is chosen and
a student is trained on it. The rounds that follow are DP-FTRL, from this student in place of the
public model. What counts of tokens cannot say, updates may; what updates would spend rounds on,
the student has already learnt.

Papers: those of `flower_privsyn.strategies.joint_sketch` and `flower_privsyn.strategies.dp_ftrl`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, final

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le, Lt

from flower_privsyn.files import replacing, write_json
from flower_privsyn.models.bias import Bigrams, LogitBias
from flower_privsyn.privacy import Phase, Plan, RandomSource
from flower_privsyn.private_path.engine import PrivateSumStrategy
from flower_privsyn.private_path.method import Outline, Question, RecordSource, Workplace, need
from flower_privsyn.private_path.needs import Look, Needs
from flower_privsyn.private_path.release import ReleasedSum
from flower_privsyn.queries import Query
from flower_privsyn.runs.rounds import PLAIN_MODEL, TRAINED_MODEL, RoundFiles
from flower_privsyn.strategies.dp_ftrl import CorrelatedTraining
from flower_privsyn.strategies.parts.correlated_training import CorrelatedTrainingConfig
from flower_privsyn.strategies.parts.federated_training import ServerState
from flower_privsyn.strategies.parts.first_release import (
    FIRST_ROUND,
    check_stated_noise,
    first_then_training,
    multiplier_of_share,
)
from flower_privsyn.strategies.parts.outlines import about_tokens, sketch_needs
from flower_privsyn.strategies.parts.sketch_settings import SketchedStudentConfig
from flower_privsyn.strategies.parts.sketched_student import SketchedStudent, check_student
from flower_privsyn.strategies.parts.sketched_text import SketchedText

if TYPE_CHECKING:
    from flower_privsyn.training.local import LocalModel

logger = logging.getLogger("flwr.privsyn")

#: What was made of the sketch, and the rounds that train begin with, below the run directory.
_STUDENT: Final = "models/student"


@dataclass(frozen=True, kw_only=True)
class HybridConfig(CorrelatedTrainingConfig, SketchedStudentConfig):
    """Settings of `Hybrid`: those of `JointSketch` but for what it writes, and those of `DPFTRL`.

    The first of the rounds asks for the sketch, all others train.
    """

    num_rounds: Annotated[
        int, Ge(2), "rounds of the run: one for the sketch, and all others train."
    ] = 21
    sampling: Annotated[
        Literal["cyclic"],
        "who takes part in a round of training: users are dealt to `min_separation` groups that "
        "take turns. Everybody is asked for the sketch.",
    ] = "cyclic"  # type: ignore[assignment]
    noise_multiplier: Annotated[
        float | None,
        "of the rounds that train: standard deviation of the fresh part of a round's noise over "
        "the clip norm. It needs `sketch_noise_multiplier` beside it.",
    ] = None
    model: Annotated[
        str,
        "causal language model that is trained, at the server and then on the nodes; a bundled "
        "short name, a path, or a hub name. The sketch counts its tokens.",
    ] = "privsyn-tiny"
    sketch_share: Annotated[
        float,
        Gt(0),
        Lt(1),
        "f, the part of the budget that the sketch has: its noise is that of a single release of "
        "the whole budget over the root of f, and all rounds that train together have that over "
        "the root of 1 - f.",
    ] = 0.4
    sketch_noise_multiplier: Annotated[
        float | None,
        Ge(0),
        Le(1e6),
        "standard deviation of the sketch's noise over the length of an answer, in place of "
        "`sketch_share`.",
    ] = None

    def __post_init__(self) -> None:
        """Check every value on its own and against the others."""
        super().__post_init__()
        check_stated_noise(self, key="sketch-noise-multiplier", stated=self.sketch_noise_multiplier)

    def sketch_multiplier(self) -> float:
        """The noise multiplier of the sketch: as it is stated, or as it follows from its share.

        Raises:
            ConfigError: no noise keeps the budget.
        """
        if self.sketch_noise_multiplier is not None:
            return self.sketch_noise_multiplier
        return multiplier_of_share(self, self.sketch_question(), share=self.sketch_share)


@final
class Hybrid(PrivateSumStrategy):
    """Ask once, make a student of the release, and train it on the users' own text.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            config = HybridConfig(epsilon=1.0, num_users=3000, min_separation=4, num_nodes=50)
            Hybrid(config).start(grid)
        ```
    with `clientapp = "flower_privsyn.client_apps.training:app"`. In the run directory:
    `models/student`, made of the release; `models/plain`, as the last round left it;
    `models/final`, the same with the bias of its logits that says what of the release it lacks.

    Formal guarantee:
        Unit: user; relation: `config.relation`. One Gaussian release of a sum of L2 sensitivity 1
        that everybody is in, and `num_rounds` - 1 rounds of clipped updates under correlated noise,
        which are one Gaussian mechanism as for `DPFTRL`, compose to (epsilon, delta): a user pays
        for both. Choosing public text, training the student and its bias are post-processing.

    Args:
        config: the settings.
        random: source of noise; only tests pass one.
    """

    def __init__(self, config: HybridConfig, *, random: RandomSource | None = None) -> None:
        HybridConfig.refuse_other(config, strategy="Hybrid")
        super().__init__(config, SketchThenTraining(config), random=random)


class SketchThenTraining(CorrelatedTraining):
    """The server's half of `Hybrid`.

    Args:
        config: the settings.
    """

    config: HybridConfig

    def __init__(self, config: HybridConfig) -> None:
        super().__init__(config)
        self._text: SketchedText | None = None
        self._made: SketchedStudent | None = None
        self._begun: LocalModel | None = None
        self._bias: LogitBias | None = None

    @property
    def queries(self) -> tuple[Query, ...]:
        """The counts, and updates clipped to the first clip norm."""
        return (self.config.sketch_question(), *super().queries)

    def phases(self, population: int) -> tuple[Phase, ...]:
        """One round for the sketch, and those that train."""
        counts, updates = self.queries
        return first_then_training(
            self.config,
            population,
            name="sketch",
            query=counts,
            multiplier=self.config.sketch_multiplier(),
            updates=updates,
        )

    def describe(self, plan: Plan) -> list[str]:
        """What the sketch has of the budget, and what the correlation does."""
        sketch = plan.phases[0]
        multiplier = sketch.noise_multiplier or 0.0
        asked = f"sketch: everybody, once; noise multiplier {multiplier:.5g}"
        return [asked, *super().describe(plan)]

    def needs(self) -> Needs:
        """The model, its teacher and public text."""
        config, training = self.config, super().needs()
        sketch = sketch_needs(
            model=config.model,
            teacher=config.teacher,
            generator="",
            public_text=config.public_text,
            rows=config.chosen_rows(),
            prompt="",
        )
        return replace(
            sketch,
            models=tuple(dict.fromkeys((*training.models, *sketch.models))),
            libraries=tuple(dict.fromkeys((*training.libraries, *sketch.libraries))),
        )

    def outline(self, look: Look) -> Outline:
        """The counts, then updates of all that is trained, under the bias."""
        config, training = self.config, super().outline(look)
        counts = about_tokens(
            config.sketch_question(), num_bigrams=config.num_bigrams, model=config.model, look=look
        )
        bias: dict[str, npt.NDArray[Any]] = {}
        if self._trains_biased:
            size = look.vocabulary(config.model)
            pairs = None
            if config.bigram_bias and config.num_bigrams:
                every = np.arange(min(config.num_bigrams, size**2))
                pairs = Bigrams.of_pairs(*divmod(every, size), 0.0 * every, vocabulary=size)
            zeros = np.zeros(size, dtype=np.float32)
            bias = LogitBias(tokens=zeros, bigrams=pairs).arrays()

        def question(number: int) -> Question:
            if number == FIRST_ROUND:
                return counts.question(number)
            updates = training.question(number)
            return Question(updates.query, {**updates.broadcast, **bias})

        return Outline(
            sources=(*counts.sources, *training.sources),
            question=question,
            at_most=counts.at_most,
        )

    # ------------------------------------------------------------------ before the first round

    def prepare(self, place: Workplace) -> tuple[RecordSource, ...]:
        """Load the model, read the public text, and refuse what could not work later."""
        check_student(self.config, self.config.initial_model or self.config.model)
        sources = super().prepare(place)
        # Of an earlier start, whose release may be that of another run.
        self._made = self._begun = self._bias = None
        self._text = SketchedText(self.config, place)
        self._text.refuse_short_rows()
        return (self._text.source, *sources)

    def first(self) -> Question:
        """The tables of tokens and bigrams, which are public."""
        super().first()
        return self._need_text().question

    # ------------------------------------------------------------------ the student

    def following(self, release: ReleasedSum, *, last: bool) -> Question | None:
        """The student's parameters after the sketch; after every other round a step."""
        number = release.round_number
        if number != FIRST_ROUND:
            return super().following(release, last=last)
        self.carry_over(number)
        write_json(RoundFiles(self.run.round_dir(number)).server, self._student().figures)
        return self.restore(number + 1)

    def restore(self, round_number: int) -> Question:
        """What a round asks whose predecessor is over."""
        if round_number == FIRST_ROUND:
            return self._need_text().question
        return super().restore(round_number)

    def next_start(self, state: ServerState, number: int) -> ServerState:
        """The student behind the sketch; where that was lost, the public model as it is."""
        if number != FIRST_ROUND:
            return state
        if not self._is_released:
            logger.warning("the sketch was lost: the rounds that train begin with the public model")
            return state
        config = self.config
        begins = config.initial_model or config.model
        self._student().train(begins, self.run.path / _STUDENT)
        return replace(state, parameters=self.base_of(number + 1).parameters)

    def base_moved(self, number: int) -> bool:
        """Whether nodes train on a base that public text made: in every round that trains."""
        return number > FIRST_ROUND

    def base_of(self, number: int) -> LocalModel:
        """The student, in the rounds that train."""
        if number <= FIRST_ROUND or not self._is_released:
            return super().base_of(number)
        if self._begun is None:
            self._begun = self.loaded(self.run.path / _STUDENT)
        return self._begun

    @property
    def _trains_biased(self) -> bool:
        """Whether nodes train with a bias of the logits, once there is a release."""
        return bool(self.config.token_bias or self.config.bigram_bias)

    def beside(self, number: int) -> dict[str, npt.NDArray[Any]]:
        """The student, where not all of it is trained, and what it lacks of the release."""
        found = super().beside(number)
        if number <= FIRST_ROUND or not self._is_released or not self._trains_biased:
            return found
        return {**found, **self._lacking().arrays()}

    def _lacking(self) -> LogitBias:
        """What the student lacks of the release, read once: rounds and result have the same."""
        from safetensors.numpy import load_file, save_file

        from flower_privsyn.training.tokens import first_token

        if self._bias is None:
            file, model = RoundFiles(self.run.round_dir(FIRST_ROUND)).bias, self.model
            if not file.exists():
                bias = self._student().bias_of(self.run.path / _STUDENT)
                bias = bias.for_model(model.predicted, first_token=first_token(model.tokenizer))
                with replacing(file) as temporary:
                    save_file(bias.arrays(), temporary)
            self._bias = need(LogitBias.of_arrays(load_file(file)))
        return self._bias

    def written(self, model: LocalModel, parameters: npt.NDArray[np.float32]) -> dict[str, Any]:
        """Write the model, and with it the bias under which it was trained, or which it lacks."""
        if not self._is_released:
            return super().written(model, parameters)
        plain = self.run.path / PLAIN_MODEL
        with self._need_place().progress.stage("Write the model", total=None):
            model.save(plain, parameters)
        student, final = self._student(), self.run.path / TRAINED_MODEL
        if self._trains_biased:
            from flower_privsyn.training.bias import save_biased

            save_biased(plain, final, self._lacking())
        else:
            student.add_bias(plain, final)
        return {
            **student.figures,
            "model": TRAINED_MODEL,
            "plain_model": PLAIN_MODEL,
            "student_model": _STUDENT,
        }

    @property
    def _is_released(self) -> bool:
        return self._made is not None or self._need_place().released(FIRST_ROUND) is not None

    def _student(self) -> SketchedStudent:
        """What the release chose; chosen again where a run is resumed, which is free."""
        if self._made is None:
            release = self._need_place().released(FIRST_ROUND)
            if release is None:
                raise RuntimeError("there is no release to make a student of")
            self._made = SketchedStudent(self.config, self._need_text(), [release.of_users])
        return self._made

    def _need_text(self) -> SketchedText:
        return need(self._text)
