"""What labels are worth: a classifier trained on labelled synthetic text, tested on private text.

Papers:
    Xie et al., "Differentially Private Synthetic Data via Foundation Model APIs 2: Text" (Aug-PE,
    ICML 2024), whose measure is the accuracy of RoBERTa-base so trained.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flower_privsyn.data import Chunking, Samples
from flower_privsyn.embedding import Embedder
from flower_privsyn.errors import ConfigError, DataError, MissingExtraError, ModelError
from flower_privsyn.evaluation.distribution import library
from flower_privsyn.evaluation.language_model import Interval, resampled
from flower_privsyn.evaluation.result import NotPrivate
from flower_privsyn.files import located, read_json_lines
from flower_privsyn.models.library import quiet_transformers, shorten
from flower_privsyn.models.pretrained import context_of, model_folder
from flower_privsyn.progress import Progress
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import round_texts

IntArray = npt.NDArray[np.int64]

#: From texts and classes to learn from, and texts, to the classes of these.
Classifier = Callable[[Sequence[str], IntArray, Sequence[str]], IntArray]

#: Fewest texts of a class with which the strength of the penalty is chosen by cross-validation.
_FOLDS: Final = 5

#: How an encoder is fine-tuned: Xie et al., authors' code for RoBERTa-base; AdamW, falling to 0.
_ENCODER: Final[Mapping[str, Any]] = {
    "num_train_epochs": 5,
    "learning_rate": 3e-5,
    "per_device_train_batch_size": 32,
}
_MAX_TOKENS: Final = 512


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
    embedder: Embedder,
    encoder: str | Path | None,
    seed: int,
    progress: Progress,
) -> tuple[Classification, ...]:
    """Train classifiers on a run's labelled text and test them on held-out text.

    Args:
        run: the run.
        held_out: samples of users who took no part, cut as the run cuts.
        private: the same of users who took part, for the ceiling; None to leave that out.
        embedder: for logistic regression.
        encoder: model to fine-tune as well; None for none.
        seed: of the fine-tuning.
        progress: where steps are shown.

    Returns:
        A record for each classifier; none for a run without classes.

    Raises:
        ConfigError: An encoder is named, and the run's text has no classes.
        DataError: Nothing is labelled on a side.
    """
    classes = Chunking.of(run.config).classes
    synthetic = _of_rows(read_json_lines(run.synthetic_jsonl), classes)
    if not classes or synthetic is None:
        if encoder is not None:
            raise ConfigError(f"the run in {run.path} has no classes to train a classifier on")
        return ()
    learners: dict[str, Classifier] = {
        f"logistic regression on {run.config['embedding-model']}": logistic_regression(
            embedder.embed
        )
    }
    if encoder is not None:
        learners[f"{encoder}, fine-tuned"] = fine_tuned_encoder(
            located(str(encoder)), num_classes=len(classes), seed=seed
        )
    # What the run began with, which no private text went into.
    public = _of_rows(round_texts(run).get(1, []), classes)
    found = []
    for name, classifier in learners.items():
        with progress.stage(f"Classify by {name}", total=None):
            found.append(
                classify(
                    classifier,
                    name=name,
                    classes=classes,
                    synthetic=synthetic,
                    held_out=held_out,
                    public=public,
                    private=private,
                )
            )
    return tuple(found)


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


def classify(
    classifier: Classifier,
    *,
    name: str,
    classes: Sequence[str],
    synthetic: Samples,
    held_out: Samples,
    public: Samples | None = None,
    private: Samples | None = None,
) -> Classification:
    """Train classifiers and test them on held-out text.

    Args:
        classifier: what learns and answers.
        name: what it is called.
        classes: names of the classes.
        synthetic: the run's text, labelled as all of them.
        held_out: of users who took no part.
        public: text at epsilon 0.
        private: of users who took part.

    Raises:
        DataError: There is no labelled held-out text.
    """
    true, owners = held_out.labels, held_out.owners
    if true is None or not len(held_out):
        raise DataError("the held-out users have no labelled text")

    def score(training: Samples | None) -> Score | None:
        if training is None or training.labels is None or not len(training):
            return None
        found = classifier(training.texts, training.labels, held_out.texts)
        harmonic = []
        for place in np.union1d(true, found).tolist():
            of_class, said = true == place, found == place
            harmonic.append(2 * (of_class & said).sum() / (of_class.sum() + said.sum()))
        return Score(
            training_texts=len(training),
            accuracy=share(found == true, owners),
            macro_f1=float(np.mean(harmonic)),
        )

    learned = score(synthetic)
    assert learned is not None
    return Classification(
        classifier=name,
        classes=tuple(classes),
        test_texts=len(held_out),
        test_users=len(set(owners.tolist())),
        synthetic=learned,
        majority=share(true == np.bincount(true).argmax(), owners),
        public=score(public),
        private=score(private),
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


def fine_tuned_encoder(
    model: str | Path, *, num_classes: int, seed: int = 0, **training: Any
) -> Classifier:
    """A classifier that fine-tunes an encoder anew for whatever it is to learn from.

    Args:
        model: a bundled short name, a folder or a hub name of a model that Transformers can put a
            head of classes on.
        num_classes: how many.
        seed: of the head and the order of texts.
        training: in place of the paper's values, in the words of `transformers.TrainingArguments`.

    Raises:
        ModelError: The model cannot be found, or no head of classes fits it.
        MissingExtraError: Transformers or accelerate is not installed.
    """
    try:
        transformers: Any = import_module("transformers")
        import_module("accelerate")
    except ImportError as error:
        raise MissingExtraError(
            "fine-tuning an encoder needs Transformers and accelerate: "
            "pip install 'flower-privsyn[evaluation]'"
        ) from error
    folder = model_folder(model)
    offline: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}

    def learn(texts: Sequence[str], classes: IntArray, asked: Sequence[str]) -> IntArray:
        transformers.set_seed(seed)
        try:
            with quiet_transformers():
                tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **offline)
                network = transformers.AutoModelForSequenceClassification.from_pretrained(
                    folder, num_labels=num_classes, weights_only=True, **offline
                ).float()
        except Exception as error:
            raise ModelError(
                f"model {str(model)!r} cannot be loaded as a classifier of texts: {shorten(error)}"
            ) from error
        if network.config.pad_token_id is None:
            tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
            network.config.pad_token_id = tokenizer.pad_token_id
        # Some models keep two positions for padding.
        longest = max(4, min(_MAX_TOKENS, (context_of(network) or _MAX_TOKENS + 2) - 2))

        def rows(given: Sequence[str], labels: IntArray) -> list[dict[str, Any]]:
            told = tokenizer(list(given), truncation=True, max_length=longest)["input_ids"]
            return [
                {"input_ids": ids, "label": label}
                for ids, label in zip(told, labels.tolist(), strict=True)
            ]

        with tempfile.TemporaryDirectory() as scratch, quiet_transformers():
            trainer = transformers.Trainer(
                network,
                transformers.TrainingArguments(
                    scratch,
                    seed=seed,
                    report_to="none",
                    save_strategy="no",
                    disable_tqdm=True,
                    **{**_ENCODER, **training},
                ),
                train_dataset=rows(texts, classes),
                processing_class=tokenizer,
            )
            trainer.train()
            logits = trainer.predict(rows(asked, np.zeros(len(asked), dtype=np.int64))).predictions
        return np.asarray(logits.argmax(axis=-1), dtype=np.int64)

    return learn
