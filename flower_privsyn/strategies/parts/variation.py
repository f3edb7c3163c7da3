"""The variation of texts that several methods use: masks, filled by a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Protocol

from annotated_types import Gt, Le

from flower_privsyn.files import located
from flower_privsyn.generation.variation import MaskUnit

if TYPE_CHECKING:
    from flower_privsyn.generation import Variation

MaskFraction = Annotated[float, Gt(0), Le(1)]
"""Share of a text's tokens that are masked in one step."""

MaskUnitSetting = Annotated[
    MaskUnit,
    '"token", as in PrE-Text; or "word": only words that are one token are masked and drawn, '
    "so that no word is torn and punctuation stays.",
]
"""The setting `mask-unit`."""


class MaskSettings(Protocol):
    """Settings of mask-filling, which several methods have."""

    @property
    def variation_model(self) -> str:
        """The masked language model."""

    @property
    def mask_fraction(self) -> float:
        """Share of a text's tokens masked in one step."""

    @property
    def mask_steps(self) -> int:
        """How often a text is masked and filled."""

    @property
    def temperature(self) -> float:
        """Of sampling."""

    @property
    def top_p(self) -> float:
        """The nucleus."""

    @property
    def max_tokens(self) -> int:
        """Length of a text."""


def mask_filling(config: MaskSettings, *, unit: MaskUnit = "token") -> Variation:
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
