"""Mistakes by which a question would get records it did not ask for, or nobody allowed."""

from __future__ import annotations

from mutation import Mutation

TESTS = "tests/client_apps/test_reads.py"
CUT = "flower_privsyn/data/cut.py"
CUT_TESTS = "tests/data/test_cut.py"
HANDLERS = "flower_privsyn/client_apps/handlers.py"
RECORDS = "flower_privsyn/client_apps/records.py"
STORE = "flower_privsyn/embedding/records.py"
STORE_TESTS = "tests/embedding/test_records.py"
KNOWN = "flower_privsyn/queries/known.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="a question is answered about other records than it reads",
        file=HANDLERS,
        function="_Node._ask",
        before="    if not ask.data.suits(ask.query):\n",
        after="    if False:\n",
        tests=(f"{TESTS}::TestRefusals",),
    ),
    Mutation(
        name="a node takes part in a run that asks about other records",
        file=HANDLERS,
        function="_Node.prepare",
        before="    if asked and not any(map(data.suits, asked)):\n",
        after="    if False:\n",
        tests=(f"{TESTS}::TestRefusals",),
    ),
    Mutation(
        name="updates of a model suit a question about tokens",
        file="flower_privsyn/messages/data_request.py",
        function="DataRequest.suits",
        before=" and query.trains == (self.trains is not None)",
        after="",
        tests=(f"{TESTS}::TestRefusals",),
    ),
    Mutation(
        name="a question about text loads a model",
        file="flower_privsyn/client_apps/node_users.py",
        function="NodeUsers._source",
        before='    if request.reads == "text":\n        return TextSource()\n',
        after="",
        tests=(f"{TESTS}::TestText",),
    ),
    Mutation(
        name="a policy that names no question allows those of every app",
        file="flower_privsyn/node/policy.py",
        function="NodePolicy.check_question",
        before="    if query not in self.queries:\n",
        after="    if query in BUNDLED_QUERIES and query not in self.queries:\n",
        tests=(f"{TESTS}::TestTheOwnersWord",),
    ),
    Mutation(
        name="a package puts its question in the place of another",
        file=KNOWN,
        function="_add",
        before="    other = known.setdefault(query.name, query)\n",
        after="    other = known[query.name] = query\n",
        tests=(f"{TESTS}::TestOwnQueries", f"{TESTS}::TestPackages"),
    ),
    Mutation(
        name="a package's question is asked under another name",
        file=KNOWN,
        function="KnownQuery.load",
        before="    if found.name != self.name:\n",
        after="    if False:\n",
        tests=(f"{TESTS}::TestPackages",),
    ),
    Mutation(
        name="whole documents have no cap",
        file=CUT,
        function="Cut.samples",
        before="    if self.max_samples is not None:\n",
        after="    if self.max_samples is not None and self.max_tokens is not None:\n",
        tests=(CUT_TESTS, f"{TESTS}::TestText"),
    ),
    Mutation(
        name="users who are held out are asked",
        file=CUT,
        function="Cut.asked",
        before="self.split(users)[0] if self.held_out_fraction > 0 else users",
        after="users",
        tests=(CUT_TESTS,),
    ),
    Mutation(
        name="documents beyond the limits count",
        file=CUT,
        function="Cut.documents",
        before="return within_limits(self.selected(users), seed=self.seed)",
        after="return self.selected(users)",
        tests=(CUT_TESTS,),
    ),
    Mutation(
        name="a sample has more tokens than it may",
        file=RECORDS,
        function="TokenSource.read",
        before="ids[: self.max_tokens]",
        after="ids",
        tests=(f"{TESTS}::TestTokens",),
    ),
    Mutation(
        name="one text that the tokenizer fails on fails all",
        file=RECORDS,
        function="TokenSource.read",
        before="    found = quarantine.salvage(\n"
        "        samples.texts, lambda texts: token_ids(self.tokenizer, texts), "
        "probe=quarantine.PROBE\n    )\n",
        after="    found = token_ids(self.tokenizer, samples.texts)\n",
        tests=(f"{TESTS}::TestTokens",),
    ),
    Mutation(
        name="anybody on the machine reads the records",
        file=STORE,
        function="RecordStore.put",
        before="replacing(self._path(key), for_the_owner=True)",
        after="replacing(self._path(key))",
        tests=(f"{STORE_TESTS}::TestEntries",),
    ),
    Mutation(
        name="pages of a process's own are let go of",
        file=STORE,
        function="StoredRecords._on_disk",
        before="return part.ctypes.data in inside and part.ctypes.data + part.nbytes - 1 in inside",
        after="return bool(inside) or True",
        tests=(f"{STORE_TESTS}::TestEntries",),
    ),
    Mutation(
        name="users of another node are dealt along",
        file="flower_privsyn/data/gathered.py",
        function="Gathered.users",
        before="p.owners % self._nodes == node",
        after="p.owners % self._nodes <= node",
        tests=("tests/data/test_gathered.py",),
    ),
    Mutation(
        name="users of a part are taken for the first ones",
        file=RECORDS,
        function="FixedRecords.cohorts",
        before="part.select(chosen[users])",
        after="part.select(chosen[: part.num_users])",
        tests=("tests/client_apps/test_records.py::TestMemory",),
    ),
    Mutation(
        name="an entry that is there is written again",
        file=STORE,
        function="RecordStore.put",
        before="    if (stored := self.find(key)) is not None:\n",
        after="    if (stored := self.find(key)) is not None and not stored:\n",
        tests=(f"{STORE_TESTS}::TestProcesses",),
    ),
    Mutation(
        name="a file of something else passes for records",
        file=STORE,
        function="_read",
        before="    _check(stored)\n",
        after="",
        tests=(f"{STORE_TESTS}::TestEntries",),
    ),
)
