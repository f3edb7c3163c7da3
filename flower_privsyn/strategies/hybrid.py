"""Hybrid: a joint sketch makes the student, and DP-FTRL trains it, in one budget.

Ours. Everybody is asked once what their text is made of; by that release public text is chosen and
a student is trained on it. The rounds that follow are DP-FTRL, from this student in place of the
public model. What counts of tokens cannot say, updates may; what updates would spend rounds on,
the student has already learnt.

Papers: those of `flower_privsyn.strategies.joint_sketch` and `flower_privsyn.strategies.dp_ftrl`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, final

import numpy as np
import numpy.typing as npt

from flower_privsyn.files import write_json
from flower_privsyn.models.bias import LogitBias, bigram_table
from flower_privsyn.queries import Broadcast, Query
from flower_privsyn.run.directory import PLAIN_MODEL, TRAINED_MODEL, RoundFiles
from flower_privsyn.run.method import Question, RecordSource, ReleasedSum, RunContext, State, need
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies._first_release import (
    FIRST_ROUND,
    FirstReleaseConfig,
    ReleaseThenTraining,
)
from flower_privsyn.strategies._token_sketch import (
    SketchedStudent,
    SketchedStudentConfig,
    SketchedText,
    check_student,
)
from flower_privsyn.training.bias import save_biased

#: What was made of the sketch, and the rounds that train begin with, below the run directory.
_STUDENT: Final = "models/student"

#: Begins the names of the arrays of a bias, in the state.
_BIAS: Final = "bias: "


@dataclass(frozen=True, kw_only=True)
class HybridConfig(FirstReleaseConfig, SketchedStudentConfig):
    """Settings of `Hybrid`: those of `JointSketch` but for what it writes, and those of `DPFTRL`.

    The first of the rounds asks for the sketch, all others train.
    """

    sampling: Literal["cyclic"] = "cyclic"  # type: ignore[assignment]
    """Who takes part in a round of training: users are dealt to `min_separation` groups that take
    turns. Everybody is asked for the sketch.
    """
    model: str = "privsyn-tiny"
    """Causal language model that is trained, at the server and then on the nodes; a bundled short
    name, a path, or a hub name. The sketch counts its tokens.
    """
    first_share: float = 0.4


class SketchThenTraining(ReleaseThenTraining):
    """The server's half of `Hybrid`.

    Args:
        config: the settings.
    """

    config: HybridConfig
    first_phase = "sketch"

    def __init__(self, config: HybridConfig) -> None:
        super().__init__(config)
        self._text: SketchedText | None = None
        self._made: SketchedStudent | None = None

    @property
    def queries(self) -> tuple[Query, ...]:
        """The counts, and updates clipped to the first clip norm."""
        return (self.config.sketch_question(), *super().queries)

    # ------------------------------------------------------------------ before the first round

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        """Load the model, read the public text, and refuse what could not work later."""
        check_student(self.config, self.config.initial_model or self.config.model)
        sources = super().setup(place)
        self._made = None  # of an earlier start, whose release may be that of another run
        self._text = SketchedText(self.config, place)
        return (self._text.source, *sources)

    def ask(self, state: State, number: int) -> Question:
        """The tables of tokens and bigrams, which are public; then updates, under the bias."""
        if number == FIRST_ROUND:
            return need(self._text).question
        return super().ask(state, number)

    def example_states(self, scratch: Path) -> dict[int, State]:
        """The public parameters; after the sketch on the student, under a bias of all pairs."""
        begun, text = self.init(scratch), need(self._text)
        later = self.example_on(_STUDENT, begun)
        if self.config.token_bias:
            size = text.public.vocabulary
            every = np.arange(min(self.config.num_bigrams, size**2))
            pairs = bigram_table(*divmod(every, size), 0.0 * every, vocabulary=size)
            bias = LogitBias(
                tokens=np.zeros(size, dtype=np.float32), bigrams=pairs if len(every) else None
            )
            later = {**later, **{_BIAS + name: array for name, array in bias.arrays().items()}}
        return {FIRST_ROUND: begun, FIRST_ROUND + 1: later}

    # ------------------------------------------------------------------ the student

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:
        """The student's parameters after the sketch; after every other round a step.

        Where the sketch was lost, the rounds that train begin with the public model.
        """
        number = release.round_number
        if number != FIRST_ROUND:
            return super().step(state, release, scratch)
        config, student = self.config, self._student(release)
        student.train(config.initial_model or config.model, self.run.path / _STUDENT)
        write_json(RoundFiles(self.run.round_dir(number)).server, student.figures)
        begun = self.begun_from(state, _STUDENT)
        if not self.config.token_bias:
            return begun
        # Read once: rounds and result have the same.
        bias = student.bias_of(self.run.path / _STUDENT)
        return {**begun, **{_BIAS + name: array for name, array in bias.arrays().items()}}

    def arrays(self, state: State) -> Broadcast:
        """The parameters, the student where not all of it is trained, and what it lacks."""
        return {**super().arrays(state), **_bias_in(state)}

    def _student(self, release: ReleasedSum) -> SketchedStudent:
        """What the release chose; chosen again where a run is resumed, which is free."""
        if self._made is None:
            self._made = SketchedStudent(self.config, need(self._text), [release.of_users])
        return self._made

    def finish(self, state: State) -> dict[str, Any]:
        """Write the model, and with it the bias under which it was trained."""
        release = self.place.released(FIRST_ROUND)
        if release is None:
            return super().finish(state)
        figures, plain = self.written(state, PLAIN_MODEL), self.run.path / PLAIN_MODEL
        student, final = self._student(release), self.run.path / TRAINED_MODEL
        none = LogitBias(tokens=np.zeros(0, dtype=np.float32))
        save_biased(plain, final, LogitBias.of_arrays(_bias_in(state)) or none)
        return {
            **figures,
            **student.figures,
            "model": TRAINED_MODEL,
            "plain_model": PLAIN_MODEL,
            "student_model": _STUDENT,
        }


@final
class Hybrid(PrivateSumStrategy):
    """Ask once, make a student of the release, and train it on the users' own text.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            Hybrid(epsilon=1.0, num_users=3000, min_separation=4, num_nodes=50).start(grid)
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
        config: the settings, where they are not given as keywords.
        random: source of noise; only tests pass one.
        settings: by the names of the fields of `HybridConfig`.
    """

    config_class = HybridConfig
    method_class = SketchThenTraining


def _bias_in(state: State) -> dict[str, npt.NDArray[Any]]:
    """The arrays of the bias of the logits, by the names that they travel under."""
    return {name[len(_BIAS) :]: state[name] for name in state if name.startswith(_BIAS)}
