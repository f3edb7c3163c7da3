"""How the texts of a run move over its rounds: their embeddings in the plane.

The axes are the two directions in which held-out private text and what the runs wrote vary most
together (principal components), so the picture is an evaluation and not private.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flower_privsyn.comparison.plan import Cell
from flower_privsyn.embedding import Embedder
from flower_privsyn.evaluation.neighbors import library
from flower_privsyn.files import read_json, write_json
from flower_privsyn.host.progress import ProgressReporter
from flower_privsyn.report.rounds import round_files, spread_over
from flower_privsyn.runs import RunDirectory

#: Texts shown of a round, and rounds shown of a run.
_TEXTS: Final = 150
_ROUNDS: Final = 4


class Picture:
    """Embeddings of one run per method, at its beginning, its end and between.

    The first seed at the largest epsilon that has been run stands for a method.

    Args:
        file: where they are kept.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def add(
        self, run: RunDirectory, cell: Cell, embedder: Embedder, progress: ProgressReporter
    ) -> None:
        """Embed some texts of a run's rounds, unless a better run of its method is there."""
        known = read_json(self._file)
        rank = [cell.epsilon or 0.0, -cell.seed]
        before = known.get(cell.method)
        if before is not None and before["rank"] > rank:
            return
        rounds = texts_of_rounds(run)
        if not rounds:
            return
        shown = spread_over(sorted(rounds), _ROUNDS)
        vectors = {}
        with progress.stage("Embed the rounds' texts", len(shown)) as stage:
            for number in shown:
                texts = rounds[number]
                some = texts[:: max(1, len(texts) // _TEXTS)][:_TEXTS]
                vectors[str(number)] = np.round(embedder.embed(some), 4).tolist()
                stage.update()
        config = run.config
        known[cell.method] = {
            "rank": rank,
            "model": [config["embedding-model"], config["embedding-precision"]],
            "rounds": vectors,
        }
        write_json(self._file, known)

    def to_dict(
        self, held_out: Callable[[str, str], npt.NDArray[np.float32]]
    ) -> dict[str, Any] | None:
        """The plane, for `compare.json`; None before there is anything to show.

        Args:
            held_out: from an embedding model and its precision to (n, d) held-out embeddings.
        """
        known = read_json(self._file)
        if not known:
            return None
        # Embeddings of different models have no plane in common: the first method's is shown.
        model = next(iter(known.values()))["model"]
        same = {name: entry for name, entry in known.items() if entry["model"] == model}
        private = held_out(*model)
        rounds = {
            name: {number: np.array(rows) for number, rows in entry["rounds"].items()}
            for name, entry in same.items()
        }
        every = [private, *(rows for entry in rounds.values() for rows in entry.values())]
        axes = library("sklearn.decomposition").PCA(n_components=2, svd_solver="full")
        axes.fit(np.concatenate(every).astype(np.float64))

        def placed(rows: npt.NDArray[Any]) -> list[list[float]]:
            shown: list[list[float]] = axes.transform(rows.astype(np.float64)).round(3).tolist()
            return shown

        return {
            "explained": np.round(axes.explained_variance_ratio_, 4).tolist(),
            "held_out": placed(private),
            "methods": {
                name: {number: placed(rows) for number, rows in entry.items()}
                for name, entry in rounds.items()
            },
        }


def texts_of_rounds(run: RunDirectory) -> dict[int, list[str]]:
    """What stood for the result in each round: populations, or responses to the prompts.

    Empty for a strategy whose rounds hold no text.
    """
    import pyarrow.parquet as pq

    files = round_files(run)
    return {
        number: pq.read_table(file, columns=["text"]).column("text").to_pylist()
        for number, file in files.items()
    }
