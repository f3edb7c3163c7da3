"""Models that have learnt private text outside of any budget: said in their folder, and refused.

A folder of weights is copied to where the figures beside it are not, and a run that began with such
a model would publish, under an ordinary epsilon, what no ledger knows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import read_json, user_path, write_json

#: The file in a model's folder that says so.
FILE: Final = "not_private.json"


def mark(folder: Path, stamp: str) -> None:
    """Say of a model that no epsilon covers it.

    Args:
        folder: of the model.
        stamp: the sentence.
    """
    write_json(folder / FILE, {"stamp": stamp})


def stamp_of(*names: str) -> str:
    """What the first of some models says of itself that says so; "" where none does.

    Args:
        names: as settings have them; of a model that is no folder nothing is known.
    """
    found = (read_json(folder / FILE).get("stamp") for name in names for folder in _folders(name))
    return next((str(stamp) for stamp in found if stamp), "")


def _folders(name: str) -> Iterator[Path]:
    """Where a model may be; nowhere where a text begins with the `~` of nobody's home."""
    with contextlib.suppress(ConfigError):
        yield user_path(name)


def refuse(values: Mapping[str, object]) -> None:
    """Refuse the first setting that names a model which says so of itself, whoever declares it.

    Args:
        values: of a run, by their keys.

    Raises:
        ConfigError: one is marked.
    """
    for setting, name in sorted(values.items()):
        if isinstance(name, str | Path) and (stamp := stamp_of(str(name))):
            raise ConfigError(
                f'{setting} = "{name}" has learnt private text outside of any budget, and what is '
                f"made with it would have no epsilon (its {FILE}: {stamp}); name a model that has "
                "not"
            )
