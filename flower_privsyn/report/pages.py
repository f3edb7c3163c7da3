"""Pages: templates filled with what a run or a comparison shows, one file without references.

Every text that a template shows is escaped, and what a page cannot hold is replaced in the whole of
it. Synthetic texts are written by a model and may hold any markup. The page forbids scripts and
every load by its own content security policy, so it shows the same on a machine without network and
in any mail program.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_privsyn.errors import MissingExtraError, RunDirectoryError
from flower_privsyn.files import replacing
from flower_privsyn.report import figures, numbers, svg
from flower_privsyn.report.comparison import ComparisonFacts
from flower_privsyn.report.run import RunFacts
from flower_privsyn.runs import RunDirectory
from flower_privsyn.runs.run_format import ledger_meta

if TYPE_CHECKING:
    from jinja2 import Environment


def write_run_page(run: RunDirectory, path: Path | None = None) -> Path:
    """Write the page of a run, whatever has become of it.

    Args:
        run: of any strategy, finished or not; it is only read.
        path: where to; by default `report.html` in the run directory, with the date of all files
            there. Replaced as a whole.

    Returns:
        Where the page is.

    Raises:
        MissingExtraError: Jinja2 or matplotlib is not installed.
        LedgerError: the ledger is damaged, or lacks a line that another file states.
        RunDirectoryError: a file of the run is damaged, or the page cannot be written.
    """
    target = run.path / "report.html" if path is None else path
    _write(run_page(run), target)
    if path is None and run.running_process() is None:
        run.hide_dates()
    return target


def write_comparison_page(document: Mapping[str, Any], path: Path) -> None:
    """Write the page of a comparison.

    Args:
        document: what `privsyn compare` keeps in `compare.json`, finished or not. Cells that have
            not finished are listed with their reason, and methods that this package does not know
            are shown like the others.
        path: where to; replaced as a whole.

    Raises:
        MissingExtraError: Jinja2 or matplotlib is not installed.
        DataError: the document holds no comparison.
        RunDirectoryError: the page cannot be written.
    """
    _write(comparison_page(document), path)


def run_page(run: RunDirectory) -> str:
    """The page of a run as text; see `write_run_page`."""
    require_libraries()
    facts = RunFacts(run)
    ledger = None if facts.digest is None else ledger_meta(facts.digest)
    return _rendered("run.html.j2", page=facts, ledger=ledger)


def comparison_page(document: Mapping[str, Any]) -> str:
    """The page of a comparison as text; see `write_comparison_page`."""
    require_libraries()
    return _rendered("comparison.html.j2", page=ComparisonFacts(document), ledger=None)


def require_libraries() -> None:
    """Refuse to go on where no page can be made.

    Raises:
        MissingExtraError: Jinja2 or matplotlib is not installed.
    """
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "A report needs Jinja2 and matplotlib: pip install 'flower-privsyn[evaluation]'"
        ) from error


def _rendered(template: str, **values: Any) -> str:
    with svg.drawing():
        return numbers.writable(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"counted": numbers.counted, "shortened": numbers.shortened}
    environment.globals |= {
        "charts": figures.charts,
        "sign": figures.sign,
        "NOTHING": numbers.NOTHING,
        "PANEL": figures.PANEL,
    }
    return environment


def _write(page: str, path: Path) -> None:
    """Write a page as a whole: a reader finds the old one or the new one."""
    try:
        with replacing(path) as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RunDirectoryError(
            f"The report {path} cannot be written: {error.strerror or error}."
        ) from error
