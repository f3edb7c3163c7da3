"""The clock of what is recorded.

Every time and every duration that this package writes anywhere is taken here, so that a test can
stop the clock, or make it jump, and see which files change. Deadlines and pauses, which are never
written, use `time` itself.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def seconds() -> float:
    """Seconds from some moment on, never backwards: for durations."""
    return time.monotonic()
