"""Validation shared by the privacy classes: each failure is one sentence naming key and value."""

from __future__ import annotations

import math
from numbers import Integral, Real

from flower_privsyn.errors import ConfigError


def real(key: str, value: object, allowed: str, *, low: float, high: float = math.inf) -> float:
    """Return ``value`` as a float in the closed interval [low, high], which must be finite.

    Raises:
        ConfigError: It is not a finite real number in the interval; ``allowed`` says what is.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"{key} must be {allowed}, got {value!r}.")
    number = float(value)
    if not math.isfinite(number) or not low <= number <= high:
        raise ConfigError(f"{key} must be {allowed}, got {value!r}.")
    return number


def positive(key: str, value: object) -> float:
    """Return ``value`` as a finite float above zero.

    Raises:
        ConfigError: It is anything else.
    """
    return real(key, value, "a finite number above 0", low=math.nextafter(0.0, 1.0))


def whole(key: str, value: object, *, low: int, high: int | None = None) -> int:
    """Return ``value`` as an int in [low, high].

    Raises:
        ConfigError: It is not a whole number in the range.
    """
    allowed = f"a whole number of at least {low}" if high is None else f"between {low} and {high}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{key} must be {allowed}, got {value!r}.")
    number = int(value)
    if number < low or (high is not None and number > high):
        raise ConfigError(f"{key} must be {allowed}, got {value!r}.")
    return number


def probability(key: str, value: object) -> float:
    """Return ``value`` as a float strictly between 0 and 1 (a delta).

    Raises:
        ConfigError: It is anything else.
    """
    return real(
        key,
        value,
        "strictly between 0 and 1",
        low=math.nextafter(0.0, 1.0),
        high=math.nextafter(1.0, 0.0),
    )
