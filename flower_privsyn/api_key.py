"""Keys of generation servers: read from the environment, and shown to nobody.

A setting names an environment variable; the key itself is in no configuration, so that it is in no
run directory, no database of Flower's and no command line. What a server says is quoted in messages
only after `redact` has taken out whatever is part of the key.
"""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import urlsplit

from flower_privsyn.errors import ConfigError

API_KEY_VARIABLE: Final = "PRIVSYN_API_KEY"
"""Where a key is looked for when no other variable is named."""

REDACTED: Final = "[api key]"
_SERVER: Final = ("http://", "https://")
# Pieces of a key this long are taken out too: messages are cut, and servers show a key in part.
_PIECE: Final = 6


def check_generator(name: str, variable: str) -> None:
    """Check the two settings that may hold a key by mistake; their values are not quoted.

    Args:
        name: The setting `generator`.
        variable: The setting `generator-api-key-env`.

    Raises:
        ConfigError: `name` is an address with a user name, a password or a query, or `variable` is
            not the name of an environment variable.
    """
    if not isinstance(variable, str) or not re.fullmatch(r"[A-Z_][A-Z0-9_]*", variable):
        raise ConfigError(
            "generator-api-key-env must be the name of an environment variable that holds the key, "
            f"such as {API_KEY_VARIABLE}: capital letters, digits and underscores. The value given "
            "is not shown here, because it may be the key itself."
        )
    if isinstance(name, str) and has_secrets(name):
        raise ConfigError(
            f"generator = {shown_address(name)} was given with a user name, a password or a query, "
            "which may hold a key and would be written into the run directory: leave them out and "
            f"put the key into the environment variable {variable} (generator-api-key-env)."
        )


def has_secrets(name: str) -> bool:
    """Whether a generator's name is a server's address with more than host, port and path."""
    if not name.startswith(_SERVER):
        return False
    parts = urlsplit(name)
    return "@" in parts.netloc or bool(parts.query) or "?" in parts.fragment


def shown_address(name: str) -> str:
    """A server's address without user name, password, query and fragment."""
    parts = urlsplit(name)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def read_key(variable: str) -> str | None:
    """The key in an environment variable; None where the usual variable is not set.

    Args:
        variable: The setting `generator-api-key-env`.

    Raises:
        ConfigError: A variable that was named is not set, or what it holds is no key.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        if variable == API_KEY_VARIABLE:
            return None
        raise ConfigError(
            f"generator-api-key-env = {variable} names an environment variable that is not set."
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"The environment variable {variable} holds no API key: a key is printable ASCII "
            "without blanks."
        )
    return key


def redact(text: str, key: str | None) -> str:
    """Take a key, and every piece of it of six characters or more, out of a text.

    Args:
        text: What somebody else wrote, such as a server's refusal.
        key: The key; None where there is none.

    Returns:
        The text with each run of such characters replaced by `[api key]`.
    """
    if not key:
        return text
    size = min(_PIECE, len(key))
    hidden: list[tuple[int, int]] = []
    for start in range(len(text) - size + 1):
        if text[start : start + size] in key:
            if hidden and start <= hidden[-1][1]:
                hidden[-1] = (hidden[-1][0], start + size)
            else:
                hidden.append((start, start + size))
    for start, end in reversed(hidden):
        text = text[:start] + REDACTED + text[end:]
    return text
