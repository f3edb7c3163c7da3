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
from flower_privsyn.report import write_comparison_page
from flower_privsyn.report.comparison import _STYLES, _styles, comparison_page
from flower_privsyn.runs import RunDirectory
from tests.report.examples import PRIVATE, comparison
from tests.report.pages import Node, check


@pytest.fixture(scope="module")
def page() -> Node:
    return check(comparison_page(comparison()))


def part(page: Node, heading: str) -> Node:
    """The section under a heading."""
    (found,) = [s for s in page.all("section") if s.all("h2")[0].text == heading]
    return found


def rows(node: Node, caption: str) -> list[list[str]]:
    """The cells of the table whose caption begins so."""
    (found,) = [t for t in node.all("table") if t.all("caption")[0].text.startswith(caption)]
    body = found.all("tbody")[0]
    return [[c.text for c in row.every() if c.name in ("th", "td")] for row in body.all("tr")]


class TestStamp:
    def test_is_in_the_title_at_the_top_and_at_the_bottom(self, page: Node) -> None:
        assert STAMP in page.all("title")[0].text
        main_part = page.all("main")[0]
        names = [n.name if isinstance(n, Node) else n for n in main_part.children]
        assert names[:3] == ["h1", "p", "div"]
        banner = main_part.children[2]
        assert isinstance(banner, Node)
        assert STAMP in banner.text
        assert STAMP in page.all("footer")[0].text

    def test_is_at_every_chart_and_table_of_private_figures(self, page: Node) -> None:
        stamped = 0
        for shown in page.all("figure"):
            public = "ε by round" in shown.text
            assert (STAMP in shown.all("figcaption")[0].text) is not public
            for picture in shown.all("svg"):
                if picture.all("desc"):
                    assert (STAMP in picture.all("desc")[0].text) is not public
                    stamped += not public
        assert stamped > 8
        for caption in ("Quality on held-out", "Synthetic text beside", "All cells"):
            (found,) = [c for c in page.all("caption") if c.text.startswith(caption)]
            assert STAMP in found.text

    @pytest.mark.parametrize("stamp", [None, "", "perfectly private"])
    def test_cannot_be_lost(self, stamp: str | None) -> None:
        lost = check(comparison_page({**comparison(seeds=1), "stamp": stamp}))
        assert STAMP in lost.all("title")[0].text
        assert STAMP in lost.with_class("banner")[0].text


