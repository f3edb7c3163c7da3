"""Choosing a token by clipped logits: the exponential mechanism, exact in whole numbers.

Utpala, Hooker, Chen: "Locally Differentially Private Document Generation Using Zero Shot Prompting"
(DP-Prompt, Findings of EMNLP 2023), after Mattern et al. 2022 and McSherry and Talwar 2007.

The paper charges 2 (b2 - b1) / T for a token. That is the bound for an endless vocabulary; here the
largest ratio that V tokens can have is charged, computed from the very whole numbers that tokens
are drawn by, so that neither rounding nor small probabilities are left out of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import check_number
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy.randomness import RandomSource

#: Weight of a token whose logit is at the upper bound.
_LARGEST: Final = 2**40
#: So many tokens' weights add up below 2^64.
_MOST_TOKENS: Final = 2**23
#: Smallest weight: below, rounding to whole numbers would change what was asked for.
_LEAST: Final = 2**12


@dataclass(frozen=True, kw_only=True)
class TokenChoice:
    """Draws one of V tokens, likelier the larger its logit, by clipped logits over a temperature.

    Formal guarantee:
        Pure local differential privacy: whatever two vectors of logits are given, no token is more
        than exp(`epsilon`) times as likely under one as under the other. It is attained: by one
        token at the upper bound and all others at the lower one, and the reverse. The choice of n
        tokens, each by logits that may depend on the tokens before and on the document, costs
        n * `epsilon`; ending the text at a token is post-processing of them.

    Attributes:
        low: b1, logits below count as it.
        high: b2 > b1, logits above count as it.
        temperature: T > 0.
        vocabulary: V, 2 to 2^23: all tokens, none of which is ever left out.

    References:
        Utpala, Hooker, Chen 2023 (DP-Prompt), section 3.
    """

    low: float
    high: float
    temperature: float
    vocabulary: int

    def __post_init__(self) -> None:
        """Check every value."""
        for name in ("low", "high"):
            check_number(f"the {name}er logit bound", getattr(self, name))
        check_number("temperature", self.temperature, gt=0)
        if not self.low < self.high:
            raise ConfigError(
                f"the logit bounds must be increasing, got {self.low:g} and {self.high:g}"
            )
        if not 2 <= self.vocabulary <= _MOST_TOKENS:
            raise ConfigError(f"a vocabulary has 2 to 2^23 tokens, got {self.vocabulary}")
        if self._least < _LEAST:
            raise ConfigError(
                f"(b2 - b1) / T must be at most {math.log(_LARGEST / _LEAST):.4g}, got "
                f"({self.high:g} - {self.low:g}) / {self.temperature:g}: raise the temperature"
            )

    @property
    def _least(self) -> int:
        return math.floor(_LARGEST * math.exp((self.low - self.high) / self.temperature))

    @property
    def epsilon(self) -> float:
        """What one token costs: ln of the largest ratio of two probabilities of it."""
        least, most, others = self._least, _LARGEST, self.vocabulary - 1
        # most / (most + others * least) against least / (least + others * most).
        return math.log(most / least) + math.log((least + others * most) / (most + others * least))

    @classmethod
    def of_epsilon(cls, epsilon: float, *, low: float, high: float, vocabulary: int) -> Self:
        """The lowest temperature at which a token costs no more than epsilon.

        Args:
            epsilon: of one token, > 0.
            low: b1.
            high: b2.
            vocabulary: V.

        Raises:
            ConfigError: a value is out of range.
        """
        check_number("epsilon", epsilon, gt=0)
        width = high - low
        # By the bound for an endless vocabulary this is warm enough; a colder one may be as well.
        warm = max(2.0 * width / epsilon, width / math.log(_LARGEST / (2 * _LEAST)))
        cold = width / math.log(_LARGEST / (2 * _LEAST))
        found = cls(low=low, high=high, temperature=warm * (1 + 1e-6), vocabulary=vocabulary)
        for _ in range(60):
            middle = 0.5 * (cold + warm)
            tried = cls(low=low, high=high, temperature=middle, vocabulary=vocabulary)
            if tried.epsilon <= epsilon:
                found, warm = tried, middle
            else:
                cold = middle
        return found

    def weights(self, logits: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """Whole numbers that tokens are drawn in proportion to.

        Args:
            logits: (n, V), any real numbers; what is no number counts as the lower bound.

        Returns:
            (n, V), each between the weights of the two bounds, whatever the logits are.
        """
        clipped = np.clip(np.nan_to_num(logits, nan=self.low), self.low, self.high)
        scaled = np.exp((clipped.astype(np.float64) - self.high) / self.temperature) * _LARGEST
        whole = np.floor(scaled).astype(np.uint64)
        bounded: npt.NDArray[np.uint64] = np.clip(
            whole, np.uint64(self._least), np.uint64(_LARGEST)
        )
        return bounded

    def draw(self, logits: npt.NDArray[Any], *, random: RandomSource) -> npt.NDArray[np.int64]:
        """Draw a token for each row of logits.

        Args:
            logits: (n, V).
            random: of the owner of the text, fresh for every token.

        Returns:
            (n,) tokens in `range(V)`, with exactly the probabilities that `weights` say.
        """
        if logits.ndim != 2 or logits.shape[1] != self.vocabulary:
            raise ValueError(f"logits must be (n, {self.vocabulary}), got {logits.shape}")
        sums = np.cumsum(self.weights(logits), axis=1, dtype=np.uint64)
        totals = sums[:, -1]
        # The last incomplete turn of 2^64 would favour the first tokens: it is drawn again.
        turns = (np.uint64(2**64 - 1) // totals) * totals
        drawn = random.uint64(len(sums))
        while (again := drawn >= turns).any():
            drawn = np.where(again, random.uint64(len(sums)), drawn)
        places = drawn % totals
        return np.array(
            [
                np.searchsorted(row, place, side="right")
                for row, place in zip(sums, places, strict=True)
            ],
            dtype=np.int64,
        )
