"""Reading files without giving them more memory than their size can justify.

A file of 306 kB can expand to 300 MB of text and take 722 MB while it is read. Files of data come
from many hands, so what one may expand to is bounded by its own size, and what one line may cost by
a constant. The rules are public, as everything that decides which documents count.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from flower_privsyn.errors import DataError

MAX_EXPANSION = 100
"""How many times its size on disk a compressed file may hold; text is compressed 3 to 20 times."""

FREE_BYTES = 2**25
"""What any compressed file may hold, however small it is: 32 MiB."""

MAX_EXPANDED_BYTES = 2**34
"""What no compressed file may hold more of: 16 GiB."""

MAX_STRING_BYTES = 12 * 2**20
"""Bytes of one JSON string as written; a longer one cannot be a document (`limits`)."""

MAX_LINE_BYTES = 2**20
"""Bytes of one line of JSON that is read whole; of a longer one the outermost values alone."""

_CHUNK: Final = 2**18
_PART_ROWS: Final = 2**16
# Possessive: a string that is never closed is looked at once.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# Stands for a string that is too long; no document holds NUL.
_TOO_LONG: Final = rb'"\u0000"'


def allowance(size: int) -> int:
    """What a compressed file of `size` bytes may hold, in bytes."""
    return min(MAX_EXPANDED_BYTES, max(FREE_BYTES, MAX_EXPANSION * size))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """A file to read from, decompressed where it is packed by gzip or its name says so.

    Args:
        path: The file.

    Raises:
        DataError: While it is read: it is no complete gzip file, or holds more than `allowance` of
            its size.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        packed = path.suffix.lower() == ".gz" or file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as expanded:
            yield io.BufferedReader(_Expanded(expanded, path), _CHUNK)


class _Expanded(io.RawIOBase):
    """What a gzip file holds, up to what it may."""

    def __init__(self, file: gzip.GzipFile, path: Path) -> None:
        self._file = file
        self._path = path
        self._limit = self._left = allowance(path.stat().st_size)

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes."""
        try:
            size = self._file.readinto(buffer)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise DataError(f"{self._path} is not a complete gzip file.") from None
        self._left -= size
        if self._left < 0:
            raise _too_much(self._path, self._limit)
        return size


def read_bytes(path: Path) -> bytearray:
    """A file's content; see `opened`."""
    content = bytearray()
    with opened(path) as file:
        while chunk := file.read(_CHUNK):
            content += chunk
    return content


def lines(content: bytearray) -> Iterator[tuple[int, bytes]]:
    """The lines of JSON lines that are not blank, with their numbers from 1.

    Not `splitlines`: a text may hold U+2028 and other separators unescaped.

    Args:
        content: From `read_bytes`.

    Yields:
        Number and line; strings that are too long to be documents are replaced by one that holds
        NUL, which is no document either. A line may still be longer than `MAX_LINE_BYTES`: it is
        for `flat_json.outermost` then.
    """
    start, number = 0, 0
    while start < len(content):
        number += 1
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        line = bytes(content[start:end])
        start = end + 1
        if not line.strip():
            continue
        yield number, shortened(line)


def shortened(line: bytes) -> bytes:
    """A line, its strings replaced that are too long to be documents, as in `lines`."""
    return _STRING.sub(_shortened, line) if len(line) > MAX_LINE_BYTES else line


def _shortened(found: re.Match[bytes]) -> bytes:
    string = found.group()
    return _TOO_LONG if len(string) > MAX_STRING_BYTES else string


def parquet_parts(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    """Columns of a Parquet file as Arrow tables of consecutive rows, strings as `large_string`.

    A file may name one long string a million times; so the strings of a part are added up before
    any of them is written out.

    Args:
        path: The file.
        columns: Which to read, all of them there.

    Yields:
        At most `_PART_ROWS` rows at a time, and one table without rows of a file that has none.

    Raises:
        DataError: They hold more than `allowance` of the file's size.
        pyarrow.ArrowException: It is no Parquet file.
        OSError: It cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    limit = allowance(path.stat().st_size)
    schema = pq.read_schema(path)
    strings = [
        name
        for name in columns
        if pa.types.is_string(kind := schema.field(name).type) or pa.types.is_large_string(kind)
    ]
    with pq.ParquetFile(path, read_dictionary=strings) as file:
        if _pages(file.metadata, columns) > limit:
            raise _too_much(path, limit)
        total = 0
        for number in range(file.num_row_groups):
            group = file.read_row_group(number, columns=list(columns)).select(list(columns))
            for start in range(0, group.num_rows, _PART_ROWS):
                part = group.slice(start, _PART_ROWS)
                total += sum(_size(chunk) for column in part.columns for chunk in column.chunks)
                if total > limit:
                    raise _too_much(path, limit)
                for name in strings:
                    place = part.column_names.index(name)
                    # 64-bit offsets: one part may hold more than 2 GiB of text.
                    written = part.column(place).cast(pa.large_string())
                    part = part.set_column(place, name, written)
                yield part
        if file.metadata.num_rows == 0:
            yield pq.read_table(path, columns=list(columns))


def _pages(metadata: Any, columns: Iterable[str]) -> int:
    """What the pages of these columns take when decompressed, as the file says."""
    wanted = set(columns)
    return sum(
        chunk.total_uncompressed_size
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
        if (chunk := metadata.row_group(group).column(column)).path_in_schema in wanted
    )


def _size(column: Any) -> int:
    """What a column takes once it is written out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).take(column.indices)
    return int(pc.sum(lengths).as_py() or 0)


def _too_much(path: Path, limit: int) -> DataError:
    return DataError(
        f"{path} holds more than {limit:,} bytes when it is decompressed; a compressed file may "
        f"hold {MAX_EXPANSION} times its own size, or {FREE_BYTES:,} bytes where that is more, "
        f"and never above {MAX_EXPANDED_BYTES:,}."
    )
