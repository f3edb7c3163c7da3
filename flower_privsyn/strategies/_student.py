"""Settings of a student that learns from public text at the server, whatever chose the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.training.causal import CausalTraining, on_public_rows


@dataclass(frozen=True, kw_only=True)
class StudentConfig(PrivateSumConfig):
    """Settings of a run that trains a model on public text, and how long and fast."""

    student_steps: Annotated[int, Ge(1)] = 200
    """Steps of the training on public text."""
    training_batch_size: Annotated[int, Ge(1)] = 32
    """Rows of a step."""
    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Peak rate of AdamW."""

    def student_training(self) -> CausalTraining:
        """How the model is trained on public text."""
        return on_public_rows(self.to_dict())
