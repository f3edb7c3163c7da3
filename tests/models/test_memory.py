"""What a process frees, it uses again."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Forty MiB, which glibc by default asks the kernel for every time, and faults per array.
SCRIPT = """
import resource
import numpy as np

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        np.full(5 * 2**20, 1.0)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10

before = faults()
{keep}
faults()
print(kept, before, faults())
"""

LOADED = """
from flower_privsyn.models.memory import keep_freed_memory
from flower_privsyn.models.pretrained import load_pretrained
load_pretrained("privsyn-tiny", kind="causal", dtype="float32", device="cpu")
kept = keep_freed_memory.cache_info().currsize and keep_freed_memory()
"""


def test_large_arrays_are_not_asked_of_the_kernel_anew() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(keep=LOADED)],
        capture_output=True,
        text=True,
        check=True,
    )
    kept, before, after = done.stdout.split()
    if kept == "False":
        pytest.skip("the allocator is not glibc's")
    assert float(before) > 10  # 10,240 pages, or 20 large ones
    assert float(after) < 10
