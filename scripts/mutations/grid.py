"""Mistakes in how sums and noise are represented."""

from __future__ import annotations

from mutation import Mutation

PRIVACY = "flower_privsyn/privacy"
GRID_TESTS = "tests/privacy/test_grid.py"
LAW_TESTS = "tests/privacy/test_rounded_normal.py"
RUN_TESTS = (
    "tests/strategies/test_private_evolution.py",
    "tests/strategies/test_popri.py",
    "tests/strategies/test_dp_fedavg.py",
)

#: Where the noise is added to a sum.
_ADDED = "    return total + random.rounded_normal(self.standard_deviation * STEPS, len(total))\n"

#: Two normal variates from 106 random bits.
_FLOATS = """
    pairs = (len(total) + 1) // 2
    bits = random.uint64(2 * pairs) >> np.uint64(11)
    radius = np.sqrt(-2.0 * np.log((bits[:pairs].astype(np.float64) + 1.0) * 2.0**-53))
    angle = (2.0 * np.pi * 2.0**-53) * bits[pairs:].astype(np.float64)
    draws = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[: len(total)]
"""

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="noise of floats, not rounded",
        file=f"{PRIVACY}/mechanisms.py",
        function="GaussianMechanism.release_steps",
        before=_ADDED,
        after=_FLOATS + "    return (total * GRID + self.standard_deviation * draws) * STEPS\n",
        tests=(f"{GRID_TESTS}::test_no_release_says_that_the_canary_is_there",),
    ),
    Mutation(
        name="noise of floats, not rounded, in the bins of a histogram",
        file=f"{PRIVACY}/mechanisms.py",
        function="GaussianMechanism.release_steps",
        before=_ADDED,
        after=_FLOATS + "    return (total * GRID + self.standard_deviation * draws) * STEPS\n",
        tests=(f"{GRID_TESTS}::test_raw_bins_are_read_no_better_than_an_ideal_gaussian_allows",),
    ),
    Mutation(
        name="noise of floats, not rounded, in the files of runs",
        file=f"{PRIVACY}/mechanisms.py",
        function="GaussianMechanism.release_steps",
        before=_ADDED,
        after=_FLOATS + "    return (total * GRID + self.standard_deviation * draws) * STEPS\n",
        tests=RUN_TESTS,
    ),
    Mutation(
        name="noise of floats, rounded",
        file=f"{PRIVACY}/mechanisms.py",
        function="GaussianMechanism.release_steps",
        before=_ADDED,
        after=_FLOATS + "    scale = self.standard_deviation * STEPS\n"
        "    return total + np.rint(scale * draws).astype(np.int64)\n",
        tests=(GRID_TESTS,),
    ),
    Mutation(
        name="the last bits of the noise are zero",
        file=f"{PRIVACY}/rounded_normal.py",
        function="_kept",
        before="    return rounded * sign\n",
        after="    return rounded * sign & ~3\n",
        tests=(GRID_TESTS, LAW_TESTS),
    ),
    Mutation(
        name="the tails of the noise end at 64 bits",
        file=f"{PRIVACY}/rounded_normal.py",
        function="_tails",
        before="int(sum(weights[j:]) / total * 2**128)",
        after="(int(sum(weights[j:]) / total * 2**64) << 64)",
        tests=(f"{LAW_TESTS}::test_every_number_within_twelve_standard_deviations_is_reached",),
    ),
    Mutation(
        name="correlated noise without its last part",
        file=f"{PRIVACY}/correlated_noise.py",
        function="CorrelatedNoise.rounded_normal",
        before="    parts += self._random.rounded_normal(math.ldexp(last, bits), size)\n",
        after="",
        tests=(f"{GRID_TESTS}::test_the_last_digits_of_correlated_noise_are_fair",),
    ),
    Mutation(
        name="how long an answer is tells how many took part",
        file="flower_privsyn/client_apps/handlers.py",
        function="_Node._charged_answer",
        before="    bound = ask.query.answer_bound(ask.announced(len(prepared.user_ids)))\n",
        after="    bound = ask.query.answer_bound(num_users)\n",
        tests=("tests/client_apps/test_reads.py::TestText",),
    ),
    Mutation(
        name="sums beyond what is exact",
        file="flower_privsyn/private_path/asked.py",
        function="refuse_off_the_grid",
        before="    if largest <= LARGEST_SUM:\n",
        after="    if True:\n",
        tests=("tests/private_path/test_engine.py::TestTheGrid",),
    ),
    Mutation(
        name="a file of the run names the node that stopped it",
        file="flower_privsyn/private_path/asked.py",
        function="refuse_off_the_grid",
        before="most, extra=FOR_THE_OWNER)\n",
        after="most)\n",
        tests=("tests/private_path/test_asked.py",),
    ),
    Mutation(
        name="anybody may read the releases",
        file="flower_privsyn/files.py",
        function="replacing",
        before="os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)",
        after="os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)",
        tests=("tests/private_path/test_engine.py::TestTheGrid",),
    ),
    Mutation(
        name="the clip norm grows until the run cannot go on",
        file="flower_privsyn/strategies/dp_fedavg.py",
        function="AveragedTraining.following_clip_norm",
        before="return min("
        "following, release.largest_clip_norm * math.sqrt(1.0 - query.bit_share**2))\n",
        after="return following\n",
        tests=("tests/strategies/test_dp_fedavg.py",),
    ),
)
