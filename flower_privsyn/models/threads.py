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

    Raises:
        ConfigError: The variable holds no whole number >= 1.
    """
    given = os.environ.get(environment.THREADS, "").strip()
    if not given:
        return cores()
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise ConfigError(f"{environment.THREADS} must be a whole number >= 1, got {given!r}")
    return int(given)


def cores() -> int:
    """Cores that this process may use: those it is bound to, and no more than its group's share."""
    if hasattr(os, "sched_getaffinity"):
        bound = len(os.sched_getaffinity(0))
    else:
        bound = os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        share = math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no such group, or "max"
        share = bound
    return max(1, min(bound, share))


def computing() -> int:
    """Threads that compute side by side: PyTorch's number, and no more than `most_threads`."""
    import torch

    return max(1, min(torch.get_num_threads(), most_threads()))


def is_small(model: Any) -> bool:
    """Whether a PyTorch model computes on the CPU and is too small to divide its products."""
    if next(model.parameters()).device.type != "cpu":
        return False
    return bool(sum(parameter.numel() for parameter in model.parameters()) < SMALL)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Whatever this thread computes inside, it computes alone."""
    import torch

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)


def side_by_side(function: Callable[[W], R], work: Sequence[W]) -> Iterator[R]:
    """The results of all pieces of work, in order; each piece is computed by one thread.

    As many threads as PyTorch has in this process, and no more than `most_threads`.

    Args:
        function: Computes one piece; safe to call from several threads.
        work: The pieces.

    Yields:
        One result per piece, in order.
    """
    threads = min(computing(), len(work))
    with one_thread():
        if threads <= 1:
            yield from map(function, work)
            return
        pool = ThreadPoolExecutor(threads, initializer=_compute_alone)
        try:
            yield from pool.map(function, work)
        finally:
            pool.shutdown(cancel_futures=True)


def _compute_alone() -> None:
    """One thread for whatever this thread computes."""
    import torch

    # Asked first, because a thread takes over the process's number when it first computes.
    torch.get_num_threads()
    torch.set_num_threads(1)
