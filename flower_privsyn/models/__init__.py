"""The bundled public models: short names and the folders behind them.

``privsyn-lm`` is a small causal language model, ``privsyn-mlm`` a small masked one;
``privsyn-tiny`` and ``privsyn-lstm`` are the smaller causal ones that stand for what a device
trains. Each folder holds weights, tokenizer and a model card (``README.md``) that says what it was
trained on. Nothing here loads them; importing this module costs nothing. Larger writers come as
packages of their own (`flower_privsyn.models.packaged`). May import no room but `privacy`.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from flower_privsyn.errors import ModelError
from flower_privsyn.files import read_json, user_path
from flower_privsyn.models import packaged
from flower_privsyn.models.hub import folder_in_cache

__all__ = [
    "BUNDLED_FOLDER",
    "BUNDLED_MODELS",
    "has_model",
    "register_architecture",
    "resolve_model",
]

#: Short names of the models that come with the package.
BUNDLED_MODELS: tuple[str, ...] = ("privsyn-lm", "privsyn-mlm", "privsyn-tiny", "privsyn-lstm")

#: Where their folders are.
BUNDLED_FOLDER = Path(__file__).parent

# Architectures that Transformers does not know, by `model_type`, and the module that tells it.
_OWN_ARCHITECTURES = {
    "privsyn-biased": "flower_privsyn.models.biased",
    "privsyn-lstm": "flower_privsyn.models.lstm",
}

# A hub name is "name" or "owner/name"; anything else that is written can only be a path.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def resolve_model(name: str | Path) -> str:
    """Turn a short name, a path or a hub name into what ``from_pretrained`` takes.

    A folder of an architecture of this package (the LSTM, a model with a bias) is made known to the
    ``AutoModel`` classes on the way, so that the result loads like any other; for such a folder
    alone this imports PyTorch.

    Args:
        name: One of ``BUNDLED_MODELS``; one of `packaged.PACKAGED`, which is made ready on first
            use; the path of a model folder; or a hub name such as ``"owner/name"``. The first two
            win over a folder of the same name.

    Returns:
        The folder of a bundled model or the path as a string; a hub name as it was given.

    Raises:
        ModelError: The name is empty, is a path at which there is no model folder, or looks
            like the name of a bundled model but is none.
        MissingExtraError: It comes as a package that is not installed.
    """
    given = str(name)
    if given in BUNDLED_MODELS:
        folder = BUNDLED_FOLDER / given
        register_architecture(folder)
        return str(folder)
    if given in packaged.PACKAGED:
        return str(packaged.folder(packaged.PACKAGED[given]))
    path = user_path(given)
    if given.strip() and path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"model folder {given!r} holds no config.json")
        register_architecture(path)
        return str(path)
    if path.is_file():
        raise ModelError(
            f"model path {given!r} is a file: give the folder that holds config.json, or gguf:FILE "
            "as a generator"
        )
    if given.startswith("privsyn-") or isinstance(name, Path) or not _HUB_NAME.fullmatch(given):
        raise ModelError(
            f"model {given!r} does not exist: give one of {', '.join(BUNDLED_MODELS)}, the path of "
            "a model folder, or a hub name such as 'owner/name'"
        )
    return given


def has_model(name: str) -> bool:
    """Whether this machine has a model of a name, packaged or of the hub; a path is no name."""
    if name in (*BUNDLED_MODELS, *packaged.PACKAGED):
        return True
    return not user_path(name).exists() and folder_in_cache(name) is not None


def register_architecture(folder: Path) -> None:
    """Tell Transformers about a model's architecture if it is one of this package.

    Without PyTorch or Transformers there is nothing to tell: whoever loads the model says what is
    missing.

    Args:
        folder: A model folder; a ``config.json`` that cannot be read is left to the loader.
    """
    module = _OWN_ARCHITECTURES.get(str(read_json(folder / "config.json").get("model_type")))
    if module is None:
        return
    try:
        importlib.import_module(module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("torch", "transformers"):
            raise
