"""Train the bundled public models from a public corpus: tokenizer, four networks, cards, curves.

One command does everything, on CPU cores::

    python research/public_models/train.py --corpus DIR --private NAME=FILES NAME=FILES

See README.md beside this file for the corpus format, the times and the choices made.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corpus import ROOT, prepare
from evaluate import evaluate, prepare_private
from export import complete, draw_curves, export, load
from networks import RECIPES, Recipe
from private import PrivateCorpus, prove_unseen, training_texts
from training import Settings, train

from flower_privsyn.embedding.machine import processor

STAGES = ("prepare", "unseen", "train", "evaluate", "export")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, help="folder of public-*.jsonl.gz")
    parser.add_argument(
        "--private",
        nargs="+",
        default=[],
        metavar="NAME=FILES",
        help="private corpora to test on, JSONL, wildcards allowed; nothing is trained on them",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "flower_privsyn" / "models")
    parser.add_argument(
        "--curves",
        type=Path,
        default=Path(__file__).with_name("curves.png"),
        help="loss curves, PNG",
    )
    parser.add_argument("--work", type=Path, help="folder for intermediate files (kept)")
    parser.add_argument(
        "--max-minutes", type=float, default=120.0, help="all models together: CPU minutes"
    )
    parser.add_argument("--max-wall-minutes", type=float, default=240.0, help="wall, per model")
    parser.add_argument("--threads", type=int, default=1, help="threads per model")
    parser.add_argument("--seed", type=int, default=20240601)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--only", help="names of models, separated by commas")
    parser.add_argument(
        "--eval-tokens", type=int, default=262_144, help="read of each corpus in the evaluation"
    )
    parser.add_argument("--hardware", help="how the cards describe the machine")
    parser.add_argument("--stage", choices=("all", *STAGES), default="all")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the stages; the first model trains beside the others, one core each."""
    options = parse_arguments(arguments)
    recipes = {recipe.name: recipe for recipe in RECIPES}
    if options.only:
        unknown = sorted(set(options.only.split(",")) - set(recipes))
        if unknown:
            raise SystemExit(f"--only {unknown[0]}: there is no such model, only {list(recipes)}")
        recipes = {name: recipes[name] for name in options.only.split(",")}
    corpora = [PrivateCorpus.parse(argument) for argument in options.private]
    work = options.work or Path(tempfile.mkdtemp(prefix="public-models-"))
    work.mkdir(parents=True, exist_ok=True)
    stages = STAGES if options.stage == "all" else (options.stage,)
    if "prepare" in stages:
        if options.corpus is None:
            raise SystemExit("--corpus DIR is needed: the folder of public-*.jsonl.gz")
        prepare(options.corpus, work)
    if "unseen" in stages and corpora:
        prove_unseen(training_texts(work), corpora, keep=work / "unseen.json")
    if "train" in stages:
        given = list(sys.argv[1:] if arguments is None else arguments)
        _train_all(list(recipes.values()), work, options, given)
    if "evaluate" in stages:
        _evaluate_all(list(recipes.values()), work, corpora, options)
    if "export" in stages:
        hardware = options.hardware or describe_machine()
        for recipe in recipes.values():
            export(recipe, work, options.output, hardware=hardware)
        draw_curves([work / name / "training_log.json" for name in recipes], options.curves)


def settings_of(options: argparse.Namespace) -> Settings:
    """Turn the command line into the settings of a training."""
    return Settings(
        minutes=options.max_minutes,
        wall_minutes=options.max_wall_minutes,
        threads=options.threads,
        seed=options.seed,
        compile=options.compile,
        hardware=options.hardware or describe_machine(),
    )


def describe_machine() -> str:
    """Say what this machine computes with, for the cards."""
    found = processor()
    name = found.get("model name") or found["name"] or found["machine"]
    return f"{os.cpu_count()} cores ({name})"


def _train_all(
    recipes: list[Recipe], work: Path, options: argparse.Namespace, given: list[str]
) -> None:
    if len(recipes) == 1:
        train(recipes[0], work, settings_of(options))
        return
    command = [sys.executable, __file__, *given, "--work", str(work)]
    names = [recipe.name for recipe in recipes]
    # A process each: a compiled model's memory goes when it ends.
    running = [_train_in_turn(command, lane) for lane in (names[:1], names[1:])]
    if sum(process.wait() != 0 for process in running):
        raise SystemExit("training failed; the lines above say why")


def _train_in_turn(command: list[str], names: list[str]) -> subprocess.Popen[bytes]:
    """Train models one after another in processes of their own."""
    lines = [shlex.join([*command, "--stage", "train", "--only", name]) for name in names]
    return subprocess.Popen(["/bin/sh", "-c", " && ".join(lines)])


def _evaluate_all(
    recipes: list[Recipe], work: Path, corpora: list[PrivateCorpus], options: argparse.Namespace
) -> None:
    import torch

    torch.set_num_threads(options.threads)
    drawn = {c.name: prepare_private(work, c, tokens=options.eval_tokens) for c in corpora}
    for recipe in recipes:
        folder = work / recipe.name
        complete(folder, recipe, work)
        model = load(folder, recipe)
        figures: dict[str, Any] = evaluate(recipe, model, work, corpora, tokens=options.eval_tokens)
        figures["drawn"] = drawn
        (folder / "evaluation.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
