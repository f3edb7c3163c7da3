"""The page of a run of every kind, and of runs that came to nothing."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flower_privsyn.cli import main
from flower_privsyn.errors import FederationError, LedgerError, MissingExtraError
from flower_privsyn.report import run_page, write_run_page
from flower_privsyn.report.numbers import NOTHING, bytes_text
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import round_texts
from flower_privsyn.strategies._population import Population
from tests.support import golden_runs
from tests.support.data_cases import locked
from tests.support.launched import launched
from tests.support.ledgers import write_chain
from tests.support.pages import Node, check, headings, pictures, rows
from tests.support.run_files import add_line

NASTY = "</blockquote></title><script>alert(1)</script>'\" & {{ 7 * 7 }} \x00\u202e end"
SEEN = NASTY.replace("\x00\u202e", "\ufffd")

OPENED = {"event": "opened", "delta": 3e-6, "epsilon_budget": 2.0, "accountant": "pld"}
RELEASE = {
    "event": "release",
    "round": 1,
    "query": "votes",
    "mechanism": "gaussian",
    "noise_multiplier": 4.0,
    "sampling": {"method": "poisson", "rate": 0.25, "population": 300},
    "delta": 3e-6,
    "epsilon_release": 0.5,
    "epsilon_known_cohorts": 2.25,
}


@pytest.fixture
def empty(tmp_path: Path) -> RunDirectory:
    """A run that has just begun, of somebody's own strategy."""
    run = RunDirectory.create(tmp_path / "my run", config={"num-rounds": 3, "own-key": NASTY})
    run.unlock()
    (run.path / ".lock").unlink()  # of this process, which is alive
    return run


def large(page: Node) -> dict[str, str]:
    """The large figures at the top."""
    (shown,) = page.with_class("numbers")
    names = [name.text.split(":")[0] for name in shown.all("dt")]
    return dict(zip(names, [value.text for value in shown.all("dd")], strict=True))


def test_a_run_shows_what_its_files_hold(tmp_path: Path) -> None:
    golden_runs.run("popri fred", tmp_path)
    run = RunDirectory.open(tmp_path / "run")
    (run.path / "noise.npz").write_bytes(b"not for readers")
    before = {f: f.read_bytes() for f in run.path.rglob("*") if f.is_file()}
    path = write_run_page(run)
    after = {f: f.read_bytes() for f in run.path.rglob("*") if f.is_file()}
    assert after == before | {path: path.read_bytes()}
    text = path.read_text()
    assert write_run_page(run).read_text() == text
    assert str(run.path) not in text.replace(run.config.get("public-text") or "-", "")

    page = check(text)
    assert headings(page) == ["Result", "How it went", "Settings"]
    # The noise of these runs repeats, so they have no epsilon.
    assert "without sufficient noise: no epsilon holds." in page.text
    for row, line in zip(rows(page, "Rounds"), run.metrics(), strict=True):
        assert row[:2] == [str(line["round"]), "released"]
        assert row[6:] == [bytes_text(line[f"bytes_{n}"]) for n in ("down", "up")]
    settings = dict(rows(page, "Settings of the run"))
    assert settings["node-timeout"] == json.dumps(run.config["node-timeout"])
    assert "run-dir" not in settings
    assert run.state["summary"]["fred"]
    found = round_texts(run)
    last = {" ".join(str(row["text"]).split()) for row in found[max(found)]}
    shown_text = page.all("article")[-1].all("blockquote")[0].text.removesuffix(" …")
    assert any(text.startswith(shown_text) for text in last)


def test_before_the_first_release(empty: RunDirectory) -> None:
    page = check(run_page(empty))
    for sentence in ("Nothing has been released.", "No round has counted its messages."):
        assert sentence in page.text
    keys = 'the command that began it, and run-dir="my run" resume=true in its --run-config'
    assert keys in page.with_class("banner")[0].text
    assert headings(page) == ["Result", "How it went", "Settings"]
    with empty.session():
        page = check(run_page(RunDirectory.open(empty.path)))
    assert "running" in page.with_class("subtitle")[0].text
    assert not page.with_class("banner")


def test_a_run_that_was_stopped_says_how_to_go_on(empty: RunDirectory) -> None:
    launched(empty)
    empty.mark_failed(KeyboardInterrupt())
    page = check(run_page(RunDirectory.open(empty.path)))
    (banner,) = page.with_class("banner")
    assert "The run was interrupted. It was stopped before its end." in banner.text
    assert "privsyn resume 'my run'" in banner.text
    assert page.with_class("status")[0].text == "interrupted"


