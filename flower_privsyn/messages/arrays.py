"""The arrays of messages: their names by content, and their numbers."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array
from numpy.lib.format import read_array_header_1_0, read_magic


def content_digest(array: Array) -> bytes:
    """The name of an Array's content: SHA-256 of type, shape, serialisation and bytes.

    Computed once for each Array, which is not changed once it is part of a message, and of which
    every node of a process is sent the same.
    """
    known = array.__dict__.get("_digest")
    if isinstance(known, bytes):
        return known
    head = json.dumps([array.dtype, list(array.shape), array.stype, len(array.data)])
    digest = hashlib.sha256(head.encode())
    digest.update(array.data)
    array.__dict__["_digest"] = digest.digest()
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
