"""Planted mistakes: one for every sentence of README's *What is promised* and of the threat model.

Each names the heading that it stands under and what is promised there. Whatever else a mistake in
these rooms could be is planted by mutmut (pyproject.toml, `[tool.mutmut]`).
"""

from __future__ import annotations

from mutation import Mutation

#: README.md, *What is promised*, by the bold words that a sentence begins with.
PROMISED: dict[str, tuple[Mutation, ...]] = {
    "The server sees each node's raw sum": (
        Mutation(
            name="a node answers without noise",
            guards="with secure aggregation it sees one sum, in which the noise is",
            where="client_apps/secure.py::SecureRounds.answer",
            before="values: Vector = (total + noise).view(np.uint64)",
            after="values: Vector = (total + 0 * noise).view(np.uint64)",
            tests=("tests/run/test_secure.py::TestSums::test_released_noise_has_the_stated_law",),
        ),
        Mutation(
            name="a node takes noise that no node can have a share of",
            guards="not where noise is correlated",
            where="messages/wire.py::_check_claim",
            before="    if ask.secure is not None and (\n",
            after="    if ask.secure is None and (\n",
            tests=("tests/messages/test_wire.py",),
        ),
        Mutation(
            name="a second base class may replace the private path",
            guards="the raw sum dies in code that no method replaces",
            where="run/strategy.py::PrivateSumStrategy.__init_subclass__",
            before="if owner is not PrivateSumStrategy:\n",
            after="if owner is cls:\n",
            tests=(
                "tests/run/test_engine.py::TestLedgerComesFirst::test_the_path_cannot_be_replaced_by_a_method",
            ),
        ),
    ),
    "Per person": (
        Mutation(
            name="the sum is clipped, not each user",
            guards="answers are clipped user by user",
            where="queries/query.py::Query.contribution",
            before="    return self._clip(statistic)\n",
            after=(
                "    whole = self._clip(statistic.sum(axis=0, keepdims=True))\n"
                "    return np.repeat(whole, len(statistic), axis=0) / max(1, len("
                "statistic))\n"
            ),
            tests=("tests/queries/test_contract.py",),
        ),
        Mutation(
            name="NaN passes the clip",
            guards="whatever an answer holds",
            where="privacy/mechanisms.py::_tamed",
            before="    rows[~np.isfinite(rows).all(axis=1)] = 0.0\n",
            after="",
            tests=("tests/privacy/test_clipping.py",),
        ),
        Mutation(
            name="a second base class may replace the clipping",
            guards="in code that no method replaces",
            where="queries/query.py::Query.__init_subclass__",
            before="if owner is not Query:\n",
            after="if owner is cls:\n",
            tests=("tests/queries/test_nearest_neighbor.py",),
        ),
        Mutation(
            name="the cap on samples is not enforced",
            guards="however much a user wrote",
            where="queries/query.py::Query._usable",
            before="return cohort if self.max_records is None else cohort.cap(self.max_records)",
            after="return cohort",
            tests=("tests/queries/test_contract.py",),
        ),
        Mutation(
            name="a user on two nodes has the noise of one",
            guards="people on several nodes raise the noise",
            where="run/strategy.py::ask_of",
            before="l2_sensitivity=settings.max_nodes_per_user * question.query.clip_norm",
            after="l2_sensitivity=question.query.clip_norm",
            tests=("tests/run/test_several_nodes.py::test_the_noise_is_k_times_that_of_one_node",),
        ),
        Mutation(
            name="coins on several nodes accounted as one coin",
            guards="coins on several nodes hide nobody",
            where="privacy/accounting.py::cost",
            before="release.max_nodes_per_user > 1",
            after="False",
            tests=(
                "tests/privacy/test_several_nodes.py::test_a_coin_on_each_of_several_nodes_hides_nobody",
            ),
        ),
    ),
    "Noise exactly as accounted for": (
        Mutation(
            name="fixed-size sampling accounted as Poisson",
            guards="epsilon_release is that of how users are drawn",
            where="privacy/accounting.py::cost",
            before='return ("fixed", multiplier / 2.0, sampling.rate)',
            after='return ("poisson", multiplier, sampling.rate)',
            tests=(
                "tests/privacy/test_accounting.py::test_fixed_size_cohorts_cost_what_an_instance_of_them_shows",
            ),
        ),
        Mutation(
            name="whose cohort is known is still amplified",
            guards="epsilon_known_cohorts gains nothing from the draw",
            where="privacy/accounting.py::_with_known_cohorts",
            before="known[replace(release, sampling=everyone)] += count",
            after="known[release] += count",
            tests=("tests/privacy/test_accounting.py::test_the_server_sees_no_amplification",),
        ),
        Mutation(
            name="the size of a secret cohort is written down",
            guards="what depends on a secret draw is in no file",
            where="privacy/ledger.py::PrivacyLedger._charge",
            before="None if spec.sampling.hides_cohort else num_users",
            after="num_users",
            tests=(
                "tests/privacy/test_ledger.py::test_the_size_of_a_poisson_cohort_stays_out_of_the_file",
                "tests/run/test_secret_cohorts.py::test_no_byte_tells_who_was_drawn",
            ),
        ),
        Mutation(
            name="replace-one does not double the sensitivity",
            guards="a replaced user moves a sum twice as far",
            where="privacy/accounting.py::cost",
            before='return ("gaussian", multiplier / 2.0 if replaced else multiplier, 1.0)',
            after='return ("gaussian", multiplier, 1.0)',
            tests=(
                "tests/privacy/test_accounting.py::test_replace_one_doubles_the_sensitivity_by_both_accountants",
            ),
        ),
        Mutation(
            name="noise divided by the number of users",
            guards="noise of the whole sensitivity",
            where="run/strategy.py::PrivateSumStrategy._release",
            before="from_grid(spec.mechanism.release_steps(collected.total, random=random))",
            after=(
                "from_grid(collected.total) + from_grid(\n"
                "spec.mechanism.release_steps(0 * collected.total, random=random)\n"
                ") / max(1, num_users)"
            ),
            tests=("tests/run/test_engine.py::TestNoise",),
        ),
        Mutation(
            name="noise comes from a fixed seed",
            guards="from the system's source",
            where="privacy/randomness.py::SecureRandom.uint64",
            before='np.frombuffer(os.urandom(8 * n), dtype="<u8").astype(np.uint64, copy=False)',
            after="np.random.default_rng(0).integers(0, 2**64, size=n, dtype=np.uint64)",
            tests=("tests/privacy/test_randomness.py",),
        ),
        Mutation(
            name="noise of floats, not rounded",
            guards="as whole numbers",
            where="privacy/mechanisms.py::GaussianMechanism.release_steps",
            before="total + random.rounded_normal(self.standard_deviation * STEPS, len(total))",
            after=(
                "total + self.standard_deviation * STEPS * np.random.default_rng("
                ").standard_normal(len(total))"
            ),
            tests=("tests/privacy/test_grid.py::test_no_release_says_that_the_canary_is_there",),
        ),
        Mutation(
            name="correlated rounds are released with independent noise",
            guards="correlated noise as its matrix has it",
            where="run/strategy.py::PrivateSumStrategy._release",
            before="        random = started.noise\n",
            after="",
            tests=("tests/strategies/test_dp_ftrl.py::TestNoise",),
        ),
        Mutation(
            name="the innovations' noise multiplier is taken for that of all rounds",
            guards="and at what it costs",
            where="privacy/correlated_noise.py::Correlation.noise_multiplier",
            before="    return round_multiplier / self.sensitivity\n",
            after="    return round_multiplier\n",
            tests=("tests/privacy/test_correlated_noise.py::test_the_first_round_pays_for_all",),
        ),
        Mutation(
            name="correlated noise forgets a round that was left out",
            guards="and once",
            where="privacy/correlated_noise.py::CorrelatedNoise.prepare",
            before="range(step - self._step)",
            after="range(1)",
            tests=(
                "tests/privacy/test_correlated_noise.py::test_a_round_that_was_left_out_costs_its_noise",
            ),
        ),
        Mutation(
            name="a release is not charged",
            guards="what is spent is written down before it is used",
            where="run/strategy.py::PrivateSumStrategy._release",
            before=(
                "    started.ledger.charge(round=spec.round, num_users=num_users, "
                "extra=collected.facts)\n"
            ),
            after="",
            tests=("tests/run/test_engine.py::TestLedgerComesFirst",),
        ),
        Mutation(
            name="an interrupted round is not charged",
            guards="a run that is killed pays for the open round",
            where="privacy/ledger.py::PrivacyLedger.open",
            before="        for started in list(ledger._pending.values()):\n",
            after=(
                "        ledger._pending.clear()\n"
                "        for started in list(ledger._pending.values()):\n"
            ),
            tests=("tests/privacy/test_ledger.py",),
        ),
        Mutation(
            name="the budget is not checked",
            guards="and never exceeds its budget",
            where="privacy/ledger.py::PrivacyLedger._check_budget",
            before="    if not self._is_covered(spec) and not self.allows({spec.release: 1}):\n",
            after="    if False:\n",
            tests=("tests/privacy/test_ledger.py",),
        ),
        Mutation(
            name="calibrated noise may cost more than the budget",
            guards="also in what it plans",
            where="privacy/calibrated.py::calibrated",
            before=(
                "    if epsilon is not None and plan.epsilon() > epsilon * (1.0 + _ROUNDING):\n"
            ),
            after="    if False:\n",
            tests=("tests/run/test_plan.py::TestSettledNoise",),
        ),
    ),
    "Little leaves a node": (
        Mutation(
            name="an exception's text leaves the client",
            guards="a numbered error, and no text",
            where="client_apps/handlers.py::_register",
            before=(
                "                exc_info=bool(os.environ.get(environment.CLIENT_TRACEBACK)),\n"
                "            )\n"
                "            return wire.error_reply(wire.ClientErrorCode.INTERNAL, message)\n"
            ),
            after=(
                "                exc_info=bool(os.environ.get(environment.CLIENT_TRACEBACK)),\n"
                "            )\n"
                "            from flwr.app import Error\n"
                "\n"
                "            return Message(Error(code=1000, reason=str(error)), "
                "reply_to=message)\n"
            ),
            tests=("tests/run/test_engine.py::TestWhatLeavesAClient",),
        ),
        Mutation(
            name="a node's CPU time travels with its answer",
            guards="no measurement",
            where="client_apps/handlers.py::_register",
            before="                reply = step(message, context)\n",
            after=(
                "                reply = step(message, context)\n"
                "                from flwr.app import MetricRecord\n"
                '                reply.content["cpu"] = MetricRecord({"seconds": 1.0})\n'
            ),
            tests=("tests/evaluation/test_costs.py::TestClientTime",),
        ),
        Mutation(
            name="a node's head-count travels with its masked answer",
            guards="the number of users not where a sum hides it",
            where="client_apps/secure.py::SecureRounds.answer",
            before=(
                "    return Message(secure_wire.pack_masked(masked, signature), reply_to=message)\n"
            ),
            after=(
                "    reply = Message(secure_wire.pack_masked(masked, signature), "
                "reply_to=message)\n"
                "    from flwr.app import ConfigRecord\n"
                '    reply.content["privsyn.cohort"] = ConfigRecord({"num_users": len('
                "values)})\n"
                "    return reply\n"
            ),
            tests=("tests/run/test_secure.py::TestSums",),
        ),
    ),
    "Deployed nodes keep their own account": (
        Mutation(
            name="an answer leaves before the node has charged it",
            guards="an answer is charged before it leaves",
            where="client_apps/handlers.py::_Node.answer",
            before=(
                "    answer, bound = self._charged_answer(ask, message, context)\n"
                "    return Message(wire.pack_answer(answer, bound=bound), reply_to=message)\n"
            ),
            after=(
                "    guard = guard_of(context)\n"
                "    charge, type(guard).charge = type(guard).charge, lambda *_, **__: None\n"
                "    answer, bound = self._charged_answer(ask, message, context)\n"
                "    type(guard).charge = charge\n"
                "    left = Message(wire.pack_answer(answer, bound=bound), reply_to=message)\n"
                "    guard.charge(charge_of(ask, context, guard))\n"
                "    return left\n"
            ),
            tests=(
                "tests/client_apps/test_servers.py::test_kill_9_between_charge_and_answer_never_counts_less",
            ),
        ),
        Mutation(
            name="the node's account believes the relation a run claims",
            guards="under the owner's relation",
            where="client_apps/account.py::release_of",
            before="    first = group[0].spec\n",
            after="    first, relation = group[0].spec, group[0].spec.relation\n",
            tests=("tests/client_apps/test_account.py::TestEpsilon",),
        ),
        Mutation(
            name="a user on two nodes of one round costs one release",
            guards="of every answer that a user is in",
            where="client_apps/account.py::_multiplier",
            before="    if len(asked) > 1:\n",
            after="    if len(asked) > 2:\n",
            tests=("tests/client_apps/test_account.py::TestWhoIsIn",),
        ),
        Mutation(
            name="the path a run names makes a fresh account",
            guards="over all runs of all servers",
            where="client_apps/guard.py::dataset_name",
            before=' or "default"\n',
            after=' or str(node_config.get("partition-id", "none"))\n',
            tests=("tests/client_apps/test_policy.py::TestDataset",),
        ),
        Mutation(
            name="coins of one round show again in another",
            guards="a draw that shows twice hides nobody",
            where="client_apps/account.py::NodeAccount.check",
            before="    self._check_sampling_key(charge)\n",
            after="",
            tests=("tests/client_apps/test_account.py::TestCoins",),
        ),
        Mutation(
            name="an owner who requires secure aggregation is asked in the clear",
            guards="an owner who wants secure aggregation gets it",
            where="client_apps/guard.py::NodeGuard.check",
            before="secure=charge.secure is not None",
            after="secure=True",
            tests=(
                "tests/client_apps/test_secure.py::test_an_owner_may_require_secure_aggregation",
            ),
        ),
    ),
}

