"""Whether a machine gives a text's embedding the same bits in any company, in full.

    PYTHONPATH=. python scripts/check_company.py MODEL_FOLDER [--texts 48] [--precisions float32]

For both precisions and one, two and four threads: texts of several lengths embedded together, then
alone, in fives, shuffled and in every place of a forward pass, and how many of them moved by a bit;
how many moved against one thread; and, to see whether the machine would show the failure at all,
the same companies in the library's own batches of varying row counts. Ends with status 1 where the
package's own embedder moves a bit.

Needs torch, transformers, sentence-transformers, numpy and the folder of a model, no network.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from flower_privsyn.embedding import SentenceTransformerEmbedder
from flower_privsyn.embedding.company import moved_by_company, probe_texts
from flower_privsyn.embedding.machine import processor

_TELLING = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")


class InLibraryBatches:
    """The library's own batches: as many rows as there are texts, the longest text's width."""

    def __init__(self, embedder: SentenceTransformerEmbedder) -> None:
        self._model = embedder.model
        self.dimension, self.fingerprint = embedder.dimension, "library"
        self.tokenizer = embedder.tokenizer

    def embed(
        self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        """(n, d) float32."""
        del progress
        vectors = self._model.encode(list(texts), batch_size=32, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)


def main() -> int:
    """Print one line per precision, number of threads and way to embed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--texts", type=int, default=48, help="of four lengths together")
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2, 4])
    arguments = parser.parse_args()
    import sentence_transformers
    import torch
    import transformers

    described = processor()
    flags = described.pop("flags", described.pop("Features", "")).split()
    print(f"processor: {described}")
    print(f"flags: {' '.join(flag for flag in _TELLING if flag in flags)}")
    print(f"all flags: {' '.join(flags)}")
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}; ", end="")
    print(f"transformers {transformers.__version__}; ", end="")
    print(f"sentence-transformers {sentence_transformers.__version__}; numpy {np.__version__}")

    each = max(8, arguments.texts // 4)
    texts = probe_texts(each, words=(7, 22, 45, 120))
    mixed = texts.copy()
    random.Random(5).shuffle(mixed)
    failed = False
    for precision in arguments.precisions:
        embedder = SentenceTransformerEmbedder(arguments.folder, precision=precision, device="cpu")
        first = None
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            begun = time.process_time()
            moved = moved_by_company(embedder, texts, per_width=each)
            seconds = time.process_time() - begun
            vectors = embedder.embed(texts)
            first = vectors if first is None else first
            other = int((vectors.view(np.uint32) != first.view(np.uint32)).any(axis=1).sum())
            failed |= any(moved.values()) or other > 0
            where = f"{precision}, {threads} threads, of {len(texts)} texts"
            print(f"{where}, moved: {moved}, against 1 thread: {other} ({seconds:.1f} CPU s)")
            control = moved_by_company(InLibraryBatches(embedder), mixed, per_width=each)
            print(f"    in the library's batches: {control}", flush=True)
    print("FAILED: company moves a bit here" if failed else "passed: no bit moves in any company")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
