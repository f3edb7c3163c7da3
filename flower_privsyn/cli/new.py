"""`privsyn new`: an example of the package, written into a folder of one's own."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import expanded, read_toml
from flower_privsyn.run_config import SETTINGS, toml, unfolded

_PACKAGE: Final = Path(__file__).parents[1]

EXAMPLES: Final = _PACKAGE / "examples"
"""The folder of the examples, part of the package."""

NEXT_STEPS: Final = {
    "quickstart": ("privsyn run {app}",),
    "own-data": ("privsyn check {app} --set data=FILE", "privsyn run {app} --set data=FILE"),
    "existing-federation": ("privsyn run {app}",),
    "flower-datasets": ("privsyn run {app}",),
    "deployment": ("python {app}/loopback.py FOLDER APP --users FILE",),
    "every-method": (
        "privsyn check {app} --config cpu/popri --set data=FILE",
        "privsyn run {app} --config cpu/popri --set data=FILE",
    ),
}
"""The examples that can be written, and what to type next."""


def new(
    example: Annotated[str, typer.Argument(metavar="EXAMPLE", hidden=True)],
    folder: Annotated[str, typer.Argument(metavar="DIR", hidden=True)],
) -> int:
    """Write an example into a folder, to run it, read it and change it.

    DIR is a folder that is new or empty. EXAMPLE is one of these:

    quickstart: one question to some 500 authors, and 100 texts written after its answer.

    own-data: a file of yours, by private evolution or any other method.

    existing-federation: a Flower app with FedAvg, and the 19 lines that add private synthetic text.

    flower-datasets: a data set without ids, whose partitions by flwr-datasets play the users.

    deployment: SuperLink and SuperNodes with keys and policies, by script, Compose and systemd.

    every-method: the methods that are compared, on a file of yours, each with its --config.

    Or a method, as popri, pre-text or dp-ftrl: own-data with it, at a size for two CPU cores.
    """
    methods = _methods()
    if example not in {*NEXT_STEPS, *methods}:
        known = ", ".join((*NEXT_STEPS, *methods))
        raise ConfigError(f"EXAMPLE must be one of {known}, got {example}")
    shown = str(Path(folder))
    target = expanded(folder)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ConfigError(f"DIR must be a folder that is new or empty, got {folder}")
        _copy(source_of("own-data" if example in methods else example), target)
        if example in methods:
            _configure(target / "pyproject.toml", methods[example])
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from error
    print(f"{shown} holds the example {example}; {shown}/README.md says what is in it. Next:\n")
    for command in NEXT_STEPS.get(example, NEXT_STEPS["own-data"]):
        print(f"    {command.format(app=shlex.quote(shown))}")
    return 0


def source_of(example: str) -> Path:
    """The folder in the package that an example is a copy of."""
    return _PACKAGE / "comparison" / "app" if example == "every-method" else EXAMPLES / example


def _methods() -> dict[str, dict[str, Any]]:
    """The settings of every method, by its name, at a size for two CPU cores where one is known."""
    from flower_privsyn.catalogue import entries

    found: dict[str, dict[str, Any]] = {name: {"strategy": name} for name in entries()}
    for file in sorted((source_of("every-method") / "conf" / "cpu").glob("*.toml")):
        values = unfolded(read_toml(file))
        if "strategy" in values:
            found |= {file.stem: values}
    found["private-evolution"] = found["pre-text"]
    return found


def _configure(file: Path, values: Mapping[str, Any]) -> None:
    """Have the file of own-data configure another method, whose nodes may train."""
    from flower_privsyn.catalogue import entries

    name = values["strategy"]
    rounds = entries()[name].strategy.config_class.defaults()["num-rounds"]
    text = file.read_text(encoding="utf-8")
    text = text.replace("client_apps.default:app", "client_apps.training:app")
    text = text.replace("privsyn methods private-evolution", f"privsyn methods {name}")
    head, others = text.partition(f"{SETTINGS} = ")[0], {}
    for key, value in {"num-rounds": rounds, **values}.items():
        declared = re.search(rf'^{key} = ("[^"]*"|[^\s#]+)', head, re.MULTILINE)
        if declared is not None:
            head = head.replace(declared[0], toml({key: value}), 1)
        elif key != SETTINGS:
            others[key] = value
    file.write_text(f"{head}{SETTINGS} = '''\n{toml(others)}\n'''\n", encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    """Copy what a folder holds, without the rights of an installed package's files."""
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.rglob("*")):
        place = target / file.relative_to(source)
        if file.is_file() and "__pycache__" not in file.parts:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
