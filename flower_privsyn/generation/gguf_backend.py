"""Continuations from a GGUF file, by llama.cpp's server in this process."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from flower_privsyn.errors import ModelError
from flower_privsyn.generation.backends import USUAL
from flower_privsyn.generation.openai_backend import OpenAIGenerator
from flower_privsyn.models.library import failures_as, import_extra
from flower_privsyn.models.threads import most_threads

PREFIX: Final = "gguf:"

#: Texts written at the same time, where the memory for their caches suffices.
_SLOTS: Final = 32
_CACHE_BYTES: Final = 2 * 2**30

#: Tokens of prompt and continuation together; fewer where the model was trained on fewer.
_CONTEXT: Final = 2048

#: Longest wait for an answer: the machine may be busy.
_ANSWER_SECONDS: Final = 3600.0

#: llama.cpp has defaults of its own that leave tokens out; and it applies the nucleus before the
#: temperature unless told otherwise.
_PLAIN_SAMPLING: Final = {
    "samplers": ["temperature", "top_p"],
    "top_k": 0,
    "min_p": 0.0,
    "cache_prompt": True,
}

#: Tensors whose products are what a cache holds of a token; the last one has the query's as well.
_CACHED: Final = ("attn_k.weight", "attn_v.weight", "attn_qkv.weight")


class GGUFGenerator(OpenAIGenerator):
    """A model in a GGUF file, run by llama.cpp's server on loopback; it loads no adapters.

    The file's header is read before llama.cpp sees it. Whoever asks the server must know a key that
    is drawn for it: other users of the machine reach the port as well.

    Every sample has a seed of its own. Samples that are written at the same time are rounded
    together, though, and which ones are depends on timing: the same seeds give nearly the same
    texts again, not exactly.

    Attributes:
        name: The file's name.
        at_once: Samples to ask for at a time.
    """

    def __init__(self, file: str | Path) -> None:
        """Check the file and start the server.

        Args:
            file: The GGUF file.

        Raises:
            ModelError: There is no such file, it is broken, or llama.cpp cannot load it.
            MissingExtraError: xllamacpp, gguf or openai is not installed.
        """
        path = Path(file).absolute()
        trained_on, cache_bytes = read_gguf(path)
        xllamacpp = import_extra("xllamacpp", needed_by=path.name, extra="gguf")
        context = min(_CONTEXT, trained_on or _CONTEXT)
        slots = max(1, min(_SLOTS, _CACHE_BYTES // max(1, cache_bytes * context)))
        key = secrets.token_urlsafe(24)
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.hostnames = ["127.0.0.1"]
        parameters.port = 0
        parameters.api_keys = [key]
        parameters.n_parallel = slots
        parameters.n_ctx = slots * context
        for cpu in (parameters.cpuparams, parameters.cpuparams_batch):
            cpu.n_threads = most_threads()
            # Threads that wait for one another sleep: spinning takes the time of whoever computes.
            cpu.poll = 0
        parameters.verbosity = 1  # errors alone
        parameters.offline = True
        parameters.check_tensors = True
        # Completions of plain prompts, and nothing else: no page, no templates from the file, no
        # prompts of other texts in memory or on view.
        parameters.enable_chat_template = False
        parameters.use_jinja = False
        parameters.ui = False
        parameters.endpoint_slots = False
        parameters.cache_ram_mib = 0
        try:
            self._server = xllamacpp.Server(parameters)
        except RuntimeError as error:
            raise ModelError(
                f"llama.cpp cannot load {path.name}, and has said why above: {error}"
            ) from error
        super().__init__(
            f"{self._server.listening_address}/v1",
            path.stem,
            api_key=key,
            timeout=_ANSWER_SECONDS,
            max_retries=0,
            max_concurrency=slots,
            extra_parameters=_PLAIN_SAMPLING,
        )
        self.name = path.name
        self.at_once = USUAL  # what computes is this machine

    def generate(
        self, prompts: Sequence[str], *, num_samples: int = 1, **how: Any
    ) -> list[list[str]]:
        """Continue every prompt, or answer it as a message; see `TextGenerator`."""
        # One request a sample: each with a seed of its own.
        each = [prompt for prompt in prompts for _ in range(num_samples)]
        texts = [text for (text,) in super().generate(each, **how)]
        return [texts[first : first + num_samples] for first in range(0, len(texts), num_samples)]


def read_gguf(file: Path) -> tuple[int, int]:
    """Read what a GGUF file says, all of whose tensors it must hold.

    Args:
        file: the file.

    Returns:
        Tokens that the model was trained on at a time, 0 where the file does not say; and the bytes
        that a token takes in a cache of keys and values in half precision.

    Raises:
        ModelError: there is no such file, or it is not whole.
        MissingExtraError: gguf is not installed.
    """
    if not file.is_file():
        raise ModelError(f"GGUF file {file} does not exist")
    library = import_extra("gguf", needed_by=file.name, extra="gguf")
    with failures_as(ModelError, f"{file} is no whole GGUF file"):  # whatever its bytes make of it
        reader = library.GGUFReader(file)
        architecture = str(reader.get_field("general.architecture").contents())
        context = reader.get_field(f"{architecture}.context_length")
        cached = [tensor for tensor in reader.tensors if tensor.name.endswith(_CACHED)]
        return (
            0 if context is None else int(context.contents()),
            2 * sum(int(tensor.shape[-1]) for tensor in cached),
        )
