"""Which rounds a user may take part in, and that the sampler keeps to it."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import (
    CyclicSampling,
    DisjointCyclicSampling,
    FullParticipation,
    Participation,
    PoissonSampling,
    Release,
    Sampling,
    participation,
    participation_of,
    release_epsilon,
)
from flower_privsyn.privacy.participation import (
    largest_sums,
    squared_sensitivity,
)
from tests.support.correlated import allowed_sets

SALT = "0123456789abcdef" * 2


SMALL = {
    rounds: list(itertools.product(range(1, rounds + 1), range(1, rounds + 2)))
    for rounds in (1, 2, 3, 5, 8)
}


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 8])
def test_patterns_cover_the_allowed_sets_and_nothing_else(rounds: int) -> None:
    for most, gap in SMALL[rounds]:
        check_patterns(rounds, most, gap)


def check_patterns(rounds: int, most: int, gap: int) -> None:
    pattern = Participation(rounds=rounds, max_participations=most, min_separation=gap)
    sets = allowed_sets(rounds, most, gap)
    listed = set(pattern.patterns())
    assert listed <= set(sets)
    assert all(any(set(one) <= set(other) for other in listed) for one in sets)
    forbidden = [c for c in itertools.combinations(range(rounds), 2) if c[1] - c[0] < gap]
    forbidden += list(itertools.combinations(range(rounds), most + 1))
    assert not any(set(chosen) <= one for chosen in forbidden for one in map(set, listed))


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 8])
def test_the_largest_sum_is_the_largest(rounds: int) -> None:
    weights = np.random.default_rng(rounds).random((4, rounds))
    for most, gap in SMALL[rounds]:
        pattern = Participation(rounds=rounds, max_participations=most, min_separation=gap)
        sets = allowed_sets(rounds, pattern.most, gap)
        expected = np.max([weights[:, list(chosen)].sum(axis=1) for chosen in sets], axis=0)
        assert largest_sums(weights, pattern) == pytest.approx(expected)


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 8])
def test_the_sensitivity_of_any_matrix(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact where the sets are tried, and never below it where they are bounded."""
    for most, gap in SMALL[rounds]:
        check_any_matrix(rounds, most, gap, monkeypatch)


