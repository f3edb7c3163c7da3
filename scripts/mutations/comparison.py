"""Mistakes in comparisons: private text that would reach a node or another machine."""

from __future__ import annotations

from mutation import Mutation

PLAN = "flower_privsyn/comparison/plan.py"
TESTS = "tests/comparison/test_plan.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="training on the nodes may begin with a student of private text",
        file=PLAN,
        function="Plan.begins_with",
        before='if one.kind == "public text" and one.seeded',
        after="if True",
        tests=(f"{TESTS}::TestStudentsOfOtherCells",),
    ),
    Mutation(
        name="private text is shown to another machine's generator",
        file=PLAN,
        function="Plan._check_cell",
        before='check_here(str(values["generator"]))',
        after="pass",
        tests=(f"{TESTS}::TestCheckedBeforeTheFirstCell",),
    ),
    Mutation(
        name="sealed users are held out where nobody opened them",
        file="flower_privsyn/comparison/people.py",
        function="People.read",
        before='every = without_sealed(every, what="--data")',
        after="pass",
        tests=(f"{TESTS}::TestSealedUsers",),
    ),
)
