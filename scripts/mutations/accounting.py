"""Mistakes in noise, accountants and the ledger."""

from __future__ import annotations

from mutation import Mutation

PRIVACY = "flower_privsyn/privacy"
SUM_TESTS = "tests/private_path/test_engine.py"
KILLED_TESTS = "tests/private_path/test_killed_runs.py"
LEDGER_TESTS = "tests/privacy/test_ledger.py"
ACCOUNTING = "tests/privacy/test_accounting.py"
CORRELATED = "tests/privacy/test_correlated_noise.py"
FTRL_TESTS = "tests/strategies/test_dp_ftrl.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="rounding errors of a composition count as privacy",
        file=f"{PRIVACY}/loss_distributions.py",
        function="_rounding",
        before="    return _ROUNDING * sum(",
        after="    return 0.0 * sum(",
        tests=(f"{ACCOUNTING}::test_rounding_errors_of_many_rounds_are_no_privacy",),
    ),
    Mutation(
        name="fixed-size sampling accounted as Poisson",
        file=f"{PRIVACY}/accounting.py",
        function="_cost",
        before='return ("fixed", multiplier / 2.0, sampling.rate)',
        after='return ("poisson", multiplier, sampling.rate)',
        tests=(f"{ACCOUNTING}::test_fixed_size_cohorts_cost_what_an_instance_of_them_shows",),
    ),
    Mutation(
        name="replace-one does not double the sensitivity",
        file=f"{PRIVACY}/accounting.py",
        function="_cost",
        before='return ("gaussian", multiplier / 2.0 if replaced else multiplier, 1.0)',
        after='return ("gaussian", multiplier, 1.0)',
        tests=(f"{ACCOUNTING}::test_replace_one_doubles_the_sensitivity_by_both_accountants",),
    ),
    Mutation(
        name="noise comes from a fixed seed",
        file=f"{PRIVACY}/randomness.py",
        function="SecureRandom.uint64",
        before='np.frombuffer(os.urandom(8 * n), dtype="<u8").astype(np.uint64, copy=False)',
        after="np.random.default_rng(0).integers(0, 2**64, size=n, dtype=np.uint64)",
        tests=("tests/privacy/test_randomness.py", f"{SUM_TESTS}::TestNoise"),
    ),
    Mutation(
        name="NaN passes the clip",
        file=f"{PRIVACY}/clipping.py",
        function="_tamed",
        before="    rows[~np.isfinite(rows).all(axis=1)] = 0.0\n",
        after="",
        tests=("tests/queries", "tests/privacy/test_clipping.py"),
    ),
    Mutation(
        name="an interrupted round is not charged",
        file=f"{PRIVACY}/ledger.py",
        function="PrivacyLedger.open",
        before="        for planned in list(ledger._pending.values()):\n",
        after="        ledger._pending.clear()\n"
        "        for planned in list(ledger._pending.values()):\n",
        tests=(LEDGER_TESTS, f"{KILLED_TESTS}::TestResume"),
    ),
    Mutation(
        name="the budget is not checked",
        file=f"{PRIVACY}/ledger.py",
        function="PrivacyLedger._check_budget",
        before="    if cost is None or not self._within_budget(cost):\n",
        after="    if False:\n",
        tests=(LEDGER_TESTS, f"{KILLED_TESTS}::TestResume"),
    ),
    Mutation(
        name="the size of a secret cohort is written down",
        file=f"{PRIVACY}/ledger.py",
        function="PrivacyLedger._charge",
        before="None if planned.sampling.hides_cohort else num_users",
        after="num_users",
        tests=(f"{SUM_TESTS}::TestSampling",),
    ),
    Mutation(
        name="one participation is accounted for, whatever the pattern",
        file=f"{PRIVACY}/factorisation.py",
        function="_Toeplitz._squared_sensitivity",
        before="range(0, min(participation.most * gap, self.rounds), gap)",
        after="range(0, 1)",
        tests=(
            "tests/privacy/test_factorisation.py::test_sensitivity_of_turns",
            f"{CORRELATED}::test_the_claimed_epsilon_is_neither_broken_nor_out_of_reach",
        ),
    ),
    Mutation(
        name="a visited node counts once however often it is visited",
        file=f"{PRIVACY}/trees.py",
        function="TreeAggregation._squared_sensitivity",
        before="visits**2",
        after="visits",
        tests=(
            "tests/privacy/test_factorisation.py::test_sensitivity_of_turns",
            "tests/privacy/test_published_numbers.py::test_popri_trees_recomputed",
        ),
    ),
    Mutation(
        name="restarts of a tree are not counted",
        file=f"{PRIVACY}/trees.py",
        function="TreeAggregation.trees",
        before="    return (length,) * whole + ((rest,) if rest else ())\n",
        after="    return (length,)\n",
        tests=(
            "tests/privacy/test_published_numbers.py::test_popri_trees_as_printed_are_twenty_epochs",
        ),
    ),
    Mutation(
        name="every correlated round is covered, the first as well",
        file=f"{PRIVACY}/ledger_book.py",
        function="LedgerBook._is_covered",
        before="    return stream is not None and stream.charged is not None\n",
        after="    return True\n",
        tests=(f"{CORRELATED}::test_the_first_round_pays_for_all", f"{FTRL_TESTS}::TestNoise"),
    ),
    Mutation(
        name="a correlated round may be begun twice",
        file=f"{PRIVACY}/ledger.py",
        function="PrivacyLedger._check_stream",
        before="    if planned.round <= max(stream.started):\n",
        after="    if False:\n",
        tests=(f"{CORRELATED}::test_no_round_is_asked_twice",),
    ),
    Mutation(
        name="correlated rounds may get noisier or less so",
        file=f"{PRIVACY}/ledger.py",
        function="PrivacyLedger._check_stream",
        before="first.mechanism.noise_multiplier != planned.mechanism.noise_multiplier",
        after="False",
        tests=(f"{CORRELATED}::test_later_rounds_must_be_what_the_first_was_charged_as",),
    ),
    Mutation(
        name="the innovations' noise multiplier is taken for that of all rounds",
        file=f"{PRIVACY}/correlated_noise.py",
        function="Correlation.noise_multiplier",
        before="    return round_multiplier / self.sensitivity\n",
        after="    return round_multiplier\n",
        tests=(
            f"{CORRELATED}::test_the_first_round_pays_for_all",
            f"{FTRL_TESTS}::TestSettings::test_public_llms_trees",
        ),
    ),
    Mutation(
        name="correlated noise forgets a round that was left out",
        file=f"{PRIVACY}/correlated_noise.py",
        function="CorrelatedNoise.prepare",
        before="    for _ in range(step - self._step):\n"
        "        noise = self._recurrence.next(lambda: self._innovation(size))\n"
        "        self._step += 1\n",
        after="    noise = self._recurrence.next(lambda: self._innovation(size))\n"
        "    self._step = step\n",
        tests=(f"{CORRELATED}::test_a_round_that_was_left_out_costs_its_noise",),
    ),
    Mutation(
        name="the memory of the noise is written after the round is out",
        file=f"{PRIVACY}/correlated_noise.py",
        function="CorrelatedNoise.prepare",
        before="    self._save()\n    self._prepared = noise\n",
        after="    self._prepared = noise\n",
        tests=(
            f"{CORRELATED}::test_the_memory_is_on_the_disk_before_the_noise_is_used",
            f"{FTRL_TESTS}::TestRestart",
        ),
    ),
    Mutation(
        name="turns depend on the node's order of users",
        file=f"{PRIVACY}/turns.py",
        function="CyclicSampling.groups_of",
        before="mark.update(user_id.encode())\n",
        after="mark.update(str(index).encode())\n",
        tests=("tests/privacy/test_participation.py", f"{FTRL_TESTS}::TestTurns"),
    ),
    Mutation(
        name="every round asks the first group",
        file=f"{PRIVACY}/turns.py",
        function="CyclicSampling.participants",
        before="(self.round_number - 1) % self.groups",
        after="0",
        tests=("tests/privacy/test_participation.py", f"{FTRL_TESTS}::TestTurns"),
    ),
)
