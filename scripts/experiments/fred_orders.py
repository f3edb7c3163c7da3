"""The orders that FreD must show: F1, F2 and F3 of docs/fred.md, on people's text.

    python -m scripts.experiments.fred_data --corpus DIR --work FOLDER     # embeds, once
    python -m scripts.experiments.fred_orders distances --work FOLDER
    python -m scripts.experiments.fred_orders downstream --work FOLDER     # trains, for F2
    python -m scripts.experiments.fred_orders show --work FOLDER

F1: at epsilon 0.6 the nearer of two public corpora is ranked first in at least 19 of 20 draws.
F2: private FreD and the perplexity downstream both fall as the share Y of the near corpus grows,
    and what training on the nodes gains falls with it.
F3: at record level with 150,000 sentences, five draws at 99 % and at 100 % do not overlap.

Every answer is made, clipped and noised by the package's own code; only the messages are left out.
`distances` and `downstream` write JSON lines into the folder, without any text; `show` prints the
tables. The exact distances are of private text without noise: for research.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.evaluation.distribution import gaussian_frechet
from flower_privsyn.privacy import (
    FullParticipation,
    GaussianMechanism,
    InsecureRandom,
    calibrate_noise_multiplier,
)
from flower_privsyn.private_path.release import SumOfUsers
from flower_privsyn.queries import Cohort, Moments
from flower_privsyn.strategies.parts.moments import MomentSketch, MomentSpace, shift_of
from scripts.experiments.fred_data import GROUPS, PARTS, load

EPSILON, DRAWS = 0.6, 20
SHARES = (10, 40, 70, 95, 99, 100)
SENTENCES = 150_000
#: Texts in a mixture of F2.
MIXED = 2000
#: Sentences of users whose moments stand for those of `SENTENCES`: answers of 384 numbers squared.
RECORDS = 2000
#: Clients who add the printed noise of a covariance each, as many as of the paper's Reddit.
CLIENTS = 3000
FAR = "wikipedia"

Matrix = npt.NDArray[Any]


@dataclass(frozen=True)
class Way:
    """A way to ask.

    Attributes:
        name: in tables.
        dimensions: principal components of public text; 0 for all numbers of an embedding.
        unit: whom it protects.
        two_rounds: as in the paper.
        printed: whether the noise is the paper's as printed.
        sentences: how many the private text stands for; 0 for those that there are.
    """

    name: str
    dimensions: int
    unit: str = "user"
    two_rounds: bool = False
    printed: bool = False
    sentences: int = 0


BY_USER = (
    Way("by user, 16 dimensions", 16),
    Way("by user, 32 dimensions", 32),
    Way("by user, 16 dimensions, two rounds", 16, two_rounds=True),
)
BY_RECORD = (
    Way("by record, 16 dimensions", 16, "record", sentences=SENTENCES),
    Way("by record, 384 dimensions", 0, "record", sentences=SENTENCES),
    Way("by record, 384 dimensions, two rounds", 0, "record", True, sentences=SENTENCES),
    Way("by record, 384, two rounds, printed noise", 0, "record", True, True, SENTENCES),
)


class Asked:
    """Users, asked in one way; their exact sums, to which every draw adds noise of its own.

    Args:
        way: how they are asked.
        embeddings: (n, d) of their samples.
        owners: (n,) whose they are.
        public: (m, d) what the coordinates are settled from.
        delta: of the whole.
    """

    def __init__(
        self, way: Way, embeddings: Matrix, owners: Matrix, public: Matrix, *, delta: float
    ) -> None:
        self.way = way
        self.users = len(np.unique(owners))
        own = np.arange(len(owners), dtype=np.int64) if way.unit == "record" else owners
        self.cohort = Cohort(embeddings, np.unique(own, return_inverse=True)[1], len(set(own)))
        self.space = MomentSpace.of_public(
            public, dimensions=way.dimensions, radius=0.0, centred=True, precision="float16"
        )
        joint = Moments(radius=self.space.radius)
        self.questions = (
            (replace(joint, covariance_share=0.0), replace(joint, covariance_share=1.0))
            if way.two_rounds
            else (joint,)
        )
        # A private text of more sentences than were embedded: the same sentences, more often.
        self.times = (way.sentences or self.cohort.num_users) / self.cohort.num_users
        self.count = self.times * self.cohort.num_users
        self.multipliers = self._multipliers(delta)
        self.exact = self.read(noisy=False)

    def _multipliers(self, delta: float) -> list[float]:
        rounds = len(self.questions)
        if self.way.printed:
            each = np.sqrt(2 * np.log(1.25 / (delta / 2))) / (EPSILON / 2)
            # Of a mean, added to every record; of a covariance, to every client's part.
            return [2 * each / np.sqrt(self.count), each * np.sqrt(CLIENTS)]
        return [
            calibrate_noise_multiplier(
                epsilon=EPSILON, delta=delta, rounds=rounds, sampling=FullParticipation()
            )
        ] * rounds

    def read(self, *, noisy: bool, random: InsecureRandom | None = None) -> MomentSketch:
        """One draw of the release, or what it would be without noise."""
        releases, shift = [], None
        for query, multiplier in zip(self.questions, self.multipliers, strict=True):
            total = self._total(query, shift) * self.times
            std = 0.0
            if noisy and random is not None:
                mechanism = GaussianMechanism(noise_multiplier=multiplier, l2_sensitivity=1.0)
                grid = np.trunc(total * 2.0**30) / 2.0**30
                total, std = mechanism.release(grid, random=random), mechanism.standard_deviation
            releases.append(SumOfUsers(total, float(self.count), std))
            if self.way.two_rounds and shift is None:
                mean = self.space.radius * total[: self.space.dimensions] / self.count
                shift = shift_of(mean, self.space.radius)
        found = (
            MomentSketch.of_two_rounds(self.space, (self.questions[0], self.questions[1]), releases)
            if self.way.two_rounds
            else MomentSketch.of_joint(self.space, self.questions[0], releases)
        )
        if found is None:
            raise RuntimeError("nothing was released")
        return found

    def _total(self, query: Moments, shift: Matrix | None) -> Matrix:
        if shift is None and hasattr(self, "_first"):
            return self._first
        total = query.answer(self.cohort, self.space.broadcast(query, shift=shift))
        if shift is None:
            self._first: Matrix = total
        return total

    def draws(self, sets: dict[str, Matrix], *, seed: int) -> dict[str, Any]:
        """Distances of sets of text, exact and in every draw."""
        random = InsecureRandom(seed)
        own = {name: self.exact.moments_of(rows) for name, rows in sets.items()}
        found: dict[str, list[float]] = {name: [] for name in sets}
        ratios = []
        for _ in range(DRAWS):
            sketch = self.read(noisy=True, random=random)
            projected = sketch.projected
            ratios.append(sketch.noise_ratio)
            for name, moments in own.items():
                found[name].append(gaussian_frechet(*moments, sketch.mean, projected))
        return {
            "way": self.way.name,
            "count": round(self.count),
            "users": self.users,
            "multipliers": [float(multiplier) for multiplier in self.multipliers],
            "noise_ratio": float(np.mean(ratios)),
            "exact": {name: self.exact.frechet(rows) for name, rows in sets.items()},
            "draws": found,
        }


def mixture(near: Matrix, far: Matrix, share: int, size: int) -> Matrix:
    """So many rows, a share of them near."""
    kept = round(size * share / 100)
    return np.concatenate((near[:kept], far[: size - kept]))


def distances(work: Path, parts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """F1, the distances of F2, and F3."""
    groups = {group: load(work, f"public-{group}").embeddings for group in GROUPS}
    public = np.concatenate([rows[:400] for rows in groups.values()])
    for part in parts:
        users, near = load(work, f"{part}-users"), load(work, f"{part}-near").embeddings
        for way in BY_USER:
            asked = Asked(way, users.embeddings, users.owners, public, delta=1e-6)
            yield {"order": "F1", "part": part, **asked.draws(groups, seed=1)}
            mixed = {str(y): mixture(near, groups[FAR], y, MIXED) for y in SHARES}
            yield {"order": "F2", "part": part, **asked.draws(mixed, seed=2)}
        size = len(near)
        for way in BY_RECORD:
            chosen = slice(0, RECORDS)
            asked = Asked(way, users.embeddings[chosen], users.owners[chosen], public, delta=2e-6)
            mixed = {str(y): mixture(near, groups[FAR], y, size) for y in (99, 100)}
            yield {"order": "F3", "part": part, **asked.draws(mixed, seed=3)}


def standard_error(values: Sequence[float]) -> float:
    """Of their mean."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def show(work: Path) -> None:
    """Print what the files say, order by order."""
    files = [work / f"distances-{part}.jsonl" for part in PARTS]
    rows = [
        json.loads(line)
        for file in files
        if file.exists()
        for line in file.read_text().splitlines()
    ]
    print("F1: draws of 20 in which the nearer of two corpora comes first, over all ten pairs")
    for row in (row for row in rows if row["order"] == "F1"):
        counts, exact = [], row["exact"]
        for pair in itertools.combinations(exact, 2):
            near, far = sorted(pair, key=lambda name: exact[name])
            won = np.array(row["draws"][near]) < np.array(row["draws"][far])
            counts.append((int(won.sum()), near, far, exact[far] / exact[near]))
        order = " < ".join(sorted(exact, key=lambda name: exact[name]))
        least = min(counts)
        print(
            f"  {row['part']}, {row['way']}, {row['users']:,} users, noise ratio "
            f"{row['noise_ratio']:.2f}: least {least[0]} ({least[1]} before {least[2]}, "
            f"{least[3]:.3f} times as far), {sum(one[0] >= 19 for one in counts)} of 10 pairs "
            f"in at least 19; exact order {order}"
        )
    for name in ("F2", "F3"):
        print(f"{name}: FreD by Y: exact; private, mean ± standard error over 20 draws, range")
        for row in (row for row in rows if row["order"] == name):
            print(f"  {row['part']}, {row['way']}, noise ratio {row['noise_ratio']:.2f}")
            for y, drawn in row["draws"].items():
                print(
                    f"    {y:>3} %: {row['exact'][y]:.5f}; {np.mean(drawn):.5f} ± "
                    f"{standard_error(drawn):.5f} [{min(drawn):.5f}, {max(drawn):.5f}]"
                )
            print(f"    {_said(name, row)}")
    from scripts.experiments.fred_downstream import show_downstream

    show_downstream(work)


