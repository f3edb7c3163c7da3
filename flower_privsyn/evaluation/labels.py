"""What the labels of a run's synthetic text are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flower_privsyn.data import Cut, Samples
from flower_privsyn.embedding import Embedder
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.evaluation.classification import (
    Classification,
    Classifier,
    LabelledTexts,
    classify,
    logistic_regression,
)
from flower_privsyn.evaluation.encoder import fine_tuned_encoder
from flower_privsyn.files import located, read_json_lines
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.progress import ProgressReporter
from flower_privsyn.run.summary import round_texts


def classify_run(
    run: RunDirectory,
    held_out: Samples,
    *,
    private: Samples | None,
    embedder: Embedder,
    encoder: str | Path | None,
    seed: int,
    progress: ProgressReporter,
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
    classes = Cut.of(run.config).classes
    synthetic = _of_rows(list(read_json_lines(run.synthetic_jsonl)), classes)
    if not classes or synthetic is None:
        if encoder is not None:
            raise ConfigError(f"the run in {run.path} has no classes to train a classifier on")
        return ()
    asked = _of_samples(held_out)
    if asked is None:
        raise DataError("the held-out users have no labelled text")
    learners: list[tuple[str, Classifier]] = [
        (
            f"logistic regression on {run.config['embedding-model']}",
            logistic_regression(embedder.embed),
        )
    ]
    if encoder is not None:
        name = located(str(encoder))
        learned = fine_tuned_encoder(name, num_classes=len(classes), seed=seed)
        learners.append((f"{encoder}, fine-tuned", learned))
    public = _first_candidates(run, classes)
    taking_part = None if private is None else _of_samples(private)
    found = []
    for name, classifier in learners:
        with progress.stage(f"Classify by {name}", total=None):
            found.append(
                classify(
                    classifier,
                    name=name,
                    classes=classes,
                    synthetic=synthetic,
                    held_out=asked,
                    public=public,
                    private=taking_part,
                )
            )
    return tuple(found)


def _of_rows(rows: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> LabelledTexts | None:
    """The rows that have one of some classes; None where none has."""
    places = {name: place for place, name in enumerate(classes)}
    labelled = [row for row in rows if row.get("label") in places]
    if not labelled:
        return None
    return LabelledTexts(
        texts=[str(row["text"]) for row in labelled],
        classes=np.array([places[str(row["label"])] for row in labelled], dtype=np.int64),
    )


def _of_samples(samples: Samples) -> LabelledTexts | None:
    if samples.labels is None or not len(samples):
        return None
    return LabelledTexts(texts=samples.texts, classes=samples.labels, owners=samples.owners)


def _first_candidates(run: RunDirectory, classes: Sequence[str]) -> LabelledTexts | None:
    """What the run began with, which no private text went into."""
    return _of_rows(round_texts(run).get(1, []), classes)
