"""Which texts have just come to a stop string, told from few of their tokens.

Decoding the end of every text after every token takes as long as half a step of a small model on a
GPU: 18 ms of 1,024 texts. What the last two tokens are says of nearly all that no string can have
ended; only the others are decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class Stops:
    """Stop strings, and the tokens that can complete one.

    Args:
        tokenizer: A fast tokenizer of the Hugging Face format.
        stop: The strings, none of them empty.
    """

    def __init__(self, tokenizer: Any, stop: Iterable[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        # A token is at least one byte, so the string lies in this many last tokens.
        self._reach = max((len(text.encode()) for text in self._stop), default=0) + 1
        # A token is read behind this one: the blank that it begins with is lost at the beginning.
        self._before: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"][:1]
        # A letter of several bytes may be of several tokens, none of which shows it; and where
        # decoding takes blanks away, a text is not what its tokens say one by one.
        plain = all(text.isascii() for text in self._stop)
        cleans = getattr(tokenizer, "clean_up_tokenization_spaces", False)
        self._by_tokens = bool(self._before) and plain and not cleans
        self._says: dict[int, str] = {}

    def completed(self, written: Sequence[Sequence[int]]) -> list[bool]:
        """Of each text, whether its last tokens hold a stop string.

        Args:
            written: The tokens of each text so far, of which all but the last were asked about
                before.
        """
        found = [False] * len(written)
        asked = [place for place, tokens in enumerate(written) if tokens and self._may_end(tokens)]
        if not asked:  # of no texts the tokenizer makes one
            return found
        tails = self._tokenizer.batch_decode(
            [written[place][-self._reach :] for place in asked], skip_special_tokens=True
        )
        for place, tail in zip(asked, tails, strict=True):
            found[place] = any(text in tail for text in self._stop)
        return found

    def _may_end(self, tokens: Sequence[int]) -> bool:
        """Whether a stop string may end inside the last token."""
        if not self._by_tokens:
            return True
        last = self._said(tokens[-1])
        for text in self._stop:
            if text in last:
                return True
            for size in range(1, min(len(last), len(text)) + 1):
                # The string ends with what the token begins with: what is before must go with it.
                if not text.endswith(last[:size]):
                    continue
                rest = text[: len(text) - size]
                before = self._said(tokens[-2]) if len(tokens) > 1 else ""
                if rest.endswith(before) or before.endswith(rest):
                    return True
        return False

    def _said(self, token: int) -> str:
        """What a token adds to a text."""
        if token not in self._says:
            before, both = self._tokenizer.batch_decode(
                [self._before, [*self._before, token]], skip_special_tokens=True
            )
            self._says[token] = both[len(before) :]
        return self._says[token]
