"""Does a model imitate its examples? Private texts in the prompt against public ones.

    python scripts/public_models/imitation.py --model privsyn-lm --work DIR --private NAME=FILES

Everything here is measured outside any privacy budget, for the model card: three real texts stand
in the expansion prompt, which no run ever does.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from corpus import SAMPLE_TOKENS
from private import PrivateCorpus, training_texts, words_of

from flower_privsyn.data import Cut
from flower_privsyn.embedding import load_embedder
from flower_privsyn.generation import SamplingParameters, TransformersGenerator
from flower_privsyn.generation.prompts import load_prompt

EXAMPLES = 3
RUN_OF_WORDS = 8
WANTED_GAIN, MOST_COPIES = 0.10, 0.02
MEASURES = ("mean_pairwise_cosine", "cosine_to_mean_direction", "nearest_neighbour_cosine")


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What one corpus gives: all texts are of different persons.

    Attributes:
        prompts: (generations) tuples of three texts.
        reference: the sample of the corpus that cosines are taken to.
        others: as many further texts as generations: what a perfect imitator would write.
    """

    prompts: list[tuple[str, ...]]
    reference: list[str]
    others: list[str]


def pieces(text: str, tokenizer: Any) -> list[str]:
    """Cut a document into samples of at most 64 tokens, as a node does."""
    (own,) = Cut(max_tokens=SAMPLE_TOKENS).pieces([text], tokenizer=tokenizer)
    return own


def private_texts(
    corpus: PrivateCorpus, tokenizer: Any, *, generations: int, reference: int, seed: int
) -> Texts:
    """Draw one sample each from as many persons as are needed.

    Raises:
        SystemExit: the corpus has too few persons.
    """
    random = np.random.default_rng(seed)
    owned: dict[str, list[str]] = {}
    for owner, text in corpus.rows():
        owned.setdefault(owner, []).append(text)
    needed = (EXAMPLES + 1) * generations + reference
    owners = sorted(owned)
    if len(owners) < needed:
        raise SystemExit(
            f"private corpus {corpus.name!r} has {len(owners)} persons; {generations} prompts of "
            f"different persons' texts and {reference} texts to compare with take {needed}"
        )
    drawn: list[str] = []
    for owner in random.permutation(owners):
        document = owned[owner][random.integers(len(owned[owner]))]
        found = pieces(document, tokenizer)
        if found:
            drawn.append(found[random.integers(len(found))])
        if len(drawn) == needed:
            break
    else:
        raise SystemExit(f"private corpus {corpus.name!r} has too few persons with any text")
    used = EXAMPLES * generations
    return Texts(
        prompts=[tuple(drawn[i : i + EXAMPLES]) for i in range(0, used, EXAMPLES)],
        reference=drawn[used : used + reference],
        others=drawn[used + reference :],
    )


def public_prompts(
    documents: Sequence[str], tokenizer: Any, *, generations: int, seed: int
) -> list[tuple[str, ...]]:
    """Draw three samples of three different held-out public documents for each prompt."""
    random = np.random.default_rng(seed)
    cut = [found for found in (pieces(text, tokenizer) for text in documents) if found]
    prompts = []
    for _ in range(generations):
        chosen = random.choice(len(cut), size=EXAMPLES, replace=False)
        prompts.append(tuple(cut[i][random.integers(len(cut[i]))] for i in chosen))
    return prompts


# ------------------------------------------------------------------------------------- measuring


def cosines(texts: np.ndarray, reference: np.ndarray) -> dict[str, np.ndarray]:
    """Per text, how near it is to a corpus.

    Args:
        texts: (n, d) unit vectors.
        reference: (r, d) unit vectors of a fixed sample of the corpus.

    Returns:
        (n,) each: the mean cosine to the reference texts; the cosine to the direction of their
        mean (the same divided by that mean's length); the cosine to the nearest of them.
    """
    mean = reference.mean(0)
    pairwise = texts @ mean
    return {
        "mean_pairwise_cosine": pairwise,
        "cosine_to_mean_direction": pairwise / np.linalg.norm(mean),
        "nearest_neighbour_cosine": (texts @ reference.T).max(1),
    }


def gain(ours: np.ndarray, public: np.ndarray) -> dict[str, float]:
    """Difference of two means and its standard error (prompts are independent draws)."""
    error = math.sqrt(ours.var(ddof=1) / len(ours) + public.var(ddof=1) / len(public))
    return {
        "gain": round(float(ours.mean() - public.mean()), 4),
        "standard_error": round(error, 4),
    }


def distinct_2(texts: Sequence[str]) -> float:
    """Different pairs of neighbouring words over all such pairs (Li et al., 2016)."""
    pairs = [pair for text in texts for pair in _runs(words_of(text), 2)]
    return round(len(set(pairs)) / max(len(pairs), 1), 4)


def copying(texts: Sequence[str], prompts: Sequence[Sequence[str]]) -> dict[str, float]:
    """Shares of texts that copy their prompt.

    Returns:
        `whole_copies`: the text as a whole stands in one of its examples, case and punctuation
        aside; `copies_of_8_words`: it shares 8 consecutive words or more with one of them.
    """
    whole = parts = 0
    for text, examples in zip(texts, prompts, strict=True):
        words = words_of(text)
        joined = f" {' '.join(words)} "
        whole += any(joined in f" {' '.join(words_of(example))} " for example in examples)
        held = {run for example in examples for run in _runs(words_of(example), RUN_OF_WORDS)}
        parts += any(run in held for run in _runs(words, RUN_OF_WORDS))
    return {
        "whole_copies": round(whole / len(texts), 4),
        "copies_of_8_words": round(parts / len(texts), 4),
    }


