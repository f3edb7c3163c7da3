"""Mistakes by which budget would be spent without a word."""

from __future__ import annotations

from mutation import Mutation

TESTS = "tests/private_path/test_spending.py"
ENGINE = "flower_privsyn/private_path/engine.py"
MEETING = "flower_privsyn/private_path/meeting.py"
ROUNDS = "flower_privsyn/private_path/rounds.py"
CHANGES = "flower_privsyn/private_path/changes.py"
RESUME = "flower_privsyn/private_path/resume.py"
ATTENDANCE = "flower_privsyn/private_path/attendance.py"
SETTINGS = "flower_privsyn/private_path/settings.py"
SECRET_TESTS = "tests/private_path/test_secret_cohorts.py"
CHANGES_TESTS = "tests/private_path/test_changes.py"
PREFERENCE_ROUNDS = "flower_privsyn/strategies/parts/preference_rounds.py"
NOISE = "flower_privsyn/private_path/noise_check.py"
RESUME_TESTS = "tests/private_path/test_resume.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="a node takes part without knowing every question of the run",
        file="flower_privsyn/client_apps/handlers.py",
        function="_Node._asked",
        before="    if unknown:\n        logger.error(",
        after="    if False:\n        logger.error(",
        tests=(f"{TESTS}::TestUnknownQuestions",),
    ),
    Mutation(
        name="only the first question is named to the nodes",
        file="flower_privsyn/strategies/popri.py",
        function="PreferencesByScores.queries",
        before="    return (*chosen, *judge, self._similarity)\n",
        after="    return (*chosen, *judge, self._similarity)[:1]\n",
        tests=(f"{TESTS}::TestUnknownQuestions",),
    ),
    Mutation(
        name="a round that nobody answered is released as pure noise",
        file=SETTINGS,
        function="PrivateSumConfig.required_users",
        before="    return max(1, self.min_users)\n",
        after="    return self.min_users\n",
        tests=(f"{TESTS}::TestSilence",),
    ),
    Mutation(
        name="no least number of users unless it is set",
        file=ATTENDANCE,
        function="default_least_users",
        before="    return max(1, math.ceil(least))\n",
        after="    return 1\n",
        tests=(f"{TESTS}::TestSilence",),
    ),
    Mutation(
        name="silent rounds never end a run",
        file=ATTENDANCE,
        function="Attendance.check",
        before="    if len(self._lost) < LOST_IN_A_ROW:\n",
        after="    if len(self._lost) < 1000:\n",
        tests=(f"{TESTS}::TestSilence", f"{TESTS}::TestSecretCohorts"),
    ),
    Mutation(
        name="one silent round after another that was answered ends a run",
        file=ATTENDANCE,
        function="Attendance.answered",
        before="    self._lost.clear()\n",
        after="    pass\n",
        tests=(f"{TESTS}::TestSilence",),
    ),
    Mutation(
        name="nodes of one user are asked when drawn and not otherwise",
        file=ATTENDANCE,
        function="roll_call",
        before="    return frozenset([*several, *single])\n",
        after="    return frozenset(several)\n",
        tests=(f"{TESTS}::TestSecretCohorts", SECRET_TESTS),
    ),
    Mutation(
        name="who was drawn decides about the length of a run",
        file=MEETING,
        function="Roster.recipients",
        before='        if sampling.method == "poisson" and node not in always:\n',
        after='        if sampling.method == "poisson" and self.users[node] == 1:\n',
        tests=(f"{SECRET_TESTS}::test_the_length_of_a_run_does_not_tell_who_was_drawn",),
    ),
    Mutation(
        name="a fixed-size draw is counted in the run directory",
        file="flower_privsyn/privacy/sampling.py",
        function="FixedSizeSampling.hides_cohort",
        before="    return self.sample_size < self.population\n",
        after="    return False\n",
        tests=(f"{SECRET_TESTS}::test_no_byte_tells_who_was_drawn",),
    ),
    Mutation(
        name="a fixed-size draw decides which nodes answer the roll call",
        file=MEETING,
        function="Roster.recipients",
        before="            if count > 0 or node in always\n",
        after="            if count > 0\n",
        tests=(f"{SECRET_TESTS}::test_no_byte_tells_who_was_drawn",),
    ),
    Mutation(
        name="a round of a secret cohort may be discarded",
        file="flower_privsyn/privacy/ledger.py",
        function="PrivacyLedger.discard",
        before="    if planned.sampling.hides_cohort:\n        raise",
        after="    if False:\n        raise",
        tests=(f"{SECRET_TESTS}::TestRefusals",),
    ),
    Mutation(
        name="a round's line is written once the round is over",
        file=ENGINE,
        function="PrivateSumStrategy.aggregate_train",
        before="    self.run.hold_metrics(asked.number, metrics)\n    if released",
        after="    if released",
        tests=(
            "tests/private_path/test_engine.py::TestResume::test_killed_at_the_end_of_a_round_it_keeps_its_line",
        ),
    ),
    Mutation(
        name="a release that was lost stands in the metrics",
        file=ROUNDS,
        function="RoundEnds._settle_lines",
        before='        if line.get("released") and not is_stored(self.run, number):\n',
        after="        if False:\n",
        tests=("tests/private_path/test_engine.py::TestResume",),
    ),
    Mutation(
        name="a round is open before it is taken back",
        file=ROUNDS,
        function="RoundEnds._take_back",
        before="        self.method.take_back(reached)\n        self.run.reopen_round(reached)\n",
        after="        self.run.reopen_round(reached)\n        self.method.take_back(reached)\n",
        tests=(f"{TESTS}::TestAskingAgain",),
    ),
    Mutation(
        name="the rounds of a secret cohort are named",
        file=ATTENDANCE,
        function="Attendance.check",
        before='"two rounds in a row" if self._secret else',
        after='"two rounds in a row" if False else',
        tests=(f"{TESTS}::TestSecretCohorts",),
    ),
    Mutation(
        name="what failed in a secret cohort is counted",
        file="flower_privsyn/private_path/asked.py",
        function="AskedRound.outcome",
        before="        return metrics\n",
        after=(
            "        return metrics | {\n"
            '            key: counts[key] for key in counts if key not in ("answers", "missing")\n'
            "        }\n"
        ),
        tests=(f"{TESTS}::TestSecretCohorts",),
    ),
    Mutation(
        name="a discarded round of correlated noise is asked again",
        file=ROUNDS,
        function="RoundEnds._take_back",
        before="        and plan.at(reached).makes_up\n",
        after="",
        tests=(f"{TESTS}::TestSilence",),
    ),
    Mutation(
        name="candidates of a round taken back stay for the next",
        file=PREFERENCE_ROUNDS,
        function="PreferenceRounds.take_back",
        before="    self._rounds.files(number + 1).candidates.unlink(missing_ok=True)\n",
        after="    pass\n",
        tests=(f"{TESTS}::TestAskingAgain",),
    ),
    Mutation(
        name="public text is the result of a run without a release",
        file=ENGINE,
        function="PrivateSumStrategy._ask_all",
        before="    rounds.refuse_to_end_empty_handed(ledger, go_on=self._go_on)\n",
        after="",
        tests=(f"{TESTS}::TestSilence",),
    ),
    Mutation(
        name="noise that drowns the users is accepted",
        file=NOISE,
        function="NoiseAgainstUsers.refuse",
        before="    if self.signal < LEAST_SIGNAL:\n",
        after="    if self.signal < 0.1:\n",
        tests=(f"{TESTS}::TestNoiseAgainstUsers",),
    ),
    Mutation(
        name="all users count against the noise, not those of a round",
        file=NOISE,
        function="NoiseAgainstUsers.of",
        before="users=phase.sampling.expected_users,",
        after="users=phase.sampling.population or 1,",
        tests=(f"{TESTS}::TestNoiseAgainstUsers",),
    ),
    Mutation(
        name="privsyn run starts anew where it was asked to resume",
        file="flower_privsyn/host/launch.py",
        function="refuse_resume",
        before='    if values.get("resume"):\n',
        after="    if False:\n",
        tests=(
            "tests/host/test_launch.py::test_a_run_is_not_started_by_settings_that_ask_to_continue_one",
        ),
    ),
    Mutation(
        name="the setting run-dir is passed over",
        file="flower_privsyn/cli/run.py",
        function="run",
        before="    if run_dir or set_to:\n        path = expanded(run_dir or set_to)",
        after="    if run_dir:\n        path = Path(run_dir)",
        tests=("tests/host/test_launch.py::test_a_run_directory_may_be_a_setting",),
    ),
    Mutation(
        name="a generator is first asked after the last release",
        file="flower_privsyn/generation/rehearsal.py",
        function="rehearse",
        before="    if not isinstance(generator, OpenAIGenerator):\n",
        after="    return\n    if not isinstance(generator, OpenAIGenerator):\n",
        tests=(f"{CHANGES_TESTS}::TestTriedBeforeTheFirstRound",),
    ),
    Mutation(
        name="a generator that writes nothing is taken to work",
        file="flower_privsyn/generation/rehearsal.py",
        function="refuse_silence",
        before="if any(text.strip() for text in write(attempt)):",
        after="if list(write(attempt)):",
        tests=(
            f"{CHANGES_TESTS}::TestTriedBeforeTheFirstRound"
            "::test_a_server_that_answers_without_a_text",
        ),
    ),
    Mutation(
        name="one prompt that a server refuses ends the call",
        file="flower_privsyn/generation/openai_backend.py",
        function="OpenAIGenerator._request",
        before="final = _NoTextError if status in _OF_A_PROMPT else GenerationError",
        after="final = GenerationError",
        tests=("tests/generation/test_openai_backend.py::TestPromptsWithoutAText",),
    ),
    Mutation(
        name="a server that refuses every prompt is taken to write",
        file="flower_privsyn/generation/openai_backend.py",
        function="OpenAIGenerator._each",
        before="if refused and not self._has_written:",
        after="if False:",
        tests=("tests/generation/test_openai_backend.py::TestPromptsWithoutAText",),
    ),
    Mutation(
        name="responses of which none can be used are kept for every resume",
        file=PREFERENCE_ROUNDS,
        function="PreferenceRounds._usable",
        before="        self._rounds.files(number).responses.unlink(missing_ok=True)\n",
        after="",
        tests=(
            "tests/strategies/parts/test_preference_rounds.py::TestCandidates"
            "::test_nothing_usable_is_an_error",
        ),
    ),
    Mutation(
        name="the setting's model writes in place of the app's object",
        file="flower_privsyn/private_path/preparation.py",
        function="Preparation.get_ready",
        before='        refuse_another_writer(run, method, named="generator" in changes)\n',
        after="",
        tests=("tests/private_path/test_writers.py",),
    ),
    Mutation(
        name="a run without a text is finished",
        file="flower_privsyn/strategies/parts/synthesis.py",
        function="refuse_nothing",
        before="    if not records:\n",
        after="    if False:\n",
        tests=(
            "tests/strategies/test_private_evolution.py::TestExpansionThatFails"
            "::test_a_generator_that_falls_silent_ends_no_run",
        ),
    ),
    Mutation(
        name="the model to train is first loaded after a release",
        file=PREFERENCE_ROUNDS,
        function="PreferenceRounds.rehearse",
        before="            if training and self._trainer is None and adapter is None:\n",
        after="            if False:\n",
        tests=(f"{CHANGES_TESTS}::TestTriedBeforeTheFirstRound",),
    ),
    Mutation(
        name="private evolution does not try its expansion",
        file="flower_privsyn/strategies/private_evolution.py",
        function="EvolutionByVotes._rehearse",
        before="            self._expansion().rehearse(self._seeds)\n",
        after="            pass\n",
        tests=(f"{CHANGES_TESTS}::TestTriedBeforeTheFirstRound",),
    ),
    Mutation(
        name="what releases to come depend on may change",
        file=RESUME,
        function="all_released",
        before="    return reached >= num_rounds or",
        after="    return reached >= 1 or",
        tests=(f"{CHANGES_TESTS}::TestChanges",),
    ),
    Mutation(
        name="rounds to be asked again count as released",
        file=RESUME,
        function="all_released",
        before="        while reached in again:\n",
        after="        while False:\n",
        tests=(f"{CHANGES_TESTS}::TestChanges",),
    ),
    Mutation(
        name="another model on a server passes for the same",
        file=CHANGES,
        function="same_model_elsewhere",
        before='    return len(names) == 1 and "" not in names\n',
        after='    return "" not in names\n',
        tests=(f"{CHANGES_TESTS}::TestChanges",),
    ),
    Mutation(
        name="changes of a resumed run are not recorded",
        file=CHANGES,
        function="record_changes",
        before="    history.record_changes(run, changes, libraries)\n",
        after="",
        tests=(f"{CHANGES_TESTS}::TestChanges",),
    ),
    Mutation(
        name="what a killed round cost is in no line of metrics.jsonl",
        file="flower_privsyn/private_path/rounds.py",
        function="RoundEnds.go_on",
        before="            self._hold_cost(number, ledger)\n",
        after="",
        tests=("tests/private_path/test_engine.py::TestResume",),
    ),
    Mutation(
        name="a run that another process has finished is done again",
        file="flower_privsyn/runs/directory.py",
        function="RunDirectory.start",
        before="may have finished it.\n        run.refuse_finished()\n",
        after="may have finished it.\n        pass\n",
        tests=("tests/runs/test_directory.py",),
    ),
    Mutation(
        name="a run goes on with other libraries in silence",
        file=CHANGES,
        function="record_changes",
        before="    libraries = history.other_versions(run)\n",
        after="    libraries = {}\n",
        tests=(f"{CHANGES_TESTS}::TestChanges",),
    ),
    Mutation(
        name="nodes are needed for a result that is paid for",
        file="flower_privsyn/private_path/preparation.py",
        function="Preparation.get_ready",
        before="    if resume and all_released(run, num_rounds=settings.num_rounds):\n",
        after="    if False:\n",
        tests=(f"{RESUME_TESTS}::TestResultWithoutNodes",),
    ),
    Mutation(
        name="any number of rounds ends a run",
        file=CHANGES,
        function="changes_of_run",
        before="    if settings.num_rounds == earliest_end(run):\n",
        after="    if earliest_end(run):\n",
        tests=(f"{RESUME_TESTS}::TestEndingEarly",),
    ),
    Mutation(
        name="correlated rounds are ended before their time",
        file=RESUME,
        function="earliest_end",
        before="    if behind == 0 or PrivacyLedger.read(run.ledger_file).correlations:\n",
        after="    if behind == 0:\n",
        tests=(f"{RESUME_TESTS}::TestEndingEarly",),
    ),
    Mutation(
        name="a resumed run takes other columns for its users",
        file=SETTINGS,
        function="NODE_KEYS",
        before='NODE_KEYS = CLIENT_KEYS - {"ray-address"}\n',
        after='NODE_KEYS = CLIENT_KEYS - {"ray-address", "client-column"}\n',
        tests=(f"{RESUME_TESTS}::TestUnitOfPrivacy",),
    ),
    Mutation(
        name="the data of a run may change while rounds are left",
        file=CHANGES,
        function="changes_of_run",
        before="    if released:\n        free |= NODE_KEYS\n",
        after="    free |= NODE_KEYS\n",
        tests=(f"{RESUME_TESTS}::TestUnitOfPrivacy",),
    ),
    Mutation(
        name="the rounds that are left forget what was spent",
        file="flower_privsyn/private_path/settling.py",
        function="_for_the_rest",
        before="    if fits(planned):\n",
        after="    if planned > 0:\n",
        tests=(f"{RESUME_TESTS}::TestFewerUsers",),
    ),
)
