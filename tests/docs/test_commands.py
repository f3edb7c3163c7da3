"""Every command of the documentation can be read."""

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
