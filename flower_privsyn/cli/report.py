"""`privsyn report`: the page of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from flower_privsyn.files import expanded


def report(
    run_dirs: Annotated[list[str], typer.Argument(metavar="DIR ...", hidden=True)],
) -> int:
    """Write the page of a run, to be opened in a browser.

    DIR is the run directory; of several each gets its page, DIR/report.html. What the run spent,
    what its rounds cost and how its text moved, from released values alone.
    """
    from flower_privsyn.report import write_run_page
    from flower_privsyn.run import RunDirectory

    for folder in (expanded(one).absolute() for one in run_dirs):
        # A shell's runs/* names what lies beside the runs, too.
        if len(run_dirs) > 1 and folder.suffix in (".owner", ".evaluation"):
            continue
        print(write_run_page(RunDirectory.open(folder)))
    return 0
