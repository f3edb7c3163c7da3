r"""A run of a comparison's method in this process alone: no server, no Ray, one model on one GPU.

    python -m scripts.experiments.in_one_process COMPARISON --config gemma-gpu --method popri \
        --run-dir DIR --set synthetic-samples=3200

COMPARISON is the folder of a comparison: its users, delta and nodes are the run's, so that what the
method writes can be put beside that comparison's rows (`scripts.experiments.students_of_texts`).
The strategy, the client app and the messages between them are those of `privsyn compare`; Flower's
simulation between them is not. For machines on which the simulation is not installed, and where a
second is dear. The same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flower_privsyn.client_apps.training import create_training_app
from flower_privsyn.comparison.plan import APP
from flower_privsyn.errors import ConfigError, PrivsynError
from flower_privsyn.files import read_json
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.runs import RunDirectory
from flower_privsyn.strategies import strategy_of
from flower_privsyn.testing import LoopbackGrid, flower_identity


def settings(
    comparison: Path,
    *,
    config: str,
    method: str,
    epsilon: float,
    seed: int,
    given: Sequence[str],
) -> dict[str, Any]:
    """The run configuration of a method on the users of a comparison."""
    fixed = read_json(comparison / "compare.json").get("fixed")
    data = comparison / "data" / "private.jsonl"
    if fixed is None or not data.is_file():
        raise ConfigError(f"{comparison} is no comparison that has begun: it holds no users")
    with data.open(encoding="utf-8") as lines:
        users = sum(1 for _ in lines)
    return {
        **resolve_config(load_app(APP), config_name=f"{config}/{method}", settings=given),
        "data": str(data.resolve()),
        "num-users": users,
        "epsilon": epsilon,
        "delta": fixed["delta"],
        "seed": seed,
    }


def main(words: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("comparison", type=Path, help="folder of a comparison that has begun")
    parser.add_argument("--config", required=True, help="folder in the comparison's conf/")
    parser.add_argument("--method", required=True)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="given")
    options = parser.parse_args(words)
    try:
        values = settings(
            options.comparison,
            config=options.config,
            method=options.method,
            epsilon=options.epsilon,
            seed=options.seed,
            given=options.given,
        )
        values |= {"run-dir": str(options.run_dir), "resume": options.run_dir.exists()}
        begun = time.monotonic()
        with flower_identity():
            grid = LoopbackGrid(
                create_training_app(), num_nodes=values["num-nodes"], run_config=values
            )
            strategy_of(values).start(grid)
    except PrivsynError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    run = RunDirectory.open(options.run_dir)
    print(f"{options.method}: {run.status} after {time.monotonic() - begun:.0f} s, {run.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
