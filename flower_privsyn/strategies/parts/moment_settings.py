"""What every method that releases moments is told, and what follows from it before it asks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np

from flower_privsyn.checks import OrZero, PositiveInt
from flower_privsyn.errors import ConfigError
from flower_privsyn.generation.streams import derive_seed
from flower_privsyn.private_path.method import Finding, Outline, Question, RecordSource
from flower_privsyn.queries import Moments
from flower_privsyn.strategies.parts.moments import (
    SPACE_FILE,
    WARN_ABOVE,
    MomentSpace,
    noise_ratio,
)

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.host.progress import Progress

#: Above it a run is refused: the noise would be twice what the covariance says.
_MOST_RATIO: Final = 2.0

#: Public texts that the coordinates are settled from.
SPACE_TEXTS: Final = 2000

MomentDimensions = Annotated[
    PositiveInt,
    OrZero("all numbers of an embedding, as in the paper"),
    "principal components of public text in which moments are taken. The noise of a covariance "
    "over what it says grows as their number to the power 1.5: 16 to 32 suit thousands of users, "
    "all 384 a million.",
]

DIMENSIONS: Final = 16


@dataclass(frozen=True, kw_only=True)
class SpaceChoice:
    """How the coordinates of moments are settled.

    Attributes:
        dimensions: principal components of public text; 0 for all numbers of an embedding.
        public_text: the setting.
        max_tokens: length of a public text.
        precision: in which arrays travel.
        seed: of the draw among public texts.
        radius: how far from the centre an embedding counts; 0 to follow from public text.
        centred: whether the public text's mean is subtracted.
    """

    dimensions: int
    public_text: str
    max_tokens: int
    precision: str
    seed: int
    radius: float = 0.0
    centred: bool = True

    def texts(self, tokenizer: Any, *, enough: bool = False) -> list[str]:
        """The public texts, of which there must be more than dimensions.

        Args:
            tokenizer: of the embedding model.
            enough: read no more than there must be.

        Raises:
            PrivsynError: they cannot be read, or are too few.
        """
        from flower_privsyn.data import public_texts

        return public_texts(
            self.public_text,
            tokenizer=tokenizer,
            max_tokens=self.max_tokens,
            fewest=max(2, self.dimensions + 1),
            wanted_by=f"moment-dimensions = {self.dimensions}",
            enough=enough,
        )


def settled_space(
    folder: Path, choice: SpaceChoice, *, embedder: Embedder, progress: Progress
) -> MomentSpace:
    """The coordinates of a run: read from the run directory, or settled now from public text.

    They are written down because a resumed run must ask in the very coordinates of its releases,
    and embeddings' last digits depend on the machine.

    Args:
        folder: the run directory.
        choice: how they are settled.
        embedder: whose embeddings users are asked about.
        progress: where the work reports.

    Raises:
        ConfigError: there are not enough public texts for the dimensions, or more dimensions than
            numbers in an embedding.
        RunDirectoryError: what was written down is damaged.
    """
    file = folder / SPACE_FILE
    if file.exists():
        return MomentSpace.load(file)
    if choice.dimensions > embedder.dimension:
        raise ConfigError(
            f"moment-dimensions = {choice.dimensions} is more than the {embedder.dimension} "
            "numbers of an embedding"
        )
    texts = choice.texts(embedder.tokenizer)
    chooser = np.random.default_rng(derive_seed(choice.seed, "moments"))
    drawn = np.sort(chooser.permutation(len(texts))[:SPACE_TEXTS])
    with progress.stage("Coordinates from public text", len(drawn)) as stage:
        embeddings = embedder.embed([texts[place] for place in drawn], progress=stage.update)
    space = MomentSpace.of_public(
        embeddings,
        dimensions=choice.dimensions,
        radius=choice.radius,
        centred=choice.centred,
        precision=choice.precision,
    )
    space.save(file)
    return space


def question_outline(first: Moments, last: Moments, *, dimensions: int, dimension: int) -> Outline:
    """Moments in as many coordinates, in every round.

    Args:
        first: what round 1 asks.
        last: what the rounds after it ask; the same, or about a shift.
        dimensions: the setting; 0 for all numbers of an embedding.
        dimension: of an embedding.
    """
    k = dimensions or dimension
    basis = np.zeros((k, dimension), dtype=np.float32) if dimensions else None
    centre = np.zeros(k, dtype=np.float32)
    begin = Question(first, first.broadcast(centre, basis))
    after = begin
    if last is not first:
        after = Question(last, last.broadcast(centre, basis, shift=centre))
    source = RecordSource(fingerprint="", dimension=dimension)
    return Outline(sources=(source,), question=lambda number: begin if number == 1 else after)


def describe_ratio(
    space: MomentSpace,
    query: Moments,
    *,
    count: float,
    noise: float,
    refuse: bool,
    spent: str,
) -> Finding:
    """What the noise will leave of a covariance like that of public text.

    Args:
        space: the coordinates.
        query: the question with second moments.
        count: users or records that the moments are means over.
        noise: standard deviation of the noise in their sum.
        refuse: whether a run whose covariance would be noise is stopped.
        spent: words for what the run has cost.

    Raises:
        ConfigError: it would be, and `refuse` is set.
    """
    scale = space.radius**2 / (query.weights[2] * max(count, 1.0))
    k, traces = space.dimensions, np.cumsum(np.sort(space.public_variances)[::-1])
    ratio = noise_ratio(float(traces[-1]), noise * scale, k)
    told = (
        f"noise of a covariance in {k} dimensions over {count:,.0f} "
        f"{'users' if query.unit == 'user' else 'records at most'}: {ratio:.2g} of what that of "
        "public text says"
    )
    if ratio <= WARN_ABOVE:
        return Finding(sentence=told)
    fitting = [
        fewer
        for fewer in range(1, k)
        if noise_ratio(float(traces[fewer - 1]), noise * scale, fewer) <= WARN_ABOVE
    ]
    advice = (
        f"{max(fitting)} dimensions keep it below"
        if fitting
        else "no number of dimensions keeps it below: take more users or a larger epsilon"
    )
    told += f", above {WARN_ABOVE:g}; {advice}"
    if refuse and ratio > _MOST_RATIO:
        raise ConfigError(
            f"moment-dimensions = {k} is more than {count:,.0f} "
            f"{'users' if query.unit == 'user' else 'records'} allow: {told}. Set accept-noise = "
            f"true to run all the same; {spent}"
        )
    return Finding(sentence=told, warning=True)
