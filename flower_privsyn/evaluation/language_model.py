"""How well a language model predicts the text of held-out private users.

What is reported is next-token prediction of the text itself. The accuracy in the tables of PrE-Text
and POPri is another quantity: they tokenize every text twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import ConfigError, ModelError
from flower_privsyn.evaluation.result import NotPrivate
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.progress import Progress
from flower_privsyn.training.tokens import first_token, scored, text_window, token_rows

Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Numbers in one block of bootstrap weights.
_WEIGHTS = 2**22


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A figure with its 95 % interval, by the percentile bootstrap over users.

    Attributes:
        value: the figure on all users.
        low: lower end of the interval.
        high: upper end.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, over: Float64Array, under: Float64Array, draws: Float64Array) -> Self:
        """The interval of a ratio of sums over users.

        Args:
            over: (users,).
            under: (users,).
            draws: (resamples, 2) means of both over users that were drawn with replacement.
        """
        low, high = np.percentile(draws[:, 0] / draws[:, 1], [2.5, 97.5]).tolist()
        return cls(value=float(over.sum() / under.sum()), low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class LanguageModelEvaluation(NotPrivate):
    """Next-token prediction on held-out text, with 95 % intervals by the bootstrap over users.

    Every token counts the same, so people who write much count more.

    Attributes:
        next_token_accuracy: share of tokens that are the model's first choice.
        in_vocabulary_accuracy: the same of the tokens that the tokenizer knows: neither unknown
            tokens nor the end of a text, which is never predicted here, count. The same figure
            where nothing is unknown; None where hardly anything is known.
        cross_entropy: nats per token.
        perplexity: exp(cross_entropy), perhaps infinite; of the tokens of this model's tokenizer.
        bits_per_byte: of UTF-8 text, by byte: what models with different tokenizers can be
            compared by. None if a tokenizer loses text, as one with an unknown token may.
        tokens: scored; every token of every text, exactly once.
        unknown_tokens: how many of them stand for text the tokenizer does not know.
        bytes: of all texts in UTF-8.
        users: with at least one scored token.
        model: as it was named.
        max_tokens: tokens the model saw at once.
    """

    next_token_accuracy: Interval
    in_vocabulary_accuracy: Interval | None
    cross_entropy: Interval
    perplexity: Interval
    bits_per_byte: Interval | None
    tokens: int
    unknown_tokens: int
    bytes: int
    users: int
    model: str
    max_tokens: int


def evaluate_language_model(
    model: str | Path,
    texts: Sequence[str],
    *,
    owners: Sequence[int] | IntArray | None = None,
    max_tokens: int = 64,
    device: str | None = None,
    resamples: int = 2000,
    seed: int = 0,
    users_file: Path | None = None,
    progress: Progress | None = None,
) -> LanguageModelEvaluation:
    """Measure next-token prediction on held-out private text.

    Every text is read from a beginning token, and every one of its tokens is predicted once. A text
    of more than `max_tokens` is read in windows of that length, each from a fresh beginning, so
    that nothing is dropped. The end of a text is not a token to predict: these texts are pieces,
    and end where they were cut.

    Args:
        model: a bundled short name, a folder, or a hub name of a causal language model.
        texts: held-out private text, which no training has seen; at least one text with a token.
        owners: (n,) the user of each text, any integers; None for one user per text.
        max_tokens: tokens of text in a window, >= 1, bounded by the model's context less one; 64
            in the papers.
        device: as PyTorch names it; None chooses.
        resamples: of the bootstrap, >= 1.
        seed: of the bootstrap.
        users_file: where the counts of each user are kept, for `resampled_bits`; None to
            keep none.
        progress: where the step is shown.

    Raises:
        ConfigError: There is nothing to predict.
        ModelError: The model cannot be used, its tokenizer has no token to begin with, or a
            prediction is not finite.
        MissingExtraError: PyTorch or Transformers is not installed.

    References:
        Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13.
    """
    texts = list(texts)
    users = np.unique(range(len(texts)) if owners is None else owners, return_inverse=True)[1]
    network, tokenizer = load_pretrained(model, kind="causal", dtype="float32", device=device)
    window = text_window(network, max_tokens)
    shown: Progress = progress or Progress()
    with shown.stage(f"Held-out text under {Path(model).name}", len(texts)) as stage:
        rows, begin = token_rows(tokenizer, texts), first_token(tokenizer)
        # By its rules: a folder may name none beside them, or, of bytes, one that is no text's.
        rules = tokenizer.backend_tokenizer
        unknown = rules.token_to_id(getattr(rules.model, "unk_token", tokenizer.unk_token) or "")
        nats, correct, correct_unknown = scored(
            network, rows, begin=begin, window=window, marked=unknown, progress=stage.update
        )
    tokens = np.array([len(row) for row in rows])
    unknowns = np.array([row.count(unknown) for row in rows])
    if not tokens.sum():
        raise ConfigError("there is nothing to predict: no text has a token")
    if not np.isfinite(nats).all():
        raise ModelError("the model's predictions are not finite: its weights are damaged")
    sizes = np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts])
    columns = (tokens, correct, nats, sizes, tokens - unknowns, correct - correct_unknown)
    counts = [np.bincount(users, weights=column) for column in columns]
    table = np.stack(counts, axis=1, dtype=np.float64)
    table = table[table[:, 0] > 0]  # users with a token
    if users_file is not None:
        np.save(users_file, table[:, :4])
    figures = _figures(table, resamples=resamples, seed=seed)
    return LanguageModelEvaluation(
        **figures | ({"bits_per_byte": None} if unknowns.any() else {}),
        tokens=int(tokens.sum()),
        unknown_tokens=int(unknowns.sum()),
        bytes=int(table[:, 3].sum()),
        users=len(table),
        model=str(model),
        max_tokens=window,
    )


def _figures(table: Float64Array, *, resamples: int, seed: int) -> dict[str, Any]:
    """The figures of a model with their intervals, by name; None of what a resample may not have.

    Args:
        table: (users, 6): tokens, correct ones, nats, bytes; tokens that are known, and of them
            the correct ones.
        resamples: of the bootstrap over users.
        seed: of the bootstrap.
    """
    tokens, correct, nats, size, known, known_correct = table.T
    ratios = {
        "next_token_accuracy": (correct, tokens),
        "in_vocabulary_accuracy": (known_correct, known),
        "cross_entropy": (nats, tokens),
        "bits_per_byte": (nats / math.log(2), size),
    }
    columns = np.stack([column for ratio in ratios.values() for column in ratio], axis=1)
    draws = resampled(columns, resamples=resamples, seed=seed)
    found: dict[str, Any] = {}
    for place, (name, (over, under)) in enumerate(ratios.items()):
        drawn = draws[:, 2 * place : 2 * place + 2]
        found[name] = Interval.of(over, under, drawn) if drawn[:, 1].all() else None
    ends = vars(found["cross_entropy"]).items()
    with np.errstate(over="ignore"):  # of a model that noise or a rate has destroyed
        found["perplexity"] = Interval(**{end: float(np.exp(value)) for end, value in ends})
    return found


def resampled_bits(counts: Sequence[Float64Array]) -> Float64Array:
    """The bits of several models on the same people, and on draws of them with replacement.

    What two models differ by has the spread of the difference over draws: people are in it once,
    and not once for each model.

    Args:
        counts: of each model (users, 4): tokens, right ones, nats and bytes, as
            `evaluate_language_model` keeps them, of the same users in the same order.

    Returns:
        (2001, models) bits per byte: of all people, then of each draw.
    """
    table = np.concatenate(counts, axis=1)
    draws = np.vstack([table.mean(axis=0), resampled(table, resamples=2000, seed=0)])
    bits: Float64Array = draws[:, 2::4] / math.log(2) / draws[:, 3::4]
    return bits


def resampled(rows: Float64Array, *, resamples: int = 2000, seed: int = 0) -> Float64Array:
    """Means over users drawn with replacement, (resamples, columns) of (users, columns)."""
    generator = np.random.default_rng(seed)
    users = len(rows)
    parts = []
    step = max(1, _WEIGHTS // users)
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        weights = generator.multinomial(users, np.full(users, 1.0 / users), size=count)
        parts.append(weights @ rows / users)
    return np.concatenate(parts)
