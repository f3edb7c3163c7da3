"""Every benchmark in one go: one table of ratios against floors and peers.

    python -m benchmarks.all [--only nearest_neighbor embedding] [--details]

Each benchmark runs in a process of its own, one after the other, at a size of a minute or two, and
its own output is shown with `--details` alone: `python -m benchmarks.NAME` gives it at any size.
A floor is what nobody can do without, a peer how others do the same; below 1 the package is faster.
Peers whose libraries are not installed are named below the table.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from benchmarks import Ratio
from flower_privsyn.embedding.machine import processor
from flower_privsyn.environment import library_versions

#: Every benchmark, and what it is given here.
BENCHMARKS: dict[str, str] = {
    "nearest_neighbor": "--users 1000 --repeats 3",
    "similarity": "--users 10000 --naive-users 1000",
    "embedding": "--texts 100",
    "local_training": "--model privsyn-tiny --users 32",
    "generation": "--models privsyn-lm smollm2-135m --batches 32 --texts 256",
    "joint_sketch": "",
    "secure_aggregation": "--nodes 16 100 --numbers 2048 18000",
    "growth": "--users 1000 10000 --nodes --candidates --rounds",
}


def run(name: str, details: bool) -> tuple[list[Ratio], str]:
    """One benchmark in this process: its ratios, and "" or why there are none.

    Args:
        name: a key of `BENCHMARKS`.
        details: show what it prints.
    """
    with contextlib.ExitStack() as stack:
        if not details:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        given = BENCHMARKS[name].split()
        try:
            ratios: list[Ratio] = importlib.import_module(f"benchmarks.{name}").main(given)
        except (Exception, SystemExit) as error:
            return [], f"{type(error).__name__}: {error}"
    return ratios, ""


def machine() -> str:
    """What the figures were taken on."""
    versions = library_versions("torch", "numpy")
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    return (
        f"{processor().get('model name', 'processor')}, {os.cpu_count()} cores, {libraries}, "
        f"OMP_NUM_THREADS={threads}, load {os.getloadavg()[0]:.0f} before"
    )


def table(ratios: Sequence[Ratio]) -> str:
    """The ratios in Markdown, and below it the peers that are not there."""
    lines = ["| part | against | takes | the other takes | ratio |", "|---|---|---|---|---|"]
    lines += [
        f"| {one.part} | {one.other} ({one.kind}) | {one.ours:.3g} {one.unit} "
        f"| {one.theirs:.3g} {one.unit} | {one.ratio:.2f} |"
        for one in ratios
        if one.theirs is not None
    ]
    absent = {one.other: one.missing for one in ratios if one.theirs is None}
    lines += [f"\nLeft out: {name} ({how})." for name, how in absent.items()]
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Run them and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument("--details", action="store_true", help="show what each of them prints")
    arguments = parser.parse_args(given)
    about, found, failed = machine(), list[Ratio](), list[str]()
    for name in arguments.only:
        print(f"{name} ...", file=sys.stderr, flush=True)
        # What one loads and sets must not speed up or slow down the next.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
            ratios, why = alone.submit(run, name, arguments.details).result()
        found += ratios
        failed += [f"\nFailed: {name} ({why})."] if why else []
    print(f"{about}\n\n{table(found)}", *failed, sep="\n")
    if failed:
        raise SystemExit(1)
    return found


if __name__ == "__main__":
    main()
