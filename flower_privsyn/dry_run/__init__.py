"""What a run would meet, found without starting it: nothing is spent and nothing is written."""

from flower_privsyn.dry_run.check import check_app, check_method, check_needs
from flower_privsyn.dry_run.report import Finding, Report
from flower_privsyn.dry_run.shelf import Shelf

__all__ = ["Finding", "Report", "Shelf", "check_app", "check_method", "check_needs"]
