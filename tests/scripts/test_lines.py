"""Lines are counted by what stands on them."""

from scripts import lines

MODULE = '''"""What it is.

More.
"""

import sys  # a comment behind code

# One of its own.
TEXT = """
not a docstring
"""
#: Said of a name.
"""Said behind a name."""


def f() -> None:
    """Say it."""
    sys.exit(
        "out"
    )
'''


def test_a_file() -> None:
    found = lines.lines_of("a.py", MODULE)
    assert found == lines.Lines(files=1, code=8, tokens=18, docstrings=6, comments=2, blank=4)
