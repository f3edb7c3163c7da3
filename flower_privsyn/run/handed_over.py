"""What a run directory may have its readers do: it may be somebody else's.

Its numbers and texts are read; nothing that its settings name outside of it is opened, asked or
told anything, unless whoever reads it has named the same: on the command line, or in a run of
theirs, which stands sealed in the owner's folder.
"""

from __future__ import annotations

from collections.abc import Callable

from flower_privsyn.errors import ConfigError
from flower_privsyn.run.directory import RunDirectory


def named(run: RunDirectory, key: str, *, here: Callable[[str], bool], instead: str) -> str:
    """What a setting of a run names, to act on it.

    Args:
        run: its directory.
        key: of the setting.
        here: whether a name is harmless in anybody's directory, as that of a model that this
            machine has.
        instead: what to do where the directory alone says so, as the end of a sentence.

    Raises:
        ConfigError: the directory alone says so.
    """
    name = str(run.config.get(key, ""))
    if here(name) or name == run.owner.own.get("settings", {}).get(key):
        return name
    raise ConfigError(
        f"{run.path} says {key} = {name!r}, and {run.owner.path} does not show that you ran it so: "
        f"it may be somebody else's; {instead}"
    )
