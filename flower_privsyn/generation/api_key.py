"""Keys of generation servers: read from the environment, and shown to nobody.

A setting names an environment variable; the key itself is in no configuration, so that it is in no
run directory, no database of Flower's and no command line. What a server says is quoted in messages
only after `redact` has taken out whatever is part of the key.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Final
from urllib.parse import SplitResult, urlsplit

from flower_privsyn import environment
from flower_privsyn.errors import ConfigError

API_KEY_VARIABLE: Final = environment.API_KEY
"""Where a key is looked for when no other variable is named."""

ApiKeyVariable = Annotated[
    str,
    "the environment variable of the ServerApp that holds the server's key; the key itself is "
    "never a setting. No key is sent where the usual one is not set.",
]
"""The setting `generator-api-key-env`."""

REDACTED: Final = "[api key]"
_SERVER: Final = ("http:", "https:")
_PARAMETERS: Final = re.compile(r"[;&=?]")
# Pieces of a key this long are taken out too: messages are cut, and servers show a key in part.
_PIECE: Final = 6


def check_generator(name: str, variable: str) -> None:
    """Check the two settings that may hold a key by mistake; their values are not quoted.

    Args:
        name: The setting `generator`.
        variable: The setting `generator-api-key-env`.

    Raises:
        ConfigError: `name` is an address with a user name, a password, a query or parameters, or
            `variable` is not the name of an environment variable.
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
    """Whether a generator's name is a server's address with more than host, port, path and model.

    However it is written: with a scheme in capital letters, blanks before it, or parameters behind
    a semicolon or in the fragment, where `#model` stands.
    """
    if not is_address(name):
        return False
    parts = _split(name)
    if parts is None:
        return True
    return (
        "@" in (parts.netloc or parts.path)
        or bool(parts.query)
        or bool(_PARAMETERS.search(parts.path) or _PARAMETERS.search(parts.fragment))
    )


def shown_address(name: str) -> str:
    """A server's address without user name, password, query, fragment and parameters."""
    parts = _split(name)
    if parts is None:
        return "an address that cannot be read"
    path = "" if _PARAMETERS.search(parts.path) or not parts.netloc else parts.path
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"


def is_address(name: str) -> bool:
    """Whether a generator's name is the address of a server."""
    # As addresses are read: blanks before them, and tabs and ends of lines inside, do not count.
    return re.sub(r"[\x00-\x20]", "", name).lower().startswith(_SERVER)


def _split(name: str) -> SplitResult | None:
    try:
        return urlsplit(name.strip("".join(map(chr, range(33)))))
    except ValueError:  # quotes the address
        return None


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
