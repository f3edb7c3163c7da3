"""A bias of a language model's logits, by the next token and by the token before it, in NumPy.

What a release of token counts says about private text can be put into a model without training it:
the log-ratio of how often a token is written there and in public text is added to its logit.
`flower_privsyn.models.biased` holds a model with such a bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import ConfigError

Float32Array = npt.NDArray[np.float32]

#: Names of the arrays of a bias in a broadcast: all but the first together, or none of them.
BIAS_ARRAYS: Final = ("token_bias", "bigram_starts", "bigram_tokens", "bigram_values")


@dataclass(frozen=True, kw_only=True, eq=False)
class Bigrams:
    """Values of some pairs of tokens, in the order of the first one (compressed sparse rows).

    Attributes:
        starts: (V + 1,) int64; the pairs that begin with token t are `starts[t]:starts[t + 1]`.
        tokens: (n,) int32, the second token of each pair.
        values: (n,) float32, finite.
    """

    starts: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int32]
    values: Float32Array

    def __post_init__(self) -> None:
        """Check that they are rows of different pairs, each in its order."""
        if not self._is_table():
            raise ConfigError("bigrams must be finite values of rows of tokens, each row ascending")

    def _is_table(self) -> bool:
        starts, tokens, values = self.starts, self.tokens, self.values
        kinds = [str(array.dtype) for array in (starts, tokens, values)]
        if not (
            kinds == ["int64", "int32", "float32"]
            and starts.ndim == tokens.ndim == values.ndim == 1
            and len(starts)
            and len(tokens) == len(values)
        ):
            return False
        # In bounds first: a difference of numbers from anywhere may wrap around.
        rows, inside = len(starts) - 1, 0 <= starts.min() <= starts.max() <= len(tokens)
        if not inside or starts[0] != 0 or starts[-1] != len(tokens):
            return False
        counts = np.diff(starts)
        if (counts < 0).any() or not np.isfinite(values).all():
            return False
        if not len(tokens):
            return True
        if not 0 <= tokens.min() <= tokens.max() < rows:
            return False
        # A pair that came twice would be added in no order, and many of one token take time that
        # tells who wrote it.
        keys = np.repeat(np.arange(rows), counts) * rows + tokens
        return bool((np.diff(keys) > 0).all())

    @classmethod
    def of_pairs(
        cls,
        first: npt.ArrayLike,
        second: npt.ArrayLike,
        values: npt.ArrayLike,
        *,
        vocabulary: int,
    ) -> Self:
        """Put pairs into order.

        Args:
            first: (n,) the token before.
            second: (n,) the token after it; no pair twice.
            values: (n,) finite numbers.
            vocabulary: number of tokens.

        Raises:
            ConfigError: A pair is given twice, a value not finite, or a token below zero.
        """
        before, after = (np.asarray(part, dtype=np.int64) for part in (first, second))
        order = np.lexsort((after, before))
        before, after = before[order], after[order]
        counts = np.bincount(before, minlength=vocabulary)
        return cls(
            starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            tokens=after.astype(np.int32),
            values=np.asarray(values, dtype=np.float32)[order],
        )

    def without_first(self, token: int) -> Bigrams:
        """The pairs that do not begin with a token."""
        kept = np.ones(len(self.tokens), dtype=np.bool_)
        kept[self.starts[token] : self.starts[token + 1]] = False
        starts = self.starts.copy()
        starts[token + 1 :] -= starts[token + 1] - starts[token]
        return Bigrams(starts=starts, tokens=self.tokens[kept], values=self.values[kept])


@dataclass(frozen=True, kw_only=True, eq=False)
class LogitBias:
    """What is added to a model's logits: at every position a number for each possible next token.

    Attributes:
        tokens: (V,) float32, added wherever the token may come next.
        bigrams: added to that where the token before is the pair's first; None for none.

    Raises:
        ConfigError: A shape is wrong or a number not finite.
    """

    tokens: Float32Array
    bigrams: Bigrams | None = None

    def __post_init__(self) -> None:
        """Check the shapes."""
        if self.tokens.ndim != 1 or not np.isfinite(self.tokens).all():
            raise ConfigError(
                f"a bias of tokens must be one finite number each, got shape {self.tokens.shape}"
            )
        if self.bigrams is not None and len(self.bigrams.starts) != len(self.tokens) + 1:
            raise ConfigError(
                f"the bias of tokens is of {len(self.tokens)} and that of bigrams of "
                f"{len(self.bigrams.starts) - 1} tokens"
            )

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The bias as a broadcast has it: arrays by the names `BIAS_ARRAYS`."""
        every: list[npt.NDArray[Any]] = [self.tokens]
        if (pairs := self.bigrams) is not None:
            every += [pairs.starts, pairs.tokens, pairs.values]
        return dict(zip(BIAS_ARRAYS, every, strict=False))

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self | None:
        """Read the bias out of a broadcast; None where there is none.

        Raises:
            ConfigError: some of its arrays are missing, or they are no bias.
        """
        tokens, *pairs = (arrays.get(name) for name in BIAS_ARRAYS)
        there = [one for one in pairs if one is not None]
        if tokens is None and not there:
            return None
        if tokens is None or tokens.dtype != np.float32 or len(there) not in (0, len(pairs)):
            raise ConfigError(
                f"a bias is {BIAS_ARRAYS[0]} of float32, and {', '.join(BIAS_ARRAYS[1:])} or none "
                "of them"
            )
        if not there:
            return cls(tokens=tokens)
        starts, seconds, values = there
        return cls(tokens=tokens, bigrams=Bigrams(starts=starts, tokens=seconds, values=values))

    def scaled(self, weight: float) -> LogitBias:
        """The bias times a weight; pairs that would add nothing are left out.

        Args:
            weight: of all of it; 0 leaves the pairs out.
        """
        pairs = self.bigrams if weight else None
        if pairs is not None:
            pairs = replace(pairs, values=pairs.values * np.float32(weight))
        return LogitBias(tokens=self.tokens * np.float32(weight), bigrams=pairs)

    def for_model(self, size: int, *, first_token: int) -> LogitBias:
        """The bias for a model's output, which may have more rows than there are tokens.

        Args:
            size: rows of the output, at least the tokens here; rows of no token get 0.
            first_token: what stands before a text: nothing is known of what follows it but the
                frequencies of tokens, so pairs that begin with it are left out.

        Raises:
            ConfigError: The output has fewer rows.
        """
        missing = size - len(self.tokens)
        if missing < 0:
            raise ConfigError(
                f"the bias is of {len(self.tokens)} tokens, more than the {size} of the model"
            )
        pairs = self.bigrams
        if pairs is not None:
            starts = np.pad(pairs.starts, (0, missing), mode="edge")
            pairs = replace(pairs, starts=starts).without_first(first_token)
        return LogitBias(tokens=np.pad(self.tokens, (0, missing)), bigrams=pairs)
