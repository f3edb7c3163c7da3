"""What the generator writes after 0, 5, 10 and 20 rounds: POPri and the kernel sketch, end to end.

    python -m scripts.experiments.end_to_end run --private FILE... --work DIR --method popri
    python -m scripts.experiments.end_to_end report --work DIR --results docs/end_to_end.json \
        --plot docs/end_to_end.png

`run` is one run of one method with one seed at the same epsilon for all: real users, the bundled
language model, the package's own strategies, queries, ledger and noise, over messages that stay in
this process. A run that was interrupted is continued. `report` holds what every round wrote against
texts of users who took no part: squared Fréchet distance and squared MMD of embeddings, and the
mean distance between two texts of a round, which falls when a generator collapses. Its figures read
private text without noise: they are an evaluation, and no method sees them.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.data import Cut, Users
from flower_privsyn.embedding import Embedder, load_embedder
from flower_privsyn.evaluation import STAMP
from flower_privsyn.evaluation.distribution import frechet_distance, mean_discrepancy
from flower_privsyn.files import read_json_lines, write_json
from flower_privsyn.queries import median_bandwidth
from flower_privsyn.runs import RunDirectory
from scripts.experiments.people import deal

METHODS = {"popri": "POPri", "kernel-sketch": "kernel sketch"}
#: One hue per method, of Okabe and Ito's palette for colour-blind readers.
COLOURS = {"popri": "#0072B2", "kernel-sketch": "#009E73"}
MARKERS = {"popri": "o", "kernel-sketch": "^"}

Float32 = npt.NDArray[np.float32]


# ------------------------------------------------------------------------------------------ running


def configuration(options: argparse.Namespace, folder: Path) -> Any:
    """The settings of one run; what is not named here is the strategy's default."""
    from flower_privsyn.strategies import KernelSketchConfig, POPriConfig

    common = {
        "run_dir": str(folder),
        "num_nodes": 1,
        "seed": 1000 + options.seed,
        "epsilon": options.epsilon,
        # One over n log n, as in the papers.
        "delta": 1.0 / (options.users * math.log(options.users)),
        "num_prompts": options.prompts,
        "responses_per_prompt": options.responses,
        "rejected_rank": min(5, options.responses),
        "learning_rate": options.learning_rate,
        "training_epochs": options.epochs,
        "training_batch_size": options.batch_size,
        "generator": options.generator,
        "max_new_tokens": 72,
        "synthetic_samples": options.prompts * options.responses,
    }
    if options.method == "kernel-sketch":
        return KernelSketchConfig(
            **common, refinement_rounds=options.rounds, checkpoint="last", objective="witness"
        )
    return POPriConfig(**common, num_rounds=options.rounds)


def run(options: argparse.Namespace) -> None:
    """Run one method with one seed, or go on with it."""
    from flower_privsyn.client_apps import create_client_app
    from flower_privsyn.strategies import KernelSketch, POPri
    from flower_privsyn.testing import LoopbackGrid, flower_identity

    folder = options.work / f"{options.method}-{options.seed}"
    state = folder / "state.json"
    if state.exists() and json.loads(state.read_text())["status"] == "finished":
        print(f"{folder} has finished", flush=True)
        return
    options.work.mkdir(parents=True, exist_ok=True)
    _, private = deal(options.private, options.held_out, options.users)
    config = configuration(options, folder)
    if state.exists():
        config = type(config)(**{**vars(config), "resume": True})
    app = create_client_app(lambda _: private, cache_directory=options.work / "cache")
    strategy = (KernelSketch if options.method == "kernel-sketch" else POPri)(config)
    started = time.monotonic()
    with flower_identity():
        strategy.start(LoopbackGrid(app, num_nodes=1))
    seconds = time.monotonic() - started
    write_json(folder / "experiment.json", {**settings(options), "seconds": seconds})
    print(f"{folder} finished in {seconds:.0f} s", flush=True)


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that the report prints."""
    names = ("method", "seed", "epsilon", "users", "held_out", "prompts", "responses", "rounds")
    names += ("learning_rate", "epochs", "batch_size")
    return {name: getattr(options, name) for name in names}


# ------------------------------------------------------------------------------------------ report


def written_after(folder: Path, method: str, updates: int) -> list[str]:
    """What the generator wrote after so many updates, in the order written.

    The responses of round r are written after r - 1 updates. After the last update POPri writes
    its synthetic corpus, from prompts of the same kind.
    """
    import pyarrow.parquet as pq

    run = RunDirectory.open(folder)
    rounds = run.refinement if method == "kernel-sketch" else run.rounds
    file = rounds.files(updates + 1).candidates
    if file.exists():
        return [str(text) for text in pq.read_table(file).column("text").to_pylist()]
    return [str(record["text"]) for record in read_json_lines(run.synthetic_jsonl)]


def mean_distance(embeddings: Float32) -> float:
    """Mean Euclidean distance between two different texts."""
    rows = embeddings.astype(np.float64)
    squares = (rows**2).sum(1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares[None] - 2 * rows @ rows.T, 0.0))
    n = len(rows)
    return float(distances.sum() / (n * (n - 1)))


def runs(work: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Finished runs of a folder."""
    for file in sorted(work.glob("*/experiment.json")):
        yield file.parent, json.loads(file.read_text())


