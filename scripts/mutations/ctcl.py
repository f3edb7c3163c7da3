"""Mistakes in CTCL: in votes that weigh shares, in conditions, and in the budget of two phases."""

from __future__ import annotations

from mutation import Mutation

CTCL = "flower_privsyn/strategies/ctcl.py"
CTCL_TESTS = "tests/strategies/test_ctcl.py"
VOTES = "flower_privsyn/queries/nearest_neighbor.py"
VOTES_TESTS = "tests/queries/test_nearest_neighbor.py"
NODE = "flower_privsyn/client_apps/training.py"
NODE_TESTS = "tests/client_apps/test_conditions.py"

MUTATIONS: tuple[Mutation, ...] = (
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
        file=CTCL,
        function="CTCLConfig.histogram_multiplier",
        before=" / math.sqrt(self.histogram_share)",
        after="",
        tests=(f"{CTCL_TESTS}::TestTheBudget",),
    ),
    Mutation(
        name="a share of the budget is a share of the noise",
        file=CTCL,
        function="CTCLConfig.histogram_multiplier",
        before="math.sqrt(self.histogram_share)",
        after="self.histogram_share",
        tests=(f"{CTCL_TESTS}::TestTheBudget",),
    ),
    Mutation(
        name="users of one turn alone vote, and everybody is accounted for",
        file=CTCL,
        function="TopicsAndTraining.phases",
        before="sampling=FullParticipation(population=population)",
        after="sampling=config.sampling_of(population)",
        tests=(CTCL_TESTS,),
    ),
    Mutation(
        name="documents stand after the condition of another topic",
        file=NODE,
        function="_Tokens._rows",
        before="before = [conditions[topic] for topic in topics.tolist()]",
        after="before = [conditions[0] for _ in topics.tolist()]",
        tests=(NODE_TESTS,),
    ),
    Mutation(
        name="conditions are learnt as well",
        file=NODE,
        function="_Tokens._rows",
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
)
