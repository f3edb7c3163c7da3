"""Continuations from a GGUF file, by llama.cpp in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from flower_privsyn import environment
from flower_privsyn.errors import GenerationError, MissingExtraError, ModelError
from flower_privsyn.files import user_path
from flower_privsyn.generation import streams
from flower_privsyn.generation.at_once import USUAL
from flower_privsyn.generation.backends import SamplingParameters
from flower_privsyn.generation.llama_server import LlamaSettings
from flower_privsyn.generation.openai_backend import OpenAIGenerator
from flower_privsyn.models.gguf import read_gguf
from flower_privsyn.models.threads import most_threads

if TYPE_CHECKING:
    import httpx

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

#: What the process of llama.cpp is told of the environment, and how names begin that it is told:
#: what it needs to start and to compute. No keys of servers or hubs: it holds other people's files.
_TOLD: Final = (
    "PATH",
    "HOME",
    "TMPDIR",
    "LANG",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CUDA_VISIBLE_DEVICES",
    environment.THREADS,
    environment.RUN_MARK,  # by which `privsyn run` finds the processes of a run
)
_TOLD_BEGINNINGS: Final = ("LC_", "OMP_", "KMP_", "GGML_")


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

    #: The server is on this machine, whatever the environment says of others: a proxy would be
    #: given the key and the prompts.
    _by_proxy = False

    def __init__(self, file: str | Path, *, slots: int | None = None) -> None:
        """Check the file and start the server.

        Args:
            file: The GGUF file.
            slots: Texts written at the same time, >= 1; None chooses by what their caches take.

        Raises:
            ModelError: There is no such file, it is broken, or llama.cpp cannot load it.
            MissingExtraError: xllamacpp or httpx is not installed.
        """
        path = Path(file).absolute()
        header = read_gguf(path)
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingExtraError(
                f"{path.name} is run by llama.cpp, and xllamacpp is not installed: "
                "pip install 'flower-privsyn[gguf]'"
            )
        context = min(_CONTEXT, header.context or _CONTEXT)
        if slots is None:
            slots = max(1, min(_SLOTS, _CACHE_BYTES // max(1, header.cache_bytes * context)))
        settings = LlamaSettings(
            model=str(path),
            api_key=secrets.token_urlsafe(24),
            slots=slots,
            context=context,
            threads=most_threads(),
        )
        self._child = _Child(settings)
        super().__init__(
            f"{self._child.address}/v1",
            path.stem,
            api_key=settings.api_key,
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
        self._child.end()

    def _complete(
        self, prompt: str, num_samples: int, seed: int, sampling: SamplingParameters, model: str
    ) -> list[str]:
        # One request a sample: each with a seed of its own, and the prompt's cache kept.
        written = []
        for sample in range(num_samples):
            own = streams.derive_seed(seed, sample) % self._seeds_below
            written += super()._complete(prompt, 1, own, sampling, model)
        return written

    def _load_adapter(self, folder: Path) -> str:
        raise GenerationError(
            f"llama.cpp does not load the adapter {folder}: as generator, name the model's folder "
            "or smollm2-135m"
        )

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        refusals: tuple[int, ...] = (),
    ) -> httpx.Response:
        try:
            return super()._request(method, path, body, refusals=refusals)
        except GenerationError as error:
            if (ended := self._child.ended()) is not None:
                raise GenerationError(
                    f"llama.cpp ended while it wrote with {self.name}: {ended}"
                ) from error
            raise


class _Child:
    """The process that runs llama.cpp.

    Attributes:
        address: where it serves, "http://127.0.0.1:port".
    """

    def __init__(self, settings: LlamaSettings) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flower_privsyn.generation.llama_server", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**_told(os.environ), "PYTHONSAFEPATH": "1"},
        )
        # Also when nobody calls `end`; a process that is killed closes the pipe, which does too.
        self._finalizer = weakref.finalize(self, _kill, self._process)
        name = Path(settings.model).name
        self.address = ""
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.write(settings.line().encode())
            self._process.stdin.flush()
        answer = self._answer()
        if not answer:
            ended = self.ended()
            self.end()
            raise ModelError(
                f"llama.cpp cannot load {name}: "
                + (ended or f"it did not answer within {_START_SECONDS:.0f} seconds")
            )
        self.address = json.loads(answer)["address"]

    def ended(self) -> str | None:
        """Why the process has ended, in its own words where it had any; None while it runs."""
        try:
            status = self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            return None
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").splitlines()
        words = [line for line in map(str.strip, lines) if line]
        why = _signal_name(-status) if status < 0 else f"status {status}"
        return f"{_telling(words)} ({why})" if words else why

    def end(self) -> None:
        """Kill the process."""
        self._finalizer()

    def _answer(self) -> bytes:
        """The line that it serves with; empty where it ended or took too long."""
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], _START_SECONDS)[0]:
            return b""
        return stdout.readline()


def _told(variables: Mapping[str, str]) -> dict[str, str]:
    """What the process gets of the environment variables of this one."""
    return {
        name: value
        for name, value in variables.items()
        if name in _TOLD or name.startswith(_TOLD_BEGINNINGS)
    }


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _telling(lines: list[str]) -> str:
    """The line of a log that says most: the first error, else the last line."""
    found = next((line for line in lines if "error" in line.lower()), lines[-1])
    return found[-240:]
