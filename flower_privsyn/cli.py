"""The command `privsyn`: run and resume apps, look at runs, plan a privacy budget."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_privsyn.errors import ConfigError, MissingExtraError, PrivsynError

_FAILED, _REFUSED, _INTERRUPTED = 1, 2, 130


class _Stopped(BaseException):
    """A signal asked this process to end."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `privsyn`.

    Args:
        arguments: Words of the command line without the program; `sys.argv` by default.

    Returns:
        The exit status: 0 for success, 2 when what was asked for cannot be done, 1 when
        something failed unexpectedly, 130 when it was interrupted.
    """
    parsed = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = parsed.command
    try:
        return command(parsed)
    except PrivsynError as error:
        return _complain(str(error), _REFUSED)
    except (KeyboardInterrupt, _Stopped):
        return _complain("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the output has closed it, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except Exception as error:
        if os.environ.get("PRIVSYN_TRACEBACK"):
            raise
        what = f"{type(error).__name__}: {error}"
        return _complain(
            f"unexpected {what} (set PRIVSYN_TRACEBACK=1 to see where it comes from)", _FAILED
        )


def _complain(sentence: str, status: int) -> int:
    sys.stderr.write(f"privsyn: {sentence}\n")
    return status


# -------------------------------------------------------------------- run and resume


def _run(arguments: argparse.Namespace) -> int:
    from flower_privsyn import runs, simulation

    app = simulation.load_app(arguments.app)
    values = simulation.resolve_config(
        app, config_name=arguments.config, settings=arguments.settings
    )
    inside = Path.cwd().resolve().is_relative_to(app.path.resolve())
    if arguments.run_dir is not None:
        path = Path(arguments.run_dir).expanduser().absolute()
        if path.resolve().is_relative_to(app.path.resolve()):
            raise ConfigError(
                f"The run directory {path} lies inside the app, and Flower would pack it into the "
                "app; choose another --run-dir."
            )
    elif inside:
        path = runs.default_run_directory(app.name)
    else:
        path = runs.new_run_path(Path("runs"), app.name)
    simulation.check_settings(app, values)
    simulation.check_data(app, values)
    runs.RunDirectory(path).refuse_existing()
    sys.stderr.write(f"Running {app.name} in {path}\n")
    with _following(path) as follow:
        outcome = simulation.run_app(app, path, values, follow=follow)
    return _report(outcome)


def _resume(arguments: argparse.Namespace) -> int:
    from flower_privsyn import simulation

    path = Path(arguments.run_dir)
    with _following(path) as follow:
        outcome = simulation.resume_run(path, follow=follow)
    return _report(outcome)


@contextlib.contextmanager
def _following(path: Path) -> Iterator[Any]:
    """Show progress; turn the signals that end a program into an orderly end."""
    from flower_privsyn.terminal import follower

    def stop(_signal: int, _frame: object) -> None:
        raise _Stopped

    previous = {number: signal.signal(number, stop) for number in _ending_signals()}
    try:
        with follower() as follow:
            yield follow
    except (KeyboardInterrupt, _Stopped):
        if (path / "config.json").is_file():
            sys.stderr.write(f"Continue with: privsyn resume {path}\n")
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _ending_signals() -> list[signal.Signals]:
    return [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _report(outcome: Any) -> int:
    log = outcome.path / "flower.log"
    if outcome.error is not None:
        sys.stderr.write(f"Run directory: {outcome.path}\n")
        if not outcome.unexpected:
            return _complain(outcome.error, _REFUSED)
        return _complain(f"{outcome.error}\nThe log is {log}", _FAILED)
    if not (outcome.path / "config.json").is_file():
        # An app that keeps no run directory: there is only Flower's word and its log.
        print(f"The app finished. The log is {log}")
        return 0
    facts = inspect_run(outcome.path)
    print(f"Run directory: {outcome.path}")
    if facts["releases"]:
        print(_epsilons(facts))
    for name in ("synthetic.jsonl", "synthetic.parquet"):
        if name in facts["files"]:
            print(f"Synthetic texts: {outcome.path / name} ({facts['synthetic_texts']:,})")
    return 0


def _epsilons(facts: Mapping[str, Any]) -> str:
    if facts["epsilon_release"] is None:
        return f"Not private: {facts['releases']} releases without sufficient noise"
    # The two never go without each other: which one holds depends on who looks.
    return (
        f"epsilon_release = {facts['epsilon_release']:.4g}"
        " (towards everyone who does not know who took part)\n"
        f"epsilon_server  = {_number(facts['epsilon_server'])}"
        " (towards one who does)\n"
        f"delta = {_number(facts['delta'])}, {facts['releases']} releases"
    )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


# -------------------------------------------------------------------- inspect


_LOST = ("interrupted", "discarded")
"""Outcomes of a round that gave no release to work with."""


def inspect_run(path: str | Path) -> dict[str, Any]:
    """What is known about a run, from its files alone.

    Args:
        path: The run directory.

    Returns:
        path, app, status, error, created, rounds_finished, rounds_lost, releases, users, delta,
        epsilon_release, epsilon_server, epsilon_budget, synthetic_texts, samples, files (name to
        bytes). The epsilons are cumulative, from the ledger; None before the first release and
        for a run that is not private. The status is `interrupted` for a run that is recorded as
        running while no process works on it.

    Raises:
        RunDirectoryError: The folder holds no run, or one of its files is damaged.
    """
    from flower_privsyn.files import read_json_lines
    from flower_privsyn.runs import RunDirectory

    run = RunDirectory.open(path)
    status = run.status
    if status == "running" and run.running_process() is None:
        status = "interrupted"
    lines = list(read_json_lines(run.ledger_file))
    opened: dict[str, Any] = next((line for line in lines if line.get("event") == "opened"), {})
    releases = [line for line in lines if line.get("event") == "release"]
    last: dict[str, Any] = releases[-1] if releases else {}
    samples: list[str] = []
    count = 0
    for record in read_json_lines(run.synthetic_jsonl):
        count += 1
        if len(samples) < 3:
            samples.append(str(record.get("text", "")))
    launch = run.document.get("launch") or {}
    return {
        "path": str(run.path),
        "app": launch.get("name"),
        "status": status,
        "error": run.error,
        "created": run.document.get("created"),
        "rounds_finished": [number for number in run.finished_rounds() if number > 0],
        "rounds_lost": run.rounds_with_outcome(*_LOST),
        "releases": len(releases),
        "users": last.get("num_users"),
        "delta": last.get("delta", opened.get("delta")),
        "epsilon_release": last.get("epsilon_release"),
        "epsilon_server": last.get("epsilon_server"),
        "epsilon_budget": opened.get("epsilon_budget"),
        "synthetic_texts": count,
        "samples": samples,
        "files": {
            str(file.relative_to(run.path)): file.stat().st_size
            for file in sorted(run.path.rglob("*"))
            if file.is_file()
            and not any(part[0] == "." for part in file.relative_to(run.path).parts)
        },
    }


def _inspect(arguments: argparse.Namespace) -> int:
    facts = inspect_run(arguments.run_dir)
    if arguments.json:
        print(json.dumps(facts, ensure_ascii=False, indent=2))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def row(name: str, value: object) -> None:
        from rich.text import Text  # plain: a synthetic text may look like markup

        table.add_row(name, Text(str(value)))

    row("run", facts["path"])
    row("app", facts["app"] or "-")
    row("status", facts["status"])
    if facts["error"]:
        row("error", facts["error"])
    if facts["status"] in {"interrupted", "failed"}:
        row("continue", f"privsyn resume {facts['path']}")
    row("created", facts["created"])
    lost = len(facts["rounds_lost"])
    finished = str(len(facts["rounds_finished"]))
    row("rounds", f"{finished} ({lost} of them without a release)" if lost else finished)
    row("users", "-" if facts["users"] is None else facts["users"])
    if facts["releases"]:
        row("privacy", _epsilons(facts))
    else:
        row("privacy", "nothing released")
    row("synthetic texts", facts["synthetic_texts"])
    for number, sample in enumerate(facts["samples"], start=1):
        row(f"sample {number}", sample if len(sample) <= 400 else f"{sample[:400]} ...")
    for name, size in facts["files"].items():
        row("", f"{size:>12,}  {name}")
    Console().print(table)
    return 0


# -------------------------------------------------------------------- budget


def _budget(arguments: argparse.Namespace) -> int:
    try:
        from flower_privsyn.privacy import (
            FixedSizeSampling,
            FullParticipation,
            PoissonSampling,
            Sampling,
        )
        from flower_privsyn.privacy.budget import budget_report
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"The privacy accountant needs {error.name}; reinstall flower-privsyn."
        ) from error

    if (arguments.epsilon is None) == (arguments.noise_multiplier is None):
        raise ConfigError("Give either --epsilon or --noise-multiplier; the other is computed.")
    population = arguments.population
    sampling: Sampling
    if arguments.sampling_rate is not None and arguments.sample_size is not None:
        raise ConfigError("Give either --sampling-rate or --sample-size, not both.")
    if arguments.sampling_rate is not None:
        sampling = PoissonSampling(arguments.sampling_rate, population=population)
    elif arguments.sample_size is not None:
        if population is None:
            raise ConfigError("--sample-size needs --population, the number of all users.")
        sampling = FixedSizeSampling(arguments.sample_size, population=population)
    else:
        sampling = FullParticipation(population)
    wanted = (
        {"epsilon": arguments.epsilon}
        if arguments.epsilon is not None
        else {"noise_multiplier": arguments.noise_multiplier}
    )
    report = budget_report(
        **wanted, delta=arguments.delta, rounds=arguments.rounds, sampling=sampling
    )
    if population is not None and arguments.delta >= 1 / population:
        sys.stderr.write(
            f"privsyn: warning: delta {arguments.delta:g} is not below 1/users = "
            f"{1 / population:.3g}; it permits revealing one user outright\n"
        )
    if arguments.json:
        print(json.dumps(report, indent=2))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{arguments.rounds} rounds, delta = {arguments.delta:g}")
    table.add_column("")
    table.add_column("PLD", justify="right")
    table.add_column("RDP", justify="right")

    def row(name: str, values: Mapping[str, Any]) -> None:
        table.add_row(name, _number(values.get("pld")), _number(values.get("rdp")))

    row("noise multiplier", report["noise_multiplier"])
    row("epsilon_release", report["epsilon_release"])
    row("epsilon_server, in every round", report["epsilon_server"])
    for count, values in report["epsilon_server"].get("by_participations", {}).items():
        row(f"epsilon_server, in {count} round{'s' if count != '1' else ''}", values)
    Console().print(table)
    return 0


# -------------------------------------------------------------------- the command line


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        from importlib import metadata

        print(f"privsyn {metadata.version('flower-privsyn')} (flwr {metadata.version('flwr')})")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="privsyn",
        description="Differentially private synthetic text with Flower.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the versions and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="run a Flower app on this machine and follow it to its end",
        description="Run a Flower app on this machine, offline, and follow it to its end. "
        "The exit status is 0 only when the run has finished.",
    )
    run.add_argument("app", metavar="APP", help="folder of the app")
    run.add_argument(
        "--run-dir", metavar="DIR", help="where to write the run (default: runs/<app>-<time>)"
    )
    run.add_argument("--config", metavar="NAME", help="settings from the app's conf/NAME.toml")
    run.add_argument(
        "--set",
        dest="settings",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one setting; may be given several times, and wins over --config",
    )
    run.set_defaults(command=_run)

    resume = commands.add_parser(
        "resume",
        help="continue an interrupted run",
        description="Continue an interrupted run after its last finished round, with its ledger "
        "and the settings it was started with.",
    )
    resume.add_argument("run_dir", metavar="DIR", help="the run directory")
    resume.set_defaults(command=_resume)

    inspect = commands.add_parser("inspect", help="show what a run has done and what it has spent")
    inspect.add_argument("run_dir", metavar="DIR", help="the run directory")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(command=_inspect)

    budget = commands.add_parser(
        "budget",
        help="noise for a privacy budget, or the other way round",
        description="The noise multiplier that keeps a number of rounds within (epsilon, delta), "
        "or the epsilon of a noise multiplier, by two accountants.",
    )
    budget.add_argument("--epsilon", type=float, help="privacy budget of all rounds, > 0")
    budget.add_argument(
        "--noise-multiplier", type=float, metavar="Z", help="noise std over the clip norm, > 0"
    )
    budget.add_argument("--delta", type=float, required=True, help="in (0, 1), below 1/users")
    budget.add_argument("--rounds", type=int, required=True, help="number of releases, >= 1")
    budget.add_argument(
        "--sampling-rate",
        type=float,
        metavar="Q",
        help="every user takes part in a round with this probability (default: all take part)",
    )
    budget.add_argument(
        "--sample-size", type=int, metavar="N", help="exactly N of the users in every round"
    )
    budget.add_argument(
        "--population", "--users", type=int, metavar="N", help="number of all users"
    )
    budget.add_argument("--json", action="store_true", help="print JSON")
    budget.set_defaults(command=_budget)
    return parser


if __name__ == "__main__":
    sys.exit(main())
