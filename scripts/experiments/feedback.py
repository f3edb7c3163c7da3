"""How well the server learns preferences: POPri, private evolution and the kernel sketch.

    python scripts/experiments/feedback.py --cache DIR --private abstracts=FILE... speech=FILE... \
        --results docs/feedback_experiment.json --plot docs/feedback_experiment.png

Every method is asked the same question: given J candidate texts to each of K prompts and n users
with private text, which of two candidates of a prompt is the more like what the users write? It
ranks the candidates of each prompt by its noised scores, and its pair is rank 1 against rank 5, as
POPri's is. The answer is held against private text that took no part.

What is real: users, candidates, embeddings, queries, clipping, sensitivities, the accountant and
the mechanism are those of the package. What is not: the noise comes from a seeded generator, so
that the figures can be reproduced, and the references read private text without noise. So nothing
that this script writes is a private release.

Stages, each of which keeps its work in `--cache` and is not repeated:
    1. users are dealt into private, held out and donors, and their texts cut to samples;
    2. the bundled language model continues prompts of public text;
    3. everything is embedded;
    4. every method answers, for every number of users, epsilon and seed (`--results`, one JSON);
    5. tables (Markdown, to standard output) and the plot.

`--stop-after prepare` ends after the third; `--from-results` does the fifth alone.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import logging
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from flower_privsyn.data import Cut, Samples, Users, load_users, public_texts
from flower_privsyn.embedding import Embedder, load_embedder
from flower_privsyn.embedding.cache import EmbeddingCache, cached_embed
from flower_privsyn.errors import ConfigError, DataError, MissingExtraError
from flower_privsyn.evaluation import STAMP
from flower_privsyn.files import append_json_lines, read_json_lines, replacing, write_json
from flower_privsyn.privacy import (
    FullParticipation,
    GaussianMechanism,
    InsecureRandom,
    NeighboringRelation,
    calibrate_noise_multiplier,
)
from flower_privsyn.queries import (
    Broadcast,
    Cohort,
    KernelMean,
    MeanSimilarity,
    NearestNeighborHistogram,
    Query,
    expand_scores,
    features,
    mean_features,
    median_bandwidth,
    nearest_candidates,
)
from flower_privsyn.queries.user_means import unit_rows, user_means

logger = logging.getLogger("feedback")

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

#: Where a candidate comes from.
DONOR, PUBLIC, GENERATED = 0, 1, 2
#: The public texts of a prompt for the language model, as in PrE-Text and POPri.
EXAMPLES = 3


# ---- people and texts --------------------------------------------------------------------------


def read_domain(
    name: str,
    files: Sequence[Path],
    *,
    tokenizer: Any,
    max_tokens: int,
    max_samples: int,
    num_private: int,
    num_held_out: int,
    num_donors: int,
) -> dict[str, Samples]:
    """Read users, deal them into three groups that share nobody, and cut their texts.

    "held_out": whose text the answers are held against; "donors": whose text is mixed into the
    candidates, so that their share is known; "private": who may be asked. The order of dealing is
    that of a hash of the id.

    Raises:
        DataError: there are fewer users than held out and donors.
    """
    parts = [load_users(file) for file in files]
    rows = [
        (part.user_ids[owner], text)
        for part in parts
        for owner, text in zip(part.owners.tolist(), part.texts, strict=True)
    ]
    users = Users.from_rows(rows)
    order = sorted(
        range(len(users)),
        key=lambda user: hashlib.blake2b(users.user_ids[user].encode()).digest(),
    )
    if len(users) <= num_held_out + num_donors:
        raise DataError(
            f"{name} holds {len(users)} users, which must be more than the {num_held_out} held out "
            f"and {num_donors} donors"
        )

    def cut(chosen: Sequence[int]) -> Samples:
        mask = np.zeros(len(users), dtype=np.bool_)
        mask[list(chosen)] = True
        own = Cut(max_tokens=max_tokens, max_samples=max_samples)
        return own.samples(users.select(mask), tokenizer=tokenizer)

    borders = [0, num_held_out, num_held_out + num_donors]
    return {
        "held_out": cut(order[borders[0] : borders[1]]),
        "donors": cut(order[borders[1] : borders[2]]),
        "private": cut(order[borders[2] : borders[2] + num_private]),
    }


def generate_responses(
    path: Path,
    seeds: Sequence[Sequence[str]],
    *,
    tokenizer: Any,
    max_tokens: int,
    num_responses: int,
    seed: int,
) -> list[list[str]]:
    """What the bundled language model writes after each group of public texts, cut to samples.

    Kept in `path` as it is written. Empty responses and repetitions within a prompt are left out.

    Args:
        path: JSON lines, one per prompt.
        seeds: the public texts of each prompt.
        tokenizer: of the embedding model.
        max_tokens: of a sample.
        num_responses: asked of each prompt.
        seed: of the generator.

    Returns:
        The usable responses of each prompt.
    """
    from flower_privsyn.generation import SamplingParameters, load_generator, load_prompt

    prompt = load_prompt("pre-text")
    wanted = [prompt.render(group) for group in seeds]
    kept = {record["prompt"]: record["responses"] for record in read_json_lines(path)}
    missing = [text for text in wanted if text not in kept]
    if missing:
        generator = load_generator("privsyn-lm")
        sampling = SamplingParameters(seed=seed, stop=(prompt.stop,))
        for start in range(0, len(missing), 16):
            batch = missing[start : start + 16]
            written = generator.generate(batch, num_samples=num_responses, sampling=sampling)
            append_json_lines(
                path,
                (
                    {"prompt": text, "responses": [prompt.parse(one) for one in responses]}
                    for text, responses in zip(batch, written, strict=True)
                ),
            )
            logger.info("%d of %d prompts answered", start + len(batch), len(missing))
        kept = {record["prompt"]: record["responses"] for record in read_json_lines(path)}
    result = []
    for text in wanted:
        pieces = Cut(max_tokens=max_tokens).pieces(kept[text], tokenizer=tokenizer)
        result.append(list(dict.fromkeys(own[0] for own in pieces if own)))
    return result


def near_groups(
    public: Float32, donors: Float32, *, num_groups: int, generator: np.random.Generator
) -> list[list[int]]:
    """Groups of public texts near a donor's text: what public text in the users' domain looks like.

    Args:
        public: (p, d) unit rows.
        donors: (k, d) unit rows.
        num_groups: how many.
        generator: of the choice.

    Returns:
        `EXAMPLES` indices of public texts for each group.
    """
    chosen = generator.choice(len(donors), size=num_groups, replace=num_groups > len(donors))
    similar = donors[chosen] @ public.T  # (num_groups, p)
    groups = []
    for row in similar:
        # Out of a few more than needed, so that neighbouring donors give different prompts.
        near = np.argsort(-row, kind="stable")[: 2 * EXAMPLES]
        groups.append(sorted(generator.permutation(near)[:EXAMPLES].tolist()))
    return groups


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """All texts of the experiment as embeddings.

    Attributes:
        users: the users of each group, by (domain, "private" | "held_out" | "donors").
        public: (p, d) float32.
        responses: for each prompt of the language model the (r, d) embeddings of what it wrote.
        aimed_at: for each of these prompts the domain it was aimed at, "" for none.
    """

    users: Mapping[tuple[str, str], Cohort]
    public: Float32
    responses: Sequence[Float32]
    aimed_at: Sequence[str]

    @property
    def domains(self) -> list[str]:
        """Their names, in the order given."""
        return list(dict.fromkeys(name for name, _ in self.users))

    def save(self, path: Path) -> None:
        """Write everything to an .npz: embeddings and owners, no text."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "public": self.public,
            "responses": np.concatenate(list(self.responses)),
            "borders": np.cumsum([len(one) for one in self.responses])[:-1],
            "aimed_at": np.array(list(self.aimed_at)),
        }
        for (name, part), cohort in self.users.items():
            arrays[f"{name}/{part}/records"] = cohort.records
            arrays[f"{name}/{part}/owners"] = cohort.owners
            arrays[f"{name}/{part}/num_users"] = np.array(cohort.num_users)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> Corpus:
        """Read what `save` wrote."""
        with np.load(path) as arrays:
            users = {}
            for key in arrays.files:
                if key.endswith("/records"):
                    name, part, _ = key.split("/")
                    users[name, part] = Cohort(
                        arrays[key],
                        arrays[f"{name}/{part}/owners"],
                        int(arrays[f"{name}/{part}/num_users"]),
                    )
            return cls(
                users=users,
                public=arrays["public"],
                responses=np.split(arrays["responses"], arrays["borders"]),
                aimed_at=arrays["aimed_at"].tolist(),
            )


