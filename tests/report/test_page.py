"""Markup escapes by construction, and a page is one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.report.page import (
    Html,
    details,
    document,
    element,
    escape,
    facts,
    join,
    sample_card,
    section,
    shortened,
    table,
    write_page,
)
from flower_privsyn.report.scales import NOTHING
from tests.report.pages import check, read

NASTY = "</title><script>alert(1)</script>'\" onload=x & <b> \x00\ud83d\u202e end"


class TestEscaping:
    def test_of_text_in_every_place(self) -> None:
        page = document(
            NASTY,
            element("h1", NASTY),
            section(NASTY, facts([(NASTY, NASTY)]), lead=NASTY),
            table(NASTY, (NASTY, "b"), [(NASTY, NASTY)], note=NASTY),
            details(NASTY, sample_card(NASTY, [NASTY], note=NASTY)),
            element("p", "x", title=NASTY),
            description=NASTY,
            footer=NASTY,
        )
        root = check(page)
        assert "script" not in {node.name for node in root.every()}
        seen = "</title><script>alert(1)</script>'\" onload=x & <b> \ufffd\ufffd end"
        assert root.all("h1")[0].text == seen
        assert root.all("title")[0].text == seen
        assert root.all("p")[-1].attributes["title"] == seen
        page.encode("utf-8")

    def test_markup_goes_in_as_it_is_and_nothing_is_left_out_by_mistake(self) -> None:
        assert element("p", element("b", "x"), None, 0, "") == "<p><b>x</b>0</p>"
        assert element("p", "a", class_="b", aria_label="c", hidden=True, id=None, open=False) == (
            '<p class="b" aria-label="c" hidden>a</p>'
        )
        assert escape(Html("<b>")) == "<b>"
        assert join(["<", None, Html("<br>")], " ") == "&lt; <br>"

    def test_breaks_of_lines_stay(self) -> None:
        assert escape("a\n\tb") == "a\n\tb"


class TestParts:
    def test_a_table_has_headings_of_rows_and_columns_and_a_frame_to_scroll_in(self) -> None:
        root = read(table("Numbers", ("Name", "Value"), [("a", 1), ("b", None)]))
        frame = root.children[0]
        assert not isinstance(frame, str)
        assert frame.attributes["class"] == "scroll"
        assert frame.attributes["tabindex"] == "0"
        assert [n.attributes["scope"] for n in root.all("th")] == ["col", "col", "row", "row"]
        assert [n.text for n in root.all("td")] == ["1", NOTHING]

    def test_samples_beyond_the_first_are_folded(self) -> None:
        root = read(sample_card("x", [f"text {n}" for n in range(5)]))
        assert len(root.all("blockquote")) == 5
        assert [n.text for n in root.all("details")[0].all("blockquote")] == ["text 3", "text 4"]
        assert root.all("summary")[0].text == "2 more"
        assert not read(sample_card("x", ["a"])).all("details")

    @pytest.mark.parametrize(
        ("text", "cut"),
        [("short", "short"), ("one two three four", "one two …"), ("x" * 30, "x" * 12 + " …")],
    )
    def test_long_texts_end_at_a_word(self, text: str, cut: str) -> None:
        assert shortened(text, 12) == cut


def test_a_page_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_page(Html("half \ud800"), path)
    assert path.read_text() == "old"
    write_page(document("t", element("h1", "t"), description="d"), path)
    assert path.read_text().startswith("<!doctype html>\n<html lang=")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
