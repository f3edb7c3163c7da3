"""The texts of the experiment, as embeddings, and what is drawn from them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.data import Cut, public_texts
from flower_privsyn.embedding import Embedder, load_embedder
from flower_privsyn.embedding.cache import EmbeddingCache, cached_embed
from flower_privsyn.generation import SamplingParameters, load_generator, load_prompt
from flower_privsyn.queries import Cohort
from scripts.experiments.feedback.protocol import Protocol
from scripts.experiments.people import deal

logger = logging.getLogger("feedback")

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

#: The public texts of a prompt for the language model, as in PrE-Text and POPri.
EXAMPLES = 3
#: Prompts that the language model is given at once.
_BATCH = 16


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
    def domains(self) -> tuple[str, ...]:
        """Their names, in the order given."""
        return tuple(dict.fromkeys(name for name, _ in self.users))


def prepare(
    private: Mapping[str, Sequence[Path]],
    protocol: Protocol,
    cache: Path,
    *,
    embedder: Embedder | None = None,
) -> Corpus:
    """Read, cut, write and embed everything.

    Args:
        private: files of users, by domain.
        protocol: the sizes.
        cache: where embeddings are kept.
        embedder: in place of the bundled model.

    Raises:
        DataError: A domain has too few users.
    """
    embedder = embedder or load_embedder(precision="bfloat16")
    tokenizer, store = embedder.tokenizer, EmbeddingCache(cache)

    def embed(what: str, texts: Sequence[str]) -> Float32:
        logger.info("embedding %s: %d texts", what, len(texts))
        return cached_embed(embedder, texts, store)

    texts = public_texts(protocol.public, tokenizer=tokenizer, max_tokens=protocol.max_tokens)
    chooser = np.random.default_rng(0)
    texts = [texts[row] for row in chooser.permutation(len(texts))[: protocol.public_texts]]
    public = embed("public text", texts)
    users: dict[tuple[str, str], Cohort] = {}
    for name, files in private.items():
        cut = Cut(max_tokens=protocol.max_tokens, max_samples=protocol.cap(name))
        groups = deal(files, protocol.held_out, protocol.donors, max(protocol.users))
        for part, group in zip(("held_out", "donors", "private"), groups, strict=True):
            samples = cut.samples(group, tokenizer=tokenizer)
            vectors = embed(f"{name}, {part}", samples.texts)
            users[name, part] = Cohort(vectors, samples.owners, samples.num_users)
    prompts: list[list[int]] = []
    aimed_at: list[str] = []
    count = protocol.generator_prompts // (len(private) + 1)
    for name in private:
        generator = np.random.default_rng([1, *name.encode()])
        prompts += near_groups(public, users[name, "donors"].records, count, generator)
        aimed_at += [name] * count
    while len(prompts) < protocol.generator_prompts:
        prompts.append(chooser.choice(len(texts), size=EXAMPLES, replace=False).tolist())
        aimed_at.append("")
    written = generate_responses(
        [[texts[row] for row in prompt] for prompt in prompts], protocol, tokenizer
    )
    flat = embed("generated text", [text for one in written for text in one])
    return Corpus(
        users=users,
        public=public,
        responses=np.split(flat, np.cumsum([len(one) for one in written])[:-1]),
        aimed_at=aimed_at,
    )


def near_groups(
    public: Float32, donors: Float32, num_groups: int, generator: np.random.Generator
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
    groups = []
    for row in donors[chosen] @ public.T:
        # Out of a few more than needed, so that neighbouring donors give different prompts.
        near = np.argsort(-row, kind="stable")[: 2 * EXAMPLES]
        groups.append(sorted(generator.permutation(near)[:EXAMPLES].tolist()))
    return groups


def generate_responses(
    seeds: Sequence[Sequence[str]], protocol: Protocol, tokenizer: Any
) -> list[list[str]]:
    """What the bundled language model writes after each group of public texts, cut to samples.

    Empty responses and repetitions within a prompt are left out.
    """
    prompt = load_prompt("pre-text")
    wanted = [prompt.render(group) for group in seeds]
    generator = load_generator("privsyn-lm")
    sampling = SamplingParameters(seed=0, stop=(prompt.stop,))
    cut = Cut(max_tokens=protocol.max_tokens)
    result = []
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        for answers in generator.generate(batch, num_samples=protocol.size, sampling=sampling):
            pieces = cut.pieces([prompt.parse(one) for one in answers], tokenizer=tokenizer)
            result.append(list(dict.fromkeys(own[0] for own in pieces if own)))
        logger.info("%d of %d prompts answered", len(result), len(wanted))
    return result


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """J candidates for each of K prompts, in the order of the prompts.

    Attributes:
        embeddings: (K J, d) float32.
        prompt: (K J,) int64, 0, 0, ..., K - 1.
        domain: (K J,) int64, which domain of the setting a donor's text is of; -1 for the others.
        size: J.
    """

    embeddings: Float32
    prompt: Int64
    domain: Int64
    size: int


def draw_candidates(
    corpus: Corpus,
    shares: Mapping[str, float],
    protocol: Protocol,
    num_prompts: int,
    generator: np.random.Generator,
) -> Candidates:
    """Mix the candidates of each prompt from donors', public and generated texts.

    Each candidate is a donor's with probability `donor_share`, in equal parts of every domain of
    the setting, public with `public_share`, and otherwise what the language model wrote to one
    prompt, the same for all generated candidates of a prompt; where it wrote too little, public
    text takes its place. Texts are distinct within a prompt and may recur in another one.
    """
    names = list(shares)
    aimed = [row for row, name in enumerate(corpus.aimed_at) if name == "" or name in names]
    probabilities = [protocol.donor_share / len(names)] * len(names)
    probabilities += [protocol.public_share, 1.0 - protocol.donor_share - protocol.public_share]
    rows: list[Float32] = []
    domain: list[int] = []
    deck: list[int] = []
    for _ in range(num_prompts):
        deck = deck or generator.permutation(aimed).tolist()
        responses = corpus.responses[deck.pop()]
        *donated, public, generated = generator.multinomial(protocol.size, probabilities).tolist()
        missing = max(0, generated - len(responses))
        pools = [corpus.users[name, "donors"].records for name in names]
        pools += [corpus.public, responses]
        counts = [*donated, public + missing, generated - missing]
        for number, (pool, count) in enumerate(zip(pools, counts, strict=True)):
            rows.append(pool[generator.choice(len(pool), size=count, replace=False)])
            domain += [number if number < len(names) else -1] * count
    embeddings = np.concatenate(rows)
    # Ties go to the lower index, so the order within a prompt must tell nothing.
    places = np.arange(len(embeddings)).reshape(num_prompts, protocol.size)
    order = generator.permuted(places, axis=1).reshape(-1)
    return Candidates(
        embeddings=embeddings[order],
        prompt=np.repeat(np.arange(num_prompts), protocol.size),
        domain=np.array(domain)[order],
        size=protocol.size,
    )


def draw_users(
    corpus: Corpus,
    shares: Mapping[str, float],
    part: str,
    limit: int,
    generator: np.random.Generator,
) -> Cohort:
    """Users of a setting in random order, such that every prefix holds the domains' shares.

    Args:
        corpus: everybody.
        shares: of the users, by domain.
        part: "private" or "held_out".
        limit: at most so many; fewer when a domain is used up.
        generator: of the order.
    """
    names, wanted = list(shares), np.array(list(shares.values()))
    decks = [generator.permutation(corpus.users[name, part].num_users).tolist() for name in names]
    given = np.zeros(len(names), dtype=np.int64)
    records: list[Float32] = []
    counts: list[int] = []
    while len(counts) < limit:
        # The domain that is farthest behind its share is next.
        which = int(np.argmax(wanted * (len(counts) + 1) - given))
        if not decks[which]:
            break
        given[which] += 1
        person = decks[which].pop()
        records.append(users_between(corpus.users[names[which], part], person, person + 1).records)
        counts.append(len(records[-1]))
    owners = np.repeat(np.arange(len(counts)), counts)
    return Cohort(np.concatenate(records), owners, len(counts))


def users_between(cohort: Cohort, start: int, stop: int) -> Cohort:
    """The cohort of users start .. stop - 1."""
    low, high = np.searchsorted(cohort.owners, [start, stop])
    return Cohort(cohort.records[low:high], cohort.owners[low:high] - start, stop - start)