def test_why_a_run_failed_is_a_sentence_without_its_place(empty: RunDirectory) -> None:
    said = f"rounds 1 and 2 were lost; continue with `privsyn resume {empty.path}`"
    empty.mark_failed(FederationError(said))
    text = run_page(empty)
    (banner,) = check(text).with_class("banner")
    assert "Rounds 1 and 2 were lost; continue with privsyn resume my run" in banner.text
    assert [code.text for code in banner.all("code")] == ["privsyn resume my run"]
    assert str(empty.path) not in text


def test_rounds_without_a_release_are_counted(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", config={"num-rounds": 6, "epsilon": 2.0})
    vectors = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    texts = Population.create([f"text {n}" for n in range(20)], round_number=1, source="public")
    for n in (1, 2):
        replace(texts, embeddings=vectors).to_parquet(run.round_dir(n) / "candidates.parquet")
        run.finish_round(n, {"outcome": "discarded"})
    run.unlock()
    page = check(run_page(run))
    assert "2 of 6 rounds finished, 2 of them without a release." in page.text
    assert [card.all("h3")[0].text for card in page.all("article")] == [
        "Round 2, public text 20 texts"
    ]
    # Nothing was asked, and the budget is known all the same.
    assert "Budget, ε" in page.text


def test_no_text_becomes_markup(empty: RunDirectory) -> None:
    empty.write_synthetic([{"text": NASTY, "round": 1, "parent": [], "source": "x"}])
    empty.mark_failed(FederationError(NASTY))
    text = run_page(empty)
    page = check(text)
    assert page.all("blockquote")[0].text == SEEN
    assert "alert(1)</script>'\" & {{ 7 * 7 }}" in page.with_class("banner")[0].text
    assert rows(page, "Settings of the run")[1] == ["own-key", SEEN]
    text.encode("utf-8")


def test_both_epsilons_where_they_differ(empty: RunDirectory) -> None:
    second = {**RELEASE, "round": 2, "epsilon_release": 0.75, "epsilon_known_cohorts": 3.5}
    second["sampling"] = {"method": "full", "rate": 1.0, "population": 300}  # another phase
    digest = write_chain(empty.ledger_file, OPENED, RELEASE, second)
    page = check(write_run_page(empty).read_text())
    assert large(page)["ε known cohorts"] == "3.5"
    figure = page.all("figure")[0]
    (words,) = pictures(figure)
    assert all(name in words for name in ("ε release", "ε known cohorts", "budget"))
    assert "poisson, rate 0.25, full" in page.text
    # The page says which ledger it was made from, and a shorter one is refused.
    assert empty.stated_digests() == {digest: "report.html"}
    write_chain(empty.ledger_file, OPENED, RELEASE)
    with pytest.raises(LedgerError, match="lacks the line .* which report.html states"):
        run_page(empty)


def test_releases_without_privacy_and_lost_rounds(empty: RunDirectory) -> None:
    none = {**RELEASE, "epsilon_release": None, "epsilon_known_cohorts": None}
    write_chain(empty.ledger_file, OPENED, none)
    empty.finish_round(1, {"outcome": "interrupted"})
    empty.finish_round(2, {"outcome": "discarded"})
    add_line(empty, {"round": 2, "released": False, "num_users": 0, "missing": 2})
    (empty.round_dir(1) / "population.parquet").write_bytes(b"half a file")
    page = check(run_page(empty))
    assert "Not private. 1 release without sufficient noise: no epsilon holds." in page.text
    assert not page.with_class("numbers")
    assert [row[1:4] for row in rows(page, "Rounds")] == [
        ["interrupted: charged, and its release lost", NOTHING, NOTHING],
        ["discarded: too few users, nothing released", "0", "2"],
    ]


def test_the_command(
    empty: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(empty.path)]) == 0
    assert capsys.readouterr().out.strip() == str(empty.path / "report.html")
    empty.owner.make()
    assert main(["report", str(empty.path), str(empty.owner.path)]) == 0
    for words, sentence in (
        ([str(tmp_path / "nowhere")], "There is no run directory"),
        ([str(tmp_path)], "it holds no config.json"),
    ):
        assert main(["report", *words]) == 2
        assert re.search(sentence, capsys.readouterr().err)
    with locked(empty.path, mode=0o555):
        assert main(["report", str(empty.path)]) == 2
    said = f"privsyn: The report {empty.path / 'report.html'} cannot be written: Permission denied."
    assert capsys.readouterr().err.splitlines() == [said]


def test_without_the_libraries(empty: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    empty.ledger_file.write_text("{\n{}\n")  # damaged: it is not even read
    for name in ("jinja2", "matplotlib"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(MissingExtraError, match=r"flower-privsyn\[evaluation\]"):
                write_run_page(empty)
    assert not (empty.path / "report.html").exists()
    with pytest.raises(LedgerError, match=r"ledger.jsonl line 1"):
        write_run_page(empty)
