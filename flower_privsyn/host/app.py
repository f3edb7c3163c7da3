"""A Flower app in a folder: its settings, and what is refused before anything starts."""

from __future__ import annotations

import contextlib
import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flower_privsyn.checks import raised_as
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import expanded, read_toml
from flower_privsyn.run_config import SETTINGS, unfolded

if TYPE_CHECKING:
    from flower_privsyn.run.settings import PrivateSumConfig
    from flower_privsyn.run.strategy import PrivateSumStrategy

ConfigValue = bool | int | float | str
"""What Flower allows as a setting."""

#: A ServerApp that names no keys of its own.
_OURS: Final = "flower_privsyn.strategies.default:app"


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

    def takes(self, key: str) -> bool:
        """Whether a run may set a key: one that the app declares, or any in its `settings`."""
        return key in self.defaults or SETTINGS in self.defaults


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
        read_toml(file)  # which says in which line it is none
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


def strategy_of_app(
    app: App, values: Mapping[str, ConfigValue]
) -> tuple[PrivateSumConfig, type[PrivateSumStrategy]] | None:
    """The strategy that an app's key `strategy` names, with its settings.

    Args:
        app: The app. Keys that it declares and the strategy has not are its own, where its
            ServerApp is: that one refuses those that it has not named (`other_keys`).
        values: Settings from `resolve_config`.

    Returns:
        None where the app has no such key, and chooses in its code.

    Raises:
        ConfigError: There is no such strategy, it has no such key, or a value is out of range or
            contradicts another one.
    """
    from flower_privsyn.catalogue import configuration_of, strategy_named

    if "strategy" not in values:
        return None
    strategy = strategy_named(values["strategy"])
    own = set(app.defaults) - strategy.config_class.keys() if app.server != _OURS else ()
    return configuration_of(values, other_keys=own), strategy


def resolve_config(
    app: App, *, config_name: str | None = None, settings: Sequence[str] = ()
) -> dict[str, ConfigValue]:
    """The settings of one run: the app's defaults, then a named file, then single settings.

    A text of `settings` takes the place of the one before, as by `flwr run`.

    Args:
        app: The app.
        config_name: Name of a file in the app's `conf/` folder, without `.toml`.
        settings: `key=value` texts; a value is read as TOML and, failing that, as text.

    Returns:
        Every key the app declares, with its value, and every other one that was given, of which
        `settings` is emptied.

    Raises:
        ConfigError: There is no such file, or a setting is malformed or not taken by the app.
    """
    given = dict(app.defaults)
    if config_name is not None:
        given |= written_settings(app, config_name)
    given |= read_settings(app, settings)
    declared = {key: value for key, value in given.items() if key in app.defaults}
    return {**unfolded(declared), **{k: v for k, v in given.items() if k not in declared}}


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
        conf = app.path / "conf"
        names = sorted(str(one.relative_to(conf).with_suffix("")) for one in conf.rglob("*.toml"))
        known = f"it has {', '.join(names)}" if names else "it has none"
        raise ConfigError(f"{app.name} has no configuration {config_name!r}; {known}.")
    given = _flatten(read_toml(file), file)
    for key in given:
        check_taken(app, key, source=f"{file}: ")
    return given


def read_settings(app: App, settings: Sequence[str]) -> dict[str, ConfigValue]:
    """Single settings, as `--set` takes them."""
    values: dict[str, ConfigValue] = {}
    for setting in settings:
        key, separator, text = (part.strip() for part in setting.partition("="))
        if not separator or not key:
            raise ConfigError(f"--set takes key=value, got {setting!r}.")
        check_taken(app, key)
        values[key] = text
        # `--set name=2024` means the text 2024 where the app declares a text.
        kind = str if isinstance(app.defaults.get(key), str) else bool | int | float | str
        with contextlib.suppress(tomllib.TOMLDecodeError):
            # `.5`, which TOML has not, is a number for everybody else.
            value = tomllib.loads("value = " + re.sub(r"^(?=\.\d)", "0", text))["value"]
            values[key] = value if isinstance(value, kind) else text
    return values


def check_taken(app: App, key: str, *, source: str = "") -> None:
    """Refuse a key that an app does not take; what may stand there, its strategy knows.

    Args:
        app: The app.
        key: Name of the setting.
        source: What an error message begins with: where the key comes from.

    Raises:
        ConfigError: The app takes no such setting.
    """
    if not app.takes(key):
        near = difflib.get_close_matches(key, app.defaults, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(app.defaults)}."
        raise ConfigError(f"{source}{app.name} has no setting {key!r}; {hint}")


def _flatten(table: dict[str, Any], file: Path) -> dict[str, ConfigValue]:
    from flwr.common.config import flatten_dict

    with raised_as(ConfigError, ValueError, prefix=f"{file}: "):
        return flatten_dict(table)
