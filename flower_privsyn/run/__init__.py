"""A run: its settings, its method, its rounds, its nodes, and the directory that keeps it.

May import `messages`, `data`, `generation`, `training` and what these import; no strategy and no
client.
"""

from flower_privsyn.run.directory import RunDirectory
from flower_privsyn.run.run_format import how_to_resume

__all__ = ["RunDirectory", "how_to_resume"]
