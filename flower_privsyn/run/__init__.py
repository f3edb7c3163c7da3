"""A run: its settings, its method, its rounds, its nodes, and the directory that keeps it."""

from flower_privsyn.run.directory import (
    RunDirectory,
    default_run_directory,
    named_run,
    new_run_path,
    supervisor_lock,
    unnamed_run,
)
from flower_privsyn.run.run_format import how_to_resume

__all__ = [
    "RunDirectory",
    "default_run_directory",
    "how_to_resume",
    "named_run",
    "new_run_path",
    "supervisor_lock",
    "unnamed_run",
]
