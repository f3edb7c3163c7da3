"""What a run left of its rounds: texts with their scores, and norms of released updates.

Everything read here was released, or made from public text and what was released. Nothing else
of a run directory is opened: not the memory of correlated noise, and no file of a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flower_privsyn.runs import RunDirectory


@dataclass(frozen=True, kw_only=True)
class RoundTexts:
    """The texts of one round.

    Attributes:
        number: of the round.
        texts: all of them.
        scores: votes or scores of each, noisy as released; None before there are any.
        is_public: whether every text is public text as it was found.
    """

    number: int
    texts: tuple[str, ...]
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
        wanted = ("text", "source", "score", "votes")
        table = pq.read_table(path, columns=[name for name in wanted if name in names])
        texts = tuple(str(text) for text in table.column("text").to_pylist())
        sources = set(table.column("source").to_pylist()) if "source" in names else set()
    except (OSError, pa.ArrowException, KeyError):
        return None
    scores = None
    for name in ("score", "votes"):
        if name in names:
            values = table.column(name).to_pylist()
            if all(isinstance(value, int | float) for value in values):
                scores = tuple(float(value) for value in values)
    return RoundTexts(
        number=number,
        texts=texts,
        scores=scores,
        is_public=sources == {"public"},
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
