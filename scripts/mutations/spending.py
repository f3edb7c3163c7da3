"""Mistakes by which budget would be spent without a word."""

from __future__ import annotations

from mutation import Mutation

TESTS = "tests/private_path/test_spending.py"
CLIENT = "flower_privsyn/client_apps/private_sum.py"
STRATEGY = "flower_privsyn/private_path/engine.py"
ATTENDANCE = "flower_privsyn/private_path/attendance.py"
SETTINGS = "flower_privsyn/private_path/settings.py"
SECRET_TESTS = "tests/private_path/test_secret_cohorts.py"
CHANGES_TESTS = "tests/private_path/test_changes.py"
ROUNDS = "flower_privsyn/strategies/parts/preference_rounds.py"
NOISE = "flower_privsyn/private_path/noise_check.py"
RESUMPTION = "flower_privsyn/private_path/resumption.py"
RESUMPTION_TESTS = "tests/private_path/test_resumption.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="a node takes part without knowing every question of the run",
        file=CLIENT,
        before="        if unknown := sorted(set(plan.queries) - self._known_queries()):\n",
        after="        if unknown := sorted(set(plan.queries) - set(plan.queries)):\n",
        tests=(f"{TESTS}::TestUnknownQuestions",),
    ),
    Mutation(
        name="only the first question is named to the nodes",
        file="flower_privsyn/strategies/popri.py",
        before="        return (self._similarity,) if self._kernel is None "
        "else (self._kernel, self._similarity)\n",
        after="        return (self.query,)\n",
        tests=(f"{TESTS}::TestUnknownQuestions",),
    ),
    Mutation(
        name="a round that nobody answered is released as pure noise",
        file=SETTINGS,
        before="        return max(1, self.min_users)\n",
        after="        return self.min_users\n",
        tests=(f"{TESTS}::TestSilence",),
    ),
    Mutation(
        name="no least number of users unless it is set",
        file=ATTENDANCE,
        before="    return max(1, math.ceil(least))\n",
        after="    return 1\n",
        tests=(f"{TESTS}::TestSilence",),
    ),
    Mutation(
        name="silent rounds never end a run",
        file=ATTENDANCE,
        before="        if len(self._lost) < LOST_IN_A_ROW:\n",
        after="        if len(self._lost) < 1000:\n",
        tests=(f"{TESTS}::TestSilence", f"{TESTS}::TestSecretCohorts"),
    ),
    Mutation(
        name="one silent round after another that was answered ends a run",
        file=ATTENDANCE,
        before="        self._lost.clear()\n",
        after="        pass\n",
        tests=(f"{TESTS}::TestSilence",),
    ),
    Mutation(
        name="nodes of one user are asked when drawn and not otherwise",
        file=ATTENDANCE,
        before="    return frozenset([*several, *single])\n",
        after="    return frozenset(several)\n",
        tests=(f"{TESTS}::TestSecretCohorts", SECRET_TESTS),
    ),
    Mutation(
        name="who was drawn decides about the length of a run",
        file=STRATEGY,
        before='            if sampling.method == "poisson" and node not in self._always_asked:\n',
        after='            if sampling.method == "poisson" and self._roster[node] == 1:\n',
        tests=(f"{SECRET_TESTS}::test_the_length_of_a_run_does_not_tell_who_was_drawn",),
    ),
    Mutation(
        name="a fixed-size draw is counted in the run directory",
        file="flower_privsyn/privacy/sampling.py",
        before="        return self.sample_size < self.population\n",
        after="        return False\n",
        tests=(f"{SECRET_TESTS}::test_no_byte_tells_who_was_drawn",),
    ),
    Mutation(
        name="a fixed-size draw decides which nodes answer the roll call",
        file=STRATEGY,
        before="                if count > 0 or node in self._always_asked\n",
        after="                if count > 0\n",
        tests=(f"{SECRET_TESTS}::test_no_byte_tells_who_was_drawn",),
    ),
    Mutation(
        name="a round of a secret cohort may be discarded",
        file="flower_privsyn/privacy/ledger.py",
        before="        if planned.sampling.hides_cohort:\n            raise",
        after="        if False:\n            raise",
        tests=(f"{SECRET_TESTS}::TestRefusals",),
    ),
    Mutation(
        name="a round is open before it is taken back",
        file=STRATEGY,
        before="            self.take_back(reached)\n            self.run.reopen_round(reached)\n",
        after="            self.run.reopen_round(reached)\n            self.take_back(reached)\n",
        tests=(f"{TESTS}::TestAskingAgain",),
    ),
    Mutation(
        name="the rounds of a secret cohort are named",
        file=ATTENDANCE,
        before='"two rounds in a row" if self._secret else',
        after='"two rounds in a row" if False else',
        tests=(f"{TESTS}::TestSecretCohorts",),
    ),
    Mutation(
        name="what failed in a secret cohort is counted",
        file=STRATEGY,
        before="            counts.clear()\n",
        after='            del counts["answers"], counts["missing"]\n',
        tests=(f"{TESTS}::TestSecretCohorts",),
    ),
    Mutation(
        name="a discarded round of correlated noise is asked again",
        file=STRATEGY,
        before="        if self._correlation is not None:\n            return reached\n",
        after="",
        tests=(f"{TESTS}::TestSilence",),
    ),
    Mutation(
        name="candidates of a round taken back stay for the next",
        file="flower_privsyn/strategies/parts/preference_rounds.py",
        before="        self._candidates_file(number + 1).unlink(missing_ok=True)\n",
        after="        pass\n",
        tests=(f"{TESTS}::TestAskingAgain",),
    ),
    Mutation(
        name="public text is the result of a run without a release",
        file=STRATEGY,
        before="                self._refuse_to_end_empty_handed()\n",
        after="",
        tests=(f"{TESTS}::TestSilence",),
    ),
    Mutation(
        name="noise that drowns the users is accepted",
        file=NOISE,
        before="        if self.signal < LEAST_SIGNAL:\n",
        after="        if self.signal < 0.1:\n",
        tests=(f"{TESTS}::TestNoiseAgainstUsers",),
    ),
    Mutation(
        name="all users count against the noise, not those of a round",
        file=STRATEGY,
        before="NoiseAgainstUsers(users=sampling.expected_users,",
        after="NoiseAgainstUsers(users=sum(self._roster.values()),",
        tests=(f"{TESTS}::TestNoiseAgainstUsers",),
    ),
    Mutation(
        name="surplus shares of noise are not counted",
        file=STRATEGY,
        before="            multiplier *= float(np.sqrt(shares))\n",
        after="",
        tests=(f"{TESTS}::TestNoiseAgainstUsers",),
    ),
    Mutation(
        name="privsyn run starts anew where it was asked to resume",
        file="flower_privsyn/host/simulation.py",
        before='    if values.get("resume"):\n',
        after="    if False:\n",
        tests=(
            "tests/host/test_simulation.py::test_a_run_is_not_started_by_settings_that_ask_to_continue_one",
        ),
    ),
    Mutation(
        name="the setting run-dir is passed over",
        file="flower_privsyn/cli/run.py",
        before="    if run_dir or set_to:\n        path = Path(run_dir or set_to)",
        after="    if run_dir:\n        path = Path(run_dir)",
        tests=("tests/host/test_simulation.py::test_a_run_directory_may_be_a_setting",),
    ),
    Mutation(
        name="a generator is first asked after the last release",
        file="flower_privsyn/generation/rehearsal.py",
        before="    if not isinstance(generator, OpenAIGenerator):\n",
        after="    return\n    if not isinstance(generator, OpenAIGenerator):\n",
        tests=(f"{CHANGES_TESTS}::TestTriedBeforeTheFirstRound",),
    ),
    Mutation(
        name="the model to train is first loaded after a release",
        file=ROUNDS,
        before="                if training and self._trainer is None and adapter is None:\n",
        after="                if False:\n",
        tests=(f"{CHANGES_TESTS}::TestTriedBeforeTheFirstRound",),
    ),
    Mutation(
        name="private evolution does not try its expansion",
        file="flower_privsyn/strategies/private_evolution.py",
        before="                self._expansion().rehearse(self._seeds)\n",
        after="                pass\n",
        tests=(f"{CHANGES_TESTS}::TestTriedBeforeTheFirstRound",),
    ),
    Mutation(
        name="what releases to come depend on may change",
        file="flower_privsyn/private_path/resumption.py",
        before="    return reached >= num_rounds or",
        after="    return reached >= 1 or",
        tests=(f"{CHANGES_TESTS}::TestChanges",),
    ),
    Mutation(
        name="rounds to be asked again count as released",
        file="flower_privsyn/private_path/resumption.py",
        before="        while reached in discarded - charged:\n",
        after="        while False:\n",
        tests=(f"{CHANGES_TESTS}::TestChanges",),
    ),
    Mutation(
        name="another model on a server passes for the same",
        file="flower_privsyn/private_path/changes.py",
        before='    return len(names) == 1 and "" not in names\n',
        after='    return "" not in names\n',
        tests=(f"{CHANGES_TESTS}::TestChanges",),
    ),
    Mutation(
        name="changes of a resumed run are not recorded",
        file=STRATEGY,
        before="        self.run.record_changes(changes)\n",
        after="",
        tests=(f"{CHANGES_TESTS}::TestChanges",),
    ),
    Mutation(
        name="nodes are needed for a result that is paid for",
        file=STRATEGY,
        before="            if resume and self._all_released():\n",
        after="            if resume and not self._all_released() and self._run is None:\n",
        tests=(f"{RESUMPTION_TESTS}::TestResultWithoutNodes",),
    ),
    Mutation(
        name="any number of rounds ends a run",
        file=STRATEGY,
        before="        if settings.num_rounds == earliest_end(self.run):\n",
        after="        if earliest_end(self.run):\n",
        tests=(f"{RESUMPTION_TESTS}::TestEndingEarly",),
    ),
    Mutation(
        name="correlated rounds are ended before their time",
        file=RESUMPTION,
        before="    if behind == 0 or PrivacyLedger.read(run.ledger_file).correlations:\n",
        after="    if behind == 0:\n",
        tests=(f"{RESUMPTION_TESTS}::TestEndingEarly",),
    ),
    Mutation(
        name="a resumed run takes other columns for its users",
        file=SETTINGS,
        before='NODE_KEYS = CLIENT_KEYS - {"ray-address"}\n',
        after='NODE_KEYS = CLIENT_KEYS - {"ray-address", "client-column"}\n',
        tests=(f"{RESUMPTION_TESTS}::TestUnitOfPrivacy",),
    ),
    Mutation(
        name="the data of a run may change while rounds are left",
        file=STRATEGY,
        before="        if released:\n            free |= NODE_KEYS\n",
        after="        free |= NODE_KEYS\n",
        tests=(f"{RESUMPTION_TESTS}::TestUnitOfPrivacy",),
    ),
    Mutation(
        name="the rounds that are left forget what was spent",
        file=RESUMPTION,
        before="    if fits(planned):\n",
        after="    if planned > 0:\n",
        tests=(f"{RESUMPTION_TESTS}::TestFewerUsers",),
    ),
)
