"""Noise in the model at equal privacy, by correlation; and how fast correlated noise is made.

    python -m benchmarks.correlated_noise [--epsilon 1 7] [--delta 3e-6] [--parameters 1000000]

The first table is exact, no simulation: the root mean square over rounds of the standard deviation
of the noise in the running total, in clip norms, each correlation at the noise multiplier that the
epsilon asks for. "Poisson" is independent noise with amplification by sampling at the rate 1 / b,
which holds only towards those who do not know who took part. The second table times the stream.
Bands end at 400.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence

import numpy as np

from benchmarks import Ratio
from flower_privsyn.privacy import (
    BandedToeplitz,
    BufferedLinearToeplitz,
    CorrelatedNoise,
    Correlation,
    Factorisation,
    FullParticipation,
    Participation,
    PoissonSampling,
    SecureRandom,
    TreeAggregation,
    calibrate_noise_multiplier,
)
from flower_privsyn.privacy.grid import STEPS

#: Rounds and b, the rounds from one participation of a user to the next.
PLANS = ((20, 1), (20, 2), (20, 10), (20, 20), (100, 10), (100, 100), (1600, 1600))


def candidates(rounds: int, gap: int) -> dict[str, Factorisation]:
    """The correlations of a plan, by name."""
    participation = Participation(rounds=rounds, min_separation=gap)
    return {
        "independent": BandedToeplitz(rounds=rounds, coefficients=(1.0,)),
        "tree": TreeAggregation(rounds=rounds, restart_every=gap),
        "banded": BandedToeplitz.optimal(rounds=rounds, bands=min(gap, 400)),
        "BLT": BufferedLinearToeplitz.optimal(participation),
    }


def at_equal_privacy(epsilon: float, delta: float) -> None:
    """Print the noise of all plans."""
    whole = calibrate_noise_multiplier(
        epsilon=epsilon, delta=delta, rounds=1, sampling=FullParticipation()
    )
    print(f"\nepsilon {epsilon:g}, delta {delta:g}\n")
    names = list(candidates(2, 2))
    print(f"| T | b | {' | '.join(names)} (buffers) | Poisson | banded, BLT below tree |")
    print("|---|---|" + "---|" * (len(names) + 2))
    for rounds, gap in PLANS:
        participation = Participation(rounds=rounds, min_separation=gap)
        found = candidates(rounds, gap)
        noise = {
            name: one.prefix_rmse * one.sensitivity(participation) * whole
            for name, one in found.items()
        }
        poisson = calibrate_noise_multiplier(
            epsilon=epsilon,
            delta=delta,
            rounds=rounds,
            sampling=PoissonSampling(1.0 / gap) if gap > 1 else FullParticipation(),
        ) * math.sqrt((rounds + 1) / 2)
        cells = [f"{noise[name]:.3g}" for name in names]
        cells[-1] += f" ({found['BLT'].buffers})"
        gain = ", ".join(f"{1 - noise[name] / noise['tree']:.0%}" for name in ("banded", "BLT"))
        print(f"| {rounds} | {gap} | {' | '.join(cells)} | {poisson:.3g} | {gain} |")


def speed(parameters: int) -> list[Ratio]:
    """Print what a round's noise costs, beside drawing it."""
    rounds, gap = 100, 10
    participation = Participation(rounds=rounds, min_separation=gap)
    print(f"\n{parameters:,} parameters, T = {rounds}, b = {gap}\n")
    print("| correlation | vectors kept | MB kept | CPU-seconds a round | of which drawing |")
    print("|---|---|---|---|---|")
    random = SecureRandom()
    start = time.process_time()
    random.rounded_normal(STEPS, parameters)
    drawing = time.process_time() - start
    ratios = []
    for name, one in candidates(rounds, gap).items():
        noise = CorrelatedNoise(Correlation.create(one, participation), random=random)
        noise.prepare(1, parameters)
        seconds = []
        for number in range(2, 10):
            start = time.process_time()
            noise.prepare(number, parameters)
            noise.rounded_normal(STEPS, parameters)
            seconds.append(time.process_time() - start)
        print(
            f"| {name} | {one.buffers} | {one.buffers * parameters * 8 / 1e6:.0f} | "
            f"{np.median(seconds):.3f} | {drawing:.3f} |"
        )
        part = f"a round's noise, {name}, {parameters:,} parameters"
        ratios.append(
            Ratio(part, "drawing it", "floor", float(np.median(seconds)), drawing, "CPU s")
        )
    return ratios


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, nargs="*", default=[1.0, 7.0])
    parser.add_argument("--delta", type=float, default=3e-6)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    chosen = parser.parse_args(given)
    for epsilon in chosen.epsilon:
        at_equal_privacy(epsilon, chosen.delta)
    return speed(chosen.parameters)


if __name__ == "__main__":
    main()
