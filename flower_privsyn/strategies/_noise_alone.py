"""What the noise of all rounds does to a model by itself, and the step that follows from it.

Tried on public text before anybody is asked: whoever trains under noise that destroys the model
learns it from here, and not after the budget is spent.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from flower_privsyn.data.public_corpus import PublicCorpus
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import Phase, Plan
from flower_privsyn.privacy.factorisation import Memory
from flower_privsyn.queries import ModelDelta
from flower_privsyn.run.method import Diagnostic
from flower_privsyn.run.plan import NoiseAgainstUsers
from flower_privsyn.run.settings import PrivateSumConfig

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

#: Steps left to the noise that are worth a word.
_SHORT: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class NoiseAlone:
    """What the noise of all rounds does to the model where no user says anything.

    Where the clip norm adapts, or public text teaches the model before or between rounds, it is the
    noise at the first clip norm, on the model of the first round.

    Attributes:
        model: that the rounds begin with.
        rows: public text, in its tokens.
        spread: standard deviation of what server steps of length 1 add to each trained parameter,
            > 0.
        adapts: whether the clip norm may grow.
        accepted: whether the run goes on whatever the noise takes.
    """

    model: LocalModel
    rows: list[list[int]]
    spread: float
    adapts: bool
    accepted: bool

    @classmethod
    def of(
        cls,
        model: LocalModel,
        plan: Plan,
        settings: PrivateSumConfig,
        momentum_after: Callable[[int], float],
    ) -> Self | None:
        """That of a plan; None where it has no noise, or the model makes nothing of the text.

        Args:
            model: that the rounds begin with.
            plan: settled.
            settings: of the run.
            momentum_after: what is kept of the momentum after a round, by its number from 1.
        """
        variance, adapts = 0.0, False
        for phase in plan.phases:
            for query in phase.asks:
                if isinstance(query, ModelDelta) and phase.noise_multiplier:
                    signal = NoiseAgainstUsers.of(phase, settings).signal
                    deviation = query.clip_norm * query.unit / signal
                    variance += (deviation * _spread(phase, momentum_after)) ** 2
                    adapts = bool(query.bit_share)
        rows = [row[: settings.max_tokens + 1] for row in model.encode(_public_documents())]
        rows = [row for row in rows if len(row) > 1]
        if not (variance and rows):
            return None
        spread, accepted = math.sqrt(variance), settings.accept_noise
        return cls(model=model, rows=rows, spread=spread, adapts=adapts, accepted=accepted)

    def lost(self, step: float) -> float:
        """Nats a token of public text that the noise takes from the model, on average over draws.

        No number where it is none.

        Args:
            step: of the server's optimiser, along the momentum.
        """
        # Noise that nobody will ever add to a release: any generator will do.
        random, after, start = np.random.default_rng(0), 0.0, self.model.parameters
        for _ in range(_DRAWS):
            shift = random.standard_normal(self.model.dimension, dtype=np.float32)
            shift *= np.float32(step * self.spread)
            after += self.model.loss(self.rows, parameters=shift + start) / _DRAWS
        return after - self.model.loss(self.rows)

    def diagnostic(self, step: float, *, chosen: bool, spent: str) -> Diagnostic:
        """What the noise takes from the model, in a sentence.

        Args:
            step: of the server's optimiser, at the first clip norm.
            chosen: whether the noise chose the step.
            spent: what was spent so far, for the refusal.

        Raises:
            ConfigError: no model recovers from as much, and the settings do not accept it.
        """
        lost = self.lost(step)
        said = (
            "noise alone: without a word of any user, that of all rounds would take "
            f"{lost:.2f} nats a token of public text from the model, at server-learning-rate = "
            f"{step:.2g}"
        )
        if not (lost <= MOST_LOST or self.accepted):  # so where it is no number
            raise ConfigError(
                f"{said}, and no model that lost more than {MOST_LOST:g} was seen to recover: take "
                "more users, a larger epsilon or fewer rounds, train fewer parameters "
                "(trainable), lower clip-norm, leave the step to the noise (server-learning-rate = "
                "-1 in a run configuration, None in Python), or set accept-noise = true to run all "
                f"the same; {spent}"
            )
        if not chosen:
            return Diagnostic(topic="noise", sentence=said)
        said += ", and shorter as the clip norm grows" if self.adapts else ""
        if short := step < _SHORT:
            said += "; with steps as short as that little of what users say is learnt"
        return Diagnostic(topic="noise", level="warning" if short else "fine", sentence=said)

    def longest_step(self) -> float:
        """The longest step at which little is lost, or the shortest: more noise takes more.

        Those that are tried are shorter by the root of two each.
        """
        longest = LONGEST if self.adapts else 1.0
        count = round(2 * math.log2(longest / _SHORTEST))
        steps: list[float] = [longest * 2.0 ** (-k / 2) for k in range(count + 1)]
        little = bisect.bisect_left(
            steps, True, hi=count, key=lambda step: self.lost(step) <= LOST_BY_CHOICE
        )
        return steps[little]


@functools.cache
def _public_documents() -> tuple[str, ...]:
    """Bundled documents from all over the file, which has one kind after the other."""
    documents = list(PublicCorpus.find("bundled", setting="public-text").documents())
    return tuple(documents[:: len(documents) // _DOCUMENTS][:_DOCUMENTS])


def _spread(phase: Phase, momentum_after: Callable[[int], float]) -> float:
    """Of the sum of all steps of length 1, over that of a round's innovations."""
    random = np.random.default_rng(1)
    memory: Memory = {}
    velocity, moved = np.zeros(_NUMBERS), np.zeros(_NUMBERS)
    for number in range(1, phase.rounds + 1):
        noise = random.standard_normal(_NUMBERS)
        if phase.factorisation is not None:
            noise = phase.factorisation.next_noise(noise, memory)
        velocity += noise
        moved += velocity
        velocity *= momentum_after(number)
    return float(np.sqrt(np.mean(moved**2)))
