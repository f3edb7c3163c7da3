"""Continuations from a GGUF file, by llama.cpp's server in this process."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from flower_privsyn.errors import GenerationError, MissingExtraError, ModelError
from flower_privsyn.files import user_path
from flower_privsyn.generation.backends import USUAL, ProgressCallback, SamplingParameters
from flower_privsyn.generation.openai_backend import OpenAIGenerator
from flower_privsyn.models.gguf import read_gguf
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


def file_of(name: str) -> Path:
    """The file that a generator's name stands for.

    Args:
        name: "gguf:" and a path, relative to the folder the command was typed in.
    """
    return user_path(name.removeprefix(PREFIX))


class GGUFGenerator:
    """A model in a GGUF file, run by llama.cpp's server on loopback.

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
        header = read_gguf(path)
        try:
            xllamacpp: Any = importlib.import_module("xllamacpp")
        except ImportError as error:
            raise MissingExtraError(
                f"{path.name} is run by llama.cpp, and xllamacpp is not installed ({error}): "
                "pip install 'flower-privsyn[gguf]'"
            ) from error
        context = min(_CONTEXT, header.context or _CONTEXT)
        slots = max(1, min(_SLOTS, _CACHE_BYTES // max(1, header.cache_bytes * context)))
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
        self._client = OpenAIGenerator(
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
        self,
        prompts: Sequence[str],
        *,
        num_samples: int = 1,
        sampling: SamplingParameters,
        system: str | None = None,
        adapter: Path | None = None,
        progress: ProgressCallback | None = None,
    ) -> list[list[str]]:
        """Continue every prompt, or answer it as a message; see `TextGenerator`.

        Raises:
            GenerationError: An adapter is given, or llama.cpp refuses.
        """
        if adapter is not None:
            raise GenerationError(
                f"llama.cpp does not load the adapter {adapter}: as generator, name the model's "
                "folder or smollm2-135m"
            )
        # One request a sample: each with a seed of its own.
        each = [prompt for prompt in prompts for _ in range(num_samples)]
        written = self._client.generate(each, sampling=sampling, system=system, progress=progress)
        texts = [text for (text,) in written]
        return [texts[first : first + num_samples] for first in range(0, len(texts), num_samples)]
