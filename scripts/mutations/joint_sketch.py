"""Mistakes in the joint sketch: in the question, in reading its release, and in what is chosen."""

from __future__ import annotations

from mutation import Mutation

QUERY = "flower_privsyn/queries/joint_sketch.py"
QUERY_TESTS = "tests/queries/test_joint_sketch.py"
READING = "flower_privsyn/strategies/parts/sketch_reading.py"
TOKEN_SKETCH = "flower_privsyn/strategies/parts/token_sketch.py"
TOKEN_SKETCH_TESTS = "tests/strategies/parts/test_token_sketch.py"
READING_TESTS = "tests/strategies/parts/test_sketch_reading.py"
RELEASE = "flower_privsyn/private_path/release.py"
RELEASE_TESTS = "tests/private_path/test_release.py"
SELECTION = "flower_privsyn/training/selection.py"
SELECTION_TESTS = "tests/training/test_selection.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="all tokens of a user count",
        file=QUERY,
        function="_Text.of",
        before="record[: most - rank]",
        after="record",
        tests=(QUERY_TESTS,),
    ),
    Mutation(
        name="what a user repeats counts without bound",
        file=QUERY,
        function="JointSketch._counts",
        before="if self.max_occurrences:",
        after="if False:",
        tests=(QUERY_TESTS,),
    ),
    Mutation(
        name="tokens get the whole norm beside bigrams",
        file=QUERY,
        function="JointSketch.blocks",
        before="weight=math.sqrt(1.0 - self.bigram_share)",
        after="weight=1.0",
        tests=(QUERY_TESTS,),
    ),
    Mutation(
        name="folded counts have no signs",
        file=QUERY,
        function="Block.places",
        before="(mixed & np.uint64(1)).astype(np.bool_)",
        after="np.zeros(len(items), dtype=np.bool_)",
        tests=(QUERY_TESTS, READING_TESTS),
    ),
    Mutation(
        name="a bigram crosses from one sample into the next",
        file=QUERY,
        function="_Text.of",
        before="follows[starts[lengths > 0]] = False",
        after="follows[0] = False",
        tests=(QUERY_TESTS,),
    ),
    Mutation(
        name="another vocabulary than the users' is counted in",
        file=QUERY,
        function="JointSketch.check",
        before="if vocabulary != dimension or not",
        after="if not",
        tests=(QUERY_TESTS,),
    ),
    Mutation(
        name="users are taken to write as much as may count",
        file=READING,
        function="length_written",
        before="return lengths[int(np.argmin(np.abs(np.log(np.array(amounts) / amount))))]",
        after="return most",
        tests=(READING_TESTS,),
    ),
    Mutation(
        name="the bias is told from all public text and not from what was chosen",
        file="flower_privsyn/strategies/parts/sketched_student.py",
        function="SketchedStudent.lacking",
        before="chosen=self.selection.tokens,",
        after="chosen=list(self._text.public.documents(most_tokens=4_000_000)),",
        tests=("tests/strategies/test_joint_sketch.py",),
    ),
    Mutation(
        name="what writes after the joint sketch is not tried before it",
        file="flower_privsyn/strategies/joint_sketch.py",
        function="AskedOnce.prepare",
        before="expand.rehearse(self._text.longest(expand.num_examples))",
        after="pass",
        tests=(
            "tests/strategies/test_joint_sketch.py::TestSettings"
            "::test_a_writer_that_does_not_answer_is_found_before_anybody_is_asked",
        ),
    ),
    Mutation(
        name="a release is read as if it had no noise",
        file=READING,
        function="_Observed.of",
        before="constant = np.full(block.num_items, noise**2)",
        after="constant = np.zeros(block.num_items)",
        tests=(READING_TESTS,),
    ),
    Mutation(
        name="the weight of a block is not taken out of its release",
        file=READING,
        function="read_sketch",
        before="means=total[block.columns] / (num_users * block.weight)",
        after="means=total[block.columns] / num_users",
        tests=(READING_TESTS,),
    ),
    Mutation(
        name="a quota is never used up",
        file=SELECTION,
        function="_Pool.chosen",
        before="left[group] -= 1",
        after="left[group] -= 0",
        tests=(SELECTION_TESTS,),
    ),
    Mutation(
        name="users who are asked again count as others",
        file=RELEASE,
        function="SumOfUsers.sample",
        before="self.rate * self.rounds + (1.0 - self.rate)",
        after="1.0",
        tests=(RELEASE_TESTS,),
    ),
    Mutation(
        name="how many the coins draw is taken for known",
        file=RELEASE,
        function="SumOfUsers.sample",
        before="if self.by_coins else 0.0",
        after="if False else 0.0",
        tests=(RELEASE_TESTS,),
    ),
    Mutation(
        name="the first draw of users is read as if all had been in it",
        file=READING,
        function="_Observed.of",
        before="num_users, by_coins = sample",
        after="num_users, by_coins = 1e9, 0.0",
        tests=(READING_TESTS,),
    ),
    Mutation(
        name="a release that tells little is trusted",
        file=TOKEN_SKETCH,
        function="TokenSketch.trust",
        before="min(1.0, told / _TOLD_ENOUGH)",
        after="1.0",
        tests=(TOKEN_SKETCH_TESTS,),
    ),
    Mutation(
        name="pairs of tokens are trusted whatever is told",
        file=TOKEN_SKETCH,
        function="TokenSketch.scorer",
        before="bigrams=bigrams.ranking(trust)",
        after="bigrams=bigrams.predictive",
        tests=(TOKEN_SKETCH_TESTS,),
    ),
    Mutation(
        name="a bias of noise is added to the logits",
        file=TOKEN_SKETCH,
        function="what_is_lacking",
        before=".scaled(trust, trust)",
        after="",
        tests=(TOKEN_SKETCH_TESTS,),
    ),
    Mutation(
        name="a bigram's bias counts its tokens again",
        file=TOKEN_SKETCH,
        function="TokenSketch.bias",
        before="beyond = bigrams.log_ratio - ratios[first] - ratios[second]",
        after="beyond = bigrams.log_ratio",
        tests=(TOKEN_SKETCH_TESTS,),
    ),
    Mutation(
        name="a node reads the tokenizer of any model",
        file="flower_privsyn/node/guard.py",
        function="NodeGuard.trains",
        before="return listed or",
        after="return True or",
        tests=(
            "tests/strategies/test_joint_sketch.py::test_the_owner_of_a_node_allows_a_tokenizer"
            "_with_its_model",
        ),
    ),
)
