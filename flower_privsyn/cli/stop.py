"""`privsyn stop`: end a run between two rounds, where nothing that was paid for is lost."""

from __future__ import annotations

from pathlib import Path

from flower_privsyn.cli.options import RunDir


def stop(run_dir: RunDir) -> int:
    """End a run that is at work before its next round, so that no round is charged for nothing.

    DIR is the run directory, or the folder of a comparison, whose run it is then. The round that
    nodes are answering is finished and released; Ctrl-C ends a run at once, and such a round is
    charged without a release. `privsyn resume`, or the same command for a comparison, goes on.
    """
    from flower_privsyn.files import expanded, quoted

    path = _at_work(expanded(Path(run_dir)))
    _ask(path)
    print(
        f"The run in {path} ends before its next round. Where no round is left, it is finished, "
        "and so is what follows the last one.\n"
        f"How it stands: privsyn inspect {quoted(path)}"
    )
    return 0


def _at_work(path: Path) -> Path:
    """The run that a process works on: that of a folder, or of the comparison there."""
    from flower_privsyn.errors import RunDirectoryError
    from flower_privsyn.runs import RunDirectory

    if not (path / "config.json").is_file():
        for place in ("cells/*/run", "users-*/cells/*/run"):  # the second, of a grid
            for one in sorted(path.glob(place)):
                if RunDirectory(one).running_process() is not None:
                    return one
    if (path / "compare.json").is_file() or (path / "grid.json").is_file():
        raise RunDirectoryError(
            f"No run of the comparison in {path} is at work on this machine: Ctrl-C, where it was "
            "started, loses no round"
        )
    run = RunDirectory.open(path)  # says what is missing
    if run.running_process() is None:
        raise RunDirectoryError(f"No process of this machine works on the run in {run.path}")
    return run.path


def _ask(path: Path) -> None:
    from flower_privsyn.errors import RunDirectoryError
    from flower_privsyn.runs.owner import OwnerFolder

    owner = OwnerFolder(path)
    try:
        owner.ask_to_stop()
    except OSError as error:
        raise RunDirectoryError(
            f"{owner.stop_file} cannot be written: {error.strerror or error}"
        ) from error
