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
        before="student.add_bias(plain, final)",
        after="student.add_bias(self.run.path / _STUDENT, final)",
        tests=(f"{TESTS}::TestTheStudent",),
    ),
    Mutation(
        name="the result has another bias than the rounds had",
        file=HYBRID,
        function="SketchThenTraining.written",
        before="save_biased(plain, final, self._lacking())",
        after="student.add_bias(plain, final)",
        tests=(f"{TESTS}::TestTheStudent",),
    ),
    Mutation(
        name="nodes are not told the bias",
        file=HYBRID,
        function="SketchThenTraining.beside",
        before="return {**found, **self._lacking().arrays()}",
        after="return found",
        tests=(f"{TESTS}::TestTheStudent",),
    ),
    Mutation(
        name="nodes train without the bias that they were told",
        file="flower_privsyn/client_apps/training.py",
        function="_Tokens.cohorts",
        before="model.set_bias(LogitBias.of_arrays(ask.broadcast))",
        after="model.set_bias(None)",
        tests=(f"{TESTS}::TestTheStudent",),
    ),
    Mutation(
        name="a bias stays for the next request",
        file="flower_privsyn/training/local.py",
        function="LocalModel.set_bias",
        before="self._bias = None",
        after="pass",
        tests=("tests/training/test_local.py::TestWhatIsTrained",),
    ),
    Mutation(
        name="a bias with which nodes trained may be changed",
        file=HYBRID,
        function="SketchThenTraining.free_settings",
        before='all_released and self.config.bias_comes == "after"',
        after="all_released",
        tests=(f"{TESTS}::TestKilled",),
    ),
    Mutation(
        name="what the student was trained on may be changed when all is released",
        file=HYBRID,
        function="SketchThenTraining.free_settings",
        before='free |= {"token-bias", "bigram-bias"}',
        after='free |= {"token-bias", "bigram-bias", "select-share"}',
        tests=(f"{TESTS}::TestKilled",),
    ),
    Mutation(
        name="pairs may come twice, and one token have as many as there is time",
        file="flower_privsyn/models/bias.py",
        function="Bigrams._is_table",
        before="return bool((np.diff(keys) > 0).all())",
        after="return True",
        tests=("tests/queries/test_model_delta.py::TestQuestion",),
    ),
    Mutation(
        name="rows of pairs may begin anywhere",
        file="flower_privsyn/models/bias.py",
        function="Bigrams._is_table",
        before="0 <= starts.min() <= starts.max() <= len(tokens)",
        after="True",
        tests=("tests/queries/test_model_delta.py::TestQuestion",),
    ),
    Mutation(
        name="updates are asked of records without a model",
        file="flower_privsyn/private_path/method.py",
        function="RecordSource.suits",
        before="if query.trains != (self.trains is not None):\n        return False",
        after="pass",
        tests=(f"{TESTS}::TestTheStudent",),
    ),
    Mutation(
        name="a hybrid that is started again makes its student of another run's release",
        file=HYBRID,
        function="SketchThenTraining.prepare",
        before="self._made = self._begun = self._bias = None",
        after="pass",
        tests=(
            "tests/strategies/test_started_again.py::test_a_student_is_of_the_run_s_own_release",
        ),
    ),
    Mutation(
        name="votes choose among candidates that nobody was asked about",
        file="flower_privsyn/strategies/parts/evolution.py",
        function="Evolution.prepare",
        before="self._population = None",
        after="pass",
        tests=(
            "tests/strategies/test_started_again.py::test_votes_are_for_the_candidates_that_another_process_has_asked_about",
        ),
    ),
    Mutation(
        name="the setting generator stands for the app's object that varies what survives",
        file="flower_privsyn/strategies/parts/evolution.py",
        function="Evolution._asks_generator",
        before="self._given_variation is None",
        after="self._variation is None",
        tests=("tests/private_path/test_writers.py",),
    ),
    Mutation(
        name="a second run begins with the model that the first one has trained",
        file="flower_privsyn/strategies/parts/federated_training.py",
        function="FederatedTraining.prepare",
        before="self._model = self._initial = None",
        after="pass",
        tests=(
            "tests/strategies/test_started_again.py::test_another_run_is_as_of_a_new_object[dp-fedavg]",
        ),
    ),
)
