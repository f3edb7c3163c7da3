"""Mistakes in what phases cost together, whom they ask, and what they tell the nodes."""

from __future__ import annotations

from mutation import Mutation

PLAN = "flower_privsyn/privacy/plan.py"
ACCOUNTING = "flower_privsyn/privacy/accounting.py"
SETTLING = "flower_privsyn/private_path/settling.py"
PLAN_TESTS = "tests/private_path/test_plan.py"
PHASES = f"{PLAN_TESTS}::TestThreePhases"
GROUPS = f"{PLAN_TESTS}::TestGroups"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="every phase has the noise of the first",
        file="flower_privsyn/private_path/engine.py",
        function="PrivateSumStrategy.configure_train",
        before="mechanism_of(question.query, phase, self.config)",
        after="mechanism_of(question.query, self.plan.phases[0], self.config)",
        tests=(f"{PHASES}::test_add_the_noise_of_their_own",),
    ),
    Mutation(
        name="a correlated phase is settled as if its rounds were independent of each other",
        file=PLAN,
        function="Phase.sensitivity",
        before="    return _sensitivity(",
        after="    return 1.0 or _sensitivity(",
        tests=(f"{PHASES}::test_cost_what_dp_accounting_says_of_them_together",),
    ),
    Mutation(
        name="a phase asks what another was accounted for",
        file="flower_privsyn/private_path/asked.py",
        function="refuse_other_question",
        before="    if query.name not in asks:\n",
        after="    if False:\n",
        tests=(f"{PHASES}::test_ask_only_what_they_say",),
    ),
    Mutation(
        name="correlated rounds are charged as sampled",
        file="flower_privsyn/privacy/ledger_lines.py",
        function="PlannedRelease.with_multiplier",
        before="    correlated = self.correlation is not None\n",
        after="    correlated = False\n",
        tests=(
            "tests/privacy/test_ledger.py::"
            "test_correlated_rounds_are_no_cheaper_for_who_may_not_be_drawn",
        ),
    ),
    Mutation(
        name="a second reply of a node is added up",
        file="flower_privsyn/private_path/aggregation/aggregation.py",
        function="first_replies",
        before="        if node in seen:\n",
        after="        if False:\n",
        tests=(
            "tests/private_path/test_unreliable_nodes.py::TestMisbehavingNodes::test_second_reply",
        ),
    ),
    Mutation(
        name="settled noise may cost more than the budget",
        file=SETTLING,
        function="_with_noise",
        before="    if epsilon is not None and plan.epsilon() > epsilon * (1.0 + _ROUNDING):\n",
        after="    if False:\n",
        tests=(f"{PLAN_TESTS}::TestSettledNoise",),
    ),
    Mutation(
        name="nodes are told fewer releases than the phases cost",
        file=SETTLING,
        function="announcement",
        before="            for release, count in left.items()\n",
        after="            for release, count in list(left.items())[:1]\n",
        tests=(f"{PHASES}::test_nodes_are_told_what_they_cost",),
    ),
    Mutation(
        name="a correlated phase that has not begun counts as paid for",
        file=SETTLING,
        function="_left",
        before="        if phase.factorisation is not None and begun:\n            continue\n",
        after="        if phase.factorisation is not None:\n            continue\n",
        tests=(f"{PHASES}::test_nodes_are_told_what_they_cost",),
    ),
)
