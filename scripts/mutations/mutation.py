"""One planted mistake, and where it is planted."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass


class AnchorError(Exception):
    """A mistake has no place in today's source."""


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One planted mistake.

    Attributes:
        name: what goes wrong.
        guards: what is promised that it breaks.
        where: "file::definition", the file from `flower_privsyn`; the definition is the qualified
            name of a function ("Class.method", "outer.inner").
        before: text that must occur in that function exactly once, both written without the
            function's own indentation, so that it may become a method.
        after: what replaces it.
        tests: arguments of pytest that must fail.
    """

    name: str
    guards: str
    where: str
    before: str
    after: str
    tests: tuple[str, ...]

    @property
    def file(self) -> str:
        """Where it is planted, from the root of the repository."""
        return "flower_privsyn/" + self.where.partition("::")[0]

    def plant(self, source: str) -> str:
        """Return a file's text with the mistake in it.

        Args:
            source: the text of `file`.

        Raises:
            AnchorError: the function or the text in it is missing or not unique, or what comes out
                is no Python.
        """
        start, end = self._lines_of_function(source)
        lines = source.splitlines(keepends=True)
        definition = "".join(lines[start:end])
        plain = textwrap.dedent(definition)
        margin = definition[: len(definition) - len(definition.lstrip(" "))]
        if (count := plain.count(self.before)) != 1:
            raise AnchorError(
                f'{self.name}: "{self.before}" occurs {count} times in {self.where}; it must once'
            )
        wrong = textwrap.indent(plain.replace(self.before, self.after), margin)
        planted = "".join([*lines[:start], wrong, *lines[end:]])
        try:
            ast.parse(planted)
        except SyntaxError as error:
            raise AnchorError(f"{self.name}: what is planted is no Python: {error}") from error
        return planted

    def _lines_of_function(self, source: str) -> tuple[int, int]:
        wanted = self.where.partition("::")[2]
        found = [lines for name, lines in functions(ast.parse(source)) if name == wanted]
        if len(found) != 1:
            raise AnchorError(
                f"{self.name}: {self.where} is defined {len(found)} times; it must once"
            )
        return found[0]


def functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, tuple[int, int]]]:
    """Every function and class by its qualified name, with the lines [start, end), from 0."""
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield inside + node.name, (first - 1, node.end_lineno or first)
            yield from functions(node, f"{inside}{node.name}.")
