"""Mistakes by which a run directory would tell how long somebody took, or a ledger be cut."""

from __future__ import annotations

from mutation import Mutation

CANARY = "tests/private_path/test_canary.py"
RUNS_TESTS = "tests/runs/test_directory.py"
LEDGER_TESTS = "tests/privacy/test_ledger.py"
STRATEGY = "flower_privsyn/private_path/engine.py"
RUNS = "flower_privsyn/runs/directory.py"
LEDGER = "flower_privsyn/privacy/ledger.py"
CHAIN = "flower_privsyn/privacy/ledger_chain.py"
FORMAT = "flower_privsyn/runs/run_format.py"

EVOLUTION = f"{CANARY}::test_a_canary_changes_no_byte[private-evolution]"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="a line is written behind a torn one",
        file="flower_privsyn/files.py",
        function="_end_of_whole_lines",
        before="            return start + found + 1\n",
        after="            return size\n",
        tests=("tests/test_files.py",),
    ),
    Mutation(
        name="a whole line is cut off with a torn one",
        file="flower_privsyn/files.py",
        function="_end_of_whole_lines",
        before="block, end = _BLOCK_BYTES, start",
        after="return 0",
        tests=("tests/test_files.py",),
    ),
    Mutation(
        name="whole seconds of a round stand in metrics.jsonl",
        file=STRATEGY,
        function="PrivateSumStrategy.aggregate_train",
        before="    self.run.hold_metrics(asked.number, metrics)\n",
        after='    metrics["seconds_feedback"] = round(answered - asked.started)\n'
        "    self.run.hold_metrics(asked.number, metrics)\n",
        tests=(EVOLUTION,),
    ),
    Mutation(
        name="the summary says how long the end took",
        file=STRATEGY,
        function="PrivateSumStrategy.start",
        before="            run.mark_finished(summary)\n",
        after=(
            '            summary["seconds"] = clock.seconds()\n'
            "            run.mark_finished(summary)\n"
        ),
        tests=(EVOLUTION,),
    ),
    Mutation(
        name="the ledger's lines carry times",
        file=LEDGER,
        function="PrivacyLedger._write",
        before="    return self._file.append(line)\n",
        after="    import datetime\n"
        "\n"
        "    now = datetime.datetime.now(datetime.UTC).isoformat()\n"
        '    return self._file.append({**line, "time": now})\n',
        tests=(f"{LEDGER_TESTS}::test_no_line_holds_a_time",),
    ),
    Mutation(
        name="a round's state carries a time",
        file=RUNS,
        function="RunDirectory.finish_round",
        before='"status": "finished", **self._stated()}\n    write_json(RoundFiles(self.round_dir',
        after='"status": "finished", **self._stated()}\n'
        '    record["time"] = clock.seconds()\n'
        "    write_json(RoundFiles(self.round_dir",
        tests=(EVOLUTION,),
    ),
    Mutation(
        name="the run's state says when it was written",
        file=RUNS,
        function="RunDirectory._write_state",
        before="    write_json(self.state_file, {**state, **self._stated()})\n",
        after='    state = {**state, "updated": clock.seconds()}\n'
        "    write_json(self.state_file, {**state, **self._stated()})\n",
        tests=(EVOLUTION,),
    ),
    Mutation(
        name="progress.json says how long stages take",
        file="flower_privsyn/host/progress.py",
        function="Stage.to_dict",
        before='        "failed": self.failed,\n',
        after='        "failed": self.failed,\n        "seconds": self.seconds,\n',
        tests=(EVOLUTION, "tests/host/test_progress.py"),
    ),
    Mutation(
        name="files keep the dates of their rounds",
        file=FORMAT,
        function="hide_dates",
        before="            os.utime(entry, (moment, moment), follow_symlinks=False)\n",
        after="            pass\n",
        tests=(EVOLUTION, f"{RUNS_TESTS}::test_files_get_the_date_of_the_creation"),
    ),
    Mutation(
        name="folders keep the dates of their rounds",
        file=FORMAT,
        function="_entries",
        before="        yield Path(folder)\n",
        after="",
        tests=(f"{RUNS_TESTS}::test_files_get_the_date_of_the_creation",),
    ),
    Mutation(
        name="dates are hidden only when a run succeeds",
        file=RUNS,
        function="RunDirectory.unlock",
        before="        hide_dates_of(self.path)\n",
        after='        if self.status == "finished":\n            hide_dates_of(self.path)\n',
        tests=(f"{RUNS_TESTS}::test_files_get_the_date_of_the_creation",),
    ),
    Mutation(
        name="the owner's folder is open to others",
        file="flower_privsyn/runs/owner.py",
        function="OwnerFolder.make",
        before="    self.path.chmod(0o700)\n",
        after="    self.path.chmod(0o755)\n",
        tests=(f"{RUNS_TESTS}::test_the_owner_s_folder_is_beside_the_run_and_for_the_owner_alone",),
    ),
    Mutation(
        name="times go without their stamp",
        file="flower_privsyn/runs/owner.py",
        function="write_times",
        before="        if file.tell() == 0:\n",
        after="        if file.tell() < 0:\n",
        tests=(f"{RUNS_TESTS}::test_the_owner_s_folder_is_beside_the_run_and_for_the_owner_alone",),
    ),
    Mutation(
        name="a shorter ledger is taken",
        file=LEDGER,
        function="PrivacyLedger.open",
        before="        refuse_cut(path, file.digests, stated or {})\n",
        after="",
        tests=(f"{LEDGER_TESTS}::test_a_shorter_ledger_is_refused_and_left_alone",),
    ),
    Mutation(
        name="a run shows what a cut ledger says",
        file=RUNS,
        function="RunDirectory._chain",
        before="    refuse_cut(self.ledger_file, chain.digests, stated)\n",
        after="",
        tests=(f"{RUNS_TESTS}::test_every_later_file_states_the_ledger_s_last_line",),
    ),
    Mutation(
        name="a ledger that was removed is begun anew",
        file=RUNS,
        function="RunDirectory._chain",
        before="        refuse_cut(self.ledger_file, (), stated)\n",
        after="",
        tests=(
            f"{RUNS_TESTS}::test_every_later_file_states_the_ledger_s_last_line",
            "tests/private_path/test_killed_runs.py::TestResume::test_a_lost_ledger_stops_the_run",
        ),
    ),
    Mutation(
        name="metrics do not state the ledger's last line",
        file=RUNS,
        function="RunDirectory.hold_metrics",
        before=".metrics, {**metrics, **self._stated()})\n",
        after=".metrics, metrics)\n",
        tests=(f"{RUNS_TESTS}::test_every_later_file_states_the_ledger_s_last_line",),
    ),
    Mutation(
        name="a line is stated only as long as it is the last",
        file=CHAIN,
        function="refuse_cut",
        before="    known = frozenset(digests)\n",
        after="    known = frozenset(list(digests)[-1:])\n",
        tests=(f"{LEDGER_TESTS}::test_a_shorter_ledger_is_refused_and_left_alone",),
    ),
    Mutation(
        name="one user trains without end unless it is forbidden",
        file="flower_privsyn/strategies/parts/federated_training.py",
        function="FederatedTrainingConfig.local_steps",
        before="] = 64\n",
        after="] = 0\n",
        tests=("tests/strategies/test_catalogue.py",),
    ),
)
