"""Choose the settings of the joint sketch on public text alone: one kind of it plays the users.

    python scripts/experiments/ask_once_tuning.py --corpus DIR --results tuning.jsonl [--kinds ...]
                                                  [--users 1500] [--epsilon 1] [--seeds 1]

`DIR` holds `public-*.jsonl.gz` (scripts/sample_data/README.md): documents with a `group`. Users are
texts of one kind, one each, and the next ones are held out:

- `docstrings`: documentation of the Python packages that are installed here. No bundled model has
  read any, so they are to a student what private text is: something new;
- a file of JSON lines with a `text`, for another kind that is new to the student;
- a group of the corpus, such as `usgov`; all other groups are the public text. The bundled student
  has read it, and a bias can teach it little: good for what chooses rows, bad for the weights.

A release is made with the noise of epsilon at delta = 1 / (n ln n), read, and used as
`flower_privsyn.strategies.joint_sketch` uses it. Starting from the defaults one setting is changed
at a time; every student is measured on the held-out documents without a bias, and the weights of
the bias are scored on all of a grid at once. No private text is read.

A cell that is in the results is not run again. The table is printed at the end.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import gzip
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np

from flower_privsyn.data import Cut
from flower_privsyn.data.cut import token_ids
from flower_privsyn.data.public_rows import PublicRows
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.evaluation.language_model import evaluate_language_model
from flower_privsyn.files import append_json_lines, read_json_lines
from flower_privsyn.privacy import FullParticipation, calibrate_noise_multiplier
from flower_privsyn.private_path.release import SumOfUsers
from flower_privsyn.queries import Broadcast, Cohort, frequent_bigrams
from flower_privsyn.strategies import JointSketchConfig
from flower_privsyn.strategies.parts.token_sketch import (
    PUBLIC_TOKENS,
    TokenSketch,
    what_is_lacking,
)
from flower_privsyn.training.bias import BiasScores, score_bias
from flower_privsyn.training.causal import fine_tune
from flower_privsyn.training.selection import Rows

#: What is changed, one at a time, from the defaults.
CHANGES: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"num_bigrams": 0, "bigram_share": 0.0},
    {"bigram_share": 0.33},
    {"num_bigrams": 65_536, "bigram_buckets": 16_384},
    {"num_bigrams": 150_000},
    {"student_learning_rate": 5e-4},
    {"student_learning_rate": 2e-3},
    {"max_occurrences": 0},
    {"max_occurrences": 1},
    {"surprisal_power": 0.0},
    {"surprisal_power": 2.0},
    {"least_selected": 1000},
    {"least_selected": 4000},
    {"least_selected": 8000},
    {"teacher_weight": 0.0},
    {"teacher_weight": 0.8},
    {"selection": "resample"},
)

#: Weights of the bias that are scored.
TOKEN_WEIGHTS: Final = (0.0, 0.4, 0.6, 0.8, 1.0, 1.2)
BIGRAM_WEIGHTS: Final = (0.0, 0.4, 0.8, 1.0)

#: Words of a document that are kept, words of a docstring, and documents that are held out.
_WORDS, _LEAST_WORDS, _HELD_OUT = 250, 80, 150


def documents(corpus: Path) -> Iterator[dict[str, str]]:
    """The public documents."""
    for file in sorted(corpus.glob("public-*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def docstrings() -> list[str]:
    """What the installed packages say of their functions and classes: prose, no examples."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        for file in distribution.files or ():
            if file.suffix != ".py" or {"test", "tests"} & set(file.parts):
                continue
            try:
                tree = ast.parse(Path(str(file.locate())).read_text(encoding="utf-8"))
            except (OSError, ValueError, SyntaxError):
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef | ast.ClassDef):
                    lines = (ast.get_docstring(node) or "").splitlines()
                    prose = (line for line in lines if not line.strip().startswith((">>>", "..")))
                    words = " ".join(prose).split()
                    if len(words) >= _LEAST_WORDS:
                        # The beginning decides: much of it is said of many functions.
                        found.setdefault(" ".join(words[:20]), " ".join(words))
    texts = sorted(found.values())
    np.random.default_rng(0).shuffle(texts)
    return texts


