"""What the noise of a run alone would make of the model that it trains.

Noise reaches every trained parameter in every round, and adds up along directions that no text asks
for. How much of it a model bears is no matter of privacy, and neither epsilon nor the number of
users tells: it depends on the model, on what of it is trained, and on the server's steps. But the
server can try. All its steps are linear, so the noise of all rounds is one Gaussian shift of the
parameters; it is drawn here for show, and the model reads public text with it and without it.
Nobody is asked, and nothing is spent. In the same way it finds how long its steps may be.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from flower_privsyn.data.public_corpus import PublicCorpus
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import Phase, Plan
from flower_privsyn.private_path.noise_check import NoiseAgainstUsers
from flower_privsyn.private_path.settings import PrivateSumConfig
from flower_privsyn.queries import ModelDelta

if TYPE_CHECKING:
    from flower_privsyn.training.local import LocalModel

#: Nats a token by which noise alone may set the model back. Models that it set back by 0.15 ended
#: above the public one, by 0.4 above it in bits and below it in accuracy, by 1.0 below it in both
#: (docs/dp_ftrl.md).
MOST_LOST: Final = 0.5
#: The same where the step is chosen by it: a longer one costs more than it gains, a shorter one
#: gains less than it saves (docs/dp_ftrl.md).
LOST_BY_CHOICE: Final = 0.04

#: Public documents that the model reads, from the beginning of each. Four times as many changed
#: what it lost by a tenth; another draw of the noise changed it by up to a factor of two.
_DOCUMENTS: Final = 16
#: Draws of the noise that the model reads them with.
_DRAWS: Final = 4
#: Numbers that stand for all parameters where the spread of the noise is found: to about 1 %.
_NUMBERS: Final = 4096
#: The shortest step that is tried.
_SHORTEST: Final = 2.0**-10
#: The longest, where the clip norm may grow: so many times, and no step need be cut.
LONGEST: Final = 32.0


@dataclass(frozen=True, kw_only=True)
class NoiseAlone:
    """What the noise of all rounds does to the model where no user says anything.

    Attributes:
        learning_rate: of the server's optimiser, its step along the momentum.
        spread: standard deviation of what it adds to each trained parameter, >= 0.
        before: cross-entropy of the model on public text, in nats a token.
        after: the same with the noise of all rounds in its parameters, on average over draws of it.
    """

    learning_rate: float
    spread: float
    before: float
    after: float

    def describe(self) -> str:
        """One sentence for the person who started the run."""
        return (
            "noise alone: without a word of any user, that of all rounds would take the model from "
            f"{self.before:.2f} to {self.after:.2f} nats a token of public text, at "
            f"server-learning-rate = {self.learning_rate:.2g}"
        )

    @property
    def lost(self) -> float:
        """Nats a token that the noise takes from the model; no number where it is none."""
        return self.after - self.before

    def refuse(self, *, chosen: bool, spent: str) -> None:
        """Stop a run that would destroy its model.

        Args:
            chosen: whether the step was left to the noise.
            spent: words for what the run has cost.

        Raises:
            ConfigError: the noise takes more than `MOST_LOST` from it.
        """
        if self.lost <= MOST_LOST:  # false as well where it is no number
            return
        shorter = (
            ""
            if chosen
            else ", leave the step to the noise (server-learning-rate = -1 in a run configuration, "
            "None in Python)"
        )
        raise ConfigError(
            f"{self.describe()}, and no model that lost more than {MOST_LOST:g} was seen to "
            "recover: take more users, a larger epsilon or fewer rounds, train fewer parameters "
            f"(trainable, lora-rank), lower clip-norm{shorter}, or set "
            f"accept-noise = true to run all the same; {spent}"
        )


def noise_alone(
    model: LocalModel,
    plan: Plan,
    settings: PrivateSumConfig,
    *,
    momentum: float,
    learning_rate: float | None,
    longest: float = 1.0,
    restarts: Collection[int] = (),
) -> NoiseAlone | None:
    """Try the noise of a plan on the model that it trains.

    Where the clip norm adapts, or public text teaches the model before or between rounds, it is the
    noise at the first clip norm, on the model of the first round.

    Args:
        model: that the rounds begin with.
        plan: settled.
        settings: of the run.
        momentum: of the server's optimiser; 0 is plain averaging.
        learning_rate: of the same, its step along the momentum; None for the longest at which the
            noise takes at most `LOST_BY_CHOICE`, of `longest` and shorter by the root of two each;
            the shortest, 0.001, where it takes more at all of them.
        longest: of the steps that are tried.
        restarts: rounds after which the momentum begins again, from 1.

    Returns:
        What becomes of it; None where a plan has no noise, or the model makes nothing of the text.
    """
    squares, behind = [], 0
    for phase in plan.phases:
        again = {number - behind for number in restarts}
        squares += [
            (_deviation(phase, query, settings) * _spread(phase, momentum, again)) ** 2
            for query in phase.asks
            if isinstance(query, ModelDelta) and phase.noise_multiplier
        ]
        behind += phase.rounds
    if not squares:
        return None
    rows = [row[: settings.max_tokens + 1] for row in model.encode(_public_documents())]
    rows = [row for row in rows if len(row) > 1]
    if not rows:
        return None
    spread, before, start = float(np.sqrt(sum(squares))), model.loss(rows), model.parameters

    def tried(step: float) -> NoiseAlone:
        # Noise that nobody will ever add to a release: any generator will do.
        random, after = np.random.default_rng(0), []
        for _ in range(_DRAWS):
            shift = random.standard_normal(model.dimension, dtype=np.float32)
            shift *= np.float32(step * spread)
            after.append(model.loss(rows, parameters=shift + start))
        return NoiseAlone(
            learning_rate=step, spread=step * spread, before=before, after=float(np.mean(after))
        )

    return _longest_step(tried, longest) if learning_rate is None else tried(learning_rate)


def _longest_step(tried: Callable[[float], NoiseAlone], longest: float) -> NoiseAlone:
    """The longest step at which the noise takes little, or the shortest: more noise takes more."""
    steps = [
        longest * 2.0 ** (-k / 2) for k in range(round(2 * math.log2(longest / _SHORTEST)) + 1)
    ]
    found = tried(steps[0])
    too_long, known = 0, len(steps) - 1
    if found.lost <= LOST_BY_CHOICE:
        return found
    found = tried(steps[known])
    while known - too_long > 1:
        middle = (too_long + known) // 2
        shorter = tried(steps[middle])
        if shorter.lost <= LOST_BY_CHOICE:
            known, found = middle, shorter
        else:
            too_long = middle
    return found


@functools.cache
def _public_documents() -> tuple[str, ...]:
    """Bundled documents from all over the file, which has one kind after the other."""
    documents = list(PublicCorpus.find("bundled", setting="public-text").documents())
    return tuple(documents[:: len(documents) // _DOCUMENTS][:_DOCUMENTS])


def _deviation(phase: Phase, query: ModelDelta, settings: PrivateSumConfig) -> float:
    """Of what a round's innovations add to each number of the average update."""
    against = NoiseAgainstUsers.of(phase, settings)
    return query.clip_norm * query.unit / against.signal


def _spread(phase: Phase, momentum: float, restarts: Collection[int]) -> float:
    """Of the sum of all steps of length 1, over that of a round's innovations."""
    random = np.random.default_rng(1)
    recurrence = None if phase.factorisation is None else phase.factorisation.recurrence()
    velocity, moved = np.zeros(_NUMBERS), np.zeros(_NUMBERS)
    for number in range(1, phase.rounds + 1):
        if recurrence is None:
            noise = random.standard_normal(_NUMBERS)
        else:
            noise = recurrence.next(lambda: random.standard_normal(_NUMBERS))
        velocity = momentum * velocity + noise
        moved += velocity
        if number in restarts:
            velocity = np.zeros(_NUMBERS)
    return float(np.sqrt(np.mean(moved**2)))
