"""The file of a run that says what a joint sketch released of tokens and bigrams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from flower_privsyn.errors import RunDirectoryError
from flower_privsyn.files import replacing

#: In a run directory: what a release says, a row per token and per bigram.
SKETCH_FILE: Final = "sketch.parquet"

#: `source` of the texts of a run that chose public text by a sketch, and wrote none.
SELECTED: Final = "selected"

#: Its columns, in their order.
COLUMNS: Final = ("kind", "token", "text", "public", "rate", "log_ratio", "standard_error")


def write_sketch(folder: Path, blocks: Iterable[Sequence[Any]]) -> None:
    """Write `sketch.parquet`: a row per token and bigram, with what is said of it.

    Args:
        folder: of the run.
        blocks: of each kind its name, and by item the other `COLUMNS`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for kind, keys, texts, *numbers in blocks:
        columns = (
            pa.array([kind] * len(keys)).dictionary_encode(),
            pa.array(keys),
            pa.array(texts),
            *(pa.array(np.asarray(values, dtype=np.float32)) for values in numbers),
        )
        tables.append(pa.table(dict(zip(COLUMNS, columns, strict=True))))
    with replacing(folder / SKETCH_FILE) as file:
        pq.write_table(pa.concat_tables(tables), file)


def read_sketch(file: Path, *, most: int) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The items that a release is surest of.

    Args:
        file: `sketch.parquet`.
        most: items of each kind, at each end.

    Returns:
        By kind, "token" and "bigram", and "more" and "less": lists of text, ratio
        (private over public), and two standard errors either side of it, low and high. Items whose
        interval holds 1 are left out.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file, columns=["kind", "text", "log_ratio", "standard_error"])
    except (pa.ArrowException, OSError) as error:
        raise RunDirectoryError(f"{file} cannot be read, it is damaged: {error}") from error
    kinds = np.array(table.column("kind").to_pylist())
    texts = table.column("text")
    ratios, errors = (
        table.column(name).to_numpy().astype(np.float64) for name in ("log_ratio", "standard_error")
    )
    found = {}
    for kind in dict.fromkeys(kinds.tolist()):
        ends = {}
        for end, sign in (("more", 1.0), ("less", -1.0)):
            sure = np.where(kinds == kind, sign * ratios - 2.0 * errors, -np.inf)
            best = np.argsort(-sure, kind="stable")[:most]
            ends[end] = [
                {
                    "text": texts[place].as_py(),
                    "ratio": float(np.exp(ratios[place])),
                    "low": float(np.exp(ratios[place] - 2.0 * errors[place])),
                    "high": float(np.exp(ratios[place] + 2.0 * errors[place])),
                }
                for place in best[sure[best] > 0].tolist()
            ]
        found[kind] = ends
    return found
