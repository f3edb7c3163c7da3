"""From the name in a configuration to a text generator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation.api_key import (
    API_KEY_VARIABLE,
    check_generator,
    is_address,
    read_key,
)
from flower_privsyn.generation.backends import TextGenerator
from flower_privsyn.generation.gguf_backend import PREFIX, GGUFGenerator, file_of
from flower_privsyn.generation.openai_backend import NoListError, OpenAIGenerator
from flower_privsyn.generation.transformers_backend import TransformersGenerator
from flower_privsyn.models.gguf import digest_of
from flower_privsyn.models.packaged import PACKAGED
from flower_privsyn.models.pretrained import Precision


def load_generator(
    name: str,
    *,
    batch_size: int | None = None,
    dtype: Precision = "auto",
    device: str | None = None,
    api_key_env: str = "",
    timeout: float = 300.0,
    max_retries: int = 5,
    max_concurrency: int = 64,
    extra_parameters: Mapping[str, Any] | None = None,
) -> TextGenerator:
    """Make the text generator that a name stands for.

    Args:
        name: One of

            * a bundled short name (``"privsyn-lm"``), a folder or a hub name: the model runs in
              this process through Transformers;
            * ``"smollm2-135m"`` or another of `flower_privsyn.models.packaged`: the same with a
              package that is installed;
            * ``"gguf:<file>"``: llama.cpp in a process of its own (`GGUFGenerator`);
            * ``"http://host:port/v1#model"``: a server with the OpenAI completions interface,
              such as ``vllm serve``; without ``#model`` the one model it serves.
        batch_size: Samples per forward pass of a model in this process; None as for
            `TransformersGenerator`.
        dtype: As for `TransformersGenerator`; a server has its own.
        device: As for `TransformersGenerator`.
        api_key_env: The environment variable that holds a server's key (see `read_key`), sent as a
            bearer token; empty for none.
        timeout: Of a server, as for `OpenAIGenerator`.
        max_retries: The same.
        max_concurrency: The same.
        extra_parameters: The same.

    Returns:
        The generator.

    Raises:
        ConfigError: The name is empty or an address that may hold a key, or there is no key in
            the variable that is named.
        ModelError: The model cannot be found.
        GenerationError: The server does not answer or does not serve the model.
        MissingExtraError: What the backend needs is not installed.
    """
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(
            "the generator must be a model name, a folder, 'gguf:<file>' or "
            f"'http://host:port/v1#model', got {name!r}"
        )
    if is_address(name):
        return _server(
            name,
            api_key_env,
            timeout=timeout,
            max_retries=max_retries,
            max_concurrency=max_concurrency,
            extra_parameters=extra_parameters,
        )
    if is_gguf(name):
        return GGUFGenerator(file_of(name))
    return TransformersGenerator(name, device=device, dtype=dtype, batch_size=batch_size)


def load_trained_generator(folder: Path) -> TransformersGenerator:
    """Make the generator of a model that nodes, or `RecordModel`, have trained.

    It reads what stands before a text as the training did: after the token that texts begin with,
    whether or not the tokenizer puts one there.

    Args:
        folder: of the model.

    Raises:
        ModelError: The model cannot be loaded.
        MissingExtraError: PyTorch or Transformers is not installed.
    """
    return TransformersGenerator(folder, begins_texts=True)


def check_server(name: str, *, api_key_env: str, seconds: float) -> str | None:
    """Ask a generation server whether it is there and serves its model; nothing is written.

    Args:
        name: The address, as for `load_generator`.
        api_key_env: As for `load_generator`.
        seconds: Longest wait for each of two answers, > 0.

    Returns:
        A sentence about a server that does not say which models it serves, where a model is named:
        it may serve it. None for one that does.

    Raises:
        ConfigError: As for `load_generator`.
        GenerationError: It does not answer, or serves other models.
        MissingExtraError: What the connection needs is not installed.
    """
    server = _server(name, api_key_env, timeout=seconds, max_retries=0)
    try:
        server.check_served()
        return None
    except NoListError as error:
        return f"{error}; whether it serves {server.name} is not known"
    finally:
        server.close()


def _server(name: str, api_key_env: str, **options: Any) -> OpenAIGenerator:
    check_generator(name, api_key_env or API_KEY_VARIABLE)
    base_url, _, model = name.strip().partition("#")
    api_key = read_key(api_key_env) if api_key_env else None
    return OpenAIGenerator(base_url, model or None, api_key=api_key, **options)


def is_gguf(name: str) -> bool:
    """Whether the name is of a file that llama.cpp runs, on this machine."""
    return name.startswith(PREFIX)


#: Whether the same seeds give the same texts again, by what runs the model, and why not.
_REPEATS: Final = {
    "Transformers": (True, "on one machine, with the same versions and batch size"),
    "llama.cpp": (False, "samples are rounded together with those that are written beside them"),
    "a server": (False, "seeds are sent, and what the server makes of them is not known"),
}


def describe_generator(name: str) -> dict[str, Any]:
    """What a run directory says of a generator beside its name; nothing is loaded.

    Args:
        name: As for `load_generator`.

    Returns:
        What runs it; whether the same seeds give the same texts again; of a file its digest, of
        a package also the licence.

    Raises:
        ModelError: A file cannot be read.
    """
    here = "llama.cpp" if is_gguf(name) else "Transformers"
    backend = "a server" if is_address(name) else here
    repeats, why = _REPEATS[backend]
    said: dict[str, Any] = {"run_by": backend, "deterministic": repeats, "because": why}
    if is_gguf(name):
        said["sha256"] = digest_of(file_of(name))
    if name in PACKAGED:
        said |= {
            "sha256": PACKAGED[name].sha256,
            "sha256_of": "the GGUF file from which its weights were made, checked at that time",
            "licence": PACKAGED[name].licence,
        }
    return said
