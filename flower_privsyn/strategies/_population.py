"""The texts of a round: as a method holds them, on the disk, and which of them survived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.files import replacing
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import round_texts
from flower_privsyn.run.method import State

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Population:
    """Candidate texts of one round.

    Attributes:
        texts: the candidates.
        ids: one identifier per text, unique within a run: "<round>:<index>".
        parents: for each text the ids it was made from; empty for public seeds.
        source: for each text "public", "generated", "variation" or "survivor".
        embeddings: (n, d) float32, what is broadcast, or None before it is computed.
        labels: for each text the name of its class; None where texts have none.
    """

    texts: Sequence[str]
    ids: Sequence[str]
    parents: Sequence[Sequence[str]]
    source: Sequence[str]
    embeddings: npt.NDArray[np.float32] | None = None
    labels: Sequence[str] | None = None

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
        parents: Sequence[Sequence[str]] | None = None,
        labels: Sequence[str] | None = None,
    ) -> Population:
        """A population of one round with ids "<round>:<index>", of one source or one each."""
        return cls(
            texts=texts,
            ids=[f"{round_number}:{index}" for index in range(len(texts))],
            parents=[()] * len(texts) if parents is None else parents,
            source=[source] * len(texts) if isinstance(source, str) else source,
            labels=labels,
        )

    def take(self, indices: IntArray) -> Population:
        """The texts at `indices`, in that order, repetitions allowed; without embeddings."""
        taken: dict[str, Any] = {
            name: None if column is None else [column[i] for i in indices]
            for name, column in {**self.state(), "embeddings": None}.items()
        }
        return Population(**taken)

    def to_parquet(self, path: Path, **columns: Sequence[Any]) -> None:
        """Write the population, with extra columns such as votes or survivor counts.

        Readable by its owner alone, as the release is: votes and scores are the release.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        table: dict[str, Any] = {
            "id": self.ids,
            "text": self.texts,
            "parent": [list(parents) for parents in self.parents],
            "source": self.source,
        }
        if self.labels is not None:
            table["label"] = self.labels
        if self.embeddings is not None:
            flat = pa.array(self.embeddings.reshape(-1))
            table["embedding"] = pa.FixedSizeListArray.from_arrays(flat, self.embeddings.shape[1])
        with replacing(path, for_the_owner=True) as file:
            pq.write_table(pa.table({**table, **columns}), file)

    def state(self) -> State:
        """The population as a method keeps it between two rounds."""
        return dict(vars(self))

    @classmethod
    def of_state(cls, state: State) -> Population:
        """The population that a method has kept, among other things it may have kept."""
        return cls(**{field.name: state[field.name] for field in fields(cls)})


def survivors(run: RunDirectory, *, rounds: Sequence[int] | None = None) -> Population:
    """The union of the survivors of released rounds of a run, a text of several rounds once.

    Args:
        run: its directory.
        rounds: of which rounds; None for all that were released.

    Returns:
        The survivors; none of a run whose rounds choose no texts.
    """
    found: dict[Any, dict[str, Any]] = {}
    texts = round_texts(run)
    for number in run.rounds_with_outcome("released") if rounds is None else rounds:
        for row in texts.get(number, []):
            if row.get("survived"):
                found.setdefault((row["text"], row.get("label")), row)
    rows = list(found.values())
    return Population(
        texts=[row["text"] for row in rows],
        ids=[row["id"] for row in rows],
        parents=[row["parent"] for row in rows],
        source=["survivor"] * len(rows),
        labels=[row["label"] for row in rows] if rows and "label" in rows[0] else None,
    )


def survivor_records(survivors: Population) -> list[dict[str, Any]]:
    """Survivors as `RunDirectory.write_synthetic` takes them, with their labels."""
    labels = survivors.labels
    return [
        {
            "text": text,
            "round": int(survivors.ids[place].split(":")[0]),
            "parent": list(survivors.parents[place]),
            "source": "survivor",
            **({} if labels is None else {"label": labels[place]}),
        }
        for place, text in enumerate(survivors.texts)
    ]
