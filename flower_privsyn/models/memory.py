"""Memory that is used again and again, kept in the process between two uses."""

from __future__ import annotations

import ctypes
import functools
from typing import Final

#: Of glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
#: A GiB; and the most that an older glibc takes as a threshold.
_LARGE: Final = 2**30
_LARGEST_OF_OLD: Final = 2**25


@functools.cache
def keep_freed_memory() -> bool:
    """Have this process keep what it frees for what it allocates next.

    By default glibc asks the kernel for every large array anew and gives it back when it is freed,
    and the kernel fills each of its pages with zeros when it is first written to. A step of
    training allocates and frees the same arrays as the step before, megabytes each, its logits
    above all: of a model of 2 million parameters 1,800 to 6,400 pages a user on a node, and a third
    of the time of distillation on the server. Arrays of up to a GiB then come from the process's
    own memory, and up to a GiB of it stays when it is free.

    Returns:
        Whether the allocator is one that knows of this; where it is another, nothing is changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    taken = mallopt(_M_MMAP_THRESHOLD, _LARGE) or mallopt(_M_MMAP_THRESHOLD, _LARGEST_OF_OLD)
    return bool(taken and mallopt(_M_TRIM_THRESHOLD, _LARGE))
