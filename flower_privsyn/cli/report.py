"""`privsyn report`: a page about a run or a comparison."""

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

    DIR is the run directory, or the folder of a comparison. Of a run, what it spent, what its
    rounds cost and how its text moved, from released values alone; of a folder that
    `privsyn compare` wrote, its page once more.
    """
    from flower_privsyn.report import read_document, write_comparison_page, write_run_page
    from flower_privsyn.run import RunDirectory

    folder = expanded(run_dir).absolute()
    page = folder / "report.html" if output is None else _page(output)
    if (folder / "compare.json").is_file():
        within = next((place for place in page.parents if (place / "config.json").is_file()), None)
        if within is not None:
            raise ConfigError(
                f"The output {page} lies in the run directory {within}, whose readers are "
                "promised the run's epsilon; a comparison on private text must lie elsewhere."
            )
        write_comparison_page(read_document(folder / "compare.json"), page)
    else:
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
