"""The planted mistakes have their places in today's source, and tests of the normal suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "mutations"
SOURCE = '''
class Sum:
    @property
    def size(self) -> int:
        """Of all.

        At least one.
        """
        if self.width:
            return LIMIT
        return LIMIT

    def outer(self) -> int:
        def inner() -> int:
            return self.width

        limit = inner()
        return limit
'''


@pytest.fixture
def mutation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.delitem(sys.modules, "mutation", raising=False)
    import mutation

    monkeypatch.delitem(sys.modules, "mutation")
    return mutation


def planted(mutation: ModuleType, function: str, before: str, after: str) -> str:
    found = mutation.Mutation(
        name="a mistake",
        guards="a sum",
        where=f"sum.py::{function}",
        before=before,
        after=after,
        tests=(),
    )
    text: str = found.plant(SOURCE)
    return text


def test_every_promise_has_a_mistake_and_every_mistake_its_place() -> None:
    """Whoever moves a function names its new file in the mutation that spoils it."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "run.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " mutations, 0 problems" in done.stdout


@pytest.mark.parametrize(
    ("function", "before", "after", "words"),
    [
        ("Sum.gone", "3", "4", "sum.py::Sum.gone is defined 0 times"),
        ("Sum.size", "return LIMIT", "return 0", "occurs 2 times in sum.py::Sum.size"),
        ("Sum.outer", "return LIMIT", "return 0", "occurs 0 times in sum.py::Sum.outer"),
        ("Sum.outer", "limit = inner()", "(", "is no Python"),
    ],
)
def test_a_mistake_without_a_place_is_named(
    mutation: ModuleType, function: str, before: str, after: str, words: str
) -> None:
    with pytest.raises(mutation.AnchorError, match=words):
        planted(mutation, function, before, after)
