"""`privsyn report`: the page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flower_privsyn.cli.options import RunDir, option
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import expanded


def report(
    run_dir: RunDir,
    output: Annotated[
        str | None, option("FILE", "where to write (default: DIR/report.html)")
    ] = None,
) -> int:
    """One HTML file without any reference to another.

    DIR is the run directory. What the run spent, what its rounds cost and how its text moved, from
    released values alone.
    """
    from flower_privsyn.report import write_run_page
    from flower_privsyn.run import RunDirectory

    folder = expanded(run_dir).absolute()
    page = folder / "report.html" if output is None else _page(output)
    write_run_page(RunDirectory.open(folder), page)
    print(page)
    return 0


def _page(output: str) -> Path:
    page = expanded(output).absolute()
    if page.is_dir():
        page = page / "report.html"
    if not page.parent.is_dir():
        raise ConfigError(f"There is no folder {page.parent} to write {page.name} into.")
    return page
