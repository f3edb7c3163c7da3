"""Synthetic texts with what is known of them: never people, those are counted by `num_users`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.files import replacing
from flower_privsyn.private_path.state import State
from flower_privsyn.runs import RunDirectory
from flower_privsyn.runs.rounds import RoundFiles


@dataclass(frozen=True, kw_only=True)
class Population:
    """Candidate texts of one round.

    Attributes:
        texts: the candidates.
        ids: one identifier per text, unique within a run: "<round>:<index>".
        parents: for each text the ids it was made from; empty for public seeds.
        source: for each text "public", "selected", "generated", "variation" or "survivor".
        embeddings: (n, d) float32, what is broadcast, or None before it is computed.
        labels: for each text the name of its class; None where texts have none.
    """

    texts: tuple[str, ...]
    ids: tuple[str, ...]
    parents: tuple[tuple[str, ...], ...]
    source: tuple[str, ...]
    embeddings: npt.NDArray[np.float32] | None = None
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check that the columns have one length."""
        lengths = {len(self.texts), len(self.ids), len(self.parents), len(self.source)}
        if len(lengths) != 1:
            raise ValueError("texts, ids, parents and source must have one length")
        if self.embeddings is not None and len(self.embeddings) != len(self.texts):
            raise ValueError(f"{len(self.embeddings)} embeddings for {len(self.texts)} texts")
        if self.labels is not None and len(self.labels) != len(self.texts):
            raise ValueError(f"{len(self.labels)} labels for {len(self.texts)} texts")

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
        labels: Sequence[str] | None = None,
    ) -> Population:
        """A population of one round with ids "<round>:<index>", of one source or one each."""
        return cls(
            texts=tuple(texts),
            ids=tuple(f"{round_number}:{index}" for index in range(len(texts))),
            parents=tuple(parents) if parents is not None else ((),) * len(texts),
            source=(source,) * len(texts) if isinstance(source, str) else tuple(source),
            labels=None if labels is None else tuple(labels),
        )

    def with_embeddings(self, embeddings: npt.NDArray[np.float32]) -> Population:
        """The same texts with their embeddings."""
        return replace(self, embeddings=embeddings)

    def take(self, indices: npt.NDArray[np.int64]) -> Population:
        """The texts at `indices`, in that order, repetitions allowed."""
        return Population(
            texts=tuple(self.texts[i] for i in indices),
            ids=tuple(self.ids[i] for i in indices),
            parents=tuple(self.parents[i] for i in indices),
            source=tuple(self.source[i] for i in indices),
            embeddings=None if self.embeddings is None else self.embeddings[indices],
            labels=None if self.labels is None else tuple(self.labels[i] for i in indices),
        )

    def to_parquet(self, path: Path, **columns: Sequence[Any]) -> None:
        """Write the population, with extra columns such as votes or survivor counts.

        Readable by its owner alone, as the release is: votes and scores are the release.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        table: dict[str, Any] = {
            "id": list(self.ids),
            "text": list(self.texts),
            "parent": [list(parents) for parents in self.parents],
            "source": list(self.source),
        }
        if self.labels is not None:
            table["label"] = list(self.labels)
        if self.embeddings is not None:
            flat = pa.array(self.embeddings.astype(np.float32).reshape(-1))
            table["embedding"] = pa.FixedSizeListArray.from_arrays(flat, self.embeddings.shape[1])
        table.update({name: list(values) for name, values in columns.items()})
        with replacing(path, for_the_owner=True) as temporary:
            pq.write_table(pa.table(table), temporary)

    def state(self) -> State:
        """The population as a method keeps it between two rounds."""
        columns = (("texts", self.texts), ("ids", self.ids), ("parents", self.parents))
        arrays = {} if self.embeddings is None else {"embeddings": self.embeddings}
        return {**dict(columns), "source": self.source, "labels": self.labels, **arrays}

    @classmethod
    def of_state(cls, state: State) -> Population:
        """The population that a method has kept."""
        return cls(
            texts=tuple(state["texts"]),
            ids=tuple(state["ids"]),
            parents=tuple(tuple(parents) for parents in state["parents"]),
            source=tuple(state["source"]),
            embeddings=state.get("embeddings"),
            labels=None if state["labels"] is None else tuple(state["labels"]),
        )


def survivors(
    run: RunDirectory, *, counted: bool = False, rounds: Sequence[int] | None = None
) -> Population:
    """The union of the survivors of released rounds of a run.

    Args:
        run: its directory.
        counted: take a text that survived in several rounds several times.
        rounds: of which rounds; None for all that were released.

    Returns:
        The survivors; none of a run whose rounds choose no texts.
    """
    import pyarrow.parquet as pq

    texts: list[str] = []
    ids: list[str] = []
    parents: list[tuple[str, ...]] = []
    labels: list[str] = []
    seen: set[tuple[str, str]] = set()
    for number in run.rounds_with_outcome("released") if rounds is None else rounds:
        file = RoundFiles(run.round_path(number)).population
        names = pq.read_schema(file).names if file.is_file() else ()
        if "survived" not in names:
            continue
        named = ["label"] if "label" in names else []
        table = pq.read_table(file, columns=["id", "text", "parent", "survived", *named])
        for row in table.to_pylist():
            known = (row["text"], row.get("label", ""))
            if not row["survived"] or (known in seen and not counted):
                continue
            seen.add(known)
            texts.append(row["text"])
            ids.append(row["id"])
            parents.append(tuple(row["parent"]))
            if named:
                labels.append(row["label"])
    return Population(
        texts=tuple(texts),
        ids=tuple(ids),
        parents=tuple(parents),
        source=("survivor",) * len(texts),
        labels=tuple(labels) if labels else None,
    )


def votes_by_class(run: RunDirectory) -> dict[str, float]:
    """The released votes of every class, summed over its candidates and all released rounds.

    Each candidate's noise is in them: a sum may be below 0.

    Args:
        run: its directory.

    Returns:
        The sums by the names of the classes; empty where texts have none.
    """
    import pyarrow.parquet as pq

    found: dict[str, float] = {}
    for number in run.rounds_with_outcome("released"):
        file = RoundFiles(run.round_path(number)).population
        if not file.is_file() or not {"label", "votes"} <= set(pq.read_schema(file).names):
            continue
        for row in pq.read_table(file, columns=["label", "votes"]).to_pylist():
            found[row["label"]] = found.get(row["label"], 0.0) + row["votes"]
    return found
