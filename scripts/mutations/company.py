"""Mistakes by which one user's presence moves what another user adds to a sum."""

from __future__ import annotations

from mutation import Mutation

EMBEDDER = "flower_privsyn/embedding/embedder.py"
EMBEDDING_TESTS = "tests/embedding/test_company.py"
PLAIN = "flower_privsyn/embedding/plain.py"
QUERY_TESTS = "tests/queries/test_contract.py"
SIEVE = "flower_privsyn/queries/sieve.py"
SIEVE_TESTS = "tests/queries/test_sieve.py"
LOCAL = "flower_privsyn/training/local.py"
LOCAL_TESTS = "tests/training/test_local.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="a forward pass has as many rows as there are texts",
        file=EMBEDDER,
        function="SentenceTransformerEmbedder._padded",
        before="*[self._filler] * (ROWS - len(rows))",
        after="",
        tests=(f"{EMBEDDING_TESTS}::TestPasses",),
    ),
    Mutation(
        name="the last block has as many tokens as there are",
        file="flower_privsyn/embedding/packed.py",
        function="PackedEncoder.__call__",
        before="slots = -(-max(1, ends[-1]) // BLOCK) * BLOCK",
        after="slots = ends[-1]",
        tests=(f"{EMBEDDING_TESTS}::TestBlocks",),
    ),
    Mutation(
        name="a text attends to the one before it",
        file="flower_privsyn/embedding/packed.py",
        function="PackedEncoder._attend",
        before="keys[:, :, start:stop], values[:, :, start:stop]",
        after="keys[:, :, max(0, start - 1) : stop], values[:, :, max(0, start - 1) : stop]",
        tests=(f"{EMBEDDING_TESTS}::TestTheModel",),
    ),
    Mutation(
        name="a key that nobody knows is passed over",
        file=PLAIN,
        function="_checked",
        before=(
            "needed <= set(found) <= set(rules))\n"
            "    _demand(all(rules[name](value) for name, value in found.items()))\n"
        ),
        after=(
            "needed <= set(found))\n"
            "    _demand(all(rules[name](found[name]) for name in {*rules} & {*found}))\n"
        ),
        tests=("tests/embedding/test_plain.py",),
    ),
    Mutation(
        name="weights of another shape are taken for plain",
        file=PLAIN,
        function="_weights",
        before="tuple(part.get_shape()) == (known | pooler)[name]",
        after="bool(part.get_shape())",
        tests=("tests/embedding/test_plain.py",),
    ),
    Mutation(
        name="an accelerator is passed over",
        file=PLAIN,
        function="read_plain",
        before="(device is not None or torch.accelerator.is_available())",
        after="device is not None",
        tests=("tests/embedding/test_plain.py",),
    ),
    Mutation(
        name="a pass of full rows has no mask",
        file=EMBEDDER,
        function="SentenceTransformerEmbedder._passes",
        before="(np.asarray(lengths, dtype=np.int64) + 1)",
        after="(np.asarray(lengths, dtype=np.int64) + 0)",
        tests=(f"{EMBEDDING_TESTS}::TestPasses",),
    ),
    Mutation(
        name="a pass computes with all threads",
        file="flower_privsyn/models/threads.py",
        function="_compute_alone",
        before="    torch.get_num_threads()\n    torch.set_num_threads(1)\n",
        after="    torch.get_num_threads()\n",
        tests=(f"{EMBEDDING_TESTS}::TestPasses",),
    ),
    Mutation(
        name="the form of a pass is not in the fingerprint",
        file=EMBEDDER,
        function="_fingerprint",
        before='            "block": packed.BLOCK,\n            "rows": ROWS,\n',
        after="",
        tests=(f"{EMBEDDING_TESTS}::TestPasses",),
    ),
    Mutation(
        name="a machine that breaks company is not asked",
        file="flower_privsyn/client_apps/records.py",
        function="EmbeddingSource.vectors",
        before="    require_company(self.embedder, self.cache_directory)\n",
        after="",
        tests=("tests/client_apps/test_company.py",),
    ),
    Mutation(
        name="probes keep their places",
        file="flower_privsyn/embedding/company.py",
        function="companies",
        before="[first[at:] + first[:at] for at in range(1, per_width)]",
        after="[first for at in range(1, per_width)]",
        tests=(f"{EMBEDDING_TESTS}::TestTheCheck",),
    ),
    Mutation(
        name="vectors from before an upgrade are found",
        file="flower_privsyn/embedding/cache.py",
        function="_keys",
        before='f"{fingerprint} {machine_digest(device)}"',
        after='f"{fingerprint}"',
        tests=(f"{EMBEDDING_TESTS}::test_vectors_of_other_libraries_are_not_found",),
    ),
    Mutation(
        name="products round what a library's order decides",
        file="flower_privsyn/queries/exact_product.py",
        function="exact_product",
        before="    np.rint(scaled, out=scaled)\n    result",
        after="    result",
        tests=(QUERY_TESTS,),
    ),
    Mutation(
        name="a product may pass what float64 holds",
        file="flower_privsyn/queries/exact_product.py",
        function="_RIGHT_BITS",
        before="_RIGHT_BITS = 26\n",
        after="_RIGHT_BITS = 32\n",
        tests=(f"{QUERY_TESTS}::TestExactProducts",),
    ),
    Mutation(
        name="a norm adds up in another order for few rows",
        file="flower_privsyn/privacy/rows.py",
        function="fold_squares",
        before="half = width // 2\n",
        after="half = width // 2 if len(part) > 3 else 1\n",
        tests=(f"{QUERY_TESTS}::TestRows",),
    ),
    Mutation(
        name="a statistic in float32 is clipped and summed as it is",
        file="flower_privsyn/queries/query.py",
        function="Query._clip",
        before="np.asarray(rows, dtype=np.float64)",
        after="rows",
        tests=(f"{QUERY_TESTS}::test_a_statistic_in_float32_moves_a_sum_by_the_clip_norm_at_most",),
    ),
    Mutation(
        name="nearly equal candidates are told apart by a float32 product",
        file="flower_privsyn/queries/nearest_neighbor.py",
        function="_best_with_ties",
        before="    doubtful = ~(top - second > tolerance)",
        after="    doubtful = (top - second > tolerance) & False",
        tests=("tests/queries/test_nearest_neighbor.py", QUERY_TESTS),
    ),
    Mutation(
        name="distances in which short candidates drown decide near ties",
        file="flower_privsyn/queries/nearest_neighbor.py",
        function="_by_float64",
        before="    points *= record - 0.5 * points\n",
        after="    points = -((record - points) ** 2)\n",
        tests=(QUERY_TESTS,),
    ),
    Mutation(
        name="what rounding takes from candidates is forgotten",
        file=SIEVE,
        function="Sieve._error",
        before="rounded * self.taken + self.apart",
        after="self.apart",
        tests=(SIEVE_TESTS,),
    ),
    Mutation(
        name="what rounding takes from records is forgotten",
        file=SIEVE,
        function="Sieve._error",
        before="taken * self.longest",
        after="0.0 * taken",
        tests=(SIEVE_TESTS,),
    ),
    Mutation(
        name="only one of two products may be off",
        file=SIEVE,
        function="_least_bits",
        before="- 2.0 * error",
        after="- error",
        tests=(SIEVE_TESTS,),
    ),
    Mutation(
        name="random numbers go on from the user before",
        file=LOCAL,
        function="LocalModel.update",
        before="        torch.manual_seed(int(order.spawn(1)[0].integers(2**63)))\n",
        after="        torch.rand(len(usable))\n",
        tests=(LOCAL_TESTS,),
    ),
    Mutation(
        name="a buffer that was put in another's place stays",
        file=LOCAL,
        function="LocalModel._begin_anew",
        before="        module._buffers[name] = buffer\n",
        after="",
        tests=(LOCAL_TESTS,),
    ),
    Mutation(
        name="the gradient of a step that failed goes into the next user's",
        file=LOCAL,
        function="LocalModel._begin_anew",
        before="    self._drop_gradients()\n",
        after="",
        tests=(LOCAL_TESTS,),
    ),
)
