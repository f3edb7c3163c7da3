"""The package's modules import one another one way; `lint-imports` checks the layers."""

from __future__ import annotations

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


def test_no_modules_import_one_another_in_a_circle() -> None:
    # Also none that only the body of a function needs.
    graph = grimp.build_graph("flower_privsyn", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert imports["flower_privsyn.cli.app"]
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"A circle of imports: {' <- '.join(error.args[1])}")


def test_looking_for_a_client_app_imports_none_of_its_modules() -> None:
    """Flower's simulation does so while the ServerApp's thread imports the strategies."""
    code = (
        "import sys; from importlib.util import find_spec; "
        "assert find_spec('flower_privsyn.client_apps.training'); "
        "print(*sorted(name for name in sys.modules if name.startswith('flower_privsyn')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["flower_privsyn", "flower_privsyn.client_apps"]
