"""Texts from a server with the OpenAI interface, such as ``vllm serve``: continued or answered."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from flower_privsyn.checks import check_number, check_whole
from flower_privsyn.errors import ConfigError, GenerationError, MissingExtraError
from flower_privsyn.generation import streams
from flower_privsyn.generation.api_key import REDACTED, has_secrets, redact, shown_address
from flower_privsyn.generation.at_once import USUAL
from flower_privsyn.generation.backends import (
    ProgressCallback,
    SamplingParameters,
    check_texts,
    refuse_penalty,
)
from flower_privsyn.models.adapters import adapter_digest

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

logger = logging.getLogger("flwr.privsyn")

#: Samples to ask for at a time, of each request under way: a batch waits for its slowest.
_TIMES_AT_ONCE = 4

_MAX_WAIT_SECONDS = 30.0
_MAX_MESSAGE_LETTERS = 300

#: Statuses that may be about one prompt: refused by a filter, or too long for the model.
_OF_A_PROMPT = (400, 413, 422)

#: Prompts of one call that may stay without a text: so many, or half of them where that is more.
_MOST_REFUSED = 8


#: Statuses of servers that list no models, or not to everybody, and complete text all the same.
_NO_LIST = (403, 404, 405)


class NoListError(GenerationError):
    """A server does not say which models it serves."""


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

    A prompt for which the server has no text (it answers null, calls a tool, or refuses it with
    status 400, 413 or 422, as filters do and models for which it is too long) gets an empty one:
    what was written for others is paid for, and the same prompts would come again. One warning
    says how many these are. The call fails where they are more than eight and more than half of
    its prompts, or where this server has not written anything yet.

    Attributes:
        name: The model's name and the server's address.
        at_once: Samples to ask for at a time.
    """

    #: Seeds that a server knows; all that are derived here are below this.
    _seeds_below: ClassVar[int] = 2**63

    #: Whether HTTP_PROXY and the like say how the server is reached.
    _by_proxy: ClassVar[bool] = True

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 300.0,
        max_retries: int = 5,
        backoff: float = 0.5,
        max_concurrency: int = 64,
        extra_parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Address a server; without ``model`` ask it which one it serves.

        Args:
            base_url: With the version, ``"http://127.0.0.1:8000/v1"``.
            model: The name the server knows it by.
            api_key: Sent as a bearer token, and taken out of everything the server says.
            timeout: Seconds to wait for one answer, > 0.
            max_retries: How often a request is repeated after a lost connection, a timeout, or
                status 429 or 5xx, >= 0. Other refusals (4xx) are final at once, for their prompt or
                for all of them.
            backoff: Seconds before the first repetition, doubled each time up to 30, >= 0; a
                server's ``Retry-After`` counts when it is longer.
            max_concurrency: Requests under way at once, >= 1.
            extra_parameters: Added to every request, for what one server knows beyond OpenAI's
                interface (vLLM: ``{"top_k": -1}`` where the model's own defaults restrict it); None
                leaves out what would be sent, for what a server does not know (``{"seed": None}``).

        Raises:
            ConfigError: A setting is out of range.
            GenerationError: The server cannot be asked for its model, or serves several.
            MissingExtraError: httpx is not installed.
        """
        try:
            import httpx
        except ImportError as error:
            raise MissingExtraError(
                f"a generation server is reached through httpx ({error}): "
                "pip install 'flower-privsyn[server]'"
            ) from error
        if has_secrets(base_url):
            raise ConfigError(
                f"generation setting base_url, {shown_address(base_url)}, must have no user name, "
                "password or query: give a key as api_key"
            )
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(
                "generation setting base_url must look like 'http://host:port/v1', "
                f"got {base_url!r}"
            )
        check_whole("generation setting max_retries", max_retries, ge=0)
        check_whole("generation setting max_concurrency", max_concurrency, ge=1)
        check_number("generation setting timeout, in seconds,", timeout, ge=1e-3)
        check_number("generation setting backoff, in seconds,", backoff, ge=0)
        self._base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._max_retries = max_retries
        self._backoff = backoff
        self._max_concurrency = max_concurrency
        self.at_once = max(USUAL, _TIMES_AT_ONCE * max_concurrency)
        self._extra_parameters = dict(extra_parameters or {})
        self._has_written = False
        self._loaded: set[str] = set()
        self._lock = threading.Lock()
        self._thread = threading.local()  # `over`: set once nobody waits for its answer
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            limits=httpx.Limits(max_connections=max_concurrency),
            trust_env=self._by_proxy,
        )
        self._model = self._only_model() if model is None else model
        self.name = f"{self._model} at {self._base_url}"

    def check_served(self) -> None:
        """Ask the server which models it serves; nothing is written.

        Raises:
            GenerationError: It does not answer, or serves other models.
        """
        served = self._served_models()
        if self._model not in served:
            raise GenerationError(
                f"server {self._base_url} serves {', '.join(served[:8]) or 'nothing'}, not "
                f"{self._model}"
            )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def generate(
        self,
        prompts: Sequence[str],
        *,
        num_samples: int = 1,
        sampling: SamplingParameters,
        adapter: Path | None = None,
        progress: ProgressCallback | None = None,
    ) -> list[list[str]]:
        """Continue every prompt; see `TextGenerator`.

        Args:
            prompts: The texts to continue. One that is too long is refused by the server.
            num_samples: Continuations per prompt, >= 1.
            sampling: How they are drawn. The seeds are sent; whether the same ones give the same
                text again is the server's business.
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
        check_whole("generation setting num_samples", num_samples, ge=1)
        check_texts("prompts", prompts)
        model = self._model if adapter is None else self._load_adapter(Path(adapter))
        return self._each(
            prompts,
            lambda prompt, seed: self._complete(prompt, num_samples, seed, sampling, model),
            nothing=[""] * num_samples,
            seed=sampling.seed,
            finished=num_samples,
            progress=progress,
        )

    def answer(
        self,
        messages: Sequence[str],
        *,
        system: str = "",
        sampling: SamplingParameters,
        progress: ProgressCallback | None = None,
    ) -> list[str]:
        """Answer messages by ``POST <base_url>/chat/completions``; see `ChatGenerator`.

        No tools are offered: an answer that calls one is no text, and stands as an empty one.

        Args:
            messages: What the user says, each in a conversation of its own.
            system: The system's message before it; "" for none.
            sampling: How answers are drawn; what `generate` says of seeds holds here.
            progress: Called with the number of answers just finished.

        Raises:
            GenerationError: As for `generate`.
        """
        check_texts("messages", messages)

        def ask(message: str, seed: int) -> str:
            body = self._body(self._model, 1, seed, sampling)
            said = [{"role": "user", "content": message}]
            body["messages"] = [{"role": "system", "content": system}] * bool(system) + said
            (choice,) = self._choices("/chat/completions", body, 1)
            return self._answer_of(choice)

        return self._each(
            messages, ask, nothing="", seed=sampling.seed, finished=1, progress=progress
        )

    def _answer_of(self, choice: Any) -> str:
        """The text of a choice of a chat."""
        message = choice.get("message") if isinstance(choice, dict) else None
        said = message if isinstance(message, dict) else {}
        if said.get("tool_calls"):
            raise _NoTextError(
                f"server {self._base_url} answered with a call of a tool, and none was offered"
            )
        content = said.get("content", ...)
        if content is None:
            raise self._null()
        if not isinstance(content, str):
            raise GenerationError(
                f"server {self._base_url} answered with a message that holds no text"
            )
        return self._without_key(content)

    def _null(self) -> _NoTextError:
        return _NoTextError(
            f"server {self._base_url} answered with null in place of a text, as models do that "
            "have used up max-new-tokens in thinking, or do not want to answer"
        )

    def _each(
        self,
        prompts: Sequence[str],
        request: Callable[[str, int], T],
        *,
        nothing: T,
        seed: int,
        finished: int,
        progress: ProgressCallback | None,
    ) -> list[T]:
        """Make one request for every prompt, many at once, each with a seed of its own.

        `nothing` stands for what is answered to a prompt that the server has no text for.
        """
        seeds = streams.text_seeds(seed, prompts)
        results = [nothing] * len(prompts)
        refused: list[_NoTextError] = []
        over = threading.Event()
        pool = ThreadPoolExecutor(
            self._max_concurrency, initializer=setattr, initargs=(self._thread, "over", over)
        )
        try:
            futures = {
                pool.submit(request, prompt, own): index
                for index, (prompt, own) in enumerate(zip(prompts, seeds, strict=True))
            }
            for future in as_completed(futures):
                try:
                    results[futures[future]] = future.result()
                    self._has_written = True
                except _NoTextError as error:
                    refused.append(error)
                    self._refuse_more(len(refused), of=len(prompts), error=error)
                if progress is not None:
                    progress(finished)
        finally:
            # After an error nothing that has not begun is worth beginning, nor trying once more.
            over.set()
            pool.shutdown(wait=False, cancel_futures=True)
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

    def _refuse_more(self, count: int, *, of: int, error: _NoTextError) -> None:
        """Let a call fail in which too many prompts got no text; `of` is the number of them all."""
        if count > max(_MOST_REFUSED, of // 2):
            raise GenerationError(
                f"{count} of {of} prompts stayed without a text, the last one because {error}"
            ) from error
        if count > _MOST_REFUSED and not self._has_written:
            raise error

    def _body(
        self, model: str, num_samples: int, seed: int, sampling: SamplingParameters
    ) -> dict[str, Any]:
        """What every request says of how it is answered."""
        refuse_penalty(sampling, self.name)
        body: dict[str, Any] = {
            "model": model,
            "n": num_samples,
            "seed": seed % self._seeds_below,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        return body

    def _choices(self, path: str, body: Mapping[str, Any], num_samples: int) -> list[Any]:
        """Send a request; returns its choices, which are as many as were asked for."""
        sent = {**body, **self._extra_parameters}
        sent = {name: value for name, value in sent.items() if value is not None}
        answer = self._json(self._request("POST", path, sent))
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or len(choices) != num_samples:
            found = len(choices) if isinstance(choices, list) else "no"
            raise GenerationError(
                f"server {self._base_url} answered with {found} choices where {num_samples} were "
                "asked for"
            )
        return choices

    def _complete(
        self, prompt: str, num_samples: int, seed: int, sampling: SamplingParameters, model: str
    ) -> list[str]:
        body = {**self._body(model, num_samples, seed, sampling), "prompt": prompt}
        choices = self._choices("/completions", body, num_samples)
        texts: dict[int, str] = {}
        nulls = 0
        for place, choice in enumerate(choices):
            text = choice.get("text", ...) if isinstance(choice, dict) else ...
            if text is None:
                text, nulls = "", nulls + 1
            if not isinstance(text, str):
                raise GenerationError(
                    f"server {self._base_url} answered with a choice that holds no text"
                )
            number = choice.get("index", place)
            texts[number if isinstance(number, int) else place] = self._without_key(text)
        if sorted(texts) != list(range(num_samples)):
            raise GenerationError(
                f"server {self._base_url} numbered its {num_samples} choices {sorted(texts)}"
            )
        if nulls == num_samples:
            raise self._null()
        return [texts[number] for number in range(num_samples)]

    def _load_adapter(self, folder: Path) -> str:
        """Make the server hold the adapter; returns the model name that stands for it."""
        folder = folder.resolve()
        # The path is part of the name: a server reads the folder again after it had to make room.
        name = f"privsyn-{adapter_digest(folder)[:16]}-{streams.derive_seed(0, str(folder)):016x}"
        with self._lock:
            if name in self._loaded and name in self._served_models():
                return name
            body = {"lora_name": name, "lora_path": str(folder)}
            response = self._request("POST", "/load_lora_adapter", body, refusals=(400, 404, 405))
            if response.status_code == 400 and name not in self._served_models():
                raise GenerationError(
                    f"server {self._base_url} cannot load the adapter {folder}: "
                    f"{self._message(response)}"
                )
            if response.status_code in (404, 405):
                raise GenerationError(
                    f"server {self._base_url} does not load the adapter {folder} "
                    f"({self._message(response)}): start it with --enable-lora and "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
                )
            self._loaded.add(name)
        return name

    def _served_models(self, *, adapters: bool = True) -> list[str]:
        response = self._request("GET", "/models", refusals=_NO_LIST)
        answer = None if response.status_code in _NO_LIST else self._json(response)
        entries = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(entries, list) or not all(
            isinstance(entry, dict) and isinstance(entry.get("id"), str) for entry in entries
        ):
            raise NoListError(f"server {self._base_url} does not list its models")
        # vLLM lists adapters too, each with the model it belongs to as its parent.
        return [
            self._hide(entry["id"]) for entry in entries if adapters or entry.get("parent") is None
        ]

    def _only_model(self) -> str:
        names = self._served_models(adapters=False)
        if len(names) != 1:
            raise GenerationError(
                f"server {self._base_url} serves {len(names)} models "
                f"({', '.join(names[:8])}): name one, as in {self._base_url}#model"
            )
        return names[0]

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        refusals: tuple[int, ...] = (),
    ) -> httpx.Response:
        """Send a request, again where that may help; returns 2xx and the given refusals."""
        import httpx

        failure, over = "", getattr(self._thread, "over", threading.Event())
        for attempt in range(self._max_retries + 1):
            wait = min(self._backoff * 2**attempt, _MAX_WAIT_SECONDS)
            try:
                response = self._client.request(method, self._base_url + path, json=body)
            except httpx.TimeoutException:
                failure = "did not answer in time"
            except httpx.TransportError as error:
                reason = self._hide(_one_line(str(error))) or type(error).__name__
                failure = f"cannot be reached ({reason})"
            else:
                status = response.status_code
                if status < 300 or status in refusals:
                    return response
                if status != 429 and status < 500:
                    final = _NoTextError if status in _OF_A_PROMPT else GenerationError
                    raise final(
                        f"server {self._base_url} refused {path} with status {status}: "
                        f"{self._message(response)}"
                    )
                failure = f"answered {path} with status {status}: {self._message(response)}"
                wait = max(wait, _retry_after(response))
            if attempt < self._max_retries and _over_after(wait, over):
                break
        times = "once" if self._max_retries == 0 else f"{self._max_retries + 1} times"
        raise GenerationError(f"server {self._base_url} {failure} (tried {times})")

    def _json(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise GenerationError(
                f"server {self._base_url} answered with something that is not JSON: "
                f"{self._hide(_one_line(response.text))[:80]!r}"
            ) from error

    def _hide(self, text: str) -> str:
        """Take the key, and pieces of it, out of words that go into a message."""
        return redact(text, self._api_key)

    def _without_key(self, text: str) -> str:
        """Take the key as a whole out of a text that is used: a piece of it may be a word."""
        return text.replace(self._api_key, REDACTED) if self._api_key else text

    def _message(self, response: httpx.Response) -> str:
        """Find the server's own words in a refusal, whichever dialect it speaks."""
        # Cut last: half a key would not be known for one.
        text = self._hide(_words(response))[:_MAX_MESSAGE_LETTERS]
        return text or "no reason given"


def _over_after(seconds: float, over: threading.Event) -> bool:
    return over.wait(seconds)


def _words(response: httpx.Response) -> str:
    """What a refusal says, in one line."""
    try:
        content = response.json()
    except ValueError:
        content = response.text
    for _ in range(2):
        if not isinstance(content, dict):
            break
        for key in ("error", "message", "detail"):
            if key in content:
                content = content[key]
                break
        else:
            break
    return _one_line(content if isinstance(content, str) else str(content))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _retry_after(response: httpx.Response) -> float:
    try:
        return min(max(float(response.headers.get("Retry-After", "0")), 0.0), _MAX_WAIT_SECONDS)
    except ValueError:
        return 0.0
