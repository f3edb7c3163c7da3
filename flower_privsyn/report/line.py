"""A line of a comparison's summary, as the page of the comparison reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flower_privsyn.errors import DataError
from flower_privsyn.report.numbers import epsilon_text, finite, fixed, mapping


@dataclass(frozen=True, kw_only=True)
class Line:
    """A method at a budget: a line of the summary.

    Attributes:
        method: its name.
        epsilon: the budget; 0 for none spent, infinity for no privacy.
        values: the line itself.
    """

    method: str
    epsilon: float
    values: Mapping[str, Any]

    @property
    def is_reference(self) -> bool:
        """Whether the method has no place on an axis of epsilon."""
        return self.epsilon <= 0 or math.isinf(self.epsilon)

    @property
    def budget(self) -> str:
        """Its epsilon as text; one of its own, local, is called so and is on no axis."""
        local = self.mean("local_epsilon_sample")
        return epsilon_text(self.epsilon) if local is None else f"local, {local:,.0f} a sample"

    def mean(self, name: str) -> float | None:
        """A figure, averaged over seeds; None where there is none."""
        value = self.values.get(name)
        return finite(value.get("mean") if isinstance(value, Mapping) else value)

    def error(self, name: str) -> float | None:
        """The standard error of a figure over seeds; None for a single one."""
        return finite(mapping(self.values.get(name)).get("standard_error"))

    def shown(self, name: str, decimals: int, *, scale: float = 1.0, unit: str = "") -> str | None:
        """A figure with its standard error."""
        mean, error = self.mean(name), self.error(name)
        if mean is None:
            return None
        after = "" if error is None else f" ± {fixed(scale * error, decimals)}"
        return f"{fixed(scale * mean, decimals)}{after}{unit}"

    def needed(self, name: str) -> float:
        """A figure that there must be, averaged over seeds.

        Raises:
            DataError: there is none.
        """
        value = self.mean(name)
        if value is None:
            raise DataError(f"a line of {self.method} holds no {name}, which was counted on")
        return value

    @property
    def seeds(self) -> str | None:
        """How many finished, and how many failed."""
        seeds, failed = finite(self.values.get("seeds")), finite(self.values.get("failed"))
        if seeds is None:
            return None
        return f"{seeds:.0f} ({failed:.0f} failed)" if failed else f"{seeds:.0f}"
