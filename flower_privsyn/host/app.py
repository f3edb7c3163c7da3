"""A Flower app in a folder: its settings, and what is refused before anything starts."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import expanded, read_toml

if TYPE_CHECKING:
    from flower_privsyn.run.settings import PrivateSumConfig
    from flower_privsyn.run.strategy import PrivateSumStrategy

ConfigValue = bool | int | float | str
"""What Flower allows as a setting."""


@dataclass(frozen=True, kw_only=True)
class App:
    """A Flower app in a folder.

    Attributes:
        path: The folder, absolute.
        name: `[project] name`.
        defaults: `[tool.flwr.app.config]`, nested tables flattened with dots.
        server: `[tool.flwr.app.components] serverapp`.
        client: Its `clientapp`.
    """

    path: Path
    name: str
    defaults: Mapping[str, ConfigValue]
    server: str = ""
    client: str = ""

    @property
    def uses_run_directory(self) -> bool:
        """Whether the app takes a run directory and records there how it ended."""
        return "run-dir" in self.defaults


def load_app(path: str | Path) -> App:
    """Read a Flower app's `pyproject.toml`, by what `flwr run` reads it with.

    Raises:
        ConfigError: There is no such folder, or it holds no Flower app.
    """
    from flwr.cli.config_utils import load_and_validate

    folder = expanded(path).absolute()
    if not folder.is_dir():
        raise ConfigError(f"There is no app folder {path}.")
    file = folder / "pyproject.toml"
    try:
        document, _ = load_and_validate(file)
    except Exception as error:  # whatever Flower, or what it reads files with, may raise
        raise ConfigError(f"{path} is no Flower app: {' '.join(str(error).split())}") from error
    app = document["tool"]["flwr"]["app"]
    return App(
        path=folder,
        name=document["project"]["name"],
        defaults=_flatten(app.get("config", {}), file),
        server=app["components"]["serverapp"],
        client=app["components"]["clientapp"],
    )


def strategies_of(
    app: App, values: Mapping[str, ConfigValue]
) -> list[tuple[PrivateSumConfig, type[PrivateSumStrategy]]]:
    """The settings of every strategy of this library that an app may make of its own.

    Args:
        app: The app; one that declares every key of a strategy is taken to configure it, and not
            another one that has fewer of them. Where its setting `strategy` names a strategy, that
            one alone is meant. Keys that no strategy has are the app's own: it declares them, and
            its ServerApp refuses those that it has not named (`other_keys`).
        values: Settings from `resolve_config`.

    Raises:
        ConfigError: A value is out of range or contradicts another one.
    """
    from flower_privsyn.catalogue import configuration_of, entries, own_keys
    from flower_privsyn.run.settings import CLIENT_KEYS

    strategies = {name: entry.strategy for name, entry in entries().items()}
    if (name := values.get("strategy")) in strategies:
        given = {key: values[key] for key in values if key != "run-dir"}
        settings = configuration_of(given, other_keys=own_keys(given))
        return [(settings, strategies[str(name)])]
    declared = [
        (strategy.config_class, strategy)
        for strategy in strategies.values()
        if strategy.config_class.keys() <= set(app.defaults)
    ]
    found = []
    for config, strategy in declared:
        if any(config.keys() < other.keys() for other, _ in declared):
            continue  # it would refuse the keys of the other one
        others = set(values) - config.keys() - CLIENT_KEYS
        found.append((config.from_run_config(values, other_keys=others), strategy))
    return found


def resolve_config(
    app: App, *, config_name: str | None = None, settings: Sequence[str] = ()
) -> dict[str, ConfigValue]:
    """The settings of one run: the app's defaults, then a named file, then single settings.

    Args:
        app: The app.
        config_name: Name of a file in the app's `conf/` folder, without `.toml`.
        settings: `key=value` texts; a value is read as TOML and, failing that, as text.

    Returns:
        Every key the app declares, with its value.

    Raises:
        ConfigError: There is no such file, or a setting is malformed, not declared by the app
            or of another type than the app's own value.
    """
    named = {} if config_name is None else written_settings(app, config_name)
    return {**app.defaults, **named, **read_settings(app, settings)}


def written_settings(app: App, config_name: str) -> dict[str, ConfigValue]:
    """What a named file of an app sets.

    Args:
        app: The app.
        config_name: As for `resolve_config`.

    Raises:
        ConfigError: As `resolve_config`.
    """
    file = app.path / "conf" / f"{config_name}.toml"
    if not file.is_file():
        names = sorted(entry.stem for entry in (app.path / "conf").glob("*.toml"))
        known = f"it has {', '.join(names)}" if names else "it has none"
        raise ConfigError(f"{app.name} has no configuration {config_name!r}; {known}.")
    return {
        key: check_setting(app, key, value, source=f"{file}: ")
        for key, value in _flatten(read_toml(file), file).items()
    }


def read_settings(app: App, settings: Sequence[str]) -> dict[str, ConfigValue]:
    """Single settings, as `--set` takes them."""
    values = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        key = key.strip()
        if not separator or not key:
            raise ConfigError(f"--set takes key=value, got {setting!r}.")
        values[key] = check_setting(app, key, _parse(app, key, text.strip()), source="")
    return values


def _parse(app: App, key: str, text: str) -> ConfigValue:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    # `--set name=2024` means the text 2024 where the app declares a text.
    if isinstance(app.defaults.get(key), str) and not isinstance(value, str):
        return text
    return value if isinstance(value, bool | int | float | str) else text


def check_setting(app: App, key: str, value: ConfigValue, *, source: str) -> ConfigValue:
    """A value as the app takes it.

    Args:
        app: The app.
        key: Name of the setting.
        value: Its value.
        source: What an error message begins with: where the value comes from, or "".

    Raises:
        ConfigError: The app declares no such setting, or one of another type.
    """
    if key not in app.defaults:
        near = difflib.get_close_matches(key, app.defaults, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(app.defaults)}."
        raise ConfigError(f"{source}{app.name} has no setting {key!r}; {hint}")
    default = app.defaults[key]
    if isinstance(default, bool) or isinstance(value, bool):
        fits = isinstance(default, bool) and isinstance(value, bool)
    elif isinstance(default, float):
        fits = isinstance(value, int | float)
        value = float(value) if fits else value
    else:
        fits = isinstance(value, type(default))
    if not fits:
        kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        raise ConfigError(
            f"{source}The setting {key} is {value!r}; it must be {kinds[type(default)]}, "
            f"such as {json.dumps(default)}."
        )
    return value


def _flatten(table: dict[str, Any], file: Path) -> dict[str, ConfigValue]:
    from flwr.common.config import flatten_dict

    try:
        return flatten_dict(table)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error