#: docs/threat_model.md, by its headings.
THREATS: dict[str, tuple[Mutation, ...]] = {
    "What is protected": (
        Mutation(
            name="a run begins with a model that has learnt private text",
            guards="a model that has learnt private text begins no run",
            where="run/federation.py::set_up",
            before="    provenance.refuse(settings.to_dict())\n",
            after="",
            tests=("tests/models/test_provenance.py::test_a_run_stops_before_anything_is_spent",),
        ),
        Mutation(
            name="classes are asked without the owner's consent",
            guards="classes are asked of nodes whose owner names the column",
            where="client_apps/handlers.py::_Node._charged_answer",
            before="    guard.check_classes(ask.data.classes)\n",
            after="",
            tests=("tests/client_apps/test_requests.py",),
        ),
    ),
    "Who sees what": (
        Mutation(
            name="the owner's folder is open to others",
            guards="the owner's folder is for its owner",
            where="run/directory.py::OwnerFolder.make",
            before="    self.path.chmod(0o700)\n",
            after="    self.path.chmod(0o755)\n",
            tests=(
                "tests/run/test_directory.py::test_the_owner_s_folder_is_beside_the_run_and_for_the_owner_alone",
            ),
        ),
        Mutation(
            name="anybody may read the releases",
            guards="releases are for the run's owner",
            where="run/rounds.py::store_release",
            before="replacing(target, for_the_owner=True)",
            after="replacing(target)",
            tests=("tests/run/test_engine.py::TestTheGrid",),
        ),
        Mutation(
            name="anybody on the machine reads the records",
            guards="stored records are for the node's owner",
            where="embedding/records.py::RecordStore.put",
            before="replacing(self._path(key), for_the_owner=True)",
            after="replacing(self._path(key))",
            tests=("tests/embedding/test_records.py::TestEntries",),
        ),
    ),
    "What leaves a client": (
        Mutation(
            name="how long an answer is tells how many took part",
            guards="the length of an answer says nothing of who took part",
            where="client_apps/handlers.py::_Node._charged_answer",
            before="    bound = ask.query.answer_bound(ask.announced(len(prepared.user_ids)))\n",
            after="    bound = ask.query.answer_bound(num_users)\n",
            tests=("tests/client_apps/test_reads.py::TestText",),
        ),
    ),
    "Secure aggregation": (
        Mutation(
            name="a node gives both shares of a node that answered",
            guards="nobody uncovers the answer of one node",
            where="secure_aggregation/node.py::unmask",
            before="for name in sorted(shares.keys() - inside)",
            after="for name in sorted(shares)",
            tests=("tests/secure_aggregation/test_protocol.py::TestWhatTheServerSees",),
        ),
        Mutation(
            name="colluding nodes are counted on for their noise",
            guards="the noise holds while at most colluding-nodes tell what they know",
            where="secure_aggregation/terms.py::Terms.noise_share",
            before="return 1.0 / math.sqrt(self.honest)",
            after="return 1.0 / math.sqrt(self.least_nodes)",
            tests=(
                "tests/secure_aggregation/test_noise.py::test_variance_at_exactly_t_less_c_honest_nodes",
            ),
        ),
    ),
    "What one user can move": (
        Mutation(
            name="a forward pass has as many rows as there are texts",
            guards="every product has one shape",
            where="embedding/embedder.py::SentenceTransformerEmbedder._padded",
            before="*[self._filler] * (ROWS - len(rows))",
            after="",
            tests=("tests/embedding/test_batch_invariance.py::TestPasses",),
        ),
        Mutation(
            name="products round what a library's order decides",
            guards="and adds up without rounding",
            where="queries/arithmetic.py::exact_product",
            before=("    np.rint(scaled, out=scaled)\n    result"),
            after="    result",
            tests=("tests/queries/test_contract.py",),
        ),
        Mutation(
            name="nearly equal candidates are told apart by a float32 product",
            guards="near ties are decided in float64",
            where="queries/nearest_neighbor.py::_best_with_ties",
            before="    doubtful = ~(top - second > tolerance)",
            after="    doubtful = (top - second > tolerance) & False",
            tests=("tests/queries/test_nearest_neighbor.py",),
        ),
        Mutation(
            name="candidates are ruled out as if a product in bfloat16 were exact",
            guards="near ties are decided in float64",
            where="queries/candidate_pruning.py::possible",
            before="0.992 * top - 2.0 * error",
            after="0.992 * top",
            tests=("tests/queries/test_nearest_neighbor.py",),
        ),
        Mutation(
            name="a machine that breaks batch invariance is not asked",
            guards="a machine that breaks this ends the run",
            where="client_apps/records.py::EmbeddingSource.vectors",
            before="    require_batch_invariance(self.embedder)\n",
            after="",
            tests=("tests/client_apps/test_batch_invariance.py",),
        ),
        Mutation(
            name="a user is trained from where the one before ended",
            guards="training begins anew for every user",
            where="training/local.py::LocalModel.update",
            before=("        return None\n    self._begin_anew()\n"),
            after="        return None\n",
            tests=("tests/training/test_local.py::TestUpdate",),
        ),
    ),
    "What a failing or hostile node can do": (
        Mutation(
            name="a user whose answer fails takes the sum along",
            guards="a user whose answer fails answers zero",
            where="client_apps/handlers.py::add_answer",
            before="add_answer(query, half, broadcast, total)",
            after="pass",
            tests=("tests/client_apps/test_answer.py::TestAddAnswer",),
        ),
        Mutation(
            name="no cap on one user's documents",
            guards="of one user so many documents are looked at",
            where="data/chunking.py::within_limits",
            before="(documents > MAX_DOCUMENTS) | (characters > MAX_CHARACTERS)",
            after="characters > MAX_CHARACTERS",
            tests=("tests/data/test_limits.py",),
        ),
        Mutation(
            name="a line of nobody's drops a user from the roster",
            guards="nobody is dropped from the roster by a damaged file",
            where="data/read.py::_read_json",
            before="in json_values(path):",
            after="in (one for one in json_values(path) if isinstance(one[1], dict)):",
            tests=("tests/data/test_read.py",),
        ),
        Mutation(
            name="a second reply of a node is added up",
            guards="a node answers a round once",
            where="run/aggregation.py::first_replies",
            before="        if node in seen:\n",
            after="        if False:\n",
            tests=("tests/run/test_unreliable_nodes.py::TestMisbehavingNodes::test_second_reply",),
        ),
        Mutation(
            name="a round that nobody answered is released as pure noise",
            guards="a round that nobody answered is no release",
            where="run/settings.py::PrivateSumConfig.required_users",
            before="    return max(1, self.min_users)\n",
            after="    return self.min_users\n",
            tests=("tests/run/test_spending.py::TestSilence",),
        ),
        Mutation(
            name="a round of a secret cohort may be discarded",
            guards="a secret draw decides about no round",
            where="privacy/ledger.py::PrivacyLedger.discard",
            before=("    if spec.sampling.hides_cohort:\n        raise"),
            after=("    if False:\n        raise"),
            tests=("tests/run/test_secret_cohorts.py::TestRefusals",),
        ),
        Mutation(
            name="a discarded round of correlated noise is asked again",
            guards="correlated rounds are not asked again",
            where="run/strategy.py::PrivateSumStrategy.aggregate_train",
            before=" or correlated:\n",
            after=":\n",
            tests=("tests/run/test_spending.py::TestSilence",),
        ),
    ),
    "Other users of the same machine": (
        Mutation(
            name="a node's account lies where others can write",
            guards="a ledger folder that others can write is refused",
            where="files.py::own_folder",
            before="status.st_uid != os.geteuid() or status.st_mode & 0o022:\n",
            after="False:\n",
            tests=("tests/client_apps/test_account.py::TestFile",),
        ),
    ),
    "Models that the server names": (
        Mutation(
            name="the code of an embedding model is trusted",
            guards="no code that comes with a model is run",
            where="embedding/embedder.py::_load",
            before="trust_remote_code=False",
            after="trust_remote_code=True",
            tests=("tests/embedding/test_trust.py::test_the_library_is_not_told_to_trust",),
        ),
        Mutation(
            name="a server may name any model",
            guards="the owner says which models",
            where="client_apps/guard.py::NodeGuard.check_model",
            before="    if name not in models:\n",
            after="    if False:\n",
            tests=("tests/client_apps/test_policy.py::TestModels",),
        ),
        Mutation(
            name="the files of a model are compared and others loaded",
            guards="and of which files",
            where="client_apps/guard.py::NodeGuard.check_files",
            before="    return str(folder)\n",
            after="    return name\n",
            tests=("tests/client_apps/test_requests.py::test_what_is_loaded_is_what_was_compared",),
        ),
    ),
    "A run directory that somebody hands over": (
        Mutation(
            name="an owner's folder that somebody else wrote is obeyed",
            guards="nothing is acted on that this user has not written",
            where="run/directory.py::OwnerFolder.own",
            before="return stated if seal is not None and seal == _seal_of(stated) else {}",
            after="return stated",
            tests=("tests/cli/test_handed_over.py::test_nobody_elses_app_is_run",),
        ),
        Mutation(
            name="a run directory may lead elsewhere",
            guards="it opens nothing outside of it",
            where="run/directory.py::RunDirectory.open",
            before="refuse_links(run.path)",
            after="pass",
            tests=(
                "tests/cli/test_handed_over.py::test_a_directory_that_leads_elsewhere_is_refused",
            ),
        ),
    ),
    "The key of a generation server": (
        Mutation(
            name="a server's refusal is quoted with the key in it",
            guards="it is in no message",
            where="generation/openai_backend.py::OpenAIGenerator._message",
            before="text = redact(words, self._api_key)[:_MAX_MESSAGE_LETTERS]",
            after="text = words[:_MAX_MESSAGE_LETTERS]",
            tests=(
                "tests/generation/test_openai_backend.py::test_a_key_that_a_server_quotes_is_not_passed_on",
            ),
        ),
        Mutation(
            name="a password in the generator's address is written into the run directory",
            guards="and in no file",
            where="generation/generators.py::GeneratorSettings.__post_init__",
            before="    check_address(self.generator)\n",
            after="    pass\n",
            tests=("tests/generation/test_api_key.py",),
        ),
    ),
    "Several runs, several servers": (
        Mutation(
            name="a request that comes again is answered free of charge",
            guards="a request that comes again is charged again",
            where="client_apps/account.py::NodeLedger.charge",
            before="        account.check(charge, policy)\n",
            after=(
                "        if charge in account.charges:\n"
                "            return\n"
                "        account.check(charge, policy)\n"
            ),
            tests=("tests/client_apps/test_account.py::TestLimit",),
        ),
    ),
    "When the server dies": (
        Mutation(
            name="a lost ledger is not noticed",
            guards="a ledger that is gone is noticed",
            where="run/rounds.py::KeptRounds.go_on",
            before="    self._refuse_missing_lines(charged)\n",
            after="",
            tests=("tests/run/test_killed_runs.py::TestResume",),
        ),
        Mutation(
            name="a lost memory of the noise is not noticed",
            guards="and so is the memory of the noise",
            where="run/strategy.py::PrivateSumStrategy._open_noise",
            before="    if released is not None and released > started.noise.last_round:\n",
            after="    if False:\n",
            tests=("tests/strategies/test_dp_ftrl.py::TestRestart",),
        ),
    ),
    "What the digits of a release say": (
        Mutation(
            name="the last bits of the noise are zero",
            guards="every digit is the noise's",
            where="privacy/randomness.py::_kept",
            before="    return rounded * sign\n",
            after="    return rounded * sign & ~3\n",
            tests=("tests/privacy/test_grid.py",),
        ),
        Mutation(
            name="correlated noise without its last part",
            guards="also where it is correlated",
            where="privacy/correlated_noise.py::CorrelatedNoise.rounded_normal",
            before="    parts += self._random.rounded_normal(math.ldexp(last, bits), size)\n",
            after="",
            tests=(
                "tests/privacy/test_grid.py::test_the_last_digits_of_correlated_noise_are_fair",
            ),
        ),
    ),
    "Time": (
        Mutation(
            name="whole seconds of a round stand in metrics.jsonl",
            guards="no time is in any file",
            where="run/strategy.py::PrivateSumStrategy.aggregate_train",
            before="    rounds.record(released, metrics)\n",
            after=(
                '    metrics["seconds_feedback"] = round(answered - asked.begun)\n'
                "    rounds.record(released, metrics)\n"
            ),
            tests=("tests/run/test_canary.py::test_a_canary_changes_no_byte[private-evolution]",),
        ),
        Mutation(
            name="files keep the dates of their rounds",
            guards="nor in the dates of files",
            where="run/run_format.py::hide_dates",
            before="os.utime(Path(folder, entry), (moment, moment), follow_symlinks=False)\n",
            after="pass\n",
            tests=("tests/run/test_directory.py::test_files_get_the_date_of_the_creation",),
        ),
    ),
    "A ledger that was cut": (
        Mutation(
            name="a shorter ledger is taken",
            guards="what other files state of it is compared",
            where="privacy/ledger.py::PrivacyLedger.open",
            before="        refuse_cut(file.path, file.digests, stated or {})\n",
            after="",
            tests=(
                "tests/privacy/test_ledger.py::test_a_shorter_ledger_is_refused_and_left_alone",
            ),
        ),
        Mutation(
            name="metrics do not state the ledger's last line",
            guards="every file states its last line",
            where="run/directory.py::RunDirectory.log_metrics",
            before="[{**metrics, **self._stated()}]",
            after="[metrics]",
            tests=(
                "tests/run/test_directory.py::test_every_later_file_states_the_ledger_s_last_line",
            ),
        ),
    ),
}
