"""How many lines each room of the repository has: code, docstrings, comments and blank ones apart.

    python scripts/lines.py
    python scripts/lines.py --against 0cfbed1
    python scripts/lines.py --files report --json

A room is a folder or a module right below `flower_privsyn`, or one of the folders beside it. Lines
of code are those with anything on them that is neither a comment nor a docstring; a string that is
a statement of its own is a docstring. Templates and style sheets count as code of their room.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath

PACKAGE = "flower_privsyn"
BESIDE = ("tests", "scripts", "benchmarks")

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
        docstrings: lines of strings that are statements, with the blank ones inside.
        comments: lines with nothing but a comment.
        blank: lines with nothing.
    """

    files: int = 0
    code: int = 0
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
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            code |= set(range(token.start[0], token.end[0] + 1))
    code -= docstrings
    blank -= code | docstrings
    return Lines(
        files=1,
        code=len(code),
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
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "-z", "--full-tree", name], capture_output=True, text=True
    )
    if listed.returncode:
        raise SystemExit(listed.stderr.strip())
    blobs = {}
    for line in listed.stdout.split("\0")[:-1]:
        (mode, _, digest), path = line.partition("\t")[0].split(), line.partition("\t")[2]
        if room_of(path) and mode != "120000":  # a link
            blobs[path] = digest
    texts = subprocess.run(
        [*git, "cat-file", "--batch"],
        input="".join(f"{digest}\n" for digest in blobs.values()).encode(),
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    stream = io.BytesIO(texts)
    for path in blobs:
        size = int(stream.readline().split()[2])
        yield path, stream.read(size).decode("utf-8")
        stream.read(1)


def count(files: Iterator[tuple[str, str]], only: str | None = None) -> dict[str, Lines]:
    """Lines by room, or by file of one room.

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
    return found


def with_totals(counted: Mapping[str, Lines], *, rooms: bool) -> dict[str, Lines]:
    """Largest first, with everything as the last one, and the package before it among rooms."""
    beside = {name: counted[name] for name in BESIDE if rooms and name in counted}
    inside = {name: lines for name, lines in counted.items() if name not in beside}
    ordered = dict(sorted(inside.items(), key=lambda item: (-item[1].code, item[0])))
    whole = {PACKAGE: sum(inside.values(), Lines())} if rooms else {}
    return {**ordered, **whole, **beside, "total": sum(counted.values(), Lines())}


def table(now: Mapping[str, Lines], before: Mapping[str, Lines] | None) -> str:
    """Lines in columns; against a revision, the difference behind each figure."""
    names = [field.name for field in fields(Lines)]
    width = max(map(len, [*now, *(before or ())]))
    cell = 15 if before is not None else 11

    def row(name: str, texts: Sequence[str]) -> str:
        return name.ljust(width) + "".join(text.rjust(cell) for text in texts)

    def figure(name: str, key: str) -> str:
        value = getattr(now.get(name, Lines()), key)
        if before is None:
            return f"{value:,}"
        return f"{value:,} {value - getattr(before.get(name, Lines()), key):+,d}"

    gone = [name for name in before or () if name not in now]
    rows = [row(name, [figure(name, key) for key in names]) for name in (*gone, *now)]
    return "\n".join([row("", names), *rows])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", metavar="REV", help="also the difference from a revision")
    parser.add_argument("--files", metavar="ROOM", help="the files of one room")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[1], metavar="DIR")
    given = parser.parse_args(arguments)

    rooms = given.files is None
    now = with_totals(count(tree(given.folder), given.files), rooms=rooms)
    before = None
    if given.against is not None:
        files = revision(given.folder, given.against)
        before = with_totals(count(files, given.files), rooms=rooms)
    if not given.json:
        print(table(now, before))
        return
    document = {"lines": {name: asdict(lines) for name, lines in now.items()}}
    if before is not None:
        document["before"] = {name: asdict(lines) for name, lines in before.items()}
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
