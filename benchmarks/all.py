"""Every benchmark in one go: one table of ratios against floors and peers.

    python -m benchmarks.all [--only nearest_neighbor embedding]

Each benchmark runs in a process of its own, one after the other, at a size of a minute or two;
`python -m benchmarks.NAME` runs one at any size. A floor is what nobody can do without, a peer how
others do the same; below 1 the package is faster.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from benchmarks import Ratio, shown

#: Every benchmark, and what it is given here.
BENCHMARKS: dict[str, str] = {
    "nearest_neighbor": "--users 1000 --repeats 3",
    "similarity": "--users 10000 --few 1000",
    "embedding": "--texts 100",
    "local_training": "--model privsyn-tiny --users 32",
    "generation": "--models privsyn-lm smollm2-135m --batches 32 --texts 256",
    "joint_sketch": "",
    "secure_aggregation": "--nodes 16 100 --numbers 2048 18000",
    "growth": "--users 1000 10000 --nodes --candidates --rounds",
}


def run(name: str) -> tuple[list[Ratio], str]:
    """One benchmark in this process: its ratios, and "" or why there are none.

    Args:
        name: a key of `BENCHMARKS`.
    """
    silent = io.StringIO()
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
        try:
            benchmark = importlib.import_module(f"benchmarks.{name}")
            ratios: list[Ratio] = benchmark.main(BENCHMARKS[name].split())
        except (Exception, SystemExit) as error:
            return [], f"{type(error).__name__}: {error}"
    return ratios, ""


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Run them and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    arguments = parser.parse_args(given)
    found, failed = list[Ratio](), list[str]()
    for name in arguments.only:
        print(f"{name} ...", file=sys.stderr, flush=True)
        # What one loads and sets must not speed up or slow down the next.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
            ratios, why = alone.submit(run, name).result()
        found += ratios
        failed += [f"\nFailed: {name} ({why})."] if why else []
    shown(found)
    if failed:
        print(*failed, sep="\n")
        raise SystemExit(1)
    return found


if __name__ == "__main__":
    main()
