"""The loss and its gradient are PyTorch's own, up to rounding."""

from __future__ import annotations

import math

import pytest
import torch

from flower_privsyn.training.cross_entropy import mean_cross_entropy


@pytest.mark.parametrize("scale", [1.0, -3.0])
def test_is_the_mean_over_the_targets_there_are(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 8 * torch.randn((11, 37), generator=generator)
    targets = torch.randint(37, (11,), generator=generator)
    targets[torch.tensor([0, 4, 10])] = -100
    results = []
    for function in (torch.nn.functional.cross_entropy, mean_cross_entropy):
        given = logits.clone().requires_grad_()
        loss = function(given, targets)
        (scale * loss).backward()
        assert given.grad is not None
        assert torch.equal(given, logits)
        results.append((loss.detach(), given.grad))
    (expected, theirs), (found, ours) = results
    assert found == pytest.approx(float(expected), rel=1e-6)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-8)
    assert not ours[4].any()


def test_a_row_without_a_target_may_hold_no_numbers() -> None:
    logits = torch.zeros((3, 5))
    logits[1] = math.nan
    logits[2] = -math.inf
    logits.requires_grad_()
    loss = mean_cross_entropy(logits, torch.tensor([2, -100, -100]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(math.log(5))
    assert logits.grad is not None
    assert not logits.grad[1:].any()
    assert torch.allclose(logits.grad[0], torch.tensor([0.2, 0.2, -0.8, 0.2, 0.2]))


def test_an_improbable_target_has_a_finite_loss() -> None:
    logits = torch.tensor([[500.0, 0.0]], requires_grad=True)
    loss = mean_cross_entropy(logits, torch.tensor([1]))
    loss.backward()
    assert float(loss.detach()) == 500.0
    assert logits.grad is not None
    assert logits.grad.tolist() == [[1.0, -1.0]]
