"""DP-Prompt's script, for real, on small data: an owner's documents, and what that has cost."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.comparison.paraphrase import Paraphraser, TokenChoice
from flower_privsyn.errors import DataError
from flower_privsyn.files import append_json_lines
from flower_privsyn.privacy import InsecureRandom
from tests.support.run_files import lines

FILE = Path(__file__).parents[2] / "baselines" / "dp-prompt" / "paraphrase.py"
_SPEC = util.spec_from_file_location("dp_prompt", FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
SCRIPT: Any = util.module_from_spec(_SPEC)
sys.modules["dp_prompt"] = SCRIPT
_SPEC.loader.exec_module(SCRIPT)

DOCUMENTS = [
    ("ann", "The court heard the appeal of the miller, and the judge gave her ruling at noon."),
    ("ann", "A short one."),
    ("bob", "The engine ran until the fuel was gone."),
    ("cyd", "Markets set the price of every export. " * 60),
    ("dan", "Last."),
]
SIZES = {"max_document_tokens": 24, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def paraphraser() -> Paraphraser:
    return Paraphraser("privsyn-tiny", **SIZES, batch_size=2)


@pytest.fixture(scope="module")
def choice(paraphraser: Paraphraser) -> TokenChoice:
    low, high = paraphraser.logit_bounds()
    return SCRIPT.choice_of_epsilon(20.0, low=low, high=high, vocabulary=paraphraser.vocabulary)


@pytest.fixture
def write(paraphraser: Paraphraser, choice: TokenChoice, tmp_path: Path) -> Callable[..., Any]:
    def build(**changes: Any) -> Any:
        values: dict[str, Any] = {"paraphraser": paraphraser, "choice": choice}
        values |= {"settings": SIZES, "random": InsecureRandom(1), **changes}
        documents = values.pop("documents", DOCUMENTS)
        return SCRIPT.paraphrase_file(documents, tmp_path / "out.jsonl", **values)

    return build


@pytest.mark.parametrize("epsilon", [0.5, 8.0, 24.0])
def test_the_temperature_of_an_epsilon(epsilon: float) -> None:
    choice = SCRIPT.choice_of_epsilon(epsilon, low=-2.0, high=8.0, vocabulary=8192)
    assert 0.999 * epsilon <= choice.epsilon <= epsilon
    # Never warmer than the paper's rule for an endless vocabulary.
    assert choice.temperature <= 2 * 10 / epsilon * (1 + 1e-5)


class Stop(BaseException):
    """The process is killed."""


def test_every_document_is_charged_for_all_tokens(
    write: Callable[..., Any], paraphraser: Paraphraser, choice: TokenChoice, tmp_path: Path
) -> None:
    epsilon = paraphraser.epsilon(choice)
    found = write()
    written = lines(tmp_path / "out.jsonl")
    assert [row["client_id"] for row in written] == [user for user, _ in DOCUMENTS]
    header, *charged = lines(tmp_path / "out.jsonl.ledger.jsonl")
    assert header["secure"] is False
    assert header["choice"]["temperature"] == choice.temperature
    assert [row["client_id"] for row in charged] == [user for user, _ in DOCUMENTS]
    assert {row["epsilon"] for row in charged} == {epsilon}
    assert (found.documents, found.most_of_a_user) == (5, 2)
    assert found.epsilon_per_user == 2 * epsilon
    for file in tmp_path.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


def test_killed_between_charge_and_text_it_has_charged(
    write: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other order would leave texts that no line accounts for; and it is not drawn again."""

    def append(path: Path, rows: Any) -> None:
        append_json_lines(path, rows)
        if rows[0].get("event") == "paraphrase":
            raise Stop

    monkeypatch.setattr(SCRIPT, "append_json_lines", append)
    with pytest.raises(Stop):
        write()
    assert lines(tmp_path / "out.jsonl") == []
    assert len(lines(tmp_path / "out.jsonl.ledger.jsonl")) == 3
    monkeypatch.undo()
    with pytest.raises(DataError, match="was begun before"):
        write()


def test_it_writes_and_says_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    users, output = tmp_path / "users.jsonl", tmp_path / "told.jsonl"
    rows = [{"client_id": user, "text": "The court ruled."} for user in ("ann", "ann", "bob")]
    users.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [str(FILE), "--data", str(users), "--output", str(output)]
    words += ["--model", "privsyn-tiny", "--max-document-tokens", "16", "--max-new-tokens", "4"]

    def call(*more: str) -> None:
        monkeypatch.setattr(sys, "argv", [*words, *more])
        SCRIPT.main()

    call("--epsilon", "40")
    told = capsys.readouterr().out
    assert "3 documents of 2 users: epsilon 40 a document, 80 for the user" in told
    assert "not to be compared with a run's" in told
    assert len(lines(output)) == 3
    ledger = lines(tmp_path / "told.jsonl.ledger.jsonl")
    assert ledger[0]["randomness"] == "SecureRandom"
    assert [line["event"] for line in ledger[1:]] == ["paraphrase"] * 3
    with pytest.raises(SystemExit, match="2"):  # no price
        call()
