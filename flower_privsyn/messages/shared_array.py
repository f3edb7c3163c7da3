"""Arrays that a simulation carries to each machine once, not to every node.

Flower's simulation pickles a node's whole message for Ray, node by node: at 16 nodes and 14 MB of
candidates that is what a cheap round consists of. A `SharedArray` is Flower's Array in every other
way, and named by its content. Pickled in a process that runs Ray, it puts its bytes into Ray's
object store when first asked, and afterwards travels as that object's reference: Ray brings the
bytes to a machine's shared memory once, and processes there map them. Deployed nodes never see any
of this: there Flower sends objects by their own digests and nothing is pickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array
from numpy.lib.format import read_array_header_1_0, read_magic


def content_digest(array: Array) -> bytes:
    """The name of an Array's content: SHA-256 of type, shape, serialisation and bytes.

    Of an array that came through Ray it is known without looking at the bytes.
    """
    known = array.__dict__.get("_digest")
    if isinstance(known, bytes):
        return known
    head = json.dumps([array.dtype, list(array.shape), array.stype, len(array.data)])
    digest = hashlib.sha256(head.encode())
    digest.update(array.data)
    return digest.digest()


def numbers_of(array: Array) -> npt.NDArray[Any]:
    """The numbers of an Array that somebody else has sent, read-only.

    Raises:
        ValueError: its bytes are no array as `np.save` writes one. NumPy's own reader makes room
            for whatever shape they claim before it looks how many there are.
    """
    try:
        file = io.BytesIO(array.data)
        if read_magic(file) != (1, 0):
            raise ValueError("another version of the format")
        shape, by_columns, dtype = read_array_header_1_0(file)
        numbers = np.frombuffer(array.data, dtype, offset=file.tell())
        return numbers.reshape(shape, order="F" if by_columns else "C")
    except Exception as error:  # whatever NumPy makes of bytes that anybody chose
        raise ValueError("the bytes of an Array cannot be read") from error


class SharedArray(Array):
    """An Array whose bytes Ray's processes share.

    Not to be changed once it is made: its digest and what Ray holds stay those of its first bytes.

    Args:
        values: the numbers, of any shape.
    """

    def __init__(self, values: npt.NDArray[Any]) -> None:
        super().__init__(np.ascontiguousarray(values))
        self._digest = content_digest(self)
        self._lock = threading.Lock()
        self._stored: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """As a reference where Ray runs, else as a plain Array."""
        reference = self._reference()
        if reference is None:
            return Array, (self.dtype, self.shape, self.stype, self.data)
        return _received, (self.dtype, self.shape, self.stype, self._digest, reference)

    def _reference(self) -> Any:
        # Whoever simulates has loaded Ray; nobody else shall pay for it.
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            return None
        with self._lock:
            if self._stored is None:
                # As numbers, not as bytes: only those are mapped by their readers, not copied.
                numbers = np.frombuffer(self.data, dtype=np.uint8)
                # This thread is pickling a task for Ray. Pickling once more in it would make Ray
                # take the reference for one that it cannot follow, and keep the bytes for ever.
                with ThreadPoolExecutor(1) as other:
                    self._stored = other.submit(ray.put, numbers).result()
            return self._stored


class _ReceivedArray(Array):
    """A `SharedArray` in another process: the bytes are fetched when somebody reads them."""

    def __getattr__(self, name: str) -> Any:
        if name != "data":  # which is there once it was asked for
            raise AttributeError(name)
        import ray

        self.__dict__["data"] = data = ray.get(self._stored).data
        return data

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.dtype, self.shape, self.stype, self._digest, self._stored)


# What is sent over a network names its class for the receiver, who knows Flower's alone.
SharedArray.__qualname__ = _ReceivedArray.__qualname__ = Array.__qualname__


def _received(
    dtype: str, shape: tuple[int, ...], stype: str, digest: bytes, reference: Any
) -> Array:
    array = _ReceivedArray.__new__(_ReceivedArray)
    array.__dict__.update(dtype=dtype, shape=shape, stype=stype, _digest=digest, _stored=reference)
    return array
