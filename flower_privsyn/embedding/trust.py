"""What a folder of an embedding model may make this machine do: hold weights, and nothing else.

The server of a run names the embedding model, and a folder can name classes of its own. The
library of the model imports those where it is told to trust them, and did so for local folders
up to version 5. Here a folder that needs code of its own is refused before anything of it is
loaded, whatever the library would do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from flower_privsyn.errors import ModelError

_LIBRARY: Final = "sentence_transformers."
# Files in which sentence-transformers looks for the names of classes; the last one is where older
# models with several routes have them.
_LISTS: Final = ("modules.json", "router_config.json", "config.json")


def refuse_code(folder: Path) -> None:
    """Refuse a model folder that names classes outside the installed library.

    Args:
        folder: A sentence-transformers model folder, with the folders of its modules.

    Raises:
        ModelError: A module's class is not one of sentence-transformers, or a file that may name
            classes is no JSON.
    """
    for name in _LISTS:
        for file in sorted(folder.rglob(name)):
            for kind in _classes(_read(file)):
                if not kind.startswith(_LIBRARY):
                    raise ModelError(
                        f"{file} names the class {kind!r}, which is not part of "
                        "sentence-transformers; a model with code of its own is not loaded."
                    )


def own_code(folder: Path) -> bool:
    """Whether the model's configuration maps to code that comes with the model.

    No refusal by itself: Transformers uses its own class where it has one for such a model.
    """
    configuration = folder / "config.json"
    content = _read(configuration) if configuration.is_file() else None
    return isinstance(content, dict) and bool(content.get("auto_map"))


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not JSON ({type(error).__name__}).") from None


def _classes(content: Any) -> Iterator[str]:
    """The names of classes: `type` of each module, and the values of a router's `types`."""
    if isinstance(content, list):
        yield from (str(entry.get("type")) for entry in content if isinstance(entry, dict))
    elif isinstance(content, dict) and isinstance(content.get("types"), dict):
        yield from map(str, content["types"].values())
