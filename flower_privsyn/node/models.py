"""Is a model that a server names what the node's owner allowed? Asked before it is loaded."""

from __future__ import annotations

import hashlib
from pathlib import Path

from flower_privsyn.files import located, sha256_of


def model_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of all files of a model folder, code included.

    Args:
        folder: The folder; links in it count as what they lead to.
    """
    total = hashlib.sha256()
    files = (path for path in folder.rglob("*") if path.is_file())
    for path in sorted(files, key=lambda path: path.relative_to(folder).as_posix()):
        total.update(f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n".encode())
    return total.hexdigest()


def embedding_folder(name: str) -> Path:
    """Where an embedding model lies; downloaded first if it has to be.

    Raises:
        ModelError: There is no such model.
    """
    from flower_privsyn.embedding.embedder import model_folder

    return model_folder(located(name))


def trained_folder(name: str) -> Path:
    """Where a model to train lies: bundled, a folder, or in the local cache of hub models.

    Raises:
        ModelError: It is not on this machine.
    """
    from flower_privsyn.errors import ModelError
    from flower_privsyn.models import BUNDLED_FOLDER, BUNDLED_MODELS

    if name in BUNDLED_MODELS:
        return BUNDLED_FOLDER / name
    folder = Path(located(name))
    if folder.is_dir():
        return folder
    try:
        import huggingface_hub

        return Path(huggingface_hub.snapshot_download(name, local_files_only=True))
    except Exception as error:
        raise ModelError(
            f"model {name!r}, whose digest the node policy states, is not on this machine "
            f"({type(error).__name__}): download it first"
        ) from None
