"""A tracker of experiments is told of a run: what the run directory says, when it says it.

It is told the settings without places, and after every round the numbers of `metrics.jsonl`. What
counts people is in those lines only where the run directory may hold it (`AskedRound.outcome`).
What trackers keep on this machine is in the owner's folder.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from flower_privsyn.files import read_json, write_json
from flower_privsyn.run.directory import RunDirectory
from flower_privsyn.run.run_format import LEDGER_KEY, stamp_of
from flower_privsyn.trackers import TRACKERS, Tracker, require_tracker

logger = logging.getLogger("flwr.privsyn")

#: Who asks a server, and by which password, in an address.
_LOGIN: Final = re.compile(r"(?<=://)[^/\s]*@")

#: In the owner's folder: what each tracker calls the run, and how much it has been told.
_TOLD: Final = "trackers.json"


class Following:
    """A tracker that is told of a run while it lasts; one that failed, not before the run ends.

    Args:
        tracker: of the run.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._begun = self._fails = False

    @classmethod
    def of(cls, name: str, own: Tracker | None) -> Following | None:
        """The tracker of a run; None where nobody is told.

        Args:
            name: as of `require_tracker`.
            own: somebody's own, which counts before that.

        Raises:
            MissingExtraError: its library is not installed.
        """
        if own is None and name:
            require_tracker(name)
            own = TRACKERS[name]()
        return None if own is None else cls(own)

    def tell(self, run: RunDirectory) -> None:
        """Tell it the lines of `metrics.jsonl` that it lacks; what goes wrong costs no round."""
        if self._fails and run.status == "running":
            return
        try:
            self._tell(run)
            self._fails = False
        except Exception as error:  # a library of others, and a server of others
            self._fails = True
            # The warning is in the run directory, and libraries quote the address they were given.
            said = _LOGIN.sub("", str(error))
            logger.warning(
                "the tracker was not told: %s: %s (metrics.jsonl has the figures)",
                type(error).__name__,
                said,
            )

    def _tell(self, run: RunDirectory) -> None:
        tracker = self._tracker
        file, own = run.owner.path / _TOLD, type(tracker).__name__
        known = read_json(file)
        told = {"name": "", "lines": 0, "status": "", **known.get(own, {})}
        lines = run.metrics()[told["lines"] :]
        if not lines and told["status"] == run.status:
            return  # of a run that was finished before

        def note(**what: Any) -> None:
            told.update(what)
            with contextlib.suppress(OSError):  # a later process tells it once more
                write_json(file, {**known, own: told}, for_the_owner=True)

        if not self._begun:
            run.owner.make()
            note(name=tracker.begin(run.path.name, _settings(run), run.owner.path, told["name"]))
            self._begun = True
        for line in lines:
            tracker.log(int(line["round"]), _figures(line))
            note(lines=told["lines"] + 1)
        if run.status in ("finished", "failed"):
            tracker.end(run.status)
            note(status=run.status)


def _figures(line: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a line but that of its round, and the digest it states."""
    return {
        name: float(value)
        for name, value in line.items()
        if name not in ("round", LEDGER_KEY)
        and isinstance(value, int | float)
        and math.isfinite(value)
    }


def _settings(run: RunDirectory) -> dict[str, str]:
    """Of the run, as text; and the stamp where the epsilons do not cover its figures."""
    document = run.document
    found = {key: "" if value is None else str(value) for key, value in run.config.items()}
    stamps = (line["stamp"] for line in run.metrics() if line.get("stamp"))
    stamp = stamp_of(document) or next(stamps, None)
    told = {"stamp": stamp} if stamp else {}
    return {"strategy": document.get("strategy") or "", **found, **told}
