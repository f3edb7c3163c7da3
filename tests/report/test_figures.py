"""A picture holds its names and axes as text, and numbers are written for people."""

from __future__ import annotations

from flower_privsyn.report.figures import spending
from flower_privsyn.report.numbers import NOTHING, bytes_text, epsilon_text, writable
from tests.support.pages import pictures, read


def test_a_picture_names_what_is_in_it_and_is_the_same_again() -> None:
    def drawn() -> str:
        return spending({"ε release": [(1, 0.2), (3, 0.8)]}, budget=1.0)

    assert drawn() == drawn()
    (words,) = pictures(read(drawn()))
    assert all(name in words for name in ("ε release", "budget", "Round"))


def test_amounts() -> None:
    assert [epsilon_text(v) for v in (1.0, 7.58, None, 0.0)] == ["1", "7.58", "∞", "0"]
    sizes = (None, 999, 999_700, 32_963, 2.4e12)
    assert [bytes_text(v) for v in sizes] == [NOTHING, "999 bytes", "999.7 kB", "33.0 kB", "2.4 TB"]
    assert writable("a\x00b\u202ec\ud800") == "a\ufffdbc\ufffd"
