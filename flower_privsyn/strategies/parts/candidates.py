"""The usable responses of a round, as they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.private_path.state import State
from flower_privsyn.strategies.parts.population import Population


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The usable responses of a round.

    Attributes:
        population: (m) texts with ids "<round>:<index>", their examples as parents, and their
            embeddings as they travel.
        group: (m,) int64, the number of the prompt a response belongs to.
        prompts: (m) the prompt each response continues, as the generator got it.
        ends: (m) what ended each response and was cut off; "" where the response was cut short.
    """

    population: Population
    group: npt.NDArray[np.int64]
    prompts: tuple[str, ...]
    ends: tuple[str, ...]

    def __len__(self) -> int:
        """Number of responses."""
        return len(self.population)

    @property
    def embeddings(self) -> npt.NDArray[np.float32]:
        """(m, d) float32, exactly what nodes see."""
        if self.population.embeddings is None:
            raise RuntimeError("candidates are embedded when they are made")
        return self.population.embeddings

    def to_parquet(self, path: Path, **columns: Sequence[Any]) -> None:
        """Write the candidates, with extra columns such as their scores."""
        self.population.to_parquet(
            path,
            prompt=self.group.tolist(),
            prompt_text=self.prompts,
            end=self.ends,
            **columns,
        )

    def state(self) -> State:
        """The candidates as a method keeps them between two rounds."""
        return {
            **self.population.state(),
            "group": self.group,
            "prompts": self.prompts,
            "ends": self.ends,
        }

    @classmethod
    def of_state(cls, state: State) -> Candidates:
        """The candidates that a method has kept."""
        return cls(
            population=Population.of_state(state),
            group=state["group"],
            prompts=tuple(state["prompts"]),
            ends=tuple(state["ends"]),
        )
