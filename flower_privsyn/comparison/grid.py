"""Comparisons of several numbers of users, and one table of all: `privsyn compare --grid`.

On disk:

    users-300/ users-1000/ ...   a comparison each, complete in itself (`run.py`)
    grid.json                    every measured cell, as `privsyn advise --table` reads it
    grid.md  grid.svg            the best method in each place, and the table behind it

The same people are held out in all of them. A cell that was not run is in none of these files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_privsyn.advice.measured import MeasuredTable, collect, document
from flower_privsyn.advice.page import page
from flower_privsyn.advice.picture import picture
from flower_privsyn.comparison.plan import Plan
from flower_privsyn.comparison.run import Comparison, Follower
from flower_privsyn.errors import ConfigError, MissingExtraError
from flower_privsyn.files import expanded, read_json, replacing, write_json


class Grid:
    """Comparisons that differ in the number of users alone, in a folder.

    Args:
        plans: of the comparisons; each with as many private users as no other has.
        folder: where they are written; what is finished there is kept.
        command: how they were asked for.

    Raises:
        ConfigError: two plans have the same number of users, or a folder holds another comparison.
        RunDirectoryError: the folder cannot be written.
    """

    def __init__(self, plans: Sequence[Plan], folder: Path, *, command: str = "") -> None:
        sizes = [len(plan.private) for plan in plans]
        if len(set(sizes)) < len(sizes):
            raise ConfigError(
                f"--grid must be different numbers of users, got {', '.join(map(str, sizes))}"
            )
        self.folder, self.command = expanded(folder).absolute(), command
        if (self.folder / "compare.json").exists():
            raise ConfigError(
                f"{self.folder} holds a comparison of one number of users: choose another --output"
            )
        self.comparisons = tuple(
            Comparison(plan, self.folder / f"users-{size}", command=command)
            for size, plan in sorted(zip(sizes, plans, strict=True), key=lambda pair: pair[0])
        )

    @property
    def table_file(self) -> Path:
        """`grid.json`."""
        return self.folder / "grid.json"

    def run(
        self,
        *,
        follower: Follower,
        say: Callable[[str], None],
        budget_minutes: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> list[dict[str, Any]]:
        """Run every cell that is not finished, fewest users first.

        Args:
            follower: opens a display of what is being done.
            say: told of every cell in a sentence.
            budget_minutes: of all comparisons together; see `Comparison.run`.
            now: the clock, in seconds.

        Returns:
            The documents of the comparisons.
        """
        begun, documents = now(), self._documents()
        for comparison in self.comparisons:
            left = budget_minutes
            if budget_minutes is not None:
                left = max(0.0, budget_minutes - (now() - begun) / 60.0)
            size = len(comparison.plan.private)
            say(f"{size:,} users:")
            documents[size] = comparison.run(follower=follower, say=say, budget_minutes=left)
            self._write([documents[one] for one in sorted(documents)], say)
        return [documents[len(comparison.plan.private)] for comparison in self.comparisons]

    def _documents(self) -> dict[int, dict[str, Any]]:
        """What comparisons of earlier calls have found, by their numbers of users."""
        found = (read_json(file) for file in self.folder.glob("users-*/compare.json"))
        return {int(one["data"]["private_users"]): one for one in found if "cells" in one}

    def _write(self, documents: Sequence[Mapping[str, Any]], say: Callable[[str], None]) -> None:
        plan = self.comparisons[0].plan
        own = dict.fromkeys(name for one in documents for name in one["methods"])
        cells = collect(_cells(documents), own=list(own))
        table = MeasuredTable(cells=tuple(cells), setup=_setup(plan, self.command))
        write_json(self.table_file, document(table.cells, setup=table.setup))
        if not table.kinds:
            return
        files = {"grid.md": page(table, made_by="`privsyn compare --grid`", file="grid.json")}
        try:
            files["grid.svg"] = picture(table, table.kinds[0])
        except MissingExtraError as error:
            say(f"{error}. The grid has no picture; the same command draws it later.")
        for name, text in files.items():
            with replacing(self.folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")


def _cells(
    documents: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    for one in documents:
        data = one["data"]
        yield from ((data["name"], int(data["private_users"]), cell) for cell in one["cells"])


def _setup(plan: Plan, command: str) -> tuple[str, ...]:
    """How all cells were measured, in sentences."""
    training = plan.training
    length = f"{training.max_steps} steps" if training.max_steps else f"{training.epochs} epochs"
    return (
        f"Student: {plan.downstream}, {length} of {training.batch_size} rows of "
        f"{training.max_tokens} tokens at {training.learning_rate:g} for everybody; "
        f"{len(plan.held_out):,} users held out, the same for every number of users.",
        f"By: {command}",
        f"Stamp: {plan.stamp}.",
    )
