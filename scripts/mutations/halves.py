"""Mistakes in halves that nobody shares, and in public text between them."""

from __future__ import annotations

from mutation import Mutation

TURNS = "flower_privsyn/privacy/turns.py"
CHARGE = "flower_privsyn/node/charge.py"
ACCOUNT = "flower_privsyn/node/account.py"
SETTINGS = "flower_privsyn/strategies/parts/mid_training_settings.py"
SHARES = "tests/privacy/test_participation.py"
GROUPS = "tests/node/test_account.py::TestGroups"
TESTS = "tests/strategies/test_public_mid_training.py"
TRAINING = "tests/client_apps/test_training.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="a strategy that is started again goes on with the noise that it has in memory",
        file="flower_privsyn/private_path/engine.py",
        function="PrivateSumStrategy._open_noise",
        before="asking.noise = CorrelatedNoise(correlation, random=self._random, path=path)",
        after="asking.noise = self.__dict__.setdefault(\n"
        '        "kept", CorrelatedNoise(correlation, random=self._random, path=path)\n'
        "    )",
        tests=("tests/strategies/test_dp_ftrl.py::TestRestart",),
    ),
    Mutation(
        name="nodes train adapters on the model that was there before the public text",
        file="flower_privsyn/client_apps/training.py",
        function="_Tokens.cohorts",
        before='model.set_base(ask.broadcast.get("base"))',
        after="model.set_base(None)",
        tests=(f"{TRAINING}::TestAnotherBase",),
    ),
    Mutation(
        name="a run without a base trains on the one that another run sent",
        file="flower_privsyn/training/local.py",
        function="LocalModel.set_base",
        before="if base is None and self._own_base is None:",
        after="if base is None:",
        tests=(f"{TRAINING}::TestAnotherBase",),
    ),
    Mutation(
        name="nodes are told of no noise once all rounds are paid for",
        file="flower_privsyn/private_path/settling.py",
        function="announcement",
        before="noise_multiplier=min(release.noise_multiplier for release in told),",
        after="noise_multiplier=min((release.noise_multiplier for release in left), default=0.0),",
        tests=("tests/strategies/test_hybrid.py::TestTheBudget",),
    ),
)
