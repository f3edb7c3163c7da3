"""Which round's texts came nearest to the moments that were released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flower_privsyn.private_path.method import Question, RunContext, need
from flower_privsyn.private_path.release import ReleasedSum
from flower_privsyn.queries import Moments
from flower_privsyn.strategies.parts.moment_settings import (
    SpaceChoice,
    question_outline,
    settled_space,
)
from flower_privsyn.strategies.parts.moments import MomentSketch, MomentSpace

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder


class MomentsJudge:
    """Released mean and covariance: the Fréchet distance of texts to them, FreD.

    Args:
        choice: of the coordinates.
        max_samples: of one user that count; 0 for all.

    Attributes:
        choice: the same.
    """

    def __init__(self, choice: SpaceChoice, *, max_samples: int) -> None:
        self.choice, self._max_samples = choice, max_samples
        self._place: RunContext | None = None
        self._space: MomentSpace | None = None

    @property
    def query(self) -> Moments:
        """The moments."""
        radius = 1.0 if self._space is None else self._space.radius
        return Moments(radius=radius, max_samples=self._max_samples)

    def setup(self, place: RunContext, embedder: Embedder) -> None:
        """Settle the coordinates.

        Args:
            place: of the run.
            embedder: whose embeddings users are asked about.
        """
        self._place = place
        self._space = settled_space(
            place.run.path, self.choice, embedder=embedder, progress=place.progress
        )

    def outline(self, dimension: int) -> Question:
        """The question in the shape it will have.

        Args:
            dimension: of an embedding.
        """
        asked = self.query
        outline = question_outline(
            asked, asked, dimensions=self.choice.dimensions, dimension=dimension
        )
        return outline.question(1)

    def question(self) -> Question:
        """The question, with its coordinates, which are public."""
        asked = self.query
        return Question(asked, need(self._space).broadcast(asked))

    def keep(self, release: ReleasedSum) -> None:
        """Write `moments.npz`."""
        sketch = MomentSketch.of_joint(need(self._space), self.query, [release.of_users])
        if sketch is not None:
            sketch.warn()
            sketch.save(need(self._place).run.path)

    def judge(self) -> MomentSketch | None:
        """What was released; None before, and where it was lost."""
        folder = need(self._place).run.path
        return MomentSketch.load(folder) if (folder / "moments.json").exists() else None


def best(distances: Mapping[int, float]) -> int:
    """The round with the smallest distance, the first of equal ones."""
    return min(distances, key=lambda number: (distances[number], number))
