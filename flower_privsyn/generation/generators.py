"""Which generator writes, and how it is asked: settings of every method that has one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Gt, Le

from flower_privsyn.checks import PositiveFloat, raised_as
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import user_path
from flower_privsyn.generation.backends import TextGenerator, WritingSettings
from flower_privsyn.generation.expand import Expand
from flower_privsyn.generation.gguf_backend import PREFIX, GGUFGenerator
from flower_privsyn.generation.openai_backend import (
    OpenAIGenerator,
    check_address,
    is_address,
    read_key,
)
from flower_privsyn.generation.prompts import load_prompt
from flower_privsyn.generation.transformers_backend import TransformersGenerator


@dataclass(frozen=True, kw_only=True)
class GeneratorSettings(WritingSettings):
    """Which generator writes, and how.

    Raises:
        ConfigError: a value is out of range, or the name may hold a key.
    """

    generator: str = "smollm2-135m"
    """Causal language model that writes: a name, a folder, "gguf:FILE" for llama.cpp, or
    "http://host:port/v1#model" for an OpenAI-compatible server like vLLM's.
    """
    domain: str = "text"
    """What the texts are, in public words, for whatever model is told: "speeches in parliament"."""
    temperature: PositiveFloat = 0.7
    """Sampling temperature of what is written and filled in; 1 in the papers, of larger models."""
    top_p: Annotated[float, Gt(0), Le(1)] = 0.9
    """Nucleus of what is written and filled in; 1 in PrE-Text and POPri."""
    generator_parameters: str = ""
    """A JSON object that is sent to the server with every request, for what it knows beside the
    settings: '{"chat_template_kwargs": {"enable_thinking": false}}'; null leaves out what would be
    sent: '{"seed": null}'. "" for none.
    """

    def __post_init__(self) -> None:
        """Check every value."""
        # First, because its sentence does not quote what may be a key.
        if isinstance(self.generator, str) and is_address(self.generator):
            check_address(self.generator)
        super().__post_init__()
        if self.generator_parameters and not is_address(self.generator):
            raise ConfigError(
                "generator-parameters are sent to a server, which generator = "
                f'"{self.generator}" is not: leave them out'
            )
        self._parameters()

    def load_generator(self) -> TextGenerator:
        """The generator that is named, as `load_generator` makes it.

        Raises:
            PrivsynError: there is none, it cannot be loaded, or its server does not answer.
        """
        if not is_address(self.generator):
            return load_generator(self.generator)
        return load_generator(self.generator, extra_parameters=self._parameters())

    def _parameters(self) -> dict[str, Any]:
        """What a server is sent with every request.

        Raises:
            ConfigError: it is no JSON object.
        """
        key = "generator-parameters"
        with raised_as(ConfigError, ValueError, prefix=f"{key} must be a JSON object: "):
            found: Any = json.loads(self.generator_parameters.strip() or "{}")
        if not isinstance(found, dict):
            raise ConfigError(f"{key} must be a JSON object, got a {type(found).__name__}")
        return found


@dataclass(frozen=True, kw_only=True)
class ExpandingSettings(GeneratorSettings):
    """The same where the generator goes on with lists of texts, by completions or by messages."""

    generator_interface: Literal["completions", "chat"] = "completions"
    """How `generator` is asked: "completions", it goes on with prompts, as a base model does;
    "chat", they are messages that it answers, as an instruction model does (a server's
    /chat/completions, without tools).
    """

    @classmethod
    def of_lists(cls) -> frozenset[str]:
        """The keys of how lists are gone on with, by whatever class."""
        names = (*ExpandingSettings.declared, "prompt")
        return frozenset(name.replace("_", "-") for name in names)

    def expansion_by(self, prompt: str, generator: TextGenerator | None = None) -> Expand:
        """What goes on with lists of texts.

        Args:
            prompt: of the lists, a bundled name or a JSON file; "" for a generator that has learnt
                what to write.
            generator: in place of the one that is named.

        Raises:
            PrivsynError: as `load_generator`, or the prompt cannot be read.
        """
        lists = load_prompt(prompt).about(self.domain) if prompt else None
        model = generator or self.load_generator()
        return Expand(
            model,
            prompt=lists,
            sampling=self.sampling_parameters(),
            domain=self.domain,
            chat=self.generator_interface == "chat",
        )


def load_generator(name: str, **options: Any) -> TextGenerator:
    """Make the text generator that a name stands for.

    Args:
        name: One of

            * a bundled short name (``"privsyn-lm"``), a folder or a hub name: the model runs in
              this process through Transformers (`TransformersGenerator`);
            * ``"smollm2-135m"`` or another of `flower_privsyn.models.packaged`: the same with a
              package that is installed;
            * ``"gguf:<file>"``: llama.cpp in this process (`GGUFGenerator`);
            * ``"http://host:port/v1#model"``: a server with the OpenAI completions interface,
              such as ``vllm serve`` (`OpenAIGenerator`); without ``#model`` the one it serves.
              What the environment variable PRIVSYN_API_KEY holds is sent as a bearer token.
        **options: Keywords of the class that runs it.

    Raises:
        ConfigError: The name is an address that may hold a key, what the variable holds is no key,
            or an option is out of range.
        ModelError: The model cannot be found.
        GenerationError: The server does not answer or does not serve the model.
        MissingExtraError: What the backend needs is not installed.
    """
    if is_address(name):
        check_address(name)
        base_url, _, model = name.strip().partition("#")
        return OpenAIGenerator(base_url, model or None, api_key=read_key(), **options)
    if name.startswith(PREFIX):
        return GGUFGenerator(user_path(name.removeprefix(PREFIX)))
    return TransformersGenerator(name, **options)


def load_trained_generator(folder: Path) -> TransformersGenerator:
    """Make the generator of a model that nodes, or `baselines/ctcl/central`, have trained.

    It reads what stands before a text as the training did: after the token that texts begin with,
    whether or not the tokenizer puts one there.

    Args:
        folder: of the model.

    Raises:
        ModelError: The model cannot be loaded.
        MissingExtraError: PyTorch or Transformers is not installed.
    """
    return TransformersGenerator(folder, begins_texts=True)


def runs_elsewhere(name: str) -> bool:
    """Whether the generator runs in another process than this one, and learns nothing here."""
    return is_address(name) or name.startswith(PREFIX)
