"""What an adversary can do with the digits of a release who knows how its noise is made.

The noise of a float generator takes few of the values that it could take. Who knows the generator
asks of a hypothesis about the sum: is the noise that it leaves over one that the generator can
make? An attack is sound when it never says no to the truth; a sound attack that says no to a
falsehood has read it off the digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flower_privsyn.privacy.mechanisms import GRID

Pair = tuple[np.ndarray, np.ndarray]

#: How far the 53-bit numbers behind a pair of draws may lie from what is computed back.
_WINDOW = 10


def box_muller(radius_bits: np.ndarray, angle_bits: np.ndarray) -> Pair:
    """Two normal variates each from two numbers of 53 bits."""
    radius = np.sqrt(-2.0 * np.log((radius_bits + 1.0) * 2.0**-53))
    angle = (2.0 * np.pi * 2.0**-53) * angle_bits
    return radius * np.cos(angle), radius * np.sin(angle)


def _added(total: np.ndarray, noise: np.ndarray) -> np.ndarray:
    return total + noise


def _added_on_the_grid(total: np.ndarray, noise: np.ndarray) -> np.ndarray:
    return total + np.rint(noise / GRID) * GRID


@dataclass(frozen=True)
class Attack:
    """One guess about how noise is made.

    Attributes:
        name: of the guess.
        possible: from released pairs, the sums a hypothesis gives them and the noise's standard
            deviation to (n,) whether the pair can be what the guess makes of these sums.
    """

    name: str
    possible: Callable[[Pair, Pair, float], np.ndarray]


def _by_box_muller(add: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Attack:
    def possible(released: Pair, sums: Pair, std: float) -> np.ndarray:
        noise = [(seen - total) / std for seen, total in zip(released, sums, strict=True)]
        radius = np.rint(np.exp(-0.5 * (noise[0] ** 2 + noise[1] ** 2)) * 2.0**53) - 1.0
        turn = np.arctan2(noise[1], noise[0]) / (2.0 * np.pi)
        angle = np.rint(np.where(turn < 0, turn + 1.0, turn) * 2.0**53)
        # Near zero the angle has too few digits to be computed back: no answer.
        found = noise[0] ** 2 + noise[1] ** 2 < 0.02
        for near in range(-_WINDOW, _WINDOW + 1):
            for around in range(-_WINDOW, _WINDOW + 1):
                left = np.flatnonzero(~found)
                if not len(left):
                    return found
                draws = box_muller(
                    np.clip(radius[left] + near, 0.0, 2.0**53 - 1.0), angle[left] + around
                )
                found[left] = np.all(
                    [
                        add(total[left], std * draw) == seen[left]
                        for seen, total, draw in zip(released, sums, draws, strict=True)
                    ],
                    axis=0,
                )
        return found

    return Attack(f"Box-Muller, {add.__name__.strip('_').replace('_', ' ')}", possible)


def _on_the_grid(released: Pair, sums: Pair, std: float) -> np.ndarray:
    """Whole steps away from the sum, and no farther than noise goes."""
    steps = [(seen - total) / GRID for seen, total in zip(released, sums, strict=True)]
    whole = np.all([step == np.rint(step) for step in steps], axis=0)
    return np.asarray(whole & np.all([np.abs(step) * GRID <= 14.0 * std for step in steps], axis=0))


#: What the adversary tries.
ATTACKS = (
    Attack("the grid", _on_the_grid),
    _by_box_muller(_added),
    _by_box_muller(_added_on_the_grid),
)


def sound(attack: Attack, released: Pair, truth: Pair, std: float) -> bool:
    """Whether an attack lets the truth stand in every release."""
    for trials in (200, len(released[0])):  # most guesses fail early
        first = (released[0][:trials], released[1][:trials])
        sums = (truth[0][:trials], truth[1][:trials])
        if not attack.possible(first, sums, std).all():
            return False
    return True


def refuted(released: Pair, truth: Pair, hypothesis: Pair, std: float) -> int:
    """How many releases tell that a hypothesis is false, by the best sound attack.

    A guess about rounded floats that is not how the noise is made refutes whatever it is asked
    about once in some 10^5 releases, and may let the truth stand by luck: so few do not count.
    """
    most = 0
    for attack in ATTACKS:
        if sound(attack, released, truth, std):
            found = int((~attack.possible(released, hypothesis, std)).sum())
            most = max(most, found if attack.name == "the grid" or found > 10 else 0)
    return most
