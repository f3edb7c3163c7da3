r"""Why text that is nearer to the users' by embeddings did not make a better student.

    privsyn compare --methods kernel-sketch --set synthetic-samples=7200 ... --output pool
    python -m scripts.experiments.nearer_or_useful pool --cell kernel-sketch-eps-1-seed-0 \
        --results FILE

A comparison has written many more texts than a student reads. As many are kept by different rules,
each of which changes one thing that might have been the reason: how near the texts are by their
embeddings, how likely their words are among the users', how likely they are to a language model,
how long they are. The users' own text, and what is left of it without the order of its words, stand
beside them. If nearness were what a student lacks, the nearest should win; if fluency, the
likeliest; and so on.

All figures are computed from private text without noise: for research.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flower_privsyn.data import Cut, Users, load_users, public_texts
from flower_privsyn.embedding import load_embedder
from flower_privsyn.evaluation.distribution import mean_discrepancy
from flower_privsyn.evaluation.language_model import evaluate_language_model
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.files import read_json_lines
from flower_privsyn.models.pretrained import load_tokenizer
from flower_privsyn.training.causal import CausalTraining, fine_tune
from flower_privsyn.training.selection import LogRatioScorer, Rows

STUDENT: Final = "privsyn-tiny"
CRITIC: Final = "privsyn-lm"
TOKENS: Final = 64

#: What a log-ratio of counts is smoothed by, in occurrences.
_PRIOR: Final = 2.0

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Texts to choose from, and what is known of each.

    Attributes:
        texts: (n,).
        vectors: (n, d) their embeddings.
        rows: (n,) their tokens.
        likelihood: (n,) mean log-probability of a token by a public model.
        words: (n,) mean log-ratio of their tokens, users' text over public.
    """

    texts: list[str]
    vectors: npt.NDArray[np.float32]
    rows: list[npt.NDArray[np.int64]]
    likelihood: Float64Array
    words: Float64Array


def counts(rows: Sequence[npt.NDArray[np.int64]], size: int) -> Float64Array:
    """(size,) how often each token stands in some rows."""
    return np.bincount(np.concatenate(rows), minlength=size).astype(np.float64)


def log_ratios(private: Float64Array, public: Float64Array) -> Float64Array:
    """(V,) log of how much oftener users write each token, of smoothed counts."""
    prior = public / public.sum()
    smoothed = (private + _PRIOR * len(prior) * prior) / (private.sum() + _PRIOR * len(prior))
    found: Float64Array = np.log(np.maximum(smoothed, 1e-12)) - np.log(np.maximum(prior, 1e-12))
    return found


def divergence(texts: Float64Array, target: Float64Array) -> float:
    """Kullback-Leibler divergence of smoothed token frequencies, target from texts, in nats."""
    p, q = ((one + 0.5) / (one + 0.5).sum() for one in (target, texts))
    return float((p * np.log(p / q)).sum())


