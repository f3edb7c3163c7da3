"""Training of language models. Importing this package loads neither PyTorch nor TRL.

What is exported here runs at the server and sees no private text: preferences are made of public
and generated text and of released, noised scores.
"""

from typing import TYPE_CHECKING, Any

from flower_privsyn.errors import MissingExtraError
from flower_privsyn.training.preference_settings import (
    PreferencePair,
    PreferenceTraining,
    TrainingReport,
)

if TYPE_CHECKING:
    from flower_privsyn.training.preference import train_preferences

__all__ = [
    "PreferencePair",
    "PreferenceTraining",
    "TrainingReport",
    "train_preferences",
]


def __getattr__(name: str) -> Any:
    """Load `train_preferences` when it is asked for."""
    if name != "train_preferences":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from flower_privsyn.training.preference import train_preferences
    except ImportError as error:
        raise MissingExtraError(
            f"preference training needs PyTorch, Transformers, PEFT and TRL ({error}): "
            "pip install 'flower-privsyn[training]'"
        ) from error
    return train_preferences
