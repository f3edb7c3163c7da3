"""The page of a comparison: all of its figures, all of its holes, and the stamp on everything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.cli import main
from flower_privsyn.errors import DataError
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.report.methods import looks
from flower_privsyn.report.pages import comparison_page
from flower_privsyn.runs import RunDirectory
from flower_privsyn.strategies.catalogue import compared
from tests.support.comparisons import PRIVATE, comparison
from tests.support.pages import Node, check, headings, part, rows, tips

DOCUMENT = comparison()


@pytest.fixture(scope="module")
def page() -> Node:
    return check(comparison_page(DOCUMENT))


def small(**changes: Any) -> dict[str, Any]:
    return {**comparison(methods=["popri"], epsilons=(1.0,), seeds=1), **changes}


def test_the_stamp_is_everywhere(page: Node) -> None:
    for name in ("title", "footer"):
        assert STAMP in page.all(name)[0].text
    assert STAMP in page.with_class("banner")[0].text
    for figure in page.all("figure"):
        public = "From the ledgers" in figure.text
        assert (STAMP in figure.all("figcaption")[0].text) is not public
        assert all((STAMP in n.text) is not public for n in figure.all("desc"))
    for caption in ("Quality on held-out", "Synthetic text beside", "All cells"):
        assert any(c.text.startswith(caption) and STAMP in c.text for c in page.all("caption"))


@pytest.mark.parametrize("stamp", [None, "", "perfectly private"])
def test_the_stamp_cannot_be_lost(stamp: str | None) -> None:
    lost = check(comparison_page(small(stamp=stamp, summary=[])))
    assert STAMP in lost.all("title")[0].text
    assert STAMP in lost.with_class("banner")[0].text


def test_every_figure_of_the_summary_is_in_the_table_and_at_its_mark(page: Node) -> None:
    found = rows(page, "Quality on held-out")
    assert len(found) == len(DOCUMENT["summary"])
    at_marks = tips(part(page, "Quality against privacy"))
    by_bytes = tips(part(page, "Quality against communication"))
    titles = {name: method.title for name, method in compared().items()} | DOCUMENT["titles"]
    for line in DOCUMENT["summary"]:
        mean, error = line["next_token_accuracy"].values()
        shown = f"{mean:.4f}" + (f" ± {error:.4f}" if error else "")
        title, epsilon = titles[line["method"]], line["epsilon"]
        budget = "∞" if epsilon is None else f"{epsilon:g}"
        row = next(row for row in found if row[:2] == [title, budget])
        assert row[2] == shown
        assert row[6] == ("1 (1 failed)" if line["failed"] else "2")
        assert row[7:] == [budget, budget]
        tip = f"{title}, ε = {budget}: {shown}" if epsilon else f"{title}: {shown}"
        assert at_marks.count(tip) == 2  # wide and narrow
        if epsilon:
            assert [t for t in by_bytes if t.startswith(title) and t.endswith(shown)]


def test_epsilons_of_both_kinds_are_the_largest_of_the_seeds() -> None:
    document = comparison(methods=["popri"], epsilons=(1.0,))
    document["cells"][3]["epsilon_known_cohorts"] = 3.25
    row = rows(check(comparison_page(document)), "Quality on held-out")[1]
    assert row[-2:] == ["1", "3.25"]


def test_spending_and_samples(page: Node) -> None:
    spending = part(page, "ε spent by each round")
    assert [n.text for n in spending.all("h3")] == [
        DOCUMENT["titles"].get(name, compared()[name].title) for name in PRIVATE
    ]
    counts = {method: rounds for method, (_, _, rounds) in PRIVATE.items()}
    assert len(rows(spending, "ε by round")) == 2 * sum(counts.values())
    groups = [n for n in part(page, "Sample texts side by side").all("details") if n.all("article")]
    assert [n.all("summary")[0].text for n in groups] == [
        "ε = 7",
        "ε = 1",
        "No private text used (ε = 0)",
        "Not private (ε = ∞): texts may repeat what a user wrote",
    ]
    assert ["open" in n.attributes for n in groups] == [True, False, False, False]
    assert "<i>pre-text</i> &" in groups[0].all("blockquote")[0].text


def test_failed_and_pending_cells_are_named(page: Node) -> None:
    missing = part(page, "What is missing")
    sentence = "The nodes hold 12 users, but num-users = 3000 were planned <b>!"
    assert rows(missing, "1 failed cell") == [["DP-FTRL", "1", "1", sentence]]
    assert rows(missing, "Cells without a result") == [["own-method", "1", "0", "pending"]]
    assert "23 of 25 cells finished" in page.with_class("subtitle")[0].text
    whole = small()
    del whole["cells"][-1]
    assert "What is missing" not in headings(check(comparison_page(whole)))


def test_a_second_student_that_is_missing_is_named() -> None:
    document = small()
    del document["cells"][-1]
    document["cells"][-1]["distilled_error"] = "why"
    missing = part(check(comparison_page(document)), "What is missing")
    ((*_, said),) = rows(missing, "1 failed cell")
    assert said == "without a second student: why"


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(summary=[], cells=[]),
        lambda d: [c.update(quality=None, texts=None, costs=None) for c in d["cells"]],
        lambda d: [c.update(status="running", spent=None, samples=None) for c in d["cells"]],
        lambda d: [
            line.update({k: None for k in line if k not in ("method", "epsilon")})
            for line in d["summary"]
        ],
        lambda d: [d.pop(k) for k in ("data", "versions", "methods", "seeds", "delta", "command")],
        lambda d: [line["next_token_accuracy"].update(mean=0.25) for line in d["summary"]],
        lambda d: d.update(titles={"popri": "$x_{<script>\n\ud800" + "long " * 40}),
    ],
)
def test_whatever_is_not_there_yet_is_left_out(change: Callable[[Any], Any]) -> None:
    document = small()
    change(document)
    check(comparison_page(document))


@pytest.mark.parametrize("document", [{}, {"cells": [], "summary": None}, {"cells": {}}])
def test_something_else_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(DataError, match='"cells" and "summary"'):
        comparison_page(document)


def test_every_method_looks_like_itself_and_like_no_other() -> None:
    names = [*compared(), *[f"own-{n}" for n in range(25)]]
    found = looks(names)
    assert list(found) == names
    assert len(set(found.values())) == len(names)
    assert looks(["own-3", "popri"])["popri"] == found["popri"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "compare.json"
    document.write_text(json.dumps(small()))
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    # Equal input, equal bytes, after a way through JSON and a second drawing.
    assert (tmp_path / "report.html").read_text() == comparison_page(small())
    run = RunDirectory.create(tmp_path / "run", config={})
    run.unlock()
    assert main(["report", str(tmp_path), "--output", str(run.path / "page.html")]) == 2
    assert "lies in the run directory" in capsys.readouterr().err
    assert not list(run.path.rglob("*.html"))
    for text in ("{", "[]", "{}"):
        document.write_text(text)
        (tmp_path / "report.html").unlink(missing_ok=True)
        assert main(["report", str(tmp_path)]) == 2
        assert "compar" in capsys.readouterr().err
        assert not (tmp_path / "report.html").exists()