def prepare(options: argparse.Namespace, *, embedder: Embedder | None = None) -> Corpus:
    """Read, cut, write and embed everything, or take it from the cache.

    Args:
        options: of the command line.
        embedder: in place of the bundled model.
    """
    folder = Path(options.cache)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"corpus-{fingerprint(options, _PREPARED_BY)}.npz"
    if file.exists():
        return Corpus.load(file)
    if embedder is None:
        embedder = load_embedder(precision=options.embedding_precision)
    tokenizer = embedder.tokenizer
    cache = EmbeddingCache(folder)

    def embed(what: str, texts: Sequence[str]) -> Float32:
        logger.info("embedding %s: %d texts", what, len(texts))
        done = 0

        def progress(count: int) -> None:
            nonlocal done
            if (done + count) // 2000 > done // 2000:
                logger.info("  %d", done + count)
            done += count

        return cached_embed(embedder, texts, cache, progress)

    texts = public_texts(options.public, tokenizer=tokenizer, max_tokens=options.max_tokens)
    chooser = np.random.default_rng(0)
    texts = [texts[row] for row in chooser.permutation(len(texts))[: options.public_texts]]
    public = embed("public text", texts)
    users: dict[tuple[str, str], Cohort] = {}
    for name, files in options.private.items():
        groups = read_domain(
            name,
            files,
            tokenizer=tokenizer,
            max_tokens=options.max_tokens,
            max_samples=cap_of(options, name),
            num_private=max(options.users),
            num_held_out=options.held_out,
            num_donors=options.donors,
        )
        for part, samples in groups.items():
            logger.info("%s, %s: %d users", name, part, samples.num_users)
            vectors = embed(f"{name}, {part}", samples.texts)
            users[name, part] = Cohort(vectors, samples.owners, samples.num_users)
    count = options.generator_prompts // (len(options.private) + 1)
    prompts: list[list[int]] = []
    aimed_at: list[str] = []
    for name in options.private:
        donors = users[name, "donors"].records
        generator = np.random.default_rng([1, *name.encode()])
        prompts += near_groups(public, donors, num_groups=count, generator=generator)
        aimed_at += [name] * count
    while len(prompts) < options.generator_prompts:
        prompts.append(chooser.choice(len(texts), size=EXAMPLES, replace=False).tolist())
        aimed_at.append("")
    written = generate_responses(
        folder / "responses.jsonl",
        [[texts[row] for row in prompt] for prompt in prompts],
        tokenizer=tokenizer,
        max_tokens=options.max_tokens,
        num_responses=options.responses,
        seed=0,
    )
    flat = embed("generated text", [text for one in written for text in one])
    corpus = Corpus(
        users=users,
        public=public,
        responses=np.split(flat, np.cumsum([len(one) for one in written])[:-1]),
        aimed_at=aimed_at,
    )
    corpus.save(file)
    return corpus


def cap_of(options: argparse.Namespace, name: str) -> int:
    """Texts of a user of a domain that count."""
    return int(options.max_samples.get(name, 8))


def fingerprint(options: argparse.Namespace, names: Sequence[str]) -> str:
    """Of the options with these names: what is cached under it was made with the same."""
    values = {name: getattr(options, name) for name in names}
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


#: Options that the embeddings depend on.
_PREPARED_BY = (
    "private",
    "public",
    "max_tokens",
    "max_samples",
    "users",
    "held_out",
    "donors",
    "public_texts",
    "generator_prompts",
    "responses",
    "embedding_precision",
)

#: Options that a measurement depends on besides.
_MEASURED_BY = (
    *_PREPARED_BY,
    "epsilon",
    "rounds",
    "rejected_rank",
    "donor_share",
    "public_share",
    "minority",
    "draws",
    "bandwidth",
)


