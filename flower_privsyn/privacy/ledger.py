"""The record of everything that was released, written before it is used."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from flower_privsyn.checks import check_choice, check_number, check_whole
from flower_privsyn.errors import BudgetExceededError, ConfigError, LedgerError
from flower_privsyn.privacy import accounting
from flower_privsyn.privacy.accounting import Release
from flower_privsyn.privacy.correlated_noise import Correlation
from flower_privsyn.privacy.ledger_chain import VERSION, damaged, read_chain, refuse_cut
from flower_privsyn.privacy.ledger_chain import header as header_of
from flower_privsyn.privacy.ledger_file import LedgerFile
from flower_privsyn.privacy.ledger_lines import NoiseStream, PlannedRelease
from flower_privsyn.privacy.mechanisms import GaussianMechanism
from flower_privsyn.privacy.relation import NeighboringRelation
from flower_privsyn.privacy.sampling import FixedSizeSampling, Sampling
from flower_privsyn.privacy.turns import participation_of

# The accountants and the calibration are deterministic; the room is for other platforms.
_BUDGET_TOLERANCE = 1e-6


class PrivacyLedger:
    """An append-only file with one line per release, and the budget it keeps.

    A round takes two lines. `begin` writes what is about to be asked, before any user is
    asked; `charge` writes the release, before the noisy sum is used. Each is on the disk
    (written and synchronised) when the call returns, so a process killed at any moment leaves
    either a closed round or a started one, and `open` charges the started one in full.

    Formal guarantee:
        With a budget, the releases charged and started never cost more than ``epsilon_budget``
        (within 1e-6, relative) at ``delta`` for one user, by the accountant ``accountant``, against
        an observer who does not know the cohorts. ``epsilon_known_cohorts`` of the same releases is
        reported next to it and not limited.

    Rounds of correlated noise are one mechanism. The first of them to be charged is charged for
    all, before its sum is used; the others are recorded as covered by it. No round of theirs is
    started twice, not even after it was discarded or interrupted: the second answer of a user would
    be one more than the sensitivity allows for.

    The file is JSON, one object per line, mode 0600, locked while it is in use, and holds no time:
    how long a round took may say what somebody wrote. Every line holds the SHA-256 of the line
    before, so an edit in the middle is found. The `digest` of the last line stands in every
    file of the run that is written after it, and a ledger that lacks a line which such a file
    states is refused, so cutting lines off the end is found as well. Who can write all files of
    the run can still cut them consistently: keep the directory where only the server can write.

    Events: ``opened`` (the first line), ``started``, ``release``, ``discarded``, ``ended``,
    ``repaired``.

    Use `create` or `open`, as a context manager or with `close`; `read` to
    look only.

    Attributes:
        path: Where the ledger is.
        delta: The delta of every epsilon.
        epsilon_budget: The most that all releases together may cost; None for no limit.
        accountant: "pld" or "rdp".
        private: Whether every release carried noise from a secure source.
    """

    def __init__(self, file: LedgerFile, header: Mapping[str, Any]) -> None:
        self._file = file
        self.path = file.path
        self.delta = float(header["delta"])
        budget = header["epsilon_budget"]
        self.epsilon_budget = None if budget is None else float(budget)
        self.accountant = str(header["accountant"])
        self.private = True
        self._pending: dict[int, PlannedRelease] = {}
        self._streams: dict[str, NoiseStream] = {}
        self._lines: list[dict[str, Any]] = []
        self._charged = Counter[Release]()
        self._ended: dict[str, float | None] | None = None

    # Opening and closing ------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        delta: float,
        epsilon_budget: float | None,
        accountant: str = "pld",
    ) -> PrivacyLedger:
        """Start a new ledger.

        Args:
            path: A file that does not exist yet, in a folder that does.
            delta: The delta of every epsilon in the ledger, between 0 and 1, exclusive.
            epsilon_budget: The most that all releases together may cost, above 0; None for no
                limit.
            accountant: "pld" or "rdp".

        Raises:
            ConfigError: A value is out of range.
            LedgerError: The file exists or cannot be written.
        """
        path = Path(path)
        check_choice("accountant", accountant, accounting.ACCOUNTANTS)
        budget = None if epsilon_budget is None else check_number("epsilon", epsilon_budget, gt=0)
        header = {
            "event": "opened",
            "version": VERSION,
            "delta": check_number("delta", delta, gt=0, lt=1),
            "epsilon_budget": budget,
            "accountant": accountant,
        }
        return cls(LedgerFile.create(path, header), header)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> PrivacyLedger:
        """Look at a ledger without locking, repairing or charging anything.

        Args:
            path: A file made by `create`, possibly in use by another process.

        Returns:
            A closed ledger: everything can be asked and nothing written. A torn last line is
            left out; rounds that are started are in `rounds_started` and not in the
            epsilons.

        Raises:
            LedgerError: The file is missing or damaged before its last line.
        """
        path = Path(path)
        chain = read_chain(path)
        file = LedgerFile(path, None, digests=chain.digests)
        ledger = cls(file, _checked_header(path, chain.lines))
        for number, line in enumerate(chain.lines, start=1):
            ledger._replay(number, line)
        return ledger

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        expected: Mapping[str, Any] | None = None,
        stated: Mapping[str, str] | None = None,
    ) -> PrivacyLedger:
        """Continue a ledger.

        A torn last line, left by a process that died while writing it, is copied to
        ``<path>.torn`` and cut off: the call that wrote it never returned. A round that was
        started and neither charged nor discarded is charged now, as interrupted.

        Args:
            path: A file made by `create`.
            expected: What the ledger must state of ``delta``, ``epsilon_budget`` and
                ``accountant``.
            stated: Digests of its lines that stand in other files of the run, and for each the
                name of such a file.

        Raises:
            LedgerError: The file is missing, in use, of another version, damaged before its last
                line, states other values than are expected, or lacks a stated line. Nothing was
                written.
        """
        path = Path(path)
        file, lines, torn = LedgerFile.open(path)
        try:
            header = _checked_header(path, lines)
            for key, value in (expected or {}).items():
                if header[key] != value:
                    raise LedgerError(
                        f"{path} was opened with {key} {header[key]}; it cannot continue with "
                        f"{value}."
                    )
            ledger = cls(file, header)
            for number, line in enumerate(lines, start=1):
                ledger._replay(number, line)
            refuse_cut(path, file.digests, stated or {})
            if torn:
                file.cut_off(torn)
                ledger._write({"event": "repaired", "torn_bytes": len(torn)})
            for planned in list(ledger._pending.values()):
                ledger._charge(planned, planned.planned_users, interrupted=True, extra=None)
        except BaseException:
            file.close()
            raise
        return ledger

    def close(self) -> None:
        """Release the lock. Further writes raise `LedgerError`; reading still works."""
        self._file.close()

    def __enter__(self) -> PrivacyLedger:
        """Return the ledger itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the ledger."""
        self.close()

    # Writing ------------------------------------------------------------------------------------

    def begin(
        self,
        *,
        round: int,  # noqa: A002 - the word of the field
        query: str,
        mechanism: GaussianMechanism,
        sampling: Sampling,
        planned_users: int,
        relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
        secure_randomness: bool = True,
        correlation: Correlation | None = None,
        max_nodes_per_user: int = 1,
    ) -> dict[str, Any]:
        """Announce a release, before any user is asked for it.

        Args:
            round: The round, at least 0. The same round may be started again once it is closed;
                every start that is charged costs.
            query: The name of the query.
            mechanism: The noise. Its ``l2_sensitivity`` is the norm bound of one user, on all
                nodes together, whatever the relation: the accountant doubles it under replace-one.
            sampling: How the cohort is drawn.
            planned_users: Users expected to answer, at least 1: what an interrupted round is
                charged with.
            relation: Which collections of users are neighbours; the same for the whole ledger.
            secure_randomness: False when the noise comes from a seeded source; the release is
                then recorded as not private and the epsilons as null. The budget still counts it.
            correlation: For correlated noise, the rounds that this one belongs to. The noise
                multiplier of ``mechanism`` is then that of the innovations, the same in all of
                these rounds; its ``l2_sensitivity`` may change.
            max_nodes_per_user: On how many nodes one user may be, k >= 1: that norm bound is k
                times the clip norm.

        Returns:
            The line written.

        Raises:
            BudgetExceededError: The release would cost more than is left; nothing was written.
            ConfigError: A value is out of range.
            LedgerError: The round is already started, the relation is another one than before,
                or the file cannot be written; of correlated rounds, it was started before, or the
                noise, the sampling or the correlation is another one than in the first.
        """
        planned = PlannedRelease(
            round=check_whole("round", round, ge=0),
            query=query,
            mechanism=mechanism,
            relation=relation,
            sampling=sampling,
            planned_users=check_whole("planned_users", planned_users, ge=1),
            secure_randomness=secure_randomness,
            correlation=correlation,
            max_nodes_per_user=check_whole("max_nodes_per_user", max_nodes_per_user, ge=1),
        )
        self._refuse_ended()
        if planned.round in self._pending:
            raise LedgerError(f"Round {planned.round} is already started in {self.path}.")
        for other in (*self._charged, *(planned.release() for planned in self._pending.values())):
            if other.relation is not relation:
                raise LedgerError(
                    f"{self.path} composes {other.relation.value} releases; round "
                    f"{planned.round} cannot add a {relation.value} one."
                )
        self._check_stream(planned)
        self._check_budget(planned)
        description = planned.describe()
        if correlation is not None and correlation.stream not in self._streams:
            description["correlation"] = correlation.to_dict()
        line = self._write({"event": "started", **description})
        self._start(planned)
        return line

    def charge(
        self,
        *,
        round: int,  # noqa: A002 - the word of the field
        num_users: int,
        extra: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Record a release; the noisy sum may be used once this returns.

        Args:
            round: A started round.
            num_users: Users whose answers are in the sum, at least 0.
            extra: JSON-able facts to keep in the line under ``extra``. No data of users.

        Returns:
            The line written.

        Raises:
            BudgetExceededError: The release would cost more than is left; nothing was written and
                the sum must not be used.
            ConfigError: ``num_users`` is not a whole number of at least 0.
            LedgerError: The round is not started, more users answered than the sampling allows,
                or the file cannot be written.
        """
        planned = self._started(round)
        num_users = check_whole("num_users", num_users, ge=0)
        most = planned.sampling.population
        if isinstance(planned.sampling, FixedSizeSampling):
            most = planned.sampling.sample_size
        if most is not None and num_users > most:
            raise LedgerError(
                f"Round {round} has the answers of {num_users} users where its sampling allows "
                f"{most}; the release is refused."
            )
        self._check_budget(planned)
        return self._charge(planned, num_users, interrupted=False, extra=extra)

    def discard(
        self,
        *,
        round: int,  # noqa: A002 - the word of the field
        num_users: int,
        reason: str,
    ) -> dict[str, Any]:
        """Close a started round at no cost: its sum was deleted and nothing depends on it.

        The raw sum never left the memory of the server. The reason may depend on counts only: a
        decision that looks at the sum is itself a release. Where the cohort is secret, the counts
        are as well: only full participation and turns allow it.

        Args:
            round: A started round.
            num_users: Users who had answered, at least 0.
            reason: A few words, such as "too few users".

        Returns:
            The line written.

        Raises:
            ConfigError: ``num_users`` is not a whole number of at least 0.
            LedgerError: The round is not started or has a secret cohort, or the file cannot be
                written.
        """
        planned = self._started(round)
        if planned.sampling.hides_cohort:
            raise LedgerError(
                f"Round {round} has a secret cohort: that it was discarded would tell who was "
                "drawn, so it can only be charged."
            )
        line = self._write(
            {
                "event": "discarded",
                "round": planned.round,
                "query": planned.query,
                "num_users": check_whole("num_users", num_users, ge=0),
                "reason": reason,
            }
        )
        del self._pending[planned.round]
        return line

    def end(
        self,
        *,
        round: int,  # noqa: A002 - the word of the field
        epsilon_release: float,
        epsilon_known_cohorts: float | None,
    ) -> dict[str, Any]:
        """State what it costs that rounds end before all that were planned are over.

        Formal guarantee:
            When to end may depend on what was released, by a rule or by whoever looks. An epsilon
            of the rounds so far then holds for none of the ends that there might have been: it is
            that of so many rounds fixed beforehand. What was released is a part of what all planned
            rounds would have been, whatever the rule, and costs what they cost.

        Args:
            round: the last round that was asked.
            epsilon_release: of all planned rounds; what was charged, where that is more.
            epsilon_known_cohorts: of the same rounds; None where nobody knows.

        Returns:
            The line written.

        Raises:
            LedgerError: A round is started, the rounds ended before, or the file cannot be written.
        """
        self._refuse_ended()
        if self._pending:
            raise LedgerError(f"Round {min(self._pending)} is started in {self.path}.")
        spent = self.spent
        known = spent["epsilon_known_cohorts"]
        line = self._write(
            {
                "event": "ended",
                "round": check_whole("round", round, ge=0),
                "delta": self.delta,
                "epsilon_release": max(epsilon_release, spent["epsilon_release"] or 0.0),
                "epsilon_known_cohorts": (
                    None
                    if epsilon_known_cohorts is None or known is None
                    else max(epsilon_known_cohorts, known)
                ),
                "accountant": self.accountant,
            }
        )
        self._take_end(line)
        return line

    # Reading ------------------------------------------------------------------------------------

    @property
    def digest(self) -> str:
        """The SHA-256 of the last line, 64 hexadecimal digits, for files that are written next."""
        return self._file.digest

    @property
    def epsilon_release(self) -> float | None:
        """Epsilon so far for who does not know the cohorts; None when not private."""
        return self._epsilon(self._charged) if self.private else None

    @property
    def epsilon_known_cohorts(self) -> float | None:
        """Epsilon so far of a user in every cohort, when it is known; None when not private."""
        return self._epsilon_known_cohorts(self._charged) if self.private else None

    @property
    def ended(self) -> bool:
        """Whether the rounds ended before the planned ones were over: nothing more is charged."""
        return self._ended is not None

    @property
    def spent(self) -> dict[str, float | None]:
        """Both epsilons so far, by the names that the files of a run give them.

        Of rounds that ended early those of all that were planned; see `PrivacyLedger.end`.
        """
        if self._ended is not None:
            return dict(self._ended)
        return {
            "epsilon_release": self.epsilon_release,
            "epsilon_known_cohorts": self.epsilon_known_cohorts,
        }

    @property
    def releases(self) -> tuple[dict[str, Any], ...]:
        """The release lines so far, oldest first."""
        return tuple(dict(line) for line in self._lines)

    @property
    def num_releases(self) -> int:
        """The number of releases charged, interrupted ones included."""
        return len(self._lines)

    @property
    def rounds_charged(self) -> tuple[int, ...]:
        """The round of every release charged, oldest first; a repeated round stands twice."""
        return tuple(int(line["round"]) for line in self._lines)

    @property
    def rounds_started(self) -> tuple[int, ...]:
        """The rounds that are started and neither charged nor discarded."""
        return tuple(self._pending)

    @property
    def correlations(self) -> dict[Correlation, float]:
        """The correlations of the rounds so far, each with the noise multiplier of its rounds.

        In the order of their first rounds.
        """
        return {
            stream.first.correlation: stream.first.mechanism.noise_multiplier
            for stream in self._streams.values()
            if stream.first.correlation is not None
        }

    def last_started(self, correlation: Correlation) -> int | None:
        """Return the last of correlated rounds that was started, whatever became of it, or None.

        None of the rounds up to it can be started any more.
        """
        stream = self._streams.get(correlation.stream)
        return None if stream is None else max(stream.started)

    def last_released(self, correlation: Correlation) -> int | None:
        """Return the last of correlated rounds that was charged and not interrupted, or None.

        Its sum may be known, so the noise of the rounds to come must take it up.
        """
        stream = self._streams.get(correlation.stream)
        return None if stream is None else stream.released

    def allows(self, releases: Mapping[Release, int]) -> bool:
        """Say whether the budget allows these releases as well; always without a budget.

        Args:
            releases: Each with its count, at least 0.

        Raises:
            ConfigError: The relation is another one than before.
        """
        if self.epsilon_budget is None:
            return True
        cost = self._epsilon(self._committed() + Counter(releases))
        return cost is not None and self._within_budget(cost)

    # Inside -------------------------------------------------------------------------------------

    def _refuse_ended(self) -> None:
        if self.ended:
            raise LedgerError(f"The rounds of {self.path} have ended.")

    def _take_end(self, line: Mapping[str, Any]) -> None:
        names = ("epsilon_release", "epsilon_known_cohorts")
        self._ended = {name: None if line[name] is None else float(line[name]) for name in names}

    def _started(self, number: int) -> PlannedRelease:
        if number not in self._pending:
            raise LedgerError(f"Round {number} is not started in {self.path}.")
        return self._pending[number]

    def _check_stream(self, planned: PlannedRelease) -> None:
        """Refuse a round of correlated noise that is not what the others were charged as."""
        correlation = planned.correlation
        if correlation is None:
            return
        correlation.step(planned.round)
        allowed = participation_of(planned.sampling, rounds=correlation.participation.rounds)
        if allowed != correlation.participation:
            raise ConfigError(
                f"sampling lets a user take part in other rounds ({allowed}) than the correlation "
                f"is accounted for ({correlation.participation})."
            )
        stream = self._streams.get(correlation.stream)
        if stream is None:
            return
        if planned.round <= max(stream.started):
            raise LedgerError(
                f"Round {planned.round} of the correlated rounds was started before or is over in "
                f"{self.path}; asked twice, a user would take part more often than is accounted "
                "for."
            )
        first = stream.first
        if (
            first.correlation != correlation
            or first.mechanism.noise_multiplier != planned.mechanism.noise_multiplier
            or _turns(first.sampling) != _turns(planned.sampling)
            or first.max_nodes_per_user != planned.max_nodes_per_user
        ):
            raise LedgerError(
                f"Round {planned.round} does not have the noise and the sampling that its "
                f"correlated rounds are accounted for in {self.path}."
            )

    def _check_budget(self, planned: PlannedRelease) -> None:
        if self.epsilon_budget is None:
            return
        if self._is_covered(planned):
            return
        total = self._committed(without=planned.round)
        total[planned.release()] += 1
        cost = self._epsilon(total)
        if cost is None or not self._within_budget(cost):
            shown = "infinity" if cost is None else f"{cost:.6g}"
            raise BudgetExceededError(
                f"Round {planned.round} ({planned.query}) would bring epsilon to {shown}, above "
                f"the budget of {self.epsilon_budget:g} at delta {self.delta:g}."
            )

    def _charge(
        self,
        planned: PlannedRelease,
        num_users: int,
        *,
        interrupted: bool,
        extra: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        release = planned.release()
        charged = self._charged + Counter({release: 0 if self._is_covered(planned) else 1})
        private = planned.is_private(release)
        epsilon_release = epsilon_known_cohorts = None
        if self.private and private:
            epsilon_release = self._epsilon(charged)
            epsilon_known_cohorts = self._epsilon_known_cohorts(charged)
        line: dict[str, Any] = {
            "event": "release",
            "round": planned.round,
            "query": planned.query,
            "mechanism": planned.mechanism.name,
            "noise_multiplier": release.noise_multiplier,
            "l2_sensitivity": planned.mechanism.l2_sensitivity,
            "relation": planned.relation.value,
            "sampling": planned.sampling.to_dict(),
            "max_nodes_per_user": planned.max_nodes_per_user,
            # How many answered depends on who was drawn, which amplification assumes unseen.
            "num_users": None if planned.sampling.hides_cohort else num_users,
            "expected_users": planned.planned_users,
            "delta": self.delta,
            "epsilon_release": epsilon_release,
            "epsilon_known_cohorts": epsilon_known_cohorts,
            "accountant": self.accountant,
            "private": private,
            "interrupted": interrupted,
        }
        if planned.correlation is not None:
            stream = self._streams[planned.correlation.stream]
            line["stream"] = planned.correlation.stream
            line["round_noise_multiplier"] = planned.mechanism.noise_multiplier
            line["covered_by"] = stream.charged
        if extra is not None:
            line["extra"] = dict(extra)
        line = self._write(line)
        self._settle(planned, line, release)
        return dict(line)

    def _write(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Append one line and return when it is on the disk."""
        return self._file.append(line)

    def _replay(self, number: int, line: dict[str, Any]) -> None:
        """Take over one line of an existing file."""
        try:
            event = line["event"]
            if event == "started":
                planned = PlannedRelease.from_line(line, self._streams)
                if planned.round in self._pending:
                    raise damaged(self.path, number, "the round is already started")
                self._start(planned)
            elif event in ("release", "discarded"):
                if line["round"] not in self._pending:
                    raise damaged(self.path, number, "the round is not started")
                planned = self._pending[line["round"]]
                if event == "discarded":
                    del self._pending[planned.round]
                else:
                    release = planned.with_multiplier(line["noise_multiplier"])
                    self._settle(planned, line, release)
            elif event == "ended":
                self._take_end(line)
            elif event != "repaired" and not (event == "opened" and number == 1):
                raise damaged(self.path, number, f"unknown event {event!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(self.path, number, "a field is missing or out of range") from error

    def _epsilon(self, releases: Mapping[Release, int]) -> float | None:
        value = accounting.release_epsilon(releases, delta=self.delta, accountant=self.accountant)
        return value if math.isfinite(value) else None

    def _epsilon_known_cohorts(self, releases: Mapping[Release, int]) -> float | None:
        value = accounting.known_cohorts_epsilon(
            releases, delta=self.delta, accountant=self.accountant
        )
        return value if math.isfinite(value) else None

    def _within_budget(self, cost: float) -> bool:
        return self.epsilon_budget is None or cost <= self.epsilon_budget * (
            1.0 + _BUDGET_TOLERANCE
        )

    def _committed(self, *, without: int | None = None) -> Counter[Release]:
        """Return what was charged plus every started round, but for one."""
        total = Counter(self._charged)
        for planned in self._pending.values():
            # Several uncharged rounds of one stream at once would each count: too much, never
            # too little.
            if planned.round != without and not self._is_covered(planned):
                total[planned.release()] += 1
        return total

    def _is_covered(self, planned: PlannedRelease) -> bool:
        """Say whether another round of the same stream was charged for this one."""
        if planned.correlation is None:
            return False
        stream = self._streams.get(planned.correlation.stream)
        return stream is not None and stream.charged is not None

    def _start(self, planned: PlannedRelease) -> None:
        self._pending[planned.round] = planned
        if planned.correlation is not None:
            stream = self._streams.setdefault(
                planned.correlation.stream, NoiseStream(first=planned)
            )
            stream.started.append(planned.round)

    def _settle(
        self,
        planned: PlannedRelease,
        line: dict[str, Any],
        release: Release,
    ) -> None:
        del self._pending[planned.round]
        self._lines.append(line)
        if not self._is_covered(planned):
            self._charged[release] += 1
        if planned.correlation is not None:
            stream = self._streams[planned.correlation.stream]
            if stream.charged is None:
                stream.charged = planned.round
            if not line["interrupted"]:
                stream.released = planned.round
        self.private = self.private and planned.is_private(release)


def _turns(sampling: Sampling) -> dict[str, Any]:
    """Who takes part when; users who come or go change nothing for the others."""
    return {**sampling.to_dict(), "population": None}


def _checked_header(path: Path, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    header = header_of(path, lines)
    try:
        check_number("delta", header["delta"], gt=0, lt=1)
        if header["epsilon_budget"] is not None:
            check_number("epsilon_budget", header["epsilon_budget"], gt=0)
        check_choice("accountant", header["accountant"], accounting.ACCOUNTANTS)
    except (KeyError, ConfigError) as error:
        raise damaged(path, 1, "a field is missing or out of range") from error
    return header
