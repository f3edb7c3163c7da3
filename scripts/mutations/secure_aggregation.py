"""Mistakes in secure aggregation: what would show one node's answer, or let a sum be had twice."""

from __future__ import annotations

from mutation import Mutation

NODE = "flower_privsyn/secure_aggregation/node.py"
ROSTER = "flower_privsyn/secure_aggregation/roster.py"
SHAMIR = "flower_privsyn/secure_aggregation/shamir.py"
TERMS = "flower_privsyn/secure_aggregation/terms.py"
PRIMITIVES = "tests/secure_aggregation/test_primitives.py"
PROTOCOL = "tests/secure_aggregation/test_protocol.py"
MALICIOUS = "tests/secure_aggregation/test_malicious.py"
TERMS_TESTS = "tests/secure_aggregation/test_terms.py"
NOISE = "tests/secure_aggregation/test_noise.py"
CLIENT = "flower_privsyn/client_apps/secure.py"
STORE = "flower_privsyn/node/secure.py"
PATH = "tests/private_path/test_secure.py"
SUMS = "flower_privsyn/private_path/aggregation/secure.py"
OWNERS = "tests/node/test_secure.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="masks cancel over different candidates",
        file="flower_privsyn/messages/secure.py",
        function="question_digest",
        before="        if name == _SECURE:\n",
        after="        if name == _SECURE or isinstance(record, ArrayRecord):\n",
        tests=("tests/messages/test_secure.py",),
    ),
    Mutation(
        name="a node takes noise that no node can have a share of",
        file="flower_privsyn/messages/wire.py",
        function="_check_claim",
        before="    if ask.secure is not None and (\n",
        after="    if ask.secure is None and (\n",
        tests=("tests/messages/test_wire.py",),
    ),
    Mutation(
        name="a node gives both shares of a node that answered",
        file=NODE,
        function="unmask",
        before="for name in sorted(masked.shares.keys() - inside)",
        after="for name in sorted(masked.shares)",
        tests=(f"{PROTOCOL}::TestWhatTheServerSees",),
    ),
    Mutation(
        name="a node unmasks on its own signature",
        file=NODE,
        function="unmask",
        before="needed = roster.terms.signatures(len(roster.cards))",
        after="needed = 1",
        tests=(f"{MALICIOUS}::TestAgreement",),
    ),
    Mutation(
        name="signatures on another set of survivors count",
        file=NODE,
        function="unmask",
        before="if not is_signed(message, signature, by=roster.cards[name].node_key):",
        after="if len(signature) != 64:",
        tests=(f"{MALICIOUS}::TestAgreement",),
    ),
    Mutation(
        name="a node that answered something else, or among others, is uncovered",
        file=NODE,
        function="agree",
        before="        if not is_signed(message, signed, by=state.roster.cards[name].node_key):\n",
        after="        if len(signed) != 64:\n",
        tests=(f"{MALICIOUS}::TestQuestions", f"{PROTOCOL}::TestOnACircle"),
    ),
    Mutation(
        name="a signature on an answer does not say among whom",
        file=ROSTER,
        function="answered_message",
        before='return digest("answered", context)',
        after='return digest("answered")',
        tests=(f"{MALICIOUS}::TestQuestions", f"{PROTOCOL}::TestOnACircle"),
    ),
    Mutation(
        name="nodes that the server has invented count",
        file=ROSTER,
        function="Roster.check_allowed",
        before="if allowed is not None and card.node_key not in allowed:",
        after="if False:",
        tests=(f"{MALICIOUS}::TestRosters",),
    ),
    Mutation(
        name="keys that a node did not sign are taken for its own",
        file=NODE,
        function="share",
        before="card.check(state.session)",
        after="pass",
        tests=(f"{MALICIOUS}::TestRosters",),
    ),
    Mutation(
        name="a node takes another key under its name",
        file=NODE,
        function="share",
        before="if roster.cards.get(own.name) != own:",
        after="if own.name not in roster.cards:",
        tests=(f"{MALICIOUS}::TestRosters",),
    ),
    Mutation(
        name="a question that failed is put again",
        file=CLIENT,
        function="SecureRounds.answer",
        before="        store.begin_step()\n",
        after="",
        tests=(f"{OWNERS}::TestMaliciousServers",),
    ),
    Mutation(
        name="two nodes that show one key have one mask",
        file=ROSTER,
        function="pair_context",
        before="return context + whole(min(one, other), max(one, other))",
        after="return context",
        tests=(f"{MALICIOUS}::TestCopiedKeys",),
    ),
    Mutation(
        name="two questions have one mask",
        file=ROSTER,
        function="context_of",
        before="set_digest(active), question, whole(length)",
        after="set_digest(active), whole(length)",
        tests=(f"{MALICIOUS}::TestQuestions",),
    ),
    Mutation(
        name="a node masks with those the server names",
        file=NODE,
        function="receive",
        before="if letters.keys() != neighbours:",
        after="if not letters.keys() <= neighbours:",
        tests=(f"{MALICIOUS}::TestShares",),
    ),
    Mutation(
        name="a sum of fewer than t nodes",
        file=ROSTER,
        function="Roster.check_enough",
        before="if len(nodes) < self.terms.least_nodes:",
        after="if len(nodes) < 2:",
        tests=(f"{MALICIOUS}::TestAgreement",),
    ),
    Mutation(
        name="a server may cut the circle",
        file=TERMS,
        function="Graph.is_tight",
        before="return bool(counts.min() > self.crowd)",
        after="return bool(counts.min() >= 0)",
        tests=(f"{TERMS_TESTS}::TestGraph", f"{PROTOCOL}::TestOnACircle"),
    ),
    Mutation(
        name="half of the nodes sign",
        file=TERMS,
        function="Terms.signatures",
        before="(nodes + self.colluding) // 2 + 1",
        after="nodes // 2 + 1",
        tests=(TERMS_TESTS,),
    ),
    Mutation(
        name="shares lie on a line through nothing",
        file=SHAMIR,
        function="split",
        before="np.frombuffer(os.urandom(2 * words * (threshold - 1)), dtype=",
        after="np.frombuffer(bytes(2 * words * (threshold - 1)), dtype=",
        tests=(f"{PRIMITIVES}::TestSharing",),
    ),
    Mutation(
        name="colluding nodes are counted on for their noise",
        file=TERMS,
        function="Terms.noise_share",
        before="return 1.0 / math.sqrt(self.honest)",
        after="return 1.0 / math.sqrt(self.least_nodes)",
        tests=(f"{NOISE}::test_variance_at_exactly_t_less_c_honest_nodes",),
    ),
    Mutation(
        name="a node answers without noise",
        file=CLIENT,
        function="SecureRounds.answer",
        before="values: Vector = (total + noise).view(np.uint64)",
        after="values: Vector = (total + 0 * noise).view(np.uint64)",
        tests=(f"{PATH}::TestSums::test_released_noise_has_the_stated_law",),
    ),
    Mutation(
        name="the server knows the coins under secure aggregation",
        file=CLIENT,
        function="SecureRounds.answer",
        before="drawn = replace(ask, sampling_key=os.urandom(32))",
        after="drawn = ask",
        tests=(f"{PATH}::TestSums::test_coins_are_the_nodes_own_and_everybody_answers",),
    ),
    Mutation(
        name="a node answers without enough noise on the grid",
        file=CLIENT,
        function="noise_steps",
        before="if deviation < LEAST_STEPS:",
        after="if deviation < 0:",
        tests=(f"{OWNERS}::TestMaliciousServers::test_noise_multiplier_0",),
    ),
    Mutation(
        name="a node answers a round twice",
        file=CLIENT,
        function="SecureRounds.answer",
        before="        store.keep(kept)\n",
        after="",
        tests=(f"{PATH}::TestLosses::test_no_step_is_taken_twice",),
    ),
    Mutation(
        name="a node signs a second set of survivors",
        file=CLIENT,
        function="SecureRounds.sign_survivors",
        before="        store.keep(kept)\n",
        after="",
        tests=(f"{PATH}::TestLosses::test_no_step_is_taken_twice",),
    ),
    Mutation(
        name="a node's secrets outlive the round",
        file=CLIENT,
        function="SecureRounds.unmask",
        before="        store.forget()\n",
        after="",
        tests=(f"{PATH}::TestSums",),
    ),
    Mutation(
        name="a round can be begun again",
        file=STORE,
        function="RoundStore.begin",
        before="    if session.round_number <= last:\n",
        after="    if session.round_number < 0:\n",
        tests=(f"{OWNERS}::TestStore",),
    ),
    Mutation(
        name="a key that agrees with nobody is taken by the server",
        file="flower_privsyn/private_path/aggregation/secure.py",
        function="Secure._set_up.take_card",
        before="    card.check_keys(holders.keys())\n",
        after="",
        tests=(f"{PATH}::TestLosses::test_a_node_whose_key_agrees_with_nobody_is_lost_alone",),
    ),
    Mutation(
        name="one node throws another out by its public key",
        file="flower_privsyn/private_path/aggregation/secure.py",
        function="Secure._set_up.take_card",
        before="    card.check(Session(run=run, round_number=number))\n",
        after="",
        tests=(f"{PATH}::TestLosses::test_a_copied_public_key_throws_nobody_out",),
    ),
    Mutation(
        name="two nodes with one key end every round",
        file=ROSTER,
        function="KeyCard.check_keys",
        before="if not {self.node_key, self.seal_key, self.mask_key}.isdisjoint(taken):",
        after="if not {self.seal_key, self.mask_key}.isdisjoint(taken):",
        tests=(f"{PATH}::TestLosses::test_of_two_nodes_with_one_key_one_is_lost",),
    ),
    Mutation(
        name="a lock that a process holds is deleted as an old one",
        file=STORE,
        function="_delete_unless_held",
        before="        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        after="",
        tests=(f"{OWNERS}::TestStore",),
    ),
    Mutation(
        name="a lock that was deleted counts",
        file=STORE,
        function="RoundStore.locked",
        before="if not _is_file(lock, path):",
        after="if False:",
        tests=(f"{OWNERS}::TestStore",),
    ),
    Mutation(
        name="what a killed process was writing outlives the round",
        file=STORE,
        function="RoundStore.forget",
        before="    self._clear()\n",
        after="",
        tests=(f"{OWNERS}::TestStore",),
    ),
    Mutation(
        name="secrets lie where others can change them",
        file=CLIENT,
        function="_own_key",
        before="    check_state_folder()\n",
        after="",
        tests=(f"{OWNERS}::TestStore",),
    ),
    Mutation(
        name="a securely aggregated round that nodes answered costs nothing when it is lost",
        file="flower_privsyn/private_path/aggregation/secure.py",
        function="Secure.collect",
        before="return self._without_sum(expected, counts | self._counts, charged=True)",
        after="return self._without_sum(expected, counts | self._counts, charged=False)",
        tests=(f"{PATH}::TestLosses",),
    ),
    Mutation(
        name="a securely aggregated sum of too few users is discarded",
        file="flower_privsyn/private_path/settings.py",
        function="PrivateSumConfig.required_users",
        before=" or self.secure_aggregation:\n",
        after=":\n",
        tests=(
            f"{PATH}::TestLosses"
            "::test_a_sum_of_enough_nodes_is_released_however_few_users_are_on_them",
        ),
    ),
    Mutation(
        name="an owner who requires secure aggregation is asked in the clear",
        file="flower_privsyn/node/guard.py",
        function="NodeGuard.check",
        before="    self.check_openness(charge.query, secure=charge.secure is not None)\n",
        after="",
        tests=(f"{OWNERS}::test_an_owner_may_require_secure_aggregation",),
    ),
    Mutation(
        name="an owner's list of nodes is not looked at",
        file="flower_privsyn/node/guard.py",
        function="NodeGuard.allowed_nodes",
        before="    if self._policy is None:\n",
        after="    if True:\n",
        tests=(f"{OWNERS}::test_what_an_owner_does_not_allow_is_refused_before_an_answer",),
    ),
    Mutation(
        name="a node's head-count travels with its masked answer",
        file=CLIENT,
        function="SecureRounds.answer",
        before="    return wire.reply(secure_wire.pack_masked(masked, signature), message)\n",
        after=(
            "    reply = wire.reply(secure_wire.pack_masked(masked, signature), message)\n"
            "    from flwr.app import ConfigRecord\n"
            '    reply.content["privsyn.cohort"] = ConfigRecord({"num_users": len(values)})\n'
            "    return reply\n"
        ),
        tests=(f"{PATH}::TestSums",),
    ),
    Mutation(
        name="who may be in a sum is the owner's word of two messages ago",
        file=CLIENT,
        function="SecureRounds.answer",
        before="_check_roster(state.roster, guard_of(context), key)\n        ready",
        after="ready",
        tests=(f"{OWNERS}::test_a_roster_that_the_owner_no_longer_allows_gets_no_answer",),
    ),
    Mutation(
        name="who may be in a sum is the owner's word of before the work",
        file=CLIENT,
        function="SecureRounds.answer",
        before="_check_roster(state.roster, guard_of(context), key)\n        noise",
        after="noise",
        tests=(f"{OWNERS}::test_a_roster_that_the_owner_no_longer_allows_gets_no_answer",),
    ),
    Mutation(
        name="a node's mask key is the same in every round and run",
        file=NODE,
        function="advertise",
        before="mask_secret, mask_key = new_agreement()\n",
        after=(
            "from flower_privsyn.secure_aggregation.keys import public_of\n"
            '    mask_secret = derive(key.secret, "mask", b"")\n'
            "    mask_key = public_of(mask_secret)\n"
        ),
        tests=(f"{PATH}::TestLosses::test_no_secret_serves_in_two_rounds_or_two_runs",),
    ),
    Mutation(
        name="the ledger says how many nodes of a secret draw answered",
        file=SUMS,
        function="Secure.collect",
        before='**({} if secret else {"nodes": nodes})',
        after='"nodes": len(survivors)',
        tests=(f"{PATH}::TestSecretDraws",),
    ),
    Mutation(
        name="the stated noise says how many nodes of a secret draw answered",
        file=SUMS,
        function="Secure.collect",
        before="len(expected.roster_users if secret else survivors)",
        after="len(survivors)",
        tests=(f"{PATH}::TestSecretDraws",),
    ),
    Mutation(
        name="a file says how many nodes of a secret draw were too few",
        file="flower_privsyn/private_path/asked.py",
        function="AskedRound.why_lost",
        before='return "too few nodes answered for a sum"',
        after="return reason",
        tests=(f"{PATH}::TestSecretDraws",),
    ),
)
