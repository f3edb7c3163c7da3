"""An owner's documents in other words, and what that has cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.comparison import paraphrase
from flower_privsyn.comparison.paraphrase import Paraphraser, paraphrase_file
from flower_privsyn.errors import DataError
from flower_privsyn.files import append_json_lines
from flower_privsyn.privacy import InsecureRandom
from flower_privsyn.privacy.token_choice import TokenChoice
from tests.support.run_files import lines

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
        values = {"paraphraser": paraphraser, "choice": choice, "random": InsecureRandom(1)}
        values |= changes
        documents = values.pop("documents", DOCUMENTS)
        return paraphrase_file(documents, tmp_path / "out.jsonl", **values)

    return build


class Stop(BaseException):
    """The process is killed."""


def dying(count: int) -> None:
    """Progress of a process that is killed once the first documents are written."""
    raise Stop


def test_no_document_fills_its_row(paraphraser: Paraphraser, choice: TokenChoice) -> None:
    """A model leaves out a mask without a zero, and its neighbours tell by that how long it is."""
    calls, model = [], paraphraser._model

    def watch(_module: Any, _inputs: Any, keywords: dict[str, Any]) -> None:
        calls.append(bool(keywords["attention_mask"].all()))

    watched = model.register_forward_pre_hook(watch, with_kwargs=True)
    long = DOCUMENTS[3][1]
    with_one, alone = list(paraphraser.paraphrase([long] * 3, choice, random=InsecureRandom(1)))
    watched.remove()
    assert (len(with_one), len(alone)) == (2, 1)
    assert len(calls) == 2 * SIZES["max_new_tokens"]
    assert not any(calls)


def test_every_document_is_charged_for_all_tokens(
    write: Callable[..., Any], paraphraser: Paraphraser, choice: TokenChoice, tmp_path: Path
) -> None:
    how = paraphraser.settings(choice)
    found = write()
    written = lines(tmp_path / "out.jsonl")
    assert [row["client_id"] for row in written] == [user for user, _ in DOCUMENTS]
    header, *charged = lines(tmp_path / "out.jsonl.ledger.jsonl")
    assert header["secure"] is False
    assert header["choice"]["temperature"] == choice.temperature
    assert [row["document"] for row in charged] == [0, 1, 2, 3, 4]
    assert {row["epsilon"] for row in charged} == {6 * choice.epsilon}
    assert 119 < how.epsilon_per_document <= 120
    assert (found.documents, found.lost, found.most_of_a_user) == (5, 0, 2)
    assert found.epsilon_per_user == 2 * how.epsilon_per_document
    for file in tmp_path.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


def test_what_is_written_does_not_depend_on_the_documents_beside_it(
    paraphraser: Paraphraser, choice: TokenChoice
) -> None:
    """With the same dice, to the bit: not on their number, their length or their words."""
    first = DOCUMENTS[0][1]

    def after(*others: str) -> str:
        class Dice(InsecureRandom):
            """The same number for the same row, however many rows there are."""

            def uint64(self, n: int) -> np.ndarray:
                return np.array([super().uint64(1)[0]] * n)

        texts = [first, *others]
        return next(iter(paraphraser.paraphrase(texts, choice, random=Dice(7))))[0]

    assert after() == after("Other words.") == after(DOCUMENTS[3][1]) != ""


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

    monkeypatch.setattr(paraphrase, "append_json_lines", append)
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
    write: Callable[..., Any], choice: TokenChoice, paraphraser: Paraphraser, tmp_path: Path
) -> None:
    write()
    with pytest.raises(DataError, match="begun with another choice"):
        write(choice=replace(choice, temperature=2 * choice.temperature))
    smaller = replace(choice, vocabulary=100)
    with pytest.raises(ValueError, match=f"among {paraphraser.vocabulary} tokens"):
        write(choice=smaller)
    (tmp_path / "out.jsonl.ledger.jsonl").unlink()
    with pytest.raises(DataError, match="what it has cost is not known"):
        write()
