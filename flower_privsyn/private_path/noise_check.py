"""The noise of a round set against the users there are, before the first of them is asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flower_privsyn.errors import ConfigError
from flower_privsyn.queries import Query

#: How many standard deviations of the noise the sum of a round must be able to reach.
LEAST_SIGNAL = 10.0


@dataclass(frozen=True, kw_only=True)
class NoiseAgainstUsers:
    """What a round's noise leaves of what its users say.

    Attributes:
        users: users expected in a round, > 0.
        noise_multiplier: standard deviation of a round's noise over the clip norm, >= 0.
    """

    users: float
    noise_multiplier: float

    @property
    def signal(self) -> float:
        """How far the sum moves when all users agree, in standard deviations of the noise.

        Each user moves it by the clip norm at most, so it is users over noise multiplier. It does
        not depend on the text: fewer than a handful of standard deviations cannot be told from
        nothing whatever was written, and even ten leave a tenth of the users who agree unseen.
        """
        return math.inf if self.noise_multiplier == 0 else self.users / self.noise_multiplier

    def describe(self, queries: Sequence[Query]) -> str:
        """One sentence for the person who started the run.

        Args:
            queries: what the run asks.
        """
        asked = "; then ".join(query.noise_in_words(self.noise_multiplier) for query in queries)
        return (
            f"noise against users: {asked}. {_count(self.users)} answer a round: if all of them "
            f"agreed, their sum would be {self.signal:.3g} standard deviations of the noise"
        )

    def refuse(self, queries: Sequence[Query], *, spent: str = "nothing was spent") -> None:
        """Stop a run whose releases would be noise.

        Args:
            queries: what the run asks.
            spent: words for what the run has cost.

        Raises:
            ConfigError: `signal` is below `LEAST_SIGNAL`.
        """
        if self.signal < LEAST_SIGNAL:
            raise ConfigError(
                f"{self.describe(queries)}, and below {LEAST_SIGNAL:g} the result is noise "
                "whatever they wrote: take more users, a larger epsilon or fewer rounds, or set "
                f"accept-noise = true to run all the same; {spent}"
            )


def _count(users: float) -> str:
    if users == 1:
        return "1 user is to"
    return f"{users:,.0f} users" if users == int(users) else f"About {users:,.3g} users"