def herd(
    vectors: npt.NDArray[np.float32], target: npt.NDArray[np.float32], wanted: int
) -> list[int]:
    """Indices of texts whose mean Gaussian kernel comes as near to that of a target as can be.

    Kernel herding (Chen, Welling and Smola, UAI 2010): one after another, each the text that makes
    up most of what the mean of those before it lacks.
    """
    scale = 1.0 / np.median(2 - 2 * target[:400] @ target[400:800].T)

    def kernel(others: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = np.exp(scale * (vectors @ others.T - 1))
        return found

    towards = np.mean([kernel(part).mean(axis=1) for part in np.array_split(target, 8)], axis=0)
    away = np.zeros(len(vectors))
    chosen: list[int] = []
    taken = np.zeros(len(vectors), dtype=np.bool_)
    for number in range(wanted):
        score = np.where(taken, -np.inf, towards - away / (number + 1))
        best = int(score.argmax())
        chosen.append(best)
        taken[best] = True
        away += kernel(vectors[best : best + 1])[:, 0]
    return chosen


def shuffled(text: str, random: np.random.Generator) -> str:
    """The words of a text in any order."""
    words = text.split()
    return " ".join(words[place] for place in random.permutation(len(words)))


Rule = Callable[[Pool, int, np.random.Generator], list[int]]


def _best(values: Float64Array, wanted: int) -> list[int]:
    return np.argsort(-values, kind="stable")[:wanted].tolist()


#: What is kept of the pool: from it, how many, and chance, to places in it.
RULES: Final[dict[str, Rule]] = {
    "drawn": lambda pool, wanted, random: random.permutation(len(pool.texts))[:wanted].tolist(),
    "likeliest words": lambda pool, wanted, _: _best(pool.words, wanted),
    "most fluent": lambda pool, wanted, _: _best(pool.likelihood, wanted),
    "longest": lambda pool, wanted, _: _best(
        np.array([len(row) for row in pool.rows], dtype=np.float64), wanted
    ),
}


def pool_of(texts: Sequence[str], *, embedder: Any, private: Users, public: Sequence[str]) -> Pool:
    """What the rules look at.

    Args:
        texts: written by a comparison's cell.
        embedder: of the figures.
        private: users who took part.
        public: text to tell theirs from.
    """
    from flower_privsyn.strategies.parts.likelihood import Likelihood

    rows, own, others = (encoded(some) for some in (texts, private.texts, public))
    size = len(load_tokenizer(STUDENT))
    ratios = log_ratios(counts(own, size), counts(others, size))
    return Pool(
        texts=list(texts),
        vectors=embedder.embed(list(texts)),
        rows=rows,
        likelihood=np.asarray(Likelihood(CRITIC).per_token(list(texts)), dtype=np.float64),
        words=LogRatioScorer(tokens=ratios)(Rows(tokens=rows)),
    )


def encoded(texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
    """The student's tokens of each text."""
    found = load_tokenizer(STUDENT)(list(texts), add_special_tokens=False)["input_ids"]
    return [np.array(row, dtype=np.int64) for row in found]


def corpora(
    pool: Pool, private: Sequence[str], target: npt.NDArray[np.float32], *, texts: int, seed: int
) -> dict[str, list[str]]:
    """What students learn from, by what was changed; as many texts each.

    Args:
        pool: what was written.
        private: samples of the users who took part.
        target: (m, d) embeddings of some of them.
        texts: of each corpus.
        seed: of what is drawn.
    """
    random = np.random.default_rng(seed)
    own = [private[place] for place in random.permutation(len(private))[:texts]]
    found = {
        name: [pool.texts[place] for place in rule(pool, texts, random)]
        for name, rule in RULES.items()
    }
    nearest = herd(pool.vectors, target, texts)
    return {
        **found,
        "nearest by embeddings": [pool.texts[place] for place in nearest],
        "users' own": own,
        "users' own, words in any order": [shuffled(text, random) for text in own],
    }


def measured(
    texts: Sequence[str],
    held_out: Any,
    vectors: npt.NDArray[np.float32],
    *,
    embedder: Any,
    steps: int,
    rate: float,
    seed: int,
) -> dict[str, Any]:
    """How near a corpus is by several measures, and what a student makes of it.

    Args:
        texts: the corpus.
        held_out: samples of users who took no part.
        vectors: (m, d) embeddings of some of them.
        embedder: of the same model.
        steps: of the student's training.
        rate: of the same.
        seed: of the same.
    """
    from flower_privsyn.strategies.parts.likelihood import Likelihood

    rows, others = encoded(texts), encoded(held_out.texts)
    size = len(load_tokenizer(STUDENT))
    own = embedder.embed(list(texts[:1000]))
    with tempfile.TemporaryDirectory() as folder:
        student = Path(folder) / "student"
        fine_tune(
            STUDENT,
            texts,
            settings=CausalTraining(max_steps=steps, learning_rate=rate),
            output=student,
            seed=seed,
        )
        quality = evaluate_language_model(
            str(student), held_out.texts, owners=held_out.owners, max_tokens=TOKENS
        )
    return {
        "mmd": mean_discrepancy(own, vectors).squared,
        "words": divergence(counts(rows, size), counts(others, size)),
        "likelihood": float(np.mean(Likelihood(CRITIC).per_token(list(texts)))),
        "tokens": float(np.mean([len(row) for row in rows])),
        "accuracy": quality.next_token_accuracy.value,
        "bits_per_byte": None if quality.bits_per_byte is None else quality.bits_per_byte.value,
    }


def show(file: Path) -> None:
    """Print a table of means over seeds, and how each measure goes with the accuracy."""
    results = list(read_json_lines(file))
    names = list(dict.fromkeys(result["corpus"] for result in results))
    keys = ("mmd", "words", "likelihood", "tokens", "accuracy", "bits_per_byte")
    print(f"> {STAMP}\n")
    print("| corpus | seeds | MMD² | words, nats | log p a token | tokens | accuracy, % | bits |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    means = []
    for name in names:
        own = [result for result in results if result["corpus"] == name]
        mean = {key: float(np.mean([one[key] for one in own])) for key in keys}
        means.append(mean)
        error = np.std([one["accuracy"] for one in own], ddof=1) if len(own) > 1 else np.nan
        print(
            f"| {name} | {len(own)} | {mean['mmd']:.4f} | {mean['words']:.3f} | "
            f"{mean['likelihood']:.2f} | {mean['tokens']:.0f} | {100 * mean['accuracy']:.2f} ± "
            f"{100 * error / np.sqrt(len(own)):.2f} | {mean['bits_per_byte']:.4f} |"
        )
    accuracies = np.array([mean["accuracy"] for mean in means])
    for key in keys[:4]:
        ranks = [np.argsort(np.argsort(v)) for v in ([m[key] for m in means], accuracies)]
        print(f"rank correlation of {key} with accuracy: {np.corrcoef(*ranks)[0, 1]:+.2f}")


def main(words: Sequence[str] | None = None) -> int:
    """Measure what was not measured yet, and print all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("comparison", type=Path, help="folder of a comparison")
    parser.add_argument("--cell", required=True, help="folder of the cell that wrote the pool")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=1200)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(words)
    data, cell = options.comparison / "data", options.comparison / "cells" / options.cell
    embedder, cut = load_embedder("all-MiniLM-L6-v2"), Cut(max_tokens=TOKENS)
    groups = [load_users(data / f"{name}.jsonl") for name in ("private", "held_out")]
    private, held_out = (
        cut.samples(cut.documents(users), tokenizer=embedder.tokenizer) for users in groups
    )
    written = [str(row["text"]) for row in read_json_lines(cell / "run" / "synthetic.jsonl")]
    public = public_texts(tokenizer=embedder.tokenizer, max_tokens=TOKENS)
    pool = pool_of(written, embedder=embedder, private=groups[0], public=public)
    every = np.random.default_rng(0)
    target = embedder.embed([private.texts[i] for i in every.permutation(len(private))[:2000]])
    vectors = embedder.embed([held_out.texts[i] for i in every.permutation(len(held_out))[:1000]])
    known = {(row["corpus"], row["seed"]) for row in read_json_lines(options.results)}
    for seed in range(options.seeds):
        found = corpora(pool, private.texts, target, texts=options.texts, seed=seed)
        for name, texts in found.items():
            if (name, seed) in known:
                continue
            record = measured(
                texts,
                held_out,
                vectors,
                embedder=embedder,
                steps=options.steps,
                rate=options.rate,
                seed=seed,
            )
            with options.results.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"corpus": name, "seed": seed, **record}) + "\n")
    show(options.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
