"""Mistakes in the hybrid: in its two phases, its student, and what a resumed run does."""

from __future__ import annotations

from mutation import Mutation

HYBRID = "flower_privsyn/strategies/hybrid.py"
TESTS = "tests/strategies/test_hybrid.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="the sketch has the noise of the training's share",
        file=HYBRID,
        function="HybridConfig.sketch_multiplier",
        before="share=self.sketch_share",
        after="share=1.0 - self.sketch_share",
        tests=(f"{TESTS}::TestTheBudget",),
    ),
    Mutation(
        name="the rounds begin with the public model, whatever was released",
        file=HYBRID,
        function="SketchThenTraining.next_start",
        before="return replace(state, parameters=self.base_of(number + 1).parameters)",
        after="return state",
        tests=(f"{TESTS}::TestTheStudent",),
    ),
    Mutation(
        name="nodes train adapters on the model that was there before the student",
        file=HYBRID,
        function="SketchThenTraining.base_moved",
        before="return number > FIRST_ROUND",
        after="return False",
        tests=(f"{TESTS}::TestTheStudent",),
    ),
    Mutation(
        name="a student is made of a sketch that was lost",
        file=HYBRID,
        function="SketchThenTraining.next_start",
        before="if not self._is_released:",
        after="if False:",
        tests=(f"{TESTS}::TestTheStudent",),
    ),
    Mutation(
        name="the bias is of the student, and not of the model that is written",
        file=HYBRID,
        function="SketchThenTraining.written",
        before="student.add_bias(plain, self.run.path / TRAINED_MODEL)",
        after="student.add_bias(self.run.path / _STUDENT, self.run.path / TRAINED_MODEL)",
        tests=(f"{TESTS}::TestTheStudent",),
    ),
    Mutation(
        name="what the student was trained on may be changed when all is released",
        file=HYBRID,
        function="SketchThenTraining.changeable_once_released",
        before='frozenset({"token-bias", "bigram-bias"})',
        after='frozenset({"token-bias", "bigram-bias", "select-share"})',
        tests=(f"{TESTS}::TestKilled",),
    ),
    Mutation(
        name="updates are asked of records without a model",
        file="flower_privsyn/private_path/method.py",
        function="RecordSource.suits",
        before="if query.trains != (self.trains is not None):\n        return False",
        after="pass",
        tests=(f"{TESTS}::TestTheStudent",),
    ),
)
