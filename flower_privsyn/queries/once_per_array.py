"""What follows from an array that nobody changes is computed once, not once per node."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
Compute = Callable[[npt.NDArray[Any]], T]


def once_per_array(compute: Compute[T]) -> Compute[T]:
    """Remember a function's result for as long as its argument lives.

    A process that answers for many nodes is given the same candidates each time, as the same
    object, owning its memory and not writeable. For any other array, which may hold other numbers
    when it comes again, the function is called every time.

    Args:
        compute: a function of one array; what it returns is shared and must not be changed.
    """
    known: dict[int, tuple[weakref.ref[npt.NDArray[Any]], T]] = {}
    # An array may be collected, and its entry removed, while this thread holds the lock.
    lock = threading.RLock()

    @wraps(compute)
    def remembered(array: npt.NDArray[Any]) -> T:
        if array.flags.writeable or not array.flags.owndata:
            return compute(array)
        name = id(array)
        with lock:
            entry = known.get(name)
            if entry is not None and entry[0]() is array:
                return entry[1]
        result = compute(array)

        def forget(gone: weakref.ref[npt.NDArray[Any]]) -> None:
            with lock:
                entry = known.get(name)
                if entry is not None and entry[0] is gone:
                    del known[name]

        with lock:
            known[name] = (weakref.ref(array, forget), result)
        return result

    return remembered


@once_per_array
def all_finite(array: npt.NDArray[Any]) -> bool:
    """Whether every number is finite."""
    return bool(np.isfinite(array).all())
