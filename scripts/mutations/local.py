"""Mistakes that open a simulation, a model folder, a key or a node's memory to somebody else."""

from __future__ import annotations

from mutation import Mutation

SUPERLINK_TESTS = "tests/host/test_superlink.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="the SuperLink of a run takes any token",
        file="flower_privsyn/host/superlink.py",
        function="guard_superlink.TokenPlugin.validate_tokens_in_metadata",
        before="known = len(shown) == 1 and secrets.compare_digest(_bytes(shown[0]), "
        "token.encode())",
        after="known = True",
        tests=(SUPERLINK_TESTS,),
    ),
    Mutation(
        name="nodes can be registered from outside with the SuperLink of a run",
        file="flower_privsyn/host/superlink.py",
        function="guard_superlink",
        before="    extensions.get_middleware = lambda: (Middleware(_OwnerRoutes),)\n",
        after="",
        tests=(f"{SUPERLINK_TESTS}::test_no_route_answers_without_credentials",),
    ),
    Mutation(
        name="a task's token is read off the command line",
        file="flower_privsyn/host/superlink.py",
        function="guard_task_tokens.popen",
        before='    arguments[place : place + 2] = ["--token-file", str(file)]\n',
        after="",
        tests=(f"{SUPERLINK_TESTS}::test_task_tokens_are_on_no_command_line",),
    ),
    Mutation(
        name="everybody can read the token of a run",
        file="flower_privsyn/host/superlink.py",
        function="write_secret",
        before="os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)",
        after="os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)",
        tests=(f"{SUPERLINK_TESTS}::test_what_the_owner_holds_is_the_owners",),
    ),
    Mutation(
        name="Ray listens on all addresses",
        file="flower_privsyn/host/flower.py",
        function="Flower.__init__",
        before='            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",\n',
        after="",
        tests=("tests/host/test_launch.py::test_kill_the_command_then_the_server_app_then_finish",),
    ),
    Mutation(
        name="Ray asks nobody for a token",
        file="flower_privsyn/host/flower.py",
        function="Flower.__init__",
        before='            "RAY_AUTH_MODE": "token",\n',
        after="",
        tests=("tests/host/test_launch.py::test_kill_the_command_then_the_server_app_then_finish",),
    ),
    Mutation(
        name="an embedding model brings classes of its own",
        file="flower_privsyn/embedding/embedder.py",
        function="SentenceTransformerEmbedder.__init__",
        before="    refuse_code(folder)\n",
        after="",
        tests=("tests/embedding/test_trust.py",),
    ),
    Mutation(
        name="the code of an embedding model is trusted",
        file="flower_privsyn/embedding/embedder.py",
        function="_load",
        before="trust_remote_code=False",
        after="trust_remote_code=True",
        tests=("tests/embedding/test_trust.py::test_the_library_is_not_told_to_trust",),
    ),
    Mutation(
        name="the code of a generator is trusted",
        file="flower_privsyn/models/pretrained.py",
        function="load_pretrained",
        before="                trust_remote_code=False,\n                weights_only",
        after="                trust_remote_code=True,\n                weights_only",
        tests=("tests/models/test_pretrained.py::test_a_folder_runs_no_code",),
    ),
    Mutation(
        name="the budget of another relation is shown as that of zero-out",
        file="flower_privsyn/cli/budget.py",
        function="budget",
        before="        relation=NeighboringRelation(relation),\n",
        after="",
        tests=("tests/cli/test_budget.py::test_budget_under_each_relation",),
    ),
    Mutation(
        name="a server's refusal is quoted with the key in it",
        file="flower_privsyn/generation/openai_backend.py",
        function="OpenAIGenerator._message",
        before="text = self._hide(_words(response))[:_MAX_MESSAGE_LETTERS]",
        after="text = _words(response)[:_MAX_MESSAGE_LETTERS]",
        tests=(
            "tests/generation/test_openai_backend.py::"
            "test_a_key_that_a_server_quotes_is_not_passed_on",
        ),
    ),
    Mutation(
        name="a refusal is cut before the key is taken out",
        file="flower_privsyn/generation/openai_backend.py",
        function="OpenAIGenerator._message",
        before="text = self._hide(_words(response))[:_MAX_MESSAGE_LETTERS]",
        after='text = _words(response)[:_MAX_MESSAGE_LETTERS].replace(self._api_key or "-", "-")',
        tests=(
            "tests/generation/test_openai_backend.py::"
            "test_a_key_that_a_server_quotes_is_not_passed_on",
        ),
    ),
    Mutation(
        name="a password in the generator's address is written into the run directory",
        file="flower_privsyn/generation/generator_settings.py",
        function="GeneratorSettings.__post_init__",
        before="    check_generator(self.generator, self.generator_api_key_env)\n",
        after="",
        tests=("tests/generation/test_api_key.py",),
    ),
    Mutation(
        name="a key among generator-parameters is written into the run directory",
        file="flower_privsyn/generation/extra_parameters.py",
        function="read_extra_parameters",
        before='re.sub(r"[^a-z]", "", name.lower())',
        after="name",
        tests=("tests/generation/test_extra_parameters.py",),
    ),
    Mutation(
        name="a key that is called no more than token is written into the run directory",
        file="flower_privsyn/generation/extra_parameters.py",
        function="read_extra_parameters",
        before="plain in _NAMES_OF_SECRETS or ",
        after="",
        tests=("tests/generation/test_extra_parameters.py",),
    ),
    Mutation(
        name="the first token of a chat model's answer stands for a text of it",
        file="flower_privsyn/generation/rehearsal.py",
        function="rehearse",
        before="not answers and ",
        after="",
        tests=("tests/generation/test_by_messages.py",),
    ),
    Mutation(
        name="a model that thinks and never answers is paid for",
        file="flower_privsyn/generation/by_messages.py",
        function="without_thoughts",
        before="answer[thoughts.end() :].strip()",
        after='answer.replace("</think>", "")',
        tests=("tests/generation/test_by_messages.py",),
    ),
    Mutation(
        name="a compressed file expands to whatever it likes",
        file="flower_privsyn/data/bounded.py",
        function="_Expanded.readinto",
        before="self._left < 0:",
        after="self._left == 0:",
        tests=("tests/data/test_bounded.py",),
    ),
    Mutation(
        name="repeated strings of a Parquet file are not counted",
        file="flower_privsyn/data/bounded.py",
        function="_size",
        before="    lengths = pc.binary_length(column.dictionary).take(column.indices)\n",
        after="    lengths = pc.binary_length(column.dictionary)\n",
        tests=("tests/data/test_bounded.py",),
    ),
    Mutation(
        name="a text that is too long takes the whole file with it",
        file="flower_privsyn/data/bounded.py",
        function="shortened",
        before="_STRING.sub(_shortened, line) if",
        after="b'' if",
        tests=("tests/data/test_bounded.py",),
    ),
)
