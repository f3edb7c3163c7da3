"""What a run left of its rounds: texts with their embeddings, and norms of released updates.

Everything read here was released, or made from public text and what was released. Nothing else
of a run directory is opened: not the memory of correlated noise, and no file of a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from flower_privsyn.runs import RunDirectory

#: Rows of one round that the principal components are made from, at most.
_ROWS = 4000


@dataclass(frozen=True, kw_only=True)
class RoundTexts:
    """The texts of one round.

    Attributes:
        number: of the round.
        texts: all of them.
        embeddings: (n, d) float32; None where the round stored none.
        scores: votes or scores of each, noisy as released; None before there are any.
        is_public: whether every text is public text as it was found.
    """

    number: int
    texts: tuple[str, ...]
    embeddings: npt.NDArray[np.float32] | None
    scores: tuple[float, ...] | None
    is_public: bool

    def best(self, count: int) -> list[str]:
        """The texts with the highest scores, or the first ones where nothing was scored."""
        order = list(range(len(self.texts)))
        if self.scores is not None:
            scores = self.scores
            order.sort(key=lambda index: (-scores[index], index))
        return list(dict.fromkeys(self.texts[index] for index in order))[:count]


def round_files(run: RunDirectory) -> dict[int, Path]:
    """The files with the texts of each round, by number.

    Args:
        run: of any strategy; one that trains on the nodes has no such files.
    """
    return {number: file for number, files in run.rounds if (file := files.texts) is not None}


def read_round(number: int, path: Path) -> RoundTexts | None:
    """The texts in a round's file; None where it cannot be read, as when it is being replaced.

    Args:
        number: of the round.
        path: the file of its texts.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = set(pq.read_schema(path).names)
        wanted = ("text", "source", "embedding", "score", "votes")
        table = pq.read_table(path, columns=[name for name in wanted if name in names])
        texts = tuple(str(text) for text in table.column("text").to_pylist())
        sources = set(table.column("source").to_pylist()) if "source" in names else set()
    except (OSError, pa.ArrowException, KeyError):
        return None
    embeddings = None
    if "embedding" in names and texts:
        column = table.column("embedding").combine_chunks()
        flat = np.asarray(column.values, dtype=np.float32)
        if flat.size and flat.size % len(texts) == 0:
            embeddings = flat.reshape(len(texts), -1)
    scores = None
    for name in ("score", "votes"):
        if name in names:
            values = table.column(name).to_pylist()
            if all(isinstance(value, int | float) for value in values):
                scores = tuple(float(value) for value in values)
    return RoundTexts(
        number=number,
        texts=texts,
        embeddings=embeddings,
        scores=scores,
        is_public=sources == {"public"},
    )


def spread_over(numbers: Sequence[int], count: int) -> list[int]:
    """At most so many of the numbers, the first and the last among them, evenly between.

    Args:
        numbers: ascending.
        count: at least 2.
    """
    if len(numbers) <= count:
        return list(numbers)
    last = len(numbers) - 1
    return [numbers[round(place * last / (count - 1))] for place in range(count)]


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Rounds in the plane of their two principal components.

    Attributes:
        points: for each round (n, 2).
        explained: shares of the variance that the two components explain, each in [0, 1].
    """

    points: dict[int, npt.NDArray[np.float64]]
    explained: tuple[float, float]


def principal_plane(rounds: dict[int, npt.NDArray[np.float32]]) -> Plane | None:
    """Two principal components of the embeddings of several rounds together.

    Each round counts the same, however many texts it has. A component points to where its largest
    loading is positive, so that a page made twice is the same page.

    Args:
        rounds: (n, d) of each, with one d.

    Returns:
        None where there is nothing to see: fewer than two dimensions or three texts.
    """
    kept = {number: found for number, found in rounds.items() if len(found)}
    if len({found.shape[1] for found in kept.values()}) != 1:
        return None
    parts = [np.asarray(f[:: -(-len(f) // _ROWS)], dtype=np.float64) for f in kept.values()]
    if sum(len(part) for part in parts) < 3 or parts[0].shape[1] < 2:
        return None
    centre = np.mean([part.mean(axis=0) for part in parts], axis=0)
    covariance = np.mean(
        [(part - centre).T @ (part - centre) / len(part) for part in parts], axis=0
    )
    values, vectors = np.linalg.eigh(covariance)
    total = float(values.sum())
    if not np.isfinite(total) or total <= 0:
        return None
    axes = vectors[:, [-1, -2]]
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    return Plane(
        points={
            number: (np.asarray(found, dtype=np.float64) - centre) @ axes
            for number, found in kept.items()
        },
        explained=(float(values[-1]) / total, max(0.0, float(values[-2]) / total)),
    )


def round_records(
    run: RunDirectory, kind: Literal["server", "training"]
) -> dict[int, dict[str, Any]]:
    """What a small JSON file of the rounds says, by round.

    Args:
        run: of any strategy.
        kind: which of a round's files.
    """
    return {number: record for number, files in run.rounds if (record := files.record(kind))}