class TestFigures:
    def test_are_all_in_the_table(self, page: Node) -> None:
        document = comparison()
        found = rows(page, "Quality on held-out")
        assert len(found) == len(document["summary"])
        for line in document["summary"]:
            mean = f"{line['next_token_accuracy']['mean']:.4f}"
            error = f"{line['next_token_accuracy']['standard_error']:.4f}"
            assert any(f"{mean} ± {error}" == row[2] for row in found)
        first, last = found[0], found[-1]
        assert (first[0], first[1], last[0], last[1]) == (
            "Public text only",
            "0",
            "Fine-tuned on private text",
            "∞",
        )
        assert (first[-2:], last[-2:]) == (["0", "0"], ["∞", "∞"])
        failed = next(row for row in found if row[0] == "DP-FTRL")
        assert failed[6] == "2 (1 failed)"

    def test_epsilons_of_both_kinds_are_the_largest_of_the_seeds(self) -> None:
        document = comparison()
        cell = next(c for c in document["cells"] if c["method"] == "popri" and c["seed"] == 1)
        cell["epsilon_known_cohorts"] = 3.25
        row = next(
            row
            for row in rows(check(comparison_page(document)), "Quality on held-out")
            if row[:2] == ["POPri", "1"]
        )
        assert row[-2:] == ["1", "3.25"]

    def test_epsilon_zero_and_infinity_are_levels_and_not_points(self, page: Node) -> None:
        figure = part(page, "Quality against privacy").all("figure")[0]
        wide = figure.with_class("wide")[0]
        assert [n.all("title")[0].text.split(":")[0] for n in wide.with_class("reference")] == [
            "Public text only",
            "Expanded public text",
            "Fine-tuned on private text",
        ]
        assert len({n.attributes["stroke-dasharray"] for n in wide.with_class("reference")}) == 3
        tips = [n.text for n in wide.all("title")]
        for name in ("POPri", "PrE-Text", "PE+SFT", "Kernel sketch", "DP-FedAvg", "DP-FTRL"):
            for budget in (1, 7):
                assert sum(tip.startswith(f"{name}, ε = {budget}:") for tip in tips) == 1
        assert "logarithmic axis" in wide.text

    def test_bytes_have_a_chart_for_each_budget_with_equal_axes(self, page: Node) -> None:
        figure = part(page, "Quality against communication").all("figure")[0]
        assert [n.text for n in figure.all("h3")] == ["ε = 1", "ε = 7"]
        marks = [
            {
                n.text
                for n in picture.all("text")
                if n.attributes.get("text-anchor") in ("middle", "end")
            }
            for picture in figure.with_class("wide")
        ]
        assert marks[0] == marks[1]
        assert {"100 kB", "1 MB", "100 MB"} <= marks[0]
        assert "Uploaded by one user in the whole run (bytes, logarithmic axis)" in figure.text
        assert "Both charts have the same axes" in figure.text

    def test_a_method_without_bytes_is_named_and_not_drawn(self) -> None:
        document = comparison()
        for line in document["summary"]:
            if line["method"] == "popri":
                line["bytes_up"] = None
        figure = part(check(comparison_page(document)), "Quality against communication").all(
            "figure"
        )[0]
        assert "not shown: POPri" in figure.all("figcaption")[0].text
        assert not [n for n in figure.all("title") if n.text.startswith("POPri:")]

    def test_every_axis_has_a_title(self, page: Node) -> None:
        for picture in page.all("svg"):
            if picture.attributes.get("role") == "img":
                loose = [
                    n.text for n in picture.with_class("quiet") if "text-anchor" not in n.attributes
                ]
                assert len(loose) >= 2

    def test_spending_is_a_step_for_each_release(self, page: Node) -> None:
        figure = part(page, "ε spent by each round").all("figure")[0]
        names = [n.text for n in figure.all("h3")]
        assert names == ["PrE-Text", "PE+SFT", "POPri", "Kernel sketch", "DP-FedAvg", "DP-FTRL"]
        counts = [
            [(n.attributes["d"] or "").count("V") for n in picture.with_class("line")]
            for picture in figure.all("svg")
            if picture.all("desc")
        ]
        assert counts[:4] == [[11, 11], [20, 20], [20, 20], [1, 1]]
        assert "no overlap" not in figure.text

    def test_movement_shows_held_out_text_and_two_rounds(self, page: Node) -> None:
        figure = part(page, "How the embeddings moved").all("figure")[0]
        assert [n.text for n in figure.all("h3")] == ["PrE-Text", "POPri", "Kernel sketch"]
        picture = next(n for n in figure.all("svg") if n.all("desc"))
        counts = [(n.attributes["d"] or "").count("h0") for n in picture.with_class("dots")]
        assert counts[0] > 600
        assert all(150 < count <= 192 for count in counts[1:])
        assert "Component 1 (8 % of variance)" in picture.text
        assert {"round 0", "round 20"} <= {n.text for n in picture.all("text")}

    def test_samples_are_side_by_side_by_budget(self, page: Node) -> None:
        shown = part(page, "Sample texts side by side")
        groups = [n for n in shown.all("details") if n.with_class("samples")]
        assert [n.all("summary")[0].text for n in groups] == [
            "ε = 7",
            "ε = 1",
            "No private text used (ε = 0)",
            "Not private (ε = ∞): texts may repeat what a user wrote",
        ]
        assert ["open" in n.attributes for n in groups] == [True, False, False, False]
        assert len(groups[0].all("article")) == len(PRIVATE)
        assert "<i>the case</i>" in groups[0].all("blockquote")[0].text


