"""How near synthetic text is to held-out private text, before and after a run.

    python -m flower_privsyn.evaluation.nearest_neighbor RUN_DIR --users users.jsonl

reads the users that the run held out (`held-out-fraction` of its settings; never asked anything)
and prints, for the initial population and for the survivors of the last released round,

- the mean distance of a synthetic text to its nearest held-out private sample (fidelity),
- the mean distance of a held-out private sample to its nearest synthetic text (coverage),

in Euclidean distance of unit embeddings, in [0, 2]. The figures are computed from private text
without noise: they are for deciding on a method, not for publishing beside a private result.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flower_privsyn.data import Users, load_users
from flower_privsyn.embedding import Embedder
from flower_privsyn.errors import ConfigError, PrivsynError
from flower_privsyn.evaluation.neighbors import library
from flower_privsyn.evaluation.result import NotPrivate
from flower_privsyn.evaluation.run import run_embedder, run_samples, split_users
from flower_privsyn.runs import RunDirectory


def mean_nearest_distance(
    points: npt.NDArray[np.float32], targets: npt.NDArray[np.float32]
) -> float:
    """Mean Euclidean distance of each point to its nearest target.

    Args:
        points: (n, d), n >= 1.
        targets: (m, d), m >= 1.

    Raises:
        ValueError: One of the two is empty.
    """
    if len(points) == 0 or len(targets) == 0:
        raise ValueError("there must be at least one point and one target")
    exact, others = points.astype(np.float64), targets.astype(np.float64)
    nearest = library("sklearn.metrics").pairwise_distances_argmin(exact, others)
    return float(np.linalg.norm(exact - others[nearest], axis=1).mean())


@dataclass(frozen=True, kw_only=True)
class Distances(NotPrivate):
    """How far a population and the held-out text are from each other.

    Attributes:
        texts: in the population, repetitions counted.
        to_nearest_private: mean distance of a synthetic text to its nearest held-out sample.
        from_private_to_nearest: mean distance of a held-out sample to its nearest synthetic text.
    """

    texts: int
    to_nearest_private: float
    from_private_to_nearest: float


@dataclass(frozen=True, kw_only=True)
class RunDistances(NotPrivate):
    """Distances before and after a private-evolution run.

    Attributes:
        run: its folder.
        held_out_users: users the run never asked.
        held_out_samples: their samples.
        last_round: the last released one.
        initial: of the population of round 1.
        survivors: of what survived the last released round.
    """

    run: str
    held_out_users: int
    held_out_samples: int
    last_round: int
    initial: Distances
    survivors: Distances


def evaluate_run(
    run: RunDirectory, users: Users, *, embedder: Embedder | None = None
) -> RunDistances:
    """Distances between a private-evolution run's populations and its held-out users' text.

    Args:
        run: a run with at least one released round.
        users: the users of the run, held-out ones included.
        embedder: in place of the run's embedding model.

    Raises:
        ConfigError: The run held nobody out, or released no round.
    """
    import pyarrow.parquet as pq

    _, held_out = split_users(run, users)
    released = run.rounds_with_outcome("released")
    if not released:
        raise ConfigError(f"no round of the run in {run.path} has been released")
    embedder = embedder or run_embedder(run)
    samples = run_samples(run, held_out, embedder)
    if not samples.texts:
        raise ConfigError("the held-out users have no text")
    private = embedder.embed(samples.texts)

    def describe(texts: Sequence[str]) -> Distances:
        synthetic = embedder.embed(list(texts))
        return Distances(
            texts=len(texts),
            to_nearest_private=mean_nearest_distance(synthetic, private),
            from_private_to_nearest=mean_nearest_distance(private, synthetic),
        )

    last = pq.read_table(run.rounds.files(released[-1]).population)
    survivors = [
        text
        for text, count in zip(
            last.column("text").to_pylist(), last.column("survived").to_pylist(), strict=True
        )
        for _ in range(count)
    ]
    # Before the first votes users may have been asked something that no text belongs to.
    first = next(files.population for _, files in run.rounds if files.population.exists())
    initial = pq.read_table(first).column("text").to_pylist()
    return RunDistances(
        run=str(run.path),
        held_out_users=len(held_out),
        held_out_samples=len(samples.texts),
        last_round=released[-1],
        initial=describe(initial),
        survivors=describe(survivors),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures as a table, or with `--json` as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m flower_privsyn.evaluation.nearest_neighbor", description=__doc__
    )
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--users", required=True, help="the users of the run, as in its data")
    parser.add_argument("--client-column", default="client_id")
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--date-column", default="date")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        users = load_users(
            options.users,
            client_column=options.client_column,
            text_column=options.text_column,
            date_column=options.date_column,
        )
        figures = evaluate_run(RunDirectory.open(options.run), users)
    except PrivsynError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(figures.to_json())
        return 0
    print(f"[{figures.stamp}]")
    print(
        f"{figures.held_out_samples} samples of {figures.held_out_users} held-out users; "
        f"last released round {figures.last_round}"
    )
    print(f"{'':<22}{'texts':>7}{'to nearest private':>20}{'private to nearest':>20}")
    for name, row in (
        ("initial population", figures.initial),
        ("last survivors", figures.survivors),
    ):
        print(
            f"{name:<22}{row.texts:>7}{row.to_nearest_private:>20.4f}"
            f"{row.from_private_to_nearest:>20.4f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
