"""Mistakes in what settings may be: checked before anything is spent, and nowhere else."""

from __future__ import annotations

from mutation import Mutation

CHECKS = "flower_privsyn/checks.py"
SETTINGS = "flower_privsyn/private_path/settings.py"
TESTS = "tests/test_checks.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="what is declared of settings is not looked at",
        file=CHECKS,
        function="Settings.__post_init__",
        before="found = declaration.check(self._called(name), value)",
        after="found = value",
        tests=(f"{TESTS}::TestDeclarations",),
    ),
    Mutation(
        name="infinity is a number like others",
        file=CHECKS,
        function="_inside",
        before="        and (isinstance(number, int) or math.isfinite(number) or number == le)\n",
        after="",
        tests=(f"{TESTS}::TestArguments",),
    ),
    Mutation(
        name="true is a whole number",
        file=CHECKS,
        function="Declaration._accepted",
        before="isinstance(value, int) and not isinstance(value, bool)",
        after="isinstance(value, int)",
        tests=(f"{TESTS}::TestDeclarations",),
    ),
    Mutation(
        name="another default takes the range away",
        file=CHECKS,
        function="_declaration",
        before="    if inherited is not None and not limits:\n",
        after="    if False:\n",
        tests=(f"{TESTS}::TestDeclarations",),
    ),
    Mutation(
        name="a delta of 1 is allowed",
        file=SETTINGS,
        function="PrivateSumConfig.delta",
        before="Lt(1)",
        after="Le(1)",
        tests=(f"{TESTS}::TestPrivacy",),
    ),
    Mutation(
        name="next to no noise counts as noise in the settings",
        file=SETTINGS,
        function="PrivateSumConfig.noise_multiplier",
        before="Ge(LEAST_MULTIPLIER)",
        after="Ge(0)",
        tests=(f"{TESTS}::TestPrivacy",),
    ),
)
