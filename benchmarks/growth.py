"""How a run grows with users, nodes, candidates and rounds, and with the rows of public text.

    python -m benchmarks.growth [users nodes ...]

One of them varies and the others stay at `STILL`; every point runs in a process of its own, the
nodes one after the other in it. A point is a round of votes; of rounds all of them. The package's
whole private path is in it: requests, answers, sums, ledger and noise; models are not, whose time
does not depend on how many users there are. So the candidates are random, others in every round,
and a text's vector is made of its hash. Public text is cut into rows and stored, and its rows are
scored and chosen by tokens and overlap.

Memory is a process's at its peak, with the files that it maps: a million users' records are 7.7 GB
of those, which the system takes back where it needs room. The slope is that of CPU seconds on two
logarithmic scales: 1 is in proportion, and at most 1.05 is aimed at; for a million users, at most
60 s of the clock a round and 4 GiB beside the records.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from benchmarks import apart, machine, unit_rows
from flower_privsyn.testing import HashEmbedder, LoopbackGrid, flower_identity

DIMENSION, SAMPLES, TEXTS = 384, 5, 6144
STILL = {"users": 10_000, "nodes": 16, "candidates": 2048, "rounds": 4}
#: Where rounds vary, what a round itself takes should be little.
OF_ROUNDS = {"users": 200, "nodes": 2, "candidates": 64}
POINTS = {
    "users": (1000, 10_000, 100_000, 1_000_000),
    "nodes": (1, 10, 100, 1000),
    "candidates": (1024, 4096, 16_384),
    "rounds": (10, 100, 1000),
    "rows": (40_000, 400_000, 4_000_000),
}
#: Of a row of public text: fewer than 64 tokens.
WORDS = 24


def clocks() -> np.ndarray:
    """(2,) CPU seconds of this process, and seconds of the clock."""
    return np.array([time.process_time(), time.perf_counter()])


# ---- private path --------------------------------------------------------------------------------


class HashVectors(HashEmbedder):
    """Makes the vector of equal texts once: a model that costs little."""

    def embed(self, texts: Sequence[str], **progress: Any) -> np.ndarray:
        """(n, dimension) float32."""
        different, place = np.unique(texts, return_inverse=True)
        return super().embed(different.tolist(), **progress)[place]


def population(path: Path, users: int) -> None:
    """Users with five of 6,144 texts each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    owners = np.repeat(np.arange(users), SAMPLES)
    texts = np.random.default_rng(0).integers(TEXTS, size=len(owners))
    columns = [pa.array(values).cast(pa.string()) for values in (owners, texts)]
    pq.write_table(pa.table(columns, names=["client_id", "text"]), path)


def a_run(*, users: int, nodes: int, candidates: int, rounds: int) -> np.ndarray:
    """What each of its rounds takes, (rounds, 2) as `clocks`."""
    from flower_privsyn import strategies
    from flower_privsyn.client_apps.handlers import create_client_app
    from flower_privsyn.data import load_users
    from flower_privsyn.queries import NearestNeighborHistogram

    query, vectors = NearestNeighborHistogram(max_samples=SAMPLES), HashVectors(DIMENSION)
    begun: dict[int, np.ndarray] = {}

    class Asking(strategies.Method):
        """The question about random candidates, round after round."""

        queries = (query,)

        def setup(self, place: strategies.RunContext) -> tuple[strategies.RecordSource, ...]:
            self.place = place
            return (strategies.RecordSource(fingerprint=vectors.fingerprint, dimension=DIMENSION),)

        def ask(self, state: Any, number: int) -> strategies.Question:  # noqa: ARG002
            begun.setdefault(number, clocks())
            drawn = unit_rows(np.random.default_rng(number), candidates, DIMENSION)
            return strategies.Question(query, {"candidates": drawn})

        def step(self, state: Any, release: strategies.ReleasedSum, scratch: Path) -> Any:  # noqa: ARG002
            return state

        def finish(self, state: Any) -> dict[str, Any]:  # noqa: ARG002
            begun[rounds + 1] = clocks()
            return {}

    @final
    class Strategy(strategies.PrivateSumStrategy):
        """That asks it."""

    with tempfile.TemporaryDirectory() as folder, flower_identity():
        population(file := Path(folder) / "users.parquet", users)
        everybody = load_users(file)
        config = strategies.PrivateSumConfig(
            num_rounds=rounds,
            num_nodes=nodes,
            max_samples=SAMPLES,
            noise_multiplier=1.0,
            accept_noise=True,
            run_dir=f"{folder}/run",
        )
        app = create_client_app(
            lambda context: everybody.partition(
                partition_id=int(context.node_config["partition-id"]), num_partitions=nodes
            ),
            embedder=lambda name, precision: vectors,  # noqa: ARG005
            cache_directory=Path(folder) / "cache",
        )
        Strategy(config, Asking()).start(LoopbackGrid(app, num_nodes=nodes))
    return np.diff([begun[number] for number in sorted(begun)], axis=0)