def check_any_matrix(rounds: int, most: int, gap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = Participation(rounds=rounds, max_participations=most, min_separation=gap)
    matrix = np.tril(np.random.default_rng(gap).random((rounds, rounds)))
    gram = matrix.T @ matrix
    expected = max(
        float(np.sum(matrix[:, list(chosen)].sum(axis=1) ** 2))
        for chosen in allowed_sets(rounds, most, gap)
    )
    tried, exact = squared_sensitivity(gram, pattern)
    assert exact
    assert tried == pytest.approx(expected)
    monkeypatch.setattr(participation, "_MOST_PATTERNS", 0)
    bound, exact = squared_sensitivity(gram, pattern)
    assert not exact
    assert bound >= expected * (1 - 1e-12)
    # Where different rounds of a user do not meet in any row, the bound is the maximum.
    diagonal, _ = squared_sensitivity(np.diag(np.diag(gram)), pattern)
    monkeypatch.undo()
    assert diagonal == pytest.approx(squared_sensitivity(np.diag(np.diag(gram)), pattern)[0])


def test_negative_entries_count_by_their_size_and_are_called_a_bound() -> None:
    gram = np.array([[1.0, -0.5], [-0.5, 1.0]])
    assert squared_sensitivity(gram, Participation(rounds=2)) == (3.0, False)
    # Opposite contributions reach it.
    assert np.array([1.0, -1.0]) @ gram @ np.array([1.0, -1.0]) == 3.0


def test_fewer_participations_than_the_turns_of_a_group_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_participations must be at least 3 .* got 2"):
        Participation(rounds=9, max_participations=2, min_separation=4, cyclic=True)
    with pytest.raises(ConfigError, match="max_participations must be at least 3 .* got 2"):
        CyclicSampling(groups=4, rounds=9, max_participations=2, salt=SALT)
    assert CyclicSampling(groups=4, rounds=8, max_participations=2, salt=SALT).rate == 0.25


def test_a_cyclic_pattern_refuses_rounds_of_two_groups() -> None:
    pattern = Participation(rounds=12, min_separation=4, cyclic=True)
    assert allows(pattern, [1, 9])
    assert not allows(pattern, [1, 6])


def allows(pattern: Participation, rounds: list[int]) -> bool:
    """Whether one user may take part in these rounds, counted from 1."""
    return any({number - 1 for number in rounds} <= set(one) for one in pattern.patterns())


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
    pattern = participation_of(plan, rounds=rounds)
    assert (pattern.min_separation, pattern.cyclic) == (groups, True)
    for user, rounds_of_user in attended.items():
        assert allows(pattern, rounds_of_user)
        first = int(plan.groups_of([user])[0])
        assert rounds_of_user == list(range(first + 1, rounds + 1, groups))
    # Nobody is forgotten but those whose turn never comes.
    never = 400 - len(attended)
    assert never == int((plan.groups_of([str(u) for ids in nodes for u in ids]) >= rounds).sum())
    assert never == 0 or groups > rounds


@pytest.mark.parametrize(
    ("groups", "rounds"),
    [((2, 2), (4, 4)), ((3, 1), (6, 2)), ((5, 6), (3, 9)), ((1, 2, 3), (2, 3, 4))],
)
def test_shares_have_no_user_in_common(groups: tuple[int, ...], rounds: tuple[int, ...]) -> None:
    users = [f"user-{number}" for number in range(300)]
    first, taking_part = 1, []
    for share, count in enumerate(rounds):
        plan = DisjointCyclicSampling(
            groups=groups, share=share, first_round=first, rounds=count, salt=SALT, population=300
        )
        assert Sampling.from_dict(json.loads(json.dumps(plan.of_round(first).to_dict()))) == (
            plan.of_round(first)
        )
        cohorts = np.stack(
            [
                plan.of_round(number).participants(users, key=b"")
                for number in range(first, first + count)
            ]
        )
        pattern = participation_of(plan, rounds=count)
        assert (pattern.min_separation, pattern.cyclic) == (groups[share], True)
        allowed = set(pattern.patterns())
        for user in np.flatnonzero(cohorts.any(0)):
            mine = tuple(np.flatnonzero(cohorts[:, user]).tolist())
            assert mine in allowed
        # Every group of every share is as large as any other.
        expected = plan.expected_users
        assert expected == pytest.approx(300 / sum(groups))
        assert np.abs(cohorts.sum(1) - expected).max() < 5 * np.sqrt(expected)
        taking_part.append(cohorts.any(0))
        first += count
    assert np.sum(taking_part, axis=0).max() == 1


def test_shares_that_are_cut_otherwise_are_of_another_deal() -> None:
    def share(*groups: int, of: int = 0, salt: str = SALT) -> Any:
        return DisjointCyclicSampling(
            groups=groups, share=of, first_round=1, rounds=4, salt=salt
        ).group

    assert share(2, 2)[:2] == share(2, 2, of=1)[:2]
    assert share(2, 2)[2] != share(2, 2, of=1)[2]
    deals = [share(2, 2)[:2], share(3, 1)[:2], share(2, 3)[:2], share(2, 2, salt="f" * 32)[:2]]
    assert len(set(deals)) == 4


def test_shares_that_cannot_be_are_refused() -> None:
    values: dict[str, Any] = {
        "groups": (2, 2),
        "share": 0,
        "first_round": 3,
        "rounds": 4,
        "salt": SALT,
    }
    plan = DisjointCyclicSampling(**values)
    with pytest.raises(ConfigError, match="round_number must be given"):
        plan.participants(["a"])
    for number in (2, 7):
        with pytest.raises(ConfigError, match="round_number"):
            plan.of_round(number)
    with pytest.raises(ConfigError, match="rounds must be 4"):
        participation_of(plan, rounds=3)
    changes: list[dict[str, Any]] = [
        {"groups": ()},
        {"groups": (0, 2)},
        {"groups": 4},
        {"share": 2},
        {"salt": "ab"},
        {"rounds": 0},
    ]
    for change in changes:
        with pytest.raises(ConfigError):
            DisjointCyclicSampling(**{**values, **change})


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


@pytest.mark.parametrize("salt", ["", "0" * 31, "G" * 32, None])
def test_a_bad_salt_is_refused(salt: str) -> None:
    with pytest.raises(ConfigError, match="salt must be 32 hexadecimal digits"):
        CyclicSampling(groups=3, rounds=9, salt=salt)


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


def test_other_samplings_keep_no_rounds_apart() -> None:
    for sampling in (FullParticipation(), PoissonSampling(0.01)):
        assert participation_of(sampling, rounds=20) == Participation(rounds=20)
    plan = CyclicSampling(groups=4, rounds=8, salt=SALT)
    with pytest.raises(ConfigError, match="rounds must be at most 8"):
        participation_of(plan, rounds=9)


def test_patterns_come_back_from_the_ledger() -> None:
    for pattern in (
        Participation(rounds=20, max_participations=3, min_separation=4),
        Participation(rounds=20, min_separation=4, cyclic=True),
    ):
        assert Participation.from_dict(json.loads(json.dumps(pattern.to_dict()))) == pattern
