"""A population of any size made of the bundled public text: for scale tests, not for quality.

How long a round takes and how much memory it needs depends on how many users there are and how much
they write, not on what. Nothing about people can be learned from these users: nobody wrote their
text, and a method that looks good on them has shown nothing.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_whole
from flower_privsyn.data.public_corpus import BUNDLED
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import expanded, replacing

#: How often a sample is about the user's own topic.
_OWN_TOPIC = 0.75
#: Users drawn at a time: what bounds the memory, and part of what the seed stands for.
_BLOCK = 4096


def simulate_users(
    path: str | Path,
    *,
    users: int,
    samples_per_user: int = 5,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write users who quote the bundled passages, as `load_users` reads them.

    Every user has a topic, one of the 57 sources of the passages, a common one more often than a
    rare one; three of four samples come from it and the others from all passages, so that votes are
    far from uniform. Distinct texts are at most the 6,144 passages, so embedding all of a
    population costs no more than embedding those. A passage has 25 to 45 words; the longest are
    more than 64 tokens and make two samples unless `max-samples` says otherwise.

    Memory does not depend on the number of users. The same arguments give the same rows, whatever
    the format.

    Args:
        path: A `.jsonl` or `.parquet` file; Parquet holds a passage once in 4,096 users instead of
            in every row and takes an eighth of the disk. Written as a whole.
        users: Number of users, at least 1.
        samples_per_user: Passages of each, at least 1.
        seed: Of the draws, at least 0.
        progress: Called with the number of users done since the last call.

    Returns:
        The number of rows.

    Raises:
        ConfigError: If a number is out of range or the path has another suffix.
    """
    path = expanded(path)
    for name, value, low in (
        ("users", users, 1),
        ("samples-per-user", samples_per_user, 1),
        ("seed", seed, 0),
    ):
        check_whole(name, value, ge=low)
    if path.suffix.lower() not in (".jsonl", ".parquet"):
        raise ConfigError(f"The output must end in .jsonl or .parquet, got {path.name}.")
    if not path.parent.is_dir():
        raise ConfigError(f"There is no folder {path.parent} to write {path.name} into.")
    texts, topics = _passages()
    blocks = _blocks(topics, users=users, samples_per_user=samples_per_user, seed=seed)
    write = _write_parquet if path.suffix.lower() == ".parquet" else _write_json_lines
    with replacing(path) as temporary:
        return write(temporary, texts, blocks, progress)


def _passages() -> tuple[list[str], NDArray[np.int64]]:
    """The bundled passages, and the number of each one's source."""
    lines = gzip.decompress(BUNDLED.read_bytes()).decode("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    numbers: dict[str, int] = {}
    topics = [numbers.setdefault(row["source"], len(numbers)) for row in rows]
    return [row["text"] for row in rows], np.asarray(topics, dtype=np.int64)


def _blocks(
    topics: NDArray[np.int64], *, users: int, samples_per_user: int, seed: int
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """First user and passages (b, samples_per_user) of consecutive blocks of users."""
    order = np.argsort(topics, kind="stable")
    counts = np.bincount(topics)
    first = np.cumsum(counts) - counts
    # By the square root: the largest source would else be the topic of one user in seven.
    share = np.sqrt(counts) / np.sqrt(counts).sum()
    for number, start in enumerate(range(0, users, _BLOCK)):
        size = min(_BLOCK, users - start)
        chooser = np.random.default_rng([seed, number])
        # Always a whole block, so that more users begin with the same ones.
        topic = chooser.choice(len(counts), size=_BLOCK, p=share)[:, None]
        shape = (_BLOCK, samples_per_user)
        place = chooser.random(shape)
        own = order[first[topic] + (place * counts[topic]).astype(np.int64)]
        other = (place * len(topics)).astype(np.int64)
        drawn = np.where(chooser.random(shape) < _OWN_TOPIC, own, other)
        yield start, drawn[:size]


def _user_id(number: int) -> str:
    return f"simulated-{number:07d}"


def _write_json_lines(
    path: Path,
    texts: list[str],
    blocks: Iterator[tuple[int, NDArray[np.int64]]],
    progress: Callable[[int], None] | None,
) -> int:
    encoded = [json.dumps(text, ensure_ascii=False) for text in texts]
    rows = 0
    with path.open("w", encoding="utf-8") as file:
        for start, drawn in blocks:
            for place, passages in enumerate(drawn.tolist()):
                head = f'{{"client_id": "{_user_id(start + place)}", "text": '
                file.write("".join(f"{head}{encoded[passage]}}}\n" for passage in passages))
            rows += drawn.size
            if progress is not None:
                progress(len(drawn))
    return rows


def _write_parquet(
    path: Path,
    texts: list[str],
    blocks: Iterator[tuple[int, NDArray[np.int64]]],
    progress: Callable[[int], None] | None,
) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("client_id", pa.string()), ("text", pa.string())])
    known: Any = pa.array(texts, pa.string())
    rows = 0
    # Room for all passages, else a row group gives up its dictionary and spells every text out.
    room = 2 * sum(len(text.encode()) + 4 for text in texts)
    with pq.ParquetWriter(
        path, schema, compression="zstd", dictionary_pagesize_limit=room
    ) as writer:
        for start, drawn in blocks:
            names = pa.array([_user_id(start + place) for place in range(len(drawn))], pa.string())
            owners = pa.array(np.repeat(np.arange(len(drawn)), drawn.shape[1]))
            columns = [names.take(owners), known.take(pa.array(drawn.reshape(-1)))]
            writer.write_table(pa.table(columns, schema=schema))
            rows += drawn.size
            if progress is not None:
                progress(len(drawn))
    return rows
