"""A line of JSON read without recursion, however deeply it is nested and however long it is.

`json.loads` gives up on some thousand brackets inside one another, and builds every value of a
line. Whose line it is must not depend on what else stands in it: here only the values of the
outermost object are kept, and what is inside arrays and objects is checked and passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

# One token: a string, a number or a name, or a mark. Possessive: nothing is looked at twice, but
# for what may be missing of a number: Python 3.11.0 to 3.11.3 take half of a possessive group.
_TOKEN: Final = re.compile(
    rb"[ \t\r\n]*+(?:"
    rb'(?P<string>"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+")'
    rb"|(?P<scalar>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
    rb"|true|false|null|NaN|-?Infinity)"
    rb"|(?P<mark>[\[\]{},:]))"
)
_SPACE: Final = b" \t\r\n"
# An object without others inside it, which is what rows are: found at once. What it holds is not
# checked; possessive, so that nothing is looked at twice.
_PLAIN: Final = re.compile(rb'\{(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")*+\}', re.DOTALL)
_BETWEEN: Final = re.compile(rb"[ \t\r\n]*+([,\]]?)[ \t\r\n]*+")
_CLOSES: Final = {ord("["): ord("]"), ord("{"): ord("}")}


def outermost(line: bytes) -> dict[str, Any] | None:
    """The keys and values of the object that a line holds.

    Args:
        line: UTF-8, without a byte order mark; other bytes inside strings become halves of
            surrogate pairs, as with `surrogateescape`.

    Returns:
        Strings, numbers, booleans and null as `json.loads` reads them, an empty list or dict for
        an array or an object; of a key that occurs twice the last. None where the line is no JSON
        object.
    """
    found: dict[str, Any] = {}
    stack = bytearray()  # the marks that are open
    expected = b"v"  # v value, V value or ], k key, K key or }, c colon, n comma or end
    key = ""
    place, end = 0, len(line.rstrip(_SPACE))
    while place < end:
        token = _TOKEN.match(line, place, end)
        if token is None or (not stack and place):
            return None
        place = token.end()
        kind, text = str(token.lastgroup), token.group(token.lastgroup or 0)
        mark = text[0] if kind == "mark" else 0
        if not stack and mark != ord("{"):
            return None
        if expected in b"kK" and kind == "string":
            if len(stack) == 1:
                key = _string(text)
            expected = b"c"
        elif expected == b"c" and mark == ord(":"):
            expected = b"v"
        elif expected in b"vV" and (kind != "mark" or mark in _CLOSES):
            if len(stack) == 1:
                found[key] = _value(kind, text, mark)
            if mark:
                stack.append(mark)
            expected = {ord("["): b"V", ord("{"): b"K"}.get(mark, b"n")
        elif expected in b"nVK" and stack and mark == _CLOSES[stack[-1]]:
            stack.pop()
            expected = b"n"
        elif expected == b"n" and mark == ord(","):
            expected = b"v" if stack[-1] == ord("[") else b"k"
        else:
            return None
    return found if place and not stack else None


def entries(array: bytes | bytearray) -> Iterator[bytes | None]:
    """The objects of a JSON array, one after another, each as it is written.

    Args:
        array: From its opening bracket on.

    Yields:
        The bytes of an object; what stands in them is still to be checked. None, and then nothing
        more, where the array is broken: an entry is no object, or the array does not end.
    """
    found = _BETWEEN.match(array, 1)
    place = found.end() if found else 1
    if found and found.group(1) == b"]":
        if array[place:].strip():
            yield None
        return
    if found and found.group(1):
        yield None
        return
    while True:
        end = _end_of_object(array, place)
        if end is None:
            yield None
            return
        yield bytes(array[place:end])
        found = _BETWEEN.match(array, end)
        mark = found.group(1) if found else b""
        place = found.end() if found else end
        if mark == b"]" and not array[place:].strip():
            return
        if mark != b",":
            yield None
            return


def _end_of_object(text: bytes | bytearray, start: int) -> int | None:
    """Where an object ends that begins here; None where none does."""
    if plain := _PLAIN.match(text, start):
        return plain.end()
    if text[start : start + 1] != b"{":
        return None
    depth, place = 0, start
    while token := _TOKEN.match(text, place):
        place = token.end()
        mark = token.group("mark")
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if not depth:
                return place
    return None


def _string(text: bytes) -> str:
    return str(json.loads(text.decode("utf-8", "surrogateescape")))


def _value(kind: str, text: bytes, mark: int) -> Any:
    if mark:
        return [] if mark == ord("[") else {}
    if kind == "string":
        return _string(text)
    return json.loads(text, parse_int=whole_number)


def whole_number(digits: str) -> int | float:
    """A whole number; not a number where Python refuses to read so many digits."""
    try:
        return int(digits)
    except ValueError:
        return float("nan")
