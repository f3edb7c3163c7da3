"""Texts from a server with the OpenAI interface, such as ``vllm serve``: continued or answered.

A server's key is read from the environment and shown to nobody: it is in no configuration, so that
it is in no run directory, no database of Flower's and no command line. What a server says is quoted
in messages only after `redact` has taken out the key.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from flower_privsyn import environment
from flower_privsyn.errors import ConfigError, GenerationError
from flower_privsyn.generation.backends import (
    USUAL,
    ProgressCallback,
    SamplingParameters,
    answered,
    derive_seed,
    mended,
    text_seeds,
)
from flower_privsyn.models.adapters import adapter_digest
from flower_privsyn.models.library import import_extra

if TYPE_CHECKING:
    import openai

logger = logging.getLogger("flwr.privsyn")

#: Samples to ask for at a time, of each request under way: a batch waits for its slowest.
_TIMES_AT_ONCE = 16

_MAX_MESSAGE_LETTERS = 300

#: Statuses that may be about one prompt: refused by a filter, or too long for the model.
_OF_A_PROMPT = (400, 413, 422)

#: Statuses of servers that list no models, or not to everybody, and complete text all the same.
_NO_LIST = (403, 404, 405)

#: This machine, which no proxy reaches.
_HERE = ("localhost", "127.0.0.1", "::1")

#: An address of a host, a port and a path, and of a model behind "#": nothing that may be a key.
_PLAIN: Final = re.compile(r"https?://[^\s@?;&=#]+(#[^\s?;&=]*)?", re.IGNORECASE)

#: What an answer that is none counts as, whatever its status: it is asked for again.
_BAD_GATEWAY = 502


def is_address(name: str) -> bool:
    """Whether a generator's name is the address of a server."""
    # As addresses are read: blanks before them, and tabs and ends of lines inside, do not count.
    return re.sub(r"[\x00-\x20]", "", name).lower().startswith(("http:", "https:"))


def check_address(address: str) -> None:
    """Refuse the address of a server that may hold a key; it is not quoted.

    Raises:
        ConfigError: it has a user name, a password, a query or parameters, or is no address.
    """
    if not _PLAIN.fullmatch(address.strip()):
        raise ConfigError(
            "generator must be an address like http://host:port/v1#model. The one given, which is "
            "not shown, is none or has more: a user name, a password or a query may hold a key and "
            "would be written into the run directory. Leave them out and put the key into the "
            f"environment variable {environment.API_KEY}."
        )


def read_key() -> str | None:
    """The key in the environment variable PRIVSYN_API_KEY; None where it is not set.

    Raises:
        ConfigError: What it holds is no key.
    """
    key = os.environ.get(environment.API_KEY, "").strip()
    if not key:
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"The environment variable {environment.API_KEY} holds no API key: a key is printable "
            "ASCII without blanks."
        )
    return key


def redact(text: str, key: str | None) -> str:
    """What somebody else wrote, with `[api key]` in place of a key; as it is without one.

    A server shows the beginning or the end of a key, too: of eight characters or more.
    """
    if not key:
        return text
    for length in range(len(key), min(len(key), 8) - 1, -1):
        for shown in (key[:length], key[-length:]):
            text = text.replace(shown, "[api key]")
    return text


class _NoTextError(GenerationError):
    """A server has no text for one prompt, and may have some for others."""


