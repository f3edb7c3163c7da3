"""Mistakes by which budget would be spent without a word."""

from __future__ import annotations

from mutation import Mutation

TESTS = "tests/strategies/test_spending.py"
CLIENT = "flower_privsyn/client_apps/private_sum.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="a node takes part without knowing every question of the run",
        file=CLIENT,
        before="        if unknown := sorted(set(queries) - self._known_queries()):\n",
        after="        if unknown := sorted(set(queries) - set(queries)):\n",
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
)
