"""Show that the tests catch the mistakes that make a private system not private.

    python scripts/mutations/run.py [NAME ...]
    python scripts/mutations/run.py --list
    python scripts/mutations/run.py --check

copies the repository, plants one mistake at a time in the copy, and runs the tests named beside it.
Every mistake must make at least one of them fail; the script ends with status 1 otherwise, and also
when a test fails without any mistake. The mistakes stand in planted.py, one for every promise;
--check only looks whether they, the promises and the tests are there.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mutation import AnchorError, Mutation
from planted import PROMISED, THREATS

ROOT = Path(__file__).resolve().parents[2]


def every_mutation() -> tuple[Mutation, ...]:
    """All of them, by the pages that they guard."""
    return tuple(m for page in (PROMISED, THREATS) for under in page.values() for m in under)


def problems(mutations: Sequence[Mutation]) -> Iterator[str]:
    """What is wrong with the mistakes themselves, a sentence each; nothing is run."""
    promised = (ROOT / "README.md").read_text("utf-8").partition("## What is promised")[2]
    bold = set(re.findall(r"^- \*\*([^*]+?)\.?\*\*", promised.partition("\n## ")[0], re.MULTILINE))
    yield from unguarded("README.md", bold, PROMISED)
    threats = (ROOT / "docs" / "threat_model.md").read_text("utf-8")
    headings = set(re.findall(r"^## (.+)$", threats, re.MULTILINE))
    yield from unguarded("docs/threat_model.md", headings - {"Out of scope"}, THREATS)
    names = [mutation.name for mutation in mutations]
    yield from (f"two mutations are called {n!r}" for n in set(names) if names.count(n) > 1)
    for mutation in mutations:
        path = ROOT / mutation.file
        if not path.is_file():
            yield f"{mutation.name}: there is no file {mutation.file}"
            continue
        try:
            mutation.plant(path.read_text(encoding="utf-8"))
        except AnchorError as error:
            yield str(error)
        for test in mutation.tests:
            if not runs(test):
                yield f"{mutation.name}: {test} is no test of the normal suite"


def unguarded(page: str, there: set[str], guarded: Mapping[str, object]) -> Iterator[str]:
    """Promises of a page that no mistake guards, and guarded ones that are not on it."""
    yield from (f"{page}: no mistake guards {one!r}" for one in sorted(there - set(guarded)))
    yield from (f"{page} has no {one!r}" for one in sorted(set(guarded) - there))


def runs(test: str) -> bool:
    """Whether a test, a class of tests, a file or a folder has something that is not `slow`."""
    path = ROOT / test.partition("::")[0]
    if not path.is_file():
        return path.is_dir()
    here: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
    for name in test.partition("[")[0].split("::")[1:]:
        body = getattr(here, "body", [])
        found = [node for node in body if getattr(node, "name", None) == name]
        if not found or _is_slow(found[0]):
            return False
        here = found[0]
    if isinstance(here, ast.FunctionDef):
        return True
    functions = [node for node in ast.walk(here) if isinstance(node, ast.FunctionDef)]
    return any(node.name.startswith("test_") and not _is_slow(node) for node in functions)


def _is_slow(node: ast.AST) -> bool:
    marks = getattr(node, "decorator_list", [])
    return any(ast.unparse(mark).startswith("pytest.mark.slow") for mark in marks)


def pytest(folder: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run tests of a copy against that copy's package."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def caught(folder: Path, mutation: Mutation) -> bool:
    """Plant a mistake in the copy, run its tests, take it out again, and say what happened."""
    path = folder / mutation.file
    original = path.read_text(encoding="utf-8")
    path.write_text(mutation.plant(original), encoding="utf-8")
    outcome = pytest(folder, mutation.tests)
    path.write_text(original, encoding="utf-8")
    # A mistake that makes NumPy write where it must not ends the process instead.
    crashed = outcome.returncode < 0
    failed = outcome.returncode == 1 or crashed
    detail = next((line for line in outcome.stdout.splitlines() if line.startswith("FAILED")), "")
    if crashed:
        detail = f"FAILED signal {-outcome.returncode}"
    print(
        f"{'caught  ' if failed else 'SURVIVED'}  {mutation.name:<46} {detail[7:110]}", flush=True
    )
    return failed


def run_all(mutations: Sequence[Mutation]) -> int:
    """Plant every mistake in turn in a copy of the repository; return the exit status."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "copy"
        shutil.copytree(
            ROOT,
            folder,
            symlinks=True,
            ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache"),
        )
        every_test = tuple(dict.fromkeys(test for m in mutations for test in m.tests))
        sound = pytest(folder, every_test)
        if sound.returncode != 0:
            print(sound.stdout[-2000:])
            print("the tests fail without any mistake")
            return 1
        count = sum(caught(folder, mutation) for mutation in mutations)
    print(f"{count} of {len(mutations)} mistakes caught")
    return 0 if count == len(mutations) else 1


def main() -> int:
    """Plant every mistake in turn; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these mutations")
    parser.add_argument("--list", action="store_true", help="print them, and what they guard")
    parser.add_argument("--check", action="store_true", help="look for places, promises and tests")
    asked = parser.parse_args()
    mutations = every_mutation()
    if unknown := sorted(set(asked.names) - {m.name for m in mutations}):
        parser.error(f"no mutation is called {unknown[0]!r}; --list shows them")
    if asked.names:
        mutations = tuple(m for m in mutations if m.name in asked.names)
    if asked.list:
        for mutation in mutations:
            print(f"{mutation.name}\n    against: {mutation.guards}\n    {mutation.where}")
        return 0
    found = list(problems(mutations))
    if asked.check or found:
        print(*found, f"{len(mutations)} mutations, {len(found)} problems", sep="\n")
        return 1 if found else 0
    return run_all(mutations)


if __name__ == "__main__":
    sys.exit(main())
