"""Variations of public text: mask some tokens, let a masked language model fill them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from flower_privsyn.errors import ConfigError, ModelError
from flower_privsyn.generation import streams
from flower_privsyn.generation.backends import ProgressCallback, text_seeds
from flower_privsyn.models.library import failures_as
from flower_privsyn.models.pretrained import Precision, load_pretrained, logits_at, special_tokens
from flower_privsyn.models.threads import is_small, side_by_side

if TYPE_CHECKING:
    import torch

_RESERVED = re.compile(r"\[unused\d+\]|madeupword\d+|<\|?(?:unused|reserved)[^>]*>")


@runtime_checkable
class Variation(Protocol):
    """Turns every text into a similar one; works on public or released text only.

    Attributes:
        name: What the variation is called in logs and run directories.
    """

    name: str

    def vary(
        self,
        texts: Sequence[str],
        *,
        seed: int,
        progress: ProgressCallback | None = None,
        labels: Sequence[str] | None = None,
    ) -> list[str]:
        """Write one variation of every text.

        Args:
            texts: The texts; equal ones get different variations.
            seed: 0 <= seed < 2**64; the same texts and seed give the same variations. For
                several variations of the same texts, use several seeds.
            progress: Called with the number of texts just finished.
            labels: The class of each text, where texts have classes; None where they have none.

        Returns:
            As many texts, in the same order.
        """
        ...


class MaskFill:
    """Variation of PrE-Text: mask 30 % of the tokens, sample what stands there, twice.

    The number of masks follows from each text's own length, so a short text in a batch does not
    thin out the masks of the long ones. Special tokens are never masked, never drawn and never
    part of the result; a text that spells one ("<mask>") keeps it as ordinary characters. A
    character that several tokens share is masked as a whole, and only tokens that are complete
    characters are drawn: a variation is always valid text.

    Attributes:
        name: ``"mask-fill"`` and the model's name.

    References:
        Hou et al., PrE-Text, ICML 2024, algorithm 1 (Variation) and appendix: RoBERTa-large, 30 %
        masked, temperature 1, top-p 1, two steps. Their code masks every text of a batch as often
        as 30 % of its shortest one, and lets special tokens through.
    """

    def __init__(
        self,
        model: str | Path = "privsyn-mlm",
        *,
        mask_fraction: float = 0.3,
        num_steps: int = 2,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_tokens: int = 64,
        batch_size: int = 64,
        dtype: Precision = "auto",
        device: str | None = None,
    ) -> None:
        """Load the model.

        Args:
            model: A bundled short name, a folder, or a hub name of any masked language model
                that Transformers knows.
            mask_fraction: In (0, 1]: the share of a text's tokens masked in one step, rounded to
                the nearest number of tokens, at least 1.
            num_steps: How often tokens are masked and filled, >= 1.
            temperature: >= 0; 0 always fills in the most likely token.
            top_p: In (0, 1].
            max_tokens: Longer texts are cut to this many tokens (special ones not counted), >= 1.
            batch_size: Texts per forward pass, >= 1.
            dtype: ``"auto"`` takes bfloat16 where the hardware multiplies it natively.
            device: As PyTorch names it; None takes the first GPU, else the CPU.

        Raises:
            ConfigError: `max_tokens` is more than the model reads, or it fills no text.
            ModelError: The model cannot be found or is no masked language model.
            MissingExtraError: PyTorch or Transformers is not installed.
        """
        self.name = f"mask-fill {model}"
        self._mask_fraction = mask_fraction
        self._num_steps = num_steps
        self._temperature = temperature
        self._top_p = top_p
        self._batch_size = batch_size
        self._model, self._tokenizer = load_pretrained(
            model, kind="masked", dtype=dtype, device=device
        )
        if self._tokenizer.mask_token_id is None:
            raise ModelError(f"model {str(model)!r} has no mask token in its tokenizer")
        self._max_tokens = max_tokens
        self._banned = self._find_banned_tokens()
        # Tried: many a tokenizer does not say how far its model counts.
        unfit = f"variation-model = {model} cannot fill texts of max-tokens = {max_tokens}"
        with failures_as(ConfigError, unfit):
            self.vary(["a " * max_tokens], seed=0)

    def vary(
        self,
        texts: Sequence[str],
        *,
        seed: int,
        progress: ProgressCallback | None = None,
        labels: Sequence[str] | None = None,  # noqa: ARG002 - masks are filled from the text alone
    ) -> list[str]:
        """Mask and fill every text; see `Variation`.

        Args:
            texts: The texts. One without any token (empty, or only dropped characters) comes
                back as it is.
            seed: 0 <= seed < 2**64.
            progress: Called with the number of texts just finished.
            labels: Not looked at.

        Returns:
            As many texts, in the same order, without special tokens; never an empty one for a
            text: one of which only white space would be left comes back as it is.
        """
        rows = self._tokenize(texts, text_seeds(seed, texts))
        varied = list(texts)
        fillable = [index for index, row in enumerate(rows) if row.units]
        if progress is not None and len(fillable) < len(texts):
            progress(len(texts) - len(fillable))
        lengths = [rows[index].tokens.size for index in fillable]
        batches = [
            [fillable[place] for place in batch]
            for batch in streams.batches(lengths, self._batch_size)
        ]

        def fill(chosen: list[int]) -> list[int]:
            for _ in range(self._num_steps):
                self._fill([rows[index] for index in chosen])
            return chosen

        for chosen in (side_by_side if is_small(self._model) else map)(fill, batches):
            decoded = self._tokenizer.batch_decode(
                [rows[index].tokens[rows[index].content] for index in chosen],
                skip_special_tokens=True,
            )
            for index, text in zip(chosen, decoded, strict=True):
                varied[index] = text.strip() or texts[index]
            if progress is not None:
                progress(len(chosen))
        return varied

    def _tokenize(self, texts: Sequence[str], seeds: Sequence[int]) -> list[_Row]:
        """Cut every text into tokens, with the special ones the model expects around them."""
        if not texts:
            return []
        encoded = self._tokenizer(
            list(texts),
            truncation=True,
            max_length=self._max_tokens + self._tokenizer.num_special_tokens_to_add(),
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            split_special_tokens=True,  # "<mask>" in a text is five characters, not a gap
        )
        special_ids = set(self._tokenizer.all_special_ids) - {self._tokenizer.unk_token_id}
        rows = []
        for tokens, special, offsets, seed in zip(
            encoded["input_ids"],
            encoded["special_tokens_mask"],
            encoded["offset_mapping"],
            seeds,
            strict=True,
        ):
            # The mask marks what the template added; the ids also catch what the text spelled.
            content = [
                place
                for place, token in enumerate(tokens)
                if not special[place] and token not in special_ids
            ]
            rows.append(
                _Row(
                    tokens=np.array(tokens, dtype=np.int64),
                    content=np.array(content, dtype=np.int64),
                    units=_group_by_character([offsets[place] for place in content]),
                    stream=streams.stream(seed),
                )
            )
        return rows

    def _fill(self, rows: Sequence[_Row]) -> None:
        """Mask tokens of every row and replace them by draws from the model."""
        import torch

        width = max(row.tokens.size for row in rows)
        device = self._model.device
        pad = self._tokenizer.pad_token_id
        tokens = np.full((len(rows), width), 0 if pad is None else pad, dtype=np.int64)  # (b, t)
        attention = np.zeros((len(rows), width), dtype=np.int64)  # (b, t)
        gaps = np.zeros((len(rows), width), dtype=bool)  # (b, t)
        uniforms = []
        for index, row in enumerate(rows):
            masked = row.choose(self._mask_fraction)
            gaps[index, masked] = True
            tokens[index, : row.tokens.size] = row.tokens
            attention[index, : row.tokens.size] = 1
            uniforms.append(row.stream.random(masked.size, dtype=np.float32))
        tokens[gaps] = self._tokenizer.mask_token_id
        with torch.inference_mode():
            logits = logits_at(
                self._model,
                torch.from_numpy(gaps).to(device),
                input_ids=torch.from_numpy(tokens).to(device),
                attention_mask=torch.from_numpy(attention).to(device),
            ).float()  # (k, v)
            logits[:, self._banned] = float("-inf")
            drawn = streams.sample_tokens(
                logits,
                torch.from_numpy(np.concatenate(uniforms)).to(device),
                temperature=self._temperature,
                top_p=self._top_p,
            )
        tokens[gaps] = drawn.cpu().numpy()
        for row, filled in zip(rows, tokens, strict=True):
            row.tokens = filled[: row.tokens.size]

    def _find_banned_tokens(self) -> torch.Tensor:
        """Collect the token numbers that are never drawn.

        Special and reserved tokens, pieces of characters, control characters, and rows of the
        output matrix that stand for no token at all.
        """
        import torch

        output_size = int(self._model.get_output_embeddings().weight.shape[0])
        special = special_tokens(self._tokenizer)
        texts = self._tokenizer.batch_decode([[number] for number in range(len(self._tokenizer))])
        allowed = {
            number
            for number, text in enumerate(texts[:output_size])
            if number not in special and text and "\ufffd" not in text and not _is_unwanted(text)
        }
        if not allowed:
            raise ModelError(f"{self.name}: its tokenizer holds no token that may be drawn")
        banned = sorted(set(range(output_size)) - allowed)
        return torch.tensor(banned, dtype=torch.int64, device=self._model.device)


@dataclass
class _Row:
    """One text on its way through the model.

    Attributes:
        tokens: (t,) int64, the special tokens at the edges included.
        content: (n,) int64: the places in ``tokens`` that are the text's own.
        units: The places in ``content`` that may be masked, and which of them together: one by
            one, unless tokens share a character.
        stream: The text's random numbers.
    """

    tokens: np.ndarray
    content: np.ndarray
    units: list[list[int]]
    stream: np.random.Generator

    def choose(self, fraction: float) -> np.ndarray:
        """Draw the places to mask in this step: (k,) int64, increasing."""
        wanted = max(1, round(fraction * sum(map(len, self.units))))
        chosen: list[int] = []
        kept: list[list[int]] = []
        for unit in self.stream.permutation(len(self.units)).tolist():
            if len(chosen) >= wanted:
                kept.append(self.units[unit])
            else:
                chosen += self.units[unit]
        # What is filled in are complete characters: from now on they stand alone.
        self.units = sorted(kept + [[place] for place in chosen])
        masked: np.ndarray = self.content[np.sort(np.array(chosen, dtype=np.int64))]
        return masked


def _group_by_character(offsets: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Group neighbouring tokens whose character ranges overlap."""
    units: list[list[int]] = []
    reached = -1
    for place, (start, end) in enumerate(offsets):
        if units and start < reached:
            units[-1].append(place)
        else:
            units.append([place])
        reached = max(reached, end)
    return units


def _is_unwanted(text: str) -> bool:
    if _RESERVED.fullmatch(text.strip()):
        return True
    return any(unicodedata.category(letter) == "Cc" and letter not in "\t\n\r" for letter in text)