# ---- candidates --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Whose text it is about.

    Attributes:
        name: of the setting.
        shares: of the users, by domain; they sum to 1. The last one is the minority, if any.
    """

    name: str
    shares: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """J candidates for each of K prompts, in the order of the prompts.

    Attributes:
        embeddings: (K J, d) float32.
        prompt: (K J,) int64, 0, 0, ..., K - 1.
        origin: (K J,) int64, `DONOR`, `PUBLIC` or `GENERATED`.
        domain: (K J,) int64, which domain of the setting a donor's text is of; -1 for the others.
        size: J.
    """

    embeddings: Float32
    prompt: Int64
    origin: Int64
    domain: Int64
    size: int


def draw_candidates(
    corpus: Corpus,
    setting: Setting,
    *,
    num_prompts: int,
    size: int,
    donor_share: float,
    public_share: float,
    generator: np.random.Generator,
) -> Candidates:
    """Mix the candidates of each prompt from donors', public and generated texts.

    Each candidate is a donor's with probability `donor_share`, in equal parts of every domain of
    the setting, public with `public_share`, and otherwise what the language model wrote to one
    prompt, the same for all generated candidates of a prompt; where it wrote too little, public
    text takes its place. Texts are distinct within a prompt and may recur in another one.
    """
    names = list(setting.shares)
    aimed = [row for row, name in enumerate(corpus.aimed_at) if name == "" or name in names]
    probabilities = [donor_share / len(names)] * len(names)
    probabilities += [public_share, 1.0 - donor_share - public_share]
    rows: list[Float32] = []
    origin: list[int] = []
    domain: list[int] = []
    deck: list[int] = []
    for _ in range(num_prompts):
        deck = deck or generator.permutation(aimed).tolist()
        responses = corpus.responses[deck.pop()]
        counts = generator.multinomial(size, probabilities)
        generated = min(int(counts[-1]), len(responses))
        public = int(counts[-2] + counts[-1]) - generated
        pools = [
            *(
                (corpus.users[name, "donors"].records, int(n))
                for name, n in zip(names, counts, strict=False)
            ),
            (corpus.public, public),
            (responses, generated),
        ]
        for number, (pool, count) in enumerate(pools):
            rows.append(pool[generator.choice(len(pool), size=count, replace=False)])
            place = number - len(names)  # 0 public, 1 generated, below donors
            origin += [DONOR if place < 0 else (PUBLIC, GENERATED)[place]] * count
            domain += [number if place < 0 else -1] * count
    embeddings = np.concatenate(rows)
    origins, domains = np.array(origin), np.array(domain)
    # Ties go to the lower index, so the order within a prompt must tell nothing.
    shuffled = generator.permuted(np.arange(len(embeddings)).reshape(num_prompts, size), axis=1)
    order = shuffled.reshape(-1)
    return Candidates(
        embeddings=embeddings[order],
        prompt=np.repeat(np.arange(num_prompts), size),
        origin=origins[order],
        domain=domains[order],
        size=size,
    )


def draw_users(
    corpus: Corpus, setting: Setting, part: str, limit: int, generator: np.random.Generator
) -> Cohort:
    """Users of a setting in random order, such that every prefix holds the domains' shares.

    Args:
        corpus: everybody.
        setting: the shares.
        part: "private" or "held_out".
        limit: at most so many; fewer when a domain is used up.
        generator: of the order.
    """
    names = list(setting.shares)
    decks = [generator.permutation(corpus.users[name, part].num_users).tolist() for name in names]
    given = np.zeros(len(names), dtype=np.int64)
    records: list[Float32] = []
    owners: list[int] = []
    for user in range(limit):
        # The domain that is farthest behind its share is next.
        behind = np.array(list(setting.shares.values())) * (user + 1) - given
        which = int(np.argmax(behind))
        if not decks[which]:
            limit = user
            break
        given[which] += 1
        person = decks[which].pop()
        group = corpus.users[names[which], part]
        low, high = np.searchsorted(group.owners, [person, person + 1])
        records.append(group.records[low:high])
        owners += [user] * int(high - low)
    return Cohort(np.concatenate(records), np.array(owners, dtype=np.int64), limit)


def users_between(cohort: Cohort, start: int, stop: int) -> Cohort:
    """The cohort of users start .. stop - 1."""
    low, high = np.searchsorted(cohort.owners, [start, stop])
    return Cohort(cohort.records[low:high], cohort.owners[low:high] - start, stop - start)


# ---- methods -----------------------------------------------------------------------------------

#: From a release (or a noise-free sum) and the number of users to one score per candidate.
Reader = Callable[[Float64, int], Float64]


@dataclass(frozen=True, kw_only=True)
class Question:
    """One query, how often it is released, and what is read from a release.

    Attributes:
        query: what users answer.
        broadcast: with what.
        rounds: releases that share the budget.
        readers: scores by name of the method.
        noise: standard deviation of the noise in a score about its prompt's mean, for noise of
            standard deviation 1 in the release; root mean square over prompts; by method.
    """

    query: Query
    broadcast: Broadcast
    rounds: int
    readers: Mapping[str, Reader]
    noise: Mapping[str, float]


def as_released(release: Float64, users: int) -> Float64:
    """Scores that are the release itself."""
    del users
    return release


def questions(
    candidates: Candidates, *, rounds: int, max_samples: int, bandwidth: float, seed: int
) -> Iterator[Question]:
    """Everything that is asked about one set of candidates.

    Args:
        candidates: of one round.
        rounds: T, releases of the methods that ask in every round.
        max_samples: of the histogram.
        bandwidth: of the sketches, from public text.
        seed: of the random features.
    """
    texts, prompt, size = candidates.embeddings, candidates.prompt, candidates.size
    m, dimension = texts.shape
    num_prompts = m // size
    for centre, scale in (("none", "clip"), ("all", "unit"), ("prompt", "clip")):
        broadcast: dict[str, npt.NDArray[Any]] = {"candidates": texts}
        groups = None
        if centre == "prompt":
            groups = broadcast["prompt"] = prompt
        # What is left of unit noise in m numbers after the projection onto the span: its
        # dimension over that of the scores about their prompts' means. Without centring per prompt
        # a part of 1 / J of it lies in those means.
        freedom = m - num_prompts if centre == "prompt" else m
        shrunk = math.sqrt(min(1.0, dimension / freedom))

        def expand(
            release: Float64, users: int, centre: Any = centre, groups: Any = groups
        ) -> Float64:
            del users
            return expand_scores(release, texts, prompt=groups, centre=centre)

        for number in (rounds, 1) if centre == "prompt" else (rounds,):
            once = "" if number == rounds else "-once"
            yield Question(
                query=MeanSimilarity(centre=centre, scale=scale),  # type: ignore[arg-type]
                broadcast=broadcast,
                rounds=number,
                readers={f"popri-{centre}{once}": as_released},
                noise={f"popri-{centre}{once}": 1.0},
            )
            yield Question(
                query=MeanSimilarity(centre=centre, scale=scale, answer_space="span"),  # type: ignore[arg-type]
                broadcast=broadcast,
                rounds=number,
                readers={f"popri-{centre}-span{once}": expand},
                noise={f"popri-{centre}-span{once}": shrunk},
            )
    for name, clip in (("pe", "count"), ("pe-l2", "l2")):
        if max_samples == 1 and clip == "l2":
            continue  # one vote of one user: nothing to clip
        yield Question(
            query=NearestNeighborHistogram(max_samples=max_samples, clip=clip),  # type: ignore[arg-type]
            broadcast={"candidates": texts},
            rounds=rounds,
            readers={name: as_released},
            noise={name: 1.0},
        )
    for name, num_features, weight in (
        ("sketch-linear", 2, 1.0),
        ("sketch-1024", 1024, 0.0),
        ("sketch", 4096, 0.0),
        ("sketch-half", 4096, 0.5),
    ):
        query = KernelMean(
            num_features=num_features,
            bandwidth=bandwidth,
            feature_seed=seed,
            embedding_weight=weight,
        )
        yield _sketch_question(name, query, candidates)


def _sketch_question(name: str, query: KernelMean, candidates: Candidates) -> Question:
    """One release, read as mean scores and as a witness against two populations.

    The scores are those of `mean_scores` and `witness_scores`; the candidates' features are kept
    over the many releases that are read here.
    """
    rows = features(candidates.embeddings, query=query)  # (m, D')
    size = candidates.size
    grouped = rows.reshape(-1, size, rows.shape[1])
    within = grouped - grouped.mean(axis=1, keepdims=True)
    spread = float(np.einsum("kjd,kjd->", within, within, dtype=np.float64))
    per_release = math.sqrt(spread / (len(rows) - len(rows) // size))
    del within, grouped
    covered = rows @ mean_features(candidates.embeddings, query=query).astype(np.float32)

    def mean(release: Float64, users: int) -> Float64:
        scores = rows @ (release / users).astype(np.float32)
        return scores.astype(np.float64)

    def witness(release: Float64, users: int) -> Float64:
        return mean(release, users) - covered

    def witness_of_chosen(release: Float64, users: int) -> Float64:
        scores = mean(release, users)
        count = len(rows) // size
        # As many rounds as there are (at most 20), each of the prompts next in line.
        parts = np.array_split(np.arange(len(rows)).reshape(count, size), min(20, count))
        total = np.zeros(rows.shape[1])
        taken = 0
        for part in parts:
            members = part.reshape(-1)
            population = (
                covered[members]
                if not taken
                else rows[members] @ (total / taken).astype(np.float32)
            )
            scores[members] -= population
            best = part[np.arange(len(part)), np.argmax(scores[part], axis=1)]
            total += rows[best].sum(axis=0, dtype=np.float64)
            taken += len(best)
        return scores

    readers: dict[str, Reader] = {name: mean}
    if name == "sketch":
        readers = {
            "sketch-mean": mean,
            "sketch-witness": witness,
            "sketch-witness-chosen": witness_of_chosen,
        }
    return Question(
        query=query,
        broadcast=query.broadcast(candidates.embeddings.shape[1]),
        rounds=1,
        readers=readers,
        noise=dict.fromkeys(readers, per_release),
    )


# ---- measures ----------------------------------------------------------------------------------


def rank_within_prompts(scores: Float64, size: int, rejected_rank: int) -> tuple[Int64, Int64]:
    """Indices of the candidates of rank 1 and `rejected_rank` of every prompt, (K,) each.

    Ties go to the lower index, as in `strategies.parts.ranking.rank_pairs`.
    """
    order = np.argsort(-scores.reshape(-1, size), axis=1, kind="stable")
    first = np.arange(len(order)) * size
    return first + order[:, 0], first + order[:, rejected_rank - 1]


def share_greater(values: Float64, chosen: Int64, rejected: Int64) -> float:
    """Share of pairs whose chosen member has the greater value; equal values count half."""
    difference = values[chosen] - values[rejected]
    return float(np.mean(np.where(difference == 0.0, 0.5, difference > 0.0)))


def within_prompts(scores: Float64, size: int) -> Float64:
    """Standard deviation of the scores of each prompt about its mean, (K,)."""
    spread: Float64 = scores.reshape(-1, size).std(axis=1, ddof=1)
    return spread


def root_mean_square(values: Float64) -> float:
    """Of all entries."""
    return float(np.sqrt(np.mean(values**2)))


def user_spread(candidates: Candidates, cohort: Cohort) -> float:
    """Spread of one user's cosines about their mean in each prompt, root mean square over users."""
    means = user_means(cohort, unit_rows, width=cohort.records.shape[1])
    cosines = means @ unit_rows(candidates.embeddings).T  # (n, m)
    return root_mean_square(within_prompts(cosines.reshape(-1), candidates.size))


