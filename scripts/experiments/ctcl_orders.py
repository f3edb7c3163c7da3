"""The orders that CTCL must show: C1 to C4 of docs/ctcl.md, on people's text.

    python -m scripts.experiments.ctcl_orders teach --corpus DIR --generators generators
    privsyn compare --config ctcl --data FILE... --epsilon 1 ...
    python -m scripts.experiments.ctcl_orders generators FOLDER
    python -m scripts.experiments.ctcl_orders nearer FOLDER --data FILE... --output nearer.npz

C1: at epsilon 1 CTCL is ahead of Aug-PE, and that of a vanilla generator, which is no worse than
    training the downstream model itself.
C2: from epsilon 1 to infinity CTCL gains at least 5 times what Aug-PE gains.
C3: keywords, then pretraining on public text after keywords, each lower the perplexity of the
    generator at epsilon 1.
C4: Aug-PE leads at a few thousand texts, CTCL beyond ten thousand.

`teach` makes the two generators of C3: the same public passages, read after the keywords of their
topics or alone. `generators` reads the generators of a comparison for C3. `nearer` asks whether the
topics are to blame: it makes others of the text of people who are not in the comparison, which no
deployment has, and reads the held-out text after their keywords. All figures are of held-out text
without noise: for research.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.comparison.people import joined
from flower_privsyn.data import Cut, Users, load_users
from flower_privsyn.embedding import Embedder, load_embedder
from flower_privsyn.evaluation.sealed import sealed
from flower_privsyn.generation.topic_model import TopicModel
from flower_privsyn.generation.topics import load_topics, probe_of
from flower_privsyn.models.pretrained import load_pretrained

#: Of the passages that are read, and of the training on them.
SEED = 20240603


# ------------------------------------------------------------------------------------------ teach


def teach(options: argparse.Namespace) -> None:
    """Make the two generators, from the same model, passages and number of steps."""
    from flower_privsyn.training.causal import fine_tune
    from flower_privsyn.training.causal_settings import CausalTraining

    sys.path.insert(0, str(Path(__file__).parents[1] / "public_models"))
    from topics import passages  # type: ignore[import-not-found]

    embedder = load_embedder("all-MiniLM-L6-v2")
    every = passages(options.corpus, held_out=False, tokenizer=embedder.tokenizer, seed=SEED)
    chosen = np.random.default_rng(SEED).permutation(len(every))[: 32 * options.steps]
    texts = [every[place] for place in chosen]
    topics = load_topics(options.topics).at(64)
    conditions, of_texts = topics.conditions(), topics.nearest(embedder.embed(texts))
    after = [conditions[topic] + text for topic, text in zip(of_texts.tolist(), texts, strict=True)]
    settings = CausalTraining(max_steps=options.steps, max_tokens=160, long_texts="cut")
    for name, rows in (("without", texts), ("with", after)):
        folder = options.generators / name
        found = fine_tune(options.model, rows, settings=settings, output=folder, seed=SEED)
        print(f"{folder}: {len(rows)} passages, {found.steps} steps", flush=True)


# ------------------------------------------------------------------------------------------ C3


def bits(model: str, before: Sequence[str], texts: Sequence[str]) -> tuple[Any, Any]:
    """What a generator needs for texts after conditions, tokenized as in training.

    Returns:
        (n,) bits of each text, and (n,) its tokens.
    """
    import torch

    network, tokenizer = load_pretrained(model, kind="causal", dtype="float32", device=None)
    needed, tokens = [], []
    for condition, text in zip(before, texts, strict=True):
        given, own = (
            tokenizer(piece, add_special_tokens=False)["input_ids"] for piece in (condition, text)
        )
        row = [tokenizer.bos_token_id, *given, *own]
        with torch.inference_mode():
            scores = network(input_ids=torch.tensor([row])).logits[0].float().log_softmax(-1)
        places = range(len(given), len(row) - 1)
        needed.append(-float(scores[places, own].sum()) / math.log(2))
        tokens.append(len(own))
    return np.array(needed), np.array(tokens)


def generators(options: argparse.Namespace) -> None:
    """Read held-out text with the generator of every finished cell, before and after its rounds."""
    embedder = load_embedder("all-MiniLM-L6-v2")
    texts, sizes = held_out(options.folder, embedder)
    vectors = embedder.embed(texts)
    print("| cell | bits per byte, public | after its rounds | gain | perplexity, public | after |")
    print("|---|---|---|---|---|---|")
    for cell in sorted((options.folder / "cells").iterdir()):
        run = cell / "run"
        if (
            not (run / "models" / "final" / "config.json").is_file()
            or not (run / "topics.json").is_file()
        ):
            continue
        conditions = json.loads((run / "topics.json").read_text())["conditions"]
        config = json.loads((run / "config.json").read_text())["config"]
        topics = load_topics(config["topics"]).at(len(conditions))
        before = [conditions[topic] for topic in topics.nearest(vectors).tolist()]
        public = config["model"]
        found = [bits(name, before, texts) for name in (public, str(run / "models" / "final"))]
        rates = [needed.sum() / sizes.sum() for needed, _ in found]
        perplexities = [2 ** (needed.sum() / tokens.sum()) for needed, tokens in found]
        error = _error(found[0][0] - found[1][0], sizes)
        print(
            f"| {cell.name} | {rates[0]:.4f} | {rates[1]:.4f} | {rates[0] - rates[1]:+.4f} +- "
            f"{error:.4f} | {perplexities[0]:.1f} | {perplexities[1]:.1f} |",
            flush=True,
        )


# ------------------------------------------------------------------------------------------ topics


def nearer(options: argparse.Namespace) -> None:
    """Make topics of other people's text, and read the held-out text after either's keywords."""
    embedder = load_embedder("all-MiniLM-L6-v2")
    users = outside(options.folder, joined([load_users(name) for name in options.data]))
    others = samples_of(users, embedder)[: options.texts]
    model = TopicModel(counts=(64,), seed=SEED)
    about = f"{len(others)} people who are not in {options.folder.name}"
    found = model.fit(others, embedder.embed(others), probe=probe_of(embedder), about=about)
    found.save(options.output)

    texts, sizes = held_out(options.folder, embedder)
    vectors = embedder.embed(texts)
    conditions = {"none": [""] * len(texts)}
    bundled = {f"bundled, {count}": load_topics().at(count) for count in options.counts}
    for name, topics in (bundled | {"nearer, 64": found.at(64)}).items():
        told = topics.conditions()
        conditions[name] = [told[topic] for topic in topics.nearest(vectors).tolist()]
    print("| generator | keywords of | bits per byte | less than after none |")
    print("|---|---|---|---|")
    for generator in options.models:
        after_none = bits(generator, conditions["none"], texts)[0]
        for name, before in conditions.items():
            needed = bits(generator, before, texts)[0] if name != "none" else after_none
            gain = (after_none - needed).sum() / sizes.sum()
            error = _error(after_none - needed, sizes)
            print(
                f"| {generator} | {name} | {needed.sum() / sizes.sum():.4f} | {gain:+.4f} +- "
                f"{error:.4f} |",
                flush=True,
            )


def outside(folder: Path, users: Users) -> Users:
    """The people who neither take part in a comparison nor are held out of it, or sealed."""
    taken = {
        user
        for name in ("private", "held_out")
        for user in load_users(str(folder / "data" / f"{name}.jsonl")).user_ids
    }
    ids = users.user_ids
    return users.select(np.array([user not in taken for user in ids]) & ~sealed(ids))


def samples_of(users: Users, embedder: Embedder) -> list[str]:
    """The first sample of every user, as a node cuts it."""
    cut = Cut(max_tokens=64)
    samples = cut.samples(cut.documents(users), tokenizer=embedder.tokenizer)
    return [samples.texts[place] for place in np.unique(samples.owners, return_index=True)[1]]


def held_out(folder: Path, embedder: Embedder) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The first sample of every held-out user of a comparison, and its bytes."""
    texts = samples_of(load_users(str(folder / "data" / "held_out.jsonl")), embedder)
    sizes = np.array([len(text.encode()) for text in texts])
    print(f"one sample of each of {len(texts)} users, {sizes.sum():,} bytes")
    return texts, sizes


