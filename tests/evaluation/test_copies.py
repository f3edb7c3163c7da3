"""Copies of private text, against brute force and planted ones."""

from __future__ import annotations

import numpy as np
import pytest

from flower_privsyn.evaluation.copies import copy_rates
from flower_privsyn.evaluation.result import STAMP

WORDS = [f"word{i}" for i in range(400)]


def make_texts(count: int, *, seed: int, length: int = 45) -> list[str]:
    """Texts of words as frequent as in language: a few are in nearly every text."""
    generator = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, len(WORDS) + 1)
    weights /= weights.sum()
    return [
        " ".join(generator.choice(WORDS, size=length, p=weights)).capitalize() + "."
        for _ in range(count)
    ]


def jaccard(first: str, second: str, width: int = 3) -> float:
    def shingles(text: str) -> set[tuple[str, ...]]:
        row = text.lower().replace(".", " ").replace(",", " ").split()
        if len(row) < width:
            return {tuple(row)} if row else set()
        return {tuple(row[i : i + width]) for i in range(len(row) - width + 1)}

    a, b = shingles(first), shingles(second)
    return len(a & b) / len(a | b) if a | b else 0.0


class TestExact:
    def test_case_punctuation_and_unicode_forms_do_not_hide_a_copy(self) -> None:
        private = ["The café, at 5 o'clock - closed!"]
        found = copy_rates(["the CAFE\u0301 at 5 o clock closed", "the cafe at 5"], private)
        assert found.exact == 0.5
        assert found.copied == (0,)


class TestWindows:
    def test_thirteen_words_count_and_twelve_do_not(self) -> None:
        private = " ".join(f"p{i}" for i in range(40))
        thirteen = "x " + " ".join(f"p{i}" for i in range(7, 20)) + " y"
        twelve = "x " + " ".join(f"p{i}" for i in range(7, 19)) + " y"
        found = copy_rates([thirteen, twelve], ["other text", private])
        assert found.windows == 0.5
        assert found.copied == (0,)

    def test_of_other_scripts(self) -> None:
        chinese, hindi = "今天下雨了我们在老房子里待", "हम एक हफ्ते तक पुराने घर में रहे थे तो भी कोई नहीं"
        for text, last in ((chinese, "待"), (hindi, " नहीं")):
            assert copy_rates([text, text.removesuffix(last)], [f"x {text}"]).windows == 0.5

    def test_a_window_does_not_cross_texts(self) -> None:
        first, second = (" ".join(f"{c}{i}" for i in range(7)) for c in "ab")
        assert copy_rates([f"{first} {second}"], [first, second]).windows == 0.0


class TestNear:
    def test_equals_brute_force(self) -> None:
        generator = np.random.default_rng(3)
        private = [*make_texts(60, seed=4, length=12), "word1", "word1 word2", "word1 word2 word3"]
        synthetic = [*make_texts(30, seed=5, length=12), "word2 word1", "word1 word2", "word1"]
        for text in private[:30]:  # with 0 to 8 words exchanged
            row = text.strip(".").split()
            for place in generator.choice(12, size=generator.integers(0, 9), replace=False):
                row[place] = str(generator.choice(WORDS))
            synthetic.append(" ".join(row))
        found = copy_rates(synthetic, private)
        expected = [max(jaccard(text, other) for other in private) >= 0.5 for text in synthetic]
        assert found.near == pytest.approx(np.mean(expected))
        assert found.copied == tuple(np.flatnonzero(expected))
        assert 0 < sum(expected) < len(expected)

    def test_planted_copies_are_all_found(self) -> None:
        """Up to four of 45 words exchanged, apart from one another, as the docstring promises."""
        generator = np.random.default_rng(8)
        private = [" ".join(f"p{text}-{i}" for i in range(45)) for text in range(300)]
        private = [text.replace("-", "x") for text in private]
        planted = []
        for text in private[::3]:
            row = text.split()
            for place in 4 + 9 * generator.permutation(5)[: generator.integers(0, 5)]:
                row[place] = "other"
            planted.append(" ".join(row))
        found = copy_rates(planted + make_texts(100, seed=9), private)
        assert found.copied == tuple(range(100))
        assert found.near == 0.5


def test_stamped_and_silent_about_the_text() -> None:
    record = copy_rates(["a secret text"], ["a secret text"]).to_dict()
    assert record["stamp"] == STAMP
    assert "secret" not in str(record)
