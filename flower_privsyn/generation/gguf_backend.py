"""Continuations from a GGUF file, by llama.cpp in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import secrets
import select
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from flower_privsyn import environment
from flower_privsyn.errors import GenerationError, MissingExtraError, ModelError
from flower_privsyn.files import user_path
from flower_privsyn.generation import streams
from flower_privsyn.generation.backends import USUAL, SamplingParameters
from flower_privsyn.generation.openai_backend import OpenAIGenerator
from flower_privsyn.models.gguf import read_gguf
from flower_privsyn.models.threads import most_threads

PREFIX: Final = "gguf:"

#: Texts written at the same time, where the memory for their caches suffices.
_SLOTS: Final = 32
_CACHE_BYTES: Final = 2 * 2**30

#: Tokens of prompt and continuation together; fewer where the model was trained on fewer.
_CONTEXT: Final = 2048

#: Longest wait for the file to be loaded, and for an answer: the machine may be busy.
_START_SECONDS: Final = 600.0
_ANSWER_SECONDS: Final = 3600.0

#: llama.cpp has defaults of its own that leave tokens out; and it applies the nucleus before the
#: temperature unless told otherwise.
_PLAIN_SAMPLING: Final = {
    "samplers": ["temperature", "top_p"],
    "top_k": 0,
    "min_p": 0.0,
    "cache_prompt": True,
}

#: Variables that the process of llama.cpp is told: what it needs to start and to compute. No keys
#: of servers or hubs: it holds other people's files.
_TOLD: Final = re.compile(
    rf"PATH|HOME|TMPDIR|LANG|(DY)?LD_LIBRARY_PATH|PYTHONPATH|VIRTUAL_ENV|CUDA_VISIBLE_DEVICES"
    rf"|{environment.THREADS}|(LC|OMP|KMP|GGML)_.*"
)


def file_of(name: str) -> Path:
    """The file that a generator's name stands for.

    Args:
        name: "gguf:" and a path, relative to the folder the command was typed in.
    """
    return user_path(name.removeprefix(PREFIX))


class GGUFGenerator(OpenAIGenerator):
    """A model in a GGUF file, run by llama.cpp's server on loopback.

    The file's header is read before llama.cpp sees it, and llama.cpp runs in a process of its own:
    where a file makes it crash, this process gets a sentence. That process ends with this object,
    and with this process. It runs as the same user: it contains crashes, not attacks.

    Every sample has a seed of its own. Samples that are written at the same time are rounded
    together, though, and which ones are depends on timing: the same seeds give nearly the same
    texts again, not exactly.

    Attributes:
        name: The file's name.
    """

    #: Seeds of llama.cpp have 32 bits, of which the last number stands for a random one.
    _seeds_below = 2**32 - 1

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
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingExtraError(
                f"{path.name} is run by llama.cpp, and xllamacpp is not installed: "
                "pip install 'flower-privsyn[gguf]'"
            )
        context = min(_CONTEXT, header.context or _CONTEXT)
        slots = max(1, min(_SLOTS, _CACHE_BYTES // max(1, header.cache_bytes * context)))
        settings: dict[str, Any] = {
            "model": str(path),
            "api_key": secrets.token_urlsafe(24),
            "slots": slots,
            "context": context,
            "threads": most_threads(),
        }
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        told = {name: value for name, value in os.environ.items() if _TOLD.fullmatch(name)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flower_privsyn.generation.llama_server", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**told, "PYTHONSAFEPATH": "1"},
        )
        # Also when nobody calls `close`; where this process is killed, the other one notices.
        self._end = weakref.finalize(self, _kill, self._process)
        address = self._address(settings)
        if not address:
            why = self._ended() or f"it did not answer within {_START_SECONDS:.0f} seconds"
            self._end()
            raise ModelError(f"llama.cpp cannot load {path.name}: {why}")
        super().__init__(
            f"{address}/v1",
            path.stem,
            api_key=settings["api_key"],
            timeout=_ANSWER_SECONDS,
            max_retries=0,
            max_concurrency=slots,
            extra_parameters=_PLAIN_SAMPLING,
        )
        self.name = path.name
        self.at_once = USUAL  # what computes is this machine

    def close(self) -> None:
        """End the server."""
        super().close()
        self._end()

    def _complete(
        self, prompt: str, num_samples: int, seed: int, sampling: SamplingParameters, **how: Any
    ) -> list[str]:
        # One request a sample: each with a seed of its own, and the prompt's cache kept.
        written = []
        for sample in range(num_samples):
            own = streams.derive_seed(seed, sample) % self._seeds_below
            written += super()._complete(prompt, 1, own, sampling, **how)
        return written

    def _load_adapter(self, folder: Path) -> str:
        raise GenerationError(
            f"llama.cpp does not load the adapter {folder}: as generator, name the model's folder "
            "or smollm2-135m"
        )

    def _ask(self, request: Callable[[], Any], path: str) -> Any:
        try:
            return super()._ask(request, path)
        except GenerationError as error:
            if (ended := self._ended()) is not None:
                raise GenerationError(
                    f"llama.cpp ended while it wrote with {self.name}: {ended}"
                ) from error
            raise

    def _address(self, settings: Mapping[str, Any]) -> str:
        """Tell the process its settings, not by its command line, which others read.

        Returns:
            Where it serves; empty where it ended or took too long.
        """
        asked, answer = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answer is not None
        with contextlib.suppress(BrokenPipeError), asked:
            asked.write(json.dumps(settings).encode() + b"\n")
        if not select.select([answer], [], [], _START_SECONDS)[0]:
            return ""
        return answer.readline().decode().strip()

    def _ended(self) -> str | None:
        """Why the process has ended, in its own words where it had any; None while it runs."""
        try:
            status = self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            return None
        self._said.seek(0)
        words = [line for line in self._said.read().decode("utf-8", "replace").splitlines() if line]
        # The first error says most, else the last line.
        telling = next((line for line in words if "error" in line.lower()), "".join(words[-1:]))
        return f"{telling.strip()[-240:]} (status {status})".strip()


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
