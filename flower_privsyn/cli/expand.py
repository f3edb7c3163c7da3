"""`privsyn expand`: more of a finished run, or its result anew, free of privacy cost."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from flower_privsyn.cli.options import RunDir, Settings, given, option
from flower_privsyn.cli.output import FAILED, tell
from flower_privsyn.errors import ConfigError, RunDirectoryError

if TYPE_CHECKING:
    from flower_privsyn.run import RunDirectory
    from flower_privsyn.strategies.more_text import MoreText, Written


#: What a run holds besides what was made of its releases. The last one makes a run of a folder.
_RELEASED: Final = (
    "ledger.jsonl",
    "metrics.jsonl",
    "state.json",
    "bigrams.npy",
    "rounds",
    "checkpoint-*.npz",
    "config.json",
)


def expand(
    run_dir: RunDir,
    samples: Annotated[
        int | None, option("N", "texts in the file in the end (default: 1000)")
    ] = None,
    settings: Settings = None,
    seed: Annotated[int | None, option("N", "another one gives other texts (default: 0)")] = None,
    anew: Annotated[
        str | None,
        option("NEW", "instead: text and student of a joint sketch once more, in a run directory"),
    ] = None,
) -> int:
    """Make more of what a finished run released, at no privacy cost.

    DIR is the run directory. Its survivors, or where it keeps none its synthetic texts, stand in
    the prompts. The texts go into a file in DIR of their own, one for each generator, settings and
    seed; the same command goes on with that file.
    Where texts have classes, every prompt and its text are of one class, and there are as many of
    each as the released votes say. A run of CTCL writes by its topics, with the generator it has
    trained. --set names another generator, prompt, temperature, or how a server is reached.

    With --anew all that a joint sketch made of its release is made once more, with what --set says
    of how public text is chosen, how student and teacher learn, and what is written. Nobody is
    asked, and nothing is spent.
    """
    if anew is None:
        return _more(run_dir, samples, settings or [], seed or 0)
    if (samples, seed) != (None, None):
        raise ConfigError("--anew goes with --set alone, which says how much is made, and of what")
    from flower_privsyn.cli.run import resume
    from flower_privsyn.files import expanded
    from flower_privsyn.run import RunDirectory

    copied = copy_released(RunDirectory.open(run_dir), expanded(anew).absolute())
    try:
        status = resume(str(copied.path), settings)
    except (ConfigError, RunDirectoryError):  # the command is typed again, with NEW
        for folder in (copied.path, copied.owner.path):
            shutil.rmtree(folder)
        raise
    if status == 0:
        print(f"Nothing was spent: the release is that of {run_dir}.")
    return status


def _more(run_dir: str, samples: int | None, changed: list[str], seed: int) -> int:
    from flower_privsyn.checks import check_whole
    from flower_privsyn.models import provenance
    from flower_privsyn.progress import Progress
    from flower_privsyn.run import RunDirectory
    from flower_privsyn.strategies.more_text import MoreText, write_more

    wanted = check_whole("--samples", 1000 if samples is None else samples, ge=1)
    check_whole("--seed", seed, ge=0, le=2**64 - 1)
    run = RunDirectory.open(run_dir)
    taken = {name.replace("_", "-"): field.default for name, field in MoreText.declared.items()}
    said = given(changed, {**taken, "generator": ""}, "privsyn expand")
    settings = MoreText.of(run, {key.replace("-", "_"): value for key, value in said.items()})
    if "generator" in said:  # the run's own has the stamp of the run
        provenance.refuse({"generator": said["generator"]})
    progress = Progress(tell)
    try:
        written = write_more(run, settings, num_samples=wanted, seed=seed, progress=progress)
    except KeyboardInterrupt:
        sys.stderr.write("What was written is kept; the same command goes on with it.\n")
        raise
    return _said(run, settings, written, wanted)


def _said(run: RunDirectory, settings: MoreText, written: Written, samples: int) -> int:
    """Print what was written and what holds for it; the exit status."""
    from flower_privsyn.cli.inspect import epsilons
    from flower_privsyn.report.summary import RunSummary

    asked = settings.prompt and written.kind != "topics"
    how = f" with the prompt {settings.prompt}" if asked else ""
    print(
        f"Texts: {written.path} ({written.texts:,}), by {settings.generator}{how}, from "
        f"{written.seeds:,} {written.kind}"
    )
    if written.by_class is not None:
        print("Of each class: " + ", ".join(f"{k} {n:,}" for k, n in written.by_class.items()))
    summary = RunSummary.of(run)
    if summary.releases:
        print(f"Nothing was spent. What holds for the run holds for them:\n{epsilons(summary)}")
    if written.texts < samples:
        sys.stderr.write(
            f"Only {written.texts:,} of {samples:,} texts could be kept; dropped: "
            + ", ".join(f"{count:,} {reason}" for reason, count in written.dropped.items() if count)
            + "\n"
        )
        return FAILED
    return 0


def copy_released(run: RunDirectory, output: Path) -> RunDirectory:
    """A run directory with the releases and the ledger of another one, and nothing made of them.

    To be resumed: every round is over, so nobody is asked and nothing is charged, and the settings
    of what is made of the releases are free.

    Formal guarantee:
        None of its own: the copy states the releases of the run that it was made of, which are the
        same ones. No copy is made that could ask anybody again.

    Args:
        run: a finished run of a joint sketch, with all rounds that were planned.
        output: the folder of the copy, which does not exist.

    Raises:
        RunDirectoryError: the run has not finished.
        ConfigError: the run is another method's or ended early, or its last round was left out and
            could be asked again; or `output` or what is beside it for the owner exists.
    """
    from flower_privsyn.run import RunDirectory
    from flower_privsyn.run.rounds import all_asked

    strategy = str(run.document.get("strategy", ""))
    if strategy != "JointSketch":  # which asks first, and makes all of its result afterwards
        raise ConfigError(
            f"{run.path} is a run of {strategy or 'another app'}; what can be made again of its "
            "releases alone is a run of JointSketch"
        )
    run.refuse_unfinished()
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
    copied = RunDirectory(output)
    for folder in (output, copied.owner.path):
        if folder.exists():
            raise ConfigError(f"{folder} exists: name a folder that does not")
    output.mkdir(parents=True)
    copied.owner.remember(**run.owner.own)
    for source in (file for name in _RELEASED for file in run.path.glob(name)):
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, output / source.name)
    copied.mark_failed(ConfigError(f"its release is that of {run.path.name}, to be read again"))
    return RunDirectory.open(output)
