"""Threads that compute: pieces of work side by side, each of them on one thread.

A product of matrices that is divided among threads waits at its end for the slowest of them, and
OpenMP's threads wait by spinning: where the cores are busy with something else, 64 texts of the
bundled generator took 49 s and 20 s of processor time on two threads, and 10 s and 3 s on one. A
small model therefore computes each batch on one thread, and several batches side by side, which
wait for nobody.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from flower_privsyn import environment
from flower_privsyn.errors import ConfigError

W = TypeVar("W")
R = TypeVar("R")

#: Parameters from which dividing one product among threads is worth their waiting.
SMALL: Final = 100_000_000

_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


def most_threads() -> int:
    """How many threads may compute at a time here: `PRIVSYN_THREADS`, else the cores there are.

    Those are the cores that this process is bound to, and no more than its group's share.

    Raises:
        ConfigError: The variable holds no whole number >= 1.
    """
    if given := os.environ.get(environment.THREADS, "").strip():
        if not given.isascii() or not given.isdigit() or int(given) < 1:
            raise ConfigError(f"{environment.THREADS} must be a whole number >= 1, got {given!r}")
        return int(given)
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no such group, or "max"
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        cores = max(1, min(cores, math.ceil(int(quota) / int(period))))
    return cores


def computing() -> int:
    """Threads that compute side by side: PyTorch's number, and no more than `most_threads`."""
    import torch

    return min(torch.get_num_threads(), most_threads())


def is_small(model: Any) -> bool:
    """Whether a PyTorch model computes on the CPU and is too small to divide its products."""
    if next(model.parameters()).device.type != "cpu":
        return False
    return bool(sum(parameter.numel() for parameter in model.parameters()) < SMALL)


def side_by_side(function: Callable[[W], R], work: Sequence[W]) -> Iterator[R]:
    """The results of all pieces of work, in order; each piece is computed by one thread.

    As many threads as PyTorch has in this process, and no more than `most_threads`.

    Args:
        function: Computes one piece; safe to call from several threads.
        work: The pieces.

    Yields:
        One result per piece, in order.
    """
    import torch

    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(computing())
    try:
        # Also of the pool's threads, which take over the process's number.
        torch.set_num_threads(1)
        yield from pool.map(function, work)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)