def _said(order: str, row: dict[str, Any]) -> str:
    drawn = np.array([row["draws"][y] for y in row["draws"]])  # (Y, draws)
    falls = (np.diff(drawn, axis=0) < 0).all(axis=0)
    if order == "F2":
        each = [int(count) for count in (np.diff(drawn, axis=0) < 0).sum(axis=1)]
        return (
            f"falls at every step in {int(falls.sum())} of {drawn.shape[1]} draws; by step {each}"
        )
    blocks = drawn.reshape(2, -1, 5)
    apart = int((blocks[0].min(axis=1) > blocks[1].max(axis=1)).sum())
    return (
        f"{apart} of {blocks.shape[1]} times five draws do not overlap; all twenty "
        f"{'do not' if drawn[0].min() > drawn[1].max() else 'do'}; 100 % is nearer in the same "
        f"draw in {int(falls.sum())}"
    )


def main() -> None:
    """Run a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("distances", "downstream", "show"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--seeds", type=int, default=2, help="of the trainings downstream")
    parser.add_argument(
        "--on-nodes", nargs="*", type=int, default=list(SHARES), help="shares trained there as well"
    )
    arguments = parser.parse_args()
    if arguments.step == "show":
        show(arguments.work)
        return
    if arguments.step == "downstream":
        from scripts.experiments.fred_downstream import downstream

        downstream(
            arguments.work, arguments.parts, seeds=arguments.seeds, on_nodes=arguments.on_nodes
        )
        return
    for part in arguments.parts:
        found = []
        for row in distances(arguments.work, [part]):
            found.append(json.dumps(row) + "\n")
            print(row["order"], part, row["way"], flush=True)
        (arguments.work / f"distances-{part}.jsonl").write_text("".join(found), encoding="utf-8")


if __name__ == "__main__":
    main()