class OpenAIGenerator:
    """A language model behind ``POST <base_url>/completions`` and ``/chat/completions``.

    One request carries one prompt, its number of samples and a seed of its own; many requests are
    under way at once and the server batches them. A request with a list of prompts would share
    one seed among them: a server that honours it draws every prompt's tokens with the same random
    numbers, so equal prompts give equal texts and different ones correlated texts.

    LoRA adapters are loaded into a running vLLM server, each under a name of its own, made of the
    contents and the path: under a name it knows, a server may go on serving the old weights. The
    path must mean the same folder to the server as here.

    A prompt for which the server has no text (it answers null or with thoughts alone, calls a tool,
    or refuses it with status 400, 413 or 422, as filters do and models for which it is too long)
    gets an empty one: what was written for others is paid for, and the same prompts would come
    again. One warning says how many these are. The call fails where they are more than eight and
    more than half of its prompts, or where this server has not written anything yet. An answer that
    is no completion (a page of a gateway, an error under status 200) is asked for again, as after a
    status of 5xx.

    Attributes:
        name: The model's name and the server's address.
        at_once: Samples to ask for at a time.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 300.0,
        max_retries: int = 5,
        max_concurrency: int = 64,
        extra_parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Address a server; without ``model`` ask it which one it serves.

        Args:
            base_url: With the version, ``"http://127.0.0.1:8000/v1"``. One on this machine is
                asked past every proxy.
            model: The name the server knows it by.
            api_key: Sent as a bearer token, and taken out of everything the server says.
            timeout: Seconds to wait for one answer, > 0.
            max_retries: How often a request is repeated after a lost connection, a timeout, an
                answer that is none, or status 408, 409, 429 or 5xx, >= 0; after 0.5 seconds,
                doubled each time up to 8, or as long as ``Retry-After`` says, up to two minutes.
                Other refusals are final at once, for their prompt or for all of them.
            max_concurrency: Requests under way at once, >= 1.
            extra_parameters: Added to every request, for what one server knows beyond OpenAI's
                interface (vLLM: ``{"top_k": -1}`` where the model's own defaults restrict it); None
                leaves out what would be sent, for what a server does not know (``{"seed": None}``).

        Raises:
            ConfigError: The address may hold a key, or is none.
            GenerationError: The server cannot be asked for its model, or serves several.
            MissingExtraError: openai is not installed.
        """
        check_address(base_url)
        import_extra("openai", needed_by="a generation server", extra="server")
        import openai

        self._base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._max_concurrency = max_concurrency
        self.at_once = max(USUAL, _TIMES_AT_ONCE * max_concurrency)
        self._extra_parameters = dict(extra_parameters or {})
        self._has_written = False
        self._loaded: set[str] = set()
        nothing: Any = openai.Omit()
        # Of the environment it is told a proxy alone: keys and names there are for OpenAI's own
        # server, and this may be another one.
        self._client = openai.OpenAI(
            base_url=self._base_url,
            api_key=api_key or "none",
            admin_api_key="none",
            default_headers={"OpenAI-Organization": nothing, "OpenAI-Project": nothing},
            timeout=openai.Timeout(timeout, connect=min(timeout, 10.0)),
            max_retries=max_retries,
            http_client=openai.DefaultHttpxClient(
                trust_env=urlsplit(base_url).hostname not in _HERE,
                follow_redirects=False,
                event_hooks={"response": [_judge]},
            ),
        )
        self._model = self._only_model() if model is None else model
        self.name = f"{self._model} at {self._base_url}"

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

        Args:
            prompts: The texts. One that is too long is refused by the server.
            num_samples: Continuations per prompt, >= 1.
            sampling: How they are drawn. The seeds are sent; whether the same ones give the same
                text again is the server's business.
            system: None for ``POST <base_url>/completions``; else the message of the system, for
                ``/chat/completions``. No tools are offered: an answer that calls one is no text.
            adapter: The folder of a PEFT LoRA adapter, at the same path on the server's machine.
            progress: Called with the number of continuations just finished.

        Returns:
            One list of ``num_samples`` continuations per prompt; empty ones where the server had
            none.

        Raises:
            GenerationError: The server refused (with its own words; not just a few prompts), did
                not answer after all retries, or answered something else than completions.
            ModelError: The adapter folder holds no adapter.
        """
        model = self._model if adapter is None else self._load_adapter(Path(adapter))

        def ask(prompt: str, seed: int) -> list[str] | _NoTextError:
            try:
                return self._complete(
                    prompt, num_samples, seed, sampling, model=model, system=system
                )
            except _NoTextError as error:
                return error

        results: list[list[str]] = []
        refused: list[_NoTextError] = []
        pool = ThreadPoolExecutor(self._max_concurrency)
        try:
            for answer in pool.map(ask, prompts, text_seeds(sampling.seed, prompts)):
                if isinstance(answer, _NoTextError):
                    refused.append(answer)
                    results.append([""] * num_samples)
                else:
                    results.append(answer)
                if progress is not None:
                    progress(num_samples)
        finally:
            # After an error nothing that has not begun is worth beginning.
            pool.shutdown(wait=False, cancel_futures=True)
        self._has_written |= len(refused) < len(results)
        if refused and not self._has_written:
            raise refused[0]
        if refused:
            logger.warning(
                "%d of %d prompts stay without a text, the first one because %s",
                len(refused),
                len(prompts),
                refused[0],
            )
        return results

    def _complete(
        self,
        prompt: str,
        num_samples: int,
        seed: int,
        sampling: SamplingParameters,
        *,
        model: str,
        system: str | None,
    ) -> list[str]:
        body = {
            "model": model,
            "n": num_samples,
            "seed": seed,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stop": list(sampling.stop) or None,
        }
        if system is None:
            choices = self._post("/completions", {**body, "prompt": prompt})["choices"]
        else:
            said = [{"role": "system", "content": system}] * bool(system)
            said += [{"role": "user", "content": prompt}]
            choices = self._post("/chat/completions", {**body, "messages": said})["choices"]
        if all(isinstance(_part(choice, "index"), int) for choice in choices):
            choices = sorted(choices, key=lambda choice: int(choice["index"]))
        texts = [
            self._text(_part(choice, "text"))
            if system is None
            # An answer without a word is none; a text may be at its end.
            else answered(self._text(_part(_part(choice, "message"), "content")) or "") or None
            for choice in choices
        ]
        if not any(text is not None for text in texts):
            raise _NoTextError(
                f"server {self._base_url} answered without a text, as models do that have used up "
                "max-new-tokens in thinking, call a tool, or do not want to answer"
            )
        return [text or "" for text in texts]

    def _text(self, value: Any) -> str | None:
        """A text, whatever a server has put in its place; None where there is none."""
        if isinstance(value, list):  # the parts of a message, of which thoughts are no text
            value = "".join(str(_part(part, "text") or "") for part in value)
        if not isinstance(value, str):
            return None
        return mended(redact(value, self._api_key))

    def _load_adapter(self, folder: Path) -> str:
        """Make the server hold the adapter; returns the model name that stands for it."""
        folder = folder.resolve()
        # The path is part of the name: a server reads the folder again after it had to make room.
        name = f"privsyn-{adapter_digest(folder)[:16]}-{derive_seed(0, str(folder)):016x}"
        if name in self._loaded and name in (self._served_models() or ()):
            return name
        try:
            self._post("/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except GenerationError as error:
            status = getattr(error.__context__, "status_code", None)
            if status in (404, 405):
                raise GenerationError(
                    f"{error}: to load the adapter {folder}, start it with --enable-lora and "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
                ) from error
            if status != 400 or name not in (self._served_models() or ()):
                raise GenerationError(f"the adapter {folder} cannot be loaded: {error}") from error
        self._loaded.add(name)
        return name

    def _served_models(self, *, adapters: bool = True) -> list[str] | None:
        """The names of the models that the server lists; None where it lists none."""
        try:
            answer = self._ask(lambda: self._client.get("/models", cast_to=object), "/models")
        except GenerationError as error:
            if getattr(error.__context__, "status_code", None) not in _NO_LIST:
                raise
            return None
        entries = _part(answer, "data")
        if not isinstance(entries, list):
            return None
        # vLLM lists adapters too, each with the model it belongs to as its parent.
        return [
            redact(str(_part(entry, "id")), self._api_key)
            for entry in entries
            if adapters or _part(entry, "parent") is None
        ]

    def _only_model(self) -> str:
        names = self._served_models(adapters=False) or ()
        if len(names) != 1:
            raise GenerationError(
                f"server {self._base_url} lists {len(names)} models "
                f"({', '.join(names[:8])}): name one, as in {self._base_url}#model"
            )
        return names[0]

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a request; what is None in it is left out."""
        given = {**body, **(self._extra_parameters if "model" in body else {})}
        sent = {name: value for name, value in given.items() if value is not None}
        return self._ask(lambda: self._client.post(path, cast_to=object, body=sent), path)

    def _ask(self, request: Callable[[], Any], path: str) -> Any:
        """What a server answers to a request of the client.

        Raises:
            _NoTextError: It refuses one prompt.
            GenerationError: It refuses all, or does not answer; the client's error is the context.
        """
        import openai

        retries = self._client.max_retries
        times = f"tried {retries + 1} times" if retries else "tried once"
        # None of the client's errors is a cause that a traceback would print: they quote what the
        # server said, which may be the key.
        try:
            return request()
        except openai.APITimeoutError:
            raise GenerationError(
                f"server {self._base_url} did not answer in time ({times})"
            ) from None
        except openai.APIConnectionError as error:
            reason = redact(_one_line(error.__cause__ or error), self._api_key)
            raise GenerationError(
                f"server {self._base_url} cannot be reached ({reason}; {times})"
            ) from None
        except openai.APIStatusError as error:
            status = error.status_code
            of_a_prompt = status in _OF_A_PROMPT and path.endswith("completions")
            if status == _BAD_GATEWAY:
                did = f"gave no text to {path} ({times})"
            elif status == 429 or status >= 500:
                did = f"answered {path} with status {status} ({times})"
            else:
                did = f"refused {path} with status {status}"
            # What an address may lack, by which a server is found and none of its answers.
            whole = urlsplit(self._base_url).path.strip("/")
            hint = "" if whole else "; most addresses end in /v1"
            raise (_NoTextError if of_a_prompt else GenerationError)(
                f"server {self._base_url} {did}: {self._message(error)}{hint}"
            ) from None

    def _message(self, error: openai.APIStatusError) -> str:
        """Find the server's own words in a refusal, whichever dialect it speaks."""
        said = error.body
        for key in ("error", "message", "detail"):
            said = _part(said, key) or said
        moved = error.response.headers.get("Location")
        words = f"it is at {moved}" if moved else _one_line(said or "")
        # Cut last: half a key would not be known for one.
        text = redact(words, self._api_key)[:_MAX_MESSAGE_LETTERS]
        return text or "no reason given"


def _judge(response: Any) -> None:
    """Make of an answer that is no completion a failure of the server, which the client repeats."""
    if not response.is_success:
        return
    response.read()
    try:
        answer = json.loads(response.content)
    except (ValueError, RecursionError):
        answer = None
    if answer is not None:
        response.headers["Content-Type"] = "application/json"
    if response.request.url.path.endswith("/completions"):
        wanted = json.loads(response.request.content).get("n", 1)
        choices = _part(answer, "choices")
        if not isinstance(choices, list) or len(choices) != wanted:
            response.status_code = _BAD_GATEWAY


def _part(value: Any, key: str) -> Any:
    """What an object of JSON holds under a key; None where it is none or holds nothing."""
    return value.get(key) if isinstance(value, dict) else None


def _one_line(said: object) -> str:
    return " ".join(str(said).split())
