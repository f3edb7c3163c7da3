"""Generation and mask filling, beside `generate()`, plain mask filling and what nothing can beat.

    python -m benchmarks.generation [--models NAME ...] [--masked NAME] [--repeats 3]

Every prompt is continued by 64 tokens (end tokens are switched off, so that all do the same work),
from prompts of 8 tokens and from expansion prompts of three passages. The floor is the larger of
the floating-point operations over the speed of one large product and the bytes (weights and
key-value cache once a step) over the speed of one large sum, both measured here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import Ratio, compared, in_turn, operations_per_second, shown
from flower_privsyn.data import public_texts
from flower_privsyn.generation import MaskFill, SamplingParameters, TransformersGenerator
from flower_privsyn.generation.prompts import load_prompt
from flower_privsyn.models import resolve_model
from flower_privsyn.models.library import quiet_transformers

NEW_TOKENS = MASK_TOKENS = 64


def bytes_per_second() -> float:
    """Read by a sum."""
    values = torch.ones(2**26)  # 256 MiB: beyond every cache
    return values.numel() * 4 / min(in_turn({"": values.sum}, repeats=5, unit="s")[""])


def plain_generate(
    generator: TransformersGenerator, prompts: Sequence[str]
) -> Callable[[], object]:
    """`model.generate` as a user would call it, of the same model."""
    tokenizer, model = generator._tokenizer, generator._model
    batch = tokenizer(list(prompts), return_tensors="pt", padding=True)
    batch.pop("token_type_ids", None)
    length = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS}

    def work() -> list[str]:
        with torch.inference_mode():
            out = model.generate(**batch, do_sample=True, **length)
        return list(tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :]))

    return work


def generation_floor(model: Any, rows: int, prompt: int, flops: float, read: float) -> float:
    """Seconds that nothing can beat: rows x 64 tokens after prompts of a mean length."""
    config = model.config
    matrices = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2)  # head tied
    blocks = matrices - config.vocab_size * config.hidden_size
    mean_length = prompt + NEW_TOKENS / 2
    attention = 4.0 * config.num_hidden_layers * config.hidden_size
    operations = rows * (
        NEW_TOKENS * (2 * matrices + attention * mean_length)
        + prompt * (2 * blocks + attention * prompt / 2)
    )
    cache = rows * mean_length * config.num_hidden_layers * 2 * config.hidden_size
    data = NEW_TOKENS * (matrices + cache) * model.dtype.itemsize
    return max(operations / flops, data / read)


def of_generation(name: str, batch: int, repeats: int, flops: float, read: float) -> list[Ratio]:
    """One model at one size of a batch, from both kinds of prompt."""
    generator, marker = TransformersGenerator(name, batch_size=batch), load_prompt("pre-text")
    generator._end_tokens = frozenset()  # every sample writes all its tokens
    tokenizer, sampling = (
        generator._tokenizer,
        SamplingParameters(seed=0, max_new_tokens=NEW_TOKENS),
    )
    texts = public_texts(tokenizer=tokenizer, max_tokens=MASK_TOKENS)
    found = []
    for prompts in (
        [tokenizer.decode(tokenizer(text)["input_ids"][:8]) for text in texts[:batch]],
        [marker.render(texts[3 * i : 3 * i + 3]) for i in range(batch)],
    ):
        length = round(np.mean([len(row) for row in tokenizer(prompts)["input_ids"]]))
        found += compared(
            f"generation, {name}, {batch} prompts of {length} tokens",
            lambda prompts=prompts: generator.generate(prompts, sampling=sampling),  # type: ignore[misc]
            {
                ("products or memory, whichever is slower", "floor"): generation_floor(
                    generator._model, batch, length, flops, read
                ),
                ("generate()", "peer"): plain_generate(generator, prompts),
            },
            repeats=repeats,
            unit="s",
        )
    return found


def plain_mask_fill(name: str, texts: Sequence[str], *, batch: int = 64) -> Callable[[], object]:
    """Mask 30 %, take the logits of all places, draw with `multinomial`, twice."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    path = resolve_model(name)
    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForMaskedLM.from_pretrained(path).eval()

    def work() -> list[str]:
        written = []
        for start in range(0, len(texts), batch):
            rows = tokenizer(
                list(texts[start : start + batch]),
                truncation=True,
                max_length=MASK_TOKENS + 2,
                padding=True,
                return_special_tokens_mask=True,
                return_tensors="pt",
            )
            ids, special = rows["input_ids"], rows["special_tokens_mask"].bool()
            for _ in range(2):
                masked = (torch.rand(ids.shape) < 0.3) & ~special
                ids[masked] = tokenizer.mask_token_id
                with torch.inference_mode():
                    logits = model(input_ids=ids, attention_mask=rows["attention_mask"]).logits
                    ids[masked] = torch.multinomial(logits[masked].softmax(-1), 1)[:, 0]
            written += tokenizer.batch_decode(ids, skip_special_tokens=True)
        return written

    return work


def mask_fill_operations(model: Any, texts: int) -> float:
    """Of two passes over 64 tokens with the head on 30 % of them."""
    config = model.config
    embedding = config.vocab_size * config.hidden_size
    blocks = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n)
    length = MASK_TOKENS + 2
    attention = 4.0 * config.num_hidden_layers * config.hidden_size * length
    return 2.0 * texts * length * (2 * (blocks + 0.3 * embedding) + attention)


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["privsyn-lm"])
    parser.add_argument("--masked", default="privsyn-mlm")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args(given)
    flops, read, repeats = operations_per_second(unit="s"), bytes_per_second(), arguments.repeats
    found = []
    for name in arguments.models:
        for batch in arguments.batches:
            found += of_generation(name, batch, repeats, flops, read)
    fill = MaskFill(arguments.masked, max_tokens=MASK_TOKENS)
    texts = public_texts(tokenizer=fill._tokenizer, max_tokens=MASK_TOKENS)[: arguments.texts]
    found += compared(
        f"mask filling, {len(texts)} texts",
        lambda: fill.vary(texts, seed=0),
        {
            ("its products", "floor"): mask_fill_operations(fill._model, len(texts)) / flops,
            ("plain mask filling", "peer"): plain_mask_fill(arguments.masked, texts),
        },
        repeats=repeats,
        unit="s",
    )
    return shown(found)


if __name__ == "__main__":
    main()
