"""How loud the noise of a run was beside its users, by kind of question.

    python -m research.carried RUN_DIR...

In percent of how long the release would be if all answers were as long as they may be, and the
same: the noise, and what the users had in common. The second is |release|^2 - (numbers) sigma^2 of
the first round, whose noise no answer depends on; it holds what each user adds alone, 1 / sqrt(n)
of n at most. Where it says nothing, for the noise is too loud, nothing is printed. Of counts what
public text says as well is left out, of votes and similarities what every candidate has. The noise
of updates is that of the plain sum of all rounds, with what correlated rounds have taken back in
it, and without the server's momentum; of the others it is that of a round.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.privacy.correlated_noise import Correlation
from flower_privsyn.privacy.factorisation import Memory
from flower_privsyn.run.directory import RunDirectory

Vector = NDArray[np.float64]
UPDATES = ("model_delta", "conditional_delta")


def noise_of_sum(correlation: Correlation, rounds: int) -> float:
    """Standard deviation of the noise in the sum of the first rounds, of the innovations' 1."""
    memory: Memory = {}
    rows = [
        correlation.factorisation.next_noise(innovation, memory)
        for innovation in np.eye(correlation.factorisation.rounds)[:rounds]
    ]
    return float(np.linalg.norm(np.sum(rows, axis=0)))


def carried(path: Path) -> Iterator[tuple[str, int, int, float, float | None]]:
    """Question, rounds, numbers, and the shares of the noise and of what users have in common."""
    run, releases = RunDirectory.open(path), defaultdict(list)
    started = {}
    for line in run.ledger().lines:
        if line["event"] == "started":
            started[line["round"]] = line
        elif line["event"] == "release":
            releases[line["query"]].append(line)
    for query, lines in releases.items():
        counted = lines if query in UPDATES else lines[:1]
        number, bound = counted[0]["round"], counted[0]["l2_sensitivity"]
        longest = [
            line["l2_sensitivity"] / line["max_nodes_per_user"] * line["expected_users"]
            for line in counted
        ]
        sigmas = [line["noise_multiplier"] * line["l2_sensitivity"] for line in counted]
        if described := started[number].get("correlation"):
            correlation = Correlation.from_dict(described)
            multiplier = started[number]["noise_multiplier"]
            sigma = multiplier * bound * float(correlation.factorisation.round_std[0])
            noise = multiplier * bound * noise_of_sum(correlation, len(counted))
        else:
            sigma, noise = sigmas[0], math.hypot(*sigmas)
        release = np.load(run.round_files(number).folder / "release.npy").astype(np.float64)
        for part, values, weight in parts(run, query, release):
            common = length(values, sigma)
            yield (
                part,
                len(lines),
                len(values),
                noise * math.sqrt(len(values)) / (weight * sum(longest)),
                None if common is None else common / (weight * longest[0]),
            )


def parts(run: RunDirectory, query: str, release: Vector) -> Iterator[tuple[str, Vector, float]]:
    """What of a release is read apart, less what is known without it; and its share of a length."""
    if query == "joint_sketch":
        import pyarrow.parquet as pq

        table = pq.read_table(run.path / "sketch.parquet", columns=["kind", "public"]).to_pydict()
        kinds, public = np.array(table["kind"]), np.array(table["public"])
        names = list(dict.fromkeys(table["kind"]))
        for kind in names:  # each has as much of the squared norm
            here, known = release[kinds == kind], public[kinds == kind]
            beyond = here - (here @ known) / (known @ known) * known
            yield f"{kind}s", beyond, 1.0 / math.sqrt(len(names))
    else:
        yield query, release if query in UPDATES else release - release.mean(), 1.0


def length(values: Vector, sigma: float) -> float | None:
    """Of what is left without noise of this standard deviation; None: it cannot be told from 0."""
    squared = float(values @ values) - sigma**2 * len(values)
    surely = squared > 3.0 * math.sqrt(2.0 * len(values)) * sigma**2
    return math.sqrt(max(squared, 0.0)) if surely or not sigma else None


def main(folders: list[str]) -> None:
    """Print a table."""
    print("| run | question | rounds | numbers | noise, % | in common, % |")
    print("|---|---|---:|---:|---:|---:|")
    for folder in folders:
        for name, rounds, numbers, noise, common in carried(Path(folder)):
            said = "-" if common is None else f"{100 * common:.1f}"
            print(
                f"| {Path(folder).parent.name} | {name} | {rounds} | {numbers:,} "
                f"| {100 * noise:.1f} | {said} |"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