def report(options: argparse.Namespace) -> None:
    """Measure every finished run and write results, table and picture."""
    found = list(runs(options.work))
    if not found:
        raise SystemExit(f"no finished run in {options.work}")
    shared = found[0][1]
    embedder = load_embedder("all-MiniLM-L6-v2")
    others, private = deal(options.private, shared["held_out"], shared["users"])
    held_out = embedder.embed(one_text_each(embedder, others))
    bandwidth = median_bandwidth(held_out)
    updates = [u for u in options.updates if u <= shared["rounds"]]
    texts = {
        (method["method"], method["seed"], u): written_after(folder, method["method"], u)
        for folder, method in found
        for u in updates
    }
    # Equal numbers of texts, since the Frechet distance depends on it.
    size = min(len(rows) for rows in texts.values())
    vectors = {key: embedder.embed(rows[:size]) for key, rows in texts.items()}
    rows = []
    for (method, seed, update), embeddings in vectors.items():
        rows.append(
            {
                "method": method,
                "seed": seed,
                "updates": update,
                "frechet": frechet_distance(embeddings, held_out).squared,
                "mmd": mean_discrepancy(embeddings, held_out, bandwidth=bandwidth).squared,
                "mean_distance": mean_distance(embeddings),
            }
        )
    # What a perfect generator would reach with as many texts.
    floor = embedder.embed(one_text_each(embedder, private)[:size])
    summary = {
        "stamp": STAMP,
        "settings": {k: v for k, v in shared.items() if k not in ("method", "seed", "seconds")},
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "texts_per_round": size,
        "held_out_texts": len(held_out),
        "bandwidth": bandwidth,
        "private_text": {
            "frechet": frechet_distance(floor, held_out).squared,
            "mmd": mean_discrepancy(floor, held_out, bandwidth=bandwidth).squared,
            "mean_distance": mean_distance(floor),
        },
        "minutes": {folder.name: round(record["seconds"] / 60, 1) for folder, record in found},
        "rows": rows,
    }
    write_json(options.results, summary)
    print(table(summary))
    if options.plot is not None:
        plot(options.plot, summary, vectors, held_out)


def one_text_each(embedder: Embedder, users: Users) -> list[str]:
    """One sample of at most 64 tokens of every user, cut as the clients cut them."""
    samples = Cut(max_tokens=64, max_samples=1).samples(users, tokenizer=embedder.tokenizer)
    return list(samples.texts)


def mean_and_error(values: Sequence[float]) -> str:
    """Mean over seeds and its standard error."""
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{np.mean(values):.4f} ± {error:.4f}"


def table(summary: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "| method | updates | squared Fréchet | squared MMD | mean distance of two texts |",
        "|---|---|---|---|---|",
    ]
    rows = summary["rows"]
    for method in METHODS:
        for update in sorted({row["updates"] for row in rows}):
            of = [r for r in rows if (r["method"], r["updates"]) == (method, update)]
            if of:
                cells = (
                    mean_and_error([row[key] for row in of])
                    for key in ("frechet", "mmd", "mean_distance")
                )
                lines.append(f"| {METHODS[method]} | {update} | {' | '.join(cells)} |")
    private = summary["private_text"]
    lines.append(
        f"| private text itself | - | {private['frechet']:.4f} | {private['mmd']:.4f} | "
        f"{private['mean_distance']:.4f} |"
    )
    return "\n".join(lines)


