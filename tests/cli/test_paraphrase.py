"""What `privsyn paraphrase` refuses before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.cli import main
from flower_privsyn.models import pretrained
from tests.support.data_cases import locked


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> None:
        pytest.fail("a model is loaded")

    monkeypatch.setattr(pretrained, "load_pretrained", load)


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "users.jsonl"
    rows = ({"client_id": user, "text": "The court ruled."} for user in ("ann", "bob"))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def told(users: Path, *words: str, output: Path) -> list[str]:
    return ["paraphrase", "--data", str(users), "--output", str(output), *words]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--epsilon-per-document", "-1"],
            "--epsilon-per-document must be a number above 0, got -1.0",
        ),
        (
            ["--epsilon-per-document", "nan"],
            "--epsilon-per-document must be a number above 0, got nan",
        ),
        (["--temperature", "0"], "--temperature must be a number above 0, got 0.0"),
        (
            ["--epsilon-per-document", "4", "--max-new-tokens", "0"],
            "--max-new-tokens must be a whole number of at least 1, got 0",
        ),
        (
            ["--epsilon-per-document", "4", "--max-document-tokens", "0"],
            "--max-document-tokens must be a whole number of at least 1, got 0",
        ),
        (
            ["--epsilon-per-document", "4", "--batch-size", "0"],
            "--batch-size must be a whole number of at least 1, got 0",
        ),
    ],
)
def test_a_number_is_named_as_it_was_given(
    words: list[str],
    sentence: str,
    users: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(told(users, *words, output=tmp_path / "told.jsonl")) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [users]


def test_where_nothing_can_be_written(
    users: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    price = ("--epsilon-per-document", "4")
    for output, sentence in (
        (tmp_path / "nowhere" / "a", "--output must be a file in a folder that is there"),
        (users, f"--output {users} is --data: name another file"),
        (
            closed / "a",
            f"--output {closed / 'a'} cannot be written: {closed} takes no files (Permission deni",
        ),
    ):
        with locked(closed, mode=0o555):
            assert main(told(users, *price, output=output)) == 2
        assert sentence in capsys.readouterr().err
    assert list(closed.iterdir()) == []
