"""Which generator writes, and how a server is asked: settings of every method that has one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import IN_PYTHON, Settings
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located
from flower_privsyn.generation.api_key import (
    API_KEY_VARIABLE,
    ApiKeyVariable,
    check_generator,
    is_address,
)

if TYPE_CHECKING:
    from flower_privsyn.generation.backends import TextGenerator
    from flower_privsyn.generation.prompts import Prompt

GeneratorInterface = Annotated[
    Literal["completions", "chat"],
    'how `generator` is asked: "completions", it goes on with prompts, as a base model does; '
    '"chat", they are messages that it answers, as an instruction model does (a server\'s '
    "/chat/completions, without tools).",
]
"""The setting `generator-interface`."""

#: What the package sends by its own settings: no other value, but null to leave it out.
_BY_SETTINGS: Final = {
    "max_tokens": "max-new-tokens",
    "temperature": "temperature",
    "top_p": "top-p",
    "seed": "seed",
    "stop": "the prompt",
    "n": "the method",
}

#: What a request is nothing without, or is answered otherwise with.
_OF_A_REQUEST: Final = frozenset(
    {"model", "prompt", "messages", "stream", "tools", "functions", "echo"}
)

#: Keys of how a server is asked: no text depends on them, so a resumed run may change them at any
#: time.
SERVER_SETTINGS: Final = frozenset(
    {
        "generator-api-key-env",
        "generator-timeout",
        "generator-retries",
        "generator-concurrency",
    }
)


@dataclass(frozen=True, kw_only=True)
class GeneratorSettings(Settings):
    """Which generator writes, and how it is asked where it is a server's.

    Raises:
        ConfigError: a value is out of range, or the name or the variable may hold a key.
    """

    generator: Annotated[
        str,
        'causal language model that writes: a name, a folder, "gguf:FILE" for llama.cpp, or '
        '"http://host:port/v1#model" for an OpenAI-compatible server like vLLM\'s.',
    ] = "privsyn-lm"
    generator_api_key_env: ApiKeyVariable = API_KEY_VARIABLE
    generator_timeout: Annotated[
        float,
        Gt(0),
        Le(86_400),
        "seconds to wait for one answer of the server that `generator` names.",
        IN_PYTHON,
    ] = 300.0
    generator_retries: Annotated[
        int,
        Ge(0),
        Le(1000),
        "how often a request is repeated that was lost, took too long, or was answered with "
        "status 429 or 5xx or with something else than text. The waits in between are 0.5 s, "
        "doubled each time up to 8: 15.5 s in all by default, 20 repetitions outlast two minutes "
        "of a restart; or as long as the server says, up to two minutes.",
        IN_PYTHON,
    ] = 5
    generator_concurrency: Annotated[
        int,
        Ge(1),
        Le(4096),
        "requests that are under way at once at the server.",
        IN_PYTHON,
    ] = 64
    generator_parameters: Annotated[
        str,
        "a JSON object that is sent to the server with every request, for what it knows beside the "
        'settings: \'{"chat_template_kwargs": {"enable_thinking": false}}\'; null leaves out what '
        'would be sent: \'{"seed": null}\'. "" for none.',
    ] = ""

    def __post_init__(self) -> None:
        """Check every value."""
        # First, because its sentences do not quote what may be a key.
        check_generator(self.generator, self.generator_api_key_env)
        super().__post_init__()
        if self.generator_parameters and not is_address(self.generator):
            raise ConfigError(
                "generator-parameters are sent to a server, which generator = "
                f'"{self.generator}" is not: leave them out'
            )
        self._parameters()

    def load_generator(self) -> TextGenerator:
        """The generator that is named, as `flower_privsyn.generation.load_generator` makes it.

        Raises:
            PrivsynError: there is none, it cannot be loaded, or its server does not answer.
        """
        from flower_privsyn.generation.generators import load_generator

        return load_generator(located(self.generator), **self.server_options)

    @property
    def server_options(self) -> dict[str, Any]:
        """How a server is asked, as arguments of `load_generator`."""
        return {
            "api_key_env": self.generator_api_key_env,
            "extra_parameters": self._parameters(),
            "timeout": self.generator_timeout,
            "max_retries": self.generator_retries,
            "max_concurrency": self.generator_concurrency,
        }

    def _parameters(self) -> dict[str, Any]:
        """What a server is sent with every request.

        Raises:
            ConfigError: it is no JSON object, or holds what the settings say or a request is made
                of.
        """
        key, text = "generator-parameters", self.generator_parameters
        if not text.strip():
            return {}
        try:
            found: Any = json.loads(text, parse_constant=_refuse_constant)
        except ValueError as error:
            raise ConfigError(f"{key} must be a JSON object: {error}") from None
        if not isinstance(found, dict):
            raise ConfigError(f"{key} must be a JSON object, got a {type(found).__name__}")
        for name, value in found.items():
            if name in _OF_A_REQUEST:
                raise ConfigError(f"{key} must not hold {name!r}: requests are the package's own")
            if name in _BY_SETTINGS and value is not None:
                raise ConfigError(
                    f"{key} must not hold {name!r} but as null, which leaves it out: its value is "
                    f"of {_BY_SETTINGS[name]}"
                )
        return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


@dataclass(frozen=True, kw_only=True)
class ExpandingSettings(GeneratorSettings):
    """The same where the generator goes on with lists of texts, by completions or by messages."""

    generator_interface: GeneratorInterface = "completions"

    def writer(self, prompt: Prompt, generator: TextGenerator | None = None) -> TextGenerator:
        """What goes on with a prompt.

        Args:
            prompt: which says what a chat model is told before it.
            generator: in place of the one that is named.

        Raises:
            ConfigError: the interface is "chat", and the generator takes no messages.
            PrivsynError: as `load_generator`.
        """
        from flower_privsyn.generation.by_messages import ByMessages

        model = generator or self.load_generator()
        if self.generator_interface == "completions":
            return model
        return ByMessages(model, instruction=prompt.instruction)
