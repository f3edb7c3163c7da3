"""A notebook as a page: its text, its code, and what it printed when it was last executed."""

from __future__ import annotations

import json
from typing import Any


def page(text: str) -> str:
    """Markdown of a notebook.

    Args:
        text: the file, in version 4 of the format.
    """
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts.append(f"```python\n{source}\n```")
            parts += [f"```text\n{shown}\n```" for shown in map(_shown, cell["outputs"]) if shown]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """What an output looks like as text."""
    content = output["text"] if "text" in output else output.get("data", {}).get("text/plain", "")
    return "".join(content).rstrip()
