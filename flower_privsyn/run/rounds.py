"""The rounds of a run on the disk: what is known after each, and how a killed run goes on."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.format import read_array

from flower_privsyn.errors import FederationError, LedgerError, RunDirectoryError, StoppedError
from flower_privsyn.files import replacing
from flower_privsyn.privacy import Plan, PrivacyLedger, Sampling
from flower_privsyn.run import RunDirectory, how_to_resume
from flower_privsyn.run.directory import RoundFiles
from flower_privsyn.run.method import Method, Question, ReleasedSum, State, need
from flower_privsyn.run.run_format import STOPPED
from flower_privsyn.run.trackers import Following


def is_stored(run: RunDirectory, number: int) -> bool:
    """Whether the release of a round is on the disk."""
    return run.round_files(number).release.exists()


def store_release(run: RunDirectory, release: ReleasedSum) -> None:
    """Write a release, for the eyes of the run's owner alone."""
    num_users = np.nan if release.num_users is None else release.num_users
    header = np.array([release.noise_std, num_users], dtype=np.float64)
    target = RoundFiles(run.round_dir(release.round_number)).release
    with replacing(target, for_the_owner=True) as file:
        # One file, so that the sum and what is known of its noise cannot be parted.
        np.save(file, release.values)
        np.save(file, header)


def stored_release(run: RunDirectory, number: int, *, sampling: Sampling) -> ReleasedSum | None:
    """Read the release of a round; None where it did not reach the disk.

    Args:
        run: the run directory.
        number: of the round.
        sampling: who was drawn from in it.

    Raises:
        RunDirectoryError: the file is damaged, or cannot be read.
    """
    if not is_stored(run, number):
        return None
    path = run.round_files(number).release
    try:
        with path.open("rb") as file:
            # Not `np.load`, which also opens archives and says of bad ones whatever these say.
            values, (noise_std, users) = read_array(file), read_array(file).tolist()
        if values.ndim != 1 or values.dtype != np.float64:
            raise ValueError("other arrays than those of a release")
    except (OSError, ValueError, TypeError) as error:
        raise RunDirectoryError(
            f"{path} is damaged, or cannot be read: it does not hold the release of round "
            f"{number}, which was charged; put back a copy of it."
        ) from error
    return ReleasedSum(
        round_number=number,
        values=values,
        noise_std=noise_std,
        num_users=None if math.isnan(users) else int(users),
        sampling=sampling,
    )


#: In the file, what is no array.
_REST: Final = "json"


def keep_state(run: RunDirectory, number: int, state: State) -> State:
    """Write what is known after a round, and delete what was known before it.

    The file is whole or not there, whenever the process is killed.

    Args:
        run: the run directory.
        number: of the round; 0 is before the first.
        state: what is known.

    Returns:
        The same as a process finds it that goes on with the run, tuples being lists.
    """
    rest = {name: value for name, value in state.items() if not isinstance(value, np.ndarray)}
    arrays = {name: value for name, value in state.items() if name not in rest}
    if {_REST, "file"} & set(state) or any(array.dtype.hasobject for array in arrays.values()):
        raise TypeError("a state holds arrays of numbers, and no value named json or file")
    path, packed = run.path / f"checkpoint-{number:04d}.npz", json.dumps(rest).encode()
    with replacing(path, for_the_owner=True) as file:
        np.savez(file, **{**arrays, _REST: np.frombuffer(packed, dtype=np.uint8)})
    # Also what a process was killed in writing.
    for other in {*_kept(run), *run.path.glob(".checkpoint-*")} - {path}:
        other.unlink(missing_ok=True)
    return {**arrays, **json.loads(packed)}


def last_state(run: RunDirectory) -> tuple[int, State] | None:
    """The last state that was kept, and after which round; None of a run that has none.

    Raises:
        RunDirectoryError: the file is damaged, or cannot be read.
    """
    if not (kept := _kept(run)):
        return None
    path = kept[-1]
    try:
        with np.load(path) as found:
            arrays = {name: found[name] for name in found.files if name != _REST}
            rest = dict(json.loads(found[_REST].tobytes()))
    except Exception as error:  # whatever is raised by what somebody has put there
        raise RunDirectoryError(
            f"{path} is damaged, or cannot be read: it does not hold what the run had made of its "
            "releases; put back a copy of it."
        ) from error
    return _number_of(path), {**arrays, **rest}


def _kept(run: RunDirectory) -> list[Path]:
    """The states on the disk, the last one last; of a run that was killed there may be two."""
    return sorted(run.path.glob("checkpoint-*.npz"), key=_number_of)


def _number_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


logger = logging.getLogger("flwr.privsyn")


def ledger_of(run: RunDirectory) -> PrivacyLedger | None:
    """The ledger of a run, to look at; None where it has none yet."""
    return PrivacyLedger.read(run.ledger_file) if run.ledger_file.exists() else None


