"""The command `privsyn`: run and resume apps, look at runs, plan a privacy budget."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
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
    parsed.words = list(sys.argv[1:] if arguments is None else arguments)
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
    from flower_privsyn import runs
    from flower_privsyn.host import simulation

    app = simulation.load_app(arguments.app)
    values = simulation.resolve_config(
        app, config_name=arguments.config, settings=arguments.settings
    )
    inside = Path.cwd().resolve().is_relative_to(app.path.resolve())
    named, set_to = arguments.run_dir, str(values.get("run-dir", ""))
    if named and set_to and named != set_to:
        raise ConfigError(
            f'--run-dir {named} and the setting run-dir = "{set_to}" name two folders; give one.'
        )
    simulation.refuse_resume(values, Path(named or set_to or "DIR"))
    if named or set_to:
        path = Path(named or set_to).expanduser().absolute()
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
    from flower_privsyn.host import simulation

    path = Path(arguments.run_dir)
    with _following(path) as follow:
        outcome = simulation.resume_run(path, settings=arguments.settings, follow=follow)
    return _report(outcome)


@contextlib.contextmanager
def _following(path: Path) -> Iterator[Any]:
    """Show progress; say how to go on when interrupted."""
    from flower_privsyn.host.terminal import follower

    try:
        with _ended_by_signals(), follower() as follow:
            yield follow
    except (KeyboardInterrupt, _Stopped):
        if (path / "config.json").is_file():
            sys.stderr.write(f"Continue with: privsyn resume {path}\n")
        raise


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn the signals that end a program into an exception, so that what it began is ended."""

    def stop(_signal: int, _frame: object) -> None:
        raise _Stopped

    previous = {number: signal.signal(number, stop) for number in _ending_signals()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _ending_signals() -> list[signal.Signals]:
    return [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _report(outcome: Any) -> int:
    from flower_privsyn.runs.owner import OwnerFolder

    log = OwnerFolder(outcome.path).log_file
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
    if (trained := outcome.path / "models" / "final").is_dir():
        print(f"Trained model: {trained}")
    return 0


def _epsilons(facts: Mapping[str, Any]) -> str:
    if facts["epsilon_release"] is None:
        return f"Not private: {facts['releases']} releases without sufficient noise"
    # The two never go without each other: which one holds depends on who looks.
    stamp = f"{facts['stamp']}\n" if facts.get("stamp") else ""
    return (
        f"{stamp}epsilon_release       = {facts['epsilon_release']:.4g}"
        " (towards everyone who does not know who took part)\n"
        f"epsilon_known_cohorts = {_number(facts['epsilon_known_cohorts'])}"
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
        path, app, strategy, status, error, changes (what resumed runs changed, oldest first),
        created, rounds_finished, rounds_lost, releases, users,
        delta, epsilon_release, epsilon_known_cohorts, epsilon_budget, stamp, synthetic_texts,
        samples, files (name to bytes). The epsilons are cumulative, from the ledger; None before
        the first release and for a run that is not private. The stamp is a sentence that says that
        the epsilons do not cover the result; None where they do. The status is `interrupted` for
        a run recorded as running while no process works on it.

    Raises:
        LedgerError: The ledger is damaged, or lacks a line that another file states.
        RunDirectoryError: The folder holds no run, or one of its files is damaged.
    """
    from flower_privsyn.files import read_json_lines
    from flower_privsyn.runs import RESEARCH_STAMP, RunDirectory

    run = RunDirectory.open(path)
    status = run.status
    if status == "running" and run.running_process() is None:
        status = "interrupted"
    lines = run.ledger_lines()
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
        "strategy": run.document.get("strategy") or None,
        "status": status,
        "error": run.error,
        "changes": run.document.get("changes", []),
        "created": run.document.get("created"),
        "rounds_finished": [number for number in run.finished_rounds() if number > 0],
        "rounds_lost": run.rounds_with_outcome(*_LOST),
        "releases": len(releases),
        "users": last.get("num_users"),
        "delta": last.get("delta", opened.get("delta")),
        "epsilon_release": last.get("epsilon_release"),
        "epsilon_known_cohorts": last.get("epsilon_known_cohorts"),
        "epsilon_budget": opened.get("epsilon_budget"),
        "stamp": RESEARCH_STAMP if run.config.get("research") else None,
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
    row("strategy", facts["strategy"] or "-")
    row("status", facts["status"])
    if facts["error"]:
        row("error", facts["error"])
    if facts["status"] in {"interrupted", "failed"}:
        row("continue", f"privsyn resume {facts['path']}")
    for change in facts["changes"]:
        told = (f"{key} = {one['to']!r}" for key, one in change["settings"].items())
        row("changed", f"after round {change['after_round']}: {', '.join(told)}")
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


def _migrate(arguments: argparse.Namespace) -> int:
    from flower_privsyn.runs.migrate import migrate

    done = migrate(arguments.run_dir)
    for sentence in done or [f"{arguments.run_dir} needs no conversion."]:
        print(sentence)
    return 0


# -------------------------------------------------------------------- budget


def _budget(arguments: argparse.Namespace) -> int:
    try:
        from flower_privsyn.privacy import (
            FixedSizeSampling,
            FullParticipation,
            NeighboringRelation,
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
        **wanted,
        delta=arguments.delta,
        rounds=arguments.rounds,
        sampling=sampling,
        relation=NeighboringRelation(arguments.relation),
        max_nodes_per_user=arguments.max_nodes_per_user,
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

    table = Table(
        title=f"{arguments.rounds} rounds, delta = {arguments.delta:g}, {arguments.relation}"
    )
    table.add_column("")
    table.add_column("PLD", justify="right")
    table.add_column("RDP", justify="right")

    def row(name: str, values: Mapping[str, Any]) -> None:
        table.add_row(name, _number(values.get("pld")), _number(values.get("rdp")))

    row("noise multiplier", report["noise_multiplier"])
    row("epsilon_release", report["epsilon_release"])
    row("epsilon_known_cohorts, in every round", report["epsilon_known_cohorts"])
    for count, values in report["epsilon_known_cohorts"].get("by_participations", {}).items():
        row(f"epsilon_known_cohorts, in {count} round{'s' if count != '1' else ''}", values)
    Console().print(table)
    return 0


# -------------------------------------------------------------------- evaluate


def _evaluate(arguments: argparse.Namespace) -> int:
    from flower_privsyn.data import load_users
    from flower_privsyn.evaluation.run import evaluate_run, split_users
    from flower_privsyn.evaluation.show import show
    from flower_privsyn.host.progress import ShownProgress
    from flower_privsyn.host.terminal import follower
    from flower_privsyn.runs import RunDirectory
    from flower_privsyn.training.causal import CausalTraining

    def load(source: str) -> Any:
        return load_users(
            source,
            client_column=arguments.client_column,
            text_column=arguments.text_column,
            date_column=arguments.date_column,
        )

    private: Any = None
    run = RunDirectory.open(arguments.run_dir)
    if (arguments.held_out is None) == (arguments.users is None):
        raise ConfigError(
            "Give either --held-out, a file of users who took no part, or --users, the run's own "
            "data, of which it held some users out."
        )
    if arguments.users is not None:
        if arguments.private is not None:
            raise ConfigError("--private goes with --held-out: --users holds both.")
        private, held_out = split_users(run, load(arguments.users))
    else:
        held_out = load(arguments.held_out)
        if arguments.private is not None:
            private = load(arguments.private)
    output = run.path.with_name(f"{run.path.name}.evaluation")
    if arguments.output is not None:
        output = Path(arguments.output).expanduser().absolute()
    if output.resolve().is_relative_to(run.path.resolve()):
        raise ConfigError(
            f"The output {output} lies in the run directory, whose readers are promised the run's "
            "epsilon; an evaluation on private text must lie elsewhere."
        )
    settings = {} if arguments.steps is None else {"max_steps": arguments.steps}
    training = CausalTraining(**settings)
    output.mkdir(parents=True, exist_ok=True)
    with follower() as follow:
        record = evaluate_run(
            run,
            held_out,
            private=private,
            downstream=arguments.downstream,
            training=training,
            work=output,
            cpu_time=arguments.cpu_time,
            max_texts=arguments.max_texts,
            seed=arguments.seed,
            progress=ShownProgress(follow),
        )
    record.write(output / "evaluation.json")
    if arguments.json:
        print(record.to_json())
        return 0
    show(record)
    print(f"All figures: {output / 'evaluation.json'}")
    return 0


# -------------------------------------------------------------------- embed and simulate


def _embed(arguments: argparse.Namespace) -> int:
    from flower_privsyn.client_apps.first_pass import first_pass
    from flower_privsyn.client_apps.private_sum import default_embedder
    from flower_privsyn.embedding import default_cache_directory
    from flower_privsyn.host import simulation
    from flower_privsyn.host.progress import ShownProgress
    from flower_privsyn.host.terminal import follower
    from flower_privsyn.messages.wire import DataRequest
    from flower_privsyn.privacy import quarantine
    from flower_privsyn.strategies import PrivateSumConfig

    if arguments.app is None and (arguments.config or arguments.settings):
        raise ConfigError("--config and --set are of an app: name it with --app.")
    values: dict[str, Any] = {}
    if arguments.app is not None:
        app = simulation.load_app(arguments.app)
        values = simulation.resolve_config(
            app, config_name=arguments.config, settings=arguments.settings
        )
    request = {key: values[key] for key in _EMBED_KEYS if key in values}
    for key in _EMBED_KEYS:
        if (given := getattr(arguments, key.replace("-", "_"))) is not None:
            request[key] = given
    # The noise says nothing about the text; any will do to have the other settings checked.
    config = PrivateSumConfig.from_run_config({"noise-multiplier": 0.0, **request})
    columns = ("data", "client-column", "text-column", "date-column")
    configuration = {
        key: getattr(arguments, key.replace("-", "_")) or values.get(key, "") for key in columns
    }
    nodes = arguments.nodes or int(values.get("num-nodes", 1))
    with _ended_by_signals(), follower() as follow, quarantine.counting() as tally:
        done = first_pass(
            configuration,
            DataRequest(**{key.replace("-", "_"): config.to_dict()[key] for key in _EMBED_KEYS}),
            load_embedder=default_embedder,
            directory=default_cache_directory(),
            progress=ShownProgress(follow),
            nodes=nodes,
            processes=arguments.processes,
        )
    print(
        f"{done.users:,} users on {nodes} node{'s' if nodes > 1 else ''}: {done.embedded:,} texts "
        f"embedded now, {done.nodes_ready} of the nodes were ready before\n"
        f"{done.bytes_on_disk / 1e6:,.1f} MB of records in {default_cache_directory()}"
    )
    if tally:
        sys.stderr.write(f"privsyn: warning: {tally}\n")
    return 0


_EMBED_KEYS = (
    "embedding-model",
    "embedding-precision",
    "max-tokens",
    "max-samples",
    "newer-than",
    "held-out-fraction",
    "seed",
)


def _simulate(arguments: argparse.Namespace) -> int:
    from flower_privsyn.data import simulate_users
    from flower_privsyn.host.progress import ShownProgress
    from flower_privsyn.host.terminal import follower

    output = Path(arguments.output).expanduser().absolute()
    with (
        _ended_by_signals(),
        follower() as follow,
        ShownProgress(follow).stage("Write users", arguments.users) as stage,
    ):
        rows = simulate_users(
            output,
            users=arguments.users,
            samples_per_user=arguments.samples_per_user,
            seed=arguments.seed,
            progress=stage.update,
        )
    print(f"{output}: {arguments.users:,} users, {rows:,} texts ({output.stat().st_size:,} bytes)")
    print("For tests of scale: nobody wrote these texts, and they show no method's quality.")
    return 0


# -------------------------------------------------------------------- compare


def _compare(arguments: argparse.Namespace) -> int:
    from flower_privsyn.comparison import APP, Comparison, make_plan
    from flower_privsyn.comparison.table import show
    from flower_privsyn.host import simulation
    from flower_privsyn.host.terminal import follower
    from flower_privsyn.training.causal import CausalTraining

    plan = make_plan(
        app=simulation.load_app(arguments.app or APP),
        data=arguments.data,
        epsilons=arguments.epsilon,
        methods=arguments.methods or (),
        seeds=arguments.seeds,
        config=arguments.config,
        held_out=arguments.held_out,
        held_out_users=arguments.held_out_users,
        users=arguments.users,
        delta=arguments.delta,
        newer_than=arguments.newer_than,
        downstream=arguments.downstream,
        training=CausalTraining(
            learning_rate=arguments.learning_rate,
            batch_size=arguments.batch_size,
            max_steps=arguments.steps,
        ),
        max_texts=arguments.max_texts,
        settings=arguments.settings,
        columns={
            "client_column": arguments.client_column,
            "text_column": arguments.text_column,
            "date_column": arguments.date_column,
        },
    )
    comparison = Comparison(
        plan, Path(arguments.output), command=shlex.join(["privsyn", *arguments.words])
    )
    cells = plan.cells()
    sys.stderr.write(
        f"Comparing {len(plan.methods)} methods in {len(cells)} cells, {len(plan.private):,} users "
        f"and {len(plan.held_out):,} held out, in {comparison.folder}\n"
    )
    try:
        with _ended_by_signals():
            document = comparison.run(
                follower=follower, say=lambda line: print(line, file=sys.stderr)
            )
    except (KeyboardInterrupt, _Stopped):
        sys.stderr.write("Continue with the same command; what is finished is kept.\n")
        raise
    show(document)
    print(f"Report: {comparison.folder / 'report.html'}")
    print(f"All figures: {comparison.document_file}")
    failed = [cell for cell in document["cells"] if cell["status"] == "failed"]
    if failed:
        return _complain(
            f"{len(failed)} of {len(cells)} cells failed; {comparison.folder / 'comparison.md'} "
            "says why, and the same command tries them again",
            _FAILED,
        )
    return 0


# -------------------------------------------------------------------- methods


def _methods(arguments: argparse.Namespace) -> int:
    from flower_privsyn.strategies.catalogue import entries, refusals

    rows = [entry.to_dict() for entry in entries().values()]
    for sentence in refusals():
        sys.stderr.write(f"privsyn: {sentence}\n")
    if arguments.json:
        print(json.dumps(rows, ensure_ascii=False, indent=2))
        return 0
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # plain: the title of a method from outside may look like markup

    headings = {"title": "method", "kind": "gives", "query": "users answer", "paper": "paper"}
    console = Console()
    narrow = console.width < 120
    for keys in (["title", "kind"], ["query", "paper"]) if narrow else (list(headings),):
        table = Table("strategy", *(headings[key] for key in keys), pad_edge=False)
        for row in rows:
            table.add_row(*(Text(row[key]) for key in ("name", *keys)))
        console.print(table)
    return 0


# -------------------------------------------------------------------- report


def _report_page(arguments: argparse.Namespace) -> int:
    from flower_privsyn.report import write_comparison_page, write_run_page
    from flower_privsyn.report.comparison import read_document
    from flower_privsyn.runs import RunDirectory

    folder = Path(arguments.run_dir).expanduser().absolute()
    output = folder / "report.html"
    if arguments.output is not None:
        output = Path(arguments.output).expanduser().absolute()
        if output.is_dir():
            output = output / "report.html"
        if not output.parent.is_dir():
            raise ConfigError(f"There is no folder {output.parent} to write {output.name} into.")
    if (folder / "compare.json").is_file():
        within = next(
            (place for place in output.parents if (place / "config.json").is_file()), None
        )
        if within is not None:
            raise ConfigError(
                f"The output {output} lies in the run directory {within}, whose readers are "
                "promised the run's epsilon; a comparison on private text must lie elsewhere."
            )
        write_comparison_page(read_document(folder / "compare.json"), output)
    else:
        write_run_page(RunDirectory.open(folder), output)
    print(output)
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
        "and the settings it was started with, except for those of --set.",
    )
    resume.add_argument("run_dir", metavar="DIR", help="the run directory")
    resume.add_argument(
        "--set",
        dest="settings",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="go on with another value of a setting that no release depends on, such as generator "
        "or accept-noise; may be given several times",
    )
    resume.set_defaults(command=_resume)

    inspect = commands.add_parser("inspect", help="show what a run has done and what it has spent")
    inspect.add_argument("run_dir", metavar="DIR", help="the run directory")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(command=_inspect)

    migrate = commands.add_parser(
        "migrate",
        help="convert a run directory of version 0.1",
        description="Convert a run directory of flower-privsyn 0.1, finished or not, in place: its "
        "releases are rounded, and the times in it go to the owner's folder <DIR>.owner. It may be "
        "interrupted and begun again.",
    )
    migrate.add_argument("run_dir", metavar="DIR", help="the run directory")
    migrate.set_defaults(command=_migrate)

    evaluate = commands.add_parser(
        "evaluate",
        help="measure a run on held-out private text (not private)",
        description="Costs, distances to held-out private text, copies, and a downstream model. "
        "The figures are computed from private text without noise: they are for choosing between "
        "methods in research and must not be published beside a private result.",
    )
    evaluate.add_argument("run_dir", metavar="DIR", help="the run directory")
    evaluate.add_argument("--held-out", metavar="FILE", help="users who took no part in the run")
    evaluate.add_argument(
        "--users", metavar="FILE", help="the run's own data, where held-out-fraction was set"
    )
    evaluate.add_argument(
        "--private", metavar="FILE", help="users who took part, to look for copies of their text"
    )
    evaluate.add_argument(
        "--downstream",
        metavar="MODEL",
        help="causal model to fine-tune on the synthetic text, such as privsyn-lm",
    )
    evaluate.add_argument("--steps", type=int, metavar="N", help="of the fine-tuning")
    evaluate.add_argument(
        "--cpu-time", metavar="FILE", help="what the nodes wrote under PRIVSYN_CPU_TIME"
    )
    evaluate.add_argument(
        "--max-texts",
        type=int,
        default=5000,
        metavar="N",
        help="most texts to embed on either side (default: 5000)",
    )
    evaluate.add_argument(
        "--output", metavar="DIR", help="where to write (default: DIR.evaluation)"
    )
    evaluate.add_argument("--seed", type=int, default=0, metavar="N")
    evaluate.add_argument("--client-column", default="client_id", metavar="NAME")
    evaluate.add_argument("--text-column", default="text", metavar="NAME")
    evaluate.add_argument("--date-column", default="date", metavar="NAME")
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    evaluate.set_defaults(command=_evaluate)

    methods = commands.add_parser("methods", help="list the methods and their papers")
    methods.add_argument("--json", action="store_true", help="print JSON")
    methods.set_defaults(command=_methods)

    embed = commands.add_parser(
        "embed",
        help="embed a node's text before a run, in several processes and with progress",
        description="Cut and embed everything a run will ask of these users and put it into the "
        "node's cache (PRIVSYN_CACHE, else ~/.cache/flower-privsyn), where the run finds it. What "
        "was interrupted goes on with the same command. --app takes the settings of the run; "
        "single options win over them.",
    )
    embed.add_argument("--data", metavar="FILE", help="users: a file, a folder or a data set")
    embed.add_argument("--app", metavar="DIR", help="folder of the app that will run")
    embed.add_argument("--config", metavar="NAME", help="settings from the app's conf/NAME.toml")
    embed.add_argument(
        "--set",
        dest="settings",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one setting of the app; may be given several times",
    )
    embed.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="nodes the users will be dealt to (default: the app's num-nodes, else 1)",
    )
    embed.add_argument(
        "--processes", type=int, default=1, metavar="N", help="that embed (default: 1)"
    )
    embed.add_argument("--embedding-model", metavar="NAME")
    embed.add_argument("--embedding-precision", metavar="P", help="float32 or bfloat16")
    embed.add_argument("--max-tokens", type=int, metavar="N", help="length of a sample")
    embed.add_argument("--max-samples", type=int, metavar="N", help="of one user; 0 for all")
    embed.add_argument("--newer-than", metavar="DATE", help="only text dated after this day")
    embed.add_argument("--held-out-fraction", type=float, metavar="X")
    embed.add_argument("--seed", type=int, metavar="N")
    embed.add_argument("--client-column", metavar="NAME")
    embed.add_argument("--text-column", metavar="NAME")
    embed.add_argument("--date-column", metavar="NAME")
    embed.set_defaults(command=_embed)

    simulate = commands.add_parser(
        "simulate",
        help="write a population of any size from public text, for tests of scale",
        description="Write users who quote the bundled public passages, each with a topic of "
        "their own. For measuring seconds and memory; they say nothing about quality.",
    )
    simulate.add_argument("--users", type=int, required=True, metavar="N")
    simulate.add_argument("--samples-per-user", type=int, default=5, metavar="N")
    simulate.add_argument(
        "--output", required=True, metavar="FILE", help="to write: .jsonl or .parquet"
    )
    simulate.add_argument("--seed", type=int, default=0, metavar="N")
    simulate.set_defaults(command=_simulate)

    compare = commands.add_parser(
        "compare",
        help="run every method on the same users and compare what it gives and costs (not private)",
        description="Run every method on the same users through Flower, fine-tune one downstream "
        "model on what each gives, and measure it on users who took no part. The figures are "
        "computed from private text without noise: they are for choosing a method. The same "
        "command continues what was interrupted.",
    )
    compare.add_argument(
        "--data", nargs="+", required=True, metavar="FILE", help="users; several files are joined"
    )
    compare.add_argument("--epsilon", nargs="+", type=float, required=True, metavar="E")
    compare.add_argument(
        "--methods", nargs="+", metavar="NAME", help="which of the app's (default: all)"
    )
    compare.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="repetitions of every cell (default: 3)"
    )
    compare.add_argument(
        "--users", type=int, default=0, metavar="N", help="users that take part (default: all)"
    )
    compare.add_argument(
        "--held-out-users",
        type=int,
        metavar="N",
        help="users of --data that never take part (default: 500, or a fifth below 2,500 users)",
    )
    compare.add_argument("--held-out", metavar="FILE", help="users that never take part")
    compare.add_argument(
        "--delta", type=float, metavar="D", help="of every run (default: 1 / (n ln n), n users)"
    )
    compare.add_argument(
        "--newer-than", default="", metavar="DATE", help="use only text dated after this day"
    )
    compare.add_argument(
        "--downstream",
        default="privsyn-tiny",
        metavar="MODEL",
        help="causal model every method is to make better (default: privsyn-tiny)",
    )
    compare.add_argument(
        "--steps", type=int, default=200, metavar="N", help="of its fine-tuning (default: 200)"
    )
    compare.add_argument(
        "--learning-rate", type=float, default=2e-4, metavar="X", help="AdamW's (default: 2e-4)"
    )
    compare.add_argument(
        "--batch-size", type=int, default=32, metavar="N", help="samples a step (default: 32)"
    )
    compare.add_argument(
        "--max-texts",
        type=int,
        default=1000,
        metavar="N",
        help="most texts to embed on either side (default: 1000)",
    )
    compare.add_argument(
        "--app", metavar="DIR", help="folder of the runs' settings (default: the package's)"
    )
    compare.add_argument(
        "--config", default="cpu", metavar="SIZE", help="folder in its conf/ (default: cpu)"
    )
    compare.add_argument(
        "--set",
        dest="settings",
        metavar="[METHOD.]KEY=VALUE",
        action="append",
        default=[],
        help="one setting of all runs or of one method's; may be given several times",
    )
    compare.add_argument(
        "--output", default="comparison", metavar="DIR", help="where to write (default: comparison)"
    )
    compare.add_argument("--client-column", default="client_id", metavar="NAME")
    compare.add_argument("--text-column", default="text", metavar="NAME")
    compare.add_argument("--date-column", default="date", metavar="NAME")
    compare.set_defaults(command=_compare)

    report = commands.add_parser(
        "report",
        help="write a page about a run or a comparison, to be opened in a browser",
        description="One HTML file without any reference to another: of a run, what it spent, what "
        "its rounds cost and how its text moved, from released values alone; of a folder that "
        "`privsyn compare` wrote, its page once more.",
    )
    report.add_argument(
        "run_dir", metavar="DIR", help="the run directory, or the folder of a comparison"
    )
    report.add_argument(
        "--output", metavar="FILE", help="where to write (default: DIR/report.html)"
    )
    report.set_defaults(command=_report_page)

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
    budget.add_argument(
        "--relation",
        choices=("zero-out", "add-remove", "replace-one"),
        default="zero-out",
        help="which collections of users are neighbours (default: zero-out)",
    )
    budget.add_argument(
        "--max-nodes-per-user",
        type=int,
        default=1,
        metavar="K",
        help="one user may be on K nodes (default 1); Z is then over K times the clip norm",
    )
    budget.add_argument("--json", action="store_true", help="print JSON")
    budget.set_defaults(command=_budget)

    _add_node(commands)
    return parser


def _add_node(commands: Any) -> None:
    node = commands.add_parser(
        "node",
        help="say what this node allows, and see what its users have spent",
        description="For the owner of a node: the policy that bounds what servers may ask, and "
        "the node's own account of what was answered.",
    )
    actions = node.add_subparsers(required=True, metavar="ACTION")

    policy = actions.add_parser(
        "policy",
        help="show the policy in force, or write a file to start from",
        description="Show the policy in force: PATH, else the file that PRIVSYN_NODE_POLICY names, "
        "else node-policy.toml in ~/.config/flower-privsyn, else the defaults.",
    )
    policy.add_argument("path", nargs="?", metavar="PATH", help="a policy file")
    policy.add_argument(
        "--init", action="store_true", help="write a commented file with the defaults"
    )
    policy.set_defaults(command=_node("policy"))

    ledger = actions.add_parser(
        "ledger",
        help="show what was answered from each data set, and what is left",
        description="What every run of every server was answered, from the noise multipliers they "
        "stated, and the epsilon of all of them together at the owner's delta.",
    )
    ledger.add_argument("--dataset", metavar="NAME", help="one data set (default: all)")
    ledger.add_argument("--policy", metavar="PATH", help="a policy file (default: that in force)")
    ledger.add_argument("--json", action="store_true", help="print JSON")
    ledger.set_defaults(command=_node("ledger"))

    digest = actions.add_parser(
        "digest", help="print the SHA-256 of a model folder, as a policy states it"
    )
    digest.add_argument("folder", metavar="FOLDER", help="the model")
    digest.set_defaults(command=_node("digest"))


def _node(action: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        from flower_privsyn.node import cli as node

        command: Callable[[argparse.Namespace], int] = getattr(node, action)
        return command(arguments)

    return run


if __name__ == "__main__":
    sys.exit(main())
