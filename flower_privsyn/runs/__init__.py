"""One run, one directory: its files, the lock on it, its owner's folder, older formats."""

from flower_privsyn.runs.directory import RunDirectory
from flower_privsyn.runs.locks import lock_file, supervisor_lock
from flower_privsyn.runs.places import default_run_directory, named_run, new_run_path, unnamed_run
from flower_privsyn.runs.run_format import RESEARCH_STAMP, how_to_resume

__all__ = [
    "RESEARCH_STAMP",
    "RunDirectory",
    "default_run_directory",
    "how_to_resume",
    "lock_file",
    "named_run",
    "new_run_path",
    "supervisor_lock",
    "unnamed_run",
]
