"""Measured cells: how they are collected, which of them judge, and what is said of the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from flower_privsyn.advice.judge import Need, advise
from flower_privsyn.advice.measured import MeasuredTable, collect, document
from flower_privsyn.advice.page import advice_lines, page
from flower_privsyn.advice.picture import picture
from flower_privsyn.cli import main
from flower_privsyn.comparison import APP
from flower_privsyn.errors import ConfigError
from research import measured_cells

SVG = "{http://www.w3.org/2000/svg}"
RESULTS = Path(__file__).parents[2] / "research" / "results"


def record(
    method: str, epsilon: float | None, accuracy: float, *, seed: int = 0, up: int = 0
) -> dict[str, Any]:
    return {
        "method": method,
        "epsilon": epsilon,
        "seed": seed,
        "status": "finished",
        "quality": {"next_token_accuracy": accuracy, "bits_per_byte": 2.0 - accuracy},
        "costs": {"bytes_up": up, "bytes_down": 10, "client_cpu_seconds": 0.5},
    }


def place(users: int, *records: Mapping[str, Any]) -> list[tuple[str, int, Mapping[str, Any]]]:
    return [("letters", users, one) for one in records]


FLOOR = record("public-only", 0.0, 0.2)


@pytest.fixture
def table() -> MeasuredTable:
    """DP-FTRL wins at 10,000 users and loses at 1,000, where there is a ceiling."""
    cells = collect(
        place(
            1_000,
            FLOOR,
            record("finetune-private", None, 0.3),
            record("joint-sketch", 1.0, 0.23, up=98_000),
            record("joint-sketch", 1.0, 0.25, seed=1, up=98_000),
            record("dp-ftrl", 1.0, 0.21, up=1_300_000),
        )
        + place(
            10_000,
            record("joint-sketch", 1.0, 0.25, up=98_000),
            record("dp-ftrl", 1.0, 0.28, up=1_300_000),
        )
        + place(1_000, record("joint-sketch", 0.1, 0.22, up=98_000))
    )
    return MeasuredTable(cells=tuple(cells), setup=("One model.",))


class TestCollecting:
    def test_a_line_is_a_method_over_its_seeds_beside_floor_and_ceiling(
        self, table: MeasuredTable
    ) -> None:
        assert [(one.users, one.epsilon, one.method) for one in table.cells] == [
            (1_000, 0.1, "joint-sketch"),
            (1_000, 1.0, "joint-sketch"),
            (1_000, 1.0, "dp-ftrl"),
            (10_000, 1.0, "joint-sketch"),
            (10_000, 1.0, "dp-ftrl"),
        ]
        sketch = table.cells[1]
        assert (sketch.seeds, sketch.accuracy) == (2, pytest.approx(0.24))
        assert sketch.accuracy_error == pytest.approx(0.01)
        assert (sketch.floor, sketch.ceiling) == (0.2, 0.3)
        assert sketch.gap_closed == pytest.approx(0.4)
        # The floor is of everybody's text, the ceiling of these users alone.
        assert (table.cells[3].floor, table.cells[3].ceiling) == (0.2, None)
        assert table.cells[3].gap_closed is None

    def test_what_is_no_method_or_not_finished_or_without_a_floor_is_left_out(self) -> None:
        lost = record("dp-ftrl", 1.0, 0.2) | {"status": "failed"}
        assert collect(place(5, FLOOR, record("without-pairs", 1.0, 0.3), lost)) == []
        assert collect(place(5, record("dp-ftrl", 1.0, 0.3))) == []
        # The first of two cells of one seed counts.
        (only,) = collect(place(5, FLOOR, record("popri", 1, 0.3), record("popri", 1, 0.9)))
        assert (only.accuracy, only.seeds) == (0.3, 1)

    def test_it_is_read_as_it_was_written(self, table: MeasuredTable, tmp_path: Path) -> None:
        file = tmp_path / "measured.json"
        file.write_text(json.dumps(document(table.cells, setup=table.setup)))
        assert MeasuredTable.read(file) == table
        for text in ("", "[]", '{"version": 2}', '{"version": 1, "setup": [], "cells": []}'):
            file.write_text(text)
            with pytest.raises(ConfigError, match=r"measured\.json"):
                MeasuredTable.read(file)


class TestJudging:
    def test_methods_are_compared_where_both_were_measured(self, table: MeasuredTable) -> None:
        for users, best in ((1_000, "joint-sketch"), (3_000, "joint-sketch"), (5_000, "dp-ftrl")):
            advice = advise(table, Need(users=users, epsilon=1.0))
            assert advice.best == (best,), users
            (judgement,) = advice.judgements
            assert len(judgement.ranked) == 2
            assert "popri" in advice.unmeasured
            assert "fred" not in advice.unmeasured
            assert "private-evolution" in advice.unmeasured
            said = "\n".join(advice_lines(advice))
            assert f"Not measured in these places: {', '.join(advice.unmeasured)}." in said
        cells = collect(place(9, FLOOR, record("pre-text", 1.0, 0.3)))
        advice = advise(MeasuredTable(cells=tuple(cells), setup=()), Need(users=9, epsilon=1.0))
        assert "private-evolution" not in advice.unmeasured  # which pre-text is settings of

    def test_what_sends_too_much_does_not_win(self, table: MeasuredTable) -> None:
        advice = advise(table, Need(users=10_000, epsilon=1.0, upload=10**6))
        assert advice.best == ("joint-sketch",)
        (judgement,) = advice.judgements
        assert [cell.method for cell in judgement.too_large] == ["dp-ftrl"]
        assert "sends too much: 1.3 MB up" in "\n".join(advice_lines(advice))
        little = [record("popri", 1.0, 0.3, up=9), record("aug-pe", 1.0, 0.2, up=9)]
        more = [replace(one, data="numbers") for one in collect(place(10_000, FLOOR, *little))]
        with_numbers = replace(table, cells=(*table.cells, *more))
        need = Need(users=9, epsilon=1.0, upload=9)
        said = "\n".join(advice_lines(advise(with_numbers, need)))
        # On letters nothing sends so little, and nothing is first.
        assert '  popri: first where it had rivals, on "numbers".\n' in said
        both = "\n".join(advice_lines(advise(with_numbers, replace(need, upload=None))))
        assert '  joint-sketch: first on "letters".\n' in both
        assert '  popri: first on "numbers".\n' in both
        nothing = advise(table, Need(users=10_000, epsilon=1.0, upload=9))
        assert nothing.best == ()
        assert "nothing that was measured nearby" in "\n".join(advice_lines(nothing))

    def test_it_says_how_far_off_it_judges(self, table: MeasuredTable) -> None:
        (very,) = advise(table, Need(users=1_000, epsilon=1.0)).judgements
        assert (very.between, very.beyond) == ((), ())
        (between,) = advise(table, Need(users=3_000, epsilon=1.0)).judgements
        assert between.between == (
            "users 3,000 is between those measured, 1,000 to 10,000; judged by 1,000",
        )
        assert between.beyond == ()
        far = advise(table, Need(users=90_000, epsilon=0.01))
        (outside,) = far.judgements
        assert outside.between == ()
        assert outside.beyond == (
            "users 90,000 is above the most measured, 10,000; judged by 10,000",
            "epsilon 0.01 is below the least measured, 0.1; judged by 1",
        )
        assert "Extrapolated: epsilon 0.01 is below" in "\n".join(advice_lines(far))
        half = "\n".join(advice_lines(advise(table, Need(users=3_000, epsilon=0.01))))
        assert "Not this place: users 3,000 is between" in half
        assert "Extrapolated: epsilon 0.01 is below" in half
        assert "\n  Extrapolated: nothing like it was measured on any of these texts.\n" in half
        sure = "\n".join(advice_lines(advise(table, Need(users=1_000, epsilon=1.0))))
        assert "Extrapolated" not in sure

    def test_a_method_without_a_rival_is_said_and_judges_nothing(
        self, table: MeasuredTable
    ) -> None:
        need = Need(users=1_000, epsilon=0.1)
        advice = advise(table, need)
        (judgement,) = advice.judgements
        assert judgement.place == (1_000, 1.0)
        assert [(cell.method, cell.epsilon) for cell in judgement.nearer] == [("joint-sketch", 0.1)]
        said = "\n".join(advice_lines(advice))
        assert (
            "  Nearer, but without a rival: joint-sketch by 1,000 users at epsilon 0.1, "
            "+2.00 points, 20 % of the gap, 1 seed, 98 kB up." in said
        )
        only = replace(table, cells=tuple(cell for cell in table.cells if cell.epsilon == 0.1))
        alone = advise(only, need)
        assert alone.judgements[0].nearer == ()
        assert "this is no comparison" in "\n".join(advice_lines(alone))

    def test_what_was_not_run_there_and_is_ahead_elsewhere_is_said(
        self, table: MeasuredTable
    ) -> None:
        """By how it compares with the first of the place, and not by its gain elsewhere."""
        more = [
            record("popri", 1.0, 0.26, up=50_000),
            record("joint-sketch", 1.0, 0.25, up=98_000),
            record("aug-pe", 1.0, 0.22, up=50_000),
            record("ctcl", 1.0, 0.29, up=2_000_000),
            record("fred", 7.0, 0.29, up=50_000),
        ]
        cells = [
            *(cell for cell in table.cells if cell.users == 10_000),
            *collect(place(100, FLOOR, *more)),
        ]
        here = replace(table, cells=tuple(cells))
        limit = Need(users=10_000, epsilon=1.0, upload=10**6)
        (judgement,) = advise(here, limit).judgements
        # popri is ahead of the sketch by a point, aug-pe behind; ctcl sends too much.
        assert [cell.method for cell in judgement.ahead] == ["popri"]
        said = "\n".join(advice_lines(advise(here, limit)))
        assert "Not run there, and ahead by 100 users at epsilon 1: popri, +6.00 points" in said
        assert '  Not run in these places, and ahead in others: "popri".\n' in said
        (without,) = advise(here, replace(limit, upload=None)).judgements
        assert without.ranked[0].method == "dp-ftrl"
        assert without.ahead == ()  # nothing was run beside it
        (nothing,) = advise(here, replace(limit, upload=60_000)).judgements
        assert nothing.ranked == ()
        assert [cell.method for cell in nothing.ahead] == ["fred", "popri", "aug-pe"]


class TestTheCommand:
    def test_it_answers_from_the_table_of_the_package(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["advise", "--users", "5000", "--epsilon", "1", "--upload", "1MB"]) == 0
        said = capsys.readouterr().out
        assert said.startswith("5,000 users, epsilon 1, 1 MB up at most:\n")
        assert "users 5,000 is between those measured" in said
        assert (
            "privsyn run every --config cpu/joint-sketch --set data=FILE --set epsilon=1`" in said
        )
        words = ["advise", "--users", "5000", "--epsilon", "1", "--json"]
        assert main(words) == 0
        read = json.loads(capsys.readouterr().out)
        assert read["need"] == {"users": 5000, "epsilon": 1.0, "upload": None}
        assert len(read["judgements"]) == len(MeasuredTable.read().kinds)


class TestThePage:
    def test_of_equal_gains_that_which_sends_less_is_the_best(self) -> None:
        sketch, hybrid = (
            record("joint-sketch", 1.0, 0.25, up=98_000),
            record("hybrid", 1.0, 0.250_01, up=815_000),
        )
        found = MeasuredTable(
            cells=tuple(collect(place(10, FLOOR, hybrid, sketch))), setup=("One model.",)
        )
        assert (
            "| 10 | **joint-sketch**, +5.0 points, 98 kB up; "
            'of 2 methods, not told apart from "hybrid" |' in page(found)
        )
        better = record("hybrid", 1.0, 0.250_1, up=815_000)
        found = MeasuredTable(
            cells=tuple(collect(place(10, FLOOR, better, sketch))), setup=("One model.",)
        )
        assert "| 10 | **hybrid**" in page(found)

    def test_the_package_s_table_is_of_the_cells_that_the_pages_have(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        setup = [word for line in MeasuredTable.read().setup for word in ("--setup", line)]
        sources = [str(RESULTS / f"{page}.jsonl") for page in ("joint_sketch", "hybrid", "compare")]
        ends = ["--with-ends", str(RESULTS / "with_ends.jsonl")]
        words = ["measured_cells", *sources, *ends, *setup]
        monkeypatch.setattr("sys.argv", words)
        assert measured_cells.main() == 0
        made = json.loads(capsys.readouterr().out)
        assert made == document(MeasuredTable.read().cells, setup=MeasuredTable.read().setup)

    def test_what_is_advised_has_settings(self) -> None:
        for cell in MeasuredTable.read().cells:
            if cell.is_private:
                assert (APP / "conf" / f"{cell.config}.toml").is_file(), cell.method


class TestPicture:
    def test_a_rectangle_for_each_place_and_a_line_where_the_upload_grows(
        self, table: MeasuredTable
    ) -> None:
        root = ElementTree.fromstring(picture(table, "letters"))
        tips = [node.text for node in root.iter(f"{SVG}title") if node.get("id") is None]
        assert len(tips) == 3
        assert tips[2] is not None
        assert tips[2].startswith("DP-FTRL: +8.00 points, 1 seed, 1.3 MB up; joint sketch: +5.00")
        # 98 kB at 1,000 users and 1.3 MB at 10,000: one side is shared, and it is drawn.
        thick = [node for node in root.iter(f"{SVG}path") if node.get("stroke-width") == "2.5"]
        assert len(thick) == 1
        # Paler at epsilon 0.1, where one method alone was run.
        opacity = [node.get("opacity") for node in root.iter(f"{SVG}path") if len(node)]
        assert opacity == ["0.12", "0.35", "0.35"]
        style = root.findtext(f"{SVG}style")
        assert style is not None
        assert "--paper:#fff" in style
        assert "prefers-color-scheme:dark" in style
