"""A Flower app's run configuration, of which one key, `settings`, takes all keys not declared.

Flower hands on the keys that an app declares, and one value of each. In place of a hundred an app
declares those that people change, and `settings`, a text in TOML:

    settings = '''
    temperature = 0.8
    sampling = "poisson"
    '''
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Mapping
from typing import Any, Final

from flower_privsyn.errors import ConfigError

SETTINGS: Final = "settings"
"""The key that takes all others."""

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def unfolded(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Every key of a run configuration by itself, as all that reads one takes it.

    Args:
        run_config: `context.run_config`.

    Returns:
        With the keys in `settings`, and with that one empty, where it is there.

    Raises:
        ConfigError: `settings` is not TOML, or holds something else than texts, numbers, true and
            false, or a key that stands beside it too.
    """
    if SETTINGS not in run_config:
        return dict(run_config)
    text = run_config[SETTINGS]
    try:
        found = tomllib.loads(text) if isinstance(text, str) else None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(  # without a word of it: an address in it may hold a key
            f"settings must be TOML, on each line a key = value: {error}"
        ) from None
    if found is None:
        raise ConfigError(f"settings must be a text in TOML, got {text!r}")
    for key, value in found.items():
        if not _BARE.fullmatch(key):  # which Flower takes for a table, or `toml` for two keys
            raise ConfigError(f"{key!r} in settings must be a key of letters, digits and hyphens")
        if key in run_config:
            raise ConfigError(
                f"{key} stands in settings and is a key of its own of the app: set {key} alone"
            )
        if not isinstance(value, str | bool | int | float):
            raise ConfigError(
                f"{key} in settings must be a text in quotation marks, a number, true or false, "
                f"got a {type(value).__name__}"
            )
    return {**run_config, **found, SETTINGS: ""}


def folded(values: Mapping[str, Any], declared: Collection[str]) -> dict[str, Any]:
    """The run configuration that `unfolded` gives again, as Flower takes it.

    Args:
        values: by key.
        declared: keys that the app declares; all others go into `settings`.
    """
    config = {key: value for key, value in values.items() if key in declared}
    if others := {key: value for key, value in values.items() if key not in declared}:
        config[SETTINGS] = toml(others)
    return config


def toml(values: Mapping[str, Any]) -> str:
    """Keys and values as TOML, one on a line."""
    lines = []
    for key, value in values.items():
        # A number as Python writes it, and the one character that JSON leaves and TOML does not.
        said = repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        lines.append(f"{key} = {said}".replace("\x7f", "\\u007f"))
    return "\n".join(lines)