def plot(
    path: Path,
    summary: dict[str, Any],
    vectors: dict[tuple[str, int, int], Float32],
    held_out: Float32,
) -> None:
    """Distances over rounds on top, and below what was written in the plane of two components."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = summary["rows"]
    methods = [method for method in METHODS if any(r["method"] == method for r in rows)]
    updates = sorted({row["updates"] for row in rows})
    figure = plt.figure(figsize=(12, 3.4 + 2.6 * len(methods)), layout="constrained")
    top, below = figure.subfigures(2, 1, height_ratios=[3.2, 2.6 * len(methods)])
    panels = (
        ("frechet", "squared Fréchet distance"),
        ("mmd", "squared MMD"),
        ("mean_distance", "mean distance of two texts"),
    )
    for axis, (key, label) in zip(top.subplots(1, 3), panels, strict=True):
        for method in methods:
            of = [
                [r[key] for r in rows if (r["method"], r["updates"]) == (method, u)]
                for u in updates
            ]
            errors = [np.std(v, ddof=1) / math.sqrt(len(v)) if len(v) > 1 else 0.0 for v in of]
            axis.errorbar(
                updates,
                [np.mean(v) for v in of],
                yerr=errors,
                label=METHODS[method],
                color=COLOURS[method],
                marker=MARKERS[method],
                capsize=3,
            )
        axis.axhline(
            summary["private_text"][key], color="0.4", linestyle=":", label="private text itself"
        )
        axis.set(xlabel="updates of the generator", ylabel=label, xticks=updates)
        axis.grid(alpha=0.3)
    top.axes[0].legend(fontsize=8)
    centre = held_out.mean(axis=0)
    plane = np.linalg.svd(held_out - centre, full_matrices=False)[2][:2].T
    shown = (held_out - centre) @ plane
    seed = min(seed for _, seed, _ in vectors)
    grid = below.subplots(len(methods), len(updates), sharex=True, sharey=True, squeeze=False)
    for line, method in zip(grid, methods, strict=True):
        for axis, update in zip(line, updates, strict=True):
            axis.scatter(*shown.T, s=3, color="0.75", label="private, held out", rasterized=True)
            points = (vectors[method, seed, update] - centre) @ plane
            axis.scatter(*points.T, s=5, color=COLOURS[method], alpha=0.7, rasterized=True)
            axis.set_title(f"{METHODS[method]}, {update} updates", fontsize=9)
        line[0].set_ylabel("2nd component")
    for axis in grid[-1]:
        axis.set_xlabel("1st component")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="one method, one seed")
    one.add_argument("--method", choices=tuple(METHODS), required=True)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--epsilon", type=float, default=1.0)
    one.add_argument("--users", type=int, default=3000)
    one.add_argument("--held-out", type=int, default=1000)
    one.add_argument("--prompts", type=int, default=32)
    one.add_argument("--responses", type=int, default=6)
    one.add_argument("--rounds", type=int, default=20)
    one.add_argument("--learning-rate", type=float, default=2e-3)
    one.add_argument("--epochs", type=int, default=1)
    one.add_argument("--batch-size", type=int, default=16)
    one.add_argument("--generator", default="privsyn-lm")
    figures = commands.add_parser("report", help="figures of all finished runs")
    figures.add_argument("--results", type=Path, required=True, help="JSON to write")
    figures.add_argument("--plot", type=Path, help="PNG to write")
    figures.add_argument("--updates", type=int, nargs="+", default=[0, 5, 10, 20])
    for command in (one, figures):
        command.add_argument("--private", type=Path, nargs="+", required=True, help="JSONL files")
        command.add_argument("--work", type=Path, required=True, help="folder of the runs")
    return parser.parse_args()


def main() -> None:
    """Run, or report."""
    options = parse_arguments()
    (run if options.command == "run" else report)(options)


if __name__ == "__main__":
    main()
