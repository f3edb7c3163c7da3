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
        name="both halves ask the same groups",
        file=TURNS,
        function="DisjointCyclicSampling.group_of_round",
        before="sum(self.groups[: self.share]) + turn",
        after="turn",
        tests=(f"{SHARES}::test_shares_have_no_user_in_common",),
    ),
    Mutation(
        name="turns of a share are counted from the first round of the run",
        file=TURNS,
        function="DisjointCyclicSampling.group_of_round",
        before="(number - self.first_round) % self.groups[self.share]",
        after="number % sum(self.groups)",
        tests=(f"{SHARES}::test_shares_have_no_user_in_common",),
    ),
    Mutation(
        name="shares that are cut otherwise are taken to be disjoint",
        file=TURNS,
        function="DisjointCyclicSampling.group",
        before='return f"{self.salt}/{cut}", sum(self.groups), self.share',
        after='return f"{self.salt}", 0, self.share + 0 * len(cut)',
        tests=(f"{SHARES}::test_shares_that_are_cut_otherwise_are_of_another_deal",),
    ),
    Mutation(
        name="a user of a share takes part once, however many turns there are",
        file=TURNS,
        function="participation_of",
        before="separation = sampling.groups[sampling.share]",
        after="separation = max(sum(sampling.groups), rounds)",
        tests=(f"{SHARES}::test_shares_have_no_user_in_common",),
    ),
    Mutation(
        name="a node lets a run deal its users anew",
        file=ACCOUNT,
        function="NodeAccount.check",
        before="    self._check_deal(charge)\n",
        after="",
        tests=(f"{GROUPS}::test_of_another_deal_of_the_run_are_refused",),
    ),
    Mutation(
        name="groups of two runs are taken to be of one deal",
        file=CHARGE,
        function="of_run",
        before="json.dumps([server, run, sampling.salt])",
        after="json.dumps([sampling.salt])",
        tests=(f"{GROUPS}::test_of_one_run_cost_what_the_dearer_one_does",),
    ),
    Mutation(
        name="groups are disjoint under replace-one too",
        file=CHARGE,
        function="planned_release",
        before="sampling.group is not None and relation is not NeighboringRelation.REPLACE_ONE",
        after="sampling.group is not None",
        tests=(f"{GROUPS}::test_of_one_run_cost_what_the_dearer_one_does",),
    ),
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
