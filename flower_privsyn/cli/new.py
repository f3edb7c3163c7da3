"""`privsyn new`: an example of the package, written into a folder of one's own."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Annotated, Final

import typer

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import expanded, os_errors_as, read_toml

_PACKAGE: Final = Path(__file__).parents[1]

EXAMPLES: Final = _PACKAGE / "examples"
"""The folder of the examples, part of the package."""

NEXT_STEPS: Final = {
    "quickstart": ("privsyn check {app}", "privsyn run {app}"),
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
    """Write an example, or an app with a method, into a folder.

    DIR is a folder that is new or empty. EXAMPLE is one of these:

    quickstart: one question to some 500 authors, and 100 texts written after its answer.

    own-data: a file of yours, by private evolution or any other method.

    existing-federation: a Flower app with FedAvg, and the 18 lines that add a method to it.

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
    with os_errors_as(ConfigError, f"{folder} cannot be written"):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ConfigError(f"DIR must be a folder that is new or empty, got {folder}")
        _copy(source_of("own-data" if example in methods else example), target)
        if example in methods:
            _configure(target / "pyproject.toml", example, methods[example])
    print(f"{shown} holds the example {example}; {shown}/README.md says what is in it. Next:\n")
    for command in NEXT_STEPS.get(example, NEXT_STEPS["own-data"]):
        print(f"    {command.format(app=shlex.quote(shown))}")
    return 0


def source_of(example: str) -> Path:
    """The folder in the package that an example is a copy of."""
    return _PACKAGE / "comparison" / "app" if example == "every-method" else EXAMPLES / example


def _methods() -> dict[str, Path | None]:
    """The settings of every method for two CPU cores, by its name; None where there are none."""
    from flower_privsyn.catalogue import entries

    folder = source_of("every-method") / "conf" / "cpu"
    found = {file.stem: file for file in folder.glob("*.toml") if "strategy" in read_toml(file)}
    return {**dict.fromkeys(entries()), **found, "private-evolution": found["pre-text"]}


def _configure(file: Path, name: str, settings: Path | None) -> None:
    """Have the file of own-data configure another method, whose nodes may train."""
    head = file.read_text(encoding="utf-8").partition("\nsettings = ")[0]
    method, own = name, "''\n"
    if settings is not None:
        method = read_toml(settings)["strategy"]
        own = settings.read_text(encoding="utf-8").partition("\nsettings = ")[2]
    head = head.replace("client_apps.default:app", "client_apps.training:app")
    head = head.replace("private-evolution", method)
    head = re.sub(r"\nnum-rounds = .*", "", head)  # among the method's own
    file.write_text(f"{head}\nsettings = {own}", encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    """Copy what a folder holds, without the rights of an installed package's files."""
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.rglob("*")):
        place = target / file.relative_to(source)
        if file.is_file() and "__pycache__" not in file.parts:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
