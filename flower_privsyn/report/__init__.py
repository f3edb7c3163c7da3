"""Pages to look at: one run, and a comparison of methods. Files without any reference to another.

Importing this package loads no model library, and matplotlib and Jinja2 only when a page is made.
"""

from flower_privsyn.report.comparison import read_document
from flower_privsyn.report.pages import (
    require_libraries,
    write_comparison_page,
    write_run_page,
)

__all__ = ["read_document", "require_libraries", "write_comparison_page", "write_run_page"]
