"""A bias of a language model's logits, by the next token and by the token before it, in NumPy.

What a release of token counts says about private text can be put into a model without training it:
the log-ratio of how often a token is written there and in public text is added to its logit.
`flower_privsyn.models.biased` holds a model with such a bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import ConfigError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Float32Array = npt.NDArray[np.float32]

#: Names of the arrays of a bias in a broadcast: all but the first together, or none of them.
BIAS_ARRAYS: Final = ("token_bias", "bigram_starts", "bigram_tokens", "bigram_values")

_TYPES: Final = ("float32", "int64", "int32", "float32")


def bigram_table(
    first: npt.ArrayLike, second: npt.ArrayLike, values: npt.ArrayLike, *, vocabulary: int
) -> csr_array:
    """Values of some pairs of tokens as a table.

    Args:
        first: (n,) the token before.
        second: (n,) the token after it; no pair twice.
        values: (n,) finite numbers.
        vocabulary: V, number of tokens.

    Returns:
        (V, V) float32, a row for each token before.
    """
    from scipy.sparse import csr_array

    numbers = np.asarray(values, dtype=np.float32)
    return csr_array((numbers, (first, second)), shape=(vocabulary, vocabulary))


@dataclass(frozen=True, kw_only=True, eq=False)
class LogitBias:
    """What is added to a model's logits: at every position a number for each possible next token.

    Attributes:
        tokens: (V,) float32, added wherever the token may come next.
        bigrams: (V, V) float32, added to that after the token of the row; None for none.

    Raises:
        ConfigError: A shape is wrong or a number not finite.
    """

    tokens: Float32Array
    bigrams: csr_array | None = None

    def __post_init__(self) -> None:
        """Check the shapes."""
        if self.tokens.ndim != 1 or not np.isfinite(self.tokens).all():
            raise ConfigError(
                f"a bias of tokens must be one finite number each, got shape {self.tokens.shape}"
            )
        if self.bigrams is not None and not np.isfinite(self.bigrams.data).all():
            raise ConfigError("a bias of bigrams must be finite")

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The bias as a broadcast has it: arrays by the names `BIAS_ARRAYS`.

        The pairs that begin with token t are `bigram_starts[t]:bigram_starts[t + 1]`, by their
        second tokens in order.
        """
        every: list[npt.NDArray[Any]] = [self.tokens]
        if (pairs := self.bigrams) is not None:
            every += [pairs.indptr, pairs.indices, pairs.data]
        return {
            name: array.astype(kind, copy=False)
            for name, kind, array in zip(BIAS_ARRAYS, _TYPES, every, strict=False)
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self | None:
        """Read the bias out of a broadcast; None where there is none.

        Raises:
            ConfigError: some of its arrays are missing, or they are no bias.
        """
        from scipy.sparse import csr_array

        given = [arrays[name] for name in BIAS_ARRAYS if name in arrays]
        if not given:
            return None
        kinds = tuple(str(array.dtype) for array in given)
        if BIAS_ARRAYS[0] not in arrays or kinds not in (_TYPES[:1], _TYPES):
            raise ConfigError(
                f"a bias is {BIAS_ARRAYS[0]} of float32, and {', '.join(BIAS_ARRAYS[1:])} or none "
                "of them"
            )
        tokens, *pairs = given
        if not pairs:
            return cls(tokens=tokens)
        starts, seconds, values = pairs
        try:
            table = csr_array((values, seconds, starts), shape=(len(tokens), len(tokens)))
            table.check_format(full_check=True)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"a bias of bigrams must be rows of tokens ({error})") from None
        # A pair that came twice would be added in no order.
        if not table.has_canonical_format or len(table.data) != len(values):
            raise ConfigError("a bias of bigrams must be rows of tokens, each row ascending")
        return cls(tokens=tokens, bigrams=table)

    def scaled(self, weight: float) -> LogitBias:
        """The bias times a weight; pairs that would add nothing are left out.

        Args:
            weight: of all of it; 0 leaves the pairs out.
        """
        pairs = None if self.bigrams is None or not weight else self.bigrams * np.float32(weight)
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
            every = pairs.tocoo()
            kept = every.row != first_token
            pairs = bigram_table(
                every.row[kept], every.col[kept], every.data[kept], vocabulary=size
            )
        return LogitBias(tokens=np.pad(self.tokens, (0, missing)), bigrams=pairs)
