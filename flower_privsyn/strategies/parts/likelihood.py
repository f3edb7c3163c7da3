"""Variations that stay as likely, under a public language model, as public text is.

Filling masks round after round leads away from anything a person would write. So a public model
says how likely the public text is, token by token, and a variation less likely than a quantile of
that is not kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Lt

from flower_privsyn.data.sentences import is_whole
from flower_privsyn.generation.streams import derive_seed
from flower_privsyn.generation.variation import vary

if TYPE_CHECKING:
    from flower_privsyn.generation import Variation

WholeSentences = Annotated[
    bool,
    "cut public text only where a sentence ends, keep variations of whole sentences whole, and "
    "end what is expanded with a sentence; PrE-Text does none of it.",
]
"""The setting `whole-sentences`."""

LikelihoodQuantile = Annotated[
    float,
    Ge(0),
    Lt(1),
    "a variation is kept only if its log-likelihood per token under `likelihood_model` is at "
    "least this quantile of the public text's. It is drawn three times; then the text it is "
    "made from stays. The first candidates are as likely, too. 0 keeps every variation, as in "
    "PrE-Text.",
]
"""The setting `likelihood-quantile`."""

LikelihoodModel = Annotated[str, "causal language model that judges so; a name or a path."]
"""The setting `likelihood-model`."""

Float64Array = npt.NDArray[np.float64]

#: How often a variation is drawn before the text it is made from stays.
_TRIES: Final = 3

#: Texts that a thread scores, and of them at a time: the logits of few stay in the cache.
_PIECE: Final = 64
_BATCH: Final = 8


class Likelihood:
    """Log-likelihood per token of texts under a causal language model.

    Args:
        model: a bundled short name, a folder, or a hub name.
        max_tokens: the model reads a text in windows of so many tokens.

    Raises:
        ModelError: the model cannot be found or is no causal language model.
    """

    def __init__(self, model: str | Path, *, max_tokens: int = 64) -> None:
        from flower_privsyn.models.pretrained import load_pretrained
        from flower_privsyn.models.threads import is_small

        self._network, self._tokenizer = load_pretrained(
            model, kind="causal", dtype="auto", device=None
        )
        self._is_small = is_small(self._network)
        self._max_tokens = max_tokens

    def per_token(
        self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
    ) -> Float64Array:
        """Mean log-probability of the tokens of each text, in nats.

        Args:
            texts: (n,).
            progress: called with the number of texts just done.

        Returns:
            (n,), at most 0; minus infinity for a text without tokens.
        """
        from flower_privsyn.models.threads import side_by_side

        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        batches = [order[start : start + _PIECE] for start in range(0, len(order), _PIECE)]
        result = np.full(len(texts), -np.inf)
        found = side_by_side(self._score, [[texts[index] for index in part] for part in batches])
        for places, values in zip(batches, found, strict=True):
            result[places] = values
            if progress is not None:
                progress(len(places))
        return result

    def _score(self, texts: list[str]) -> Float64Array:
        from flower_privsyn.evaluation.language_model import score_texts

        scores = score_texts(
            self._network,
            self._tokenizer,
            texts,
            max_tokens=self._max_tokens,
            batch_size=_BATCH,
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            means: Float64Array = np.where(scores.tokens > 0, -scores.nats / scores.tokens, -np.inf)
        return means


class LikelyVariation:
    """A variation that is drawn again while it is not likely enough, or no whole sentence.

    Args:
        variation: what draws.
        likelihood: the judge; None accepts every text.
        floor: log-likelihood per token that a text needs.
        whole_sentences: whether the variation of whole sentences must be whole sentences.
    """

    def __init__(
        self,
        variation: Variation,
        *,
        likelihood: Likelihood | None,
        floor: float,
        whole_sentences: bool,
    ) -> None:
        self.name = f"{variation.name}, as likely as public text"
        self._variation = variation
        self._likelihood = likelihood
        self._floor = floor
        self._whole_sentences = whole_sentences

    def vary(
        self,
        texts: Sequence[str],
        *,
        seed: int,
        progress: Callable[[int], None] | None = None,
        labels: Sequence[str] | None = None,
    ) -> list[str]:
        """One variation of every text that can stand; the text itself where none was drawn.

        Args:
            texts: the texts.
            seed: 0 <= seed < 2**64.
            progress: called with the number of texts just finished.
            labels: the class of each text; None where there are none.
        """
        result = list(texts)
        left = np.arange(len(texts), dtype=np.int64)
        for attempt in range(_TRIES):
            if not left.size:
                break
            drawn = vary(
                self._variation,
                [texts[index] for index in left.tolist()],
                seed=seed if attempt == 0 else derive_seed(seed, "again", attempt),
                labels=None if labels is None else [labels[index] for index in left.tolist()],
            )
            stands = self._stand([texts[index] for index in left.tolist()], drawn)
            for index, text, kept in zip(left.tolist(), drawn, stands.tolist(), strict=True):
                if kept:
                    result[index] = text
            if progress is not None:
                progress(int(stands.sum()))
            left = left[~stands]
        if progress is not None and left.size:
            progress(int(left.size))
        return result

    def _stand(self, texts: Sequence[str], drawn: Sequence[str]) -> npt.NDArray[np.bool_]:
        stands = np.ones(len(drawn), dtype=np.bool_)
        if self._whole_sentences:
            stands &= np.array(
                [is_whole(new) or not is_whole(old) for old, new in zip(texts, drawn, strict=True)],
                dtype=np.bool_,
            )
        if self._likelihood is not None and stands.any():
            places = np.flatnonzero(stands)
            scores = self._likelihood.per_token([drawn[place] for place in places.tolist()])
            stands[places] = scores >= self._floor
        return stands


def texts_before_quantile(fewest: int, quantile: float) -> int:
    """How many texts there must be so that at least `fewest` are above a quantile of them."""
    needed = fewest
    while needed - math.ceil(quantile * (needed - 1)) < fewest:
        needed += 1
    return needed
