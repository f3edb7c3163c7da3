"""A population in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.federation import WORDS


@pytest.fixture
def population(tmp_path: Path) -> Path:
    path = tmp_path / "users.jsonl"
    rows = [
        {
            "client_id": f"u{n % 40}",
            "text": " ".join(WORDS[(n * 7 + k * k) % 25] for k in range(12)),
        }
        for n in range(150)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
