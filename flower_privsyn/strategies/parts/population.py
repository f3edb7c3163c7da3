"""Synthetic texts with what is known of them: never people, those are counted by `num_users`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.files import replacing
from flower_privsyn.runs import RunDirectory
from flower_privsyn.runs.rounds import RoundFiles


@dataclass(frozen=True)
class Population:
    """Candidate texts of one round.

    Attributes:
        texts: the candidates.
        ids: one identifier per text, unique within a run: "<round>:<index>".
        parents: for each text the ids it was made from; empty for public seeds.
        source: for each text "public", "generated", "variation" or "survivor".
        embeddings: (n, d) float32, what is broadcast, or None before it is computed.
    """

    texts: tuple[str, ...]
    ids: tuple[str, ...]
    parents: tuple[tuple[str, ...], ...]
    source: tuple[str, ...]
    embeddings: npt.NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        """Check that the columns have one length."""
        lengths = {len(self.texts), len(self.ids), len(self.parents), len(self.source)}
        if len(lengths) != 1:
            raise ValueError("texts, ids, parents and source must have one length")
        if self.embeddings is not None and len(self.embeddings) != len(self.texts):
            raise ValueError(f"{len(self.embeddings)} embeddings for {len(self.texts)} texts")

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.texts)

    @classmethod
    def create(
        cls,
        texts: Sequence[str],
        *,
        round_number: int,
        source: str | Sequence[str],
        parents: Sequence[tuple[str, ...]] | None = None,
    ) -> Population:
        """A population of one round with ids "<round>:<index>", of one source or one each."""
        return cls(
            texts=tuple(texts),
            ids=tuple(f"{round_number}:{index}" for index in range(len(texts))),
            parents=tuple(parents) if parents is not None else ((),) * len(texts),
            source=(source,) * len(texts) if isinstance(source, str) else tuple(source),
        )

    def with_embeddings(self, embeddings: npt.NDArray[np.float32]) -> Population:
        """The same texts with their embeddings."""
        return Population(self.texts, self.ids, self.parents, self.source, embeddings)

    def take(self, indices: npt.NDArray[np.int64]) -> Population:
        """The texts at `indices`, in that order, repetitions allowed."""
        embeddings = None if self.embeddings is None else self.embeddings[indices]
        return Population(
            tuple(self.texts[i] for i in indices),
            tuple(self.ids[i] for i in indices),
            tuple(self.parents[i] for i in indices),
            tuple(self.source[i] for i in indices),
            embeddings,
        )

    def to_parquet(self, path: Path, **columns: Sequence[Any]) -> None:
        """Write the population, with extra columns such as votes or survivor counts."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table: dict[str, Any] = {
            "id": list(self.ids),
            "text": list(self.texts),
            "parent": [list(parents) for parents in self.parents],
            "source": list(self.source),
        }
        if self.embeddings is not None:
            flat = pa.array(self.embeddings.astype(np.float32).reshape(-1))
            table["embedding"] = pa.FixedSizeListArray.from_arrays(flat, self.embeddings.shape[1])
        table.update({name: list(values) for name, values in columns.items()})
        with replacing(path) as temporary:
            pq.write_table(pa.table(table), temporary)

    @classmethod
    def from_parquet(cls, path: Path) -> Population:
        """Read what `to_parquet` wrote; extra columns are left out."""
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        embeddings = None
        if "embedding" in table.column_names:
            column = table.column("embedding").combine_chunks()
            size = column.type.list_size
            embeddings = np.asarray(column.values, dtype=np.float32).reshape(-1, size)
        return cls(
            texts=tuple(table.column("text").to_pylist()),
            ids=tuple(table.column("id").to_pylist()),
            parents=tuple(tuple(p) for p in table.column("parent").to_pylist()),
            source=tuple(table.column("source").to_pylist()),
            embeddings=embeddings,
        )


def survivors(run: RunDirectory, *, counted: bool = False) -> Population:
    """The union of the survivors of all released rounds of a run.

    Args:
        run: its directory.
        counted: take a text that survived in several rounds several times.

    Returns:
        The survivors; none of a run whose rounds choose no texts.
    """
    import pyarrow.parquet as pq

    texts: list[str] = []
    ids: list[str] = []
    parents: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for number in run.rounds_with_outcome("released"):
        file = RoundFiles(run.round_path(number)).population
        if not file.is_file() or "survived" not in pq.read_schema(file).names:
            continue
        table = pq.read_table(file, columns=["id", "text", "parent", "survived"])
        for row in table.to_pylist():
            if not row["survived"] or (row["text"] in seen and not counted):
                continue
            seen.add(row["text"])
            texts.append(row["text"])
            ids.append(row["id"])
            parents.append(tuple(row["parent"]))
    return Population(tuple(texts), tuple(ids), tuple(parents), ("survivor",) * len(texts))
