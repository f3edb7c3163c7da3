"""LoRA-XS: small trained matrices between public bases of a model's own weights.

What is trained of a weight matrix W is R of y = W x + U R V^T x, r x r, which starts at zero. U and
V are near the first r singular vectors of W, which every machine computes for itself to the same
bit: LAPACK's decomposition would differ in its last bits and signs from one kernel to the next.

Balazy, Banaei, Aberer, Tabor: "LoRA-XS: Low-Rank Adaptation with Extremely Small Number of
Parameters" (2024), arXiv 2405.17604; Halko, Martinsson, Tropp, "Finding Structure with Randomness"
(SIAM Review 2011), Algorithm 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

#: The bases of a model by its layers' names, each left (out, r) and right (in, r), float32.
Subspace = Mapping[str, tuple[torch.Tensor, torch.Tensor]]

#: A vector of unit length is whole numbers of 26 bits, a weight one of 18. Sums of their products
#: stay below 2^53 up to 2^18 columns: float64 is exact, in whatever order BLAS adds them.
_VECTOR: Final = 2.0**26
_WEIGHT: Final = 2.0**18
_ITERATIONS: Final = 3


def leading_subspace(
    weight: npt.NDArray[np.float32], rank: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Orthonormal bases near the first singular vectors of a matrix, equal on every machine.

    Subspace iteration from a fixed public start. Every product is of integers whose sums stay below
    2^53; all else is elementwise IEEE arithmetic, or in a fixed order.

    Args:
        weight: (m, n), m and n at most 2^18.
        rank: r, >= 1; at most the smaller of m and n is taken.

    Returns:
        Left (m, r) and right (n, r), float32, columns of length 1.
    """
    largest = float(np.abs(weight).max()) or 1.0
    whole = np.rint(weight.astype(np.float64) / largest * _WEIGHT)
    right = _orthonormal(_start(min(rank, *weight.shape), weight.shape[1]))
    for _ in range(_ITERATIONS):
        left = _orthonormal(right @ whole.T)
        right = _orthonormal(left @ whole)
    return (left.T / _VECTOR).astype(np.float32), (right.T / _VECTOR).astype(np.float32)


def _start(rows: int, columns: int) -> npt.NDArray[np.float64]:
    """Public numbers in [-1, 1), (rows, columns), of raw bits: NumPy keeps those for all time."""
    drawn = np.random.PCG64(0).random_raw(rows * columns) >> np.uint64(32)
    return (drawn.astype(np.float64) / 2.0**31 - 1.0).reshape(rows, columns)


def _orthonormal(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Orthogonal whole rows of length 2^26 by Gram and Schmidt, (r, n); each row is done twice.

    A little of the start is added, with which a matrix of a lower rank has a basis as well.
    """
    share = float(np.abs(rows).max()) * 2.0**-20 or 1.0
    basis = rows + share * _start(*rows.shape)
    for index, row in enumerate(basis):
        before, vector = basis[:index], _whole(row)
        for _ in range(2):
            along = np.rint(before @ vector / _VECTOR)
            vector = _whole(vector - along @ before / _VECTOR)
        basis[index] = vector
    return basis


def _whole(vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A vector at length 2^26, rounded."""
    squares: float = np.cumsum(vector * vector)[-1]  # one after another, unlike `sum`
    whole: npt.NDArray[np.float64] = np.rint(vector * (_VECTOR / np.sqrt(squares)))
    return whole


class SubspaceLinear(torch.nn.Module):
    """A linear layer whose weights change within given bases only: y = W x + U R V^T x.

    Args:
        layer: `torch.nn.Linear` or Transformers' `Conv1D`, whose parameters are frozen.
        left: U, (out, r).
        right: V, (in, r).

    Attributes:
        core: R, (r, r), trained, zero at first.
    """

    left: torch.Tensor
    right: torch.Tensor

    def __init__(self, layer: Any, left: torch.Tensor, right: torch.Tensor) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.register_buffer("left", left.to(layer.weight))
        self.register_buffer("right", right.to(layer.weight))
        self.core = torch.nn.Parameter(layer.weight.new_zeros(left.shape[1], left.shape[1]))

    @property
    def weight(self) -> torch.Tensor:
        """W as its layer keeps it, for models that look at its type."""
        weight: torch.Tensor = self.layer.weight
        return weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The layer's output, changed by R."""
        outputs: torch.Tensor = self.layer(inputs)
        return outputs + inputs @ self.right @ self.core.T @ self.left.T

    def merged(self) -> Any:
        """The layer alone, with U R V^T added to its weights."""
        with torch.no_grad():
            change = self.left @ self.core @ self.right.T
            self.layer.weight += change if _is_linear(self.layer) else change.T
        return self.layer


def _is_linear(layer: Any) -> bool:
    """Whether the weights are (out, in), not Conv1D's (in, out)."""
    return isinstance(layer, torch.nn.Linear)


def with_subspace(model: Any, rank: int, bases: Subspace | None = None) -> Subspace:
    """Train, from now on, a core of every linear layer but the output, and nothing else.

    Args:
        model: a language model of Transformers, changed in place.
        rank: of the cores, >= 1; of a smaller layer its size.
        bases: of another model; None, or one of other layers, for those of the model's own weights.

    Returns:
        The bases that the cores stand between.
    """
    from transformers.pytorch_utils import Conv1D

    model.requires_grad_(False)
    output = model.get_output_embeddings()
    layers: dict[str, Any] = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear | Conv1D) and layer is not output
    }
    weights = {
        name: layer.weight.detach() if _is_linear(layer) else layer.weight.detach().T
        for name, layer in layers.items()
    }
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    if bases is None or shapes != {
        name: (len(left), len(right)) for name, (left, right) in bases.items()
    }:
        found = {
            name: leading_subspace(weight.float().cpu().numpy(), rank)
            for name, weight in weights.items()
        }
        bases = {
            name: (torch.from_numpy(left), torch.from_numpy(right))
            for name, (left, right) in found.items()
        }
    for name, (left, right) in bases.items():
        model.set_submodule(name, SubspaceLinear(layers[name], left, right))
    return bases


def merge_subspace(model: Any) -> Any:
    """The model as it was, with what was trained within the bases added to its weights."""
    for name, module in list(model.named_modules()):
        if isinstance(module, SubspaceLinear):
            model.set_submodule(name, module.merged())
    return model
