"""`privsyn check`: what a run would meet, spend and send, without starting it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from flower_privsyn.cli.options import Config, Evaluate, Json, NewRunDir, Settings
from flower_privsyn.cli.output import REFUSED, show_json, show_table

if TYPE_CHECKING:
    from flower_privsyn.dry_run import Report

_MARKS = {"fine": "", "warning": "warning", "stops": "STOPS"}


def check(
    context: typer.Context,
    app: Annotated[str, typer.Argument(metavar="APP", hidden=True)],
    run_dir: NewRunDir = None,
    config: Config = None,
    settings: Settings = None,
    evaluate: Evaluate = None,
    deployment: Annotated[
        bool,
        typer.Option(
            "--deployment",
            help="The users are on the nodes of a deployment: no text is read, and they are taken "
            "to be as many as `num-users` says. For who runs the server.",
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Check a run before it is started; nothing is spent.

    APP is the folder of the app; no run directory is made. Settings and data are read as
    `privsyn run` reads them; models are loaded, and tried, as it loads them, and those of the hub
    that are not here are downloaded. The exit status is 0 where the run can start, 2 where
    something stops it.
    """
    from flower_privsyn.dry_run import check_app
    from flower_privsyn.host.app import load_app, resolve_config

    loaded = load_app(app)
    values = resolve_config(loaded, config_name=config, settings=settings or ())
    report = check_app(
        loaded,
        values,
        run_dir=run_dir,
        evaluate=evaluate,
        deployment=deployment,
    )
    if as_json:
        show_json(report.to_dict())
    else:
        # What `flwr run` takes, it takes in other words.
        command = "" if deployment else shlex.join(["privsyn", "run", *context.obj[1:]])
        _show(report, command=command)
    return 0 if report.ready else REFUSED


def _show(report: Report, *, command: str) -> None:
    from flower_privsyn.evaluation.result import STAMP

    rows, last = [], ""
    for diagnostic in report.diagnostics:
        topic = "" if diagnostic.topic == last else diagnostic.topic
        rows.append((topic, _MARKS[diagnostic.level], diagnostic.sentence))
        last = diagnostic.topic
    show_table(rows)
    if report.not_private:
        print(f"Counted in your own data; do not publish it. [{STAMP}]")
    print(f"{report.verdict}: {command}" if report.ready and command else report.verdict)
