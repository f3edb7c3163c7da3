"""How a round grows with users, nodes, candidates and rounds, beside the products nobody can avoid.

    python -m benchmarks.growth [--users 1000 10000 100000 1000000] [--nodes 1 10 100 1000]
                                [--candidates 1024 4096 16384] [--rounds 10 100 1000]

One of the four varies and the others stay at `STILL`; every point runs in a process of its own, the
nodes one after the other in it. The package's whole private path is in it: requests, answers, sums,
ledger and noise; models are not, whose time does not depend on how many users there are. So the
candidates are random, others in every round, and a text's vector is drawn by its hash. A round's
CPU seconds are those between its question and the next one's; memory is the process's at its peak,
with the file of users and their records in it. Last comes each line's slope on two logarithmic
scales: 1 is in proportion.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from benchmarks import Ratio, operations_per_second, unit_rows

DIMENSION, SAMPLES, TEXTS = 384, 5, 6144
METHODS = ("votes", "similarities")
STILL = {"users": 10_000, "nodes": 16, "candidates": 2048, "rounds": 4}
#: Where rounds vary, what a round itself takes should be little.
OF_ROUNDS = {"users": 200, "nodes": 2, "candidates": 64}


class HashVectors:
    """Unit vectors that a text's hash draws: a model that costs nothing."""

    dimension = DIMENSION
    fingerprint = f"hash-{DIMENSION}"

    @property
    def tokenizer(self) -> Any:
        """One token a text: each is one record."""
        from tokenizers import Tokenizer, models

        return Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))

    def embed(
        self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
    ) -> npt.NDArray[np.float32]:
        """(n, 384) float32."""
        vectors = np.concatenate(
            [
                unit_rows(np.random.default_rng(zlib.crc32(text.encode())), 1, DIMENSION)
                for text in texts
            ]
        )
        if progress is not None:
            progress(len(texts))
        return vectors


def population(path: Path, users: int) -> None:
    """Users with five of 6,144 texts each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    owners = np.repeat(np.arange(users), SAMPLES)
    texts = np.random.default_rng(0).integers(TEXTS, size=len(owners))
    columns = [pa.array(values).cast(pa.string()) for values in (owners, texts)]
    pq.write_table(pa.table(columns, names=["client_id", "text"]), path)


def measured(method: str, users: int, nodes: int, candidates: int, rounds: int) -> dict[str, float]:
    """One run: CPU seconds of a round and of all rounds, and gigabytes at the peak."""
    from flower_privsyn.client_apps.handlers import create_client_app
    from flower_privsyn.data import load_users
    from flower_privsyn.queries import MeanSimilarity, NearestNeighborHistogram, Query
    from flower_privsyn.strategies import (
        Method,
        PrivateSumConfig,
        PrivateSumStrategy,
        Question,
        RecordSource,
        ReleasedSum,
        RunContext,
        State,
    )
    from flower_privsyn.testing import LoopbackGrid, flower_identity

    query: Query = (
        MeanSimilarity(max_samples=SAMPLES)
        if method == "similarities"
        else NearestNeighborHistogram(max_samples=SAMPLES)
    )
    began: dict[int, float] = {}

    class Asking(Method):
        """The question about random candidates, round after round."""

        queries = (query,)

        def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
            self.place = place
            return (RecordSource(fingerprint=HashVectors.fingerprint, dimension=DIMENSION),)

        def ask(self, state: State, number: int) -> Question:  # noqa: ARG002
            began.setdefault(number, time.process_time())
            drawn = unit_rows(np.random.default_rng(number), candidates, DIMENSION)
            if isinstance(query, MeanSimilarity):
                return Question(query, query.broadcast(drawn, prompt=np.arange(candidates) // 10))
            return Question(query, {"candidates": drawn})

        def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:  # noqa: ARG002
            return state

        def finish(self, state: State) -> dict[str, Any]:  # noqa: ARG002
            began[rounds + 1] = time.process_time()
            return {}

    @final
    class Strategy(PrivateSumStrategy):
        """That asks it."""

    with tempfile.TemporaryDirectory() as folder, flower_identity():
        file = Path(folder) / "users.parquet"
        population(file, users)
        everybody = load_users(file)
        config = PrivateSumConfig(
            num_rounds=rounds, num_nodes=nodes, max_samples=SAMPLES, noise_multiplier=1.0,
            accept_noise=True, run_dir=str(Path(folder) / "run"),
        )  # fmt: skip
        app = create_client_app(
            lambda context: everybody.partition(
                partition_id=int(context.node_config["partition-id"]), num_partitions=nodes
            ),
            embedder=lambda name, precision: HashVectors(),  # noqa: ARG005
            cache_directory=Path(folder) / "cache",
        )
        Strategy(config, Asking()).start(LoopbackGrid(app, num_nodes=nodes))
    seconds = np.diff([began[number] for number in sorted(began)])
    return {
        "round": statistics.median(seconds[1:]),
        "all": float(seconds.sum()),
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def products(method: str, users: int, candidates: int) -> float:
    """CPU seconds of the question's matrix products at the speed of a large one."""
    rows = users * SAMPLES
    operations = 2.0 * rows * candidates * DIMENSION
    if method == "similarities":
        operations = rows * DIMENSION + 2.0 * (users + candidates) * DIMENSION**2
    return operations / operations_per_second()


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Measure every line and print its slope."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, nargs="*", default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 10, 100, 1000])
    parser.add_argument("--candidates", type=int, nargs="*", default=[1024, 4096, 16_384])
    parser.add_argument("--rounds", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=METHODS)
    arguments = parser.parse_args(given)
    found = []
    print("method        what varies    slope    at each: CPU s a round (all rounds), peak GB")
    for method in arguments.methods:
        for name in STILL:
            points: list[int] = getattr(arguments, name)
            seconds, shown = [], []
            for point in points:
                size = STILL | (OF_ROUNDS if name == "rounds" else {}) | {name: point}
                with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as own:
                    one = own.submit(measured, method, **size).result()
                seconds.append(one["all" if name == "rounds" else "round"])
                shown.append(f"{point:,}: {seconds[-1]:.3g} s, {one['gigabytes']:.2f} GB")
                if name == "users":
                    floor = products(method, point, size["candidates"])
                    part = f"a round of {method}, {point:,} users"
                    found.append(
                        Ratio(
                            part=part,
                            other="its products",
                            kind="floor",
                            ours=[seconds[-1]],
                            theirs=[floor],
                        )
                    )
            if len(points) > 1:
                slope = np.polyfit(np.log(points), np.log(seconds), 1)[0]
                print(f"{method:13} {name:13} {slope:6.2f}    {'; '.join(shown)}", flush=True)
    return found


if __name__ == "__main__":
    main()
