"""The proposal for Flower: its code runs as it stands and prints what the page prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "research" / "flower.md").read_text("utf-8")
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PRINTED = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    made: dict[str, Any] = {}
    exec(compile(CODE[0], "research/flower.md", "exec"), made)
    return made


def test_the_page_prints_its_figures(
    names: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for block, printed in zip(CODE[1:], PRINTED, strict=True):
        exec(compile(block, "research/flower.md", "exec"), names)
        assert capsys.readouterr().out == printed
