"""Shamir's secret sharing of bytes, sixteen bits at a time, in the field of 2^16 elements.

A secret of 32 bytes is 16 elements, each the value at 0 of a polynomial of its own whose other
coefficients are random; a share is the values of all of them at one point. Products are looked up
as sums of logarithms, so that many points and all 16 polynomials are one numpy operation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.errors import ProtocolError

#: x^16 + x^12 + x^3 + x + 1, which is primitive: x generates the field.
POLYNOMIAL: Final = 0x1100B
_ORDER: Final = 2**16 - 1

Elements = NDArray[np.uint16]


@lru_cache(maxsize=1)
def _tables() -> tuple[NDArray[np.int64], Elements]:
    """The logarithm of every element above 0, and the powers of x, twice over."""
    powers = np.empty(2 * _ORDER, dtype=np.uint16)
    logarithms = np.zeros(_ORDER + 1, dtype=np.int64)
    element = 1
    for exponent in range(_ORDER):
        powers[exponent] = powers[exponent + _ORDER] = element
        logarithms[element] = exponent
        element <<= 1
        if element > _ORDER:
            element ^= POLYNOMIAL
    return logarithms, powers


def multiply(first: Elements, second: Elements) -> Elements:
    """Products in the field; the arrays broadcast."""
    logarithms, powers = _tables()
    product = powers[logarithms[first] + logarithms[second]]
    return np.where((first == 0) | (second == 0), np.uint16(0), product).astype(np.uint16)


def split(secret: bytes, *, points: Sequence[int], threshold: int) -> dict[int, bytes]:
    """Split a secret into shares of which any ``threshold`` give it back.

    Formal guarantee:
        Fewer than ``threshold`` shares are uniform bytes, whatever the secret: nothing about it
        follows from them.

    Args:
        secret: An even number of bytes.
        points: Where the shares lie: different whole numbers in 1 .. 65,535.
        threshold: At least 1 and at most the number of points.

    Returns:
        A share by its point, as long as the secret.
    """
    if not 1 <= threshold <= len(points) or len(secret) % 2:
        raise ValueError(f"{threshold} of {len(points)} shares of {len(secret)} bytes")
    places = _places(points)
    words = len(secret) // 2
    random = np.frombuffer(os.urandom(2 * words * (threshold - 1)), dtype="<u2")
    coefficients = np.concatenate([np.frombuffer(secret, dtype="<u2"), random])
    coefficients = coefficients.astype(np.uint16).reshape(threshold, words)
    values = np.zeros((len(places), words), dtype=np.uint16)
    for row in coefficients[::-1]:  # Horner's scheme, at all points at once
        values = multiply(values, places[:, None]) ^ row
    return {
        point: share.astype("<u2").tobytes() for point, share in zip(points, values, strict=True)
    }


def combine(shares: Mapping[int, bytes], *, threshold: int) -> bytes:
    """Return the secret behind shares.

    Args:
        shares: By their points, all of one length; the first ``threshold`` of them are used.
        threshold: As they were split.

    Returns:
        The secret, or other bytes where a share is not what was dealt.

    Raises:
        ProtocolError: There are too few shares.
    """
    if len(shares) < threshold:
        raise ProtocolError(f"{len(shares)} shares of a secret came, {threshold} are needed")
    chosen = sorted(shares)[:threshold]
    values = np.stack([np.frombuffer(shares[point], dtype="<u2") for point in chosen])
    weights = _at_zero(tuple(chosen))
    parts = multiply(values.astype(np.uint16), weights[:, None])
    secret: Elements = np.bitwise_xor.reduce(parts, axis=0)
    return secret.astype("<u2").tobytes()


@lru_cache(maxsize=4096)
def _at_zero(points: tuple[int, ...]) -> Elements:
    """Lagrange's weights of the values at these points for the value at 0."""
    logarithms, powers = _tables()
    places = _places(points)
    differences = places[:, None] ^ places[None, :]
    below = logarithms[differences].sum(axis=1)  # the logarithm of what stands on the diagonal is 0
    above = logarithms[places].sum() - logarithms[places]
    weights: Elements = powers[(above - below) % _ORDER]
    return weights


def _places(points: Sequence[int]) -> Elements:
    if len(set(points)) < len(points) or not all(1 <= point <= _ORDER for point in points):
        raise ValueError("the points of shares must be different and in 1 .. 65,535")
    return np.array(points, dtype=np.uint16)
