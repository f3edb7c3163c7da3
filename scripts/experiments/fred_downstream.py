"""F2 downstream: a model prefinetuned on mixtures, then trained on the nodes, measured on others.

`python -m scripts.experiments.fred_orders downstream --work FOLDER` runs it. A mixture of 2,000
texts has a share Y of the near corpus; privsyn-tiny is trained on it and then, across the users, by
DP-FedAvg through Flower's messages: 10 rounds of 100 users drawn by coin, noise multiplier 1.5, as
in the paper, which has more of them. Perplexity is that of people who took no part, outside the
budget: for research.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context

from flower_privsyn import DPFedAvg, DPFedAvgConfig, Users
from flower_privsyn.client_apps.training import create_training_app
from flower_privsyn.evaluation.language_model import evaluate_language_model
from flower_privsyn.testing import LoopbackGrid, flower_identity
from flower_privsyn.training.causal import CausalTraining, fine_tune
from scripts.experiments.fred_data import MAX_TOKENS, PARTS, Set, load
from scripts.experiments.fred_orders import FAR, SHARES, standard_error

SIZE, STEPS, BATCH, RATE = 2000, 120, 16, 1e-3
ROUNDS, COHORT, SAMPLES, MULTIPLIER, CLIP, LOCAL_RATE = 10, 100, 1, 1.5, 0.1, 0.3

#: The ends first, so that what is cut off says something.
ORDER = (10, 100, 40, 70, 95, 99)


def downstream(work: Path, parts: Sequence[str], *, seeds: int, on_nodes: Sequence[int]) -> None:
    """Train and measure; lines that are there are not made again.

    Args:
        work: folder of the sets.
        parts: of which users.
        seeds: of the training on a mixture.
        on_nodes: shares at which the model is trained on the nodes as well.
    """
    file = work / "downstream.jsonl"
    made = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {(row["part"], row["seed"], row["share"]) for row in made}
    for seed in range(seeds):
        for part in parts:
            for share in ORDER:
                if (part, seed, share) in known:
                    continue
                row = _measured(work, part, share, seed, on_nodes=share in on_nodes)
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(row) + "\n")
                print(row, flush=True)


def _measured(work: Path, part: str, share: int, seed: int, *, on_nodes: bool) -> dict[str, Any]:
    near, far = load(work, f"{part}-near").texts, load(work, f"public-{FAR}").texts
    kept = round(SIZE * share / 100)
    folder = work / "models" / f"{part}-{share}-{seed}"
    fine_tune(
        "privsyn-tiny",
        [*near[:kept], *far[: SIZE - kept]],
        settings=CausalTraining(
            max_steps=STEPS, batch_size=BATCH, learning_rate=RATE, max_tokens=MAX_TOKENS
        ),
        output=folder,
        seed=seed,
    )
    tested = load(work, f"{part}-tested")
    row = {"part": part, "share": share, "seed": seed, "before": _perplexity(folder, tested)}
    if on_nodes:
        shutil.rmtree(work / "runs" / folder.name, ignore_errors=True)
        users = load(work, f"{part}-users")
        row["after"], row["epsilon"] = _trained_on_nodes(work, folder, users, tested, seed)
    return row


def _trained_on_nodes(
    work: Path, model: Path, users: Set, tested: Set, seed: int
) -> tuple[float, float]:
    people = Users.from_rows(
        (f"user-{owner}", text) for owner, text in zip(users.owners, users.texts, strict=True)
    )

    def nodes(context: Context) -> Users:
        return people.deal(
            partition_id=int(context.node_config["partition-id"]),
            num_partitions=int(context.node_config["num-partitions"]),
        )

    config = DPFedAvgConfig(
        model=str(model),
        noise_multiplier=MULTIPLIER,
        delta=1e-6,
        num_rounds=ROUNDS,
        num_nodes=1,
        sampling="poisson",
        sampling_rate=COHORT / len(people),
        clip_norm=CLIP,
        local_learning_rate=LOCAL_RATE,
        trainable="lora",
        checkpoints="last",
        max_tokens=MAX_TOKENS,
        max_samples=SAMPLES,
        accept_noise=True,
        run_dir=str(work / "runs" / model.name),
        seed=seed,
    )
    with flower_identity():
        strategy = DPFedAvg(config)
        strategy.start(LoopbackGrid(create_training_app(nodes, device="cpu"), num_nodes=1))
    epsilon = float(strategy.run.state["summary"]["epsilon_release"])
    return _perplexity(strategy.run.path / "models" / "final", tested), epsilon


def _perplexity(model: Path, tested: Set) -> float:
    found = evaluate_language_model(
        str(model), tested.texts, owners=tested.owners, max_tokens=MAX_TOKENS, resamples=1
    )
    return found.perplexity.value


def show_downstream(work: Path) -> None:
    """Print perplexities by Y, and whether they fall."""
    file = work / "downstream.jsonl"
    if not file.exists():
        return
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    print("F2, downstream: perplexity by Y before and after training on nodes, and what it gains")
    for part in PARTS:
        means: dict[str, list[float]] = {"before": [], "after": [], "gain": []}
        for share in SHARES:
            own = [row for row in rows if (row["part"], row["share"]) == (part, share)]
            if not own:
                continue
            values = {
                "before": [row["before"] for row in own],
                "after": [row["after"] for row in own if "after" in row],
                "gain": [row["before"] - row["after"] for row in own if "after" in row],
            }
            told = []
            for key, one in values.items():
                if not one:
                    continue
                means[key].append(float(np.mean(one)))
                error = f" ± {standard_error(one):.3f}" if len(one) > 1 else ""
                told.append(f"{key} {np.mean(one):.3f}{error}")
            print(f"  {part}, {share:>3} %, {len(own)} seeds: " + ", ".join(told))
        falls = {key: bool((np.diff(one) < 0).all()) for key, one in means.items() if len(one) > 1}
        print(f"  {part}: falls at every step: {falls}")
