"""What a GGUF file says of itself, read without trusting it, before a library sees it.

llama.cpp ends its whole process on some broken files, and takes sizes from the file's own words.
Here every count, length and offset is held against what the file has, and nothing is allocated by
a number of the file.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flower_privsyn.errors import ModelError
from flower_privsyn.files import sha256_of

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)

#: More than any model has; a file that claims more is not walked through.
_MOST_ENTRIES: Final = 65_536
_LONGEST_NAME: Final = 63  # of a tensor, as ggml keeps it
_MOST_DIMENSIONS: Final = 4

_ARCHITECTURE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}")

#: Scalars of the metadata, by the number of their type.
_SCALARS: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
    10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_NO_WHOLE_NUMBERS: Final = ("<f", "<?", "<d")
_STRING: Final = 8
_ARRAY: Final = 9

#: Numbers in a block and the bytes they take, by the number of a tensor's type.
_BLOCKS: Final = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 40),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4),
    27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66),
    39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GGUFList:
    """A list of the metadata.

    Attributes:
        length: of it.
        form: how `struct` reads one of its numbers; "" where they are no whole numbers, or more
            than any model has layers.
        content: their bytes, which take no more memory than the file has.
    """

    length: int
    form: str = ""
    content: bytes = b""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its whole numbers: of most lists one for each layer."""
        if not self.form:
            return ()
        return tuple(number for (number,) in struct.iter_unpack(self.form, self.content))


