"""Files of prompts: found by a short name or a path, and read as what they must be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flower_privsyn.errors import ConfigError


def read_prompt_file(
    name_or_path: str | Path, *, folder: Path, keys: Sequence[str], required: Sequence[str]
) -> tuple[Path, dict[str, Any]]:
    """Read the JSON object of a prompt.

    Args:
        name_or_path: The name of a file in `folder` without its ending, or the path of a ``.json``
            file.
        folder: Of the bundled prompts.
        keys: That the object may hold.
        required: Those of them that it must hold.

    Returns:
        Where it is, for sentences about its values, and the object.

    Raises:
        ConfigError: The file is missing, is not such a JSON object, or holds or lacks a key.
    """
    given = str(name_or_path)
    path = Path(given)
    if path.suffix != ".json":
        bundled = {file.stem: file for file in sorted(folder.glob("*.json"))}
        if given not in bundled:
            raise ConfigError(
                f"prompt {given!r} is not known: give one of {', '.join(bundled)} "
                "or the path of a .json file"
            )
        path = bundled[given]
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"prompt file {path} cannot be read: {reason}") from error
    except ValueError as error:
        raise ConfigError(f"prompt file {path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"prompt file {path} must hold one JSON object")
    if unknown := sorted(set(content) - set(keys)):
        raise ConfigError(
            f"prompt file {path} holds the unknown key {unknown[0]!r}: allowed are "
            + ", ".join(keys)
        )
    if missing := [key for key in required if key not in content]:
        raise ConfigError(f"prompt file {path} lacks the key {missing[0]!r}")
    return path, content
