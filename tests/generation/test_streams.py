"""Random streams per text and sampling by the inverse distribution function."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from flower_privsyn.generation import streams
from flower_privsyn.generation.backends import derive_seed, text_seeds


def test_derived_seeds_differ_by_every_part_and_are_stable():
    seeds = {
        derive_seed(seed, *parts)
        for seed in (0, 1, 2**64 - 1)
        for parts in ((), ("a",), ("b",), ("a", 0), ("a", 1), (1, "a"), ("1",), (1,), ("a1",))
    }
    assert len(seeds) == 27
    assert all(0 <= seed < 2**63 for seed in seeds)
    # Written down: a change would change every published run.
    assert derive_seed(7, "text", 3) == 5718018207358890738


def test_text_seeds_follow_the_text_not_its_place():
    seeds = text_seeds(5, ["a", "b", "a", "c"])
    assert len(set(seeds)) == 4
    again = text_seeds(5, ["c", "a", "b", "a"])
    assert again == [seeds[3], seeds[0], seeds[1], seeds[2]]
    assert set(text_seeds(6, ["a", "b"])).isdisjoint(seeds)


@pytest.mark.parametrize("top_p", [1.0, 0.8, 0.3])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0, 1e-300])
def test_draws_have_the_model_distribution(temperature: float, top_p: float):
    logits = torch.tensor([2.0, -1.0, 0.5, 0.0, float("-inf"), 1.5, -3.0])
    probabilities = torch.softmax(logits.double() / temperature, -1).numpy()
    order = np.argsort(-probabilities, kind="stable")
    before = np.cumsum(probabilities[order]) - probabilities[order]
    probabilities[order[before >= top_p]] = 0.0
    probabilities /= probabilities.sum()
    size = 200_000
    uniforms = torch.from_numpy(np.random.default_rng(1).random(size, np.float32))
    drawn = streams.sample_tokens(
        logits.expand(size, -1), uniforms, temperature=temperature, top_p=top_p
    )
    counts = np.bincount(drawn.numpy(), minlength=7)
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    if possible.sum() > 1:
        found = stats.chisquare(counts[possible], probabilities[possible] * size)
        assert found.pvalue > 1e-4


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_the_ends_of_the_unit_interval_never_draw_an_impossible_token(top_p: float):
    logits = torch.tensor([float("-inf"), 1.0, 1.0, float("-inf")]).expand(3, -1)
    ends = torch.tensor([0.0, np.nextafter(np.float32(1), np.float32(0)), 1.0])
    drawn = streams.sample_tokens(logits, ends, temperature=1.0, top_p=top_p)
    assert drawn.tolist() == [1, 2, 2]
