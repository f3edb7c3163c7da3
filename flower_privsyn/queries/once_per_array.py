"""What follows from arrays that nobody changes is computed once, not once per node."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")


def once_per_array(compute: Callable[..., T]) -> Callable[..., T]:
    """Remember a function's result for as long as its first argument lives.

    A process that answers for many nodes is given the same candidates each time, as the same
    objects, owning their memory and not writeable. For any other array, which may hold other
    numbers when it comes again, the function is called every time.

    Args:
        compute: a function of one array, of more arrays and of names; what it returns is shared and
            must not be changed.
    """
    known: dict[tuple[Hashable, ...], tuple[list[weakref.ref[npt.NDArray[Any]]], T]] = {}
    # An array may be collected, and its entry removed, while this thread holds the lock.
    lock = threading.RLock()

    @wraps(compute)
    def remembered(*given: Any) -> T:
        arrays = [one for one in given if isinstance(one, np.ndarray)]
        if any(array.flags.writeable or not array.flags.owndata for array in arrays):
            return compute(*given)
        key = tuple(id(one) if isinstance(one, np.ndarray) else one for one in given)
        with lock:
            entry = known.get(key)
            if entry is not None and all(
                kept() is array for kept, array in zip(entry[0], arrays, strict=True)
            ):
                return entry[1]
        result = compute(*given)

        def forget(gone: weakref.ref[npt.NDArray[Any]]) -> None:
            with lock:
                entry = known.get(key)
                if entry is not None and any(kept is gone for kept in entry[0]):
                    del known[key]

        with lock:
            known[key] = ([weakref.ref(array, forget) for array in arrays], result)
        return result

    return remembered


@once_per_array
def all_finite(array: npt.NDArray[Any]) -> bool:
    """Whether every number is finite."""
    return bool(np.isfinite(array).all())