class TestHoles:
    def test_a_failed_cell_shows_its_sentence(self, page: Node) -> None:
        missing = part(page, "What is missing")
        assert rows(missing, "1 failed cell") == [
            [
                "DP-FTRL",
                "1",
                "1",
                "The nodes hold 12 users, but num-users = 3000 were planned <b>!",
            ]
        ]
        assert rows(missing, "Cells without a result") == [["own-method", "1", "0", "pending"]]
        assert "44 of 46 cells finished" in page.with_class("subtitle")[0].text

    def test_nothing_is_missing_where_all_finished(self) -> None:
        document = comparison(methods=["popri"])
        document["cells"] = [c for c in document["cells"] if c["status"] == "finished"]
        assert "What is missing" not in [n.text for n in check(comparison_page(document)).all("h2")]

    @pytest.mark.parametrize(
        "change",
        [
            lambda d: d.update(summary=[], cells=[]),
            lambda d: d.update(embedding=None, finished=None, versions={}, data={}, titles={}),
            lambda d: [c.update(quality=None, texts=None, costs=None) for c in d["cells"]],
            lambda d: [
                c.update(status="running", spent=None, samples=None, epsilon_known_cohorts=None)
                for c in d["cells"]
            ],
            lambda d: [
                line.update({k: None for k in line if k not in ("method", "epsilon")})
                for line in d["summary"]
            ],
            lambda d: [
                d.pop(k)
                for k in ("data", "machine", "methods", "seeds", "epsilons", "delta", "command")
            ],
            lambda d: d.update(embedding={"held_out": [[0, 0]], "methods": {"popri": {"0": []}}}),
            lambda d: [line["next_token_accuracy"].update(mean=0.25) for line in d["summary"]],
        ],
    )
    def test_whatever_is_not_there_yet_is_left_out(self, change: Callable[[Any], Any]) -> None:
        document = comparison()
        change(document)
        check(comparison_page(document))

    @pytest.mark.parametrize("document", [{}, {"cells": [], "summary": None}, {"cells": {}}])
    def test_something_else_is_refused(self, document: dict[str, Any]) -> None:
        with pytest.raises(DataError, match='"cells" and "summary"'):
            comparison_page(document)


class TestMethods:
    def test_every_known_method_has_a_mark_of_its_own(self) -> None:
        looks = list(_STYLES.values())
        assert len(set(looks)) == len(looks)
        private = [_STYLES[name] for name in PRIVATE]
        assert len({s.mark for s in private}) == len({s.colour for s in private}) == len(private)

    def test_unknown_methods_get_one_that_nobody_has(self) -> None:
        names = [*_STYLES, *[f"own-{n}" for n in range(25)]]
        found = _styles(names)
        assert set(found) == set(names)
        assert len(set(found.values())) == len(names)
        assert {name: found[name] for name in _STYLES} == _STYLES
        assert _styles(["own-3", "popri"])["popri"] == _STYLES["popri"]

    def test_an_unknown_method_is_shown_under_its_own_name(self) -> None:
        document = comparison(methods=["popri", "sketch of mine"])
        figure = part(check(comparison_page(document)), "Quality against privacy").all("figure")[0]
        assert "sketch of mine" in figure.with_class("wide")[0].text


class TestCommand:
    def test_writes_the_page_once_more(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "compare.json").write_text(json.dumps(comparison()))
        assert main(["report", str(tmp_path)]) == 0
        written = (tmp_path / "report.html").read_text()
        assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
        write_comparison_page(comparison(), tmp_path / "again.html")
        assert (tmp_path / "again.html").read_text() == written
        assert STAMP in written

    def test_never_into_a_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "compare.json").write_text(json.dumps(comparison(seeds=1)))
        run = RunDirectory.create(tmp_path / "run", config={})
        run.unlock()
        (run.path / "rounds").mkdir()
        for output in (run.path / "page.html", run.path / "rounds"):
            assert main(["report", str(tmp_path), "--output", str(output)]) == 2
            assert "lies in the run directory" in capsys.readouterr().err
        assert not list(run.path.rglob("*.html"))

    @pytest.mark.parametrize("text", ["{", "[]", "{}"])
    def test_a_damaged_document_is_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
    ) -> None:
        (tmp_path / "compare.json").write_text(text)
        assert main(["report", str(tmp_path)]) == 2
        assert "compar" in capsys.readouterr().err
        assert not (tmp_path / "report.html").exists()
