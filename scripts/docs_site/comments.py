"""Comments `#:` above a value are its docstring: an extension of griffe, which reads the code."""

from __future__ import annotations

from typing import Any

import griffe


class Comments(griffe.Extension):
    """Gives values without a docstring the lines `#:` above them."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Read the lines above an assignment."""
        if attr.docstring or attr.lineno is None:
            return
        lines = attr.lines_collection[attr.filepath]
        above = attr.lineno - 2
        found: list[str] = []
        while above >= 0 and lines[above].strip().startswith("#:"):
            found.insert(0, lines[above].strip().removeprefix("#:").strip())
            above -= 1
        if found:
            attr.docstring = griffe.Docstring("\n".join(found), parent=attr)
