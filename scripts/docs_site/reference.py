"""The API reference: a page for every public name, and one for every module that has some.

A name is public when the `__all__` of a module of the package has it. Names are found by reading
the source: building the site imports neither the package nor any library of it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "flower_privsyn"
FOLDER = "reference"


@dataclass(frozen=True)
class PublicName:
    """One public name.

    Attributes:
        name: as it is imported.
        modules: the modules whose `__all__` has it, the one to import it from first.
        home: the module that defines it.
        summary: the first paragraph of its docstring, or of the comment above a value.
        file: name of its page's file; another one than its own where names differ by case alone.
    """

    name: str
    modules: tuple[str, ...]
    home: str
    summary: str
    file: str

    @property
    def page(self) -> str:
        """Its page, from docs/."""
        return f"{folder_of(self.modules[0])}/{self.file}.md"


def folder_of(module: str) -> str:
    """Folder of the pages of a module, from docs/."""
    inside = module.removeprefix(PACKAGE).strip(".").replace(".", "/")
    return f"{FOLDER}/{inside}" if inside else FOLDER


class Source:
    """The package as text, parsed once."""

    def __init__(self, root: Path) -> None:
        self._trees: dict[str, ast.Module] = {}
        self._lines: dict[str, list[str]] = {}
        self._imports: dict[str, dict[str, tuple[str, str]]] = {}
        for file in sorted((root / PACKAGE).rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            if "examples" not in parts:
                module = ".".join(parts).removesuffix(".__init__")
                text = file.read_text(encoding="utf-8")
                self._trees[module], self._lines[module] = ast.parse(text), text.splitlines()

    def exports(self) -> dict[str, list[str]]:
        """Modules with an `__all__` and what stands in it, the package itself first."""
        return {
            module: ast.literal_eval(node.value)
            for module, tree in sorted(self._trees.items())
            for node in tree.body
            if isinstance(node, ast.Assign) and _targets(node) == ["__all__"]
        }

    def home(self, module: str, name: str) -> str:
        """The module that defines a name which another one may import."""
        imported = self._imported(module).get(name)
        return self.home(*imported) if imported else module

    def _imported(self, module: str) -> dict[str, tuple[str, str]]:
        """What a module imports from the package, for running or for types: module and name."""
        if module not in self._imports:
            body = list(self._trees[module].body)
            body += [node for branch in body if isinstance(branch, ast.If) for node in branch.body]
            self._imports[module] = {
                alias.asname or alias.name: (node.module or "", alias.name)
                for node in body
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE)
                for alias in node.names
            }
        return self._imports[module]

    def summary(self, module: str, name: str) -> str:
        """First paragraph of the docstring of a class, a function or a value.

        A value's is the text below it, or the comment `#:` above it.
        """
        body = self._trees[module].body
        for node, below in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return _paragraph(ast.get_docstring(node) or "")
            if isinstance(node, ast.Assign | ast.AnnAssign) and _targets(node) == [name]:
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    return _paragraph(str(below.value.value))
                return _paragraph(self._comment_above(module, node.lineno))
        return ""

    def _comment_above(self, module: str, line: int) -> str:
        """The lines `#:` right above a line."""
        found: list[str] = []
        for text in reversed(self._lines[module][: line - 1]):
            if not text.startswith("#:"):
                break
            found.insert(0, text.removeprefix("#:").strip())
        return "\n".join(found)


def _paragraph(text: str) -> str:
    return text.split("\n\n")[0].replace("\n", " ")


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def public_names(source: Source) -> list[PublicName]:
    """Every public name once, whatever the number of modules that offer it."""
    found: dict[tuple[str, str], list[str]] = {}
    for module, names in source.exports().items():
        for name in names:
            if not name.startswith("__"):
                found.setdefault((source.home(module, name), name), []).append(module)
    ordered = sorted(found.items(), key=lambda item: item[0][1].lower())
    return [_public_name(source, home, name, modules, found) for (home, name), modules in ordered]


def _public_name(
    source: Source,
    home: str,
    name: str,
    modules: list[str],
    all_names: dict[tuple[str, str], list[str]],
) -> PublicName:
    offered = tuple(sorted(modules, key=lambda module: (module.count("."), module)))
    alike = [n for (_, n), others in all_names.items() if offered[0] in others and n != name]
    kind = "value" if name.isupper() else "class" if name[0].isupper() else "function"
    taken = name.lower() in (other.lower() for other in alike)
    file = f"{name}_{kind}" if taken else name
    return PublicName(name, offered, home, source.summary(home, name), file)


def pages(source: Source) -> dict[str, str]:
    """Markdown of the reference by its path from docs/: modules first, then names."""
    names = public_names(source)
    made = {}
    for module in source.exports():
        offered = [name for name in names if module in name.modules]
        made[f"{folder_of(module)}/index.md"] = _module_page(module, offered)
    return made | {name.page: _name_page(name) for name in names}


def _module_page(module: str, names: list[PublicName]) -> str:
    up = "../" * folder_of(module).count("/")
    rows = [
        f"| [`{name.name}`]({up}{name.page.removeprefix(FOLDER + '/')}) | {_cell(name.summary)} |"
        for name in names
    ]
    return "\n".join(
        [
            f"# {module}",
            "",
            f"::: {module}",
            "    options:",
            "      members: false",
            "",
            "| name | what it is |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _name_page(name: PublicName) -> str:
    first, *others = name.modules
    also = f" (also in {', '.join(f'`{module}`' for module in others)})" if others else ""
    lines = [f"# {name.name}", "", f"`from {first} import {name.name}`{also}", ""]
    if name.name.endswith("Config"):
        up = "../" * name.page.count("/")
        settings = f"[Settings]({up}settings.md)"
        lines += [f"Every setting with its range, default and meaning: {settings}.", ""]
    return "\n".join([*lines, f"::: {name.home}.{name.name}", ""])
