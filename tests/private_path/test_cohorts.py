"""Cohorts of a large population, as they are drawn and as they are paid for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Context
from scipy import stats

from flower_privsyn.cli import main
from flower_privsyn.client_apps import create_client_app
from flower_privsyn.data import Users
from flower_privsyn.testing import HashEmbedder, LoopbackGrid
from tests.support.federation import WORDS, make_users
from tests.support.probe import Probe, cohort_sizes
from tests.support.run_files import releases

Builder = Callable[..., Any]

USERS, DRAWN, ROUNDS, NODES = 133_000, 1_000, 20, 16
RATE = DRAWN / USERS


class WordTable(HashEmbedder):
    """The vectors of a few words, computed once: users' texts are one word long."""

    def embed(
        self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
    ) -> npt.NDArray[np.float32]:
        table = _table()
        if progress is not None:
            progress(len(texts))
        if not table.keys() >= set(texts):  # the probes of the check of company
            return super().embed(texts)
        return np.stack([table[text] for text in texts])


@cache
def _table() -> dict[str, npt.NDArray[np.float32]]:
    return dict(zip(WORDS, HashEmbedder().embed(WORDS), strict=True))


def population(tmp_path: Path) -> LoopbackGrid:
    """133,000 users with a word each, on sixteen nodes."""

    def load(context: Context) -> Users:
        node = int(context.node_config["partition-id"])
        return Users.from_rows(
            (f"user-{i}", WORDS[i % len(WORDS)]) for i in range(node, USERS, NODES)
        )

    app = create_client_app(
        load,
        embedder=lambda name, precision: WordTable(),
        cache_directory=tmp_path / "cache",
    )
    return LoopbackGrid(app, num_nodes=NODES)


def fits(sizes: npt.NDArray[np.int_], *, users: int, rate: float) -> bool:
    """Whether these are plausible sizes of independent cohorts; one honest run in 10^5 is not."""
    total = stats.binomtest(int(sizes.sum()), users * len(sizes), rate).pvalue
    spread = ((sizes - users * rate) ** 2).sum() / (users * rate * (1 - rate))
    law = stats.chi2(len(sizes))
    return min(total, 2 * law.cdf(spread), 2 * law.sf(spread)) > 1e-5 / 3


def test_twenty_rounds_of_a_thousand_of_133_000(
    config: Builder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise, delta = 1.14, 3e-6
    strategy = Probe(
        config(
            sampling="poisson",
            sampling_rate=RATE,
            noise_multiplier=noise,
            delta=delta,
            num_rounds=ROUNDS,
            num_nodes=NODES,
            num_users=USERS,
            max_samples=1,
        )
    )
    grid = population(tmp_path)
    strategy.start(grid)
    sizes = cohort_sizes(grid, ROUNDS)
    assert fits(sizes, users=USERS, rate=RATE), sizes
    # The test of the test: sizes of another rate, of one coin for all rounds, of a fixed size.
    assert not fits(sizes, users=USERS, rate=1.07 * RATE)
    assert not fits(np.full(ROUNDS, sizes[0]), users=USERS, rate=sizes[0] / USERS)
    assert not fits(np.full(ROUNDS, DRAWN), users=USERS, rate=RATE)

    arguments = ["--noise-multiplier", str(noise), "--delta", str(delta), "--rounds", str(ROUNDS)]
    arguments += ["--sampling-rate", repr(RATE), "--population", str(USERS), "--json"]
    capsys.readouterr()
    assert main(["budget", *arguments]) == 0
    planned = json.loads(capsys.readouterr().out)
    charged = releases(strategy.run.path)
    assert [line["round"] for line in charged] == list(range(1, ROUNDS + 1))
    last = charged[-1]
    assert last["sampling"] == {"method": "poisson", "rate": RATE, "population": USERS}
    assert last["epsilon_release"] == planned["epsilon_release"]["pld"]
    assert last["epsilon_known_cohorts"] == planned["epsilon_known_cohorts"]["pld"]
    print(
        f"cohorts {sizes.min()} to {sizes.max()}, mean {sizes.mean():.1f}, standard deviation "
        f"{sizes.std(ddof=1):.1f} of {math.sqrt(USERS * RATE * (1 - RATE)):.1f}; epsilon "
        f"{last['epsilon_release']:.4f}, for one who knows the cohorts "
        f"{last['epsilon_known_cohorts']:.3f}"
    )


def test_the_number_of_nodes_is_no_part_of_the_answer(
    federation: Builder, config: Builder, tmp_path: Path
) -> None:
    users = make_users(200)
    histograms = []
    for nodes in (1, 2, 16, 200):
        strategy = Probe(
            config(
                noise_multiplier=0.0,
                num_rounds=2,
                num_nodes=nodes,
                run_dir=str(tmp_path / f"run{nodes}"),
            )
        )
        strategy.start(federation(users, num_nodes=nodes))
        assert strategy.released[0].num_users == 200
        histograms.append([release.values for release in strategy.released])
    assert histograms[0][0].sum() == 600
    for other in histograms[1:]:
        assert np.array_equal(histograms[0], other)


def test_a_fixed_size_cohort_is_spread_over_the_nodes_and_costs_more(
    federation: Builder, config: Builder, tmp_path: Path
) -> None:
    epsilons = {}
    for method, rate in (
        ("poisson", {"sampling_rate": 0.05}),
        ("fixed-size", {"sample_size": 10}),
    ):
        strategy = Probe(
            config(
                sampling=method,
                noise_multiplier=1.5,
                num_rounds=2,
                num_nodes=16,
                run_dir=str(tmp_path / method),
                **rate,
            )
        )
        grid = federation(make_users(200), num_nodes=16)
        strategy.start(grid)
        sizes = cohort_sizes(grid, 2)
        if method == "fixed-size":
            assert list(sizes) == [10] * 2
        epsilons[method] = releases(strategy.run.path)[-1]["epsilon_release"]
    assert epsilons["fixed-size"] > 1.5 * epsilons["poisson"]
