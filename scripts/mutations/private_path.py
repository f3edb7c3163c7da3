"""Mistakes on the way from a node's text to a released sum."""

from __future__ import annotations

from mutation import Mutation

ENGINE = "flower_privsyn/private_path/engine.py"
ROUNDS = "flower_privsyn/private_path/rounds.py"
HANDLERS = "flower_privsyn/client_apps/handlers.py"
NODE_USERS = "flower_privsyn/client_apps/node_users.py"
END_TESTS = "tests/private_path/test_early_end.py"
STOP_TESTS = "tests/private_path/test_stop.py"
SUM_TESTS = "tests/private_path/test_engine.py"
KILLED_TESTS = "tests/private_path/test_killed_runs.py"
FTRL_TESTS = "tests/strategies/test_dp_ftrl.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="a run begins with a model that has learnt private text",
        file="flower_privsyn/private_path/preparation.py",
        function="Preparation.get_ready",
        before="        stamped.refuse(needed.setting, needed.name)\n",
        after="        pass\n",
        tests=("tests/models/test_stamped.py::test_a_run_stops_before_anything_is_spent",),
    ),
    Mutation(
        name="a run that a rule ended early has the epsilon of so many fixed rounds",
        file=ROUNDS,
        function="RoundEnds.close",
        before='by_rule = bool((self.run.round_state(last) or {}).get("ended"))',
        after="by_rule = False",
        tests=(f"{END_TESTS}::test_a_rule_that_ends_the_rounds_leaves_the_cost_of_all",),
    ),
    Mutation(
        name="a run that somebody ended early has the epsilon of so many fixed rounds",
        file=ROUNDS,
        function="RoundEnds.close",
        before='if not by_rule and "num-rounds" not in changed:',
        after="if not by_rule:",
        tests=(f"{END_TESTS}::test_so_does_whoever_ends_it_by_hand",),
    ),
    Mutation(
        name="the end of a run that ended early is not read again",
        file="flower_privsyn/privacy/ledger.py",
        function="PrivacyLedger._replay",
        before="            self._take_end(line)\n",
        after="            pass\n",
        tests=(f"{END_TESTS}::test_after_the_end_nothing_begins",),
    ),
    Mutation(
        name="a run that is to end asks on",
        file=ENGINE,
        function="PrivateSumStrategy._begin",
        before="    asking.rounds.refuse_where_stopped(asked.number)\n",
        after="",
        tests=(f"{STOP_TESTS}::test_a_run_ends_before_its_next_round_and_goes_on",),
    ),
    Mutation(
        name="a request to end is obeyed by the start that goes on",
        file="flower_privsyn/runs/directory.py",
        function="RunDirectory.session",
        before="        self.owner.forget_stop()\n",
        after="",
        tests=(f"{STOP_TESTS}::test_a_request_is_of_one_start",),
    ),
    Mutation(
        name="a finished run that is started again is asked again",
        file=ENGINE,
        function="PrivateSumStrategy.start",
        before='if run.status == "finished":',
        after='if run.status == "at its end":',
        tests=(
            "tests/private_path/test_finished.py::"
            "test_a_finished_run_whose_last_round_was_lost_asks_nobody_again",
        ),
    ),
    Mutation(
        name="a second base class may replace the private path",
        file=ENGINE,
        function="PrivateSumStrategy.__init_subclass__",
        before="if owner is not PrivateSumStrategy:\n",
        after="if owner is cls:\n",
        tests=(f"{SUM_TESTS}::TestLedgerComesFirst::test_the_path_cannot_be_replaced_by_a_method",),
    ),
    Mutation(
        name="noise divided by the number of users",
        file=ENGINE,
        function="PrivateSumStrategy._release",
        before="        values = from_grid("
        "asked.mechanism.release_steps(collected.total, random=random))\n",
        after=(
            "        noise = asked.mechanism.release_steps(0 * collected.total, random=random)\n"
            "        values = from_grid(collected.total) + from_grid(noise) / max(1, num_users)\n"
        ),
        tests=(f"{SUM_TESTS}::TestNoise",),
    ),
    Mutation(
        name="the ledger is written after the release is used",
        file=ENGINE,
        function="PrivateSumStrategy._release",
        before="    asking.ledger.charge("
        "round=asked.number, num_users=num_users, extra=collected.facts)\n",
        after=(
            "    self.method.following(\n"
            "        ReleasedSum(\n"
            "            round_number=asked.number,\n"
            "            values=from_grid(collected.total),\n"
            "            noise_std=0.0,\n"
            "            num_users=num_users,\n"
            "            expected_users=num_users,\n"
            "            largest_clip_norm=1.0,\n"
            "        ),\n"
            "        last=False,\n"
            "    )\n"
            "    asking.ledger.charge("
            "round=asked.number, num_users=num_users, extra=collected.facts)\n"
        ),
        tests=(f"{SUM_TESTS}::TestLedgerComesFirst",),
    ),
    Mutation(
        name="all nodes flip their coins with one key",
        file=ENGINE,
        function="PrivateSumStrategy.configure_train.asks",
        before="sampling_key=self._random.uint64(4).tobytes(),\n",
        after='sampling_key=number.to_bytes(32, "big"),\n',
        tests=(f"{SUM_TESTS}::TestSampling",),
    ),
    Mutation(
        name="the noise keeps the first round's clip norm",
        file=ENGINE,
        function="PrivateSumStrategy.configure_train",
        before="mechanism = mechanism_of(question.query, phase, self.config)\n",
        after=(
            "mechanism = (\n"
            "        asking.asked.mechanism\n"
            "        if asking.asked\n"
            "        else mechanism_of(question.query, phase, self.config)\n"
            "    )\n"
        ),
        tests=(f"{SUM_TESTS}::TestSampling",),
    ),
    Mutation(
        name="a round is charged that no node would answer",
        file="flower_privsyn/private_path/asked.py",
        function="refuse_unfit",
        before="    refuse_unanswerable(question, number=number, dimension=source.dimension)\n",
        after="",
        tests=("tests/private_path/test_asked.py::TestWhatNoNodeAnswers",),
    ),
    Mutation(
        name="a parameter that no message carries is noticed once a round is begun",
        file="flower_privsyn/messages/parameters.py",
        function="refuse_uncarried",
        before="    sent = query.to_wire()\n",
        after="    return\n    sent = query.to_wire()\n",
        tests=("tests/messages/test_parameters.py", "tests/private_path/test_asked.py"),
    ),
    Mutation(
        name="a lost ledger is not noticed",
        file=ROUNDS,
        function="RoundEnds.go_on",
        before="    self._refuse_missing_lines(ledger)\n",
        after="",
        tests=(f"{KILLED_TESTS}::TestResume",),
    ),
    Mutation(
        name="a run begins with what another one of its number has read",
        file=NODE_USERS,
        function="NodeUsers.prepared",
        before="    if begins and context.run_id < DRAWN_RUN_IDS:\n",
        after="    if False:\n",
        tests=("tests/client_apps/test_records.py::TestTickets",),
    ),
    Mutation(
        name="what was kept for one request answers another",
        file=NODE_USERS,
        function="NodeUsers.prepared",
        before=("        request,\n        owner,\n    )\n"),
        after="        owner,\n    )\n",
        tests=("tests/client_apps/test_handlers.py::TestHandlers",),
    ),
    Mutation(
        name="a run that has ended goes on asking",
        file=ROUNDS,
        function="RoundEnds.finish",
        before="    return following\n",
        after="    return following if last else following or self.method.restore(number + 1)\n",
        tests=("tests/private_path/test_early_end.py",),
    ),
    Mutation(
        name="a run that had ended asks again when resumed",
        file=ROUNDS,
        function="RoundEnds.go_on",
        before="    if reached >= self.total or ended:\n",
        after="    if reached >= self.total:\n",
        tests=("tests/private_path/test_early_end.py",),
    ),
    Mutation(
        name="a lost memory of the noise is not noticed",
        file=ENGINE,
        function="PrivateSumStrategy._open_noise",
        before="    if released is not None and released > asking.noise.last_round:\n",
        after="    if False:\n",
        tests=(f"{FTRL_TESTS}::TestRestart",),
    ),
    Mutation(
        name="the memory of the noise outlives a run whose last round was lost",
        file=ENGINE,
        function="PrivateSumStrategy._ask_all",
        before="    self._forget_noise()\n",
        after="",
        tests=(f"{FTRL_TESTS}::TestRestart",),
    ),
    Mutation(
        name="correlated rounds are released with independent noise",
        file=ENGINE,
        function="PrivateSumStrategy._release",
        before="        random = asking.noise\n",
        after="",
        tests=(f"{FTRL_TESTS}::TestNoise",),
    ),
    Mutation(
        name="an exception's text leaves the client",
        file=HANDLERS,
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
        file=ENGINE,
        function="PrivateSumStrategy._release",
        before="    counts, num_users = collected.counts, collected.num_users\n",
        after=(
            "    counts, num_users = collected.counts, collected.num_users\n"
            "    if not num_users:\n"
            '        object.__setattr__(asked, "traffic", replace(asked.traffic, bytes_up=0))\n'
        ),
        tests=(
            "tests/evaluation/test_costs.py::TestCountedInARun::test_what_is_counted_says_nothing_about_who_took_part",
        ),
    ),
    Mutation(
        name="what a user sends is the average share of all rounds, whatever their size",
        file="flower_privsyn/evaluation/costs.py",
        function="run_costs",
        before='sum(shares.get(int(line["round"]), 1.0) * int(line[key]) for line in lines)',
        after="sum(shares.values()) / len(shares) * sum(int(line[key]) for line in lines)",
        tests=(
            "tests/strategies/test_hybrid.py::TestTheBudget::test_a_user_sends_the_sketch_and_the_rounds_of_their_turn",
        ),
    ),
    Mutation(
        name="a node's CPU time travels with its answer",
        file=HANDLERS,
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
        name="a client of a deployment says that a process of a simulation ended",
        file="flower_privsyn/messages/window.py",
        function="_ended_process",
        before="    if not reply.has_error() or _simulator() is None:\n",
        after="    if not reply.has_error():\n",
        tests=("tests/messages/test_window.py::TestEndedProcesses",),
    ),
    Mutation(
        name="all of a client's text is looked through",
        file="flower_privsyn/messages/window.py",
        function="_ended_process",
        before='    said = (reply.error.reason or "")[:_ERROR_BEGINNING]\n',
        after='    said = reply.error.reason or ""\n',
        tests=("tests/messages/test_window.py::TestEndedProcesses",),
    ),
    Mutation(
        name="another strategy goes on with a run",
        file="flower_privsyn/private_path/changes.py",
        function="changes_of_run",
        before="    if started_by != strategy:\n",
        after="    if False:\n",
        tests=(f"{KILLED_TESTS}::TestResume",),
    ),
    Mutation(
        name="a release is read by a ledger that has grown since",
        file="flower_privsyn/private_path/resume.py",
        function="Releases.of",
        before="    if written is None or written != self._read:\n",
        after="    if self._read is None:\n",
        tests=("tests/private_path/test_resume.py::TestReleases",),
    ),
    Mutation(
        name="nodes are left out whose share of the noise was counted on",
        file="flower_privsyn/private_path/changes.py",
        function="may_leave_out_nodes",
        before="    if settings.secure_aggregation or ",
        after="    if ",
        tests=("tests/private_path/test_resume.py::TestNodesThatAreGoneForGood",),
    ),
    Mutation(
        name="users are dealt anew to fewer nodes in the middle of a run",
        file="flower_privsyn/private_path/changes.py",
        function="may_leave_out_nodes",
        before="    return not was_launched(run.document)\n",
        after="    return True\n",
        tests=("tests/private_path/test_resume.py::TestNodesThatAreGoneForGood",),
    ),
    Mutation(
        name="a simulation goes on with fewer nodes, whose users are other ones",
        file="flower_privsyn/private_path/changes.py",
        function="may_leave_out_nodes",
        before=" or (grid is not None and is_of_a_simulation(grid))",
        after="",
        tests=("tests/private_path/test_resume.py::TestNodesThatAreGoneForGood",),
    ),
    Mutation(
        name="a node answers about another run's file",
        file=NODE_USERS,
        function="NodeUsers.prepared",
        before="        tuple(sorted((k, v) for k, v in context.run_config.items())),\n",
        after="",
        tests=("tests/client_apps/test_records.py",),
    ),
)