def _error(gains: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> float:
    """Standard error of a gain in bits per byte, over texts."""
    rate = gains.sum() / sizes.sum()
    return float(np.std(gains - rate * sizes) * math.sqrt(len(sizes)) / sizes.sum())


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    made = commands.add_parser("teach", help="make the two generators of C3")
    made.add_argument("--corpus", type=Path, required=True, help="folder of public-*.jsonl.gz")
    made.add_argument("--model", default="privsyn-tiny")
    made.add_argument("--steps", type=int, default=200)
    made.add_argument("--generators", type=Path, default=Path("generators"))
    made.set_defaults(work=teach)
    made.add_argument("--topics", default="bundled", help="or a file that `nearer` made")
    read = commands.add_parser("generators", help="measure the generators of a comparison")
    read.add_argument("folder", type=Path)
    read.set_defaults(work=generators)
    asked = commands.add_parser("nearer", help="topics of other people, and what they are worth")
    asked.add_argument("folder", type=Path)
    asked.add_argument("--data", nargs="+", required=True, help="the files of the comparison")
    asked.add_argument("--texts", type=int, default=6400, help="one of each person")
    asked.add_argument("--counts", type=int, nargs="+", default=[64], help="of bundled topics")
    asked.add_argument("--models", nargs="+", default=["privsyn-lm"])
    asked.add_argument("--output", type=Path, required=True)
    asked.set_defaults(work=nearer)
    options = parser.parse_args(words)
    options.work(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
