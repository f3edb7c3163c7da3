"""Which libraries are installed, and what brings those that are not."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Final

from flower_privsyn.errors import MissingExtraError

#: The extra of this package that brings a library, by the name it is imported under.
_EXTRAS: Final = {
    "datasets": "client",
    "sentence_transformers": "client",
    "tokenizers": "client",
    "openai": "server",
    "torch": "server",
    "transformers": "server",
    "gguf": "gguf",
    "xllamacpp": "gguf",
    "accelerate": "training",
    "peft": "training",
    "trl": "training",
    "jinja2": "evaluation",
    "matplotlib": "evaluation",
    "sklearn": "evaluation",
    "ray": "quickstart",
}


def is_installed(library: str) -> bool:
    """Whether a library can be imported; it is not."""
    return importlib.util.find_spec(library) is not None


def require(libraries: Iterable[str]) -> None:
    """Refuse a machine on which libraries are missing.

    Args:
        libraries: as they are imported.

    Raises:
        MissingExtraError: with the command that brings all of them.
    """
    missing = [name for name in dict.fromkeys(libraries) if not is_installed(name)]
    if not missing:
        return
    extras = dict.fromkeys(_EXTRAS[name] for name in missing if name in _EXTRAS)
    brought = f"'flower-privsyn[{','.join(extras)}]'" if extras else " ".join(missing)
    are = "is" if len(missing) == 1 else "are"
    raise MissingExtraError(f"{' and '.join(missing)} {are} not installed: pip install {brought}")
