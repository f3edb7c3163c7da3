"""Tokens per second of distillation, beside its floor: two forward passes and one backward.

    python -m benchmarks.distillation [--teacher privsyn-lm] [--student privsyn-tiny] [--rows 512]
        [--max-tokens 64] [--batch-size 32] [--top-k 10] [--rest lumped] [--repeats 3]

One epoch on rows of bundled public text, in one process:

- reads: the teacher reads every row and what is kept goes to the disk (`teacher_targets`), without
  the seconds of loading it, which are printed;
- learns: the student's steps by what is kept (`add_gradient` and AdamW);
- floor: the teacher's forward pass without gradients, on the batches in which it reads, and the
  student's forward and backward pass by the text alone, on those in which it learns: nothing is
  kept, and no step is taken.

A second student, or a second epoch, needs no reading. Wall seconds count what else the machine
does; CPU seconds do not. Medians of some repeats, the ways interleaved.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import Ratio
from flower_privsyn.data.public_text import public_documents
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.training.causal import training_rows
from flower_privsyn.training.causal_settings import CausalTraining
from flower_privsyn.training.distillation import Distillation, check_same_tokens
from flower_privsyn.training.loss import add_gradient
from flower_privsyn.training.teacher import TeacherTargets, reading_batches, teacher_targets
from flower_privsyn.training.tokens import padded

Seconds = tuple[float, float]


def seconds(work: Callable[[], object]) -> Seconds:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


class Work:
    """The rows, both models, and the ways through them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        check_same_tokens(arguments.student, arguments.teacher)
        self.distillation = Distillation(
            arguments.teacher, top_k=arguments.top_k, rest=arguments.rest, beta=0.1
        )
        loading = time.perf_counter()
        self.teacher, self.tokenizer = self.loaded(arguments.teacher)
        self.loading = time.perf_counter() - loading
        self.student, _ = self.loaded(arguments.student)
        self.student.requires_grad_(True).train()
        self.vocabulary = int(self.student.get_output_embeddings().weight.shape[0])
        texts = public_documents("bundled", setting="text")[: arguments.rows]
        settings = CausalTraining(max_tokens=arguments.max_tokens, long_texts="cut")
        self.rows = training_rows(
            self.tokenizer, texts, settings=settings, window=arguments.max_tokens, seed=0
        )
        size = arguments.batch_size
        self.batches = [
            list(range(first, min(first + size, len(self.rows))))
            for first in range(0, len(self.rows), size)
        ]
        self.tokens = sum(len(row) - 1 for row in self.rows)

    def loaded(self, name: str) -> tuple[Any, Any]:
        """A model on the CPU, and its tokenizer."""
        return load_pretrained(name, kind="causal", dtype="float32", device="cpu")

    def read(self, folder: Path) -> TeacherTargets:
        """Let the teacher read all rows."""
        return teacher_targets(
            self.rows,
            np.arange(len(self.rows)),
            distillation=self.distillation,
            tokenizer=self.tokenizer,
            vocabulary=self.vocabulary,
            folder=folder,
            device="cpu",
            bfloat16=False,
        )

    def learn(self, taught: TeacherTargets) -> None:
        """Take all steps of an epoch."""
        optimiser = torch.optim.AdamW(self.student.parameters(), lr=1e-5)
        for chosen in self.batches:
            self.gradient(chosen, taught)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def gradient(self, chosen: list[int], taught: TeacherTargets | None) -> None:
        """The gradient of one batch."""
        add_gradient(
            torch,
            self.student,
            self.rows,
            chosen,
            micro=len(chosen),
            device=self.student.device,
            bfloat16=False,
            taught=taught,
        )

    def floor(self) -> None:
        """Two forward passes and one backward."""
        everything = np.arange(len(self.rows))
        for chosen in reading_batches(self.rows, everything, vocabulary=self.vocabulary):
            tokens, attention = padded([self.rows[index] for index in chosen])
            with torch.inference_mode():
                self.teacher(input_ids=tokens, attention_mask=attention, use_cache=False)
        for chosen in self.batches:
            self.gradient(chosen, None)
            self.student.zero_grad(set_to_none=True)


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Print a line for every way."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--teacher", default="privsyn-lm")
    parser.add_argument("--student", default="privsyn-tiny")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument("--rest", choices=["lumped", "drawn", "dropped"], default="lumped")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args(given)
    work = Work(arguments)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, PyTorch {torch.__version__} on "
        f"{torch.get_num_threads()} threads; {arguments.teacher} teaches {arguments.student}: "
        f"{len(work.rows):,} rows, {work.tokens:,} tokens, batches of {arguments.batch_size}"
    )
    work.floor()  # the first passes of a process are slower than all others
    found: dict[str, list[Seconds]] = {"floor": [], "reads": [], "learns": []}
    nbytes = 0
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as folder:
            found["floor"].append(seconds(work.floor))
            loading = seconds(lambda: work.loaded(arguments.teacher))
            reading = seconds(lambda to=Path(folder): work.read(to))  # type: ignore[misc]
            found["reads"].append((reading[0] - loading[0], reading[1] - loading[1]))
            taught = work.read(Path(folder))
            nbytes = taught.nbytes
            found["learns"].append(seconds(lambda by=taught: work.learn(by)))  # type: ignore[misc]
    median = {name: np.median(np.array(times), axis=0) for name, times in found.items()}
    median["both"] = median["reads"] + median["learns"]
    for name in ("floor", "reads", "learns", "both"):
        wall, cpu = (max(1e-9, float(value)) for value in median[name])
        print(
            f"  {name:7s} {wall:8.3f} s wall, {cpu:8.3f} s CPU, {work.tokens / wall:10,.0f} "
            f"tokens/s, {cpu / float(median['floor'][1]):.2f} x the floor's CPU"
        )
    dense = work.tokens * work.vocabulary * 2
    print(
        f"  kept: {nbytes:,} bytes, {100 * nbytes / dense:.2f} % of all probabilities in float16; "
        f"loading the teacher took {work.loading:.2f} s"
    )
    both, floor = float(median["both"][1]), float(median["floor"][1])
    part = f"distillation, {len(work.rows):,} rows"
    return [Ratio(part, "forward twice, backward once", "floor", both, floor, "CPU s")]


if __name__ == "__main__":
    main()
