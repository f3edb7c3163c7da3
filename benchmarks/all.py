"""Every work of the package in one table of ratios, below 1 where the package is faster.

    python -m benchmarks.all [votes training ...]

Five minutes on two idle cores. Each runs in a process of its own, one after the other, on one
thread unless it says so. How a run grows is another command, `python -m benchmarks.growth`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import TABLE, apart, machine

FILES = {path.stem for path in Path(__file__).parent.glob("*.py")}
NAMES = sorted(FILES - {"__init__", "all", "growth"})


def run(name: str) -> list[str]:
    """Rows of the table by one benchmark, in this process.

    Args:
        name: of `NAMES`.
    """
    return [one.row() for one in importlib.import_module(f"benchmarks.{name}").measure()]


def main(given: Sequence[str] | None = None) -> None:
    """Run them and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", default=NAMES, help=", ".join(NAMES))
    names = parser.parse_args(given).names
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    begun, failed = time.monotonic(), []
    print(f"{machine()}\n\n{TABLE}", flush=True)
    for name in names:
        try:
            print(*apart(run, name), sep="\n", flush=True)
        except (Exception, SystemExit) as error:
            failed.append(f"Failed: {name} ({type(error).__name__}: {error}).")
    print(f"\n{(time.monotonic() - begun) / 60:.1f} minutes")
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
