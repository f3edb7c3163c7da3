"""How texts are varied: masks are filled, and what is filled in is as likely as public text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Lt

from flower_privsyn.checks import IN_PYTHON, NonNegativeInt, PositiveInt
from flower_privsyn.data.sentences import is_whole
from flower_privsyn.files import located
from flower_privsyn.generation.generators import ExpandingSettings
from flower_privsyn.generation.streams import derive_seed
from flower_privsyn.queries import NearestNeighborHistogram
from flower_privsyn.queries.nearest_neighbor import VoteClip
from flower_privsyn.run.settings import PrivateSumConfig

if TYPE_CHECKING:
    from flower_privsyn.generation import Variation
    from flower_privsyn.progress import Progress

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class EvolutionConfig(ExpandingSettings, PrivateSumConfig):
    """Settings of a population of texts that users vote on, and that are varied."""

    max_samples: PositiveInt = 8
    """Samples of one user that vote, a random subset fixed per user and seed."""
    lookahead: NonNegativeInt = 4
    """Variations whose mean embedding stands for a candidate (K); 4 in the authors' code, 0 embeds
    the candidate itself.
    """
    clip: VoteClip = "count"
    """Either "count", the papers' votes with sensitivity `max_samples`; or "l2", each user's votes
    scaled to norm sqrt(max_samples), with less noise.
    """
    num_candidates: Annotated[int, Ge(2)] = 1024
    """Texts in the population (N_syn); 1,024 at epsilon 1.29 and 2,048 at epsilon 7.58 in PrE-Text.
    """
    public_text: str = "bundled"
    """Seeds: "bundled", or a JSONL file with `text` and no person's data; also a folder or a data
    set by name (docs/own_data.md).
    """
    variation_model: str = "privsyn-mlm"
    """Masked language model that varies texts."""
    whole_sentences: bool = False
    """For small models: cut public text only where a sentence ends, and keep variations of whole
    sentences whole; mask 15 % of words, once, of those that are one token, so that no word is torn
    and punctuation stays; an expanded text begins with five words of a survivor, ends with a
    sentence and says no three words twice, or is dropped. PrE-Text does none of it, and masks 30 %
    of tokens, twice.
    """
    likelihood_quantile: Annotated[float, Ge(0), Lt(1)] = 0.0
    """A variation is kept only if its log-likelihood per token under `privsyn-lm`
    (`likelihood_model=` names another one in Python) is at least this quantile of the public
    text's. It is drawn three times; then the text it is made from stays. The first candidates are
    as likely, too. 0 keeps every variation, as in PrE-Text.
    """
    likelihood_model: Annotated[str, IN_PYTHON] = "privsyn-lm"
    """Causal language model that judges so; a name or a path."""

    def histogram(self) -> NearestNeighborHistogram:
        """The query these settings ask."""
        return NearestNeighborHistogram(max_samples=self.max_samples, clip=self.clip)


#: How often a variation is drawn before the text it is made from stays.
_TRIES: Final = 3


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

        self._network, self._tokenizer = load_pretrained(
            model, kind="causal", dtype="auto", device=None
        )
        self._max_tokens = max_tokens

    def per_token(self, texts: Sequence[str]) -> Float64Array:
        """Mean log-probability of the tokens of each text, in nats.

        Args:
            texts: (n,).

        Returns:
            (n,), at most 0; minus infinity for a text without tokens.
        """
        from flower_privsyn.evaluation.language_model import score_texts

        scores = score_texts(self._network, self._tokenizer, texts, max_tokens=self._max_tokens)
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
            progress: called with the number of texts just drawn for the first time.
            labels: the class of each text; None where there are none.
        """
        result, left = list(texts), list(range(len(texts)))
        for attempt in range(_TRIES):
            if not left:
                break
            drawn = self._variation.vary(
                [texts[index] for index in left],
                seed=seed if attempt == 0 else derive_seed(seed, "again", attempt),
                progress=progress if attempt == 0 else None,
                labels=None if labels is None else [labels[index] for index in left],
            )
            stands = self._stand([texts[index] for index in left], drawn)
            for index, text, kept in zip(left, drawn, stands, strict=True):
                if kept:
                    result[index] = text
            left = [index for index, kept in zip(left, stands, strict=True) if not kept]
        return result

    def _stand(self, texts: Sequence[str], drawn: Sequence[str]) -> npt.NDArray[np.bool_]:
        stands = np.ones(len(drawn), dtype=np.bool_)
        if self._whole_sentences:
            pairs = zip(texts, drawn, strict=True)
            stands[:] = [is_whole(new) or not is_whole(old) for old, new in pairs]
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


def hold_to_public_text(
    seeds: list[str],
    variation: Variation,
    config: EvolutionConfig,
    *,
    fewest: int,
    progress: Progress,
) -> tuple[list[str], Variation]:
    """Leave out unlikely and broken public texts, and have variations be like the others.

    Args:
        seeds: public texts.
        variation: what varies texts.
        config: the settings.
        fewest: texts that are left in any case, where there are `texts_before_quantile` of it.
        progress: where the work reports.

    Returns:
        The texts to begin with, and what varies them; both as given where no setting asks for more.
    """
    if config.whole_sentences:
        whole = [text for text in seeds if is_whole(text)]
        enough = texts_before_quantile(fewest, config.likelihood_quantile)
        seeds = whole if len(whole) >= max(enough, config.num_candidates) else seeds
    judge, floor = None, -math.inf
    if config.likelihood_quantile > 0:
        judge = Likelihood(located(config.likelihood_model), max_tokens=config.max_tokens)
        # So many that enough are left, and no more: reading all of a large corpus takes long.
        wanted = math.ceil(config.num_candidates * max(2, 1.5 / (1 - config.likelihood_quantile)))
        drawn = np.random.default_rng([config.seed, 4]).permutation(len(seeds))[:wanted]
        seeds = [seeds[index] for index in drawn.tolist()]
        with progress.stage("Judge public text", total=None):
            scores = judge.per_token(seeds)
        floor = float(np.quantile(scores, config.likelihood_quantile))
        seeds = [text for text, score in zip(seeds, scores, strict=True) if score >= floor]
    if judge is not None or config.whole_sentences:
        variation = LikelyVariation(
            variation, likelihood=judge, floor=floor, whole_sentences=config.whole_sentences
        )
    return seeds, variation