def rounds_behind(run: RunDirectory) -> int:
    """Rounds of a resumed run that are paid for, or about to be; 0 of a run without a ledger."""
    ledger = ledger_of(run)
    return 0 if ledger is None else ledger.rounds_behind


def all_asked(run: RunDirectory, *, num_rounds: int) -> bool:
    """Whether a run that is resumed has no round left to ask.

    Args:
        run: its directory.
        num_rounds: rounds that it is resumed for.
    """
    ledger = ledger_of(run)
    return ledger is not None and ledger.rounds_over >= num_rounds


def earliest_end(run: RunDirectory) -> int | None:
    """The number of rounds with which a run can end now, with what was released; None if none can.

    It is that of the last round that was charged. Noise that is correlated was charged for all
    rounds, and a run without any release has nothing to end with.
    """
    ledger = ledger_of(run)
    if ledger is None or ledger.correlations:
        return None
    behind = ledger.rounds_behind
    return behind if any(is_stored(run, number) for number in range(1, behind + 1)) else None


class Releases:
    """The releases of a run, one round at a time.

    Who was drawn from is read there: on a resumed run the users may be others.

    Args:
        run: the run directory.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._samplings: dict[int, Sampling] = {}

    def of(self, number: int) -> ReleasedSum | None:
        """The release of a round; None before it, and where it did not reach the disk.

        Raises:
            LedgerError: the ledger is damaged, or lacks a line that another file states.
            RunDirectoryError: the release is damaged, or cannot be read.
        """
        # Reading it takes every file that states one of its lines: once for all rounds there are.
        if number not in self._samplings:
            self._samplings = self._run.samplings()
        sampling = self._samplings.get(number)
        return None if sampling is None else stored_release(self._run, number, sampling=sampling)


def nothing_spent(run: RunDirectory) -> str:
    """What a run that stops before it asks anybody has cost, and how a paid one can end."""
    if not rounds_behind(run):
        return "nothing was spent"
    if (end := earliest_end(run)) is None:
        return "nothing more was spent"
    return (
        "nothing more was spent; to end with what was released: "
        f"{how_to_resume(run.path, num_rounds=end)}"
    )


#: What all rounds of the plan cost together, in the record of round 0.
_PLANNED: Final = "planned"


@dataclass(kw_only=True)
class KeptRounds:
    """The method's state, kept in the run directory round by round.

    Attributes:
        run: the run directory.
        method: post-processes.
        total: rounds of the whole run.
        tracker: told of every round, and of a failure; None where nobody is.
        state: what the method knows, from `go_on` on.
        over: rounds that are over.
    """

    run: RunDirectory
    method: Method
    total: int
    tracker: Following | None
    state: State = field(default_factory=dict)
    over: int = 0
    _asked: tuple[int, Question] | None = None

    @property
    def question(self) -> Question | None:
        """What the next round asks, made once; None after the last."""
        if self.over >= self.total:
            return None
        if self._asked is None or self._asked[0] != self.over + 1:
            self._asked = self.over + 1, self.method.ask(self.state, self.over + 1)
        return self._asked[1]

    # ------------------------------------------------------------------ beginning and going on

    def go_on(self, ledger: PrivacyLedger, plan: Plan | None) -> None:
        """Begin the run, or bring the one in the directory to the end of a round.

        The last state is loaded, and stepped through the releases that were charged since, which is
        free. A charged round whose release was lost stays charged.

        Args:
            ledger: open.
            plan: of the whole run; None where every round has been asked.

        Raises:
            LedgerError: the ledger lacks a round that was released.
        """
        run, charged = self.run, set(ledger.rounds_charged)
        self._refuse_missing_lines(charged)
        if (kept := last_state(run)) is None:
            kept = 0, self._keep(0, self.method.init)
        known, self.state = kept
        if run.round_state(0) is None:
            # The cost of a run whose end its releases decide.
            run.finish_round(0, {} if plan is None else {_PLANNED: plan.costs()})
        releases = Releases(run)
        for number in range(1, ledger.rounds_over + 1):
            finished = run.round_state(number) is not None
            if not finished or number > known:
                release = releases.of(number)
                if number in charged and not finished:
                    self._log_cost(number, ledger)
                if release is not None:
                    self.release(release, is_known=number <= known)
                elif not finished:
                    self.leave_out(number, "interrupted" if number in charged else "discarded")
                    if number in charged:
                        logger.warning("round %d was interrupted: it is left out", number)
            self.over = number
        for number, files in run.all_rounds():
            if number > self.over:
                # It was left out at no charge, and is asked again.
                files.state.unlink(missing_ok=True)
            if number <= known:
                shutil.rmtree(files.folder / "scratch", ignore_errors=True)

    def _keep(self, number: int, known: Callable[[Path], State]) -> State:
        """Make a state, write it, and delete what led to it.

        Args:
            number: of the round that it is known after; 0 before the first.
            known: makes it, with a folder for what long work keeps of itself.
        """
        folder = self.run.round_dir(number) / "scratch"
        folder.mkdir(exist_ok=True)
        state = keep_state(self.run, number, known(folder))
        shutil.rmtree(folder)
        return state

    def _log_cost(self, number: int, ledger: PrivacyLedger) -> None:
        """Give a charged round that was killed before it had one its line of `metrics.jsonl`.

        Nobody has counted its replies, but epsilon has grown, and whoever reads that file alone
        would miss it. The line of an earlier time, when it was asked and discarded, says what was
        spent before.
        """
        spent = ledger.spent
        told = [line for line in self.run.metrics() if line.get("round") == number]
        if any(line.get("epsilon_release") == spent["epsilon_release"] for line in told):
            return
        released = is_stored(self.run, number)
        self.run.log_metrics({"round": number, "released": released, **spent})

    def _refuse_missing_lines(self, charged: set[int]) -> None:
        """A ledger that was removed or cut must not make a resumed run look cheaper."""
        released = set(self.run.rounds_with_outcome("released"))
        for number in range(1, self.total + 1):
            if (is_stored(self.run, number) or number in released) and number not in charged:
                raise LedgerError(
                    f"{self.run.ledger_file} has no line for round {number}, which was released: "
                    "the ledger was removed or cut, and the run cannot continue"
                )

    # ------------------------------------------------------------------ a round

    def refuse_where_stopped(self, number: int) -> None:
        """End the run where its owner asked for it; the round has not begun, in no ledger.

        Args:
            number: of the round that would begin.

        Raises:
            StoppedError: the owner asked.
        """
        if self.run.owner.stop_file.exists():
            raise StoppedError(
                f"{STOPPED} {number} of {self.total}, as was asked: nothing is lost; go on with "
                f"{how_to_resume(self.run.path)}"
            )

    def record(self, release: ReleasedSum | None, metrics: Mapping[str, Any]) -> None:
        """Store a release and its round's line, before anything is made of it.

        Args:
            release: None where the round has none.
            metrics: the line.
        """
        if release is not None:
            store_release(self.run, release)
        self.run.log_metrics(metrics)

    def release(self, release: ReleasedSum, *, is_known: bool = False) -> None:
        """Have the method step through a release that is on the disk, and close its round.

        Args:
            release: of the next round.
            is_known: whether the state is one that the method has made of it.
        """
        number = release.round_number
        if not is_known:
            self.state = self._keep(number, partial(self.method.step, self.state, release))
        self.run.finish_round(
            number,
            {
                "num_users": release.num_users,
                "noise_std": release.noise_std,
                "outcome": "released",
            },
        )
        self.over = number

    def leave_out(self, number: int, outcome: str) -> None:
        """Close a round that has no release and is not asked again; the state stays.

        Args:
            number: of the next round.
            outcome: "discarded" at no charge, "lost" or "interrupted".
        """
        self.run.finish_round(number, {"outcome": outcome})
        self.over = number

    def tell(self) -> None:
        """Tell the tracker of all lines of `metrics.jsonl`."""
        if self.tracker is not None:
            self.tracker.tell(self.run)

    # ------------------------------------------------------------------ the end

    def close(self, ledger: PrivacyLedger, *, go_on: str) -> None:
        """Have the ledger state what all planned rounds cost, where fewer were asked.

        Whoever ends a run early may have looked at its releases: see `PrivacyLedger.end`. Rounds
        that were lost or interrupted are over as well.

        Args:
            ledger: open.
            go_on: words for how a run goes on that has no release, and so nothing to end with.

        Raises:
            FederationError: it has none.
        """
        self._refuse_to_end_empty_handed(ledger, go_on=go_on)
        changes = self.run.document.get("changes", [])
        changed = {key for change in changes for key in change.get("settings", {})}
        if "num-rounds" not in changed or ledger.ended or ledger.spent["epsilon_release"] is None:
            return
        planned: dict[str, Any] = (self.run.round_state(0) or {}).get(_PLANNED, {})
        known = planned.get("epsilon_known_cohorts")
        # Drawn from others, later rounds cost something else, within the budget if there is one;
        # towards who knows the cohorts it is the same. The share that a fixed number of users is
        # follows the roster, which may change without any setting.
        fixed = self.run.config.get("sampling") == "fixed-size"
        others = bool(changed & {"num-users", "num-nodes"}) or fixed
        release = ledger.epsilon_budget or (known if others else planned.get("epsilon_release"))
        ledger.end(round=self.over, epsilon_release=need(release), epsilon_known_cohorts=known)

    def _refuse_to_end_empty_handed(self, ledger: PrivacyLedger, *, go_on: str) -> None:
        """A result without any release would be public text under the name of a private one."""
        if self.run.rounds_with_outcome("released"):
            return
        charged = len(ledger.releases)
        again = not ledger.correlations and not charged
        raise FederationError(
            "no round was released, so nothing was learned from the users and no result is "
            f"written; {charged} rounds were charged; "
            + (go_on if again else "start a new run, whose cost adds to this one's")
        )
