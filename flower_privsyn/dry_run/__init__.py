"""What a run would meet, found without starting it: nothing is spent.

May import every room but `cli` and `comparison`.
"""

from flower_privsyn.dry_run.check import check_app, check_plan, check_setup
from flower_privsyn.dry_run.report import Report

__all__ = ["Report", "check_app", "check_plan", "check_setup"]
