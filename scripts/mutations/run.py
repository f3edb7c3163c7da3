"""Show that the tests catch the mistakes that make a private system not private.

    python scripts/mutations/run.py [NAME ...]
    python scripts/mutations/run.py --changed-since main
    python scripts/mutations/run.py --list
    python scripts/mutations/run.py --check

copies the repository, plants one mistake at a time in the copy, and runs the tests named beside it.
Every mistake must make at least one of them fail; the script ends with status 1 otherwise, and also
when a test fails without any mistake. The mistakes stand in the modules beside this one, each in
the function that it spoils; --check only looks whether they are there.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from mutation import AnchorError, Mutation

ROOT = Path(__file__).resolve().parents[2]


def every_mutation() -> tuple[Mutation, ...]:
    """The mistakes listed in the modules beside this one, `MUTATIONS` in each."""
    others = sorted(p.stem for p in Path(__file__).parent.glob("*.py"))
    found = [import_module(name) for name in others if name not in ("run", "mutation")]
    return tuple(m for module in found for m in module.MUTATIONS)


def problems(mutations: Sequence[Mutation]) -> Iterator[str]:
    """What is wrong with the mistakes themselves, a sentence each; nothing is run."""
    names = [mutation.name for mutation in mutations]
    yield from (f"two mutations are called {n!r}" for n in set(names) if names.count(n) > 1)
    trees: dict[Path, ast.Module] = {}
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
            path = ROOT / test.partition("::")[0]
            if path.is_file() and path not in trees:
                trees[path] = ast.parse(path.read_text(encoding="utf-8"))
            if not (path.is_dir() or (path in trees and runs(trees[path], test))):
                yield f"{mutation.name}: {test} is no test of the normal suite"


def runs(tree: ast.Module, test: str) -> bool:
    """Whether a test, a class of tests or a file has something that is not marked `slow`."""
    here: ast.AST = tree
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


def changed_since(revision: str) -> set[str]:
    """Files that differ from a revision in the working tree, from the repository's root."""
    done = subprocess.run(
        ["git", "diff", "--name-only", revision, "--"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


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
    parser.add_argument(
        "--list", action="store_true", help="print them, and where they are planted"
    )
    parser.add_argument("--check", action="store_true", help="look for the places and the tests")
    parser.add_argument(
        "--changed-since", metavar="REV", help="only those whose code or tests differ from REV"
    )
    asked = parser.parse_args()
    mutations = every_mutation()
    if unknown := sorted(set(asked.names) - {m.name for m in mutations}):
        parser.error(f"no mutation is called {unknown[0]!r}; --list shows them")
    if asked.names:
        mutations = tuple(m for m in mutations if m.name in asked.names)
    if asked.changed_since:
        files = changed_since(asked.changed_since)
        mutations = tuple(
            m for m in mutations if files & {m.file, *(test.partition("::")[0] for test in m.tests)}
        )
    if asked.list:
        for mutation in mutations:
            print(f"{mutation.name}\n    {mutation.file}::{mutation.function}")
        return 0
    found = list(problems(mutations))
    if asked.check or found:
        print(*found, f"{len(mutations)} mutations, {len(found)} problems", sep="\n")
        return 1 if found else 0
    return run_all(mutations)


if __name__ == "__main__":
    sys.exit(main())
