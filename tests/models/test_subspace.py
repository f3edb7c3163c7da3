"""LoRA-XS: bases that are equal on every machine, and cores between them."""

from __future__ import annotations

import copy
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.models.subspace import (
    SubspaceLinear,
    leading_subspace,
    merge_subspace,
    with_subspace,
)


def weights() -> np.ndarray:
    """(96, 160) of a decaying spectrum, made of whole numbers and quotients of them alone."""
    drawn = np.random.PCG64(1).random_raw(96 * 160) >> np.uint64(44)
    whole = (drawn.astype(np.float64) - 2.0**19).reshape(96, 160)
    rows, columns = np.arange(1, 97)[:, None], np.arange(1, 161)
    return np.asarray(whole / rows / columns, dtype=np.float32)


def digest() -> str:
    return hashlib.sha256(
        b"".join(base.tobytes() for base in leading_subspace(weights(), 16))
    ).hexdigest()


#: Of the bases of `weights` at rank 16, whatever computes them.
EXPECTED = "7aec8dc3c76190724cc980c55f55b45b397aeb2ab38b9a7b4cde0cb440b5ffc2"


class TestLeadingSubspace:
    @pytest.mark.parametrize(
        "kernels",
        [
            {},
            {"OMP_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Prescott"},
            {
                "OMP_NUM_THREADS": "2",
                "OPENBLAS_CORETYPE": "Haswell",
                "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
            },
        ],
    )
    def test_is_the_same_to_the_bit_on_every_kernel(self, kernels: dict[str, str]) -> None:
        code = "from tests.models.test_subspace import digest; print(digest())"
        found = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env={**os.environ, **kernels}, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        assert found.stdout.strip() == EXPECTED

    @pytest.mark.parametrize("transposed", [False, True])
    def test_holds_nearly_all_that_the_best_one_does(self, transposed: bool) -> None:
        matrix = weights().T if transposed else weights()
        left, right = leading_subspace(matrix, 16)
        assert (left.shape, right.shape) == ((len(matrix), 16), (matrix.shape[1], 16))
        best = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)[:16]
        assert np.sum((left.T @ matrix @ right) ** 2) > 0.97 * np.sum(best**2)

    @pytest.mark.parametrize(
        "matrix",
        [weights(), np.zeros((20, 30)), np.ones((20, 30)), np.diag(10.0 ** -np.arange(20))],
    )
    @pytest.mark.parametrize("rank", [5, 100])
    def test_is_orthonormal_whatever_the_weights(self, matrix: np.ndarray, rank: int) -> None:
        for base in leading_subspace(matrix.astype(np.float32), rank):
            assert base.dtype == np.float32
            assert base.shape[1] == min(rank, *matrix.shape)
            assert np.abs(base.T @ base - np.eye(base.shape[1])).max() < 1e-5


@pytest.fixture(params=["llama", "gpt2", "lstm", "bart", "t5", "privsyn-tiny"])
def plain(request: pytest.FixtureRequest) -> Any:
    bundled = str(request.param).startswith("privsyn")
    name = request.param if bundled else str(request.getfixturevalue(request.param))
    kind = "causal or encoder-decoder"
    return load_pretrained(name, kind=kind, dtype="float32", device="cpu")[0].eval()


def logits(model: Any) -> torch.Tensor:
    tokens = torch.arange(5, 17).reshape(2, 6)
    more = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    found: torch.Tensor = model(input_ids=tokens, use_cache=False, **more).logits
    return found


def cores(model: Any) -> list[torch.nn.Parameter]:
    return [module.core for module in model.modules() if isinstance(module, SubspaceLinear)]


class TestCores:
    def test_train_alone_and_merge_into_the_model(self, plain: Any) -> None:
        model = copy.deepcopy(plain)
        with_subspace(model, 3)
        assert torch.equal(logits(model), logits(plain))  # it is what it was
        logits(model).square().mean().backward()  # type: ignore[no-untyped-call]
        assert [one for one in model.parameters() if one.requires_grad] == cores(model)
        for core in cores(model):
            assert core.grad is not None
            assert core.grad.any()
        assert not isinstance(model.get_output_embeddings(), SubspaceLinear)
        with torch.no_grad():
            for core in cores(model):
                core += torch.randn(core.shape, generator=torch.Generator().manual_seed(7))
            changed = logits(model)
            merged = merge_subspace(model)
            assert (changed - logits(plain)).abs().max() > 1e-3
            torch.testing.assert_close(logits(merged), changed, rtol=1e-3, atol=1e-4)
        state, before = merged.state_dict(), plain.state_dict()
        assert {name: one.shape for name, one in state.items()} == {
            name: one.shape for name, one in before.items()
        }

    def test_stand_between_the_bases_of_another_model(self, llama: Path, gpt2: Path) -> None:
        def loaded(folder: Path) -> Any:
            return load_pretrained(str(folder), kind="causal", dtype="float32", device="cpu")[0]

        bases = with_subspace(loaded(llama), 3)
        assert with_subspace(loaded(llama), 3, bases) is bases
        assert with_subspace(loaded(gpt2), 3, bases) is not bases
