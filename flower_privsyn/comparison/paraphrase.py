"""Text told in other words under local differential privacy, on the machine of its owner.

Utpala, Hooker, Chen: "Locally Differentially Private Document Generation Using Zero Shot Prompting"
(DP-Prompt, Findings of EMNLP 2023), after Mattern et al. 2022 and McSherry and Talwar 2007: a
language model is asked for a paraphrase and every token of it is drawn by clipped logits over a
temperature: the exponential mechanism, exact in whole numbers. What comes out is the text, not a
sum over users: no server and no other user is needed, and the price is another one. It is pure,
local and per document, and does not compare with the epsilon of a round.

The paper charges 2 (b2 - b1) / T for a token. That is the bound for an endless vocabulary; here the
largest ratio that V tokens can have is charged, computed from the very whole numbers that tokens
are drawn by, so that neither rounding nor small probabilities are left out of it.

This is no part of a run: no node does it because a server asks. A file of one's own is told by
baselines/dp-prompt, with a ledger.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from flower_privsyn.checks import PositiveFloat, Settings, check_whole
from flower_privsyn.data import public_texts
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import ConfigError
from flower_privsyn.models.pretrained import context_of, load_pretrained
from flower_privsyn.privacy.randomness import RandomSource
from flower_privsyn.training.tokens import token_rows

if TYPE_CHECKING:
    import torch

#: Ours; the paper's "Document : {text} Paraphrase of the document :" with line breaks.
TEMPLATE: Final = "Document: {text}\nParaphrase of the document:"

#: Public texts that the bounds of the logits are measured on.
_MEASURED: Final = 32

#: Weight of a token whose logit is at the upper bound.
_LARGEST: Final = 2**40
#: So many tokens' weights add up below 2^64.
_MOST_TOKENS: Final = 2**23
#: Smallest weight: below, rounding to whole numbers would change what was asked for.
_LEAST: Final = 2**12

#: Lowest temperature, times b2 - b1: the smallest weight is above `_LEAST` then.
COLDEST: Final = 1 / math.log(_LARGEST / (2 * _LEAST))


@dataclass(frozen=True, kw_only=True)
class TokenChoice(Settings):
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
    temperature: PositiveFloat
    vocabulary: Annotated[int, Ge(2), Le(_MOST_TOKENS)]

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if not self.low < self.high:
            raise ConfigError(
                f"the logit bounds must be increasing, got {self.low:g} and {self.high:g}"
            )
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


class Paraphraser:
    """A causal language model that tells documents in other words.

    All documents go through the model in one shape, `batch_size` rows of one length, the rows that
    are missing filled up: in another shape the last digits of a document's logits would be others,
    and its paraphrase would say how long its neighbours are. No document fills its row: a model
    leaves out a mask without a zero, and computes the whole batch in another way.

    Args:
        model: a bundled short name, a folder or a hub name.
        template: what the model is to continue; "{text}" stands for the document.
        max_document_tokens: that are read of a document, the first ones.
        max_new_tokens: n, drawn and charged for every document.
        batch_size: documents at a time.

    Attributes:
        max_new_tokens: n.

    Raises:
        ModelError: the model cannot be found or is no causal language model.
        MissingExtraError: PyTorch or Transformers is not installed.
        ConfigError: the model's context does not hold document, template and new tokens.
    """

    def __init__(
        self,
        model: str,
        *,
        template: str = TEMPLATE,
        max_document_tokens: int = 256,
        max_new_tokens: int = 64,
        batch_size: int = 32,
    ) -> None:
        if template.count("{text}") != 1:
            raise ConfigError(f'the template must hold "{{text}}" once, got {template!r}')
        self.max_new_tokens = check_whole("max-new-tokens", max_new_tokens, ge=1)
        self._most = check_whole("max-document-tokens", max_document_tokens, ge=1)
        self._batch_size = check_whole("batch-size", batch_size, ge=1)
        self._model, self._tokenizer = load_pretrained(
            model, kind="causal", dtype="auto", device=None
        )
        ends = self._model.generation_config.eos_token_id
        self._ends = {ends} if isinstance(ends, int) else set(ends or ())
        before, after = template.split("{text}")
        begin = self._tokenizer.bos_token_id
        self._head: list[int] = [] if begin is None else [begin]
        self._head += self._tokenizer(before, add_special_tokens=False)["input_ids"]
        self._tail: list[int] = self._tokenizer(after, add_special_tokens=False)["input_ids"]
        begun = len(self._head) + len(self._tail)
        self._width = begun + max_document_tokens + 1
        positions = context_of(self._model)
        if positions is not None and positions < self._width + max_new_tokens:
            raise ConfigError(
                f"max-document-tokens = {max_document_tokens}, max-new-tokens = {max_new_tokens} "
                f"and the template's {begun} tokens, and one before them, are more than "
                f"the {positions} positions of model {model!r}"
            )

    @property
    def vocabulary(self) -> int:
        """Logits of the model: all of them take part in every draw."""
        return int(self._model.get_output_embeddings().weight.shape[0])

    def logit_bounds(self) -> tuple[float, float]:
        """Bounds that lose little: the mean logit, and the mean of a position's largest one.

        On public text: measured on the documents, they would tell of them.
        """
        import torch

        public = public_texts(tokenizer=load_tokenizer("privsyn-lm")[0], max_tokens=64)
        means, largest = [], []
        for row in self._rows(public[:_MEASURED]):
            with torch.inference_mode():
                logits = self._model(torch.tensor([row], device=self._model.device)).logits[0]
            means.append(float(logits.float().mean()))
            largest.append(float(logits.float().max(dim=-1).values.mean()))
        return float(np.mean(means)), float(np.mean(largest))

    def epsilon(self, choice: TokenChoice) -> float:
        """What the paraphrase of a document costs.

        Formal guarantee:
            `max_new_tokens` * `choice.epsilon` per document, pure and local: whatever is written in
            place of a document, so long as it can be read and is not blank, no paraphrase becomes
            likelier by more than that factor's exponential. Which rows hold a document is not
            hidden. All tokens are charged, also where the text ends before. A user's documents add
            up.

        Args:
            choice: among all tokens of the model.
        """
        return self.max_new_tokens * choice.epsilon

    def paraphrase(
        self, texts: Sequence[str], choice: TokenChoice, *, random: RandomSource
    ) -> Iterator[list[str]]:
        """Tell documents in other words, a batch at a time.

        Args:
            texts: the documents.
            choice: among all tokens of the model.
            random: of the owner.

        Yields:
            The paraphrases of the next `batch_size` documents.
        """
        for start in range(0, len(texts), self._batch_size):
            rows = self._rows(texts[start : start + self._batch_size])
            drawn = self._drawn(rows, choice, random)
            yield [self._text_of(tokens) for tokens in drawn[: len(rows)]]

    def _rows(self, texts: Sequence[str]) -> list[list[int]]:
        """The template around each document's first tokens."""
        return [
            [*self._head, *row[: self._most], *self._tail]
            for row in token_rows(self._tokenizer, texts)
        ]

    def _drawn(
        self, rows: Sequence[Sequence[int]], choice: TokenChoice, random: RandomSource
    ) -> npt.NDArray[np.int64]:
        """(batch_size, n) tokens, n at most `max_new_tokens`: no more once every row has ended."""
        import torch
        from transformers import GenerationConfig, LogitsProcessorList

        tokens = np.zeros((self._batch_size, self._width), dtype=np.int64)
        seen = np.zeros((self._batch_size, self._width), dtype=np.int64)
        seen[:, -1] = 1  # rows without a document see something, too
        for place, row in enumerate(rows):
            tokens[place, self._width - len(row) :] = row
            seen[place, self._width - len(row) :] = 1

        def draw(_written: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            chosen = choice.draw(logits.to(torch.float64).cpu().numpy(), random=random)
            certain = torch.full_like(logits, -torch.inf)
            certain[range(len(chosen)), chosen] = 0.0
            return certain

        written = self._model.generate(
            torch.from_numpy(tokens).to(self._model.device),
            attention_mask=torch.from_numpy(seen).to(self._model.device),
            # The likeliest token, which is the one that was drawn.
            generation_config=GenerationConfig(
                max_new_tokens=self.max_new_tokens, do_sample=False, num_beams=1, pad_token_id=0
            ),
            logits_processor=LogitsProcessorList([draw]),
        )
        return np.asarray(written[:, self._width :].cpu(), dtype=np.int64)

    def _text_of(self, tokens: npt.NDArray[np.int64]) -> str:
        """A paraphrase up to the first token that ends it: post-processing of all tokens."""
        ends = np.flatnonzero(np.isin(tokens, list(self._ends)))
        kept = tokens[: ends[0]] if len(ends) else tokens
        text: str = self._tokenizer.decode(kept.tolist(), skip_special_tokens=True)
        return " ".join(text.split())
