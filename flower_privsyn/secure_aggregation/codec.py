"""What a node says and what it keeps as bytes: each field of a dataclass under its own name.

A whole number has 8 bytes; bytes have the length that `Annotated[bytes, length]` declares; a
dataclass has its fields one behind the other; whatever has `from_bytes` writes and reads itself.
Sets, tuples and tables are their items one behind the other, all of one length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from flower_privsyn.checks import raised_as
from flower_privsyn.errors import ConfigError, ProtocolError
from flower_privsyn.secure_aggregation.keys import whole

T = TypeVar("T")


def pack(value: Any) -> dict[str, bytes]:
    """The fields of a dataclass, each as bytes."""
    return {item.name: packed(getattr(value, item.name)) for item in fields(value)}


def unpack(kind: type[T], values: Mapping[str, object]) -> T:
    """Read what `pack` wrote; a field that is missing is empty.

    Args:
        kind: the dataclass.
        values: its fields; what else is there is not looked at.

    Raises:
        ProtocolError: a field has another form than agreed.
    """
    found = {name: read(name, hint, values.get(name, b"")) for name, hint in _hints(kind).items()}  # type: ignore[arg-type]
    return kind(**found)


@lru_cache(maxsize=32)
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def packed(value: Any) -> bytes:
    """A value as bytes."""
    if isinstance(value, Mapping):
        return b"".join(whole(name) + packed(one) for name, one in value.items())
    if isinstance(value, frozenset):
        return whole(*sorted(value))
    if isinstance(value, tuple):
        return b"".join(map(packed, value))
    if isinstance(value, int):
        return whole(value)
    if is_dataclass(value):
        return b"".join(pack(value).values())
    return value if isinstance(value, bytes) else bytes(value.to_bytes())


def read(name: str, hint: Any, data: object) -> Any:
    """Read what `packed` wrote.

    Args:
        name: what it is, for errors.
        hint: its type.
        data: the bytes.

    Raises:
        ProtocolError: it has another form than agreed.
    """
    if not isinstance(data, bytes):  # bytes(n) would be n zeros
        raise _other_form(name)
    kind, items = get_origin(hint), get_args(hint)
    if kind is Mapping:
        parts = _parts(name, data, 8 + _length(items[1]))
        table = {read(name, int, part[:8]): read(name, items[1], part[8:]) for part in parts}
        if len(table) < len(parts):
            raise ProtocolError(f"{name} names a node twice")
        return table
    if kind is frozenset or kind is tuple:
        parts = _parts(name, data, _length(items[0]))
        found = kind(read(name, items[0], part) for part in parts)
        if len(found) < len(parts):
            raise ProtocolError(f"{name} names a node twice")
        return found
    if hint is int or kind is Annotated:
        if len(data) != _length(hint):
            raise _other_form(name)
        return int.from_bytes(data, "little") if hint is int else data
    if is_dataclass(hint):
        made: Any = hint
        values, start = {}, 0
        for key, kind in _hints(made).items():
            end = start + _length(kind)
            values[key], start = read(key, kind, data[start:end]), end
        if start != len(data):
            raise _other_form(name)
        with raised_as(ProtocolError, ConfigError):
            return made(**values)
    return hint.from_bytes(data)


def _length(hint: Any) -> int:
    """Bytes of an item."""
    if hint is int:
        return 8
    if get_origin(hint) is Annotated:
        return int(get_args(hint)[1])
    return sum(_length(item) for item in _hints(hint).values())


def _parts(name: str, data: bytes, length: int) -> list[bytes]:
    if len(data) % length:
        raise _other_form(name)
    return [data[start : start + length] for start in range(0, len(data), length)]


def _other_form(name: str) -> ProtocolError:
    return ProtocolError(f"{name} has another form than agreed")
