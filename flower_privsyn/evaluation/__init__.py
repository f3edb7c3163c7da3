"""Quality measured against private text: for research, never part of a private run.

Everything here that touches private text returns a `NotPrivate` record, stamped `STAMP`. Importing
this package loads neither PyTorch nor scikit-learn.
"""

from flower_privsyn.evaluation.copies import copy_rates
from flower_privsyn.evaluation.distribution import (
    frechet_distance,
    mauve,
    mean_discrepancy,
    precision_recall,
)
from flower_privsyn.evaluation.diversity import diversity
from flower_privsyn.evaluation.language_model import evaluate_language_model
from flower_privsyn.evaluation.result import STAMP, NotPrivate
from flower_privsyn.evaluation.run import compare_texts, evaluate_run, split_users

__all__ = [
    "STAMP",
    "NotPrivate",
    "compare_texts",
    "copy_rates",
    "diversity",
    "evaluate_language_model",
    "evaluate_run",
    "frechet_distance",
    "mauve",
    "mean_discrepancy",
    "precision_recall",
    "split_users",
]