def _runs(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + length]) for i in range(len(words) - length + 1)]


def imitate(
    model: str | Path,
    held_out: Sequence[str],
    corpora: Sequence[PrivateCorpus],
    *,
    generations: int = 500,
    reference: int = 1000,
    seed: int = 0,
    device: str | None = None,
) -> dict[str, Any]:
    """Generate from private and from public examples, and compare both with each corpus.

    Args:
        model: a bundled name or a folder with weights and tokenizer.
        held_out: public documents that the model was not trained on.
        corpora: the private corpora.
        generations: per kind of prompt, >= 2.
        reference: texts of each corpus to compare with, >= 1.
        seed: of the draws.
        device: for the model.

    Returns:
        Settings, figures of the generations from public prompts, and per corpus: the `gain` in
        each measure with its standard error, the means, and how much is copied.
    """
    from transformers import AutoTokenizer

    from flower_privsyn.models import resolve_model

    tokenizer = AutoTokenizer.from_pretrained(resolve_model(model))
    generator = TransformersGenerator(model, device=device)
    embedder = load_embedder()
    prompt = load_prompt("pre-text")

    def write(prompts: Sequence[Sequence[str]]) -> tuple[list[str], dict[str, Any]]:
        sampling = SamplingParameters(seed=seed, stop=(prompt.stop,), max_new_tokens=85)
        rendered = [prompt.render(examples) for examples in prompts]
        answers = generator.generate(rendered, sampling=sampling)
        texts = [prompt.parse(answer) for (answer,) in answers]
        empty = [i for i, text in enumerate(texts) if not text]
        kept = [text for text in texts if text]
        figures = {
            "generations": len(texts),
            "empty": len(empty),
            "mean_words": round(float(np.mean([len(text.split()) for text in kept])), 1),
            "distinct_2": distinct_2(kept),
            "distinct_2_of_examples": distinct_2([examples[0] for examples in prompts]),
            **copying(kept, [row for row, text in zip(prompts, texts, strict=True) if text]),
        }
        return texts, figures

    def embed(texts: Sequence[str]) -> np.ndarray:
        return np.asarray(embedder.embed(list(texts)), dtype=np.float32)

    shared = public_prompts(held_out, tokenizer, generations=generations, seed=seed)
    public, figures = write(shared)
    public_vectors = embed([text for text in public if text])
    example_vectors = embed([examples[0] for examples in shared])
    report: dict[str, Any] = {
        "settings": {
            "generations": generations,
            "reference_texts": reference,
            "examples": EXAMPLES,
            "example_tokens": SAMPLE_TOKENS,
            "max_new_tokens": 85,
            "temperature": 1.0,
            "seed": seed,
            "wanted_gain": WANTED_GAIN,
            "embedder": "all-MiniLM-L6-v2",
        },
        "public_prompts": figures,
    }
    print(f"[imitation] public prompts: {figures}", flush=True)
    for corpus in corpora:
        texts = private_texts(
            corpus, tokenizer, generations=generations, reference=reference, seed=seed
        )
        written, figures = write(texts.prompts)
        kept = [i for i, text in enumerate(written) if text]
        vectors = embed([written[i] for i in kept])
        reference_vectors = embed(texts.reference)
        scores = {
            "private_prompts": cosines(vectors, reference_vectors),
            "public_prompts": cosines(public_vectors, reference_vectors),
            "other_private_texts": cosines(embed(texts.others), reference_vectors),
            "public_texts": cosines(example_vectors, reference_vectors),
        }
        # Does a text follow its own examples, or only their kind?
        examples = np.stack([embed(texts.prompts[i]).mean(0) for i in kept])
        own = (vectors * examples).sum(1)
        strange = (vectors * np.roll(examples, 1, axis=0)).sum(1)
        gains = {
            measure: gain(scores["private_prompts"][measure], scores["public_prompts"][measure])
            for measure in MEASURES
        }
        gains["own_examples_over_other_examples"] = gain(own, strange)
        report[corpus.name] = {
            "gains": gains,
            "measures_that_gain_enough": [m for m in MEASURES if gains[m]["gain"] >= WANTED_GAIN],
            "copies_below_2_percent": figures["whole_copies"] < MOST_COPIES,
            "means": {
                kind: {measure: round(float(found[measure].mean()), 4) for measure in MEASURES}
                for kind, found in scores.items()
            },
            "private_prompts": figures,
            "distinct_2_of_other_private_texts": distinct_2(texts.others),
        }
        print(f"[imitation] {corpus.name}: {json.dumps(report[corpus.name])}", flush=True)
    return report


def main() -> None:
    """Measure one model and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="bundled name or folder")
    parser.add_argument("--work", type=Path, required=True, help="folder of the prepared corpus")
    parser.add_argument("--private", nargs="+", required=True, help="NAME=FILES")
    parser.add_argument("--generations", type=int, default=500)
    parser.add_argument("--reference", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report = imitate(
        options.model,
        list(training_texts(options.work, "held_out")),
        [PrivateCorpus.parse(argument) for argument in options.private],
        generations=options.generations,
        reference=options.reference,
        seed=options.seed,
    )
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
