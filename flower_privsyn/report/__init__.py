"""The page of a run to look at, a file without any reference to another.

Every text that a template shows is escaped, and what a page cannot hold is replaced in the whole of
it. Synthetic texts are written by a model and may hold any markup. The page forbids scripts and
every load by its own content security policy, so it shows the same on a machine without network and
in any mail program.

Importing this package loads no model library, and matplotlib and Jinja2 only when a page is made.
May import `run`, `evaluation`, `models` and `privacy`: neither `generation` nor `training`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flower_privsyn.errors import RunDirectoryError
from flower_privsyn.files import os_errors_as, replacing
from flower_privsyn.models.library import import_extra
from flower_privsyn.report import numbers
from flower_privsyn.report.run import filled as of_run
from flower_privsyn.report.summary import RunSummary
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.run_format import hide_dates

__all__ = ["write_run_page"]


def write_run_page(
    run: RunDirectory, path: Path | None = None, *, quality: Sequence[tuple[str, str]] = ()
) -> Path:
    """Write the page of a run, whatever has become of it.

    Args:
        run: of any strategy, finished or not; it is only read.
        path: where to; by default `report.html` in the run directory, with the date of all files
            there. Replaced as a whole.
        quality: names and figures of its evaluation, where the page lies elsewhere.

    Returns:
        Where the page is.

    Raises:
        MissingExtraError: Jinja2 or matplotlib is not installed.
        LedgerError: the ledger is damaged, or lacks a line that another file states.
        RunDirectoryError: a file of the run is damaged, or the page cannot be written.
    """
    target = run.path / "report.html" if path is None else path
    page = run_page(run, quality)
    unwritable = f"The report {target} cannot be written"
    with os_errors_as(RunDirectoryError, unwritable), replacing(target) as file:
        file.write(page.encode())
    if path is None and run.running_process() is None:
        hide_dates(run.path)
    return target


def run_page(run: RunDirectory, quality: Sequence[tuple[str, str]] = ()) -> str:
    """The page of a run as text; see `write_run_page`."""
    for module in ("jinja2", "matplotlib"):
        import_extra(module, needed_by="A report", extra="evaluation")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__name__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "counted": numbers.counted,
        "number": numbers.number,
    }
    page = environment.get_template("run.html.j2").render(of_run(RunSummary.of(run), quality))
    return numbers.writable(page)
