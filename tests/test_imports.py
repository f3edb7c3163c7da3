"""The package's modules import one another one way; `lint-imports` checks the layers."""

from __future__ import annotations

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
