"""Signals that end a command, turned into an exception so that what it began is ended too."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator


class Stopped(BaseException):
    """A signal asked this process to end."""


@contextlib.contextmanager
def ended_by_signals(said: str = "") -> Iterator[None]:
    """Raise `Stopped` in this block where SIGTERM or SIGHUP would end the process.

    Args:
        said: to whoever interrupts the block.
    """

    def stop(_signal: int, _frame: object) -> None:
        raise Stopped

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except (KeyboardInterrupt, Stopped):
        sys.stderr.write(said)
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
