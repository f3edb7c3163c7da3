"""Pages to look at: one run, and a comparison of methods. Files without any reference to another.

Importing this package loads no model library.
"""

from flower_privsyn.report.comparison import write_comparison_page
from flower_privsyn.report.run import write_run_page

__all__ = ["write_comparison_page", "write_run_page"]
