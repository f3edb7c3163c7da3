"""Tokens and texts per second of generation, against `generate()` and plain mask filling.

    python -m benchmarks.generation [--models NAME ...] [--masked NAME] [--repeats 3]

Every prompt is continued by 64 tokens (end tokens are switched off, so that all batches do the
same work), from prompts of 8 tokens and from expansion prompts of three passages. The floor is the
larger of the floating-point operations over this machine's float32 matrix-product peak and the
bytes (weights and key-value cache once a step) over its memory bandwidth, both measured here.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import Ratio
from flower_privsyn.data import public_texts
from flower_privsyn.generation import MaskFill, SamplingParameters, TransformersGenerator
from flower_privsyn.generation.prompts import load_prompt
from flower_privsyn.models import resolve_model
from flower_privsyn.models.library import quiet_transformers

NEW_TOKENS = 64
MASK_TOKENS = 64


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """The least wall seconds of some calls, after one that is not counted."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def peaks() -> tuple[float, float]:
    """float32 matrix products in flops per second, and bytes read per second by a sum."""
    a = torch.randn(2048, 2048)
    flops = 2 * 2048**3 / best_seconds(lambda: a @ a, 5)
    b = torch.ones(2**26)  # 256 MiB: beyond every cache
    return flops, b.numel() * 4 / best_seconds(lambda: b.sum(), 5)


# ------------------------------------------------------------------------------------ generation


def plain_generate(
    generator: TransformersGenerator, prompts: Sequence[str]
) -> Callable[[], object]:
    """`model.generate` as a user would call it, of the same model."""
    tokenizer, model = generator._tokenizer, generator._model
    batch = tokenizer(list(prompts), return_tensors="pt", padding=True)
    batch.pop("token_type_ids", None)

    def work() -> list[str]:
        with torch.inference_mode():
            out = model.generate(
                **batch, do_sample=True, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS
            )
        return list(tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :]))

    return work


def our_generate(generator: TransformersGenerator, prompts: Sequence[str]) -> Callable[[], object]:
    """The same through the package; prompts differ, so nothing is shared between them."""
    generator._end_tokens = frozenset()  # every sample writes all its tokens
    sampling = SamplingParameters(seed=0, max_new_tokens=NEW_TOKENS)
    return lambda: generator.generate(prompts, sampling=sampling)


def generation_floor(model: Any, rows: int, prompt: int, peak: tuple[float, float]) -> float:
    """Seconds that nothing can beat: rows x 64 tokens after prompts of a mean length."""
    config = model.config
    matrices = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2)  # head tied
    blocks = matrices - config.vocab_size * config.hidden_size
    mean_length = prompt + NEW_TOKENS / 2
    attention = 4.0 * config.num_hidden_layers * config.hidden_size
    flops = rows * (
        NEW_TOKENS * (2 * matrices + attention * mean_length)
        + prompt * (2 * blocks + attention * prompt / 2)
    )
    cache = rows * mean_length * config.num_hidden_layers * 2 * config.hidden_size
    data = NEW_TOKENS * (matrices + cache) * model.dtype.itemsize
    return max(flops / peak[0], data / peak[1])


def compare_generation(
    name: str, batches: Sequence[int], repeats: int, peak: tuple[float, float]
) -> list[Ratio]:
    """Print one line per batch and kind of prompt."""
    ratios = []
    generator = TransformersGenerator(name)
    tokenizer, marker = generator._tokenizer, load_prompt("pre-text")
    texts = public_texts(tokenizer=tokenizer, max_tokens=MASK_TOKENS)
    print(f"{name}: {NEW_TOKENS} new tokens, tokens/s (times the floor's seconds)")
    for batch in batches:
        generator = TransformersGenerator(name, batch_size=batch)
        kinds = {
            "8 tokens": [tokenizer.decode(tokenizer(t)["input_ids"][:8]) for t in texts[:batch]],
            "expansion": [
                marker.render([texts[3 * i], texts[3 * i + 1], texts[3 * i + 2]])
                for i in range(batch)
            ],
        }
        for kind, prompts in kinds.items():
            length = float(np.mean([len(row) for row in tokenizer(prompts)["input_ids"]]))
            floor = generation_floor(generator._model, batch, round(length), peak)
            cases = {
                "generate()": plain_generate(generator, prompts),
                "ours": our_generate(generator, prompts),
            }
            figures, taken = [], {}
            for label, work in cases.items():
                seconds = taken[label] = best_seconds(work, repeats)
                speed = batch * NEW_TOKENS / seconds
                figures.append(f"{label} {speed:,.0f} ({seconds / floor:.1f}x)")
            print(f"  batch {batch:>3}, prompts of {kind} ({length:.0f}): " + ", ".join(figures))
            part = f"generation, {name}, {batch} prompts of {length:.0f} tokens"
            ours = taken["ours"]
            ratios += [
                Ratio(part, "products or memory, whichever is slower", "floor", ours, floor, "s"),
                Ratio(part, "generate()", "peer", ours, taken["generate()"], "s"),
            ]
    return ratios


# ------------------------------------------------------------------------------------- mask fill


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


def mask_fill_floor(model: Any, texts: int, peak: tuple[float, float]) -> float:
    """Seconds of two passes over 64 tokens with the head on 30 % of them."""
    config = model.config
    embedding = config.vocab_size * config.hidden_size
    blocks = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n)
    length = MASK_TOKENS + 2
    attention = 4.0 * config.num_hidden_layers * config.hidden_size * length
    flops = 2 * texts * length * (2 * (blocks + 0.3 * embedding) + attention)
    return flops / peak[0]


def compare_mask_fill(
    name: str, count: int, repeats: int, peak: tuple[float, float]
) -> list[Ratio]:
    """Print one line."""
    fill = MaskFill(name, max_tokens=MASK_TOKENS)
    texts = public_texts(tokenizer=fill._tokenizer, max_tokens=MASK_TOKENS)[:count]
    floor = mask_fill_floor(fill._model, count, peak)
    figures, taken = [], {}
    for label, work in (
        ("plain", plain_mask_fill(name, texts)),
        ("ours", lambda: fill.vary(texts, seed=0)),
    ):
        seconds = taken[label] = best_seconds(work, repeats)
        figures.append(f"{label} {count / seconds:,.0f} ({seconds / floor:.1f}x)")
    print(
        f"{name}: two steps on {count} texts of at most {MASK_TOKENS} tokens, texts/s (times the "
        "floor's seconds)\n  " + ", ".join(figures)
    )
    part = f"mask filling, {count} texts"
    return [
        Ratio(part, "its products", "floor", taken["ours"], floor, "s"),
        Ratio(part, "plain mask filling", "peer", taken["ours"], taken["plain"], "s"),
    ]


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Measure generation, then mask filling."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["privsyn-lm"])
    parser.add_argument("--masked", default="privsyn-mlm")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args(given)
    peak = peaks()
    print(
        f"{os.cpu_count()} cores, torch {torch.__version__}, {torch.get_num_threads()} threads: "
        f"{peak[0] / 1e9:.0f} GFLOP/s, {peak[1] / 1e9:.1f} GB/s"
    )
    ratios = []
    for model in arguments.models:
        ratios += compare_generation(model, arguments.batches, arguments.repeats, peak)
    return ratios + compare_mask_fill(arguments.masked, arguments.texts, arguments.repeats, peak)


if __name__ == "__main__":
    main()
