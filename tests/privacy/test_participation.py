"""Which rounds a user may take part in, and that the sampler keeps to it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import (
    CyclicSampling,
    FullParticipation,
    Release,
    Sampling,
    release_epsilon,
)

SALT = "0123456789abcdef" * 2


@pytest.mark.parametrize(("groups", "rounds"), [(1, 5), (3, 10), (7, 7), (10, 20), (30, 20)])
def test_the_sampler_keeps_every_user_to_the_pattern(groups: int, rounds: int) -> None:
    """All users of four nodes, all rounds, through the text that a request carries."""
    plan = CyclicSampling(groups=groups, rounds=rounds, salt=SALT, population=400)
    nodes = np.array_split([f"user-{number}" for number in range(400)], 4)
    attended: dict[str, list[int]] = {}
    for number in range(1, rounds + 1):
        asked = Sampling.from_dict(json.loads(json.dumps(plan.of_round(number).to_dict())))
        for ids in nodes:
            chosen = asked.participants(list(ids), key=bytes(16), count=None)
            for user in ids[chosen]:
                attended.setdefault(str(user), []).append(number)
    assert plan.min_separation == groups
    for user, rounds_of_user in attended.items():
        first = int(plan.groups_of([user])[0])
        assert rounds_of_user == list(range(first + 1, rounds + 1, groups))
    # Nobody is forgotten but those whose turn never comes.
    never = 400 - len(attended)
    assert never == int((plan.groups_of([str(u) for ids in nodes for u in ids]) >= rounds).sum())
    assert never == 0 or groups > rounds


def test_groups_depend_on_the_id_and_the_salt_alone() -> None:
    ids = [f"user-{number}" for number in range(10_000)]
    plan = CyclicSampling(groups=10, rounds=20, salt=SALT)
    groups = plan.groups_of(ids)
    assert (plan.groups_of(ids[::-1]) == groups[::-1]).all()
    assert (plan.of_round(3).groups_of(ids[17:]) == groups[17:]).all()
    sizes = np.bincount(groups, minlength=10)
    assert np.abs(sizes - 1000).max() < 4.5 * np.sqrt(10_000 * 0.1 * 0.9)
    other = CyclicSampling(groups=10, rounds=20, salt="f" * 32).groups_of(ids)
    assert abs((other == groups).mean() - 0.1) < 0.02


def test_a_plan_says_nothing_about_whose_turn_it_is() -> None:
    plan = CyclicSampling(groups=3, rounds=9, salt=SALT)
    with pytest.raises(ConfigError, match="round_number must be given"):
        plan.participants(["a"])
    for number in (0, 10):
        with pytest.raises(
            ConfigError, match="round_number must be a whole number between 1 and 9"
        ):
            plan.of_round(number)
    assert FullParticipation().of_round(7) == FullParticipation()


def test_turns_amplify_nothing() -> None:
    """A cohort of a tenth that everybody can name costs what a cohort of all costs."""
    turns = CyclicSampling(groups=10, rounds=20, salt=SALT)
    for accountant in ("pld", "rdp"):
        cyclic, full = (
            release_epsilon(
                [Release(noise_multiplier=3.0, sampling=sampling)],
                delta=1e-6,
                accountant=accountant,
            )
            for sampling in (turns, FullParticipation())
        )
        assert cyclic == full
    assert turns.rate == 0.1
