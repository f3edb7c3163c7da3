"""`privsyn methods`: the catalogue, and the settings.

These are in Markdown docs/settings.md, as their classes declare them.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flower_privsyn.cli.options import Json
from flower_privsyn.cli.output import show_json, show_table
from flower_privsyn.errors import ConfigError

if TYPE_CHECKING:
    from flower_privsyn.checks import Declaration, Settings

_PREFACE = """\
# Settings

Every key of every method: what may stand there, what stands there by default, what it is.

`privsyn methods --settings` writes this page from the declarations in the code, and
`privsyn methods popri` shows one method. In Python the keys have underscores
(`POPriConfig(num_rounds=20)`); in a run configuration
(`[tool.flwr.app.config]`, `--set`) they have hyphens, and a negative number leaves out one that
need not be given. A value that is not allowed is refused before anything is spent. Some values of
papers are keywords of the classes alone: [their symbols](../baselines/README.md) name them.
"""

_POLICY = """\
## What the owner of a node allows

Keys of the file that `privsyn node policy --init` writes: [node_policy.md](node_policy.md).
"""


def methods(
    method: Annotated[str, typer.Argument(metavar="METHOD", hidden=True)] = "",
    as_json: Json = False,
    settings: Annotated[
        bool, typer.Option("--settings", help="print the settings of all methods, in Markdown")
    ] = False,
) -> int:
    """List the methods and their papers, or the settings of METHOD."""
    from flower_privsyn.catalogue import entries

    if method and as_json:
        keys = ("key", "allowed", "default", "words")
        return show_json([dict(zip(keys, row, strict=True)) for row in settings_of(method)])
    if method:
        _list_settings(method)
        return 0
    if settings:
        print(settings_page(), end="")
        return 0
    known = entries().values()
    if as_json:
        keys = ("name", "title", "kind", "paper")
        return show_json([{key: getattr(entry, key) for key in keys} for entry in known])
    show_table((entry.name, entry.kind, entry.paper) for entry in known)
    return 0


def _list_settings(method: str) -> None:
    """Print the settings of a method on one screen: what is needed, its own, and all others."""
    from flower_privsyn.run.settings import PrivateSumConfig

    rows = {key: (default, words) for key, _, default, words in settings_of(method)}
    shared = PrivateSumConfig.keys()
    own = [key for key in rows if key not in shared]
    width = shutil.get_terminal_size().columns
    print("needed: data (a file, a folder or a data set), and epsilon or noise-multiplier")
    lines = [(f"{key} = {rows[key][0]}", rows[key][1]) for key in own]
    longest = max(len(setting) for setting, _ in lines)
    for setting, words in lines:
        most = max(20, width - longest - 2)
        print(f"{setting:<{longest}}  {textwrap.shorten(words, most, placeholder=' ...')}")
    others = ", ".join(f"{key} = {rows[key][0]}" for key in rows if key in shared)
    print(textwrap.fill(f"as in every method: {others}", width, break_on_hyphens=False))
    print("What may stand there, and all that is said of it: privsyn methods --settings")


def settings_page() -> str:
    """All settings: those that methods share once, then those of each method."""
    from flower_privsyn.catalogue import entries
    from flower_privsyn.checks import Settings
    from flower_privsyn.client_apps.policy import NodePolicy

    users: dict[type[Settings], list[str]] = {}
    for name, entry in entries().items():
        for cls in reversed(entry.strategy.config_class.__mro__):
            if issubclass(cls, Settings) and cls.declared:
                users.setdefault(cls, []).append(name)
    parts = [_PREFACE]
    for cls, names in users.items():
        title = f"`{names[0]}`"
        if len(names) == len(entries()):
            title = "All methods"
        elif len(names) > 1:
            title = " and ".join(f"`{name}`" for name in names)
        own = [cls.declared[name] for name in inspect.get_annotations(cls) if _is_key(cls, name)]
        if own:
            parts.append(f"## {title}\n\n{_table(own, cls.declared)}")
    policy = [field for name, field in NodePolicy.declared.items() if name != "source"]
    parts.append(f"{_POLICY}\n{_table(policy, NodePolicy.declared)}")
    return "\n".join(parts)


def settings_of(method: str) -> Iterator[tuple[str, str, str, str]]:
    """The settings of one method: key, what is allowed, the default and the words of each.

    Args:
        method: as settings name it.

    Raises:
        ConfigError: there is no such method.
    """
    from flower_privsyn.catalogue import entries, listed_strategies

    if method not in entries():
        raise ConfigError(f"the method must be {listed_strategies()}, got {method!r}")
    config = entries()[method].strategy.config_class
    for name, field in config.declared.items():
        if _is_key(config, name):
            yield _row(field, config.declared)


def _is_key(cls: type[Settings], name: str) -> bool:
    return name != "node_settings" and name in cls.declared and not cls.declared[name].in_python


def _table(fields: Iterable[Declaration], keys: Mapping[str, Any]) -> str:
    """Fields as a table in Markdown."""
    lines = ["| key | allowed | default | what it is |", "|---|---|---|---|"]
    for field in fields:
        key, allowed, default, words = (text.replace("|", "\\|") for text in _row(field, keys))
        lines.append(f"| `{key}` | {allowed} | `{default}` | {words} |")
    return "\n".join(lines) + "\n"


def _row(field: Declaration, keys: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Key, what is allowed, the default as a run configuration has it, and the words of a field."""

    def hyphenated(found: re.Match[str]) -> str:
        return found[0].replace("_", "-") if found[1] in keys else found[0]

    words = re.sub(r"`(\w+)`", hyphenated, field.words)
    if field.default is None:
        default = "-1"
    elif isinstance(field.default, float):
        default = repr(field.default)
    else:
        default = json.dumps(field.default)
    return field.name.replace("_", "-"), field.allowed, default, words