def predicted_share(signal: Float64, noise: float, size: int, rejected_rank: int) -> float:
    """Share of pairs in the order of the noise-free scores, from signal and noise alone.

    For normal scores of spread s and normal noise of spread r the noised gap g of the pair, in
    units of sqrt(s^2 + r^2), leaves a true gap of mean g s^2 / sqrt(s^2 + r^2) and variance
    2 s^2 r^2 / (s^2 + r^2), so the order is right with probability Phi(g s / (r sqrt(2))). The gap
    between rank 1 and 5 of 10 is 1.42 on average: Phi(s / r), nearly.

    Args:
        signal: (K,) spread of the noise-free scores of each prompt.
        noise: spread of the noise in a score about its prompt's mean.
        size: J.
        rejected_rank: of the pair.
    """
    draws = -np.sort(-np.random.default_rng(0).standard_normal((500, size)), axis=1)
    gaps = draws[:, 0] - draws[:, rejected_rank - 1]
    if noise == 0.0:
        return 1.0
    return float(ndtr(np.outer(signal / noise, gaps / math.sqrt(2.0))).mean())


@dataclass(frozen=True, kw_only=True)
class References:
    """What private text says about the candidates without noise; never part of a private run.

    Attributes:
        held_out: (m,) mean cosine to held-out users.
        distance: (m,) distance to the nearest held-out text.
        minority: (t, d) held-out texts of the minority, or None.
        majority: (t, d) held-out texts of the others.
    """

    held_out: Float64
    distance: Float64
    minority: Float32 | None
    majority: Float32


def mean_cosines(candidates: Float32, cohort: Cohort) -> Float64:
    """Mean over users of the mean cosine to their texts, (m,)."""
    means = user_means(cohort, unit_rows, width=cohort.records.shape[1])
    cosines: Float64 = unit_rows(candidates) @ means.mean(axis=0)
    return cosines


def mean_kernels(candidates: Float32, cohort: Cohort, bandwidth: float) -> Float64:
    """Mean over users of the mean Gaussian kernel to their texts, (m,): D to infinity."""
    counts = np.bincount(cohort.owners, minlength=cohort.num_users)
    weights = 1.0 / (counts[cohort.owners] * cohort.num_users)
    squares = np.einsum("md,md->m", candidates, candidates)[:, None]
    total = np.zeros(len(candidates))
    for start in range(0, len(cohort.records), 1024):
        rows = cohort.records[start : start + 1024]
        block = candidates @ rows.T  # (m, rows)
        block *= 2.0
        block -= squares
        block -= np.einsum("nd,nd->n", rows, rows)
        block *= 0.5 / bandwidth**2
        total += np.exp(block, out=block) @ weights[start : start + 1024].astype(np.float32)
    return total


