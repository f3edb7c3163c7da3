"""Mistakes on the way from a node's text to a released sum."""

from __future__ import annotations

from mutation import Mutation

STRATEGY = "flower_privsyn/private_path/engine.py"
SUM_TESTS = "tests/private_path/test_engine.py"
FTRL_TESTS = "tests/strategies/test_dp_ftrl.py"
POPRI_TESTS = "tests/strategies/test_popri.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="noise divided by the number of users",
        file=STRATEGY,
        function="PrivateSumStrategy._release",
        before="        values = mechanism.release(from_grid(total), random=random)\n",
        after="        values = mechanism.release(from_grid(0 * total), random=random)\n"
        "        values = from_grid(total) + values / max(1, num_users)\n",
        tests=(f"{SUM_TESTS}::TestNoise",),
    ),
    Mutation(
        name="one noise share dropped",
        file="flower_privsyn/client_apps/handlers.py",
        function="_Node.answer",
        before="num_shares=num_users,\n            of=",
        after="num_shares=num_users - 1,\n            of=",
        tests=(f"{SUM_TESTS}::TestNoise",),
    ),
    Mutation(
        name="the ledger is written after the release is used",
        file=STRATEGY,
        function="PrivateSumStrategy._release",
        before="    ledger.charge(round=number, num_users=num_users)\n    if settings",
        after="    self.update(\n"
        "        ReleasedSum(\n"
        "            round_number=number, values=total, noise_std=0.0, num_users=num_users\n"
        "        ),\n"
        "        last=False,\n"
        "    )\n"
        "    ledger.charge(round=number, num_users=num_users)\n"
        "    if settings",
        tests=(f"{SUM_TESTS}::TestLedgerComesFirst",),
    ),
    Mutation(
        name="all nodes flip their coins with one key",
        file=STRATEGY,
        function="PrivateSumStrategy.configure_train.pack",
        before="sampling_key=self._random.uint64(4).tobytes(),\n",
        after='sampling_key=number.to_bytes(32, "big"),\n',
        tests=(f"{SUM_TESTS}::TestSampling",),
    ),
    Mutation(
        name="the noise keeps the first round's clip norm",
        file=STRATEGY,
        function="PrivateSumStrategy.configure_train",
        before="mechanism = self._mechanism = self._mechanism_of(query, self.noise_multiplier)",
        after="mechanism = self._mechanism",
        tests=(f"{SUM_TESTS}::TestSampling",),
    ),
    Mutation(
        name="a lost ledger is not noticed",
        file=STRATEGY,
        function="PrivateSumStrategy._continue",
        before="    self._refuse_missing_lines(self._ledger)\n",
        after="",
        tests=(f"{SUM_TESTS}::TestResume",),
    ),
    Mutation(
        name="what was kept for one request answers another",
        file="flower_privsyn/client_apps/node_users.py",
        function="NodeUsers.prepared",
        before="        request,\n    )\n    with self._lock:\n",
        after="    )\n    with self._lock:\n",
        tests=("tests/client_apps/test_handlers.py",),
    ),
    Mutation(
        name="a run that has ended goes on asking",
        file=STRATEGY,
        function="PrivateSumStrategy.configure_train",
        before="    if self._ended:\n        # Flower's loop",
        after="    if False:\n        # Flower's loop",
        tests=(f"{POPRI_TESTS}::TestPatience",),
    ),
    Mutation(
        name="a run that had ended asks again when resumed",
        file=STRATEGY,
        function="PrivateSumStrategy._continue",
        before="    if self._rounds_before >= total or ended:\n",
        after="    if self._rounds_before >= total:\n",
        tests=(f"{POPRI_TESTS}::TestPatience",),
    ),
    Mutation(
        name="a lost memory of the noise is not noticed",
        file=STRATEGY,
        function="PrivateSumStrategy._open_noise",
        before="    if released is not None and released > self._noise.last_round:\n",
        after="    if False:\n",
        tests=(f"{FTRL_TESTS}::TestRestart",),
    ),
    Mutation(
        name="the memory of the noise outlives a run whose last round was lost",
        file=STRATEGY,
        function="PrivateSumStrategy.start",
        before="            self._forget_noise()\n",
        after="",
        tests=(f"{FTRL_TESTS}::TestRestart",),
    ),
    Mutation(
        name="correlated rounds are released with independent noise",
        file=STRATEGY,
        function="PrivateSumStrategy._release",
        before="        random = self._noise\n",
        after="",
        tests=(f"{FTRL_TESTS}::TestNoise",),
    ),
    Mutation(
        name="an exception's text leaves the client",
        file="flower_privsyn/client_apps/handlers.py",
        function="_guarded",
        before="            exc_info=bool(os.environ.get(environment.CLIENT_TRACEBACK)),\n"
        "        )\n"
        "        return wire.error_reply(wire.ClientErrorCode.INTERNAL, message)\n",
        after="            exc_info=bool(os.environ.get(environment.CLIENT_TRACEBACK)),\n"
        "        )\n"
        "        from flwr.app import Error\n\n"
        "        return Message(Error(code=1000, reason=str(error)), reply_to=message)\n",
        tests=(f"{SUM_TESTS}::TestWhatLeavesAClient",),
    ),
    Mutation(
        name="a round's communication tells whether anybody took part",
        file=STRATEGY,
        function="PrivateSumStrategy.aggregate_train",
        before="    if self._traffic is not None:\n",
        after="    if self._traffic is not None and self._asked:\n",
        tests=(
            "tests/evaluation/test_costs.py::TestCountedInARun::test_what_is_counted_says_nothing_about_who_took_part",
        ),
    ),
    Mutation(
        name="a node's CPU time travels with its answer",
        file="flower_privsyn/client_apps/handlers.py",
        function="_guarded",
        before="            reply = handler(message, context)\n",
        after="            reply = handler(message, context)\n"
        "            from flwr.app import MetricRecord\n"
        '            reply.content["cpu"] = MetricRecord({"seconds": 1.0})\n',
        tests=("tests/evaluation/test_costs.py::TestClientTime",),
    ),
    Mutation(
        name="a late reply is handed out as another question's",
        file="flower_privsyn/messages/window.py",
        function="WindowedGrid._exchange",
        before="                if answered not in mine:\n",
        after="                if False:\n",
        tests=("tests/messages/test_window.py",),
    ),
    Mutation(
        name="another strategy goes on with a run",
        file="flower_privsyn/private_path/engine.py",
        function="PrivateSumStrategy._changes",
        before="    if strategy != type(self).__name__:\n",
        after="    if False:\n",
        tests=("tests/private_path/test_engine.py",),
    ),
    Mutation(
        name="a node answers about another run's file",
        file="flower_privsyn/client_apps/node_users.py",
        function="NodeUsers.prepared",
        before="        tuple(sorted((k, v) for k, v in context.run_config.items())),\n",
        after="",
        tests=("tests/client_apps/test_records.py",),
    ),
)
