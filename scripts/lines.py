"""How large the project is: code by room, then settings, commands, names, layers and pages.

    python scripts/lines.py
    python scripts/lines.py --against 0cfbed1
    python scripts/lines.py --files report

A room is a folder or a module right below `flower_privsyn`, or one of the folders beside it. Lines
of code are those with anything on them that is neither a comment nor a docstring; a string that is
a statement of its own is a docstring. Templates and style sheets count as code of their room.
Tokens are Python's, without comments and layout: lines that only became denser keep theirs.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import io
import re
import subprocess
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

PACKAGE = "flower_privsyn"
BESIDE = ("tests", "scripts", "benchmarks", "research")

_TEMPLATES = (".j2", ".css")
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Lines:
    """Lines of some files.

    Attributes:
        files: how many files.
        code: lines with a token that is neither a comment nor of a docstring.
        tokens: tokens of Python that are neither a comment, a docstring nor layout.
        docstrings: lines of strings that are statements, with the blank ones inside.
        comments: lines with nothing but a comment.
        blank: lines with nothing.
    """

    files: int = 0
    code: int = 0
    tokens: int = 0
    docstrings: int = 0
    comments: int = 0
    blank: int = 0

    def __add__(self, other: Lines) -> Lines:
        """Both together."""
        return Lines(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Lines)))


def lines_of(name: str, text: str) -> Lines:
    """Count the lines of one file.

    Args:
        name: its name; anything but Python is a template.
        text: what it holds.
    """
    rows = text.splitlines()
    blank = {number for number, row in enumerate(rows, start=1) if not row.strip()}
    if not name.endswith(".py"):
        return Lines(files=1, code=len(rows) - len(blank), blank=len(blank))
    docstrings = {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    code: set[int] = set()
    tokens = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            code |= set(range(token.start[0], token.end[0] + 1))
            tokens += token.start[0] not in docstrings
    code -= docstrings
    blank -= code | docstrings
    return Lines(
        files=1,
        code=len(code),
        tokens=tokens,
        docstrings=len(docstrings),
        comments=len(rows) - len(code | docstrings | blank),
        blank=len(blank),
    )


def room_of(path: str) -> str | None:
    """The room of a file by its path from the repository; None where it is in none."""
    parts = PurePosixPath(path).parts
    if not path.endswith((".py", *_TEMPLATES)):
        return None
    if parts[0] == PACKAGE:
        return parts[1].removesuffix(".py")
    return parts[0] if parts[0] in BESIDE else None


def tree(folder: Path) -> Iterator[tuple[str, str]]:
    """Paths and texts of the files that a working tree has; links are not followed."""
    for top in (PACKAGE, *BESIDE):
        for file in sorted((folder / top).rglob("*")):
            path = file.relative_to(folder)
            inside = [folder / part for part in (*path.parents, path)]
            if room_of(path.as_posix()) and not any(part.is_symlink() for part in inside):
                yield path.as_posix(), file.read_text(encoding="utf-8")


def revision(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """Paths and texts of the files of a git revision.

    Raises:
        SystemExit: There is no such revision.
    """
    git = ["git", "-C", str(folder)]
    listed = subprocess.run([*git, "ls-tree", "-r", "-z", name], capture_output=True, text=True)
    if listed.returncode:
        raise SystemExit(listed.stderr.strip())
    for line in listed.stdout.split("\0")[:-1]:
        (mode, _, blob), path = line.partition("\t")[0].split(), line.partition("\t")[2]
        if room_of(path) and mode != "120000":  # a link
            shown = subprocess.run(
                [*git, "cat-file", "blob", blob], capture_output=True, check=True
            )
            yield path, shown.stdout.decode("utf-8")


def count(files: Iterable[tuple[str, str]], only: str | None = None) -> dict[str, Lines]:
    """Lines by room, the largest first and the package after them; or by file of one room.

    Args:
        files: paths and texts.
        only: the room whose files are counted one by one.
    """
    found: dict[str, Lines] = {}
    for path, text in files:
        room = room_of(path) or ""
        if only in (None, room):
            key = room if only is None else path
            found[key] = found.get(key, Lines()) + lines_of(path, text)
    inside = {name: found[name] for name in found if name not in BESIDE}
    ordered = dict(sorted(inside.items(), key=lambda item: (-item[1].code, item[0])))
    if only is not None:
        return ordered
    beside = {name: found.get(name, Lines()) for name in BESIDE}
    makers = sum((beside[name] for name in BESIDE[1:]), Lines())
    return {
        **ordered,
        PACKAGE: sum(inside.values(), Lines()),
        **beside,
        " + ".join(BESIDE[1:]): makers,
    }


def table(now: Mapping[str, Lines], before: Mapping[str, Lines] | None) -> str:
    """Lines in columns; against a revision, the difference behind each figure."""
    names = [field.name for field in fields(Lines)]
    width = max(map(len, [*now, *(before or ())]))
    rows = [" " * width + "".join(name.rjust(17 if before else 11) for name in names)]
    for room in (*(name for name in before or () if name not in now), *now):
        cells = []
        for name in names:
            value = getattr(now.get(room, Lines()), name)
            cell = f"{value:,}"
            if before:
                cell += f" {value - getattr(before.get(room, Lines()), name):+,d}"
            cells.append(cell.rjust(17 if before else 11))
        rows.append(room.ljust(width) + "".join(cells))
    return "\n".join(rows)


def house(folder: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """What else a reader has to carry, each with what counts it."""
    tomls = [file for top in (PACKAGE, "baselines") for file in (folder / top).rglob("*.toml")]
    pages = [page for page in sorted((folder / "docs").rglob("*.md")) if page.name != "settings.md"]
    yield (
        "words in docs, without settings.md",
        lambda: sum(len(page.read_text("utf-8").split()) for page in pages),
    )
    yield "pages in docs, without settings.md", lambda: len(pages)
    yield "keys of runs (privsyn methods --settings)", lambda: len(_keys()[0])
    yield "keywords of Python alone", lambda: len(_keys()[1])
    yield "most keys that one shipped TOML shows", lambda: max(map(_shown, tomls), default=0)
    yield "commands of privsyn", lambda: len(_commands())
    yield "their options", lambda: sum(_commands())
    yield "names at the top level", lambda: len(__import__(PACKAGE).__all__)
    yield "import layers", lambda: _layers(folder)


def _keys() -> tuple[set[str], set[str]]:
    """Keys that a run configuration may have, and fields of settings that it may not."""
    from flower_privsyn.catalogue import entries
    from flower_privsyn.cli.methods import settings_page

    methods = settings_page().partition("## What the owner of a node allows")[0]
    keys = set(re.findall(r"^\| `([^`]+)` \|", methods, re.MULTILINE))
    declared = {
        field.name.replace("_", "-")
        for entry in entries().values()
        for field in dataclasses.fields(entry.strategy.config_class)
    }
    return keys, declared - keys


def _shown(file: Path) -> int:
    """How many keys of a run's configuration a file of an app shows, in a table of it or alone."""
    document: Any = tomllib.loads(file.read_text("utf-8"))
    if file.name == "pyproject.toml":
        document = document.get("tool", {}).get("flwr", {}).get("app", {}).get("config", {})

    def leaves(value: Any) -> int:
        return sum(map(leaves, value.values())) if isinstance(value, dict) else 1

    return leaves(document)


def _commands() -> list[int]:
    """How many options each command of `privsyn` has; subcommands are commands."""
    import click

    from flower_privsyn.cli.app import privsyn

    def options(command: click.Command) -> list[int]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            names = command.list_commands(context)
            inside = [command.get_command(context, name) for name in names]
            return [number for one in inside if one is not None for number in options(one)]
        return [sum(isinstance(parameter, click.Option) for parameter in command.params)]

    return options(privsyn)


def _layers(folder: Path) -> int:
    """Layers of imports that `lint-imports` keeps apart."""
    document = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    contracts = document["tool"]["importlinter"]["contracts"]
    return sum(len(contract.get("layers", ())) for contract in contracts)


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", metavar="REV", help="also the difference from a revision")
    parser.add_argument("--files", metavar="ROOM", help="the files of one room, and no more")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[1], metavar="DIR")
    given = parser.parse_args(arguments)

    before = None
    if given.against is not None:
        before = count(revision(given.folder, given.against), given.files)
    print(table(count(tree(given.folder), given.files), before))
    for name, counted in house(given.folder) if given.files is None else ():
        print(f"{name:<47}{counted():>11,}")


if __name__ == "__main__":
    main()
