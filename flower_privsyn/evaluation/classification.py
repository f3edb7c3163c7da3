"""What labels are worth: a classifier trained on labelled synthetic text, tested on private text.

Papers:
    Xie et al., "Differentially Private Synthetic Data via Foundation Model APIs 2: Text" (Aug-PE,
    ICML 2024), whose measure is the accuracy of RoBERTa-base so trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import DataError
from flower_privsyn.evaluation.neighbors import library
from flower_privsyn.evaluation.result import NotPrivate

Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: From texts and classes to learn from, and texts, to the classes of these.
Classifier = Callable[[Sequence[str], IntArray, Sequence[str]], IntArray]

#: Fewest texts of a class with which the strength of the penalty is chosen by cross-validation.
_FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class LabelledTexts:
    """Texts and of which class each is.

    Attributes:
        texts: (n,).
        classes: (n,) int64, places in a list of classes.
        owners: (n,) int64, whose each is; None where they are nobody's.
    """

    texts: Sequence[str]
    classes: IntArray
    owners: IntArray | None = None

    def __post_init__(self) -> None:
        """Check the lengths."""
        lengths = {len(self.texts), len(self.classes)}
        lengths |= set() if self.owners is None else {len(self.owners)}
        if len(lengths) != 1:
            raise ValueError("texts, classes and owners must have one length")

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.texts)

    def __repr__(self) -> str:
        """Sizes alone: the texts may be users'."""
        return f"LabelledTexts({len(self.texts)} texts)"


@dataclass(frozen=True, kw_only=True)
class Share(NotPrivate):
    """A share of texts, and how sure it is.

    Attributes:
        value: in [0, 1].
        standard_error: over users, as if the tested ones were drawn from many; what is drawn in
            training is not in it. None for a single user.
    """

    value: float
    standard_error: float | None


@dataclass(frozen=True, kw_only=True)
class Score(NotPrivate):
    """One classifier on the held-out text.

    Attributes:
        training_texts: how many it learned from, by class.
        accuracy: share of texts whose class it finds.
        macro_f1: mean over classes of the harmonic mean of precision and recall.
        recall: share of each class's texts that it finds; None for a class without texts.
    """

    training_texts: dict[str, int]
    accuracy: Share
    macro_f1: float
    recall: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Classification(NotPrivate):
    """Classifiers that differ in what they learned from, on labelled text of held-out users.

    Attributes:
        classifier: what learned, in words.
        classes: the names.
        test_texts: samples of held-out users, by class.
        test_users: whose they are.
        synthetic: learned from the run's labelled synthetic text.
        majority: the floor: always the class that most held-out texts are of.
        public: the floor at epsilon 0: learned from the run's first candidates, before any vote;
            None where these are not at hand.
        private: the ceiling: learned from text of users who took part; None if they were not given.
    """

    classifier: str
    classes: tuple[str, ...]
    test_texts: dict[str, int]
    test_users: int
    synthetic: Score
    majority: Share
    public: Score | None
    private: Score | None


def classify(
    classifier: Classifier,
    *,
    name: str,
    classes: Sequence[str],
    synthetic: LabelledTexts,
    held_out: LabelledTexts,
    public: LabelledTexts | None = None,
    private: LabelledTexts | None = None,
) -> Classification:
    """Train classifiers and test them on held-out text.

    Args:
        classifier: what learns and answers.
        name: what it is called.
        classes: names of the classes.
        synthetic: the run's text.
        held_out: of users who took no part, with owners.
        public: text at epsilon 0.
        private: of users who took part.

    Raises:
        DataError: There is no held-out text, or none to learn from.
    """
    for what, found in (("held-out", held_out), ("synthetic", synthetic)):
        if not len(found):
            raise DataError(f"there is no labelled {what} text to classify with")
    owners = held_out.owners
    if owners is None:
        raise ValueError("held-out text has owners")

    def score(training: LabelledTexts | None) -> Score | None:
        if training is None or not len(training):
            return None
        found = classifier(training.texts, training.classes, held_out.texts)
        return _score(found, held_out.classes, owners, training.classes, classes)

    learned = score(synthetic)
    assert learned is not None
    commonest = np.bincount(held_out.classes, minlength=len(classes)).argmax()
    return Classification(
        classifier=name,
        classes=tuple(classes),
        test_texts=_counts(held_out.classes, classes),
        test_users=len(set(owners.tolist())),
        synthetic=learned,
        majority=share(held_out.classes == commonest, owners),
        public=score(public),
        private=score(private),
    )


def share(hits: npt.NDArray[np.bool_], owners: IntArray) -> Share:
    """The share of hits, with its standard error over users.

    Args:
        hits: (n,), n >= 1.
        owners: (n,) whose each is.

    Returns:
        The ratio of hits to texts; its error by linearisation, users drawn independently.
    """
    _, users = np.unique(owners, return_inverse=True)
    texts = np.bincount(users).astype(np.float64)
    found = np.bincount(users, weights=hits.astype(np.float64))
    value = float(found.sum() / texts.sum())
    u = len(texts)
    if u < 2:
        return Share(value=value, standard_error=None)
    residual = found - value * texts
    variance = u / (u - 1) * float(residual @ residual) / float(texts.sum()) ** 2
    return Share(value=value, standard_error=float(np.sqrt(variance)))


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
    known: dict[tuple[str, ...], npt.NDArray[Any]] = {}

    def vectors(texts: Sequence[str]) -> npt.NDArray[Any]:
        key = tuple(texts)
        if key not in known:
            known[key] = embed(texts)
        return known[key]

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
        fitted.fit(vectors(texts), classes)
        found: IntArray = np.asarray(fitted.predict(vectors(asked)), dtype=np.int64)
        return found

    return learn


def _score(
    found: IntArray, true: IntArray, owners: IntArray, learned: IntArray, names: Sequence[str]
) -> Score:
    hits = found == true
    recalls: dict[str, float | None] = {}
    harmonic = []
    for place, name in enumerate(names):
        of_class, said = true == place, found == place
        both = int((of_class & said).sum())
        recalls[name] = both / int(of_class.sum()) if of_class.any() else None
        if of_class.any() or said.any():
            harmonic.append(2 * both / int(of_class.sum() + said.sum()))
    return Score(
        training_texts=_counts(learned, names),
        accuracy=share(hits, owners),
        macro_f1=float(np.mean(harmonic)),
        recall=recalls,
    )


def _counts(classes: IntArray, names: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(classes, minlength=len(names)).tolist()
    return dict(zip(names, counts, strict=True))
