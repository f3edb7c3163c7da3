"""Write the keyword arguments of presets for type checkers, from the settings' classes.

    python -m scripts.preset_keywords > flower_privsyn/preset_keywords.py

A preset such as `POPriConfig.popri(...)` takes any setting of its class. What a type checker and a
completion know of them are these typed dictionaries, one for each class that declares settings.
`epsilon` is in none: presets name it, because some take only the epsilons that a paper prints.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any

from flower_privsyn.checks import Settings
from flower_privsyn.strategies import (
    AugPEConfig,
    DPFedAvgConfig,
    DPFTRLConfig,
    FreDConfig,
    POPriConfig,
    PrivateEvolutionConfig,
    PublicMidTrainingConfig,
)
from flower_privsyn.training.causal_settings import CausalTraining

WITH_PRESETS: tuple[type[Settings], ...] = (
    PrivateEvolutionConfig,
    AugPEConfig,
    POPriConfig,
    DPFedAvgConfig,
    DPFTRLConfig,
    FreDConfig,
    PublicMidTrainingConfig,
    CausalTraining,
)

_NOT_KEYWORDS = {"epsilon", "node_settings"}

_HEAD = '''\
"""Keyword arguments of presets, as type checkers and completion know them.

Written by `python -m scripts.preset_keywords` from the classes of the settings, where every key is
declared once with its range, its default and what it means. `epsilon` is an argument of its own.
"""

from __future__ import annotations

from typing import Literal, TypedDict
'''


def keywords(settings: type[Settings]) -> dict[str, Any]:
    """The type of every keyword of a class of settings, by name.

    Args:
        settings: the class.
    """
    hints = typing.get_type_hints(settings)
    return {name: hints[name] for name in settings.declared if name not in _NOT_KEYWORDS}


def page() -> str:
    """The module, as it is to be written."""
    shared = dict.fromkeys(
        above
        for leaf in WITH_PRESETS
        for above in reversed(leaf.__mro__[1:])
        if issubclass(above, Settings) and above is not Settings
    )
    parts = [_HEAD]
    given: dict[type[Settings], dict[str, Any]] = {Settings: {}}
    for settings in [*shared, *WITH_PRESETS]:
        bases = [c for c in settings.__bases__ if issubclass(c, Settings)]
        inherited = {name: hint for base in bases for name, hint in given[base].items()}
        below = [keywords(leaf) for leaf in WITH_PRESETS if issubclass(leaf, settings)]
        own = {
            name: hint
            for name, hint in keywords(settings).items()
            # A typed dictionary cannot change the type of a key: those below have it instead.
            if name not in inherited and all(leaf[name] == hint for leaf in below)
        }
        given[settings] = {**inherited, **own}
        parts.append("\n".join(_dictionary(settings, bases, own)))
    return "\n\n".join(parts)


def name_of(settings: type[Settings]) -> str:
    """What the typed dictionary of a class of settings is called."""
    return f"{settings.__name__.removesuffix('Config')}Keywords"


def _dictionary(
    settings: type[Settings], bases: Sequence[type[Settings]], own: Mapping[str, Any]
) -> Iterator[str]:
    above = ", ".join("TypedDict" if base is Settings else name_of(base) for base in bases)
    yield f"class {name_of(settings)}({above}, total=False):"
    # Between the words and the keys an empty line, where there are keys.
    yield f'    """Settings of `{settings.__name__}`."""' + ("\n" if own else "")
    for name, hint in own.items():
        yield f"    {name}: {_written(hint)}"
    yield ""


def _written(hint: Any) -> str:
    """A type as it stands in code."""
    if hint is NoneType:
        return "None"
    inside = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        words = ", ".join(f'"{value}"' for value in inside)
        return f"Literal[{words}]"
    if isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union:
        return " | ".join(map(_written, inside))
    if inside:
        raise TypeError(f"no way to write the type {hint}")
    return str(hint.__name__)


if __name__ == "__main__":
    print(page(), end="")
