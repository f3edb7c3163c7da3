"""Sets of public or synthetic text that are compared with a release: files, folders, mixtures."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from flower_privsyn.errors import DataError
from flower_privsyn.files import user_path
from flower_privsyn.generation.streams import derive_seed

_PART: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s+(\S.*?)\s*")


@dataclass(frozen=True, kw_only=True)
class CandidateText:
    """One set of texts, of one source or mixed from several.

    Attributes:
        name: as it was written.
        parts: sources with their shares, which add up to 1.
    """

    name: str
    parts: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, name: str) -> CandidateText:
        """Read what was written: a source, or "40% NEAR + 60% FAR" for a mixture.

        Args:
            name: a JSONL file, a .txt file, a folder of them, a run directory, "bundled", or a
                mixture of them.

        Raises:
            DataError: the shares of a mixture do not add up to 100 %.
        """
        matches = [_PART.fullmatch(part) for part in name.split(" + ")]
        parts = [(match[2], float(match[1]) / 100.0) for match in matches if match]
        if len(parts) < len(matches):
            return cls(name=name, parts=((name, 1.0),))
        total = 100.0 * sum(share for _, share in parts)
        if abs(total - 100.0) > 1e-6:
            raise DataError(
                f'the shares of the candidate "{name}" must add up to 100%, got {total:g}%'
            )
        return cls(name=name, parts=tuple(part for part in parts if part[1] > 0))

    def texts(self, *, tokenizer: Any, max_tokens: int, most: int, seed: int) -> list[str]:
        """The pieces that are compared: of at most `max_tokens` tokens, as users' text is cut.

        Args:
            tokenizer: of the embedding model.
            max_tokens: length of a piece, >= 1.
            most: pieces to draw; 0 for as many as there are in these shares.
            seed: of the draw.

        Raises:
            DataError: a source is missing, unreadable or without text, or too small for its share.
        """
        found = [(self._pieces(one, tokenizer, max_tokens), share) for one, share in self.parts]
        available = min(int(len(pieces) / share + 1e-9) for pieces, share in found)
        total = min(most, available) if most else available
        generator = np.random.default_rng(derive_seed(seed, "candidate-text"))
        drawn = []
        for pieces, share in found:
            count = round(total * share)
            order = np.sort(generator.permutation(len(pieces))[:count])
            drawn.append([pieces[place] for place in order])
        texts = list(itertools.chain.from_iterable(drawn))
        if len(texts) < 2:
            raise DataError(
                f'the candidate "{self.name}" has {len(texts)} texts in these shares, and a '
                "distance needs at least 2"
            )
        return texts

    def _pieces(self, source: str, tokenizer: Any, max_tokens: int) -> list[str]:
        from flower_privsyn.data import Cut
        from flower_privsyn.data.public_text import public_documents

        path = user_path(source)
        written = path / "synthetic.jsonl"
        documents = public_documents(
            str(written) if written.is_file() else source, setting="candidates"
        )
        pieces = Cut(max_tokens=max_tokens).pieces(documents, tokenizer=tokenizer)
        return list(itertools.chain.from_iterable(pieces))


def candidate_names(setting: str) -> tuple[str, ...]:
    """The sets that a setting names, with semicolons between them.

    Raises:
        DataError: one is named twice, or a name is empty.
    """
    names = tuple(name.strip() for name in setting.split(";")) if setting.strip() else ()
    return checked_names(names)


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of sets, each once.

    Raises:
        DataError: one is named twice, or a name is empty.
    """
    if len(set(names)) < len(names) or not all(name.strip() for name in names):
        raise DataError(
            f"candidates must be different sets of text, none of them empty, got {list(names)}"
        )
    return tuple(names)


def read_sets(
    names: Sequence[str], *, tokenizer: Any, max_tokens: int, most: int, seed: int
) -> dict[str, list[str]]:
    """The texts of sets, by name.

    Args:
        names: as `CandidateText.of` takes them.
        tokenizer: of the embedding model.
        max_tokens: length of a piece.
        most: pieces of each set; 0 for all.
        seed: of their draw.

    Raises:
        DataError: a set cannot be read.
    """
    return {
        name: CandidateText.of(name).texts(
            tokenizer=tokenizer, max_tokens=max_tokens, most=most, seed=seed
        )
        for name in names
    }
