"""Variation of texts by filling masks, beside its products and plain mask filling."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks import Other, Ratio, Work, compared, products
from flower_privsyn.data import public_texts
from flower_privsyn.generation import MaskFill

TOKENS, MASKED, STEPS, BATCH = 64, 0.3, 2, 64


def measure(*, texts: int = 256) -> list[Ratio]:
    """Of texts of up to 64 tokens."""
    fill = MaskFill(max_tokens=TOKENS, mask_fraction=MASKED, num_steps=STEPS, batch_size=BATCH)
    written = public_texts(tokenizer=fill._tokenizer.backend_tokenizer, max_tokens=TOKENS)[:texts]
    return compared(
        f"mask filling, {texts} texts",
        lambda: fill.vary(written, seed=0),
        Other("its products (floor)", products(operations(fill, texts), fill._model.dtype)),
        Other("plain mask filling (peer)", plainly(fill, written)),
    )


def plainly(fill: MaskFill, texts: Sequence[str]) -> Work:
    """Mask 30 %, take the logits of all places, draw with `multinomial`, twice."""
    tokenizer, model = fill._tokenizer, fill._model

    def work() -> list[str]:
        written = []
        for start in range(0, len(texts), BATCH):
            part = list(texts[start : start + BATCH])
            rows = tokenizer(
                part, padding=True, return_special_tokens_mask=True, return_tensors="pt"
            )
            ids, special = rows["input_ids"], rows["special_tokens_mask"].bool()
            for _ in range(STEPS):
                masked = (torch.rand(ids.shape) < MASKED) & ~special
                ids[masked] = tokenizer.mask_token_id
                with torch.inference_mode():
                    logits = model(input_ids=ids, attention_mask=rows["attention_mask"]).logits
                    ids[masked] = torch.multinomial(logits[masked].float().softmax(-1), 1)[:, 0]
            written += tokenizer.batch_decode(ids, skip_special_tokens=True)
        return written

    return work


def operations(fill: MaskFill, texts: int) -> float:
    """Of passes over all tokens, with the head on those that are masked."""
    config, named = fill._model.config, fill._model.named_parameters()
    blocks = sum(weight.numel() for key, weight in named if weight.ndim == 2 and "embed" not in key)
    head = MASKED * config.vocab_size * config.hidden_size
    attention = 4.0 * config.num_hidden_layers * config.hidden_size * (TOKENS + 2)
    return texts * STEPS * (TOKENS + 2) * (2 * (blocks + head) + attention)
