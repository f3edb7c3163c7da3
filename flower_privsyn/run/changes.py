"""What a resumed run may do otherwise than it was started, and how that is told."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from flwr.serverapp import Grid

from flower_privsyn.data.load import COLUMNS
from flower_privsyn.environment import versions
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import plain, read_json_lines, write_json
from flower_privsyn.generation.openai_backend import is_address
from flower_privsyn.messages.window import is_of_a_simulation
from flower_privsyn.run.directory import EXPANDED, WRITTEN, RunDirectory
from flower_privsyn.run.method import Method
from flower_privsyn.run.rounds import all_asked, earliest_end
from flower_privsyn.run.run_format import was_launched, without_places
from flower_privsyn.run.settings import CLIENT_KEYS, PrivateSumConfig
from flower_privsyn.run_config import SETTINGS

logger = logging.getLogger("flwr.privsyn")


def recorded(settings: PrivateSumConfig, method: Method) -> dict[str, Any]:
    """The settings as a run directory has them.

    Args:
        settings: of the run.
        method: of the run; where an object of its app writes, no setting names the generator.
    """
    found = settings.to_dict()
    return found if method.given_writer is None else {**found, "generator": ""}


#: Where a run is, not what it is.
_PLACE = frozenset({"resume", "run-dir"})

#: Settings that a resumed run may change at any time: timeouts, places and memory.
_ALWAYS_FREE = (
    _PLACE
    | {"node-timeout", "round-timeout", "accept-noise", "tracker"}
    | {"training-micro-batch-size", "gradient-checkpointing"}
)


def changes_of_run(
    run: RunDirectory,
    settings: PrivateSumConfig,
    method: Method,
    *,
    strategy: str,
    grid: Grid | None = None,
) -> dict[str, tuple[Any, Any]]:
    """What a resumed run does otherwise; refused where releases depend on it.

    Args:
        run: its directory.
        settings: that it is resumed with.
        method: that goes on with it.
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
    now, theirs = recorded(settings, method), dict(settings.node_settings)
    if theirs:  # a column that one of the two does not name is there the default
        columns = {key: name for key, name in COLUMNS.items() if key in before or key in theirs}
        before, theirs = {**columns, **before}, {"data": "", **columns, **theirs}
    # What nodes read is checked where it is known: not of settings that were made in code, nor
    # data of which the owner's folder is not there.
    now |= {key: theirs.get(key, before[key]) for key in CLIENT_KEYS & set(before)}
    before = {**known, **before}
    changed = {key: pair for key, pair in _differing(before, now).items() if key not in _PLACE}
    for key, (old, new) in changed.items():
        if key not in free and not (key == "generator" and same_model_elsewhere(old, new)):
            raise ConfigError(
                f"{key} = {new!r} differs from the {old!r} the run in {run.path} was started with: "
                "a resumed run keeps its settings. At this point it may change "
                f"{', '.join(sorted({*free} & {*before, *now} - _PLACE))}"
            )
    return changed


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The values before and now of what is not the same; None stands for what is not there."""
    return {
        key: (before.get(key), now.get(key))
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    }


def may_leave_out_nodes(run: RunDirectory, settings: PrivateSumConfig, grid: Grid | None) -> bool:
    """Whether a run may go on without nodes that are gone for good, as one at work goes on.

    Noise and turns are those of users, whose number may fall (`calibrated`), and not of nodes. Not
    so under secure aggregation, where every node adds its share of the noise. And of a simulation,
    and of a run that `privsyn run` started, no node is ever gone: fewer of them would be dealt the
    same users anew, and an app's own recipe may call a user by the node.

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
    otherwise. `config` and `versions` then hold what is so now, and `changes` every change, oldest
    first.

    Args:
        run: its directory.
        changes: for each key the value before and the one from now on.
    """
    remember(run, {key: now for key, (_, now) in changes.items()})
    document, here = run.document, versions()
    libraries = _differing(document.get("versions", here), here)
    if not changes and not libraries:
        return
    for name, (before, now) in libraries.items():
        logger.warning("the run goes on with %s %s, in place of %s", name, now, before)
    for key, (before, now) in changes.items():
        logger.warning("%s = %r from now on, in place of %r", key, now, before)
    settings = without_places(changes)
    entry: dict[str, Any] = {
        "after_round": max(run.finished_rounds(), default=0),
        "texts_before": sum(
            1 for name in (EXPANDED, WRITTEN) for _ in read_json_lines(run.path / name)
        ),
        "settings": _pairs(settings),
    }
    if libraries:
        entry["versions"] = _pairs(libraries)
    config = {**run.config, **{key: plain(now) for key, (_, now) in settings.items()}}
    history = [*document.get("changes", []), entry]
    write_json(
        run.config_file, {**document, "config": config, "versions": here, "changes": history}
    )


def same_model_elsewhere(before: object, now: object) -> bool:
    """Whether two generators are one model, by its name, on two servers."""
    names = set()
    for generator in (before, now):
        address, _, model = str(generator).partition("#")
        names.add(model if is_address(address) else "")
    return len(names) == 1 and "" not in names


def remember(run: RunDirectory, changed: Mapping[str, Any]) -> None:
    """Keep in the owner's folder what this user goes on with.

    Args:
        run: whose settings are, but for those that change, the ones that it is resumed with.
        changed: the new values, by key.
    """
    own = run.owner.own
    parts = {"settings": {**own.get("settings", run.config), **changed}}
    if launch := own.get("launch"):
        given = launch["run-config"]
        taken = {key: new for key, new in changed.items() if key in given or SETTINGS in given}
        parts["launch"] = {**launch, "run-config": {**given, **taken}}
    with contextlib.suppress(OSError):
        run.owner.remember(**parts)


def _pairs(changes: Mapping[str, tuple[Any, Any]]) -> dict[str, dict[str, Any]]:
    return {
        key: {"from": plain(before), "to": plain(now)} for key, (before, now) in changes.items()
    }
