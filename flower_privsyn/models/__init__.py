"""The bundled public models: short names and the folders behind them.

``privsyn-lm`` is a small causal language model, ``privsyn-mlm`` a small masked one. Each folder
holds weights, tokenizer and a model card (``README.md``) that says what it was trained on.
Nothing here loads them; importing this module costs nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from flower_privsyn.errors import ModelError

__all__ = ["BUNDLED_MODELS", "resolve_model"]

BUNDLED_MODELS: tuple[str, ...] = ("privsyn-lm", "privsyn-mlm")

# A hub name is "name" or "owner/name"; anything else that is written can only be a path.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def resolve_model(name: str | Path) -> str:
    """Turn a short name, a path or a hub name into what ``from_pretrained`` takes.

    Args:
        name: ``"privsyn-lm"`` or ``"privsyn-mlm"``; the path of a model folder; or a hub name
            such as ``"owner/name"``. A bundled name wins over a folder of the same name.

    Returns:
        The folder of a bundled model or the path as a string; a hub name as it was given.

    Raises:
        ModelError: The name is empty, is a path at which there is no model folder, or looks
            like the name of a bundled model but is none.
    """
    given = str(name)
    if given in BUNDLED_MODELS:
        return str(Path(__file__).parent / given)
    known = ", ".join(BUNDLED_MODELS)
    if not given.strip():
        raise ModelError(f"the model name is empty: give one of {known}, a folder or a hub name")
    path = Path(given).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"model folder {given!r} holds no config.json")
        return str(path)
    if path.exists():
        raise ModelError(f"model path {given!r} is a file: give the folder that holds config.json")
    if given.startswith("privsyn-") or isinstance(name, Path) or not _HUB_NAME.fullmatch(given):
        raise ModelError(
            f"model {given!r} does not exist: give one of {known}, the path of a model folder, "
            "or a hub name such as 'owner/name'"
        )
    return given
