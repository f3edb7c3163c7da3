"""Which versions of Flower and the model libraries fit the ranges of pyproject.toml.

    python -m scripts.versions

writes the last section of docs/quickstart.md. It asks the package index, by pip, which versions it
has of every library below, and lets uv (which comes with Flower) resolve what the package and an
extra ask for with the oldest and the newest that the range allows, and with the newest of all.
Nothing is installed; what resolves has not been tested by that.
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

PAGE = ROOT / "docs" / "quickstart.md"

#: Of the section, which is the last of its page.
HEADING = "\n## Versions\n"

#: Libraries of the table, each with the extra that brings it; "" for the package itself.
LIBRARIES = {"flwr": "", "transformers": "server", "trl": "training", "peft": "server"}


#: Versions of Python on which the workflow runs the tests; the oldest of a range is asked for the
#: first alone.
PYTHONS = ("3.11", "3.12", "3.13")

#: Other versions that tests were run with, on Python 3.11, and how it ended.
TRIED = {
    "flwr 1.42.0, transformers 5.24.0, datasets 5.2.0 (`.ci/versions newest`)": (
        "pass the tests; flwr-datasets, of `dev` alone, asks for datasets 4"
    ),
    "datasets 4.7.0 with the oldest of the other three (`.ci/versions oldest`)": "pass the tests",
    "transformers below 5.23": (
        "preference training of two adapters that was killed goes on from other weights, so "
        "`training` asks for 5.23"
    ),
    "transformers 4.53.3 with sentence-transformers 5.7.0": (
        "pass the tests of a node. What a server writes with, and biased models, need 5"
    ),
}


@dataclass(frozen=True)
class Row:
    """A library of the table.

    Attributes:
        name: of the distribution.
        allowed: the range of pyproject.toml.
        tested: the version of constraints.txt, with which the tests run.
        found: versions that the index has, newest first.
        resolves: by version, the Pythons for which everything resolves with it.
    """

    name: str
    allowed: SpecifierSet
    tested: str
    found: tuple[str, ...]
    resolves: dict[str, tuple[str, ...]]

    def cells(self) -> list[str]:
        """Its cells in the table."""
        inside = [version for version in self.found if version in self.allowed]
        newest = self.found[0] if self.found else "none"
        outside = bool(self.found) and newest not in self.allowed
        return [
            f"`{self.name}`",
            f"`{_readable(self.allowed)}`",
            self.tested,
            self._cell(inside[-1] if inside else ""),
            self._cell(inside[0] if inside else ""),
            f"{self._cell(newest)}, outside" if outside else newest,
        ]

    def _cell(self, version: str) -> str:
        """A version and the Pythons for which it resolves."""
        if not version:
            return "none"
        return f"{version} ({', '.join(self.resolves[version]) or 'for no Python'})"


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
    command = [sys.executable, "-m", "pip", "index", "versions", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    listed = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    found = listed[1].split(", ") if listed else []
    return tuple(sorted((v for v in found if not Version(v).is_prerelease), key=Version)[::-1])


def resolves(extra: str, pin: str, python: str) -> bool:
    """Whether there are wheels of all that an extra asks for, with one library given.

    Args:
        extra: of pyproject.toml; "" for the package without any.
        pin: a requirement in place of the declared one, "flwr==1.41.0".
        python: "3.11".
    """
    given = Requirement(pin).name
    needed = declared((extra,) if extra else ())
    lines = [f"{n}{r}" for n, r in needed.items() if n not in (given, "flower-privsyn")]
    command = ["uv", "pip", "compile", "--quiet", "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, "--python-version", python, "-"],
        input="\n".join([*lines, pin]),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0


def rows() -> list[Row]:
    """Ask the index about every library."""
    made = []
    for name, extra in LIBRARIES.items():
        allowed = declared((extra,) if extra else ())[name]
        found = versions_of(name)
        inside = [version for version in found if version in allowed]
        tested = versions_in_use().get(name, "-")
        asked = dict.fromkeys([*inside[:1], *inside[-1:], *found[:1]])
        answers = {
            version: tuple(
                python
                for python in (PYTHONS if version in (*inside[:1], tested) else PYTHONS[:1])
                if resolves(extra, f"{name}=={version}", python)
            )
            for version in asked
        }
        made.append(Row(name, allowed, tested, found, answers))
    return made


def section(made: list[Row]) -> str:
    """The section of the page, without its heading."""
    table = [
        "| library | range | tested | oldest inside | newest inside | newest of all |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(row.cells())} |" for row in made),
    ]
    tried = [f"- {version}: {ended}." for version, ended in TRIED.items()]
    return f"""
`python -m scripts.versions` writes this section. *Tested* is what the tests run with
(constraints.txt). In brackets are the versions of Python for which there are wheels of everything,
of {", ".join(PYTHONS)} for the tested and the newest inside, of {PYTHONS[0]} for the others.
Nothing was installed for that, and nothing run.

{chr(10).join(table)}

Other versions that the tests were run with:

{chr(10).join(tried)}
"""


if __name__ == "__main__":
    above = PAGE.read_text("utf-8").partition(HEADING)[0]
    PAGE.write_text(above + HEADING + section(rows()), "utf-8")
