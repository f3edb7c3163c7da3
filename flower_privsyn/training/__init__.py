"""Training of language models. Importing this package loads neither PyTorch nor TRL.

What is exported here runs at the server and sees no private text: preferences are made of public
and generated text and of released, noised scores.
"""

from flower_privsyn.training.preference import TrainingReport, train_preferences
from flower_privsyn.training.preference_settings import PreferencePair, PreferenceTraining

__all__ = [
    "PreferencePair",
    "PreferenceTraining",
    "TrainingReport",
    "train_preferences",
]
