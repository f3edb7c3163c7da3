"""Which files of the package one round visits, in order: how a reader follows a method.

    python scripts/route.py pre-text
    python scripts/route.py popri | dp-ftrl | joint-sketch
    python scripts/route.py pre-text --page

runs three rounds on the loopback grid, two nodes and 16 users in this process, and traces the
second: every file of the package in which a function runs, with the first function there. A change
is a call or a return from one file to another. Comprehensions, lambdas and what only makes a class
are left out. The last line is "N files, M changes".
"""

from __future__ import annotations

import argparse
import ast
import logging
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import flower_privsyn
from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.client_apps.training import LocalTraining
from flower_privsyn.host.grid import InProcessGrid, flower_identity, partitions
from flower_privsyn.testing import hash_embedder

ROOT = Path(flower_privsyn.__file__).parent

PAGE = Path(__file__).parents[1] / "docs" / "add_a_method.md"

#: Of the section, which is the last of its page.
HEADING = "\n## Follow a round\n"

#: The fakes that stand in for models here.
FAKES = str(ROOT / "testing.py")

METHODS = ("pre-text", "popri", "dp-ftrl", "joint-sketch")

#: The round that is traced, of three.
ROUND = 2


class Route:
    """The files that are visited while it is on.

    Attributes:
        first: by file, in the order of the first visit, the function that ran there first.
        visits: how often each file was entered from another one.
    """

    def __init__(self) -> None:
        self.first: dict[str, str] = {}
        self.visits: Counter[str] = Counter()
        self._here = ""

    def on(self) -> None:
        """Begin to trace, in threads that are begun from now on as well."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def off(self) -> None:
        """End it."""
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        at = frame if event == "call" else frame.f_back
        while at is not None and _file_of(at) is None:
            at = at.f_back
        if at is None:
            return
        file = _file_of(at) or ""
        if file != self._here:
            self._here = file
            self.visits[file] += 1
            self.first.setdefault(file, at.f_code.co_qualname)


def _file_of(frame: FrameType) -> str | None:
    """The file of a frame, below the package; None elsewhere, of fakes and what has no name."""
    code = frame.f_code
    here = code.co_filename.startswith(str(ROOT)) and code.co_filename != FAKES
    if not here or code.co_name.startswith("<"):
        return None
    return str(Path(code.co_filename).relative_to(ROOT))


def follow(name: str) -> Route:
    """Run a method and trace its second round."""
    sys.path.insert(0, str(ROOT.parent))
    from tests.support import golden_runs

    make: dict[str, Callable[..., Any]] = {
        "pre-text": golden_runs.evolution,
        "popri": golden_runs.popri,
        "dp-ftrl": golden_runs.dp_ftrl,
        "joint-sketch": golden_runs.joint_sketch,
    }
    load = partial(golden_runs.load, count=16)
    route = Route()
    # `evaluate_fn` is called after every round: it stands between one and the next.
    switch = {ROUND - 1: route.on, ROUND: route.off}
    with tempfile.TemporaryDirectory() as folder, flower_identity():
        cache = Path(folder) / "cache"
        if name == "dp-ftrl":
            app = create_client_app(load, cache_directory=cache, trainer=LocalTraining())
        else:
            app = create_client_app(load, embedder=hash_embedder, cache_directory=cache)
        make[name](Path(folder), num_rounds=3, num_nodes=2).start(
            InProcessGrid(app, partitions(2), run_id=1, run_config={}),
            evaluate_fn=lambda number, _: switch.get(number, lambda: None)(),
        )
    return route


def reason(file: str) -> str:
    """What a file is for: the first sentence of its docstring, as far as a colon."""
    said = ast.get_docstring(ast.parse((ROOT / file).read_text(encoding="utf-8"))) or ""
    return re.split(r"[:;.](?:\s|$)", " ".join(said.split()))[0] + "."


def section(name: str, route: Route) -> str:
    """The section *Follow a round*, without its heading."""
    stops = "\n".join(
        f"{place}. [{file}](../flower_privsyn/{file}), `{function}`. {reason(file)}"
        for place, (file, function) in enumerate(route.first.items(), start=1)
    )
    return f"""
The files that a round of `{name}` visits, in order, with the function that runs there first; the
nodes' half begins where `client_apps` does. `python scripts/route.py {name} --page` writes
this section; `popri`, `dp-ftrl` and `joint-sketch` have others.

{stops}
"""


def main() -> None:
    """Print the route of one method."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--page", action="store_true", help="write its section of docs")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    route = follow(given.method)
    if given.page:
        above = PAGE.read_text("utf-8").partition(HEADING)[0]
        PAGE.write_text(above + HEADING + section(given.method, route), "utf-8")
        return
    for file, function in route.first.items():
        print(f"{route.visits[file]:>5}  {file:<48} {function}")
    print(f"{len(route.first)} files, {sum(route.visits.values())} changes")


if __name__ == "__main__":
    main()
