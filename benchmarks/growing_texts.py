"""New tokens per second of the decoding loop on a GPU, with and without cuDNN's attention.

    python -m benchmarks.growing_texts [--model privsyn-lm] [--batches 64 1024]

A text that grows by a token has a length of its own in every step, and cuDNN plans its attention
anew for each length that the process has not seen. So prompts of a length are continued with it
twice, the first time planning, then without it (`attention.for_growing_texts`), then without it
and with a stop string to look for.
"""

from __future__ import annotations

import argparse
import contextlib
import time

import torch

from flower_privsyn.data import public_texts
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.generation import SamplingParameters, TransformersGenerator, attention

NEW_TOKENS = 64
WORDS = (40, 55, 70)
STOP = "\nOriginal Text Sample "


def as_pytorch_has_it(_: torch.device) -> contextlib.AbstractContextManager[None]:
    """Whatever attention PyTorch prefers."""
    return contextlib.nullcontext()


def rate(generator: TransformersGenerator, prompts: list[str], *, stop: tuple[str, ...]) -> float:
    """New tokens per second."""
    sampling = SamplingParameters(seed=0, max_new_tokens=NEW_TOKENS, stop=stop)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    generator.generate(prompts, sampling=sampling)
    torch.cuda.synchronize()
    return len(prompts) * NEW_TOKENS / (time.perf_counter() - begun)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="privsyn-lm")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 1024])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU here")
    tokenizer = load_tokenizer(options.model)[0]
    words = " ".join(public_texts("bundled", tokenizer=tokenizer, max_tokens=64)[:2000]).split()
    ours = attention.for_growing_texts
    print(f"{options.model}, {NEW_TOKENS} new tokens, {torch.cuda.get_device_name(0)}")
    print("texts  words  cuDNN, first  cuDNN, again  without  with a stop string")
    for batch in options.batches:
        generator = TransformersGenerator(options.model, batch_size=batch)
        rate(generator, ["A beginning."] * batch, stop=())
        for length in WORDS:
            prompts = [" ".join(words[at : at + length]) for at in range(batch)]
            found = []
            for kind, stop in (
                (as_pytorch_has_it, ()),
                (as_pytorch_has_it, ()),
                (ours, ()),
                (ours, (STOP,)),
            ):
                setattr(attention, ours.__name__, kind)
                found.append(rate(generator, prompts, stop=stop))
            setattr(attention, ours.__name__, ours)
            print(f"{batch:5}  {length:5}  " + "  ".join(f"{number:12,.0f}" for number in found))


if __name__ == "__main__":
    main()
