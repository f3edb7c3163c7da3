"""What a run would meet, found without starting it: nothing is spent and nothing is written."""

from flower_privsyn.dry_run.check import check_app, check_method, check_needs
from flower_privsyn.dry_run.model_index import ModelIndex
from flower_privsyn.dry_run.report import Diagnostic, Report

__all__ = ["Diagnostic", "ModelIndex", "Report", "check_app", "check_method", "check_needs"]
