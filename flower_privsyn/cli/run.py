"""`privsyn run` and `privsyn resume`: a Flower app on this machine, followed to its end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from flower_privsyn import environment
from flower_privsyn.cli.evaluate import evaluate as evaluate_command
from flower_privsyn.cli.inspect import SAMPLES, epsilons, show_ranking
from flower_privsyn.cli.options import Config, Evaluate, NewRunDir, RunDir, Settings, option
from flower_privsyn.cli.output import FAILED, INTERRUPTED, REFUSED, complain, plain_line, tell
from flower_privsyn.files import quoted

#: Below it a sketch says so little that the end of a run tells.
_LITTLE_TRUST: Final = 0.2

if TYPE_CHECKING:
    from flower_privsyn.host.launch import Outcome


def run(
    app: Annotated[str, typer.Argument(metavar="APP", hidden=True)],
    run_dir: NewRunDir = None,
    config: Config = None,
    settings: Settings = None,
    evaluate: Evaluate = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="have Flower's own simulation run it, as `flwr run` does")
    ] = False,
) -> int:
    """Run a Flower app on this machine and follow it to its end.

    APP is the folder of the app. The exit status is 0 only when the run has finished, and the app
    has. Ctrl-C ends a run after its open round; a second one ends it at once.
    """
    from flower_privsyn.dry_run import check_app
    from flower_privsyn.host import app as host_app
    from flower_privsyn.host import launch
    from flower_privsyn.models.threads import most_threads

    loaded = host_app.load_app(app)
    values = host_app.resolve_config(loaded, config_name=config, settings=settings or ())
    report = check_app(loaded, values, run_dir=run_dir, evaluate=evaluate, starting=True)
    for diagnostic in report.of_level("warning"):
        if diagnostic.topic != "settings":  # that an app chooses its strategy in its code
            of = " (counted in private text, for its owner)" if diagnostic.topic == "data" else ""
            sys.stderr.write(f"privsyn: warning: {diagnostic.sentence}{of}\n")
    for sentence in dict.fromkeys(diagnostic.sentence for diagnostic in report.of_level("stops")):
        complain(sentence, REFUSED)
    if not report.ready:
        return REFUSED
    path = launch.place_of(loaded, values, run_dir)
    sys.stderr.write(
        f"Running {loaded.name} in {path}, with at most {most_threads()} threads "
        f"({environment.THREADS})\n"
    )
    with _following(path):
        outcome = launch.run_app(loaded, path, values, ray=ray, say=tell)
    status = show_outcome(outcome)
    if evaluate is None or status != 0:
        return status
    return evaluate_command(str(path), users=evaluate)


def resume(
    run_dir: RunDir,
    settings: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "go on with another value of a setting that no release depends on, such as "
            "generator or accept-noise; may be given several times",
            "--set",
        ),
    ] = None,
    app: Annotated[
        str | None,
        option("APP", "folder of the app, where you did not start the run or the app has moved"),
    ] = None,
) -> int:
    """Continue an interrupted run after its last finished round.

    DIR is the run directory. The run goes on with its ledger and the settings it was started with,
    except for those of --set. Where you did not start it, name the app: its settings and those of
    --set must be the run's.
    """
    from flower_privsyn.host import launch
    from flower_privsyn.host.app import load_app

    path, loaded = Path(run_dir), None if app is None else load_app(app)
    with _following(path):
        outcome = launch.resume_run(path, app=loaded, settings=settings or (), say=tell)
    return show_outcome(outcome)


@contextlib.contextmanager
def _following(path: Path) -> Iterator[None]:
    """Say how to go on when interrupted."""
    from flower_privsyn.run import RunDirectory

    try:
        yield
    except KeyboardInterrupt:
        if (path / "config.json").is_file() and RunDirectory(path).status != "finished":
            sys.stderr.write(
                f"Continue with: privsyn resume {quoted(path.absolute())}\n"
                "A round that nodes were answering is charged.\n"
            )
        raise


def show_outcome(outcome: Outcome) -> int:
    """Say how a run ended, what it spent and where its files are; return the exit status."""
    from flower_privsyn.messages.wire import NODE_LOG
    from flower_privsyn.run import RunDirectory
    from flower_privsyn.run.directory import OwnerFolder
    from flower_privsyn.run.run_format import was_interrupted

    log = OwnerFolder(outcome.path).log_file
    finished = RunDirectory(outcome.path).status == "finished"
    if finished:  # whatever the app did after it
        _show_result(outcome.path)
    if outcome.error is not None:
        if outcome.path.is_dir() and not finished:  # nothing is left of a run that has not begun
            sys.stderr.write(f"Run directory: {outcome.path}\n")
        if was_interrupted(outcome.error):
            return complain(outcome.error, INTERRUPTED)
        if not outcome.unexpected:
            # A node's reasons are in its own log, which is this one here.
            here = f"\nThe nodes' log is {log}" if NODE_LOG in outcome.error else ""
            return complain(outcome.error + here, REFUSED)
        return complain(f"{outcome.error}\nThe log is {log}", FAILED)
    if not finished:  # an app that keeps no run directory: there is only Flower's word and its log
        print(f"The app finished. The log is {log}")
    return 0


def _show_result(path: Path) -> None:
    """Say what a finished run spent and where its files are."""
    from flower_privsyn.report.summary import open_run

    run = open_run(path)
    print(f"Run directory: {path}")
    if run.releases:
        print(epsilons(run))
    for name in ("synthetic.jsonl", "synthetic.parquet"):
        if (path / name).is_file():
            print(f"{run.texts_are.capitalize()}: {path / name} ({run.synthetic_texts:,})")
    if run.model is not None:
        print(f"Trained model: {run.model} (its README.md says how it is loaded)")
    show_ranking(run.figures.get("ranking", ()))
    for place, sample in enumerate(run.samples[:SAMPLES], start=1):
        print(f"  {place}. {plain_line(sample)}")
    trust = run.figures.get("trust")
    if trust is not None and trust < _LITTLE_TRUST:
        print(
            f"The sketch that was released says little (trust {trust:.2f} of 1): more users, or "
            "more epsilon, would say more."
        )
    written = run.samples and run.texts_are.startswith("synthetic texts")
    next_command = f"inspect {quoted(path)} (what was released)"
    if written and run.settings.get("generator"):
        next_command = f"expand {quoted(path)} --samples 2000 (more text, at no privacy cost)"
    print(f"Next: privsyn {next_command}")