# ---- public text ---------------------------------------------------------------------------------


def public_text(rows: int) -> np.ndarray:
    """Rows of random words, of which one in 200 is chosen."""
    from flower_privsyn.data import public_texts
    from flower_privsyn.data.public_rows import PublicRows
    from flower_privsyn.models.pretrained import load_tokenizer
    from flower_privsyn.training.selection import LogRatioScorer, select

    generator = np.random.default_rng(0)
    tokenizer = load_tokenizer("privsyn-tiny").backend_tokenizer
    words = np.array(" ".join(public_texts(tokenizer=tokenizer)).split())
    with tempfile.TemporaryDirectory() as folder:
        with (file := Path(folder) / "public.jsonl").open("w", encoding="utf-8") as lines:
            for _ in range(rows):
                drawn = words[generator.integers(len(words), size=WORDS)]
                print(json.dumps({"text": " ".join(drawn)}), file=lines)
        begun = clocks()
        public = PublicRows.of(str(file), tokenizer=tokenizer, max_tokens=64, cache=Path(folder))
        scorer = LogRatioScorer(tokens=generator.normal(size=public.vocabulary))
        scores = np.concatenate([scorer(chunk) for chunk in public.chunks()])
        select(public, scores, count=rows // 200, most_overlap=0.5)
        return clocks() - begun


# ---- the table -----------------------------------------------------------------------------------


def measured(name: str, point: int) -> tuple[float, float, float]:
    """One point of a line: CPU seconds, seconds of the clock, and gigabytes at the peak."""
    if name == "rows":
        taken = public_text(point)
    else:
        taken = a_run(**STILL | (OF_ROUNDS if name == "rounds" else {}) | {name: point})
        # In the first round records are made.
        taken = taken.sum(axis=0) if name == "rounds" else np.median(taken[1:], axis=0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return float(taken[0]), float(taken[1]), peak


def row(name: str, points: Sequence[int]) -> str:
    """One line of the table, every point in a process of its own."""
    cpu, shown = [], []
    for point in points:
        seconds, clock, peak = apart(measured, name, point)
        cpu.append(seconds)
        shown.append(f"{point:,}: {seconds:.3g} CPU s, {clock:.3g} s, {peak:.2f} GB")
    slope = np.polyfit(np.log(points), np.log(cpu), 1)[0]
    return f"| {name} | {slope:.2f} | {'; '.join(shown)} |"


def main(given: Sequence[str] | None = None) -> None:
    """Measure every line and print its slope."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(POINTS), help=", ".join(POINTS))
    names = parser.parse_args(given).names
    print(f"{machine()}\n\n| what varies | slope | at each |\n|---|---|---|", flush=True)
    for name in names:
        print(row(name, POINTS[name]), flush=True)


if __name__ == "__main__":
    main()