def kind_of_text(corpus: Path, kind: str) -> tuple[list[str], list[str]]:
    """Texts of one kind, and the public text that is left."""
    if kind == "docstrings":
        return docstrings(), [document["text"] for document in documents(corpus)]
    if Path(kind).is_file():
        own = [str(record["text"]) for record in read_json_lines(Path(kind))]
        return own, [document["text"] for document in documents(corpus)]
    own, others = [], []
    for document in documents(corpus):
        (own if document["group"] == kind else others).append(document["text"])
    return own, others


def noise_of(users: int, epsilon: float) -> float:
    """Standard deviation of the noise of one release of all users, at delta = 1 / (n ln n)."""
    return calibrate_noise_multiplier(
        epsilon=epsilon,
        delta=1 / (users * math.log(users)),
        rounds=1,
        sampling=FullParticipation(users),
    )


def released(
    config: JointSketchConfig, broadcast: Broadcast, cohort: Cohort, *, noise: float, seed: int
) -> SumOfUsers:
    """The noisy sum of what users answer, how many they are, and the noise in it."""
    total = config.sketch_question().answer(cohort, broadcast)
    total = total + np.random.default_rng(seed).normal(0.0, noise, len(total))
    return SumOfUsers(total, float(cohort.num_users), noise)


class Split:
    """One kind of text as users and held-out documents, other text as public text.

    Args:
        corpus: folder.
        kind: of text, the users'.
        users: how many.
        most_public: public documents.
        work: folder for rows and models.
    """

    def __init__(
        self, corpus: Path, kind: str, *, users: int, most_public: int, work: Path
    ) -> None:
        texts, others = kind_of_text(corpus, kind)
        own = [" ".join(text.split()[:_WORDS]) for text in texts]
        if len(own) < users + _HELD_OUT:
            raise SystemExit(f"{kind} has {len(own)} documents: ask for fewer --users")
        self.users, self.held_out = own[:users], own[users : users + _HELD_OUT]
        self.work = work
        source = work / "public.jsonl"
        source.unlink(missing_ok=True)
        append_json_lines(source, [{"text": text} for text in others[:most_public]])
        self.tokenizer, _ = load_tokenizer("privsyn-tiny")
        self.public = PublicRows.of(
            str(source), tokenizer=self.tokenizer, max_tokens=64, setting="corpus"
        )
        samples = Cut(max_tokens=64).pieces(self.users, tokenizer=self.tokenizer)
        self._records, self._owners = [], []
        for user, pieces in enumerate(samples):
            for row in token_ids(self.tokenizer, pieces):
                self._records.append(np.array(row, dtype=np.int64))
                self._owners.append(user)
        self.cohort = self.first(users)

    def first(self, users: int) -> Cohort:
        """The tokens of the first users."""
        end = bisect.bisect_left(self._owners, users)
        return Cohort.of(self._records[:end], self._owners[:end], users)

    def broadcast(self, config: JointSketchConfig) -> Broadcast:
        """What is asked of them with."""
        size, most = self.public.vocabulary, config.num_bigrams
        rows = map(self.public.row, range(len(self.public)))
        bigrams = frequent_bigrams(rows, vocabulary=size, most=most) if most else None
        return config.sketch_question().broadcast(size, bigrams)

    def asked(
        self, config: JointSketchConfig, *, epsilon: float
    ) -> tuple[Broadcast, list[SumOfUsers]]:
        """The question and the release of the users."""
        broadcast = self.broadcast(config)
        noise = noise_of(self.cohort.num_users, epsilon)
        return broadcast, [released(config, broadcast, self.cohort, noise=noise, seed=config.seed)]

    def read(
        self, config: JointSketchConfig, broadcast: Broadcast, releases: list[SumOfUsers]
    ) -> TokenSketch:
        """What releases say, against the public text."""
        sketch = TokenSketch.of(
            config.sketch_question(),
            broadcast,
            releases,
            documents=list(self.public.documents(most_tokens=PUBLIC_TOKENS)),
        )
        assert sketch is not None
        return sketch

    def measure(self, config: JointSketchConfig, *, epsilon: float) -> dict[str, Any]:
        """A student of one setting, and the weights of its bias."""
        broadcast, releases = self.asked(config, epsilon=epsilon)
        sketch = self.read(config, broadcast, releases)
        chunks = (Rows(tokens=chunk) for chunk in self.public.chunks())
        chosen = config.choose(chunks, sketch, num_rows=len(self.public))
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            output = Path(folder) / "student"
            fine_tune(
                config.model,
                [self.public.text_of(int(index)) for index in chosen.indices],
                settings=config.student_training(),
                output=output,
                seed=config.seed,
                distillation=config.distillation(),
            )
            found = evaluate_language_model(output, self.held_out, resamples=1)
            lacking = what_is_lacking(
                config.sketch_question(),
                broadcast,
                releases,
                model=output,
                chosen=chosen.tokens,
                sketch=sketch,
                seed=config.seed,
            )
            scores = score_bias(
                output,
                lacking,
                self.held_out,
                token_weights=TOKEN_WEIGHTS,
                bigram_weights=BIGRAM_WEIGHTS,
            )
        return {
            "accuracy": found.next_token_accuracy.value,
            "biased": _named(scores),
        }


