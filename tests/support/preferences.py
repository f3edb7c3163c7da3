"""Hand-made preferences, and a training of seconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from flower_privsyn.generation.prompts import load_prompt
from flower_privsyn.models import resolve_model
from flower_privsyn.training.preference import train_preferences
from flower_privsyn.training.preference_settings import (
    PreferencePair,
    PreferenceTraining,
    TrainingReport,
)

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
                chosen=sentence(COURT, number) + end,
                rejected=sentence(SEA, number + 1) + end,
            )
        )
    return made


def quick(**changes: object) -> PreferenceTraining:
    """Settings with which a tiny model learns in a few steps."""
    values: dict[str, object] = {
        "learning_rate": 3e-3,
        "learning_rate_schedule": "constant",
        "training_epochs": 2,
        "training_batch_size": 4,
        "device": "cpu",
        "precision": "float32",
        **changes,
    }
    return PreferenceTraining(**values)  # type: ignore[arg-type]


def train(
    model: Path | str,
    pairs: list[PreferencePair],
    output: Path,
    *,
    adapter: Path | None = None,
    settings: PreferenceTraining | None = None,
    seed: int = 0,
    **options: Any,
) -> TrainingReport:
    return train_preferences(
        model,
        pairs,
        adapter=adapter,
        output=output,
        settings=settings or quick(),
        seed=seed,
        **options,
    )


def response_log_probabilities(
    model: Path | str, adapter: Path | None, prompts: Sequence[str], responses: Sequence[str]
) -> np.ndarray:
    """(n,) natural logarithms, sums over a response's tokens, by PEFT and a row a pass."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve_model(str(model))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if adapter is not None:
        network = PeftModel.from_pretrained(network, adapter)
    network.eval()
    found = []
    for given, written in zip(prompts, responses, strict=True):
        prompt = tokenizer(given)["input_ids"]
        response = tokenizer(given + written)["input_ids"][len(prompt) :]
        with torch.inference_mode():
            logits = network(torch.tensor([[*prompt, *response]])).logits[0].double()
        before = logits[len(prompt) - 1 : -1].log_softmax(-1)
        found.append(float(before[torch.arange(len(response)), torch.tensor(response)].sum()))
    return np.array(found)


def weights(adapter: Path) -> dict[str, Any]:
    """Of an adapter's folder, by name."""
    from safetensors.torch import load_file

    return load_file(adapter / "adapter_model.safetensors")


def distance(one: Path, other: Path) -> float:
    """The largest difference between the weights of two adapters."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    return max(float((first[key] - second[key]).abs().max()) for key in first)
