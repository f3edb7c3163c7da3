"""What a resumed run may do otherwise than it was started, and how that is told."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation.api_key import is_address
from flower_privsyn.generation.generator_settings import SERVER_SETTINGS
from flower_privsyn.messages.window import is_of_a_simulation
from flower_privsyn.private_path.resume import all_asked, earliest_end
from flower_privsyn.private_path.settings import CLIENT_KEYS, PrivateSumConfig
from flower_privsyn.runs import RunDirectory, history
from flower_privsyn.runs.run_format import was_launched

logger = logging.getLogger("flwr.privsyn")

#: Where a run is, not what it is.
_PLACE = frozenset({"resume", "run-dir"})

#: Settings that a resumed run may change at any time: timeouts, places and memory.
_ALWAYS_FREE = (
    _PLACE
    | SERVER_SETTINGS
    | {"node-timeout", "round-timeout", "accept-noise", "tracker"}
    | {"training-micro-batch-size", "gradient-checkpointing"}
)


def changes_of_run(
    run: RunDirectory,
    settings: PrivateSumConfig,
    *,
    strategy: str,
    grid: Grid | None = None,
) -> dict[str, tuple[Any, Any]]:
    """What a resumed run does otherwise; refused where releases depend on it.

    Args:
        run: its directory.
        settings: that it is resumed with.
        strategy: that it is resumed by.
        grid: Flower's connection to the nodes; None where nobody will be asked.

    Raises:
        ConfigError: a setting differs that may not, or the strategy does.
    """
    started_by = run.document.get("strategy") or strategy
    if started_by != strategy:
        raise ConfigError(
            f"the run in {run.path} was started by {started_by} and is resumed by {strategy}: a "
            "resumed run keeps its strategy"
        )
    free = _ALWAYS_FREE
    if all_asked(run, num_rounds=settings.num_rounds):
        free |= CLIENT_KEYS | settings.afterwards
    if settings.num_rounds == earliest_end(run):
        free |= {"num-rounds"}
    before, known = {**run.owner.stated.get("settings", {}), **run.config}, settings.defaults()
    nodes = int(before.get("num-nodes", known["num-nodes"]))
    if settings.num_nodes < nodes and may_leave_out_nodes(run, settings, grid):
        free |= {"num-nodes"}
    return changes_of_resume(
        {**known, **before},
        # What nodes read is checked where it is known: not of settings that were made in code.
        {**settings.to_dict(), **{key: before[key] for key in CLIENT_KEYS & set(before)}}
        | {key: value for key, value in settings.node_settings if key in before},
        free=free,
        run=run.path,
    )


def may_leave_out_nodes(run: RunDirectory, settings: PrivateSumConfig, grid: Grid | None) -> bool:
    """Whether a run may go on without nodes that are gone for good, as one at work goes on.

    Noise and turns are those of users, whose number may fall (`settle`), and not of nodes. Not so
    under secure aggregation, where every node adds its share of the noise. And of a simulation, and
    of a run that `privsyn run` started, no node is ever gone: fewer of them would be dealt the same
    users anew, and an app's own recipe may call a user by the node.

    Args:
        run: its directory.
        settings: that it is resumed with.
        grid: Flower's connection to the nodes; None where nobody will be asked.
    """
    if settings.secure_aggregation or (grid is not None and is_of_a_simulation(grid)):
        return False
    return not was_launched(run.document)


def record_changes(run: RunDirectory, changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Keep what is changed, and since when: the run directory says what made its texts.

    So of the libraries: another version is no reason to refuse, but it may write and train
    otherwise.
    """
    history.remember(run, {key: now for key, (_, now) in changes.items()})
    libraries = history.other_versions(run)
    if not changes and not libraries:
        return
    if libraries:
        told = (
            f"{name} {now or 'none'} in place of {was or 'none'}"
            for name, (was, now) in libraries.items()
        )
        logger.warning("the run goes on with other libraries: %s", ", ".join(told))
    for key, (before, now) in changes.items():
        logger.warning("%s = %r from now on, in place of %r", key, now, before)
    history.record_changes(run, changes, libraries)


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
        if key not in free and not (key == "generator" and same_model_elsewhere(old, new)):
            raise ConfigError(
                f"{key} = {new!r} differs from the {old!r} the run in {run} was started with: a "
                "resumed run keeps its settings. At this point it may change "
                f"{', '.join(sorted({*free} & {*before, *now} - _PLACE))}"
            )
    return changed


def same_model_elsewhere(before: object, now: object) -> bool:
    """Whether two generators are one model, by its name, on two servers."""
    names = set()
    for generator in (before, now):
        address, _, model = str(generator).partition("#")
        names.add(model if is_address(address) else "")
    return len(names) == 1 and "" not in names
