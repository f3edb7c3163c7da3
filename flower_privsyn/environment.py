"""What is around this package: its environment variables, and the libraries that are installed.

Each variable is named once, with what it means. The first eleven are for people (docs/simulation.md
lists them); the rest are set by `privsyn run` for the processes it starts.
"""

from __future__ import annotations

import platform
import sys
from typing import Final

CACHE: Final = "PRIVSYN_CACHE"
"""Folder where a node keeps embeddings and records, and a server the rows of public text;
`~/.cache/flower-privsyn` by default."""

RECORDS_GIB: Final = "PRIVSYN_RECORDS_GIB"
"""Most GiB of records a node keeps on its disk; 32 by default, 0 for none."""

THREADS: Final = "PRIVSYN_THREADS"
"""Most threads that compute at a time in a process, and most processes that answer for nodes under
`privsyn run`; the cores there are by default."""

RUNS_FOLDER: Final = "PRIVSYN_RUNS"
"""Folder of runs that were given no run directory; `~/privsyn-runs` by default."""

NODE_POLICY: Final = "PRIVSYN_NODE_POLICY"
"""File with what the owner of a node allows."""

NODE_LEDGERS: Final = "PRIVSYN_NODE_LEDGERS"
"""Folder of a node's own accounts of what was answered."""

NODE_STATE: Final = "PRIVSYN_NODE_STATE"
"""Folder of a node's own key, and of what it keeps between the messages of secure aggregation."""

CPU_TIME: Final = "PRIVSYN_CPU_TIME"
"""File that gets one JSON line for every message a node answered, with its CPU seconds."""

API_KEY: Final = "PRIVSYN_API_KEY"
"""The key of a generation server."""

TRACEBACK: Final = "PRIVSYN_TRACEBACK"
"""Set to anything: `privsyn` shows where an unexpected error comes from."""

CLIENT_TRACEBACK: Final = "PRIVSYN_CLIENT_TRACEBACK"
"""Set to anything on a node: tracebacks, which may quote private text, go to its log."""

RUN_DIRECTORY: Final = "PRIVSYN_RUN_DIRECTORY"
"""The run directory of an app that names none, under `privsyn run`."""

RESUME: Final = "PRIVSYN_RESUME"
""""1" when `privsyn resume` started that app."""

WORKING_DIRECTORY: Final = "PRIVSYN_WORKING_DIRECTORY"
"""The folder the user's command was typed in."""


def library_versions(*names: str) -> dict[str, str]:
    """The version of each library by the name of its package; empty where it is not installed."""
    from importlib import metadata  # a tenth of the time of `privsyn --help`

    found = {name: next(iter(metadata.distributions(name=name)), None) for name in names}
    return {name: "" if one is None else one.version for name, one in found.items()}


_VERSIONED = (
    "flower-privsyn",
    "flwr",
    "numpy",
    "dp-accounting",
    "pyarrow",
    "ray",
    "torch",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "datasets",
)


def versions() -> dict[str, str]:
    """Versions of Python, the system and the libraries that decide what a run does."""
    installed = {name: found for name, found in library_versions(*_VERSIONED).items() if found}
    return {"python": platform.python_version(), "platform": sys.platform, **installed}
