"""Keys of generation servers: read from the environment, and shown to nobody.

A key is in no configuration, so that it is in no run directory, no database of Flower's and no
command line. What a server says is quoted in messages only after `redact` has taken out the key.
"""

from __future__ import annotations

import os
import re
from typing import Final

from flower_privsyn import environment
from flower_privsyn.errors import ConfigError

#: An address of a host, a port and a path, and of a model behind "#": nothing that may be a key.
_PLAIN: Final = re.compile(r"https?://[^\s@?;&=#]+(#[^\s?;&=]*)?", re.IGNORECASE)


def check_generator(name: str) -> None:
    """Check the setting that may hold a key by mistake; its value is not quoted.

    Args:
        name: The setting `generator`.

    Raises:
        ConfigError: it is an address with a user name, a password, a query or parameters.
    """
    if isinstance(name, str) and is_address(name) and not _PLAIN.fullmatch(name.strip()):
        raise ConfigError(
            "generator must be an address like http://host:port/v1#model. The one given, which is "
            "not shown, has more: a user name, a password or a query may hold a key and would be "
            "written into the run directory. Leave them out and put the key into the environment "
            f"variable {environment.API_KEY}."
        )


def is_address(name: str) -> bool:
    """Whether a generator's name is the address of a server."""
    # As addresses are read: blanks before them, and tabs and ends of lines inside, do not count.
    return re.sub(r"[\x00-\x20]", "", name).lower().startswith(("http:", "https:"))


def read_key() -> str | None:
    """The key in the environment variable PRIVSYN_API_KEY; None where it is not set.

    Raises:
        ConfigError: What it holds is no key.
    """
    key = os.environ.get(environment.API_KEY, "").strip()
    if not key:
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"The environment variable {environment.API_KEY} holds no API key: a key is printable "
            "ASCII without blanks."
        )
    return key


def redact(text: str, key: str | None) -> str:
    """What somebody else wrote, with `[api key]` in place of a key; as it is without one.

    A server shows the beginning or the end of a key, too: of eight characters or more.
    """
    if not key:
        return text
    for length in range(len(key), min(len(key), 8) - 1, -1):
        for shown in (key[:length], key[-length:]):
            text = text.replace(shown, "[api key]")
    return text
