"""Where the sentences of a text end, by its punctuation alone; the abbreviations are English."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

#: Quotation marks and brackets that close after a stop: ", ', and the curved and angled ones.
_CLOSING: Final = "\"'\u201d\u2019\u00bb)\\]"

#: The end of a sentence: a stop, what closes after it, then white space or the end of the text. The
#: full-width stops of East Asian text need no white space.
_END: Final = re.compile(
    rf"(?:[.!?\u2026]+[{_CLOSING}]*(?=\s|$)|[\u3002\uff01\uff1f]+[{_CLOSING}\u300d\u300f]*)"
)

#: Words whose full stop ends no sentence; single capitals are initials.
_SHORT: Final = re.compile(
    r"(?:^|[\s(\"\u201c\u2018])"
    r"(?:[A-Z]|(?:[A-Za-z]\.)+[A-Za-z]|Prof|Sen|Rep|Gov|Gen|Col|Lt|Sgt|Hon|Rev|St|"
    r"Jr|Sr|No|Nos|Art|Sec|Fig|Figs|Eq|Vol|Ch|pp|p|vs|cf|etc|approx|ca|Inc|Ltd|Co|Corp|Jan|Feb|"
    r"Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec)$"
)

#: Titles, after which a name follows: a text that stops there was cut.
_TITLE: Final = re.compile(r"(?:^|\W)(?:Mr|Mrs|Ms|Dr)$", re.IGNORECASE)

#: The next character that is no white space.
_NEXT: Final = re.compile(r"\s*(\S?)")

#: Characters before a stop that tell whether it ends a sentence: more than any abbreviation has.
_LONGEST: Final = 16


LEAST_WORDS: Final = 8
"""Whole sentences of fewer words are fragments."""


def sentence_ends(text: str) -> list[int]:
    """The places behind each sentence of a text, ascending.

    What follows the last of them is no whole sentence.

        >>> text = 'Mr. Hale asked: "Why?" Nobody knew. Not even'
        >>> [text[:end] for end in sentence_ends(text)]
        ['Mr. Hale asked: "Why?"', 'Mr. Hale asked: "Why?" Nobody knew.']
    """
    ends = []
    for found in _END.finditer(text):
        after = _NEXT.match(text, found.end())[1]  # type: ignore[index]  # it matches anything
        if after.islower():
            continue
        before = text[max(0, found.start() - _LONGEST) : found.start()]
        if found.group() == "." and (_TITLE.search(before) or (after and _SHORT.search(before))):
            continue
        ends.append(found.end())
    return ends


def whole_sentences(text: str) -> str:
    """The text up to the end of its last sentence; empty where there is none.

    >>> whole_sentences("It rained. We stayed in")
    'It rained.'
    """
    ends = sentence_ends(text)
    return text[: ends[-1]] if ends else ""


def is_whole(text: str) -> bool:
    """Whether a text is made of whole sentences: it does not begin in the middle of one either.

    >>> is_whole("It rained."), is_whole("rained. It"), is_whole("It rained")
    (True, False, False)
    """
    stripped = text.strip()
    first = next((letter for letter in stripped if letter.isalnum()), "")
    return bool(first) and not first.islower() and whole_sentences(stripped) == stripped


def mostly_whole(texts: Sequence[str]) -> bool:
    """Whether at least half of some texts are made of whole sentences: they are prose.

    Code, tables and text without punctuation are not, and nothing is to be cut of them.
    """
    return 2 * sum(map(is_whole, texts)) >= len(texts)


def sentences_inside(piece: str, *, before: str = "") -> str:
    """The whole sentences of a piece of a document; empty where they are a fragment or none.

    Args:
        piece: it may begin and end in the middle of a sentence.
        before: what stands right before it; "" where the document begins with it.

    >>> sentences_inside("of rain. We stayed in the old house for a week. Not", before="A day")
    'We stayed in the old house for a week.'
    """
    ends = sentence_ends(piece)
    inside = before.strip() != whole_sentences(before.strip())
    begin = ends[0] if ends and inside else 0
    found = piece[begin : ends[-1]].strip() if ends else ""
    return found if is_whole(found) and len(found.split()) >= LEAST_WORDS else ""
