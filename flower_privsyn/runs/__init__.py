"""One run, one directory: its files, the lock on it, its owner's folder, older formats."""

from flower_privsyn.environment import RESUME, RUN_DIRECTORY, RUNS_FOLDER
from flower_privsyn.runs.directory import (
    LAUNCH_FILE,
    RESEARCH_STAMP,
    RunDirectory,
    default_run_directory,
    lock_file,
    new_run_path,
    supervisor_lock,
    unnamed_run,
    watch_supervisor,
)

__all__ = [
    "LAUNCH_FILE",
    "RESEARCH_STAMP",
    "RESUME",
    "RUNS_FOLDER",
    "RUN_DIRECTORY",
    "RunDirectory",
    "default_run_directory",
    "lock_file",
    "new_run_path",
    "supervisor_lock",
    "unnamed_run",
    "watch_supervisor",
]
