"""Instructions for base and chat models: what the files may hold, and what stands in the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation.prompts import load_instruction

GOOD = {"name": "mine", "purpose": "variation", "base": "Say {text} again:", "stop": ["\n"]}
BUNDLED = {"paraphrase": "variation", "style": "variation", "fill-blanks": "variation"}


@pytest.mark.parametrize(("name", "purpose"), [*BUNDLED.items(), ("write", "beginning")])
@pytest.mark.parametrize("chat", [False, True])
def test_the_bundled_ones_say_everything_they_were_given(
    name: str, purpose: str, chat: bool
) -> None:
    instruction = load_instruction(name, purpose=purpose)
    values = {
        "text": "T-E-X-T",
        "blanked": "T-E-X-T",
        "words": "37",
        "style": "S-T-Y-L-E",
        "domain": "D-O-M-A-I-N",
    }
    prompt = instruction.render(chat=chat, label="C-L-A-S-S", **values)
    assert "{" not in prompt
    assert "C-L-A-S-S" in prompt
    assert "37" in prompt
    assert "D-O-M-A-I-N" in prompt
    assert ("T-E-X-T" in prompt) is (purpose == "variation")
    assert ("S-T-Y-L-E" in prompt) is bool(instruction.styles)
    assert "class" not in instruction.render(chat=chat, **values)
    assert instruction.stop
    assert instruction.reference


def test_braces_in_a_text_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(GOOD))
    instruction = load_instruction(path, purpose="variation")
    assert (
        instruction.render(chat=False, text="{words} {no}", words="9") == "Say {words} {no} again:"
    )
    with pytest.raises(ConfigError, match="not for chat models"):
        instruction.render(chat=True, text="a")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"purpose": "poem"}, 'purpose must be one of "variation", "beginning", got \'poem\''),
        ({"base": "Say it again:"}, "must hold {text} or {blanked}"),
        ({"purpose": "beginning"}, "must not hold {text} or {blanked}"),
        ({"base": "Say {text} {loudly}:"}, "unknown placeholder {loudly}; known are {text}"),
        ({"base": "", "chat": " "}, "chat and base must not both be empty"),
        ({"tone": "high"}, "unknown key 'tone'"),
    ],
)
def test_a_file_that_is_wrong_is_named(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**GOOD, **changes}))
    with pytest.raises(ConfigError) as refused:
        load_instruction(path, purpose="variation")
    assert sentence in str(refused.value)
    assert str(path) in str(refused.value)
