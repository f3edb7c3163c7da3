"""PyTorch for a process that could do without: loaded once that has taken longer than loading.

A node that finds its records on the disk needs no model, and so no model library. Where it is asked
for many products of matrices all the same, a processor with instructions for bfloat16 makes up for
the two seconds and 160 MB that PyTorch takes.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Final

#: Operations of float32 products that take about as long as loading PyTorch: 2 s on one core.
_AS_LONG_AS_LOADING: Final = 2.5e11
#: What processors call their instructions for bfloat16: x86-64's and Arm's.
_BFLOAT16: Final = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_PROCESSORS: Final = Path("/proc/cpuinfo")


class Demand:
    """How much a process has computed without PyTorch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._operations = 0.0

    def loads(self, operations: float) -> bool:
        """Whether PyTorch is loaded, which it may be by this call.

        Whoever stops asking right after it was loaded has waited twice as long as without, and
        nobody longer.

        Args:
            operations: of float32 products, that its products in bfloat16 would replace now.
        """
        if "torch" in sys.modules:
            return True
        with self._lock:
            self._operations += operations
            if self._operations < _AS_LONG_AS_LOADING:
                return False
        return multiplies_bfloat16() and _load()


@cache
def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for it, as far as the system tells."""
    try:
        lines = _PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    flags = (line.partition(":") for line in lines)
    return any(
        not _BFLOAT16.isdisjoint(value.split())
        for key, _, value in flags
        if key.strip() in ("flags", "Features")
    )


@cache
def _load() -> bool:
    """Whether there is a PyTorch that can be loaded."""
    if importlib.util.find_spec("torch") is None:
        return False
    try:
        importlib.import_module("torch")
    except (ImportError, OSError):  # installed, and broken: nobody has asked for it
        return False
    return True
