"""Where warnings go that this package gives while it works on a run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

from flower_privsyn.host.progress import Progress

OWNER_ALONE: Final = "privsyn_owner_alone"
"""Set on a record that is in the server's log, and in no file of the run."""

_OURS: Final = "flower_privsyn"
_FLOWER: Final = "flwr"


class _Warnings(logging.Handler):
    """Passes warnings on to whoever follows the run, and to Flower's log those it would not see.

    Loggers below `flwr` are in Flower's log already. The others have Python's last resort, which
    writes to the same place, and which ends with the first handler that they get: this one.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, OWNER_ALONE, False):
            self._progress.note(f"warning: {record.getMessage()}")
        flower = logging.getLogger(_FLOWER)
        ours = record.name.partition(".")[0] == _OURS
        if ours and flower.isEnabledFor(record.levelno) and not self._is_heard(record):
            flower.handle(record)

    def _is_heard(self, record: logging.LogRecord) -> bool:
        """Whether an app has set up a log of its own that this is written to."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(one is not self and one.level <= record.levelno for one in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


@contextlib.contextmanager
def warnings_to(progress: Progress) -> Iterator[None]:
    """Pass on the warnings that this package gives inside the block.

    Args:
        progress: Of the run. What is for the owner alone is left out.
    """
    handler = _Warnings(progress)
    loggers = [logging.getLogger(name) for name in (_OURS, f"{_FLOWER}.privsyn")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
