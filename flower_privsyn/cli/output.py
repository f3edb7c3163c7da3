"""Exit statuses, and how the commands say what they found.

Commands print what stands in run directories, what servers answer and what models write. It all
goes through one stream, so that no place of printing has to know whose text it prints: whatever a
text holds, it neither colours, moves nor tells a terminal anything.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, Final, TextIO

FAILED: Final = 1
"""Exit status: something failed unexpectedly."""

REFUSED: Final = 2
"""Exit status: what was asked for cannot be done."""

INTERRUPTED: Final = 130
"""Exit status: a signal or Ctrl-C ended the command."""

#: What colours a text or moves where it is written: Rich's, Flower's and everybody's.
_SEQUENCE: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

#: Single characters that terminals obey, and halves of pairs, which no stream takes.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def complain(sentence: str, status: int) -> int:
    """Say on the standard error why a command ends with this exit status, and return it."""
    sys.stderr.write(f"privsyn: {sentence}\n")
    return status


def tell(line: str) -> None:
    """Say on the standard error what is being done; where nobody can be told, it is done still."""
    with suppress(OSError):
        sys.stderr.write(f"{line}\n")


def number(value: float | None, *, none: str = "none") -> str:
    """A figure with four digits; `none` where there is none."""
    return none if value is None else f"{value:.4g}"


def plain_line(text: str) -> str:
    """A text that somebody else wrote, in one line of at most 400 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 400 else f"{line[:400]} ..."


def show_json(document: Any) -> int:
    """Print what was found as JSON; the exit status of a command that does nothing else."""
    print(json.dumps(document, ensure_ascii="utf" not in sys.stdout.encoding.lower(), indent=2))
    return 0


def show_table(
    rows: Iterable[Sequence[object]], headings: Sequence[str] = (), *, title: str = ""
) -> None:
    """Print rows: names and what is known under each; or, with headings, names and figures.

    Args:
        rows: a text that somebody else wrote may look like markup, and is printed as it is.
        headings: of all columns.
        title: above the table; none by default.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=bool(headings))
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", overflow="fold")
    if not headings:
        table.add_column(style="bold", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(str(cell), overflow="fold") for cell in row))
    if title:
        print(title)
    Console().print(table)


class PlainStream:
    """A stream whose text has no control characters.

    Args:
        stream: that is written to; None of a process that was started without one.

    Attributes:
        encoding: of the stream.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or io.StringIO()
        self.encoding = self._stream.encoding or "utf-8"

    def write(self, text: str) -> int:
        r"""Write a text; its length.

        Sequences of control are left out, and other control characters become what JSON writes for
        them, such as `\u001b`; ends of lines and tabs stay. JSON says the same as before. What the
        stream's encoding lacks, as in a Latin locale, is written by its number.
        """
        plain = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", _SEQUENCE.sub("", text))
        self._stream.write(plain.encode(self.encoding, "backslashreplace").decode(self.encoding))
        self._stream.flush()  # at the interpreter's end nobody would notice that it fails
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def plain_streams() -> Iterator[None]:
    """Have everything that this process prints go through such streams."""
    with redirect_stdout(PlainStream(sys.stdout)), redirect_stderr(PlainStream(sys.stderr)):
        yield
