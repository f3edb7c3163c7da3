"""A released sum knows how far it is from what all people would say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flower_privsyn.errors import RunDirectoryError
from flower_privsyn.privacy import FixedSizeSampling, FullParticipation, PoissonSampling, Sampling
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.method import ReleasedSum, SumOfUsers, added_up
from flower_privsyn.run.rounds import store_release, stored_release
from tests.support.data_cases import locked

PEOPLE, ROUNDS, MEAN, SPREAD = 60, 3, 2.0, 0.5


def drawn_by(sampling: Sampling, generator: np.random.Generator) -> np.ndarray:
    """Who is in a round: (PEOPLE,)."""
    if isinstance(sampling, PoissonSampling):
        return generator.random(PEOPLE) < sampling.rate
    drawn = np.zeros(PEOPLE, dtype=np.bool_)
    drawn[generator.permutation(PEOPLE)[: round(sampling.expected_users)]] = True
    return drawn


@pytest.mark.parametrize(
    "sampling",
    [
        FullParticipation(PEOPLE),
        PoissonSampling(0.25, population=PEOPLE),
        FixedSizeSampling(15, population=PEOPLE),
    ],
    ids=lambda sampling: sampling.method,
)
def test_the_mean_varies_as_it_says(sampling: Sampling) -> None:
    generator = np.random.default_rng(0)
    means = []
    for _ in range(4000):
        numbers = generator.normal(MEAN, SPREAD, size=PEOPLE)
        releases = []
        for number in range(1, ROUNDS + 1):
            drawn = drawn_by(sampling, generator)
            one = ReleasedSum(
                round_number=number,
                values=np.array([numbers[drawn].sum()]),
                noise_std=1.0,
                num_users=None if sampling.hides_cohort else int(drawn.sum()),
                sampling=sampling,
            )
            releases.append(one.of_users)
        added = added_up(releases)
        assert added is not None
        means.append(added.total[0] / added.users)
    n, coins = added.sample
    # The standard error of a variance of as many is 2.2 %.
    assert np.var(means) == pytest.approx(SPREAD**2 / n + coins * MEAN**2, rel=0.09)
    assert np.mean(means) == pytest.approx(MEAN, abs=0.03)
    assert added.noise_std == pytest.approx(np.sqrt(ROUNDS))


def test_one_round_of_everybody_is_a_sample_of_them() -> None:
    assert SumOfUsers(np.zeros(1), 300.0, 1.0).sample == (300.0, 0.0)


def test_a_stored_release_is_read_as_it_was_or_named(tmp_path: Path) -> None:
    run, sampling = RunDirectory.create(tmp_path, config={}), FullParticipation(PEOPLE)
    assert stored_release(run, 1, sampling=sampling) is None
    released = ReleasedSum(
        round_number=1,
        values=np.arange(5.0),
        noise_std=2.0,
        num_users=PEOPLE,
        sampling=sampling,
    )
    store_release(run, released)
    found = stored_release(run, 1, sampling=sampling)
    assert found is not None
    assert np.array_equal(found.values, released.values)
    assert (found.noise_std, found.num_users) == (2.0, PEOPLE)
    file = tmp_path / "rounds" / "0001" / "release.npy"
    whole = file.read_bytes()
    said = r"rounds/0001/release\.npy is damaged, or cannot be read: it does not hold the release"
    first = whole[:168]  # the sum, without what is known of its noise
    for content in (b"", b"xx", b"PK\x03\x04", whole[:100], whole[:-3], first, first * 2):
        file.write_bytes(content)
        with pytest.raises(RunDirectoryError, match=said):
            stored_release(run, 1, sampling=sampling)
    with locked(file), pytest.raises(RunDirectoryError, match=said):
        stored_release(run, 1, sampling=sampling)
    run.unlock()
