"""Which versions of Flower and the model libraries fit the ranges of pyproject.toml.

    python -m scripts.versions > docs/versions.md

asks the package index of pip, with the Python that runs it, which versions it has of every library
below, and lets pip resolve the package with the oldest and the newest that the range allows, and
with the newest of all. Nothing is installed; what resolves has not been tested by that.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]

#: Libraries of the table, each with the extra that brings it; "" for the package itself.
LIBRARIES = {
    "flwr": "",
    "transformers": "server",
    "sentence-transformers": "server",
    "torch": "server",
    "trl": "training",
    "peft": "training",
    "accelerate": "training",
    "opacus": "central",
}


@dataclass(frozen=True)
class Row:
    """A library of the table.

    Attributes:
        name: of the distribution.
        allowed: the range of pyproject.toml.
        tested: the version of constraints.txt, with which the tests run.
        found: versions that the index has, newest first.
        resolves: by version, whether pip resolves the package with it.
    """

    name: str
    allowed: SpecifierSet
    tested: str
    found: tuple[str, ...]
    resolves: dict[str, bool]

    def cells(self) -> list[str]:
        """Its cells in the table."""
        inside = [version for version in self.found if version in self.allowed]
        newest = self.found[0] if self.found else ""
        return [
            f"`{self.name}`",
            f"`{_readable(self.allowed)}`",
            self.tested,
            self._cell(inside[-1] if inside else ""),
            self._cell(inside[0] if inside else ""),
            newest if newest in self.allowed else f"{self._cell(newest)}, outside",
        ]

    def _cell(self, version: str) -> str:
        """A version and what pip said of it."""
        if not version:
            return "none"
        said = {True: "resolves", False: "does not resolve", None: "not asked"}
        return f"{version}: {said[self.resolves.get(version)]}"


def _readable(allowed: SpecifierSet) -> str:
    """A range with its lower end first."""
    return ",".join(sorted(map(str, allowed), key=lambda part: part.startswith("<")))


def declared(extras: tuple[str, ...], root: Path = ROOT) -> dict[str, SpecifierSet]:
    """Ranges of what the package and some of its extras ask for, by name."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"]]
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return {Requirement(line).name: Requirement(line).specifier for line in lines}


def versions_in_use(root: Path = ROOT) -> dict[str, str]:
    """Versions of constraints.txt by name."""
    lines = (root / "constraints.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def versions_of(name: str) -> tuple[str, ...]:
    """Versions that the index has for this Python, newest first, without pre-releases."""
    done = _pip("index", "versions", name)
    listed = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    found = listed[1].split(", ") if listed else []
    return tuple(sorted((v for v in found if not Version(v).is_prerelease), key=Version)[::-1])


def resolves(extra: str, pins: dict[str, str]) -> bool:
    """Whether pip finds versions of all that an extra asks for, with some libraries given."""
    needed = [f"{name}{allowed}" for name, allowed in declared((extra,) if extra else ()).items()]
    given = [f"{name}=={version}" for name, version in pins.items()]
    own = [line for line in needed if re.split(r"[<>=]", line)[0] not in ("flower-privsyn", *pins)]
    command = ("install", "--dry-run", "--ignore-installed", "--only-binary", ":all:")
    return _pip(*command, *own, *given).returncode == 0


def _pip(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    if words[0] == "index":
        command.remove("--quiet")
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rows() -> list[Row]:
    """Ask the index about every library."""
    made = []
    for name, extra in LIBRARIES.items():
        allowed = declared((extra,) if extra else ())[name]
        found = versions_of(name)
        inside = [version for version in found if version in allowed]
        asked = dict.fromkeys([*inside[:1], *inside[-1:], *found[:1]])
        answers = {version: resolves(extra, {name: version}) for version in asked}
        made.append(Row(name, allowed, versions_in_use().get(name, "-"), found, answers))
    return made


def page(made: list[Row], python: str) -> str:
    """docs/versions.md."""
    table = [
        "| library | range | tested | oldest inside | newest inside | newest of all |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(row.cells())} |" for row in made),
    ]
    return f"""# Versions

`python -m scripts.versions > docs/versions.md` wrote this page with Python {python}. *Tested* is
the version that the tests run with (constraints.txt), and no other. *Resolves*: pip finds wheels of
all that the extra asks for with this version; nothing was installed and nothing run.

{chr(10).join(table)}
"""


if __name__ == "__main__":
    print(page(rows(), f"{sys.version_info.major}.{sys.version_info.minor}"), end="")
