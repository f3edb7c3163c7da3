"""What a page of the site would fetch from another machine: nothing, or it is not built."""

from __future__ import annotations

import re

_FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"' >]*"
    r"|<link\b[^>]*\brel=[\"']?(?:stylesheet|preconnect|preload|icon)[^>]*"
    r"\bhref=[\"']?(?:https?:)?//[^\"' >]*"
    r"|url\([\"']?(?:https?:)?//[^\"')]*|@import\s+[\"'](?:https?:)?//[^\"']*"
)


def fetched(text: str) -> list[str]:
    """What a browser fetches of a page or a style from elsewhere without being asked to.

    Args:
        text: HTML or CSS. Links that a reader follows are none of these.
    """
    return _FETCHED.findall(text)
