"""What labels are worth: a classifier trained on labelled synthetic text, tested on private text.

By an encoder, as in the Aug-PE paper: `baselines/aug-pe/classify.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flower_privsyn.data import Chunking, Samples
from flower_privsyn.errors import DataError
from flower_privsyn.evaluation.distribution import library
from flower_privsyn.evaluation.language_model import Interval, resampled
from flower_privsyn.evaluation.result import NotPrivate
from flower_privsyn.files import read_json_lines
from flower_privsyn.progress import Progress
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import round_texts
from flower_privsyn.run.method import need

IntArray = npt.NDArray[np.int64]

#: From texts and classes to learn from, and texts, to the classes of these.
Classifier = Callable[[Sequence[str], IntArray, Sequence[str]], IntArray]

#: Fewest texts of a class with which the strength of the penalty is chosen by cross-validation.
_FOLDS: Final = 5


@dataclass(frozen=True, kw_only=True)
class Score(NotPrivate):
    """One classifier on the held-out text.

    Attributes:
        training_texts: how many it learned from.
        accuracy: share of texts whose class it finds; what is drawn in training is not in its
            interval.
        macro_f1: mean over classes of the harmonic mean of precision and recall.
    """

    training_texts: int
    accuracy: Interval
    macro_f1: float


@dataclass(frozen=True, kw_only=True)
class Classification(NotPrivate):
    """Classifiers that differ in what they learned from, on labelled text of held-out users.

    Attributes:
        classifier: what learned, in words.
        classes: the names.
        test_texts: samples of held-out users.
        test_users: whose they are.
        synthetic: learned from the run's labelled synthetic text.
        majority: the floor: always the class that most held-out texts are of.
        public: the floor at epsilon 0: learned from the run's first candidates, before any vote;
            None where these are not at hand.
        private: the ceiling: learned from text of users who took part; None if they were not given.
    """

    classifier: str
    classes: tuple[str, ...]
    test_texts: int
    test_users: int
    synthetic: Score
    majority: Interval
    public: Score | None
    private: Score | None


def classify_run(
    run: RunDirectory,
    held_out: Samples,
    *,
    private: Samples | None,
    classifier: Classifier,
    name: str,
    progress: Progress,
) -> Classification | None:
    """Train a classifier on a run's labelled text and test it on held-out text.

    Args:
        run: the run.
        held_out: samples of users who took no part, cut as the run cuts.
        private: the same of users who took part, for the ceiling; None to leave that out.
        classifier: what learns and answers.
        name: what it is called.
        progress: where the step is shown.

    Returns:
        What it is worth; None of a run whose text has no classes.

    Raises:
        DataError: No held-out text is labelled.
    """
    classes = Chunking.of(run.config).classes
    synthetic = _of_rows(read_json_lines(run.synthetic_jsonl), classes)
    if synthetic is None:
        return None
    true, owners = held_out.labels, held_out.owners
    if true is None or not len(held_out):
        raise DataError("the held-out users have no labelled text")

    def score(training: Samples) -> Score:
        found = classifier(training.texts, need(training.labels), held_out.texts)
        macro_f1 = library("sklearn.metrics").f1_score(true, found, average="macro")
        return Score(
            training_texts=len(training),
            accuracy=share(found == true, owners),
            macro_f1=float(macro_f1),
        )

    # What the run began with, which no private text went into.
    public = _of_rows(round_texts(run).get(1, []), classes)
    with progress.stage(f"Classify by {name}", total=None):
        return Classification(
            classifier=name,
            classes=classes,
            test_texts=len(held_out),
            test_users=len(set(owners.tolist())),
            synthetic=score(synthetic),
            majority=share(true == np.bincount(true).argmax(), owners),
            public=score(public) if public else None,
            private=score(private) if private else None,
        )


def _of_rows(rows: Any, classes: Sequence[str]) -> Samples | None:
    """The rows that have one of some classes; None where none has."""
    places = {name: place for place, name in enumerate(classes)}
    labelled = [row for row in rows if row.get("label") in places]
    if not labelled:
        return None
    return Samples(
        texts=[str(row["text"]) for row in labelled],
        owners=np.zeros(len(labelled), dtype=np.int64),
        num_users=1,
        labels=np.array([places[str(row["label"])] for row in labelled], dtype=np.int64),
    )


def share(hits: npt.NDArray[np.bool_], owners: IntArray) -> Interval:
    """The share of hits, with its interval over users.

    Args:
        hits: (n,), n >= 1.
        owners: (n,) whose each is.
    """
    _, users = np.unique(owners, return_inverse=True)
    found = np.bincount(users, weights=hits).astype(np.float64)
    texts = np.bincount(users).astype(np.float64)
    return Interval.of(found, texts, resampled(np.stack([found, texts], axis=1)))


def logistic_regression(embed: Callable[[Sequence[str]], npt.NDArray[Any]]) -> Classifier:
    """Logistic regression on embeddings, the penalty chosen by cross-validation of what it learns.

    Args:
        embed: from texts to (n, d).

    Returns:
        The classifier; with one class alone to learn from it always says that one.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    linear, scaling, pipeline, selection = (
        library(f"sklearn.{module}")
        for module in ("linear_model", "preprocessing", "pipeline", "model_selection")
    )

    def learn(texts: Sequence[str], classes: IntArray, asked: Sequence[str]) -> IntArray:
        counts = Counter(classes.tolist())
        if len(counts) == 1:
            return np.full(len(asked), classes[0], dtype=np.int64)
        folds = min(_FOLDS, *counts.values())
        fitted = pipeline.make_pipeline(
            scaling.StandardScaler(), linear.LogisticRegression(max_iter=2000)
        )
        if folds > 1:
            strengths = {"logisticregression__C": np.logspace(-4, 1, 6).tolist()}
            fitted = selection.GridSearchCV(fitted, strengths, cv=folds)
        fitted.fit(embed(texts), classes)
        found: IntArray = np.asarray(fitted.predict(embed(asked)), dtype=np.int64)
        return found

    return learn
