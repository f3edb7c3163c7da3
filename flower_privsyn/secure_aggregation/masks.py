"""Masks: streams of uniform 64-bit numbers from a key, added modulo 2^64."""

from __future__ import annotations

from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

Vector = NDArray[np.uint64]

#: Numbers that are made at a time: they stay in the cache.
_CHUNK: Final = 2**15

_ZEROS: Final = bytes(8 * _CHUNK)
_NONCE: Final = bytes(16)  # every key of a mask is used once; the counter begins at 0


def add_mask(vector: Vector, key: bytes, *, subtract: bool = False) -> None:
    """Add the mask of a key to a vector in place, or subtract it.

    Formal guarantee:
        The mask is the stream of ChaCha20 under the key, in little-endian numbers of 64 bits: who
        does not know the key cannot tell it from uniform numbers, nor then the sum.

    Args:
        vector: (m,) uint64, contiguous, m < 2^35.
        key: 32 bytes that mask nothing else.
        subtract: Take the mask away.
    """
    stream = Cipher(ChaCha20(key, _NONCE), mode=None).encryptor()
    buffer = bytearray(8 * min(_CHUNK, max(1, len(vector))))
    numbers = np.frombuffer(buffer, dtype="<u8")
    zeros = memoryview(_ZEROS)
    for start in range(0, len(vector), _CHUNK):
        part = vector[start : start + _CHUNK]
        stream.update_into(zeros[: 8 * len(part)], buffer)
        if subtract:
            part -= numbers[: len(part)]
        else:
            part += numbers[: len(part)]
