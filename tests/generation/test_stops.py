"""Stop strings found by the last two tokens are those that decoding everything finds."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flower_privsyn.generation.stops import Stops

TEXT = (
    "Original Text Sample 3\nThe river waits. It isn't the Sample of 1999; na\u00efve caf\u00e9s, "
    "said Dr. O'Hara!\n\nOriginal Text Sample 4\n\tx = y + 12,5 \U0001f600 end"
)


def tokenizer_of(name: Any) -> Any:
    from flower_privsyn.models.pretrained import load_pretrained

    return load_pretrained(name, kind="causal", dtype="float32", device="cpu")[1]


def first_end(tokenizer: Any, stop: tuple[str, ...], tokens: list[int]) -> int | None:
    """The length at which the decoded text first holds a stop string."""
    for end in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:end], skip_special_tokens=True)
        if any(item in text for item in stop):
            return end
    return None


@pytest.fixture(scope="module", params=["privsyn-lm", "llama", "gpt2"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    name = request.param
    return tokenizer_of(name if name.startswith("privsyn") else request.getfixturevalue(name))


@pytest.mark.parametrize("seed", range(4))
def test_they_are_found_where_the_whole_text_holds_them(tokenizer: Any, seed: int) -> None:
    """Of text, and of tokens that make none: a token of a part of a letter is among them."""
    chooser = random.Random(seed)
    size = len(tokenizer)
    written = [
        tokenizer(TEXT, add_special_tokens=False)["input_ids"],
        [chooser.randrange(size) for _ in range(60)],
    ]
    # As long, and the text's own tokens in another order.
    written.append(chooser.sample(written[0], len(written[0])))
    found = 0
    for tokens in written:
        whole = tokenizer.decode(tokens, skip_special_tokens=True)
        for _ in range(30):
            start, length = chooser.randrange(len(whole)), chooser.randint(1, 24)
            stop = (whole[start : start + length], "never said, at all")
            stops = Stops(tokenizer, stop)
            ends = [end for end in range(1, len(tokens) + 1) if stops.completed([tokens[:end]])[0]]
            expected = first_end(tokenizer, stop, tokens)
            assert (ends[0] if ends else None) == expected, stop
            found += expected is not None
    assert found > 60


def test_without_a_letter_to_read_behind_every_text_is_decoded(tokenizer: Any) -> None:
    class Letterless:
        clean_up_tokenization_spaces = False
        batch_decode = tokenizer.batch_decode

        def __call__(self, *_: Any, **__: Any) -> Any:
            return {"input_ids": []}

    tokens = tokenizer("The river waits here", add_special_tokens=False)["input_ids"]
    stops = Stops(Letterless(), ("river ",))
    found = [stops.completed([tokens[:end]])[0] for end in range(1, len(tokens) + 1)]
    assert found.index(True) + 1 == first_end(tokenizer, ("river ",), tokens)
