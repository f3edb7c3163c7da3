"""The variations of texts that several methods use: by masks that a model fills, or by prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import NonNegativeFloat
from flower_privsyn.files import located
from flower_privsyn.generation.variation import MaskUnit
from flower_privsyn.private_path.needs import NeededModel

if TYPE_CHECKING:
    from flower_privsyn.generation import ByInstruction, TextGenerator, Variation
    from flower_privsyn.strategies.parts.evolution import EvolutionConfig

VariationName = Annotated[
    Literal["mask-fill", "prompt"],
    'how texts are varied: "mask-fill", by `variation_model` (PrE-Text); "prompt", by `generator`, '
    "which is asked for it (Aug-PE).",
]
"""The setting `variation`."""

VariationPrompt = Annotated[
    str,
    'what it is asked, for "prompt": "paraphrase", "style", "fill-blanks", or a JSON file.',
]
"""The setting `variation-prompt`."""

Domain = Annotated[
    str,
    'what the texts are, in public words, for prompts that ask for them: "reviews of restaurants".',
]
"""The setting `domain`."""

BlankFraction = Annotated[
    float, Ge(0), Le(1), 'share of the words that "fill-blanks" leaves out of a text.'
]
"""The setting `blank-fraction`."""

WordSpread = Annotated[
    NonNegativeFloat,
    "standard deviation of the number of words that a prompt asks for, about that of the text "
    "which is varied.",
]
"""The setting `word-spread`."""

MaskFraction = Annotated[float, Gt(0), Le(1)]
"""Share of a text's tokens that are masked in one step."""

MaskUnitSetting = Annotated[
    MaskUnit,
    '"token", as in PrE-Text; or "word": only words that are one token are masked and drawn, '
    "so that no word is torn and punctuation stays.",
]
"""The setting `mask-unit`."""


def masked_model(config: EvolutionConfig) -> NeededModel:
    """The model that `mask_filling` loads, for a check before a run."""
    return NeededModel(
        setting="variation-model",
        name=config.variation_model,
        kind="masked",
        max_tokens=config.max_tokens,
    )


def mask_filling(config: EvolutionConfig, *, unit: MaskUnit = "token") -> Variation:
    """Mask-filling as the settings have it.

    Args:
        config: the settings.
        unit: what is masked as one.

    Raises:
        PrivsynError: the model is missing or unusable.
    """
    from flower_privsyn.generation import MaskFill

    return MaskFill(
        located(config.variation_model),
        mask_fraction=config.mask_fraction,
        num_steps=config.mask_steps,
        unit=unit,
        temperature=config.temperature,
        top_p=config.top_p,
        max_tokens=config.max_tokens,
    )


def prompting(
    config: EvolutionConfig,
    generator: TextGenerator,
    *,
    prompt: str,
    purpose: Literal["variation", "beginning"] = "variation",
) -> ByInstruction:
    """A generator that is asked as the settings have it.

    Args:
        config: the settings.
        generator: that is asked.
        prompt: a bundled name, or a JSON file.
        purpose: of the prompt.

    Raises:
        ConfigError: the prompt cannot be read, or is not for such models.
    """
    from flower_privsyn.generation import (
        Asking,
        ByInstruction,
        SamplingParameters,
        load_instruction,
    )

    return ByInstruction(
        generator,
        load_instruction(located(prompt), purpose=purpose),
        asking=Asking(
            domain=config.domain,
            blank_fraction=config.blank_fraction,
            word_spread=config.word_spread,
        ),
        sampling=SamplingParameters(
            seed=0,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
        ),
        chat=config.generator_interface == "chat",
    )
