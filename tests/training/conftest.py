"""A tiny random Llama with the bundled tokenizer, and hand-made preferences."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from flower_privsyn.generation.prompts import load_prompt
from flower_privsyn.models import resolve_model
from flower_privsyn.training import PreferencePair, PreferenceTraining
from tests.generation.conftest import gpt2, offline, one_thread

__all__ = ["gpt2", "offline", "one_thread"]

PUBLIC = [
    "The town lies on a river in the north of the country.",
    "She wrote three books on the history of the region.",
    "The museum was opened in the spring of that year.",
    "He played for the club until the end of the season.",
    "The bridge was built by the railway company.",
]
COURT = ["judge", "court", "lawyer", "jury", "appeal", "law", "case", "evidence"]
SEA = ["ship", "island", "sea", "storm", "fish", "harbour", "wave", "sailor"]


def pairs_of_topics(count: int, *, first: int = 0) -> list[PreferencePair]:
    """Preferences for courts over the sea; every number below 1,008 makes other responses."""
    prompt = load_prompt("pre-text")
    end = "\nOriginal Text Sample 3"

    def sentence(words: list[str], number: int) -> str:
        one, two, three = list(permutations(words, 3))[number * 5 % 336]
        frames = (
            f"The {one} of the {two} was known to every {three} in the city.",
            f"Many years later the {one} came back with a {two} and another {three}.",
            f"A {one} is not a {two}, and no {three} would say that it is.",
        )
        return frames[(number // 336 + number) % 3]

    made = []
    for number in range(first, first + count):
        examples = [PUBLIC[number % 5]]
        made.append(
            PreferencePair(
                prompt=prompt.render(examples),
                chosen=sentence(COURT, number),
                rejected=sentence(SEA, number + 1),
                chosen_end=end,
                rejected_end=end,
            )
        )
    return made


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of 64, random weights."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("privsyn-lm"))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=96,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.1,
        tie_word_embeddings=True,
        attention_dropout=0.5,  # must not reach the loss
    )
    folder = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def quick(**changes: object) -> PreferenceTraining:
    """Settings with which a tiny model learns in a few steps."""
    values: dict[str, object] = {
        "learning_rate": 3e-3,
        "schedule": "constant",
        "epochs": 2,
        "batch_size": 4,
        "device": "cpu",
        **changes,
    }
    return PreferenceTraining(**values)  # type: ignore[arg-type]
