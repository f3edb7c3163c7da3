"""What a run went on with otherwise than it was begun: the `changes` of its `config.json`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from flower_privsyn.files import plain, read_json_lines, write_json
from flower_privsyn.run.directory import RunDirectory
from flower_privsyn.run.round_files import EXPANDED, WRITTEN
from flower_privsyn.run.surroundings import versions, without_places


def record_changes(
    run: RunDirectory,
    settings: Mapping[str, tuple[Any, Any]],
    libraries: Mapping[str, tuple[str | None, str | None]] | None = None,
) -> None:
    """Record that a resumed run goes on with other settings or libraries, and after which round.

    `config` and `versions` then hold the new values, and `changes` every change, oldest first.

    Args:
        run: Its directory.
        settings: For each key the value before and the one from now on.
        libraries: For each name the version before and the one from now on; None of a library
            that is not there.
    """
    document, settings = run.document, without_places(settings)
    entry: dict[str, Any] = {
        "after_round": max(run.finished_rounds(), default=0),
        "texts_before": sum(
            1 for name in (EXPANDED, WRITTEN) for _ in read_json_lines(run.path / name)
        ),
        "settings": _pairs(settings),
    }
    config = {**run.config, **{key: plain(now) for key, (_, now) in settings.items()}}
    document = {**document, "config": config}
    if libraries:
        entry["versions"] = _pairs(libraries)
        found = {**_stated(document), **{name: now for name, (_, now) in libraries.items()}}
        document["versions"] = {name: version for name, version in found.items() if version}
    history = [*document.get("changes", []), entry]
    write_json(run.config_file, {**document, "changes": history})


def remember(run: RunDirectory, changed: Mapping[str, Any]) -> None:
    """Keep in the owner's folder what this user goes on with.

    Args:
        run: whose settings are, but for those that change, the ones that it is resumed with.
        changed: the new values, by key.
    """
    own = run.owner.own
    parts = {"settings": {**own.get("settings", run.config), **changed}}
    if launch := own.get("launch"):
        known = {key: new for key, new in changed.items() if key in launch["run-config"]}
        parts["launch"] = {**launch, "run-config": {**launch["run-config"], **known}}
    with contextlib.suppress(OSError):
        run.owner.remember(**parts)


def other_versions(run: RunDirectory) -> dict[str, tuple[str | None, str | None]]:
    """Libraries that are not here as the run last had them: the version then, and the one now.

    None stands for a library that is not there. Of a run that states no versions there are none.
    """
    before, now = _stated(run.document), versions()
    return {
        name: (before.get(name), now.get(name))
        for name in (sorted({*before, *now}) if before else ())
        if before.get(name) != now.get(name)
    }


def _stated(document: Mapping[str, Any]) -> dict[str, str]:
    stated = document.get("versions")
    return dict(stated) if isinstance(stated, dict) else {}


def _pairs(changes: Mapping[str, tuple[Any, Any]]) -> dict[str, dict[str, Any]]:
    return {
        key: {"from": plain(before), "to": plain(now)} for key, (before, now) in changes.items()
    }
