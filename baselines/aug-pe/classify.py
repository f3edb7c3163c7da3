"""What labels are worth by the paper's measure: the accuracy of an encoder fine-tuned on them.

    python classify.py RUN --held-out held_out.jsonl --model roberta-base

The encoder learns from the labelled synthetic text of a run alone and is tested on labelled text of
users who took no part. The figures are computed from private text without noise: no epsilon covers
them. `privsyn evaluate` says the same by logistic regression.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from flower_privsyn.data import Chunking
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import ConfigError, ModelError
from flower_privsyn.evaluation.classification import Classifier, IntArray, classify_run
from flower_privsyn.evaluation.run import held_out_samples, own_users
from flower_privsyn.models.library import quiet_transformers, shorten
from flower_privsyn.models.pretrained import context_of, model_folder
from flower_privsyn.progress import Progress
from flower_privsyn.run import RunDirectory

#: The authors' code for RoBERTa-base; AdamW, falling to 0.
TRAINING: Mapping[str, Any] = {
    "num_train_epochs": 5,
    "learning_rate": 3e-5,
    "per_device_train_batch_size": 32,
}
MAX_TOKENS = 512


def fine_tuned_encoder(
    model: str | Path, *, num_classes: int, seed: int = 0, **training: Any
) -> Classifier:
    """A classifier that fine-tunes an encoder anew for whatever it is to learn from.

    Args:
        model: a bundled short name, a folder or a hub name of a model that Transformers can put a
            head of classes on.
        num_classes: how many.
        seed: of the head and the order of texts.
        training: in place of `TRAINING`, in the words of `transformers.TrainingArguments`.

    Raises:
        ModelError: The model cannot be found, or no head of classes fits it.
    """
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
        longest = max(4, min(MAX_TOKENS, (context_of(network) or MAX_TOKENS + 2) - 2))

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
                    **{**TRAINING, **training},
                ),
                train_dataset=rows(texts, classes),
                processing_class=tokenizer,
            )
            trainer.train()
            logits = trainer.predict(rows(asked, np.zeros(len(asked), dtype=np.int64))).predictions
        return np.asarray(logits.argmax(axis=-1), dtype=np.int64)

    return learn


def main(arguments: list[str] | None = None) -> None:
    """Fine-tune on a run's text and print the record as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", metavar="RUN", help="the run directory")
    parser.add_argument("--held-out", required=True, metavar="FILE", help="users who took no part")
    parser.add_argument("--model", default="roberta-base", help="the encoder")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    run = RunDirectory.open(given.run)
    users = own_users(run.config, given.held_out)
    tokenizer, _ = load_tokenizer(str(run.config["embedding-model"]))
    classes = Chunking.of(run.config).classes
    found = classify_run(
        run,
        held_out_samples(run.config, users, tokenizer=tokenizer),
        private=None,
        classifier=fine_tuned_encoder(given.model, num_classes=len(classes), seed=given.seed),
        name=f"{given.model}, fine-tuned",
        progress=Progress(),
    )
    if found is None:
        raise ConfigError(f"the text of the run in {run.path} has no classes")
    print(json.dumps(found.to_dict(), ensure_ascii=False, indent=2))


if __name__ == "__main__":
    main()
