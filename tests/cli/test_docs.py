"""Every command line of `privsyn` in the documentation is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from flower_privsyn.cli.app import privsyn

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("[be]*/*/*.md")])


def _lines(text: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", " ", text)
    return re.findall(r"^\s*\$ (?:[A-Z_]+=\S+ )*privsyn (.+)$", joined, re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if _lines(page.read_text("utf-8"))])
def test_command_lines_can_be_read(page: Path) -> None:
    for line in _lines(page.read_text("utf-8")):
        words = shlex.split(line, comments=True)
        command: click.Command = privsyn
        context = command.make_context("privsyn", words)
        while isinstance(command, click.Group):
            rest = [*context._protected_args, *context.args]
            name, found, words = command.resolve_command(context, rest)
            assert found is not None, line
            command, context = found, found.make_context(name, words, parent=context)
        assert context.params or not words, line