def nearest_distances(points: Float32, targets: Float32) -> Float64:
    """Euclidean distance of each point to its nearest target, (n,)."""
    nearest = targets[nearest_candidates(points, targets)].astype(np.float64)
    return np.linalg.norm(points - nearest, axis=1)


def judge(
    scores: Float64,
    candidates: Candidates,
    references: References,
    private: Float64,
    rejected_rank: int,
) -> dict[str, float]:
    """How good the pairs are that one method's scores make."""
    chosen, rejected = rank_within_prompts(scores, candidates.size, rejected_rank)
    figures = {
        "right_private": share_greater(private, chosen, rejected),
        "right_held_out": share_greater(references.held_out, chosen, rejected),
        "nearer_held_out": share_greater(-references.distance, chosen, rejected),
        "chosen_in_domain": float(np.mean(candidates.origin[chosen] == DONOR)),
        "rejected_in_domain": float(np.mean(candidates.origin[rejected] == DONOR)),
    }
    if references.minority is not None:
        texts = candidates.embeddings[chosen]
        figures["chosen_minority"] = float(np.mean(candidates.domain[chosen] == 1))
        figures["minority_distance"] = float(nearest_distances(references.minority, texts).mean())
        figures["majority_distance"] = float(nearest_distances(references.majority, texts).mean())
    return figures


def measure(
    corpus: Corpus,
    setting: Setting,
    options: argparse.Namespace,
    *,
    num_prompts: int,
    seed: int,
    bandwidth: float,
) -> Iterator[dict[str, Any]]:
    """All methods, numbers of users and epsilons on one set of candidates.

    Yields one row per method, number of users and epsilon (None: no noise), averaged over draws of
    the noise.
    """
    salt = [seed, num_prompts, *setting.name.encode()]
    candidates = draw_candidates(
        corpus,
        setting,
        num_prompts=num_prompts,
        size=options.responses,
        donor_share=options.donor_share,
        public_share=options.public_share,
        generator=np.random.default_rng([1, *salt]),
    )
    cohort = draw_users(
        corpus, setting, "private", max(options.users), np.random.default_rng([2, *salt])
    )
    held_out = draw_users(
        corpus,
        setting,
        "held_out",
        sum(corpus.users[name, "held_out"].num_users for name in setting.shares),
        np.random.default_rng([3, *salt]),
    )
    names = list(setting.shares)
    references = References(
        held_out=mean_cosines(candidates.embeddings, held_out),
        distance=nearest_distances(candidates.embeddings, held_out.records),
        minority=corpus.users[names[1], "held_out"].records[:1000] if len(names) == 2 else None,
        majority=corpus.users[names[0], "held_out"].records[:1000],
    )
    sizes = [users for users in sorted(options.users) if users <= cohort.num_users]
    private = {
        users: mean_cosines(candidates.embeddings, users_between(cohort, 0, users))
        for users in sizes
    }
    kernels: dict[int, Float64] = {}
    total, before = np.zeros(len(candidates.embeddings)), 0
    for users in sizes:
        more = users_between(cohort, before, users)
        total += more.num_users * mean_kernels(candidates.embeddings, more, bandwidth)
        kernels[users], before = total / users, users
    size, rank = options.responses, options.rejected_rank
    common = {"setting": setting.name, "prompts": num_prompts, "seed": seed}
    for users in sizes:
        for method, exact in (("exact", private), ("kernel", kernels)):
            figures = judge(exact[users], candidates, references, private[users], rank)
            figures["signal"] = root_mean_square(within_prompts(exact[users], size))
            if method == "exact":
                some = users_between(cohort, 0, min(users, 1000))
                figures["user_spread"] = user_spread(candidates, some)
            yield common | {"method": method, "users": users, "epsilon": None} | figures
    asked = questions(
        candidates,
        rounds=options.rounds,
        max_samples=max(cap_of(options, name) for name in names),
        bandwidth=bandwidth,
        seed=seed,
    )
    for number, question in enumerate(asked):
        query = question.query
        total = np.zeros(query.answer_length(question.broadcast))
        before = 0
        for users in sizes:
            total += query.answer(users_between(cohort, before, users), question.broadcast)
            before = users
            read = {name: reader(total, users) for name, reader in question.readers.items()}
            for epsilon in (None, *options.epsilon):
                mechanism = noise_for(query, epsilon, users, question.rounds)
                random = InsecureRandom(
                    int(
                        np.random.SeedSequence(
                            [4, *salt, number, users, int(1000 * (epsilon or 0))]
                        ).generate_state(1)[0]
                    )
                )
                draws = 1 if epsilon is None else options.draws
                found: dict[str, list[dict[str, float]]] = {name: [] for name in question.readers}
                for _ in range(draws):
                    release = mechanism.release(total, random=random)
                    for name, reader in question.readers.items():
                        scores = reader(release, users)
                        found[name].append(
                            judge(scores, candidates, references, private[users], rank)
                            | own_order(scores, read[name], size=size, rejected_rank=rank)
                        )
                for name, several in found.items():
                    noise = mechanism.standard_deviation * question.noise[name]
                    more_figures = {}
                    if isinstance(query, KernelMean):  # its scores are means over users
                        noise /= users
                        weight = query.embedding_weight
                        target = (1 - weight) * kernels[users] + weight * private[users]
                        if "witness" not in name:
                            error = within_prompts(read[name] - target, size)
                            more_figures = {"feature_error": root_mean_square(error)}
                    yield (
                        common
                        | {
                            "method": name,
                            "users": users,
                            "epsilon": epsilon,
                            "numbers_up": len(total) * question.rounds,
                            "noise_multiplier": mechanism.noise_multiplier,
                        }
                        | signal_and_noise(read[name], noise, size=size, rejected_rank=rank)
                        | more_figures
                        | {key: float(np.mean([one[key] for one in several])) for key in several[0]}
                    )


def signal_and_noise(
    exact: Float64, noise: float, *, size: int, rejected_rank: int
) -> dict[str, float]:
    """What the arithmetic says about a method, from its noise-free scores and its noise."""
    signal = within_prompts(exact, size)
    return {
        "signal": root_mean_square(signal),
        "noise": noise,
        "predicted_own": predicted_share(signal, noise, size, rejected_rank),
    }


