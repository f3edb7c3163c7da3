"""Training of the public language model on public or synthetic text, at the server.

Nothing in here sees private text: preferences come from released, noised scores. Importing this
package loads neither PyTorch nor TRL.
"""

from flower_privsyn.training.preference import (
    PreferencePair,
    PreferenceTraining,
    TrainingReport,
    response_log_probabilities,
    train_preferences,
)

__all__ = [
    "PreferencePair",
    "PreferenceTraining",
    "TrainingReport",
    "response_log_probabilities",
    "train_preferences",
]
