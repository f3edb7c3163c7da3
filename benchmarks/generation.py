"""Tokens and texts per second of generation, against `generate()` and plain mask filling.

    python -m benchmarks.generation [--model NAME] [--masked NAME] [--repeats 3] [--all]
    python -m benchmarks.generation --writers NAME NAME ... [--batches 32] [--new-tokens 32]

Every prompt is continued by 64 tokens (end tokens are switched off, so that all batches do the
same work), from prompts of 8 tokens and from expansion prompts of three passages. The floor is the
larger of the floating-point operations over this machine's bfloat16 matrix-product peak and the
bytes (weights once a step, the key-value cache once a step) over its memory bandwidth, both
measured here. `--all` also tries what did not get in: bfloat16 `generate()`, a static cache, and a
static cache compiled.

`--writers` compares generators by name (`gemma-3-270m`, `gguf:FILE`, a folder) on the same prompts:
tokens per second of the clock, and per CPU second of this process and its children, which says how
far from the floor a backend is where the machine has other work to do. Its floor is per core: the
multiply-adds of prompt and continuation at the peak of one core, or the weights read once a step.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from gguf import GGUFReader

from benchmarks import Ratio
from flower_privsyn.data import public_texts
from flower_privsyn.generation import (
    MaskFill,
    SamplingParameters,
    TextGenerator,
    TransformersGenerator,
    load_generator,
)
from flower_privsyn.generation.generators import is_gguf
from flower_privsyn.generation.gguf_backend import file_of
from flower_privsyn.generation.prompts import load_prompt
from flower_privsyn.models import resolve_model
from flower_privsyn.models.library import quiet_transformers
from flower_privsyn.models.threads import one_thread

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
    """bfloat16 matrix products in flops per second, and bytes read per second by a sum."""
    a = torch.randn(2048, 2048, dtype=torch.bfloat16)
    flops = 2 * 2048**3 / best_seconds(lambda: a @ a, 5)
    b = torch.ones(2**26)  # 256 MiB: beyond every cache
    return flops, b.numel() * 4 / best_seconds(lambda: b.sum(), 5)


def one_core() -> tuple[float, float]:
    """The peaks of one core, in its own seconds: what else the machine does is not counted."""
    a = torch.randn(1024, 1024, dtype=torch.bfloat16)
    b = torch.ones(2**26)
    with one_thread():
        seconds = [min(_cpu_time(work) for _ in range(5)) for work in (lambda: a @ a, b.sum)]
    return 2 * 1024**3 / seconds[0], b.numel() * 4 / seconds[1]


def _cpu_time(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


# ------------------------------------------------------------------------------------ generation


def plain_generate(name: str, prompts: Sequence[str], **options: Any) -> Callable[[], object]:
    """`model.generate` as a user would call it; keyword arguments replace its defaults."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtype = options.pop("dtype", "auto")
    path = resolve_model(name)
    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    batch = tokenizer(list(prompts), return_tensors="pt", padding=True)
    batch.pop("token_type_ids", None)

    def work() -> list[str]:
        with torch.inference_mode():
            out = model.generate(
                **batch, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, **options
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
    cache = rows * mean_length * config.num_hidden_layers * 2 * config.hidden_size * 2
    data = NEW_TOKENS * (2 * matrices + cache)
    return max(flops / peak[0], data / peak[1])


def compare_generation(
    name: str, batches: Sequence[int], repeats: int, peak: tuple[float, float], everything: bool
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
                "generate()": plain_generate(name, prompts),
                "ours": our_generate(generator, prompts),
            }
            if everything:
                half = torch.bfloat16
                cases["generate() bfloat16"] = plain_generate(name, prompts, dtype=half)
                cases["static cache"] = plain_generate(
                    name, prompts, dtype=half, cache_implementation="static", disable_compile=True
                )
                cases["static, compiled"] = plain_generate(
                    name, prompts, dtype=half, cache_implementation="static"
                )
            figures, taken = [], {}
            for label, work in cases.items():
                seconds = taken[label] = best_seconds(work, repeats)
                speed = batch * NEW_TOKENS / seconds
                figures.append(f"{label} {speed:,.0f} ({seconds / floor:.1f}x)")
            print(f"  batch {batch:>3}, prompts of {kind} ({length:.0f}): " + ", ".join(figures))
            part, ours = f"generation, {batch} prompts of {length:.0f} tokens", taken["ours"]
            ratios += [
                Ratio(part, "products or memory, whichever is slower", "floor", ours, floor, "s"),
                Ratio(part, "generate()", "peer", ours, taken["generate()"], "s"),
            ]
    return ratios


# --------------------------------------------------------------------------------------- writers


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a writer multiplies and reads.

    Attributes:
        weights: numbers in all its matrices, the table of tokens once.
        table: those of the table, which a prompt is not multiplied with.
        layers: of attention.
        width: of all queries of a layer together.
        bytes: of its weights.
    """

    weights: float
    table: float
    layers: int
    width: int
    bytes: float

    @classmethod
    def of(cls, name: str, generator: TextGenerator) -> Size:
        """The size of a writer, from its file's header or the model that was loaded."""
        if is_gguf(name):
            sizes = {
                tensor.name: tensor.shape.tolist() for tensor in GGUFReader(file_of(name)).tensors
            }
            return cls(
                weights=sum(map(math.prod, sizes.values())),
                table=math.prod(sizes["token_embd.weight"]),
                layers=sum(tensor.endswith("attn_q.weight") for tensor in sizes),
                width=sizes["blk.0.attn_q.weight"][1],
                bytes=file_of(name).stat().st_size,
            )
        if not isinstance(generator, TransformersGenerator):
            raise SystemExit(f"{name} runs elsewhere: its floor is not known")
        model = generator._model
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        return cls(
            weights=model.num_parameters(),
            table=config.vocab_size * config.hidden_size,
            layers=config.num_hidden_layers,
            width=heads * (getattr(config, "head_dim", None) or config.hidden_size // heads),
            bytes=model.num_parameters() * model.dtype.itemsize,
        )

    def floor(self, *, rows: int, prompt: float, new: float, peak: tuple[float, float]) -> float:
        """CPU seconds of one core that nothing can beat.

        Args:
            rows: texts at a time.
            prompt: tokens before each.
            new: tokens of each.
            peak: of one core, multiply-adds counted twice and bytes a second.
        """
        attended = 4.0 * self.layers * self.width
        read = 2 * (self.weights - self.table) + attended * prompt / 2
        written = 2 * self.weights + attended * (prompt + new / 2)
        return max(rows * (prompt * read + new * written) / peak[0], new * self.bytes / peak[1])


def cpu_seconds() -> float:
    """Of this process and the ones it started."""
    own = psutil.Process()
    return sum(
        times.user + times.system
        for times in (process.cpu_times() for process in (own, *own.children(recursive=True)))
    )


def compare_writers(names: Sequence[str], rows: int, new: int, peak: tuple[float, float]) -> None:
    """Print one line per writer and kind of prompt.

    Args:
        names: of generators.
        rows: prompts, all written at the same time where the writer can.
        new: tokens of each; texts that end before are counted as they are.
        peak: of one core.
    """
    print(
        f"{rows} texts of at most {new} new tokens at a time: tokens a second of the clock; a CPU"
    )
    print("second; and the CPU seconds over the floor's")
    from flower_privsyn.models.pretrained import load_tokenizer

    words = load_tokenizer("privsyn-lm")
    texts = public_texts(tokenizer=words, max_tokens=MASK_TOKENS)
    marker = load_prompt("pre-text")
    kinds = {
        "a few words": [" ".join(text.split()[:6]) for text in texts[:rows]],
        "three examples": [marker.render(texts[3 * i : 3 * i + 3]) for i in range(rows)],
    }
    for name in names:
        generator = load_generator(name, batch_size=rows, max_concurrency=rows)
        size = Size.of(name, generator)
        tokenizer = load_tokenizer("gemma-3-270m" if "gemma" in name else _tokens_of(name))
        generator.generate(
            kinds["a few words"][:2], sampling=SamplingParameters(seed=1, max_new_tokens=2)
        )
        for kind, prompts in kinds.items():
            prompt = float(np.mean([len(row) for row in tokenizer(prompts)["input_ids"]]))
            clock, cpu = time.perf_counter(), cpu_seconds()
            written = generator.generate(
                prompts, sampling=SamplingParameters(seed=0, max_new_tokens=new)
            )
            clock, cpu = time.perf_counter() - clock, cpu_seconds() - cpu
            tokens = sum(len(tokenizer(text)["input_ids"]) for (text,) in written)
            floor = size.floor(rows=rows, prompt=prompt, new=tokens / rows, peak=peak)
            speeds = f"{tokens / clock:,.0f}; {tokens / cpu:,.0f}; {cpu / floor:.1f}x"
            shown = name.rpartition("/")[2]
            print(f"  {shown}, {kind} ({prompt:.0f} tokens): {speeds}", flush=True)


def _tokens_of(name: str) -> str:
    """A model whose tokens a writer's texts are counted by."""
    return "privsyn-lm" if is_gguf(name) else name


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
    parser.add_argument("--model", default="privsyn-lm")
    parser.add_argument("--masked", default="privsyn-mlm")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="PyTorch threads; default: PyTorch's choice")
    parser.add_argument("--writers", nargs="+", help="compare these generators, and nothing else")
    parser.add_argument("--new-tokens", type=int, default=32, help="of --writers")
    parser.add_argument("--all", action="store_true", help="also what did not get in")
    arguments = parser.parse_args(given)
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    peak = peaks()
    print(
        f"{os.cpu_count()} cores, torch {torch.__version__}, {torch.get_num_threads()} threads: "
        f"{peak[0] / 1e9:.0f} bfloat16 GFLOP/s, {peak[1] / 1e9:.1f} GB/s"
    )
    if arguments.writers:
        alone = one_core()
        print(f"one core: {alone[0] / 1e9:.0f} bfloat16 GFLOP/s, {alone[1] / 1e9:.1f} GB/s")
        compare_writers(arguments.writers, arguments.batches[0], arguments.new_tokens, alone)
        return []
    return [
        *compare_generation(
            arguments.model, arguments.batches, arguments.repeats, peak, arguments.all
        ),
        *compare_mask_fill(arguments.masked, arguments.texts, arguments.repeats, peak),
    ]


if __name__ == "__main__":
    main()
