"""FreD: users are asked once for moments, and any text is compared with them for free.

Paper:
    Hou, Zhan, Shrivastava, Wang, Livshits, Fanti, Lazar: "Privately Customizing Prefinetuning to
    Better Match User Data in Federated Learning" (FreD, 2023), Algorithm 1.

Algorithm 1, step by step, with `estimator = "two-rounds"`, `unit = "record"`:
    each record's embedding, clipped to norm c                  `Moments`
    their sum, Gaussian noise: the private mean                 `PrivateSumStrategy`
    the server sends it; embeddings are centred and clipped     "shift" of `Moments`
    sum of their squares, Gaussian noise: the covariance        `PrivateSumStrategy`
    Fréchet distance to a public set                            `MomentSketch.frechet`
By default both are asked in one vector, of users and not of records, about a public centre and in
the principal components of public text: one release and one round.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, final

import numpy as np

from flower_privsyn.checks import IN_PYTHON, OrZero, PositiveInt
from flower_privsyn.data import Chunking
from flower_privsyn.data.public_corpus import public_documents
from flower_privsyn.embedding import Embedder
from flower_privsyn.errors import ConfigError, DataError, RunDirectoryError
from flower_privsyn.files import user_path
from flower_privsyn.generation.backends import derive_seed
from flower_privsyn.privacy import (
    FullParticipation,
    NeighboringRelation,
    Plan,
    Release,
    release_epsilon,
)
from flower_privsyn.privacy.accounting import accounted
from flower_privsyn.progress import Progress
from flower_privsyn.queries import Moments, Query
from flower_privsyn.queries.moments import Radius, Unit
from flower_privsyn.run.method import (
    Diagnostic,
    Level,
    Method,
    Question,
    RecordSource,
    ReleasedSum,
    RunContext,
    State,
    need,
)
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies._embedder import embedder_of, embeddings_by
from flower_privsyn.strategies._moments import (
    WARN_ABOVE,
    MomentSettings,
    MomentSketch,
    MomentSpace,
    NoisyMoments,
    noise_ratio,
    settled_space,
    shift_of,
)

logger = logging.getLogger("flwr.privsyn")

#: Noise of a covariance over what that of public text says, above which a run is refused.
_MOST_RATIO: Final = 2.0

#: Part of an answer's squared norm that counts records: how many there are is not public.
_COUNT_SHARE: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class FreDConfig(MomentSettings):
    """Settings of `FreD`.

    `num_rounds` counts releases: one by default, with the whole budget.

    References:
        Hou et al. 2023, Algorithm 1 and section 4.
    """

    # Nothing that users are asked depends on what is compared with their answers.
    afterwards = frozenset({"candidates", "candidate-texts"})

    delta: float = 3e-6
    num_rounds: int = 1
    max_samples: int = 64
    moment_radius: Annotated[
        Radius, OrZero("nine tenths of the public texts lie within"), IN_PYTHON
    ] = 0.0
    """How far from the centre an embedding counts; users' and candidates' are clipped alike."""
    public_text: str = "bundled"
    """What the coordinates are settled from: "bundled", or a JSONL file with `text` and no person's
    data.
    """
    estimator: Literal["joint", "two-rounds"] = "joint"
    """How moments are asked for: "joint": mean and second moments in one vector and one release;
    "two-rounds", as in the paper: a mean, and in the rounds after it the covariance about that
    noisy mean.
    """
    unit: Unit = "user"
    """Who counts: "user": a user counts once, however much they wrote; "record", as in the paper:
    each of their first `max_samples` samples counts. The ledger states the epsilon of a user either
    way; that of a record, which is less, stands in the result.
    """
    candidates: str = ""
    """What is ranked, with semicolons between: JSONL or .txt files, folders of them, run
    directories with synthetic text, "bundled", or mixtures of them such as "40% a.jsonl + 60%
    b.jsonl". No person's data. More can be ranked later: `privsyn inspect RUN --rank`.
    """
    candidate_texts: Annotated[PositiveInt, OrZero("all")] = 2000
    """Samples of each set that are embedded, drawn at random; sets of unequal numbers are compared
    with unequal bias.
    """

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        candidate_names(self.candidates)
        if self.estimator != "joint" and self.num_rounds < 2:
            raise ConfigError(
                f'estimator = "{self.estimator}" needs num-rounds of at least 2, got '
                f"{self.num_rounds}: a mean, and then the covariance"
            )
        self.questions()

    def questions(self, radius: float = 1.0) -> tuple[Moments, ...]:
        """The question of every round, or that of the first and that of those after it.

        Args:
            radius: c, as settled.
        """
        asked = Moments(
            radius=radius,
            count_share=_COUNT_SHARE if self.unit == "record" else 0.0,
            unit=self.unit,
            max_samples=self.max_samples,
        )
        if self.estimator == "joint":
            return (asked,)
        return replace(asked, covariance_share=0.0), replace(asked, covariance_share=1.0)


class ReleasedMoments(Method):
    """The server's half of `FreD`: what is made of released moments.

    Args:
        config: the settings.
        embedder: in place of `config.embedding_model`.
    """

    def __init__(self, config: FreDConfig, *, embedder: Embedder | None = None) -> None:
        self.config = config
        self._embedder = embedder
        self._space: MomentSpace | None = None
        self._sets: dict[str, list[str]] = {}
        self._questions = config.questions(config.moment_radius or 1.0)

    @property
    def queries(self) -> tuple[Query, ...]:
        """The moments; the radius is settled by `setup`."""
        return self._questions

    # ------------------------------------------------------------------ before the first round

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        """Load the embedding model, read the candidates, and settle the coordinates."""
        config, self.place = self.config, place
        embedder = self._embedder = embedder_of(config, self._embedder)
        self._sets = read_sets(
            candidate_names(config.candidates),
            tokenizer=embedder.tokenizer,
            max_tokens=config.max_tokens,
            most=config.candidate_texts,
            seed=config.seed,
        )
        self._space = settled_space(
            place.run.path,
            config,
            public_text=config.public_text,
            embedder=embedder,
            progress=place.progress,
            radius=config.moment_radius,
        )
        self._questions = config.questions(self._space.radius)
        return (embeddings_by(embedder),)

    def check(self, plan: Plan, *, spent: str, state: State | None = None) -> Diagnostic | None:  # noqa: ARG002
        """Say how much of a covariance like that of public text the noise leaves.

        Refuse where it leaves nothing.
        """
        space = need(self._space)
        config, phase, query = self.config, plan.phases[-1], self._questions[-1]
        rounds = max(1, config.num_rounds - (config.estimator != "joint"))
        # At most: how many samples users have is not known before they are asked.
        records = config.max_samples if config.unit == "record" else 1
        count = max(1.0, phase.sampling.expected_users * records)
        sensitivity = query.clip_norm * config.max_nodes_per_user
        noise = (phase.noise_multiplier or 0.0) * sensitivity / math.sqrt(rounds)
        ratio = noise_ratio(
            float(space.public_variances.sum()),
            noise * space.radius**2 / (query.weights[2] * count),
            space.dimensions,
        )
        said = (
            f"noise of a covariance in moment-dimensions = {space.dimensions} over {count:,.0f} "
            f"{config.unit}s at most: {ratio:.2g} of what that of public text says"
        )
        if ratio > WARN_ABOVE:
            said += f", above {WARN_ABOVE:g}: take fewer dimensions, more users or a larger epsilon"
        if ratio > _MOST_RATIO and not config.accept_noise:
            raise ConfigError(f"{said}, or set accept-noise = true to run all the same; {spent}")
        level: Level = "warning" if ratio > WARN_ABOVE else "fine"
        return Diagnostic(topic="noise", level=level, sentence=said)

    # ------------------------------------------------------------------ the rounds

    def ask(self, state: State, number: int) -> Question:  # noqa: ARG002
        """The moments; with two rounds the mean, and after it the covariance about it."""
        shift = state.get("shift")
        query = self._questions[0 if shift is None else 1]
        return Question(query, need(self._space).broadcast(query, shift=shift))

    def example_states(self, scratch: Path) -> dict[int, State]:  # noqa: ARG002
        """Nothing; after the mean of two rounds, what the covariance is asked about."""
        if len(self._questions) == 1:
            return {1: {}}
        return {1: {}, 2: {"shift": np.zeros(need(self._space).dimensions, dtype=np.float32)}}

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:  # noqa: ARG002
        """After the mean of two rounds, what the covariance is asked about: it, as it travels."""
        if len(self._questions) == 1 or "shift" in state:
            return state
        space = need(self._space)
        read = NoisyMoments.of(space, self._questions[0], [release.of_users])
        return state if read is None else {"shift": shift_of(read.mean, space.radius)}

    # ------------------------------------------------------------------ what is made of it

    def finish(self, state: State) -> dict[str, Any]:  # noqa: ARG002
        """Write the release; where sets of text were named, rank them."""
        sketch = MomentSketch.of(need(self._space), self._questions, self.place.releases())
        if sketch is None:
            raise RunDirectoryError(
                f"{self.run.path} lacks a release: without mean and covariance nothing can be "
                "compared, and a run with another round in num-rounds would ask again"
            )
        sketch.save(self.run.path)
        figures = {**sketch.figures(), **self._epsilon_of_a_record()}
        if self._sets:
            ranking = rank_sets(
                sketch,
                self._sets,
                embedder=need(self._embedder),
                progress=self.progress,
                seed=self.config.seed,
            )
            figures["ranking"] = ranking
            logger.info("nearest to the users' text: %s", ranking[0]["name"])
        return figures

    def _epsilon_of_a_record(self) -> dict[str, float | None]:
        """What one record loses, where records and not users are what is counted.

        A record is a sample of text. Its vector has length at most 1, but where its user has more
        than `max_samples`, the next one takes the place of one that is gone: the sum moves by 2,
        under every relation. Of a replaced one the accountant knows.

        By the ledger, as the epsilon of a user: what was charged and lost is part of it, and under
        secure aggregation the noise that is left where those who may collude take out theirs.
        """
        config = self.config
        if config.unit == "user":
            return {}
        by = 1.0 if config.relation == "replace-one" else 2.0
        released = Counter(
            Release(
                noise_multiplier=accounted(line["noise_multiplier"] * line["l2_sensitivity"] / by),
                sampling=FullParticipation(),
                relation=NeighboringRelation(config.relation),
            )
            for line in self.run.ledger().lines
            if line.get("event") == "release"
        )
        epsilon = release_epsilon(released, delta=config.delta, accountant=config.accountant)
        return {"epsilon_of_a_record": epsilon if math.isfinite(epsilon) else None}


@final
class FreD(PrivateSumStrategy):
    """Release mean and covariance of users' embeddings, and rank sets of public text by them.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            FreD(epsilon=1.0, candidates="a.jsonl; b.jsonl").start(grid)
        ```

    The release stays in the run directory; `privsyn inspect RUN --rank SET` ranks more sets by
    it, and a set may be the synthetic text of another run.

    Formal guarantee:
        Unit: user; relation: `config.relation`; `num_rounds` Gaussian releases (one by default) of
        a sum of L2 sensitivity 1 (`max_samples` with `unit = "record"`), composed with the sampling
        in use. Distances, to any number of sets of text, are post-processing of public text and
        those releases.

    Args:
        config: the settings, where they are not given as keywords.
        embedder: in place of `config.embedding_model`; nodes must use the same.
        random: source of noise and coins; only tests pass one.
        settings: by the names of the fields of `FreDConfig`.

    References:
        Hou et al. 2023 (FreD), Algorithm 1.
    """

    config_class = FreDConfig
    method_class = ReleasedMoments


_PART: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s+(\S.*?)\s*")


def candidate_parts(name: str) -> list[tuple[str, float]]:
    """The sources of a set of texts with their shares, which add up to 1.

    Args:
        name: a JSONL file, a .txt file, a folder of them, a run directory, "bundled", or a mixture
            of them as in "40% NEAR + 60% FAR".

    Raises:
        DataError: the shares of a mixture do not add up to 100 %.
    """
    matches = [_PART.fullmatch(part) for part in name.split(" + ")]
    if not all(matches):
        return [(name, 1.0)]
    parts = [(match[2], float(match[1]) / 100.0) for match in matches if match]
    total = 100.0 * sum(share for _, share in parts)
    if abs(total - 100.0) > 1e-6:
        raise DataError(f'the shares of the candidate "{name}" must add up to 100%, got {total:g}%')
    return [part for part in parts if part[1] > 0]


def candidate_names(sets: str | Sequence[str]) -> tuple[str, ...]:
    """The names of sets, each once.

    Args:
        sets: the names, or a setting that has semicolons between them.

    Raises:
        DataError: one is named twice, or a name is empty.
    """
    if isinstance(sets, str):
        sets = sets.split(";") if sets.strip() else []
    names = tuple(name.strip() for name in sets)
    if len(set(names)) < len(names) or not all(names):
        raise DataError(
            f"candidates must be different sets of text, none of them empty, got {list(names)}"
        )
    return names


def read_sets(
    names: Sequence[str], *, tokenizer: Any, max_tokens: int, most: int, seed: int
) -> dict[str, list[str]]:
    """The texts of sets, by name: pieces of at most `max_tokens` tokens, as users' text is cut.

    Args:
        names: as `candidate_parts` takes them.
        tokenizer: of the embedding model.
        max_tokens: length of a piece, >= 1.
        most: pieces to draw of each set; 0 for as many as there are in these shares.
        seed: of their draw.

    Raises:
        DataError: a source is missing, unreadable or without text, or too small for its share.
    """

    def pieces(source: str) -> list[str]:
        written = user_path(source) / "synthetic.jsonl"
        documents = public_documents(
            str(written) if written.is_file() else source, setting="candidates"
        )
        found = Chunking(max_tokens=max_tokens).pieces(documents, tokenizer=tokenizer)
        return list(itertools.chain.from_iterable(found))

    sets: dict[str, list[str]] = {}
    for name in names:
        parts = [(pieces(source), share) for source, share in candidate_parts(name)]
        available = min(int(len(found) / share + 1e-9) for found, share in parts)
        total = min(most, available) if most else available
        generator = np.random.default_rng(derive_seed(seed, "candidate-text"))
        sets[name] = []
        for found, share in parts:
            order = np.sort(generator.permutation(len(found))[: round(total * share)])
            sets[name] += [found[place] for place in order]
        if len(sets[name]) < 2:
            raise DataError(
                f'the candidate "{name}" has {len(sets[name])} texts in these shares, and a '
                "distance needs at least 2"
            )
    return sets


def rank_sets(
    sketch: MomentSketch,
    sets: Mapping[str, Sequence[str]],
    *,
    embedder: Embedder,
    progress: Progress,
    seed: int,
) -> list[dict[str, Any]]:
    """Embed sets of text and rank them, the nearest to what was released first.

    Args:
        sketch: what was released.
        sets: of text, by name.
        embedder: whose embeddings users were asked about.
        progress: shows the work.
        seed: of the draws of noise.
    """
    found = {}
    for name, pieces in sets.items():
        with progress.stage(f"Embed {name}", len(pieces)) as stage:
            found[name] = embedder.embed(pieces, progress=stage.update)
    return sketch.rank(found, seed=seed)
