"""Training reads the tokens that generation writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation import SamplingParameters
from flower_privsyn.generation.prompts import load_prompt
from flower_privsyn.generation.transformers_backend import TransformersGenerator
from flower_privsyn.models import resolve_model
from flower_privsyn.training import PreferencePair
from flower_privsyn.training.encoding import encode_pairs, encode_prompts, encode_responses
from tests.support.models import byte_level
from tests.support.preferences import PUBLIC, pairs_of_topics


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve_model("privsyn-lm"))


def test_prompts_are_the_tokens_the_generator_is_given(tiny: Path, tokenizer: Any):
    generator = TransformersGenerator(tiny, device="cpu", dtype="float32")
    prompts = [load_prompt("pre-text").render(PUBLIC[:k]) for k in (1, 2, 3)]
    given = generator._tokenize(prompts, SamplingParameters(seed=0, max_new_tokens=16))
    assert encode_prompts(tokenizer, prompts) == given


def test_prompt_and_response_are_the_tokens_of_the_document(tokenizer: Any):
    prompt = load_prompt("pre-text")
    rendered = prompt.render(PUBLIC[:3])
    row = encode_prompts(tokenizer, [rendered])[0]
    text = PUBLIC[3] + "\nOriginal Text Sample 5"
    response = encode_responses(tokenizer, [rendered], [row], [text])[0]
    document = prompt.render_document(PUBLIC[:5])
    assert document.startswith(rendered + text)
    whole = tokenizer(document)["input_ids"]
    assert row + response == whole[: len(row) + len(response)]


def test_the_taught_end_is_what_generation_stops_at(tokenizer: Any):
    """The last token of the end completes the stop string, no token before it does."""
    prompt = load_prompt("pre-text")
    rendered = prompt.render(PUBLIC[:3])
    rows = encode_prompts(tokenizer, [rendered])
    text = PUBLIC[3]
    response = encode_responses(tokenizer, [rendered], rows, [text + "\nOriginal Text Sample 5"])[0]
    assert prompt.stop in tokenizer.decode(response)
    assert prompt.stop not in tokenizer.decode(response[:-1])
    assert prompt.parse(tokenizer.decode(response)) == text


def _pair(**changes: str) -> PreferencePair:
    values = {"prompt": "p\n", "chosen": "one two three four", "rejected": "five", **changes}
    return PreferencePair(**values)


def test_a_response_never_changes_the_tokens_of_its_prompt(tokenizer: Any):
    """'the riv' + 'er' would merge into other tokens; the generator could not write those."""
    whole = tokenizer("the river")["input_ids"]
    splits = [("the river"[:place], "the river"[place:]) for place in range(5, 9)]
    merging = [
        (prompt, rest)
        for prompt, rest in splits
        if whole[: len(tokenizer(prompt)["input_ids"])] != tokenizer(prompt)["input_ids"]
    ]
    assert merging  # the case is met
    for prompt, rest in merging:
        rows = encode_prompts(tokenizer, [prompt])
        assert rows == [tokenizer(prompt)["input_ids"]]
        alone = tokenizer(rest, add_special_tokens=False)["input_ids"]
        assert encode_responses(tokenizer, [prompt], rows, [rest]) == [alone]


def test_tokenizers_that_mark_the_first_word(tmp_path: Path):
    """As Llama 2's: the first word of a text has a blank before it, one after a break has none."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "\u2581a", "\u2581b", "b", "\n"]
    made = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="first", split=True),
            pre_tokenizers.Split("\n", "isolated"),
        ]
    )
    made.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    rows = encode_prompts(tokenizer, ["a\n"])
    assert rows == [[1, 4]]
    assert tokenizer("b")["input_ids"] == [2]
    assert encode_responses(tokenizer, ["a\n"], rows, ["b"]) == [[3]]


def test_tokenizers_that_close_every_text():
    """The closing token is the prompt's, as generation has it, and never inside a response."""
    tokenizer = byte_level(template=True)
    rows = encode_prompts(tokenizer, ["river"])
    assert rows[0][0] == 1
    assert rows[0][-1] == 2
    response = encode_responses(tokenizer, ["river"], rows, [" street"])[0]
    assert tokenizer.decode(response) == " street"
    assert 1 not in response
    assert 2 not in response


def test_the_end_is_taught_only_where_the_generator_stopped(tokenizer: Any):
    pair = pairs_of_topics(1)[0]
    (whole,) = encode_pairs(tokenizer, [pair], max_new_tokens=None, chosen_only=False)
    assert tokenizer.decode(whole.chosen) == pair.chosen + pair.chosen_end
    assert tokenizer.decode(whole.rejected) == pair.rejected + pair.rejected_end
    limit = len(whole.chosen)
    (same,) = encode_pairs(tokenizer, [pair], max_new_tokens=limit, chosen_only=False)
    assert same.chosen == whole.chosen
    (cut,) = encode_pairs(tokenizer, [pair], max_new_tokens=limit - 1, chosen_only=False)
    assert tokenizer.decode(cut.chosen) == pair.chosen


def test_a_response_without_tokens_is_an_error(tokenizer: Any):
    pairs = [_pair(), _pair(rejected="")]
    with pytest.raises(ConfigError, match="preference pair 1: rejected has no tokens"):
        encode_pairs(tokenizer, pairs, max_new_tokens=None, chosen_only=False)
    assert len(encode_pairs(tokenizer, pairs, max_new_tokens=None, chosen_only=True)) == 2
