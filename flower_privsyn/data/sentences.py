"""Where the sentences of a text end, by its punctuation alone; the abbreviations are English."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

#: Letters of scripts without blanks between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese.
UNSPACED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u9fff\U00020000-\U0003ffff"

#: A word, with its punctuation: what stands between white space, or two letters of such a script.
WORD: Final = re.compile(rf"[{UNSPACED}]{{1,2}}[^\w\s]*|[^\s{UNSPACED}]+")

#: Quotation marks and brackets that close after a stop: ", ', the curved, angled and full-width.
_CLOSING: Final = "\"'\u201d\u2019\u00bb)\\]\u300b\u300d\u300f\u3011\uff09"

#: Stops that end a sentence before white space or the end of the text, those of Arabic among them.
_STOPS: Final = ".!?\u2026\u061f\u06d4\u0589"

#: The end of a sentence: stops and what closes after them. Those of East Asia, India and Ethiopia
#: need no white space.
_END: Final = re.compile(
    rf"(?<![{_STOPS}])[{_STOPS}]+[{_CLOSING}]*(?=\s|$)"
    rf"|[\u3002\uff01\uff1f\uff61\u0964\u0965\u104b\u1362\u17d4\u17d5]+[{_CLOSING}]*"
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
    return text[: max(sentence_ends(text), default=0)]


def is_whole(text: str) -> bool:
    """Whether a text is made of whole sentences: it does not begin in the middle of one either.

    >>> is_whole("It rained."), is_whole("rained. It"), is_whole("It rained")
    (True, False, False)
    """
    stripped = text.strip()
    first = next((letter for letter in stripped if letter.isalnum()), "")
    return bool(first) and not first.islower() and whole_sentences(stripped) == stripped


def is_fragment(text: str) -> bool:
    """Whether a text is not made of whole sentences, or of fewer than `LEAST_WORDS` words."""
    return not is_whole(text) or len(WORD.findall(text)) < LEAST_WORDS


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
    return "" if is_fragment(found) else found
