"""DP-Prompt's script, for real, on small data: an owner's documents, and what that has cost."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
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
    low, high = paraphraser.logit_bounds([text for _, text in DOCUMENTS])
    assert low < high
    return TokenChoice.of_epsilon(20.0, low=low, high=high, vocabulary=paraphraser.vocabulary)


@pytest.fixture
def write(paraphraser: Paraphraser, choice: TokenChoice, tmp_path: Path) -> Callable[..., Any]:
    def build(**changes: Any) -> Any:
        values: dict[str, Any] = {"paraphraser": paraphraser, "choice": choice}
        values |= {"settings": SIZES, "random": InsecureRandom(1), **changes}
        documents = values.pop("documents", DOCUMENTS)
        return SCRIPT.paraphrase_file(documents, tmp_path / "out.jsonl", **values)

    return build


class Stop(BaseException):
    """The process is killed."""


def dying(count: int) -> None:
    """Progress of a process that is killed once the first documents are written."""
    raise Stop


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
    assert [row["document"] for row in charged] == [0, 1, 2, 3, 4]
    assert {row["epsilon"] for row in charged} == {epsilon}
    assert (found.documents, found.lost, found.most_of_a_user) == (5, 0, 2)
    assert found.epsilon_per_user == 2 * epsilon
    for file in tmp_path.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


def test_an_interrupted_file_goes_on_and_charges_nobody_twice(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(Stop):
        write(progress=dying)
    file = tmp_path / "out.jsonl"
    assert [row["document"] for row in lines(file)] == [0, 1]
    # Killed between the ledger and the text: charged, not written, not drawn again.
    kept = file.read_text().splitlines(keepends=True)
    file.write_text(kept[0])
    found = write()
    assert found.lost == 1
    assert [row["document"] for row in lines(file)] == [0, 2, 3, 4]
    charged = lines(tmp_path / "out.jsonl.ledger.jsonl")[1:]
    assert [row["document"] for row in charged] == [0, 1, 2, 3, 4]


def test_killed_between_charge_and_text_it_has_charged(
    write: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other order would leave texts that no line accounts for, to be drawn again."""

    def append(path: Path, rows: Any) -> None:
        append_json_lines(path, rows)
        if "document" in rows[0]:
            raise Stop

    monkeypatch.setattr(SCRIPT, "append_json_lines", append)
    with pytest.raises(Stop):
        write()
    assert lines(tmp_path / "out.jsonl") == []
    charged = lines(tmp_path / "out.jsonl.ledger.jsonl")[1:]
    assert [row["document"] for row in charged] == [0, 1]
    monkeypatch.undo()
    assert write().lost == 2


def test_documents_in_another_order_or_changed_are_not_told_again(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(Stop):
        write(progress=dying)
    before = (tmp_path / "out.jsonl").read_bytes()
    for others in (DOCUMENTS[::-1], [*DOCUMENTS[:4], ("dan", "Another.")], DOCUMENTS[:4]):
        with pytest.raises(DataError, match="begun with other documents"):
            write(documents=others)
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_two_at_once_do_not_tell_the_same_documents(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    """The second is refused while the first writes, and both say what the file has cost."""

    def beside(count: int) -> None:
        with pytest.raises(DataError, match=r"out\.jsonl is being written by another process"):
            write()

    found = write(progress=beside)
    assert (found.documents, found.lost, found.most_of_a_user) == (5, 0, 2)
    assert len(lines(tmp_path / "out.jsonl")) == 5
    again = write()  # nothing is left to tell
    assert again == found


def test_other_settings_or_a_lost_ledger_are_refused(
    write: Callable[..., Any], choice: TokenChoice, tmp_path: Path
) -> None:
    write()
    with pytest.raises(DataError, match="begun with another choice"):
        write(choice=replace(choice, temperature=2 * choice.temperature))
    (tmp_path / "out.jsonl.ledger.jsonl").unlink()
    with pytest.raises(DataError, match="what it has cost is not known"):
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

    for _ in range(2):  # the second time there is nothing left to be charged
        call("--epsilon", "40")
        told = capsys.readouterr().out
        assert "3 documents of 2 users: epsilon 40 a document, 80 for the user" in told
        assert "not to be compared with a run's" in told
        assert len(lines(output)) == 3
    ledger = lines(tmp_path / "told.jsonl.ledger.jsonl")
    assert ledger[0]["randomness"] == "os.urandom"
    assert [line["event"] for line in ledger[1:]] == ["paraphrase"] * 3
    with pytest.raises(SystemExit, match="2"):  # no price
        call()
