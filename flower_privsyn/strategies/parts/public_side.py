"""What the server needs besides releases: models and public text."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flower_privsyn.errors import ConfigError, MissingExtraError
from flower_privsyn.files import located
from flower_privsyn.private_path.method import RecordSource
from flower_privsyn.private_path.needs import NeededModel, Needs
from flower_privsyn.strategies.parts.embedder import embedder_of, embeddings_by
from flower_privsyn.strategies.parts.preferences import PreferenceConfig

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.generation import Expand, Prompt, TextGenerator

#: Public samples in a prompt, as in figure 5 of POPri (Hou et al. 2025).
NUM_EXAMPLES: Final = 3


@dataclass(frozen=True, kw_only=True)
class PublicSide:
    """What the server needs besides releases: models and public text.

    Attributes:
        embedder: the embedding model the nodes use as well.
        generator: the language model that writes.
        prompt: how public samples are laid out for it.
        seeds: public samples of at most `max_tokens` tokens.
    """

    embedder: Embedder
    generator: TextGenerator
    prompt: Prompt
    seeds: tuple[str, ...]

    @classmethod
    def load(
        cls,
        config: PreferenceConfig,
        *,
        embedder: Embedder | None = None,
        generator: TextGenerator | None = None,
        check_training: bool = True,
    ) -> PublicSide:
        """Load and check everything, before any budget is spent.

        Args:
            config: the settings.
            embedder: in place of `config.embedding_model`.
            generator: in place of `config.generator`.
            check_training: whether adapters are trained here, with the package's own training.

        Raises:
            PrivsynError: something is missing or unusable.
        """
        from flower_privsyn.models import resolve_model

        if check_training:
            missing = [name for name in ("trl", "peft") if not importlib.util.find_spec(name)]
            if missing:
                raise MissingExtraError(
                    f"preference training needs {' and '.join(missing)}: "
                    "pip install 'flower-privsyn[training]'"
                )
            resolve_model(located(config.model_to_train))
        embedder = embedder_of(config, embedder)
        if generator is None:
            generator = config.load_generator()
        prompt, seeds = cls.read(embedder.tokenizer, config=config)
        return cls(embedder=embedder, generator=generator, prompt=prompt, seeds=tuple(seeds))

    @staticmethod
    def read(
        tokenizer: Any, *, config: PreferenceConfig, enough: bool = False
    ) -> tuple[Prompt, list[str]]:
        """Read the prompt, and the public texts of which some stand in it.

        Args:
            tokenizer: of the embedding model.
            config: the settings.
            enough: read no more texts than a prompt needs.

        Raises:
            PrivsynError: one of them is unusable, or there are too few texts.
        """
        from flower_privsyn.data import public_texts
        from flower_privsyn.generation import load_prompt

        prompt = load_prompt(located(config.prompt))
        if prompt.num_samples <= NUM_EXAMPLES:
            raise ConfigError(
                f'prompt = "{config.prompt}" announces {prompt.num_samples} samples; prompts of '
                f"{NUM_EXAMPLES} public samples need one that announces more"
            )
        seeds = public_texts(
            config.public_text,
            tokenizer=tokenizer,
            max_tokens=config.max_tokens,
            fewest=NUM_EXAMPLES,
            wanted_by=f'prompt = "{config.prompt}"',
            enough=enough,
        )
        return prompt, seeds

    @classmethod
    def needs(cls, config: PreferenceConfig) -> Needs:
        """What `load` will load, and what training needs."""
        models = [
            NeededModel(setting="embedding-model", name=config.embedding_model, kind="embedding"),
            NeededModel(setting="generator", name=config.generator, kind="generator"),
        ]
        libraries = ["sentence_transformers", "torch", "transformers"]
        setting = "training-model" if config.training_model else "generator"
        models.append(NeededModel(setting=setting, name=config.model_to_train, kind="causal"))
        libraries += ["trl", "peft"]
        return Needs(
            models=tuple(models),
            libraries=tuple(libraries),
            public_text=config.public_text,
            prompt=config.prompt,
            reads=(partial(cls.read, config=config, enough=True),),
        )

    def expansion(self, config: PreferenceConfig, *, batch_size: int | None = None) -> Expand:
        """How the generator writes more text, after prompts of public samples.

        Args:
            config: the settings.
            batch_size: continuations asked of it at a time; None for its own number.
        """
        from flower_privsyn.generation import Expand, SamplingParameters

        return Expand(
            self.generator,
            prompt=self.prompt,
            num_examples=NUM_EXAMPLES,
            sampling=SamplingParameters(
                seed=0,
                max_new_tokens=config.max_new_tokens,
                temperature=config.temperature,
                top_p=config.top_p,
            ),
            batch_size=batch_size,
        )

    @property
    def source(self) -> RecordSource:
        """What makes the users' records as well."""
        return embeddings_by(self.embedder)

    @property
    def seed_ids(self) -> list[str]:
        """Identifiers of the public samples, as parents of what is written after them."""
        return [f"public:{index}" for index in range(len(self.seeds))]