def own_order(
    scores: Float64, exact: Float64, *, size: int, rejected_rank: int
) -> dict[str, float]:
    """How far noised scores agree with the same method's noise-free ones."""
    chosen, rejected = rank_within_prompts(scores, size, rejected_rank)
    noise = within_prompts(scores - exact, size)
    return {
        "right_own": share_greater(exact, chosen, rejected),
        "noise_measured": root_mean_square(noise),
    }


def noise_for(query: Query, epsilon: float | None, users: int, rounds: int) -> GaussianMechanism:
    """The mechanism for a budget; epsilon None for no noise."""
    return GaussianMechanism(
        noise_multiplier=0.0 if epsilon is None else noise_multiplier(epsilon, users, rounds),
        l2_sensitivity=query.sensitivity(NeighboringRelation.ZERO_OUT),
    )


@lru_cache
def noise_multiplier(epsilon: float, users: int, rounds: int) -> float:
    """For releases of all users that share a budget, with delta = 1 / (n ln n)."""
    return calibrate_noise_multiplier(
        epsilon=epsilon,
        delta=1.0 / (users * math.log(users)),
        rounds=rounds,
        sampling=FullParticipation(users),
        accountant="pld",
    )


# ---- all of it ---------------------------------------------------------------------------------

#: Names in tables and the plot, in their order.
LABELS = {
    "exact": "exact mean cosine (not private)",
    "kernel": "exact mean kernel (not private)",
    "popri-none": "POPri, no centring (paper)",
    "popri-all": "POPri, centred over all, unit norm (authors' code)",
    "popri-prompt": "POPri, centred per prompt",
    "popri-none-span": "POPri, no centring, span",
    "popri-all-span": "POPri, over all, span",
    "popri-prompt-span": "POPri, per prompt, span",
    "popri-prompt-once": "POPri, per prompt, T = 1",
    "popri-prompt-span-once": "POPri, per prompt, span, T = 1",
    "pe": "PE histogram",
    "pe-l2": "PE histogram, votes clipped in L2",
    "sketch-linear": "sketch, linear (384)",
    "sketch-1024": "sketch mean, D = 1,024",
    "sketch-mean": "sketch mean, D = 4,096",
    "sketch-half": "sketch mean, D = 4,096 and half linear",
    "sketch-witness": "sketch witness, D = 4,096",
    "sketch-witness-chosen": "sketch witness against what is chosen",
}

#: Which lines the plot shows: colours of Okabe and Ito, told apart by markers as well.
LINES = {
    "popri-none": ("#999999", "x", "-"),
    "popri-all": ("#E69F00", "s", "-"),
    "popri-prompt": ("#D55E00", "o", "-"),
    "popri-prompt-span": ("#D55E00", "o", ":"),
    "pe": ("#CC79A7", "v", "-"),
    "sketch-mean": ("#56B4E9", "D", "-"),
    "sketch-witness": ("#009E73", "^", "-"),
    "sketch-linear": ("#0072B2", "P", "-"),
    "exact": ("#000000", "", "--"),
}


def settings_of(names: Sequence[str], minority: float) -> list[Setting]:
    """Every domain alone, and of two or more domains the second as a minority in the first."""
    settings = [Setting(name=name, shares={name: 1.0}) for name in names]
    if len(names) >= 2:
        shares = {names[0]: 1.0 - minority, names[1]: minority}
        settings.append(Setting(name="mixed", shares=shares))
    return settings