def _named(scores: BiasScores) -> dict[str, float]:
    """Bits per byte by the weights "token/bigram"."""
    return {
        f"{token:g}/{bigram:g}": float(scores.bits_per_byte[place, other])
        for place, token in enumerate(scores.token_weights)
        for other, bigram in enumerate(scores.bigram_weights)
    }


def table(results: Path) -> None:
    """Print the means over groups and seeds, and the best weights of a bias."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in read_json_lines(results):
        found.setdefault(json.dumps(record["change"]), []).append(dict(record))
    print("change | cells | accuracy, % | bits per byte | with the best bias | its weights")
    for change, records in found.items():
        shared = set.intersection(*(set(record["biased"]) for record in records))
        means = {w: float(np.mean([r["biased"][w] for r in records])) for w in sorted(shared)}
        best = min(means, key=lambda weights: means[weights])
        accuracy = 100 * float(np.mean([record["accuracy"] for record in records]))
        print(
            f"{change} | {len(records)} | {accuracy:.2f} | {means['0/0']:.4f} | "
            f"{means[best]:.4f} | {best}"
        )


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", default=["docstrings"])
    parser.add_argument("--users", type=int, default=1500)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--most-public", type=int, default=8000)
    arguments = parser.parse_args()
    known = {
        json.dumps([r["kind"], r["users"], r["epsilon"], r["seed"], r["change"]])
        for r in read_json_lines(arguments.results)
    }
    # The count is what is tuned: the share of a corpus must not stand above it.
    base = JointSketchConfig(epsilon=arguments.epsilon, select_share=1e-9)
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            split = None
            for seed in range(arguments.seeds):
                for change in CHANGES:
                    cell = [kind, arguments.users, arguments.epsilon, seed, dict(change)]
                    if json.dumps(cell) in known:
                        continue
                    split = split or Split(
                        arguments.corpus,
                        kind,
                        users=arguments.users,
                        most_public=arguments.most_public,
                        work=Path(folder),
                    )
                    measured = split.measure(
                        replace(base, seed=seed, **change), epsilon=arguments.epsilon
                    )
                    keys = ("kind", "users", "epsilon", "seed", "change")
                    append_json_lines(
                        arguments.results, [{**dict(zip(keys, cell, strict=True)), **measured}]
                    )
                    print(kind, seed, json.dumps(change), f"{100 * measured['accuracy']:.2f} %")
    table(arguments.results)


if __name__ == "__main__":
    main()
