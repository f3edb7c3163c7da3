"""The section *Follow a round* is the route of the code as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_stops_of_a_round() -> None:
    # In a process of its own: what is imported and cached decides which functions run.
    command = [sys.executable, str(ROOT / "scripts" / "route.py"), "pre-text"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs" / "add_a_method.md").read_text(encoding="utf-8")
    stops = re.findall(r"^\d+\. \[(.+?)\]", page, re.MULTILINE)
    assert stops == [line.split()[1] for line in printed.splitlines()[:-1]] != []
