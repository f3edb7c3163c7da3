"""Text of others on a terminal: whatever it holds, it neither colours, moves nor tells it anything.

Commands print what stands in run directories, what servers answer and what models write. It all
goes through one stream, so that no place of printing has to know whose text it prints.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO

#: What colours a text or moves where it is written: Rich's, Flower's and everybody's.
_SEQUENCE: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

#: Single characters that terminals obey, and halves of pairs, which no stream takes.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def without_controls(text: str) -> str:
    r"""A text without sequences of control, and with other control characters as JSON writes them.

    Ends of lines and tabs stay. A JSON document says the same as before.

    Args:
        text: such as one with the character 27, of which `\u001b` is left.
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", _SEQUENCE.sub("", text))


class PlainStream:
    """A stream whose text has no control characters.

    Args:
        stream: that is written to.

    Attributes:
        stream: the same, for who draws on a terminal and prints nobody's text.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text without its control characters; its length."""
        self.stream.write(without_controls(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def plain_streams() -> Iterator[None]:
    """Have everything that this process prints go through such streams."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(PlainStream(sys.stdout)))
        stack.enter_context(contextlib.redirect_stderr(PlainStream(sys.stderr)))
        yield
