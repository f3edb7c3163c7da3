"""The record of everything released, written before it is used.

Under every ledger is an append-only file of chained JSON lines, locked, on the disk when written.
Every line but the first holds the SHA-256 of the one before. Files that are written later hold the
digest of the line that was the last when they were written, so that a ledger from which lines were
cut, or which was put in the place of another, is noticed: it lacks a line that another file states.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flower_privsyn.checks import check_choice, check_number, check_whole
from flower_privsyn.errors import BudgetExceededError, ConfigError, LedgerError
from flower_privsyn.files import os_errors_as, sync_folder
from flower_privsyn.privacy import accounting
from flower_privsyn.privacy.accounting import Release, ReleaseSpec
from flower_privsyn.privacy.correlated_noise import Correlation
from flower_privsyn.privacy.mechanisms import NeighboringRelation

logger = logging.getLogger("flwr.privsyn")

VERSION = 2
"""Of the format of a run's ledger."""


class LedgerFile:
    """JSON objects, one a line, each with the SHA-256 of the line before under ``previous``.

    Mode 0600, locked while it is open, and synchronised when `append` returns. What a process
    that dies inside `append` leaves behind of a line is no line: the call never returned. It is
    left out here, and the next line is written in its place. A last line that lacks nothing but its
    newline is one, as where somebody has edited the file.

    Use `create`, `open`, or `read` to look only.

    Args:
        path: Where the file is.
        descriptor: Of the open and locked file; None for a file that is only read.
        data: What is in it.

    Attributes:
        lines: The complete lines when it was opened, oldest first.
        digests: SHA-256 of each of them and of those appended since, 64 hexadecimal digits.

    Raises:
        LedgerError: A line before the last is not a JSON object, or does not follow the one before.
    """

    def __init__(self, path: Path, descriptor: int | None, data: bytes = b"") -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        self.digests: list[str] = []
        self._descriptor = descriptor
        self._size = 0
        self._newline = b""
        rows = data.removesuffix(b"\n").split(b"\n") if data else []
        for number, raw in enumerate(rows, start=1):
            try:
                parsed = json.loads(raw)
            except ValueError as error:
                if number < len(rows) or number == 1:
                    raise damaged(path, number, "not JSON") from error
                if descriptor is not None:
                    logger.warning("%s ends in a torn line, which the next one replaces", path)
                return
            if not isinstance(parsed, dict):
                raise damaged(path, number, "not a JSON object")
            if parsed.get("previous") != self._last:
                raise damaged(
                    path, number, "the chain is broken: it does not follow the line before"
                )
            self._take(parsed, raw)
        if rows and not data.endswith(b"\n"):
            self._newline = b"\n"

    @property
    def _last(self) -> str | None:
        return self.digests[-1] if self.digests else None

    def _take(self, line: dict[str, Any], raw: bytes) -> None:
        self.lines.append(line)
        self.digests.append(hashlib.sha256(raw).hexdigest())
        self._size += len(raw) + 1

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> LedgerFile:
        """Start a file with its first line; the folder must exist.

        Raises:
            LedgerError: The file exists or cannot be written.
        """
        # The header is complete before the file gets its name: no crash leaves half a ledger.
        unnamed = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
        with os_errors_as(LedgerError, f"{path} cannot be written"):
            descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            file = cls(path, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                file.append(header)
                os.link(unnamed, path)
                sync_folder(path.parent)  # a new name survives a power cut
            except BaseException:
                file.close()
                raise
            finally:
                with contextlib.suppress(OSError):
                    unnamed.unlink()
        return file

    @classmethod
    def open(cls, path: Path, *, wait: bool = False) -> LedgerFile:
        """Lock a file and read it.

        Args:
            path: A file made by `create`.
            wait: Until whoever has locked it lets go.

        Raises:
            LedgerError: The file is missing, in use, or damaged before its last line.
        """
        with os_errors_as(LedgerError, f"{path} cannot be written"):
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return cls(path, descriptor, path.read_bytes())
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise LedgerError(f"{path} is in use by another process.") from error
            raise

    @classmethod
    def read(cls, path: Path) -> LedgerFile:
        """Read a file without locking it; nothing can be appended.

        Raises:
            LedgerError: The file is missing, cannot be read, or is damaged before its last line.
        """
        with os_errors_as(LedgerError, f"{path} cannot be read"):
            return cls(path, None, path.read_bytes())

    def append(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Append one line and return it when it is on the disk.

        Raises:
            LedgerError: It is no JSON, the file is closed, or it cannot be written; it is then
                closed and holds what it held.
        """
        if self._descriptor is None:
            raise LedgerError(f"{self.path} is closed.")
        try:
            raw = json.dumps({**line, "previous": self._last}, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise LedgerError(f"A ledger line cannot be written as JSON: {error}.") from error
        data, size = self._newline + raw + b"\n", self._size - len(self._newline)
        with os_errors_as(LedgerError, f"{self.path} cannot be written"):
            try:
                os.ftruncate(self._descriptor, size)  # of what a torn write left
                written = 0
                while written < len(data):
                    written += os.write(self._descriptor, data[written:])
                os.fsync(self._descriptor)
            except OSError:
                # Half a line must not be followed by another one.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, size)
                self.close()
                raise
        parsed: dict[str, Any] = json.loads(raw)
        self._newline = b""
        self._take(parsed, raw)
        return parsed

    def close(self) -> None:
        """Release the lock; nothing more can be appended."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def header(
    path: Path,
    lines: Sequence[Mapping[str, Any]],
    *,
    kind: str | None = None,
    version: int = VERSION,
) -> Mapping[str, Any]:
    """The first line of a ledger of this version.

    Args:
        path: of the ledger.
        lines: of it.
        kind: "node" for a node's; None for a run's.
        version: that is read.

    Raises:
        LedgerError: There is none, or it is of another kind or version.
    """
    first = lines[0] if lines else {}
    if first.get("event") != "opened" or first.get("kind") != kind:
        raise LedgerError(
            f"{path} is not a {kind or 'privacy'} ledger: its first line is no header."
        )
    if first.get("version") != version:
        raise LedgerError(
            f"{path} has version {first.get('version')!r} where this package reads {version}: "
            "keep it, what it says was spent is spent."
        )
    return first


def refuse_cut(path: Path, digests: Collection[str], stated: Mapping[str, str]) -> None:
    """Refuse a ledger that lacks a line which another file of its run states.

    Args:
        path: the ledger.
        digests: of its lines; none where the file is missing.
        stated: digests in other files of the run, and for each the name of such a file.

    Raises:
        LedgerError: A digest is of no line.
    """
    known = frozenset(digests)
    for wanted, file in stated.items():
        if wanted not in known:
            raise LedgerError(
                f"{path} lacks the line {wanted[:12]}..., which {file} states: the ledger was "
                "removed, cut or replaced, what it says of the privacy spent is too little, and "
                "the run is refused."
            )


def stated_costs(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The line whose epsilons are those of everything in a ledger; empty before the first release.

    That of the last release, or where the rounds ended early the one that says so.

    Args:
        lines: of a ledger.
    """
    stated = [line for line in lines if line.get("event") in ("release", "ended")]
    return stated[-1] if stated else {}


def damaged(path: Path, number: int, what: str) -> LedgerError:
    """The error that names a line of a ledger."""
    return LedgerError(f"{path} line {number} is damaged: {what}.")


# The accountants and the calibration are deterministic; the room is for other platforms.
_BUDGET_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class _Started:
    """A release that was started, and is charged with so many users where it is interrupted."""

    spec: ReleaseSpec
    planned_users: int
    secure_randomness: bool

    @property
    def private(self) -> bool:
        """Whether what is released carries noise, from a secure source."""
        return self.secure_randomness and self.spec.release.noise_multiplier > 0.0


@dataclass(kw_only=True)
class _NoiseStream:
    """Rounds whose noise is correlated: they cost once, all together.

    Attributes:
        first: the first round that was started.
        started: every round that was, discarded ones included.
        charged: the round whose charge covers all others; None before.
        released: the last round that was charged and not interrupted; None before.
    """

    first: ReleaseSpec
    started: list[int] = field(default_factory=list)
    charged: int | None = None
    released: int | None = None


class PrivacyLedger(AbstractContextManager["PrivacyLedger"]):
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

    Events: ``opened`` (the first line), ``started``, ``release``, ``discarded``, ``ended``.

    Use `create` or `open`, as a context manager or with `close`; `read` to
    look only.

    Attributes:
        path: Where the ledger is.
        delta: The delta of every epsilon.
        epsilon_budget: The most that all releases together may cost; None for no limit.
        accountant: "pld" or "rdp".
        private: Whether every release carried noise from a secure source.
    """

    def __init__(self, file: LedgerFile) -> None:
        self._file = file
        self.path = file.path
        self.private = True
        self._pending: dict[int, _Started] = {}
        self._streams: dict[str, _NoiseStream] = {}
        self._charged = Counter[Release]()
        self._relation: NeighboringRelation | None = None
        self._ended: dict[str, float | None] | None = None
        opened = header(file.path, file.lines)
        number = 1
        try:
            values = _opening(opened["delta"], opened["epsilon_budget"], opened["accountant"])
            self.delta: float = values["delta"]
            self.epsilon_budget: float | None = values["epsilon_budget"]
            self.accountant: str = values["accountant"]
            for number, line in enumerate(file.lines[1:], start=2):
                self._take(line, number)
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(self.path, number, "a field is missing or out of range") from error

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
        return cls(LedgerFile.create(Path(path), _opening(delta, epsilon_budget, accountant)))

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
        return cls(LedgerFile.read(Path(path)))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        stated: Mapping[str, str] | None = None,
    ) -> PrivacyLedger:
        """Continue a ledger.

        A torn last line, left by a process that died while writing it, is left out, and gives way
        to the next one: the call that wrote it never returned. A round that was started and neither
        charged nor discarded is charged now, as interrupted.

        Args:
            path: A file made by `create`.
            stated: Digests of its lines that stand in other files of the run, and for each the
                name of such a file.

        Raises:
            LedgerError: The file is missing, in use, of another version, damaged before its last
                line, or lacks a stated line. Nothing was written.
        """
        file = LedgerFile.open(Path(path))
        try:
            ledger = cls(file)
            refuse_cut(file.path, file.digests, stated or {})
            for started in list(ledger._pending.values()):
                ledger._charge(started, started.planned_users, interrupted=True, extra=None)
        except BaseException:
            file.close()
            raise
        return ledger

    def close(self) -> None:
        """Release the lock. Further writes raise `LedgerError`; reading still works."""
        self._file.close()

    def __exit__(self, *error: object) -> None:
        """Close the ledger."""
        self.close()

    # Writing ------------------------------------------------------------------------------------

    def begin(
        self, spec: ReleaseSpec, *, planned_users: int, secure_randomness: bool = True
    ) -> dict[str, Any]:
        """Announce a release, before any user is asked for it.

        Args:
            spec: What is to be released. The same round may be started again once it is closed;
                every start that is charged costs. The relation is the same for the whole ledger.
            planned_users: Users expected to answer, at least 1: what an interrupted round is
                charged with.
            secure_randomness: False when the noise comes from a seeded source; the release is
                then recorded as not private and the epsilons as null. The budget still counts it.

        Returns:
            The line written.

        Raises:
            BudgetExceededError: The release would cost more than is left; nothing was written.
            ConfigError: A value is out of range.
            LedgerError: The round is already started, the relation is another one than before,
                or the file cannot be written; of correlated rounds, it was started before, or the
                noise, the sampling or the correlation is another one than in the first.
        """
        if self.ended:
            raise LedgerError(f"The rounds of {self.path} have ended.")
        if spec.round in self._pending:
            raise LedgerError(f"Round {spec.round} is already started in {self.path}.")
        if self._relation not in (None, spec.relation):
            raise LedgerError(
                f"{self.path} composes {self._relation} releases; round {spec.round} cannot add a "
                f"{spec.relation} one."
            )
        self._check_stream(spec)
        self._check_budget(spec)
        description = spec.to_dict(known=self._known_streams())
        return self._write(
            {
                "event": "started",
                **description,
                "planned_users": check_whole("planned_users", planned_users, ge=1),
                "secure_randomness": secure_randomness,
            }
        )

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
            ConfigError: ``num_users`` is not a whole number of at least 0.
            LedgerError: The round is not started, or the file cannot be written.
        """
        num_users = check_whole("num_users", num_users, ge=0)
        return self._charge(self._started(round), num_users, interrupted=False, extra=extra)

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
        spec = self._started(round).spec
        if spec.sampling.hides_cohort:
            raise LedgerError(
                f"Round {round} has a secret cohort: that it was discarded would tell who was "
                "drawn, so it can only be charged."
            )
        return self._write(
            {
                "event": "discarded",
                "round": spec.round,
                "query": spec.query,
                "num_users": check_whole("num_users", num_users, ge=0),
                "reason": reason,
            }
        )

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
            LedgerError: A round is started, or the file cannot be written.
        """
        if self._pending:
            raise LedgerError(f"Round {min(self._pending)} is started in {self.path}.")
        spent = self.spent
        known = spent["epsilon_known_cohorts"]
        return self._write(
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

    # Reading ------------------------------------------------------------------------------------

    @property
    def digest(self) -> str:
        """The SHA-256 of the last line, 64 hexadecimal digits, for files that are written next."""
        return self._file.digests[-1]

    @property
    def ended(self) -> bool:
        """Whether the rounds ended before the planned ones were over: nothing more is charged."""
        return self._ended is not None

    @property
    def spent(self) -> dict[str, float | None]:
        """Both epsilons so far, by the names that the files of a run give them.

        `epsilon_release` is for who does not know the cohorts, `epsilon_known_cohorts` that of a
        user in every cohort for who does; None when not private. Of rounds that ended early those
        of all that were planned; see `PrivacyLedger.end`.
        """
        if self._ended is not None:
            return dict(self._ended)
        return self._cost(self._charged, private=self.private)

    @property
    def releases(self) -> tuple[dict[str, Any], ...]:
        """The release lines so far, oldest first."""
        return tuple(dict(line) for line in self._file.lines if line["event"] == "release")

    @property
    def rounds_charged(self) -> tuple[int, ...]:
        """The round of every release charged, oldest first; a repeated round stands twice."""
        return tuple(int(line["round"]) for line in self.releases)

    @property
    def rounds_started(self) -> tuple[int, ...]:
        """The rounds that are started and neither charged nor discarded."""
        return tuple(self._pending)

    @property
    def rounds_behind(self) -> int:
        """Rounds up to the last one that is paid for, or about to be."""
        return max((0, *self.rounds_charged, *self.rounds_started))

    @property
    def rounds_over(self) -> int:
        """Rounds that no node will be asked again.

        Those that were charged, or begun and are about to be; and where the noise of rounds is
        correlated, whatever was begun of them: the second answer of a user would be one more than
        the sensitivity allows for. Others that were discarded after the last of these are asked
        again.
        """
        correlated = (max(stream.started) for stream in self._streams.values())
        return max((self.rounds_behind, *correlated))

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
        cost = self._cost(self.committed + Counter(releases))["epsilon_release"]
        return cost is not None and cost <= self.epsilon_budget * (1.0 + _BUDGET_TOLERANCE)

    # Inside -------------------------------------------------------------------------------------

    def _started(self, number: int) -> _Started:
        if number not in self._pending:
            raise LedgerError(f"Round {number} is not started in {self.path}.")
        return self._pending[number]

    def _known_streams(self) -> dict[str, Correlation]:
        return {correlation.stream: correlation for correlation in self.correlations}

    def _stream(self, spec: ReleaseSpec) -> _NoiseStream | None:
        return self._streams.get(spec.correlation.stream) if spec.correlation else None

    def _check_stream(self, spec: ReleaseSpec) -> None:
        """Refuse a round of correlated noise that is not what the others were charged as."""
        correlation = spec.correlation
        if correlation is None:
            return
        correlation.step(spec.round)
        if spec.sampling.min_separation != correlation.min_separation:
            raise ConfigError(
                f"sampling keeps rounds of a user {spec.sampling.min_separation} apart where the "
                f"correlation is accounted for {correlation.min_separation}."
            )
        stream = self._stream(spec)
        if stream is None:
            return
        if spec.round <= max(stream.started):
            raise LedgerError(
                f"Round {spec.round} of the correlated rounds was started before or is over in "
                f"{self.path}; asked twice, a user would take part more often than is accounted "
                "for."
            )
        if not spec.same_noise_as(stream.first):
            raise LedgerError(
                f"Round {spec.round} does not have the noise and the sampling that its correlated "
                f"rounds are accounted for in {self.path}."
            )

    def _check_budget(self, spec: ReleaseSpec) -> None:
        if not self._is_covered(spec) and not self.allows({spec.release: 1}):
            cost = self._cost(self.committed + Counter({spec.release: 1}))["epsilon_release"]
            shown = "infinity" if cost is None else f"{cost:.6g}"
            raise BudgetExceededError(
                f"Round {spec.round} ({spec.query}) would bring epsilon to {shown}, above "
                f"the budget of {self.epsilon_budget:g} at delta {self.delta:g}."
            )

    def _charge(
        self,
        started: _Started,
        num_users: int,
        *,
        interrupted: bool,
        extra: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        spec = started.spec
        charged = self._charged + Counter({spec.release: 0 if self._is_covered(spec) else 1})
        private = self.private and started.private
        line: dict[str, Any] = {
            "event": "release",
            **spec.to_dict(known=self._known_streams()),
            "noise_multiplier": spec.release.noise_multiplier,
            # How many answered depends on who was drawn, which amplification assumes unseen.
            "num_users": None if spec.sampling.hides_cohort else num_users,
            "expected_users": started.planned_users,
            "delta": self.delta,
            **self._cost(charged, private=private),
            "accountant": self.accountant,
            "private": started.private,
            "interrupted": interrupted,
        }
        stream = self._stream(spec)
        if stream is not None:
            line["round_noise_multiplier"] = spec.mechanism.noise_multiplier
            line["covered_by"] = stream.charged
        if extra is not None:
            line["extra"] = dict(extra)
        return self._write(line)

    def _write(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Append one line; when it is on the disk it counts."""
        written = self._file.append(line)
        self._take(written, len(self._file.lines))
        return dict(written)

    def _take(self, line: Mapping[str, Any], number: int) -> None:
        """Count one line of the file after its first."""
        event = line["event"]
        if event == "started":
            spec = ReleaseSpec.from_dict(line, known=self._known_streams())
            if spec.round in self._pending:
                raise damaged(self.path, number, "the round is already started")
            self._relation = spec.relation
            self._pending[spec.round] = _Started(
                spec=spec,
                planned_users=check_whole("planned_users", line["planned_users"], ge=1),
                secure_randomness=bool(line["secure_randomness"]),
            )
            if spec.correlation is not None:
                name = spec.correlation.stream
                stream = self._streams.setdefault(name, _NoiseStream(first=spec))
                stream.started.append(spec.round)
        elif event in ("release", "discarded"):
            if line["round"] not in self._pending:
                raise damaged(self.path, number, "the round is not started")
            started = self._pending.pop(line["round"])
            if event == "release":
                self._count(started, interrupted=bool(line["interrupted"]))
        elif event == "ended":
            self._ended = {
                name: None if line[name] is None else float(line[name])
                for name in accounting.EPSILONS
            }
        else:
            raise damaged(self.path, number, f"unknown event {event!r}")

    def _count(self, started: _Started, *, interrupted: bool) -> None:
        """Count a release; of correlated ones the first for all."""
        spec = started.spec
        if not self._is_covered(spec):
            self._charged[spec.release] += 1
        stream = self._stream(spec)
        if stream is not None:
            stream.charged = spec.round if stream.charged is None else stream.charged
            stream.released = stream.released if interrupted else spec.round
        self.private = self.private and started.private

    def _cost(
        self, releases: Mapping[Release, int], *, private: bool = True
    ) -> dict[str, float | None]:
        if not private:
            return dict.fromkeys(accounting.EPSILONS)
        return accounting.both_epsilons(releases, delta=self.delta, accountant=self.accountant)

    @property
    def committed(self) -> Counter[Release]:
        """What was charged plus every started round.

        Several uncharged rounds of one stream at once would each count: too much, never too little.
        """
        total = Counter(self._charged)
        for started in self._pending.values():
            if not self._is_covered(started.spec):
                total[started.spec.release] += 1
        return total

    def _is_covered(self, spec: ReleaseSpec) -> bool:
        """Say whether another round of the same stream was charged for this one."""
        stream = self._stream(spec)
        return stream is not None and stream.charged is not None


def _opening(delta: object, epsilon_budget: object, accountant: object) -> dict[str, Any]:
    """The first line, its values checked."""
    check_choice("accountant", accountant, accounting.ACCOUNTANTS)
    return {
        "event": "opened",
        "version": VERSION,
        "delta": check_number("delta", delta, gt=0, lt=1),
        "epsilon_budget": (
            None if epsilon_budget is None else check_number("epsilon", epsilon_budget, gt=0)
        ),
        "accountant": accountant,
    }
