"""What a server is sent beside the settings: a JSON object in a setting, read and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from flower_privsyn.errors import ConfigError

#: What the package sends by its own settings: no other value, but null to leave it out.
_BY_SETTINGS: Final = {
    "max_tokens": "max-new-tokens",
    "temperature": "temperature",
    "top_p": "top-p",
    "seed": "seed",
    "stop": "the prompt",
    "n": "the method",
}

#: What a request is nothing without, or is answered otherwise with.
_OF_A_REQUEST: Final = frozenset(
    {"model", "prompt", "messages", "stream", "tools", "functions", "echo"}
)

#: What is part of names, without what is between their letters, under which keys are sent.
_SECRETS: Final = (
    "apikey",
    "authorization",
    "bearer",
    "password",
    "secret",
    "accesstoken",
    "authtoken",
    "credential",
)

#: Whole names of the same.
_NAMES_OF_SECRETS: Final = frozenset({"key", "token"})


def read_extra_parameters(key: str, text: str) -> dict[str, Any]:
    """Read what a server is to be sent with every request.

    Args:
        key: what the setting is called.
        text: a JSON object, or "" for an empty one.

    Returns:
        The object; a value of None takes the place of one that would be sent, which is left out.

    Raises:
        ConfigError: it is none, holds what the settings say or a request is made of, or may hold a
            key, which would be written into the run directory.
    """
    if not text.strip():
        return {}
    try:
        found: Any = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # quotes what it cannot encode
        raise ConfigError(f"{key} must be a JSON object: half a character in it") from None
    except (ValueError, RecursionError) as error:
        # It is not quoted, which may be a key.
        raise ConfigError(f"{key} must be a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{key} must be a JSON object, got a {type(found).__name__}")
    for name in _names(found):
        plain = re.sub(r"[^a-z]", "", name.lower())
        if plain in _NAMES_OF_SECRETS or any(secret in plain for secret in _SECRETS):
            raise ConfigError(
                f"{key} holds {name!r}, and would be written into the run directory: put a key "
                "into the environment variable that generator-api-key-env names"
            )
    for name, value in found.items():
        if name in _OF_A_REQUEST:
            raise ConfigError(f"{key} must not hold {name!r}: requests are the package's own")
        if name in _BY_SETTINGS and value is not None:
            raise ConfigError(
                f"{key} must not hold {name!r} but as null, which leaves it out: its value is of "
                f"{_BY_SETTINGS[name]}"
            )
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _names(value: Any) -> Iterator[str]:
    """All names of objects in a value, at whatever depth."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            yield from one
            rest += one.values()
        elif isinstance(one, list):
            rest += one
