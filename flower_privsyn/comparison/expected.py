"""How long a cell of a comparison will take: as the method took here, else as was counted."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from flower_privsyn.comparison.plan import Cell, Plan
from flower_privsyn.dry_run import Shelf
from flower_privsyn.dry_run.cpu_time import Amount, Work, cpu_seconds, speed, work_of
from flower_privsyn.errors import ModelError
from flower_privsyn.host.app import strategies_of
from flower_privsyn.private_path.settings import PrivateSumConfig

#: Letters in a token of English text, about.
_LETTERS: Final = 4.0

#: A pass that trains over one that reads: backwards is twice forwards.
_TRAINING: Final = 3.0


class Budget:
    """Wall time, from now on, and the cells that it did not allow.

    Args:
        seconds: of it.
        expected: how long cells will take.
        now: the clock.

    Attributes:
        expected: the same.
        left_out: cells that were not begun, each with a sentence that says why.
    """

    def __init__(
        self, seconds: float, expected: Expected, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._ends, self._now = now() + seconds, now
        self.expected = expected
        self.left_out: list[tuple[Cell, str]] = []

    def allows(self, cell: Cell, *, begins_with: Cell | None = None) -> bool:
        """Whether a cell is expected to end in time; if not, it is left out.

        Args:
            cell: which.
            begins_with: the cell whose student it needs; left out, it leaves this one out as well.
        """
        if begins_with in [one for one, _ in self.left_out]:
            sentence = f"it begins with the student of {begins_with.method}, which was left out"
            self.left_out.append((cell, sentence))
            return False
        left, wanted = max(0.0, self._ends - self._now()), self.expected.seconds(cell)
        if wanted <= left:
            return True
        about = "nobody knows how long it takes"
        if math.isfinite(wanted):
            about = f"it takes about {wanted / 60:.1f} min"
        self.left_out.append((cell, f"{about}, and {left / 60:.1f} min of the budget were left"))
        return False


class Expected:
    """How long cells will take, in seconds.

    A method that has finished here takes as long again, on average over its cells. Before that, its
    operations are counted as `privsyn check` counts them, one core at work: right to a factor of
    two or three.

    Args:
        plan: of the comparison.
        result: from a cell to its record; empty before there is one.
    """

    def __init__(self, plan: Plan, result: Callable[[Cell], Mapping[str, Any]]) -> None:
        self._plan, self._result = plan, result
        self._shelf = Shelf()
        self._speed = speed()
        self._counted: dict[tuple[str, float | None], float] = {}

    def seconds(self, cell: Cell) -> float:
        """Of one cell; infinity where nobody can say before it was run once."""
        taken = self._taken(cell.method)
        if taken:
            return statistics.fmean(taken)
        key = (cell.method, cell.epsilon)
        if key not in self._counted:
            self._counted[key] = self._count(cell)
        return self._counted[key]

    def cheap_first(self, cells: list[Cell]) -> list[Cell]:
        """The cells in the order of their seeds, and of one seed the cheap ones first.

        One that begins with the student of another counts what that takes, too: it comes later.
        """

        def until_done(cell: Cell) -> float:
            before = self._plan.begins_with(cell)
            return self.seconds(cell) + (0.0 if before is None else self.seconds(before))

        return sorted(cells, key=lambda cell: (cell.seed, until_done(cell)))

    def _taken(self, method: str) -> list[float]:
        records = (self._result(cell) for cell in self._plan.cells() if cell.method == method)
        found = (one.get("wall_seconds") for one in records)
        return [float(value) for value in found if value is not None]

    def _count(self, cell: Cell) -> float:
        plan, method = self._plan, self._plan.method(cell)
        values = plan.values(cell, Path("private.jsonl"))
        try:
            work: list[Work] = []
            if method.asks_users:
                for settings, _ in strategies_of(plan.app, values):
                    work += work_of(settings, self._amount(settings))
            if not method.trains_student:
                work.append(self._downstream(cell, values))
        except (ModelError, NotImplementedError):
            return math.inf
        found = cpu_seconds(work, speed=self._speed)
        # What asks nobody runs in this process: there is nothing to start.
        starting = 0.0 if method.asks_users else cpu_seconds([], speed=self._speed)["server"]
        return found["server"] + found["nodes"] - starting

    def _amount(self, settings: PrivateSumConfig) -> Amount:
        """How much text of the private users a run reads."""
        users, most = self._plan.private, float(settings.max_tokens)
        lengths = [len(text) / _LETTERS for text in users.texts]
        samples = [0.0] * len(users)
        for owner, tokens in zip(users.owners.tolist(), lengths, strict=True):
            samples[owner] += math.ceil(tokens / most)
        if settings.max_samples:
            samples = [min(own, float(settings.max_samples)) for own in samples]
        records = sum(samples)
        return Amount(
            records=records,
            tokens=max(1.0, min(most, sum(lengths) / max(1.0, records))),
            users=len(users),
            users_a_round=settings.sampling_of(len(users)).expected_users,
            shelf=self._shelf,
        )

    def _downstream(self, cell: Cell, values: Mapping[str, Any]) -> Work:
        """The downstream model, fine-tuned and measured, and what a reference writes before."""
        plan, training = self._plan, self._plan.training
        amount = Amount(records=0.0, tokens=1.0, users=1, users_a_round=1.0, shelf=self._shelf)
        letters = sum(len(text) for text in plan.held_out.texts)
        operations = amount.reading(plan.downstream, 1.0, letters / _LETTERS)
        if cell.method == "public-only":
            return Work(where="server", operations=operations)
        rows = float(training.max_steps * training.batch_size)
        if not training.max_steps:
            texts = max(len(plan.private.texts), int(values["expand-samples"]))
            rows = float(training.epochs * texts)
        tokens = float(training.max_tokens)
        learning = _TRAINING * amount.reading(plan.downstream, rows, tokens)
        operations += learning
        taught = plan.teaches(plan.method(cell))
        if taught or cell.method == "distill-public":
            operations += amount.reading(str(values["teacher"]), rows, tokens)
        if taught:
            operations += learning + amount.reading(plan.downstream, 1.0, letters / _LETTERS)
        if cell.method in ("expand-only", "expand-private", "dp-prompt"):
            written = (float(values["expand-samples"]), float(values["max-new-tokens"]))
            operations += amount.writing(str(values["generator"]), *written, 3.0 * tokens)
        return Work(where="server", operations=operations)
