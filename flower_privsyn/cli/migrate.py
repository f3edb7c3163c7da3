"""`privsyn migrate`: run directories of an earlier version, converted in place."""

from __future__ import annotations

from flower_privsyn.cli.options import RunDir


def migrate(run_dir: RunDir) -> int:
    """Convert a run directory of flower-privsyn 0.1, finished or not, in place.

    DIR is the run directory. Its releases are rounded, and the times in it go to the owner's folder
    <DIR>.owner. It may be interrupted and begun again.
    """
    from flower_privsyn.runs import migrate

    done = migrate.migrate(run_dir)
    for sentence in done or [f"{run_dir} needs no conversion."]:
        print(sentence)
    return 0
