"""`privsyn expand`: more of a finished run, or its result anew, free of privacy cost."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from flower_privsyn.cli.options import RunDir, Settings, option
from flower_privsyn.cli.output import FAILED, REFUSED
from flower_privsyn.cli.signals import Stopped, ended_by_signals
from flower_privsyn.errors import ConfigError, PrivsynError

if TYPE_CHECKING:
    from flower_privsyn.run import RunDirectory
    from flower_privsyn.strategies.more_text import MoreText, Written


def expand(
    run_dir: RunDir,
    samples: Annotated[
        int | None, option("N", "texts in the file in the end (default: 1000)")
    ] = None,
    settings: Settings = None,
    seed: Annotated[int | None, option("N", "another one gives other texts (default: 0)")] = None,
    output: Annotated[
        str | None,
        option("FILE", "where to write (default: DIR/expanded-<generator>-<seed>.jsonl)"),
    ] = None,
    anew: Annotated[
        str | None,
        option("NEW", "instead: text and student of a joint sketch once more, in a run directory"),
    ] = None,
) -> int:
    """Write more text after what a finished run released, or make its result anew.

    DIR is the run directory. Its survivors, or where it keeps none its synthetic texts, stand in
    the prompts. The texts go into a file of their own; the same command goes on with that file.
    Where texts have classes, every prompt and its text are of one class, and there are as many of
    each as the released votes say. A run of CTCL writes by its topics, with the generator it has
    trained. --set names another generator, prompt, temperature, or how a server is reached.

    With --anew all that a joint sketch made of its release is made once more, with what --set says
    of how public text is chosen, how student and teacher learn, and what is written. Nobody is
    asked, and nothing is spent.
    """
    if anew is None:
        return _more(run_dir, samples, settings or [], seed, output)
    if (samples, seed, output) != (None, None, None):
        raise ConfigError("--anew goes with --set alone, which says how much is made, and of what")
    return _anew(run_dir, anew, settings)


def _more(
    run_dir: str, samples: int | None, changed: list[str], seed: int | None, output: str | None
) -> int:
    from flower_privsyn.checks import check_whole
    from flower_privsyn.cli.terminal import follower
    from flower_privsyn.files import expanded
    from flower_privsyn.models import stamped
    from flower_privsyn.run import RunDirectory
    from flower_privsyn.run.progress import ShownProgress
    from flower_privsyn.strategies.more_text import MoreText, write_more

    wanted = check_whole("--samples", 1000 if samples is None else samples, ge=1)
    check_whole("--seed", seed or 0, ge=0, le=2**64 - 1)
    run = RunDirectory.open(run_dir)
    given = _given(changed)
    settings = MoreText.of(run, given)
    if "generator" in given:  # the run's own has the stamp of the run
        stamped.refuse("generator", given["generator"])
    try:
        with ended_by_signals(), follower() as follow:
            written = write_more(
                run,
                settings,
                num_samples=wanted,
                seed=seed or 0,
                output=None if output is None else expanded(output).absolute(),
                progress=ShownProgress(follow),
            )
    except (KeyboardInterrupt, Stopped):
        sys.stderr.write("What was written is kept; the same command goes on with it.\n")
        raise
    return _said(run, settings, written, wanted)


def _given(settings: list[str]) -> dict[str, Any]:
    """What `--set` says of how more text is written, by the names of `MoreText`."""
    from flower_privsyn.host.app import App, read_settings
    from flower_privsyn.strategies.more_text import MoreText

    defaults = {name.replace("_", "-"): field.default for name, field in MoreText.declared.items()}
    like_an_app = App(path=Path(), name="privsyn expand", defaults={**defaults, "generator": ""})
    found = read_settings(like_an_app, settings)
    return {key.replace("-", "_"): value for key, value in found.items()}


def _anew(run_dir: str, output: str, settings: list[str] | None) -> int:
    from flower_privsyn.cli.again import copy_released
    from flower_privsyn.cli.run import resume
    from flower_privsyn.files import expanded
    from flower_privsyn.run import RunDirectory

    copied = copy_released(RunDirectory.open(run_dir), expanded(output).absolute())
    refused = False  # not of one that was interrupted, which can be resumed
    try:
        status = resume(str(copied.path), settings)
        refused = status == REFUSED
    except PrivsynError:
        refused = True
        raise
    finally:
        if refused and not (copied.path / "models").exists():  # nothing has begun
            shutil.rmtree(copied.path)
            shutil.rmtree(copied.owner.path)
    if status == 0:
        print(f"Nothing was spent: the release is that of {run_dir}.")
    return status


def _said(run: RunDirectory, settings: MoreText, written: Written, samples: int) -> int:
    """Print what was written and what holds for it; the exit status."""
    from flower_privsyn.cli.inspect import epsilons, inspect_run

    how = "" if written.kind == "topics" else f" with the prompt {settings.prompt}"
    print(
        f"Texts: {written.path} ({written.texts:,}), by {settings.generator}{how}, from "
        f"{written.seeds:,} {written.kind}"
    )
    if written.by_class is not None:
        print("Of each class: " + ", ".join(f"{k} {n:,}" for k, n in written.by_class.items()))
    facts = inspect_run(run.path)
    if facts["releases"]:
        print(f"Nothing was spent. What holds for the run holds for them:\n{epsilons(facts)}")
    if written.texts < samples:
        sys.stderr.write(
            f"Only {written.texts:,} of {samples:,} texts could be kept; dropped: "
            + ", ".join(f"{count:,} {reason}" for reason, count in written.dropped.items() if count)
            + "\n"
        )
        return FAILED
    return 0
