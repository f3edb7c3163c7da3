"""Mistakes in the node's own account and in its owner's policy."""

from __future__ import annotations

from mutation import Mutation

ACCOUNT = "flower_privsyn/node/account.py"
CHARGE = "flower_privsyn/node/charge.py"
GUARD = "flower_privsyn/node/guard.py"
HANDLERS = "flower_privsyn/client_apps/handlers.py"
CHARGES = "flower_privsyn/client_apps/policy.py"
RECIPE = "flower_privsyn/client_apps/recipe.py"
WIRE = "flower_privsyn/messages/wire.py"
ACCOUNT_TESTS = "tests/node/test_account.py"
REQUEST_TESTS = "tests/node/test_requests.py"
POLICY_TESTS = "tests/node/test_policy.py"
SERVER_TESTS = "tests/node/test_servers.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="a policy that every user of the machine can write is in force",
        file="flower_privsyn/node/policy.py",
        function="NodePolicy.read",
        before="    _refuse_others(path)\n",
        after="",
        tests=(f"{POLICY_TESTS}::test_a_policy_that_all_can_write_is_nobodys",),
    ),
    Mutation(
        name="an answer leaves before the node has charged it",
        file=HANDLERS,
        function="_Node.answer",
        before=(
            "    answer, bound = self._charged_answer(ask, message, context)\n"
            "    return wire.reply(wire.pack_answer(answer, bound=bound), message)\n"
        ),
        after=(
            "    guard = guard_of(context)\n"
            "    charge, type(guard).charge = type(guard).charge, lambda *_, **__: None\n"
            "    answer, bound = self._charged_answer(ask, message, context)\n"
            "    type(guard).charge = charge\n"
            "    left = wire.reply(wire.pack_answer(answer, bound=bound), message)\n"
            "    guard.charge(charge_of(ask, context, guard))\n"
            "    return left\n"
        ),
        tests=(f"{SERVER_TESTS}::test_kill_9_between_charge_and_answer_never_counts_less",),
    ),
    Mutation(
        name="the node asks its account before the answer and not at it",
        file=ACCOUNT,
        function="NodeLedger.charge",
        before="        checked = account.check(charge, policy)\n",
        after="        checked = {}\n",
        tests=(ACCOUNT_TESTS,),
    ),
    Mutation(
        name="data whose account has another name begin a new one",
        file=ACCOUNT,
        function="NodeLedger._add_others",
        before="account.others += other.charges\n",
        after="pass\n",
        tests=(f"{ACCOUNT_TESTS}::TestOtherNames",),
    ),
    Mutation(
        name="what the data of an account were called before they were moved is forgotten",
        file=ACCOUNT,
        function="_places_in",
        before="for line in lines if",
        after="for line in list(lines)[-1:] if",
        tests=(
            f"{ACCOUNT_TESTS}::TestOtherNames"
            "::test_a_name_whose_data_are_moved_keeps_what_their_path_was_charged",
        ),
    ),
    Mutation(
        name="an account waits for those of the place that its data have now alone",
        file=ACCOUNT,
        function="NodeLedger._turn",
        before="sorted(places)",
        after='sorted({self._data} - {""})',
        tests=(
            f"{ACCOUNT_TESTS}::TestOtherNames"
            "::test_a_moved_name_and_an_old_path_at_once_find_room_for_one",
        ),
    ),
    Mutation(
        name="a name for the people of a node without data begins a new account",
        file=GUARD,
        function="NodeGuard.__init__",
        before="data = unnamed(node_config)\n",
        after="data = data_name(node_config)\n",
        tests=(
            f"{ACCOUNT_TESTS}::TestOtherNames"
            "::test_a_name_for_people_of_an_apps_own_recipe_begins_no_new_account",
        ),
    ),
    Mutation(
        name="a node finds on its disk what was read before its owner's last word",
        file="flower_privsyn/client_apps/node_users.py",
        function="NodeUsers._ticket",
        before="        *owner,\n",
        after="",
        tests=(f"{REQUEST_TESTS}::TestAnEditedPolicy",),
    ),
    Mutation(
        name="a process keeps what was read before its owner's last word",
        file="flower_privsyn/client_apps/node_users.py",
        function="NodeUsers.prepared",
        before="        owner,\n",
        after="",
        tests=(f"{REQUEST_TESTS}::TestAnEditedPolicy",),
    ),
    Mutation(
        name="which models may answer is the owner's word of before the work",
        file=HANDLERS,
        function="_Node._charged_answer",
        before="if models_of(ask.data, now) != models:",
        after="if False:",
        tests=(f"{REQUEST_TESTS}::TestAnEditedPolicy",),
    ),
    Mutation(
        name="an embedding model in memory has whatever digest the owner states",
        file="flower_privsyn/client_apps/node_users.py",
        function="NodeUsers._embeddings",
        before="request.embedding_precision, digest_of_files)",
        after='request.embedding_precision, "")',
        tests=(f"{REQUEST_TESTS}::TestAnEditedPolicy",),
    ),
    Mutation(
        name="a trained model in memory is that of whatever files there are now",
        file="flower_privsyn/client_apps/training.py",
        function="LocalTraining.source",
        before="key = (model, _files_of(name))",
        after="key = (model, ())",
        tests=(
            "tests/client_apps/test_training.py"
            "::test_a_model_whose_files_were_replaced_is_loaded_again",
        ),
    ),
    Mutation(
        name="an answer leaves under the policy there was when it was begun",
        file=HANDLERS,
        function="_Node._charged_answer",
        before="now = guard_of(context)\n",
        after="now = guard\n",
        tests=(f"{REQUEST_TESTS}::TestAnEditedPolicy",),
    ),
    Mutation(
        name="a policy that was edited meanwhile is asked for its limit alone",
        file=GUARD,
        function="NodeGuard.charge",
        before="        self.check(charge)\n",
        after="        pass\n",
        tests=(f"{REQUEST_TESTS}::TestAnEditedPolicy",),
    ),
    Mutation(
        name="two accounts of the same data find room for the same answer",
        file=ACCOUNT,
        function="NodeLedger._locked",
        before="fcntl.flock(descriptor, fcntl.LOCK_EX)\n",
        after="pass\n",
        tests=(f"{ACCOUNT_TESTS}::TestOtherNames::test_two_at_once_find_room_for_one",),
    ),
    Mutation(
        name="a node's ledger does not say of which data it is",
        file=GUARD,
        function="NodeGuard.__init__",
        before="NodeLedger(self.dataset, data=data)\n",
        after="NodeLedger(self.dataset)\n",
        tests=(f"{ACCOUNT_TESTS}::TestOtherNames",),
    ),
    Mutation(
        name="users' text may be named as public text",
        file="flower_privsyn/dry_run/public_text.py",
        function="check_public_text",
        before="    if shared > _FEW and shared > _MOST_SHARED * min(len(written), documents):\n",
        after="    if False:\n",
        tests=("tests/dry_run/test_public_text.py::TestPublicText",),
    ),
    Mutation(
        name="the node's account believes the relation a run claims",
        file=CHARGE,
        function="release_of",
        before="    nodes = group[0].max_nodes_per_user\n",
        after="    nodes, relation = group[0].max_nodes_per_user, group[0].relation\n",
        tests=(f"{ACCOUNT_TESTS}::TestEpsilon",),
    ),
    Mutation(
        name="a user on two nodes of one round costs one release",
        file=CHARGE,
        function="_copies",
        before="if None not in deals and len(deals) == 1 else len(asked)",
        after="if None not in deals and len(deals) == 1 else 1",
        tests=(f"{ACCOUNT_TESTS}::TestWhoIsIn",),
    ),
    Mutation(
        name="a node forgets the coins that its users flip elsewhere",
        file=CHARGE,
        function="planned_release",
        before="isinstance(sampling, PoissonSampling) and alone",
        after="isinstance(sampling, PoissonSampling)",
        tests=(f"{ACCOUNT_TESTS}::TestWhoIsIn",),
    ),
    Mutation(
        name="the node charges correlated rounds with the noise of one of them",
        file=CHARGE,
        function="release_of",
        before="        multiplier = correlation.noise_multiplier(multiplier)\n",
        after="",
        tests=(f"{ACCOUNT_TESTS}::TestCorrelatedRounds",),
    ),
    Mutation(
        name="rounds of a noise stream may have other noise than was charged",
        file=ACCOUNT,
        function="NodeAccount.check",
        before="    self._check_stream(charge)\n",
        after="",
        tests=(f"{ACCOUNT_TESTS}::TestCorrelatedRounds",),
    ),
    Mutation(
        name="a stream of noise is known by its name alone",
        file=CHARGE,
        function="Charge.to_line",
        before="        if streams.get(self.correlation.stream) != self.correlation:\n",
        after="        if self.correlation.stream not in streams:\n",
        tests=(f"{ACCOUNT_TESTS}::TestCorrelatedRounds",),
    ),
    Mutation(
        name="what fitted under another limit is taken to fit under this one",
        file=ACCOUNT,
        function="NodeAccount._covered",
        before='    if any(checked.get(key) != limit.get(key) for key in {*limit, "others"}):\n',
        after="    if False:\n",
        tests=(f"{ACCOUNT_TESTS}::TestLimit",),
    ),
    Mutation(
        name="two processes read a ledger at once",
        file="flower_privsyn/privacy/ledger_file.py",
        function="_lock",
        before="fcntl.LOCK_EX | (0 if wait",
        after="fcntl.LOCK_SH | (0 if wait",
        tests=(f"{ACCOUNT_TESTS}::TestFile", "tests/privacy/test_ledger.py"),
    ),
    Mutation(
        name="a torn line of a node ledger is continued",
        file=ACCOUNT,
        function="NodeLedger.charge",
        before="        if torn:\n",
        after="        if False:\n",
        tests=(f"{ACCOUNT_TESTS}::TestFile",),
    ),
    Mutation(
        name="a run that does not fit is refused only after it has begun",
        file=GUARD,
        function="NodeGuard.check_plan",
        before="    if not within(cost, policy):\n",
        after="    if False:\n",
        tests=(POLICY_TESTS, SERVER_TESTS),
    ),
    Mutation(
        name="a server may name any model",
        file=GUARD,
        function="NodeGuard.check_model",
        before="    if name not in models:\n",
        after="    if False:\n",
        tests=(f"{POLICY_TESTS}::TestModels",),
    ),
    Mutation(
        name="the files of a model are not compared",
        file=GUARD,
        function="NodeGuard.check_files",
        before="    if found != wanted:\n",
        after="    if False:\n",
        tests=(f"{POLICY_TESTS}::TestModels",),
    ),
    Mutation(
        name="the path a run names makes a fresh account",
        file=GUARD,
        function="unnamed",
        before=' or "default"\n',
        after=' or str(node_config.get("partition-id", "none"))\n',
        tests=(f"{POLICY_TESTS}::TestDataset", SERVER_TESTS),
    ),
    Mutation(
        name="a question's sensitivity may be below its clip norm",
        file=WIRE,
        function="_check_claim",
        before="ask.mechanism.l2_sensitivity < most * (1 - 1e-9):\n",
        after="False:\n",
        tests=("tests/messages/test_wire.py",),
    ),
    Mutation(
        name="a run that names what a SuperNode reads is not refused",
        file=RECIPE,
        function="users_of_node",
        before="        _refuse_names_of(run, own)\n",
        after="",
        tests=(f"{REQUEST_TESTS}::TestWhoChooses",),
    ),
    Mutation(
        name="one group of users takes every turn",
        file=WIRE,
        function="_check_claim",
        before="sampling.round_number != ask.round_number:\n",
        after="False:\n",
        tests=("tests/messages/test_wire.py",),
    ),
    Mutation(
        name="a node draws more users than the whole cohort has",
        file=WIRE,
        function="_check_claim",
        before="<= min(sampling.sample_size, ask.roster_users)",
        after="<= ask.roster_users",
        tests=("tests/messages/test_wire.py",),
    ),
    Mutation(
        name="a cohort of a fixed size is drawn of users who are on several nodes",
        file=WIRE,
        function="_check_claim",
        before=" and ask.data.max_nodes_per_user > 1:\n",
        after=" and False:\n",
        tests=("tests/messages/test_wire.py",),
    ),
    Mutation(
        name="users on several nodes are accounted for as drawn once in a cohort of a fixed size",
        file=CHARGE,
        function="planned_release",
        before="if not alone or relation is NeighboringRelation.ADD_REMOVE:\n",
        after="if relation is NeighboringRelation.ADD_REMOVE:\n",
        tests=(f"{ACCOUNT_TESTS}::TestEpsilon",),
    ),
    Mutation(
        name="a population is smaller than the users of one of its nodes",
        file="flower_privsyn/client_apps/answer.py",
        function="chosen_users",
        before="sampling.population < len(user_ids):\n",
        after="False:\n",
        tests=(f"{REQUEST_TESTS}::TestWhoIsDrawn",),
    ),
    Mutation(
        name="a node that has lost users draws as many as before",
        file="flower_privsyn/client_apps/answer.py",
        function="chosen_users",
        before="        if announced > len(user_ids):\n",
        after="        if False:\n",
        tests=(f"{REQUEST_TESTS}::TestWhoIsDrawn",),
    ),
    Mutation(
        name="a node answers for more users than it announced, is charged and left out",
        file="flower_privsyn/client_apps/answer.py",
        function="chosen_users",
        before="    elif len(user_ids) > announced:\n",
        after="    elif False:\n",
        tests=("tests/private_path/test_unreliable_nodes.py::TestNodesWhoseDataGrow",),
    ),
    Mutation(
        name="under secure aggregation all nodes are told how many users the first has announced",
        file="flower_privsyn/private_path/aggregation/secure.py",
        function="Secure.messages",
        before=" sample_count=-1, roster_users=-1)",
        after=" sample_count=-1)",
        tests=("tests/private_path/test_unreliable_nodes.py::TestNodesWhoseDataGrow",),
    ),
    Mutation(
        name="a refusal tells how many users were drawn",
        file="flower_privsyn/client_apps/answer.py",
        function="chosen_users",
        before="if ask.query.answer_bound(announced) > LARGEST_SUM:\n",
        after=(
            "drawn = sampling.participants(user_ids, key=ask.sampling_key)\n"
            "    if ask.query.answer_bound(int(drawn.sum())) > LARGEST_SUM:\n"
        ),
        tests=(
            "tests/client_apps/test_answer.py"
            "::test_whether_a_question_is_too_large_does_not_hang_on_the_coins",
        ),
    ),
    Mutation(
        name="coins of one round show again in another",
        file=ACCOUNT,
        function="NodeAccount.check",
        before="    self._check_coins(charge)\n",
        after="",
        tests=(f"{ACCOUNT_TESTS}::TestCoins", f"{REQUEST_TESTS}::TestWhoIsDrawn"),
    ),
    Mutation(
        name="an answer is charged without the digest of its sampling key",
        file=CHARGES,
        function="charge_of",
        before="        coins=_coins(ask),\n",
        after="",
        tests=(f"{REQUEST_TESTS}::TestWhoIsDrawn",),
    ),
    Mutation(
        name="the draw of one round shows again in another",
        file=CHARGES,
        function="_coins",
        before="PoissonSampling | FixedSizeSampling",
        after="PoissonSampling",
        tests=(f"{REQUEST_TESTS}::TestWhoIsDrawn",),
    ),
    Mutation(
        name="a batch of long documents has a mask without a zero",
        file="flower_privsyn/node/paraphrase.py",
        function="Paraphraser.__init__",
        before="self._width = begun + max_document_tokens + 1",
        after="self._width = begun + max_document_tokens",
        tests=("tests/node/test_paraphrase.py::test_no_document_fills_its_row",),
    ),
    Mutation(
        name="what is told is written before it is charged",
        file="flower_privsyn/node/paraphrase.py",
        function="paraphrase_file",
        before=(
            "            append_json_lines(ledger, lines)\n"
            "            append_json_lines(\n"
            "                output,\n"
            "                [\n"
            '                    {"client_id": documents[place][0], "text": text, '
            '"document": place}\n'
            "                    for place, text in zip(places, batch, strict=True)\n"
            "                ],\n"
            "            )\n"
        ),
        after=(
            "            append_json_lines(\n"
            "                output,\n"
            "                [\n"
            '                    {"client_id": documents[place][0], "text": text, '
            '"document": place}\n'
            "                    for place, text in zip(places, batch, strict=True)\n"
            "                ],\n"
            "            )\n"
            "            append_json_lines(ledger, lines)\n"
        ),
        tests=("tests/node/test_paraphrase.py",),
    ),
    Mutation(
        name="a server may name no model at all",
        file=GUARD,
        function="NodeGuard.check_model",
        before="(name and name == self._own_models[kind])",
        after="name == self._own_models[kind]",
        tests=(f"{POLICY_TESTS}::TestModels",),
    ),
    Mutation(
        name="a request names no embedding model",
        file="flower_privsyn/messages/data_request.py",
        function="data_request",
        before="if embeds and not model",
        after="if False",
        tests=("tests/messages/test_wire.py",),
    ),
    Mutation(
        name="a second question in a round is free for users on several nodes",
        file=CHARGE,
        function="_multiplier",
        before="        most = max(copies, nodes * here) * ",
        after="        most = copies * ",
        tests=(f"{ACCOUNT_TESTS}::TestWhoIsIn",),
    ),
    Mutation(
        name="a link that leads elsewhere makes a fresh account",
        file=GUARD,
        function="data_name",
        before="    return os.path.abspath(path) if path.exists()",
        after="    return str(path.resolve()) if path.exists()",
        tests=(f"{POLICY_TESTS}::TestDataset",),
    ),
    Mutation(
        name="half a policy is a laxer policy",
        file="flower_privsyn/node/policy.py",
        function="NodePolicy.read",
        before='    if "max-epsilon" not in values:\n',
        after="    if False:\n",
        tests=(f"{POLICY_TESTS}::TestFile",),
    ),
    Mutation(
        name="a request that comes again is answered free of charge",
        file=ACCOUNT,
        function="NodeLedger.charge",
        before="            checked = account.check(charge, policy)\n",
        after="            if charge in account.every:\n"
        "                return\n"
        "            checked = account.check(charge, policy)\n",
        tests=(f"{ACCOUNT_TESTS}::TestLimit", f"{REQUEST_TESTS}::TestWhoChooses"),
    ),
    Mutation(
        name="what was begun with other documents is told a second time",
        file="flower_privsyn/node/paraphrase.py",
        function="paraphrase_file",
        before='        "texts": _digest(documents),\n',
        after='        "texts": "",\n',
        tests=("tests/node/test_paraphrase.py",),
    ),
    Mutation(
        name="two processes tell the same documents",
        file="flower_privsyn/node/paraphrase.py",
        function="_held",
        before="        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        after="",
        tests=("tests/node/test_paraphrase.py",),
    ),
    Mutation(
        name="the files of a model are compared and others loaded",
        file=GUARD,
        function="NodeGuard.check_files",
        before="    return str(folder)\n",
        after="    return name\n",
        tests=(f"{REQUEST_TESTS}::test_what_is_loaded_is_what_was_compared",),
    ),
    Mutation(
        name="a folder beside the process is taken for a bundled model",
        file="flower_privsyn/client_apps/training.py",
        function="LocalTraining.source",
        before="model.name if model.name in BUNDLED_MODELS else located(model.name)",
        after="located(model.name)",
        tests=(f"{REQUEST_TESTS}::test_what_is_loaded_is_what_was_compared",),
    ),
    Mutation(
        name="a node's account lies where others can write",
        file="flower_privsyn/files.py",
        function="own_folder",
        before="status.st_uid != os.geteuid() or status.st_mode & 0o022:\n",
        after="False:\n",
        tests=(f"{ACCOUNT_TESTS}::TestFile",),
    ),
    Mutation(
        name="without hard links a ledger may replace another",
        file="flower_privsyn/privacy/ledger_file.py",
        function="_name",
        before="            _lock(turn, path, wait=True)\n",
        after="",
        tests=(f"{ACCOUNT_TESTS}::TestFile",),
    ),
    Mutation(
        name="deployed nodes of one machine compare their users",
        file="flower_privsyn/client_apps/node_users.py",
        function="NodeUsers._check_deal",
        before='    if not in_simulation() or "num-partitions" not in own',
        after='    if "num-partitions" not in own',
        tests=("tests/client_apps/test_deal.py::test_a_deployment_cannot_tell",),
    ),
)
