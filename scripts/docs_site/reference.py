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
        summary: the first sentence of its docstring; "" for a value.
    """

    name: str
    modules: tuple[str, ...]
    home: str
    summary: str

    @property
    def page(self) -> str:
        """Its page, from docs/."""
        return f"{folder_of(self.modules[0])}/{self.name}.md"


def folder_of(module: str) -> str:
    """Folder of the pages of a module, from docs/."""
    inside = module.removeprefix(PACKAGE).strip(".").replace(".", "/")
    return f"{FOLDER}/{inside}" if inside else FOLDER


class Source:
    """The package as text, parsed once."""

    def __init__(self, root: Path) -> None:
        self._trees: dict[str, ast.Module] = {}
        for file in sorted((root / PACKAGE).rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            if "examples" not in parts:
                module = ".".join(parts).removesuffix(".__init__")
                self._trees[module] = ast.parse(file.read_text(encoding="utf-8"))

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
        for node in ast.walk(self._trees[module]):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.home(node.module or "", alias.name)
        return module

    def summary(self, module: str, name: str) -> str:
        """First sentence of the docstring of a class, a function, or with "" of the module."""
        tree = self._trees[module]
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
        return "" if name else (ast.get_docstring(tree) or "").split("\n\n")[0].replace("\n", " ")


def _targets(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def public_names(source: Source) -> list[PublicName]:
    """Every public name once, whatever the number of modules that offer it."""
    found: dict[tuple[str, str], list[str]] = {}
    for module, names in source.exports().items():
        for name in names:
            if not name.startswith("__"):
                found.setdefault((source.home(module, name), name), []).append(module)
    return [
        PublicName(
            name,
            tuple(sorted(modules, key=lambda module: (module.count("."), module))),
            home,
            source.summary(home, name),
        )
        for (home, name), modules in sorted(found.items(), key=lambda item: item[0][1].lower())
    ]


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
        lines += [f"Every setting with its range, default and meaning: [Settings]({up}settings.md).", ""]
    return "\n".join([*lines, f"::: {name.home}.{name.name}", ""])
