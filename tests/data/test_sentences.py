"""Ends of sentences by punctuation."""

from __future__ import annotations

import pytest

from flower_privsyn.data.sentences import is_whole, sentence_ends, sentences_inside, whole_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It rained. We stayed in.", ["It rained.", " We stayed in."]),
        ("Mr. Hale of the U.S. Senate spoke. J. Doe left.", 2),
        ('"Why?" he asked. "Because!"', ['"Why?" he asked.', ' "Because!"']),
        ("See version 3.5 of it (p. 4.) Then stop", ["See version 3.5 of it (p. 4.)"]),
        ("Wait... what? no!", ["Wait... what? no!"]),
        ("雨だ。彼は「もう帰る。」と言った。", ["雨だ。", "彼は「もう帰る。」", "と言った。"]),
        ("आज बारिश है। कोई नहीं आया।", 2),
        ("هل تمطر؟ لم يأت أحد.", 2),
        ("no end here", []),
        ("", []),
    ],
)
def test_ends(text: str, sentences: list[str] | int) -> None:
    ends = sentence_ends(text)
    found = [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    assert (found if isinstance(sentences, list) else len(found)) == sentences


def test_whole_sentences_are_what_ends() -> None:
    assert whole_sentences("It rained. We stayed") == "It rained."
    assert whole_sentences("We stayed") == ""
    assert is_whole(' "It rained." ')
    assert is_whole("12 people came.")
    assert not is_whole("rained. It stopped.")
    assert not is_whole("It rained. We")
    assert not is_whole("...")
    assert whole_sentences("I left the house. MR.") == "I left the house."


def test_of_a_piece_of_a_document_the_whole_sentences_stay() -> None:
    whole = "We stayed in the old house for a week. It rained."
    assert sentences_inside(f"{whole} Not even") == whole
    # A name at its beginning does not make a piece begin with a sentence.
    piece = f"Smith of the rain. {whole} Not"
    assert sentences_inside(piece, before="It rained. He told") == whole
    assert sentences_inside(piece, before="It rained.") == f"Smith of the rain. {whole}"
    # Where no blanks stand between words, two letters count as one.
    assert sentences_inside(piece := "彼女は朝の電車で駅まで行き友達に会った。") == piece
    for nothing in ("", "雨だ。", "no stop at all", "of rain. It rained. We", "We stayed in"):
        assert sentences_inside(nothing) == ""
