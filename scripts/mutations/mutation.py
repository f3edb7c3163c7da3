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
        file: where, from the root of the repository.
        function: in which definition of that file: the qualified name of a function
            ("Class.method", "outer.inner") or of a class, or the name that a statement of the
            module or of a class assigns ("LIMIT", "Class.field").
        before: text that must occur in that definition exactly once, both written without the
            definition's own indentation, so that a function may become a method.
        after: what replaces it.
        tests: arguments of pytest that must fail.
    """

    name: str
    file: str
    function: str
    before: str
    after: str
    tests: tuple[str, ...]

    def plant(self, source: str) -> str:
        """Return a file's text with the mistake in it.

        Args:
            source: the text of ``file``.

        Raises:
            AnchorError: the definition or the text in it is missing or not unique, or what comes
                out is no Python.
        """
        start, end = self._lines_of_definition(source)
        lines = source.splitlines(keepends=True)
        definition = "".join(lines[start:end])
        plain = textwrap.dedent(definition)
        margin = definition[: len(definition) - len(definition.lstrip(" "))]
        margin = margin[: len(margin) - (len(plain) - len(plain.lstrip(" ")))]
        if (count := plain.count(self.before)) != 1:
            raise AnchorError(
                f'{self.name}: "{self.before}" occurs {count} times in {self.function} of '
                f"{self.file}; it must occur once"
            )
        wrong = textwrap.indent(plain.replace(self.before, self.after), margin)
        planted = "".join([*lines[:start], wrong, *lines[end:]])
        try:
            ast.parse(planted)
        except SyntaxError as error:
            raise AnchorError(f"{self.name}: what is planted is no Python: {error}") from error
        return planted

    def _lines_of_definition(self, source: str) -> tuple[int, int]:
        found = [lines for name, lines in definitions(ast.parse(source)) if name == self.function]
        if len(found) != 1:
            raise AnchorError(
                f"{self.name}: {self.file} defines {self.function} {len(found)} times; it must "
                "define it once"
            )
        return found[0]


def definitions(
    tree: ast.Module | ast.stmt, inside: str = ""
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Everything that a file defines, with the lines [start, end) of its text, from 0.

    Where a definition replaces an earlier one of its name (a property's setter, an overload), both
    are handed out, and neither can be an anchor; what a function assigns is no definition.
    """
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield inside + node.name, (first - 1, node.end_lineno or first)
            yield from definitions(node, f"{inside}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            yield from definitions(node, inside)
        elif isinstance(tree, ast.Module | ast.ClassDef):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", 0)]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield inside + target.id, (node.lineno - 1, node.end_lineno or node.lineno)
