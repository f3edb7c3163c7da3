"""What every training does to a model, and to the process around it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from flower_privsyn.errors import TrainingError


@contextmanager
def own_random_state() -> Iterator[None]:
    """Put the global random generators back afterwards, those of accelerators too."""
    import torch

    python = random.getstate()
    arrays = np.random.get_state()  # noqa: NPY002  # it is the legacy state that is overwritten
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002


def disable_dropout(model: Any) -> None:
    """Switch dropout off for good, so that a model gives the same numbers every time."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            # As in attention and LSTM layers; BART also leaves out whole layers at random.
            if ("dropout" in name or name == "layerdrop") and isinstance(value, float):
                setattr(module, name, 0.0)


def check_weights(model: Any) -> None:
    """Refuse trained weights that are not finite: the last step's loss cannot show it.

    Raises:
        TrainingError: Some are not.
    """
    for name, weight in model.named_parameters():
        if weight.requires_grad and not weight.isfinite().all():
            raise TrainingError(f"weight {name} is no longer finite: lower learning_rate")
