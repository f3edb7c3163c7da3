"""The parameters in a flat vector, by their names in the model."""

from __future__ import annotations

import numpy as np

from flower_privsyn.training.local import LocalModel


def named(model: LocalModel, flat: np.ndarray) -> dict[str, np.ndarray]:
    """Cut a flat vector into the parameters it holds."""
    ends = np.cumsum([int(np.prod(shape)) for shape in model.shapes.values()])
    pieces = np.split(flat, ends[:-1])
    return {
        name: piece.reshape(shape)
        for (name, shape), piece in zip(model.shapes.items(), pieces, strict=True)
    }
