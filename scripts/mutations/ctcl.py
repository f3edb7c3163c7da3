"""Mistakes in CTCL: in shares of votes, conditions, the budget of two phases, and DP-Adam."""

from __future__ import annotations

from mutation import Mutation

FIRST = "flower_privsyn/strategies/parts/first_release.py"
CTCL_TESTS = "tests/strategies/test_ctcl.py"
VOTES = "flower_privsyn/queries/nearest_neighbor.py"
VOTES_TESTS = "tests/queries/test_nearest_neighbor.py"
NODE = "flower_privsyn/client_apps/training.py"
NODE_TESTS = "tests/client_apps/test_conditions.py"
ADAM = "flower_privsyn/training/dp_adam.py"
ADAM_TESTS = "tests/training/test_dp_adam.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="which documents have text decides the rate of the coins",
        file="flower_privsyn/comparison/central.py",
        function="CentralRun._read",
        before="return examples, of_records[there]",
        after="return [each for each in examples if each.usable], of_records[there]",
        tests=("tests/comparison/test_central.py",),
    ),
    Mutation(
        name="a record's topic may depend on who else is embedded",
        file="flower_privsyn/comparison/central.py",
        function="CentralRun.__init__",
        before="require_company(self._embedder, default_cache_directory())",
        after="pass",
        tests=("tests/comparison/test_central.py",),
    ),
    Mutation(
        name="gradients are compared where half of them are zero",
        file=ADAM,
        function="RecordModel.check_gradients",
        before="random.normal(0.0, _MOVED, self.dimension)",
        after="np.zeros(self.dimension)",
        tests=(f"{ADAM_TESTS}::TestGradients",),
    ),
    Mutation(
        name="gradients that are no numbers pass for right ones",
        file=ADAM,
        function="RecordModel._compare_gradients",
        before="not np.linalg.norm(own - alone) <= _TOLERANCE * np.linalg.norm(alone)",
        after="np.linalg.norm(own - alone) > _TOLERANCE * np.linalg.norm(alone)",
        tests=(f"{ADAM_TESTS}::TestGradients",),
    ),
    Mutation(
        name="shares of votes are counts",
        file=VOTES,
        function="NearestNeighborHistogram._weighed",
        before="votes / np.maximum(votes.sum(axis=1, keepdims=True), 1.0)",
        after="votes / 1.0",
        tests=(f"{VOTES_TESTS}::TestHistogram",),
    ),
    Mutation(
        name="the fast sum of shares forgets to clip",
        file=VOTES,
        function="NearestNeighborHistogram.answer",
        before="weights = self._clip(self._weighed(packed))[owners, place]",
        after="weights = packed[owners, place]",
        tests=(f"{VOTES_TESTS}::TestHistogram",),
    ),
    Mutation(
        name="the histogram has the noise of the whole budget",
        file=FIRST,
        function="multiplier_of_share",
        before=" / math.sqrt(share)",
        after="",
        tests=(f"{CTCL_TESTS}::TestTheBudget",),
    ),
    Mutation(
        name="a share of the budget is a share of the noise",
        file=FIRST,
        function="multiplier_of_share",
        before="math.sqrt(share)",
        after="share",
        tests=(f"{CTCL_TESTS}::TestTheBudget",),
    ),
    Mutation(
        name="users of one turn alone vote, and everybody is accounted for",
        file=FIRST,
        function="first_then_training",
        before="sampling=FullParticipation(population=population)",
        after="sampling=config.sampling_of(population)",
        tests=(f"{CTCL_TESTS}::TestTheBudget",),
    ),
    Mutation(
        name="documents stand after the condition of another topic",
        file=NODE,
        function="_Tokens._rows",
        before="[conditions[topic] for topic in topics.tolist()]",
        after="[conditions[0] for _ in topics.tolist()]",
        tests=(NODE_TESTS,),
    ),
    Mutation(
        name="conditions are learnt as well",
        file=NODE,
        function="_Tokens._after",
        before="    [len(row) for row in before],\n",
        after="    [1 for row in before],\n",
        tests=(NODE_TESTS, CTCL_TESTS),
    ),
    Mutation(
        name="a question of plain updates is answered where conditions were prepared",
        file="flower_privsyn/messages/data_request.py",
        function="DataRequest.suits",
        before="    if query.conditioned != self.conditioned:\n        return False\n",
        after="",
        tests=(NODE_TESTS,),
    ),
    Mutation(
        name="batches at record level are of one size",
        file=ADAM,
        function="poisson_batch",
        before="return np.flatnonzero(random.uint64(records) < bound)",
        after="return np.sort(np.argsort(random.uint64(records))[: round(rate * records)])",
        tests=(f"{ADAM_TESTS}::TestBatches",),
    ),
    Mutation(
        name="the mean of a batch is clipped, not each record",
        file=ADAM,
        function="RecordModel.clipped_sum",
        before="gradients = self.gradients(examples[first : first + size])",
        after="gradients = self.gradients(examples[first : first + size])"
        ".mean(axis=0, keepdims=True)",
        tests=(f"{ADAM_TESTS}::TestGradients",),
    ),
    Mutation(
        name="the noise of DP-Adam is divided by the batch",
        file=ADAM,
        function="RecordModel.fit",
        before="noise_multiplier=noise_multiplier, l2_sensitivity=query.clip_norm",
        after="noise_multiplier=noise_multiplier / 2, l2_sensitivity=query.clip_norm",
        tests=(f"{ADAM_TESTS}::TestTraining",),
    ),
    Mutation(
        name="the histogram of records is not accounted for",
        file="flower_privsyn/comparison/central.py",
        function="CentralBaseline.plan",
        before="self.histogram_noise_multiplier if self.has_histogram else None",
        after="None",
        tests=("tests/comparison/test_central.py",),
    ),
    Mutation(
        name="coins are accounted for more documents than flip them",
        file="flower_privsyn/comparison/central.py",
        function="CentralRun.check",
        before="return self.baseline.plan(len(documents))",
        after="return self.baseline.plan(2 * len(documents))",
        tests=("tests/comparison/test_central.py",),
    ),
    Mutation(
        name="a folder that another process has begun since is gone on with",
        file="flower_privsyn/comparison/central.py",
        function="CentralRun.run",
        before="    self._refuse_other(documents)\n",
        after="    pass\n",
        tests=("tests/comparison/test_central.py::TestKilled",),
    ),
    Mutation(
        name="settings are compared when an object is made, not when it runs",
        file="flower_privsyn/comparison/central.py",
        function="CentralRun._refuse_other",
        before="self._refuse_other_settings()",
        after="pass",
        tests=("tests/comparison/test_central.py::TestKilled",),
    ),
    Mutation(
        name="what an attempt that failed has learned is trained on",
        file="flower_privsyn/comparison/central.py",
        function="CentralRun._train",
        before="if self._asked:",
        after="if False:",
        tests=("tests/comparison/test_central.py::TestKilled",),
    ),
    Mutation(
        name="training goes on where an interrupted one has come to",
        file=ADAM,
        function="RecordModel.fit",
        before="self._begin_anew()",
        after="pass",
        tests=(f"{ADAM_TESTS}::TestTraining",),
    ),
)
