"""What a resumed run may do otherwise than it was started, and how that is told."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from flower_privsyn.errors import ConfigError

#: Where a run is, not what it is.
_PLACE = frozenset({"resume", "run-dir"})


def changes_of_resume(
    before: Mapping[str, Any], now: Mapping[str, Any], *, free: Collection[str], run: Path
) -> dict[str, tuple[Any, Any]]:
    """The settings that differ from those a run was started with.

    Args:
        before: as recorded.
        now: as the run is resumed with.
        free: keys that its releases do not depend on, the ones to come included.
        run: its directory.

    Returns:
        For each key the value before and the one now, without those that say where the run is.

    Raises:
        ConfigError: another setting differs.
    """
    changed = {
        key: (before.get(key), now.get(key))
        for key in sorted({*before, *now} - _PLACE)
        if before.get(key) != now.get(key)
    }
    for key, (old, new) in changed.items():
        if key not in free and not (key == "generator" and _same_model_elsewhere(old, new)):
            raise ConfigError(
                f"{key} = {new!r} differs from the {old!r} the run in {run} was started with: a "
                "resumed run keeps its settings"
            )
    return changed


def _same_model_elsewhere(before: object, now: object) -> bool:
    """Whether two generators are one model, by its name, on two servers."""
    names = set()
    for generator in (before, now):
        address, _, model = str(generator).partition("#")
        names.add(model if address.startswith(("http://", "https://")) else "")
    return len(names) == 1 and "" not in names
