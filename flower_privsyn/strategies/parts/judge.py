"""Which round came nearest to what was released, and whether to go on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import DataError
from flower_privsyn.files import located
from flower_privsyn.private_path.method import Question, Workplace, need
from flower_privsyn.private_path.release import ReleasedSum
from flower_privsyn.queries import KernelMean, Moments, Query, mean_features
from flower_privsyn.strategies.parts.moment_settings import (
    SpaceChoice,
    question_outline,
    settled_space,
)
from flower_privsyn.strategies.parts.moments import MomentSketch, MomentSpace
from flower_privsyn.strategies.parts.preferences import PreferenceConfig
from flower_privsyn.strategies.parts.public_side import PublicSide
from flower_privsyn.strategies.parts.sketch import Sketch, kernel_of, sketch_query

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.host.progress import Progress


class Judge(Protocol):
    """What says how near texts are to the users': all post-processing of a release."""

    #: What its distances are called in the summary of a run.
    figure: ClassVar[str]

    def distance(self, embeddings: npt.NDArray[np.float32]) -> float:
        """How far a set of texts is, (n, d) with n >= 1."""


class ReleasedJudge(ABC):
    """A question that a run asks before its rounds, and the judge that its release becomes."""

    #: What its release is, in words, when it is first spoken of and afterwards.
    words: ClassVar[str]
    known_as: ClassVar[str]

    @property
    @abstractmethod
    def query(self) -> Query:
        """What is asked; what follows from public text is settled by `prepare`."""

    @abstractmethod
    def outline(self, dimension: int) -> Question:
        """The question in the shape it will have.

        Args:
            dimension: of an embedding.
        """

    @abstractmethod
    def question(self) -> Question:
        """The question, once `prepare` has been called."""

    @abstractmethod
    def keep(self, release: ReleasedSum) -> None:
        """Write down what was released."""

    @abstractmethod
    def judge(self) -> Judge | None:
        """What was released; None before, and where it was lost."""


class KernelJudge(ReleasedJudge):
    """A released kernel mean: the squared mean discrepancy of texts to it.

    Args:
        config: of the kernel.
    """

    words = "a kernel mean"
    known_as = "the kernel mean"

    def __init__(self, config: PreferenceConfig) -> None:
        self._config = config
        # Its bandwidth, where it follows from public text, is settled by `prepare`.
        self._kernel = kernel_of(config, bandwidth=config.bandwidth or 1.0)
        self._place: Workplace | None = None
        self._dimension = 0

    @property
    def query(self) -> KernelMean:
        """The kernel mean."""
        return self._kernel

    def prepare(self, place: Workplace, embedder: Embedder, *, public: PublicSide) -> None:
        """Settle the kernel.

        Args:
            place: of the run.
            embedder: whose embeddings users are asked about.
            public: with public text.
        """
        self._place, self._dimension = place, embedder.dimension
        self._kernel = sketch_query(
            place.run.path, self._config, public=public, progress=place.progress
        )

    def outline(self, dimension: int) -> Question:
        """The length of the embeddings."""
        return Question(self._kernel, self._kernel.broadcast(dimension))

    def question(self) -> Question:
        """The same."""
        return self.outline(self._dimension)

    def keep(self, release: ReleasedSum) -> None:
        """Write `sketch.npy`."""
        sketch = Sketch.combine(self._kernel, [release.of_users])
        if sketch is not None:
            sketch.save(need(self._place).run.path)

    def judge(self) -> Sketch | None:
        """The sketch."""
        folder = need(self._place).run.path
        return Sketch.load(folder) if (folder / "sketch.json").exists() else None


class MomentsJudge(ReleasedJudge):
    """Released mean and covariance: the Fréchet distance of texts to them, FreD.

    Args:
        choice: of the coordinates.
        max_samples: of one user that count; 0 for all.
    """

    words = "mean and covariance"
    known_as = "the release of mean and covariance"

    def __init__(self, choice: SpaceChoice, *, max_samples: int) -> None:
        self._choice, self._max_samples = choice, max_samples
        self._place: Workplace | None = None
        self._space: MomentSpace | None = None

    @property
    def query(self) -> Moments:
        """The moments."""
        radius = 1.0 if self._space is None else self._space.radius
        return Moments(radius=radius, max_samples=self._max_samples)

    def prepare(
        self,
        place: Workplace,
        embedder: Embedder,
        *,
        public: PublicSide | None = None,  # noqa: ARG002 - the other judge needs it
    ) -> None:
        """Settle the coordinates.

        Args:
            place: of the run.
            embedder: whose embeddings users are asked about.
            public: not needed: the coordinates follow from the setting `public-text`.
        """
        self._place = place
        self._space = settled_space(
            place.run.path, self._choice, embedder=embedder, progress=place.progress
        )

    def outline(self, dimension: int) -> Question:
        """Moments in as many coordinates."""
        asked = self.query
        outline = question_outline(
            asked, asked, dimensions=self._choice.dimensions, dimension=dimension
        )
        return outline.question(1)

    def question(self) -> Question:
        """The coordinates, which are public."""
        asked = self.query
        return Question(asked, need(self._space).broadcast(asked))

    def keep(self, release: ReleasedSum) -> None:
        """Write `moments.npz`."""
        sketch = MomentSketch.of_joint(need(self._space), self.query, [release.of_users])
        if sketch is not None:
            sketch.warn()
            sketch.save(need(self._place).run.path)

    def judge(self) -> MomentSketch | None:
        """The moments."""
        folder = need(self._place).run.path
        return MomentSketch.load(folder) if (folder / "moments.json").exists() else None


def best(distances: Mapping[int, float]) -> int:
    """The round with the smallest distance, the first of equal ones."""
    return min(distances, key=lambda number: (distances[number], number))


def stops(distances: Mapping[int, float], *, patience: int) -> bool:
    """Whether the best of these distances lies `patience` distances back.

    Not rounds: one that was lost has no responses of its own that could have come nearer.

    Args:
        distances: of each round's texts to what is judged by.
        patience: distances without a nearer one after which to stop, >= 1; 0 for never.
    """
    if not patience or not distances:
        return False
    nearest = best(distances)
    return sum(number > nearest for number in distances) >= patience


def validation_sketch(
    config: PreferenceConfig, public: PublicSide, *, query: KernelMean, progress: Progress
) -> Sketch:
    """The kernel mean of the different texts in `validation_text`: for research, not released.

    Args:
        config: names the file.
        public: has the embedder.
        query: the kernel.
        progress: shows the embedding.

    Raises:
        DataError: the file cannot be read, or holds no text.
    """
    from flower_privsyn.data import public_texts

    embedder = public.embedder
    texts = public_texts(
        located(config.validation_text),
        tokenizer=embedder.tokenizer,
        max_tokens=config.max_tokens,
        setting="validation-text",
    )
    if not texts:
        raise DataError(f'validation-text = "{config.validation_text}" holds no text')
    with progress.stage("Embed validation text", len(texts)) as stage:
        embeddings = embedder.embed(texts, progress=stage.update)
    return Sketch(
        query=query,
        total=mean_features(embeddings, query=query),
        num_users=1.0,
        noise_std=0.0,
    )