def run_all(corpus: Corpus, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every setting, number of prompts and seed; what is in the cache is not repeated."""
    bandwidth = options.bandwidth * median_bandwidth(corpus.public)
    logger.info("bandwidth of the sketches: %.4f", bandwidth)
    version = fingerprint(options, _MEASURED_BY)
    rows: list[dict[str, Any]] = []
    for num_prompts, seeds in zip(options.prompts, options.seeds, strict=True):
        for seed in range(seeds):
            for setting in settings_of(corpus.domains, options.minority):
                if options.settings and setting.name not in options.settings:
                    continue
                file = Path(options.cache) / f"{setting.name}-{num_prompts}-{seed}-{version}.json"
                if not file.exists():
                    start = time.perf_counter()
                    found = list(
                        measure(
                            corpus,
                            setting,
                            options,
                            num_prompts=num_prompts,
                            seed=seed,
                            bandwidth=bandwidth,
                        )
                    )
                    write_json(file, {"rows": found})
                    seconds = time.perf_counter() - start
                    logger.info(
                        "%s, %d prompts, seed %d: %.0f s", setting.name, num_prompts, seed, seconds
                    )
                rows += json.loads(file.read_text())["rows"]
    return rows


#: What tells one row of the results from another.
_CELL = ("setting", "prompts", "method", "users", "epsilon")


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard error over seeds, one row per setting, prompts, method, users, epsilon."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in _CELL), []).append(row)
    result = []
    for group, members in groups.items():
        summary: dict[str, Any] = dict(zip(_CELL, group, strict=True)) | {"seeds": len(members)}
        for figure in members[0]:
            if figure in _CELL or figure == "seed":
                continue
            values = np.array([member[figure] for member in members], dtype=np.float64)
            summary[figure] = float(f"{values.mean():.5g}")
            if figure in _WITH_ERRORS and len(values) > 1:
                error = values.std(ddof=1) / math.sqrt(len(values))
                summary[f"{figure}_se"] = float(f"{error:.2g}")
        result.append(summary)
    return result


_WITH_ERRORS = (
    "right_private",
    "right_held_out",
    "nearer_held_out",
    "right_own",
    "chosen_in_domain",
    "chosen_minority",
    "minority_distance",
)


def write_results(path: Path, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """One JSON object, one line per row, so that a change can be read."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    with replacing(path) as temporary:
        temporary.write_text(
            f'{{"about": {json.dumps(about, indent=1)},\n"rows": [\n{lines}\n]}}\n',
            encoding="utf-8",
        )


def read_results(paths: Sequence[Path]) -> dict[str, Any]:
    """What `write_results` wrote, in one or in several parts of one experiment.

    Raises:
        ConfigError: two parts hold the same cell, or were made with different methods.
    """
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if len(parts) == 1:
        return dict(parts[0])
    rows = [row for part in parts for row in part["rows"]]
    cells = [tuple(row[key] for key in _CELL) for row in rows]
    if len(set(cells)) < len(cells):
        raise ConfigError("--from-results: two of the files hold the same setting and prompts")
    same = ("rounds", "responses", "rejected_rank", "donor_share", "public_share", "held_out")
    options = {key: parts[0]["about"]["options"][key] for key in same}
    for path, part in zip(paths, parts, strict=True):
        for key in same:
            if part["about"]["options"][key] != options[key]:
                raise ConfigError(
                    f"--from-results: {path} was made with {key} = "
                    f"{part['about']['options'][key]}, {paths[0]} with {options[key]}"
                )
    about = {"stamp": STAMP, "options": options, "parts": [part["about"] for part in parts]}
    return {"about": about, "rows": rows}


def table(
    rows: Sequence[Mapping[str, Any]],
    *,
    setting: str,
    prompts: int,
    columns: Sequence[tuple[str, Mapping[str, Any], str]],
) -> str:
    """A Markdown table: methods down, (heading, condition, figure) across.

    What is not private stands in every column of its number of users.
    """
    lines = [
        "| method | " + " | ".join(heading for heading, _, _ in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for method, label in LABELS.items():
        cells = []
        for _, condition, figure in columns:
            wanted = {"setting": setting, "prompts": prompts, "method": method, **condition}
            if method in ("exact", "kernel"):
                wanted["epsilon"] = None
            found = [row for row in rows if all(row[key] == wanted[key] for key in wanted)]
            if not found or figure not in found[0]:
                cells.append("-")
                continue
            value = found[0][figure]
            error = found[0].get(f"{figure}_se")
            if figure == "numbers_up":
                cells.append(f"{value:,.0f}")
            elif figure in ("signal", "noise", "noise_measured", "feature_error"):
                cells.append(f"{value:.3g}")
            elif error is not None and error >= 0.01:
                cells.append(f"{value:.3f} ± {error:.2f}")
            else:
                cells.append(f"{value:.3f}")
        if any(cell != "-" for cell in cells):
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def arithmetic(
    rows: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    setting: str,
    prompts: int,
    epsilon: float,
) -> str:
    """A Markdown table: signal over noise from three figures, and as measured.

    With s the spread of the mean cosine over a prompt's candidates, r that of one user's cosines, z
    the noise multiplier of one release and T releases,

        POPri, per prompt:  n s / (sqrt(T (m - K)) r z)      every user's vector has norm 1
        the same in the span:  sqrt((m - K) / d) times that
        linear sketch:      n s / (v z),                     v^2 = 1 - mean cosine in a prompt
    """
    size, rounds = options["responses"], options["rounds"]
    lines = [
        "| n | s | r | POPri per prompt | measured | span | measured | linear sketch | measured |",
        "|---:|" + "---:|" * 8,
    ]
    for users in sorted({row["users"] for row in rows}):
        found = {
            row["method"]: row
            for row in rows
            if (row["setting"], row["prompts"], row["users"]) == (setting, prompts, users)
            and row["epsilon"] == (None if row["method"] == "exact" else epsilon)
        }
        if not found:
            continue
        linear, exact = found["sketch-linear"], found["exact"]
        spread, own, z = exact["signal"], exact["user_spread"], linear["noise_multiplier"]
        popri = users * spread / (math.sqrt(rounds * prompts * (size - 1)) * own * z)
        # At most d dimensions of the noise are left; fewer candidates than that leave all.
        left = found["popri-prompt-span"]["noise"] / found["popri-prompt"]["noise"]
        predicted = (popri, popri / left, spread / linear["noise"])
        cells = [f"{users:,}", f"{spread:.3f}", f"{own:.3f}"]
        for method, value in zip(
            ("popri-prompt", "popri-prompt-span", "sketch-linear"), predicted, strict=True
        ):
            row = found[method]
            cells += [f"{value:.2f}", f"{row['signal'] / row['noise_measured']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def print_tables(document: Mapping[str, Any]) -> None:
    """All tables of the document."""
    rows = document["rows"]
    users = sorted({row["users"] for row in rows})
    epsilons = sorted({row["epsilon"] for row in rows if row["epsilon"] is not None})
    middle = 1.0 if 1.0 in epsilons else epsilons[len(epsilons) // 2]
    most = 3000 if 3000 in users else users[-1]
    kinds = dict.fromkeys((row["setting"], row["prompts"]) for row in rows)
    for setting, prompts in kinds:

        def show(
            title: str,
            columns: Sequence[tuple[str, Mapping[str, Any], str]],
            setting: str = setting,
            prompts: int = prompts,
        ) -> None:
            print(f"\n#### {setting}, {prompts:,} prompts: {title}\n")
            print(table(rows, setting=setting, prompts=prompts, columns=columns))

        at = {"users": most, "epsilon": middle}
        show(
            f"right order by held-out text, epsilon = {middle:g}",
            [(f"n = {n:,}", {"users": n, "epsilon": middle}, "right_held_out") for n in users],
        )
        show(
            f"right order by held-out text, n = {most:,}",
            [
                *(
                    (f"epsilon = {e:g}", {"users": most, "epsilon": e}, "right_held_out")
                    for e in epsilons
                ),
                ("no noise", {"users": most, "epsilon": None}, "right_held_out"),
            ],
        )
        show(
            f"all measures, n = {most:,}, epsilon = {middle:g}",
            [
                ("right, own users", at, "right_private"),
                ("right, held out", at, "right_held_out"),
                ("nearer to held out", at, "nearer_held_out"),
                ("chosen in domain", at, "chosen_in_domain"),
                ("rejected in domain", at, "rejected_in_domain"),
                ("numbers up", at, "numbers_up"),
            ],
        )
        show(
            f"signal and noise, n = {most:,}, epsilon = {middle:g}",
            [
                ("spread of the signal", at, "signal"),
                ("noise, formula", at, "noise"),
                ("noise, measured", at, "noise_measured"),
                ("error of the features", at, "feature_error"),
                ("own order kept, formula", at, "predicted_own"),
                ("own order kept, measured", at, "right_own"),
            ],
        )
        print(f"\n#### {setting}, {prompts:,} prompts: signal over noise, epsilon = {middle:g}\n")
        print(arithmetic(rows, document["about"]["options"], setting, prompts, middle))
        if any("chosen_minority" in row for row in rows if row["setting"] == setting):
            show(
                f"the minority, n = {most:,}, epsilon = {middle:g}",
                [
                    ("chosen of the minority", at, "chosen_minority"),
                    ("chosen in domain", at, "chosen_in_domain"),
                    ("minority to nearest chosen", at, "minority_distance"),
                    ("majority to nearest chosen", at, "majority_distance"),
                ],
            )


def plot(document: Mapping[str, Any], path: Path, *, setting: str, prompts: int) -> None:
    """Share in the right order against the number of users, one panel per epsilon.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtraError("the plot needs matplotlib: pip install matplotlib") from None
    rows = [
        row for row in document["rows"] if row["setting"] == setting and row["prompts"] == prompts
    ]
    epsilons = sorted({row["epsilon"] for row in rows if row["epsilon"] is not None})
    users = sorted({row["users"] for row in rows})
    # Narrow and tall with large type: it is read at the width of a phone.
    figure, axes = plt.subplots(
        len(epsilons), 1, figsize=(5.2, 3.1 * len(epsilons) + 1.9), sharex=True, sharey=True
    )
    for axis, epsilon in zip(np.atleast_1d(axes), epsilons, strict=True):
        axis.axhline(0.5, color="#bbbbbb", linewidth=1)
        for method, (colour, marker, line) in LINES.items():
            wanted = None if method == "exact" else epsilon
            points = sorted(
                (row["users"], row["right_held_out"], row.get("right_held_out_se", 0.0))
                for row in rows
                if row["method"] == method and row["epsilon"] == wanted
            )
            if not points:
                continue
            x, y, error = zip(*points, strict=True)
            axis.errorbar(
                x,
                y,
                yerr=error,
                color=colour,
                marker=marker or None,
                linestyle=line,
                markersize=7,
                linewidth=2,
                capsize=2,
                label=LABELS[method],
            )
        axis.set_title(f"epsilon = {epsilon:g}", fontsize=13)
        axis.set_xscale("log")
        axis.set_xticks(users, [f"{n:,}" for n in users])
        axis.minorticks_off()
        axis.set_ylim(0.38, 1.02)
        axis.tick_params(labelsize=12)
        axis.grid(axis="y", alpha=0.3)
        axis.set_ylabel("pairs in the right order", fontsize=12)
    np.atleast_1d(axes)[-1].set_xlabel("users", fontsize=13)
    handles, labels = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=1, fontsize=11, frameon=False)
    figure.tight_layout(rect=(0, 2.45 / figure.get_figheight(), 1, 1))
    figure.savefig(path, dpi=160)
    plt.close(figure)


# ---- the command -------------------------------------------------------------------------------


def parse_private(tokens: Sequence[str]) -> dict[str, list[Path]]:
    """`name=FILE FILE... name=...` into files by name; a name may hold wildcards or a folder.

    Raises:
        ConfigError: the first token has no name, or nothing is found.
    """
    found: dict[str, list[Path]] = {}
    name = ""
    for token in tokens:
        before, equals, after = token.partition("=")
        if equals:
            name, token = before, after
        if not name:
            raise ConfigError(f"--private must begin with NAME=FILE, got {token!r}")
        files = [Path(file) for file in sorted(glob.glob(token))]  # noqa: PTH207
        if not files:
            raise ConfigError(f"--private {name}={token}: no such file or folder")
        found.setdefault(name, []).extend(files)
    return found


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--private", nargs="+", default=[], help="NAME=FILE... of users, JSONL with client_id")
    add("--public", default="bundled", help='"bundled", or JSONL with a text in every line')
    add("--cache", default="", help="folder for responses and embeddings")
    add("--max-tokens", type=int, default=64)
    add("--max-samples", nargs="*", default=[], help="NAME=COUNT texts of a user; 8 unless given")
    add("--users", type=int, nargs="+", default=[300, 1000, 3000, 10_000])
    add("--held-out", type=int, default=600, help="users per domain")
    add("--donors", type=int, default=600, help="users per domain")
    add("--public-texts", type=int, default=3000, help="drawn from the public text")
    add("--generator-prompts", type=int, default=300)
    add("--responses", type=int, default=10, help="candidates per prompt (J)")
    add("--embedding-precision", default="bfloat16", choices=("float32", "bfloat16"))
    add("--prompts", type=int, nargs="+", default=[200], help="prompts per round (K)")
    add("--settings", nargs="*", default=[], help="names of --private, or mixed; all unless given")
    add("--minority", type=float, default=0.1, help="share of the second domain where mixed")
    add("--donor-share", type=float, default=0.2, help="share of in-domain candidates")
    add("--public-share", type=float, default=0.3, help="share of public candidates")
    add("--epsilon", type=float, nargs="+", default=[0.1, 1.0, 7.0])
    add("--rounds", type=int, default=20, help="releases of methods that ask every round (T)")
    add("--bandwidth", type=float, default=1.0, help="of the sketches, in medians of public text")
    add("--rejected-rank", type=int, default=5)
    add(
        "--seeds",
        type=int,
        nargs="+",
        default=[5],
        help="of candidates, users' order, features and noise; one number, or one per --prompts",
    )
    add("--draws", type=int, default=4, help="of the noise per seed")
    add("--results", type=Path, default=None, help="JSON to write")
    add("--from-results", type=Path, nargs="+", default=[], help="JSON to read, not to measure")
    add("--plot", type=Path, default=None, help="PNG to write")
    add("--plot-setting", default="", help="the first one unless given")
    add("--plot-prompts", type=int, default=0, help="the largest number unless given")
    add("--stop-after", choices=("prepare",), default=None)
    options = parser.parse_args(arguments)
    if not options.from_results and not (options.private and options.cache):
        parser.error("--private and --cache are needed, or --from-results")
    if len(options.seeds) == 1:
        options.seeds *= len(options.prompts)
    if len(options.seeds) != len(options.prompts):
        parser.error("--seeds must be one number, or as many as --prompts")
    options.private = parse_private(options.private)
    caps = dict(cap.split("=") for cap in options.max_samples)
    options.max_samples = {name: int(cap) for name, cap in caps.items()}
    return options


def main(arguments: Sequence[str] | None = None, *, embedder: Embedder | None = None) -> int:
    """Run the stages that were asked for."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    options = parse_options(arguments)
    if options.from_results:
        document = read_results(options.from_results)
    else:
        corpus = prepare(options, embedder=embedder)
        if options.stop_after == "prepare":
            return 0
        rows = run_all(corpus, options)
        about = {
            "stamp": STAMP,
            "texts": {
                f"{name}, {part}": {"users": cohort.num_users, "texts": len(cohort.records)}
                for (name, part), cohort in corpus.users.items()
            }
            | {"public": len(corpus.public), "generated": sum(map(len, corpus.responses))},
            "bandwidth": options.bandwidth * median_bandwidth(corpus.public),
            "delta": "1 / (n ln n)",
            "options": {
                name: getattr(options, name)
                for name in (*_MEASURED_BY, "prompts", "seeds")
                if name not in ("private", "public")
            },
            "software": {"numpy": np.__version__, "python": platform.python_version()},
        }
        document = {"about": about, "rows": summarise(rows)}
    if options.results is not None:
        write_results(options.results, document["about"], document["rows"])
    print_tables(document)
    if options.plot is not None:
        first = document["rows"][0]["setting"]
        most = max(row["prompts"] for row in document["rows"])
        plot(
            document,
            options.plot,
            setting=options.plot_setting or first,
            prompts=options.plot_prompts or most,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
