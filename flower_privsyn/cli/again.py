"""A finished run once more from its release: what was made of it is made otherwise, at no cost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from flower_privsyn.errors import ConfigError
from flower_privsyn.run.directory import RunDirectory
from flower_privsyn.run.rounds import all_asked
from flower_privsyn.run.run_format import how_to_resume

#: Strategies that ask first and make all of their result of the releases afterwards.
STRATEGIES: Final = ("JointSketch",)

#: What a run holds besides what was made of its releases.
_RELEASED: Final = (
    "config.json",
    "ledger.jsonl",
    "metrics.jsonl",
    "state.json",
    "bigrams.npy",
    "rounds",
)


def copy_released(run: RunDirectory, output: Path) -> RunDirectory:
    """A run directory with the releases and the ledger of another one, and nothing made of them.

    To be resumed: every round is over, so nobody is asked and nothing is charged, and the settings
    of what is made of the releases are free.

    Formal guarantee:
        None of its own: the copy states the releases of the run that it was made of, which are the
        same ones. No copy is made that could ask anybody again.

    Args:
        run: a finished run of one of `STRATEGIES`, with all rounds that were planned.
        output: the folder of the copy, which does not exist.

    Raises:
        ConfigError: the run is another method's, has not finished, ended early or was not started
            by `privsyn run`, or its last round was left out and could be asked again; or
            `output` or what is beside it for the owner exists.
    """
    strategy = str(run.document.get("strategy", ""))
    if strategy not in STRATEGIES:
        raise ConfigError(
            f"{run.path} is a run of {strategy or 'another app'}; what can be made again of its "
            f"releases alone is a run of {' or '.join(STRATEGIES)}"
        )
    if run.status != "finished":
        raise ConfigError(f"{run.path} has not finished: {how_to_resume(run.path)} goes on")
    # A copy of one that ended early could go on with the rounds that were left, and so could every
    # other copy.
    changes = run.document.get("changes", [])
    if any("num-rounds" in entry["settings"] for entry in changes):
        raise ConfigError(f"{run.path} ended early, by another num-rounds than it was begun with")
    if not all_asked(run, num_rounds=int(run.document["config"]["num-rounds"])):
        raise ConfigError(
            f"{run.path} has a round that would be asked again, by every copy: its last one was "
            "answered by too few"
        )
    own = run.owner.own
    if not own.get("launch"):
        raise ConfigError(
            f"{run.owner.path} does not show that you started {run.path} by `privsyn run`, which "
            "would go on with it"
        )
    for_the_owner = output.with_name(f"{output.name}.owner")
    for folder in (output, for_the_owner):
        if folder.exists():
            raise ConfigError(f"{folder} exists: name a folder that does not")
    unfinished = output.with_name(f".{output.name}.partial")
    for left in (unfinished, unfinished.with_name(f"{unfinished.name}.owner")):
        shutil.rmtree(left, ignore_errors=True)
    kept = (path.name for path in run.path.glob("checkpoint-*.npz"))
    for name in (*_RELEASED, *kept):
        source, target = run.path / name, unfinished / name
        if source.is_dir():
            shutil.copytree(source, target)
        elif source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    copied = RunDirectory(unfinished)
    copied.owner.remember(**own)
    copied.mark_failed(ConfigError(f"its release is that of {run.path.name}, to be read again"))
    copied.owner.path.rename(for_the_owner)
    unfinished.rename(output)
    return RunDirectory.open(output)
