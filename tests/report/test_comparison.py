"""The page of a comparison: all of its figures, all of its holes, and the stamp on everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.cli import main
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.report import comparison_page
from flower_privsyn.run import RunDirectory
from tests.support.comparisons import comparison
from tests.support.pages import Node, check, headings, part, pictures, rows

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
    assert all(STAMP in figure.all("figcaption")[0].text for figure in page.all("figure"))
    assert all(STAMP in words for words in pictures(page))
    (caption,) = [c.text for c in page.all("caption") if c.text.startswith("What each method")]
    assert STAMP in caption


def test_the_stamp_cannot_be_lost() -> None:
    lost = check(comparison_page(small(stamp="perfectly private", summary=[])))
    assert STAMP in lost.all("title")[0].text
    assert STAMP in lost.with_class("banner")[0].text


def test_every_figure_of_the_summary_is_in_the_table(page: Node) -> None:
    found = rows(page, "What each method")
    assert len(found) == len(DOCUMENT["summary"])
    for line in filter(lambda one: one["seeds"], DOCUMENT["summary"]):
        mean, error = line["next_token_accuracy"].values()
        shown = f"{100 * mean:.2f}" + (f" ± {100 * error:.2f}" if error else "")
        title, epsilon = line["title"], line["epsilon"]
        budget = "∞" if epsilon is None else f"{epsilon:g}"
        (row,) = [one for one in found if one[0].startswith(title) and one[1] == budget]
        assert row[2] == shown
        assert ("1 failed" in row[0]) == bool(line["failed"])


def test_every_method_is_named_in_the_picture(page: Node) -> None:
    (words,) = pictures(page)
    assert all(line["title"] in words for line in DOCUMENT["summary"] if line["seeds"])


def test_samples_stand_by_budget(page: Node) -> None:
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
    assert rows(missing, "2 cells") == [
        ["DP-FTRL, ε = 1, seed 1", "failed", sentence],
        ["own-method, ε = 1, seed 0", "pending", "-"],
    ]
    assert "23 of 25 cells finished" in page.with_class("subtitle")[0].text
    whole = small()
    del whole["cells"][-1]
    assert "What is missing" not in headings(check(comparison_page(whole)))


def test_before_the_first_cell_has_finished() -> None:
    document = small(summary=[])
    document["cells"] = [dict(document["cells"][-1]) for _ in range(3)]
    page = check(comparison_page(document))
    assert not page.all("img")
    assert "0 of 3 cells finished" in page.with_class("subtitle")[0].text


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
