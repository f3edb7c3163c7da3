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

MUTATIONS: tuple[Mutation, ...] = (
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
        name="nodes that the server has invented count",
        file=NODE,
        function="share",
        before="if allowed is not None and card.node_key not in allowed:",
        after="if False:",
        tests=(f"{MALICIOUS}::TestRosters",),
    ),
    Mutation(
        name="keys that a node did not sign are taken for its own",
        file=NODE,
        function="share",
        before="        card.check(state.session)\n",
        after="",
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
)
