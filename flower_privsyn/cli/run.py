"""`privsyn run` and `privsyn resume`: a Flower app on this machine, followed to its end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from flower_privsyn import environment
from flower_privsyn.cli.evaluate import evaluate as evaluate_command
from flower_privsyn.cli.evaluate import own_data
from flower_privsyn.cli.inspect import epsilons, inspect_run, ranked
from flower_privsyn.cli.options import Config, Evaluate, NewRunDir, RunDir, Settings, option
from flower_privsyn.cli.output import FAILED, INTERRUPTED, REFUSED, complain, plain_line
from flower_privsyn.cli.signals import Stopped, ended_by_signals
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import expanded, quoted

#: Below it a sketch says so little that the end of a run tells.
_LITTLE_TRUST: Final = 0.2

if TYPE_CHECKING:
    from flower_privsyn.host.app import App
    from flower_privsyn.host.launch import Outcome
    from flower_privsyn.private_path.method import Method
    from flower_privsyn.private_path.settings import PrivateSumConfig


def run(
    app: Annotated[str, typer.Argument(metavar="APP", hidden=True)],
    run_dir: NewRunDir = None,
    config: Config = None,
    settings: Settings = None,
    evaluate: Evaluate = None,
) -> int:
    """Run a Flower app on this machine, offline, and follow it to its end.

    APP is the folder of the app. The exit status is 0 only when the run has finished, and the app
    has.
    """
    from flower_privsyn import runs
    from flower_privsyn.host import app as host_app
    from flower_privsyn.host import launch
    from flower_privsyn.models.threads import most_threads
    from flower_privsyn.privacy import quarantine

    loaded = host_app.load_app(app)
    values = host_app.resolve_config(loaded, config_name=config, settings=settings or ())
    inside = Path.cwd().resolve().is_relative_to(loaded.path.resolve())
    named = launch.named_run_directory(values, run_dir)
    launch.refuse_resume(values, Path(named or "DIR"))
    if named:
        path = expanded(named).absolute()
        launch.refuse_inside(loaded, path)
    elif inside:
        path = runs.default_run_directory(loaded.name)
    else:
        path = runs.new_run_path(Path("runs"), loaded.name)
    launch.refuse_odd_places(path)
    host_app.check_settings(loaded, values)
    with quarantine.counting() as tally:
        counted = _check_users(loaded, values)
    if tally:
        sys.stderr.write(f"privsyn: warning: {tally} (counted in private text, for its owner)\n")
    runs.RunDirectory(path).refuse_existing()
    if evaluate is not None:
        check_evaluation(evaluate, values)
    for method, its_settings, users in counted:
        _check_noise(method, its_settings, users)
    sys.stderr.write(
        f"Running {loaded.name} in {path}, with at most {most_threads()} threads "
        f"({environment.THREADS})\n"
    )
    with _following(path) as follow:
        outcome = launch.run_app(loaded, path, values, follow=follow)
    status = show_outcome(outcome)
    if evaluate is None or status != 0:
        return status
    return evaluate_command(str(path), users=evaluate, **own_data(values))


def _check_users(app: App, values: Mapping[str, Any]) -> list[tuple[Method, PrivateSumConfig, int]]:
    """Read the users before anything is spent, as `privsyn check` does, with an app's own recipe.

    Where nobody has any text, or none of any class, every answer is noise alone, and a node tells
    nobody. Where the users' text is named as public text, it would be published.

    Returns:
        What the app's strategies ask of how many users, where that is known.
    """
    from flower_privsyn.data import Cut
    from flower_privsyn.dry_run.people import read_people
    from flower_privsyn.dry_run.public_text import check_public_text
    from flower_privsyn.host.app import check_data, strategies_of
    from flower_privsyn.strategies.by_name import built

    counted = []
    every = strategies_of(app, values)
    if not every:
        check_data(app, values)
    for settings, strategy in every:
        people = read_people(
            app,
            values,
            cut=Cut.of(settings.to_dict()),
            nodes=settings.num_nodes,
            most_nodes=settings.max_nodes_per_user,
        )
        if people is None:
            continue
        method = built(strategy, settings).method
        public = method.needs().public_text
        if public and (
            said := check_public_text(public, people.written, data=str(values.get("data", "")))
        ):
            sys.stderr.write(f"privsyn: warning: {said}\n")
        if people.all_read:
            counted.append((method, settings, people.users))
    return counted


def _check_noise(method: Method, settings: PrivateSumConfig, users: int) -> None:
    """Refuse noise that drowns whatever so many users agree on, before Flower starts."""
    from flower_privsyn.private_path.noise_check import refuse_noise
    from flower_privsyn.private_path.settling import plan_of, settle

    plan = plan_of(method, settings, population=users)
    refuse_noise(settle(plan, epsilon=settings.epsilon, run=None).plan, settings)


def check_evaluation(file: str, values: Mapping[str, Any]) -> None:
    """Refuse before anything is spent what could not be measured in the end.

    Args:
        file: the run's own data, as of --evaluate.
        values: the settings of the run.

    Raises:
        ConfigError: the run holds nobody out.
        DataError: the file cannot be read, or has not the run's columns.
    """
    from flower_privsyn.data import load_users

    if not values.get("held-out-fraction"):
        raise ConfigError(
            "--evaluate measures on users whom the run holds out: set held-out-fraction, which is "
            f"{values.get('held-out-fraction', 'no setting of this app')}"
        )
    load_users(file, **own_data(values), strict=True)


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
    if settings or loaded:
        _check_changes(path, settings or (), loaded)
    with _following(path) as follow:
        outcome = launch.resume_run(path, app=loaded, settings=settings or (), follow=follow)
    return show_outcome(outcome)


def _check_changes(path: Path, settings: Sequence[str], app: App | None) -> None:
    """Refuse before Flower starts what a run may not go on with, and leave the run as it was."""
    from flower_privsyn.host import launch
    from flower_privsyn.host.app import strategies_of
    from flower_privsyn.private_path.changes import changes_of_run
    from flower_privsyn.runs import RunDirectory
    from flower_privsyn.strategies.by_name import built

    app, values = launch.resumed_settings(path, settings, app=app)
    if not (path / "config.json").is_file():
        return
    run = RunDirectory.open(path)
    for config, strategy in strategies_of(app, values):
        if strategy.__name__ == run.document.get("strategy"):
            method = built(strategy, config).method
            changes_of_run(run, config, method, strategy=strategy.__name__)


@contextlib.contextmanager
def _following(path: Path) -> Iterator[Any]:
    """Show progress; say how to go on when interrupted."""
    from flower_privsyn.host.terminal import follower
    from flower_privsyn.runs import RunDirectory

    try:
        with ended_by_signals(), follower() as follow:
            yield follow
    except (KeyboardInterrupt, Stopped):
        if (path / "config.json").is_file() and RunDirectory(path).status != "finished":
            sys.stderr.write(
                f"Continue with: privsyn resume {quoted(path.absolute())}\n"
                "A round that nodes were answering is charged; `privsyn stop DIR` ends a run "
                "before its next round.\n"
            )
        raise


def show_outcome(outcome: Outcome) -> int:
    """Say how a run ended, what it spent and where its files are; return the exit status."""
    from flower_privsyn.messages.wire import NODE_LOG
    from flower_privsyn.runs import RunDirectory
    from flower_privsyn.runs.owner import OwnerFolder
    from flower_privsyn.runs.surroundings import was_interrupted

    log = OwnerFolder(outcome.path).log_file
    finished = RunDirectory(outcome.path).status == "finished"
    if finished:  # whatever the app did after it
        _show_result(outcome.path)
    if outcome.error is not None:
        if outcome.path.is_dir() and not finished:  # nothing is left of a run that has not begun
            sys.stderr.write(f"Run directory: {outcome.path}\n")
        if was_interrupted(outcome.error):
            return complain(outcome.error, INTERRUPTED)
        if outcome.says_all:
            # A node's reasons are in its own log, which is this one here.
            here = f"\nThe nodes' log is {log}" if NODE_LOG in outcome.error else ""
            return complain(outcome.error + here, REFUSED)
        return complain(f"{outcome.error}\nThe log is {log}", FAILED)
    if not finished:  # an app that keeps no run directory: there is only Flower's word and its log
        print(f"The app finished. The log is {log}")
    return 0


def _show_result(path: Path) -> None:
    """Say what a finished run spent and where its files are."""
    from flower_privsyn.runs.rounds import TRAINED_MODEL

    facts = inspect_run(path)
    print(f"Run directory: {path}")
    if facts["releases"]:
        print(epsilons(facts))
    for name in ("synthetic.jsonl", "synthetic.parquet"):
        if name in facts["files"]:
            title = str(facts["texts_are"]).capitalize()
            print(f"{title}: {path / name} ({facts['synthetic_texts']:,})")
    if (trained := path / TRAINED_MODEL).is_dir():
        print(f"Trained model: {trained} (its README.md says how it is loaded)")
    if facts["ranking"]:
        print("Nearest to the users' text:")
        for place, line in enumerate(ranked(facts), start=1):
            print(f"  {place}. {line}")
    for place, sample in enumerate(facts["samples"], start=1):
        print(f"  {place}. {plain_line(sample)}")
    trust = facts["trust"]
    if trust is not None and trust < _LITTLE_TRUST:
        print(
            f"The sketch that was released says little (trust {trust:.2f} of 1): more users, or "
            "more epsilon, would say more."
        )
    print(f"Next: {_next_command(path, facts)}")


def _next_command(run_path: Path, facts: Mapping[str, Any]) -> str:
    """What somebody who has just seen a run end may want to type."""
    from flower_privsyn.private_path.writers import object_of_the_app
    from flower_privsyn.runs import RunDirectory

    place = quoted(run_path)
    if facts["trust"] is not None and facts["texts_are"] != "synthetic texts":
        return f"privsyn sketch show {place} (what was released)"
    run = RunDirectory.open(run_path)
    if facts["samples"] and run.config.get("generator"):
        by = "" if object_of_the_app(run) is None else " --generator NAME"
        return f"privsyn expand {place} --samples 2000{by} (more text, at no privacy cost)"
    return f"privsyn inspect {place}"
