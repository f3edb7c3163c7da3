"""Cells of comparisons that were measured, in one table: what `privsyn advise` judges by.

A line of the table is a method on one kind of text at one number of users and one epsilon, over its
seeds, beside its floor and its ceiling. A cell that was not run has no line: nothing is guessed.
The table of the package is `measured.json` beside this file; `research/measured_cells.py` makes it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from flower_privsyn.checks import check_number, check_whole
from flower_privsyn.errors import ConfigError
from flower_privsyn.strategies.catalogue import compared

#: The table that comes with the package.
TABLE: Final = Path(__file__).parent / "measured.json"

#: Variants that are a choice, named by what each sends or begins with, and their settings: files
#: below `conf` of the app of a comparison.
VARIANTS: Final[Mapping[str, str]] = {
    "joint-sketch, tokens alone": "ask-once/without-pairs",
    "joint-sketch, its teacher trained": "ask-once/with-trained-teacher",
    "joint-sketch, 8,000 pairs, its teacher trained": (
        "ask-once/with-8000-pairs-and-trained-teacher"
    ),
    "joint-sketch, text by the generator": "ask-once/joint-sketch-written",
    "joint-sketch, text by a trained generator": "ask-once/written-by-trained-generator",
    "joint-sketch, 8,000 pairs, text by a trained generator": "ask-once/written-from-8000-pairs",
    "hybrid, its teacher trained": "hybrid/hybrid-with-trained-teacher",
    "dp-fedavg, from a taught student": "from-distilled/dp-fedavg-distilled",
    "dp-ftrl, from a taught student": "from-distilled/dp-ftrl-distilled",
}

#: Floor and ceiling of a place.
BOUNDS: Final = ("public-only", "finetune-private")

_FLOOR, _CEILING = BOUNDS


@dataclass(frozen=True, kw_only=True)
class MeasuredCell:
    """One method in one place: a kind of text, a number of users, an epsilon.

    Attributes:
        data: what the text is.
        users: that took part.
        method: its name.
        epsilon: the budget, > 0; 0 for methods that see no private text.
        seeds: finished repetitions, >= 1.
        accuracy: mean next-token accuracy on held-out users, in [0, 1].
        accuracy_error: its standard error over seeds; None of one seed.
        bits_per_byte: mean, on the same users; None where a text has unknown tokens.
        floor: accuracy of the public model on them.
        ceiling: accuracy after fine-tuning on the private text itself; None where it was not run.
        bytes_up: one user sends in the whole run.
        bytes_down: one user receives.
        client_cpu_seconds: of one user; None where nobody counted.

    Raises:
        ConfigError: a value is out of range, or no number.
    """

    data: str
    users: int
    method: str
    epsilon: float
    seeds: int
    accuracy: float
    accuracy_error: float | None
    bits_per_byte: float | None
    floor: float
    ceiling: float | None
    bytes_up: int
    bytes_down: int
    client_cpu_seconds: float | None

    def __post_init__(self) -> None:
        """Check every number."""
        for key in ("users", "seeds"):
            check_whole(key, getattr(self, key), ge=1)
        for key in ("bytes_up", "bytes_down"):
            check_whole(key, getattr(self, key), ge=0)
        check_number("epsilon", self.epsilon, ge=0)
        for key in ("accuracy", "floor"):
            check_number(key, getattr(self, key), ge=0, le=1)
        for key in ("accuracy_error", "bits_per_byte", "ceiling", "client_cpu_seconds"):
            if getattr(self, key) is not None:
                check_number(key, getattr(self, key), ge=0)

    @property
    def is_private(self) -> bool:
        """Whether users were asked."""
        return self.epsilon > 0

    @property
    def place(self) -> tuple[str, int, float]:
        """Where it was measured: other methods there are its rivals."""
        return self.data, self.users, self.epsilon

    @property
    def config(self) -> str:
        """The settings that it was run with: a file below `conf` of the app of a comparison."""
        return VARIANTS.get(self.method, f"cpu/{self.method}")

    @property
    def gain(self) -> float:
        """Accuracy above the public model."""
        return self.accuracy - self.floor

    @property
    def rank(self) -> tuple[float, int]:
        """Its place among rivals, the greatest first: of equal gains that which sends less.

        Gains are equal to a hundredth of a point, as they are printed.
        """
        return round(self.gain, 4), -self.bytes_up

    @property
    def pays(self) -> bool:
        """Whether it predicts better than the public model as it is."""
        return self.gain > 0

    @property
    def gap_closed(self) -> float | None:
        """Share of the way from the floor to the ceiling; None without one above it."""
        if self.ceiling is None or self.ceiling <= self.floor:
            return None
        return self.gain / (self.ceiling - self.floor)


def collect(
    sources: Iterable[tuple[str, int, Mapping[str, Any]]], *, own: Sequence[str] = ()
) -> list[MeasuredCell]:
    """Put the cells of comparisons together.

    A floor is of the public model on the same kind of text, whoever took part; a ceiling is of the
    same users. Methods that neither the catalogue nor `own` has, as a comparison's variants, are
    left out, and so are cells that are not finished and those without a floor.

    Args:
        sources: of each cell what its text is, how many users took part, and its record of
            `compare.json`. Of two records of one seed the first counts.
        own: further methods, in their order.

    Returns:
        In the order of text, users, epsilon, and the catalogue.
    """
    order = list(dict.fromkeys([*compared(), *own]))
    records: dict[tuple[str, int, str, float | None, int], Mapping[str, Any]] = {}
    for data, users, cell in sources:
        if cell.get("status", "finished") == "finished" and cell["method"] in order:
            key = (data, users, str(cell["method"]), cell["epsilon"], int(cell["seed"]))
            records.setdefault(key, cell)
    groups: dict[tuple[str, int, str, float | None], list[Mapping[str, Any]]] = {}
    for (data, users, method, epsilon, _), cell in records.items():
        groups.setdefault((data, users, method, epsilon), []).append(cell)
    floors = {
        data: _accuracy(cells) for (data, _, name, _), cells in groups.items() if name == _FLOOR
    }
    ceilings = {
        (data, users): _accuracy(cells)
        for (data, users, name, _), cells in groups.items()
        if name == _CEILING
    }
    found = [
        _cell(data, users, method, epsilon, cells, floors[data], ceilings.get((data, users)))
        for (data, users, method, epsilon), cells in groups.items()
        if epsilon is not None and data in floors and method != _FLOOR
    ]
    return sorted(
        found, key=lambda one: (one.data, one.users, one.epsilon, order.index(one.method))
    )


def _cell(
    data: str,
    users: int,
    method: str,
    epsilon: float,
    cells: Sequence[Mapping[str, Any]],
    floor: float,
    ceiling: float | None,
) -> MeasuredCell:
    values = [float(cell["quality"]["next_token_accuracy"]) for cell in cells]
    costs = [cell.get("costs") or {} for cell in cells]
    seconds = [one["client_cpu_seconds"] for one in costs if one.get("client_cpu_seconds")]
    bits = [cell["quality"]["bits_per_byte"] for cell in cells]
    bits = [] if None in bits else bits
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return MeasuredCell(
        data=data,
        users=users,
        method=method,
        epsilon=epsilon,
        seeds=len(values),
        accuracy=_accuracy(cells),
        accuracy_error=error,
        bits_per_byte=statistics.fmean(map(float, bits)) if bits else None,
        floor=floor,
        ceiling=ceiling,
        bytes_up=max(int(one.get("bytes_up") or 0) for one in costs),
        bytes_down=max(int(one.get("bytes_down") or 0) for one in costs),
        client_cpu_seconds=statistics.fmean(seconds) if seconds else None,
    )


def _accuracy(cells: Sequence[Mapping[str, Any]]) -> float:
    return statistics.fmean(float(cell["quality"]["next_token_accuracy"]) for cell in cells)


def document(cells: Sequence[MeasuredCell], *, setup: Sequence[str]) -> dict[str, Any]:
    """The table as JSON.

    Args:
        cells: of it.
        setup: sentences on how all of them were measured.
    """
    return {"version": 1, "setup": list(setup), "cells": [asdict(cell) for cell in cells]}


@dataclass(frozen=True, kw_only=True)
class MeasuredTable:
    """Measured cells, and how they were measured.

    Attributes:
        cells: at least one that is private.
        setup: sentences.
    """

    cells: tuple[MeasuredCell, ...]
    setup: tuple[str, ...]

    @classmethod
    def read(cls, file: Path = TABLE) -> MeasuredTable:
        """Read a table.

        Raises:
            ConfigError: the file is missing, damaged, or holds no cell of a method that asks users.
        """
        try:
            read = json.loads(file.read_text(encoding="utf-8"))
            if read["version"] != 1:
                raise ConfigError(f"its version is {read['version']}, not 1")
            cells = tuple(MeasuredCell(**cell) for cell in read["cells"])
            setup = tuple(map(str, read["setup"]))
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, ConfigError) as error:
            raise ConfigError(f"{file} is no table of measured cells: {error}") from error
        if not any(cell.is_private for cell in cells):
            raise ConfigError(f"{file} holds no cell of a method that asks users")
        return cls(cells=cells, setup=setup)

    def private(self, data: str) -> list[MeasuredCell]:
        """The cells of one kind of text that asked users."""
        return [cell for cell in self.cells if cell.is_private and cell.data == data]

    @property
    def kinds(self) -> list[str]:
        """The kinds of text, those with the most cells first."""
        counted = Counter(cell.data for cell in self.cells if cell.is_private)
        return [data for data, _ in counted.most_common()]
