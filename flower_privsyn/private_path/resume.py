"""What the files of a run say about how it goes on: who is left to ask, and how it can end."""

from __future__ import annotations

from dataclasses import replace

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import PrivacyLedger, Sampling
from flower_privsyn.private_path.release import ReleasedSum, is_stored, stored_release
from flower_privsyn.private_path.settings import PrivateSumConfig
from flower_privsyn.runs import RunDirectory, how_to_resume


def rounds_over(ledger: PrivacyLedger) -> int:
    """Rounds that no node will be asked again.

    Those that were charged, or begun and are about to be; and where the noise of rounds is
    correlated, whatever was begun of them: the second answer of a user would be one more than the
    sensitivity allows for. Others that were discarded are asked again.
    """
    correlated = (ledger.last_started(one) or 0 for one in ledger.correlations)
    return max((0, *ledger.rounds_charged, *ledger.rounds_started, *correlated))


def rounds_behind(run: RunDirectory) -> int:
    """Rounds of a resumed run that are paid for, or about to be; 0 of a run without a ledger."""
    if not run.ledger_file.exists():
        return 0
    ledger = PrivacyLedger.read(run.ledger_file)
    return max((0, *ledger.rounds_charged, *ledger.rounds_started))


def all_asked(run: RunDirectory, *, num_rounds: int) -> bool:
    """Whether a run that is resumed has no round left to ask.

    Args:
        run: its directory.
        num_rounds: rounds that it is resumed for.
    """
    if not run.ledger_file.exists():
        return False
    return rounds_over(PrivacyLedger.read(run.ledger_file)) >= num_rounds


def earliest_end(run: RunDirectory) -> int | None:
    """The number of rounds with which a run can end now, with what was released; None if none can.

    It is that of the last round that was charged. Noise that is correlated was charged for all
    rounds, and a run without any release has nothing to end with.
    """
    behind = rounds_behind(run)
    if behind == 0 or PrivacyLedger.read(run.ledger_file).correlations:
        return None
    released = any(is_stored(run, number) for number in range(1, behind + 1))
    return behind if released else None


class Releases:
    """The releases of a run, one round at a time: its ledger is read again where it was written.

    Who was drawn from is read there: on a resumed run the users may be others.

    Args:
        run: the run directory.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._read: tuple[int, int, int] | None = None
        self._samplings: dict[int, Sampling] = {}

    def of(self, number: int) -> ReleasedSum | None:
        """The release of a round; None before it, and where it did not reach the disk.

        Raises:
            LedgerError: the ledger is damaged, or lacks a line that another file states.
            RunDirectoryError: the release is damaged, or cannot be read.
        """
        written = self._written()
        # Reading it takes every file that states one of its lines, so for all rounds of a long run
        # it is read once. Every line makes it longer, whatever date the file is given.
        if written is None or written != self._read:
            self._samplings, self._read = _samplings(self._run), written
        sampling = self._samplings.get(number)
        return None if sampling is None else stored_release(self._run, number, sampling=sampling)

    def _written(self) -> tuple[int, int, int] | None:
        """What tells one state of the ledger from another; None where there is no ledger."""
        try:
            found = self._run.ledger_file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def _samplings(run: RunDirectory) -> dict[int, Sampling]:
    """Who was drawn from in each round that was begun, by the ledger."""
    return {
        int(line["round"]): Sampling.from_dict(line["sampling"])
        for line in run.ledger_lines()
        if line["event"] == "started"
    }


def nothing_spent(run: RunDirectory, settings: PrivateSumConfig) -> str:
    """What a run that stops before it asks anybody has cost, and how a paid one can end.

    Args:
        run: its directory.
        settings: that it goes on with; some methods have no result of as few rounds.
    """
    if not rounds_behind(run):
        return "nothing was spent"
    end = earliest_end(run)
    if end is None or not _may_have(settings, num_rounds=end):
        return "nothing more was spent"
    return (
        "nothing more was spent; to end with what was released: "
        f"{how_to_resume(run.path, num_rounds=end)}"
    )


def _may_have(settings: PrivateSumConfig, *, num_rounds: int) -> bool:
    try:
        replace(settings, num_rounds=num_rounds)
    except ConfigError:
        return False
    return True