@dataclass(frozen=True, kw_only=True)
class GGUFHeader:
    """What was found in a file.

    Attributes:
        architecture: as the file names it, such as "llama" or "gemma3".
        parameters: numbers in all its tensors.
        vocabulary: tokens of its tokenizer; 0 where it has none.
        metadata: its scalars, strings and lists by key.
    """

    architecture: str
    parameters: int
    vocabulary: int
    metadata: Mapping[str, Any]

    def number(self, key: str) -> int:
        """A whole number of the architecture, such as "block_count"; 0 where there is none."""
        value = self.metadata.get(f"{self.architecture}.{key}", 0)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    def numbers(self, key: str) -> tuple[int, ...]:
        """The same where layers may differ: one for each layer, or one for all; () where none."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, GGUFList):
            return value.numbers
        return () if value is None else (self.number(key),)

    @property
    def context(self) -> int:
        """Tokens that the model was trained on at a time; 0 where the file does not say."""
        return self.number("context_length")

    @property
    def cache_bytes(self) -> int:
        """Bytes that a token takes in a cache of keys and values in half precision."""
        heads = self.numbers("attention.head_count")
        # llama.cpp, too, takes the width of a head from the first layer.
        width = self.number("embedding_length") // max((1, *heads[:1]))
        keys = self.number("attention.key_length") or width
        values = self.number("attention.value_length") or width
        shared = self.numbers("attention.head_count_kv") or heads
        in_layers = self.number("block_count") * sum(shared) if len(shared) == 1 else sum(shared)
        return 2 * in_layers * (keys + values)


def read_gguf(path: str | Path) -> GGUFHeader:
    """Read the header of a GGUF file and check that the file holds what it says.

    Args:
        path: the file.

    Raises:
        ModelError: there is no such file, or it is not whole: one sentence that says where.
    """
    file = Path(path)
    try:
        if not file.is_file():
            raise ModelError(f"GGUF file {file} does not exist")
        with file.open("rb") as opened:
            if opened.read(4) != _MAGIC:
                raise ModelError(f"{file} is no GGUF file: it does not begin with GGUF")
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Reader(content, file).header()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelError(f"GGUF file {file} cannot be read: {reason}") from error


def digest_of(path: str | Path) -> str:
    """The sha256 of a file, in hexadecimal digits.

    Args:
        path: the file.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        return sha256_of(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelError(f"GGUF file {path} cannot be read: {reason}") from error


class _Reader:
    """Walks through a file once, never past its end."""

    def __init__(self, content: mmap.mmap, file: Path) -> None:
        self._content = content
        self._file = file
        self._place = 4

    def header(self) -> GGUFHeader:
        version = self._scalar("<I")
        if version not in _VERSIONS:
            raise self._broken(f"its version is {version}; 2 and 3 are read")
        tensors, entries = self._scalar("<Q"), self._scalar("<Q")
        for what, count in (("tensors", tensors), ("entries", entries)):
            if not 1 <= count <= _MOST_ENTRIES:
                raise self._broken(f"it claims {count:,} {what}; 1 to {_MOST_ENTRIES:,} are read")
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._string("key")
            if key in metadata:
                raise self._broken(f"its key {key[:80]!r} is there twice")
            metadata[key] = self._value(self._scalar("<I"), key)
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise self._broken("it does not say general.architecture")
        if not _ARCHITECTURE.fullmatch(architecture):
            raise self._broken(
                f"its general.architecture, {architecture[:80]!a}, is no architecture's name"
            )
        parameters = self._tensors(tensors, alignment=metadata.get("general.alignment", 32))
        tokens = metadata.get("tokenizer.ggml.tokens", GGUFList(length=0))
        if not isinstance(tokens, GGUFList):
            raise self._broken("tokenizer.ggml.tokens is no list")
        header = GGUFHeader(
            architecture=architecture,
            parameters=parameters,
            vocabulary=tokens.length,
            metadata=metadata,
        )
        self._refuse_absurd(header, tensors)
        return header

    def _tensors(self, count: int, *, alignment: object) -> int:
        """Check where tensors lie; the numbers in all of them."""
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._broken(f"general.alignment is {alignment!r}, no power of two")
        parameters, ends, names = 0, [0], set()
        for _ in range(count):
            name = self._string("name of a tensor")
            if len(name.encode()) > _LONGEST_NAME or name in names:
                raise self._broken(f"tensor {name[:80]!r} is there twice or its name is too long")
            names.add(name)
            dimensions = self._scalar("<I")
            if not 1 <= dimensions <= _MOST_DIMENSIONS:
                raise self._broken(f"tensor {name!r} has {dimensions:,} dimensions")
            shape = [self._scalar("<Q") for _ in range(dimensions)]
            kind, offset = self._scalar("<I"), self._scalar("<Q")
            if kind not in _BLOCKS:
                raise self._broken(f"tensor {name!r} is of the unknown type {kind}")
            numbers, size = _BLOCKS[kind]
            # Python's numbers have no end: nothing wraps round as it would in C.
            if 0 in shape or shape[0] % numbers:
                raise self._broken(f"tensor {name!r} has the shape {_shown(shape)}")
            if offset % alignment:
                raise self._broken(f"tensor {name!r} does not begin at a multiple of {alignment}")
            parameters += math.prod(shape)
            ends.append(offset + math.prod(shape) // numbers * size)
        begin = -(-self._place // alignment) * alignment
        if begin + max(ends) > len(self._content):
            raise self._broken(
                f"its tensors end at byte {begin + max(ends):,} and the file at "
                f"{len(self._content):,}: it was cut off, or its sizes are wrong"
            )
        return parameters

    def _refuse_absurd(self, header: GGUFHeader, tensors: int) -> None:
        """Sizes that the tensors cannot have, and that others would allocate by."""
        # By what each can be at most: a layer has a tensor, a width is a tensor's.
        most = {
            "block_count": tensors,
            "embedding_length": header.parameters,
            "feed_forward_length": header.parameters,
            "attention.head_count": header.parameters,
            "attention.head_count_kv": header.parameters,
            "attention.key_length": header.parameters,
            "attention.value_length": header.parameters,
        }
        for key, limit in most.items():
            for number in header.numbers(key):
                if not 0 <= number <= limit:
                    raise self._broken(
                        f"{header.architecture}.{key} is {number:,}, which its {tensors:,} "
                        f"tensors of {header.parameters:,} numbers cannot have"
                    )
        if any(context < 1 for context in header.numbers("context_length")):
            raise self._broken(
                f"{header.architecture}.context_length is no number of tokens, 1 or more"
            )
        if header.cache_bytes > 2 * header.parameters:
            raise self._broken("its heads are larger than its tensors")

    # ---- pieces --------------------------------------------------------------------------------

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string(f"text of {key[:80]!r}")
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind != _ARRAY:
            raise self._broken(f"{key[:80]!r} is of the unknown type {kind}")
        of, count = self._scalar("<I"), self._scalar("<Q")
        if of == _STRING:
            if 8 * count > len(self._content) - self._place:
                raise self._broken(f"{key[:80]!r} claims {count:,} texts, more than the file has")
            for _ in range(count):
                self._skip(self._scalar("<Q"), f"a text of {key[:80]!r}")
        elif of in _SCALARS:
            place, form = self._place, _SCALARS[of]
            self._skip(count * struct.calcsize(form), f"the list {key[:80]!r}")
            if count <= _MOST_ENTRIES and form not in _NO_WHOLE_NUMBERS:
                return GGUFList(length=count, form=form, content=self._content[place : self._place])
        else:
            raise self._broken(f"{key[:80]!r} is a list of the unknown type {of}")
        return GGUFList(length=count)

    def _scalar(self, form: str) -> Any:
        place = self._place
        self._skip(struct.calcsize(form), "a number")
        return struct.unpack_from(form, self._content, place)[0]

    def _string(self, what: str) -> str:
        length = self._scalar("<Q")
        place = self._place
        self._skip(length, f"the {what}")
        return self._content[place : place + length].decode("utf-8", "replace")

    def _skip(self, length: int, what: str) -> None:
        if length > len(self._content) - self._place:
            raise self._broken(
                f"{what} at byte {self._place:,} is to take {length:,} bytes and the file ends at "
                f"{len(self._content):,}"
            )
        self._place += length

    def _broken(self, what: str) -> ModelError:
        return ModelError(f"GGUF file {self._file} is broken: {what}")


def _shown(shape: list[int]) -> str:
    return " x ".join(f"{size:,}" for size in shape)
