"""The variations of texts that several methods use: by masks that a model fills, or by prompts."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import NonNegativeFloat
from flower_privsyn.generation.variation import MaskUnit

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
