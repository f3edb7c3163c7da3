"""From cells to rows: means, standard errors, and the gap that was closed."""

from typing import Any

import pytest

from flower_privsyn.comparison.run import summarise
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.report.comparison import markdown
from flower_privsyn.strategies.catalogue import compared

METHODS = [compared()[name] for name in ("public-only", "popri", "finetune-private")]


def cell(method, epsilon, seed, accuracy=None, status="finished", **costs):
    return {
        "method": method,
        "epsilon": epsilon,
        "seed": seed,
        "status": status,
        "error": None if status == "finished" else "it\nbroke | here",
        "quality": None if accuracy is None else {"next_token_accuracy": accuracy},
        "texts": None,
        "costs": costs or None,
    }


CELLS = [
    cell("public-only", 0.0, 0, 0.20),
    cell("finetune-private", None, 0, 0.38),
    cell("finetune-private", None, 1, 0.42),
    cell("popri", 1.0, 0, 0.26, bytes_up=1000),
    cell("popri", 1.0, 1, 0.30, bytes_up=3000),
    cell("popri", 7.0, 0, status="failed"),
    cell("popri", 7.0, 1, 0.32),
]


class TestSummary:
    def test_a_row_per_method_and_epsilon(self) -> None:
        rows = summarise(CELLS, METHODS)
        assert [(row["method"], row["epsilon"]) for row in rows] == [
            ("public-only", 0.0),
            ("popri", 1.0),
            ("popri", 7.0),
            ("finetune-private", None),
        ]

    def test_no_zero_has_a_sign(self) -> None:
        cells = [CELLS[0], CELLS[1], cell("popri", 1.0, 0, 0.1999)]
        row = next(line for line in table_of(cells).splitlines() if "POPri" in line)
        assert row.split("|")[3:5] == [" 19.99 ", " 0 "]

    def test_rounds_without_a_release_stand_under_the_table(self) -> None:
        """Such a cell had fewer releases than others, and its figures say so nowhere else."""
        cells = [*CELLS[:3], cell("popri", 1.0, 0, 0.26, rounds_lost=2)]
        cells += [cell("popri", 1.0, 1, 0.26, rounds_lost=0)]
        assert "gave nothing: POPri, ε = 1, seed 0 (2)." in table_of(cells)
        assert "gave nothing" not in table_of(CELLS)

    def test_mean_standard_error_and_gap(self) -> None:
        floor, row, _, ceiling = summarise(CELLS, METHODS)
        assert row["next_token_accuracy"]["mean"] == pytest.approx(0.28)
        # Two values two hundredths to either side: s = 0.02 sqrt(2), over sqrt(2).
        assert row["next_token_accuracy"]["standard_error"] == pytest.approx(0.02)
        assert row["gap_closed"]["mean"] == pytest.approx((0.28 - 0.2) / (0.4 - 0.2))
        assert row["gap_closed"]["standard_error"] == pytest.approx(0.02 / 0.2)
        assert floor["gap_closed"]["mean"] == 0.0
        assert ceiling["gap_closed"]["mean"] == pytest.approx(1.0)
        assert floor["next_token_accuracy"]["standard_error"] is None
        assert row["bytes_up"] == 2000

    def test_failed_cells_are_counted_and_left_out(self) -> None:
        row = summarise(CELLS, METHODS)[2]
        assert (row["seeds"], row["failed"], row["planned"]) == (1, 1, 2)
        assert row["next_token_accuracy"]["mean"] == pytest.approx(0.32)

    def test_no_gap_without_a_ceiling_above_the_floor(self) -> None:
        assert summarise(CELLS[:1] + CELLS[3:], METHODS)[1]["gap_closed"] is None
        upside_down = [cell("public-only", 0.0, 0, 0.5), *CELLS[1:]]
        assert summarise(upside_down, METHODS)[1]["gap_closed"] is None


class TestDistilled:
    METHODS = [  # noqa: RUF012
        compared()[name]
        for name in ("public-only", "distill-public", "popri", "joint-sketch", "finetune-private")
    ]

    @staticmethod
    def cells() -> list[dict[str, Any]]:
        found = [
            cell("public-only", 0.0, 0, 0.20),
            cell("distill-public", 0.0, 0, 0.22),
            cell("popri", 1.0, 0, 0.24),
            cell("joint-sketch", 1.0, 0, 0.29),
            cell("finetune-private", None, 0, 0.40),
        ]
        for one in found:
            if one["method"] in ("popri", "finetune-private"):
                accuracy = one["quality"]["next_token_accuracy"] + 0.02
                one["distilled"] = {"next_token_accuracy": accuracy, "bits_per_byte": 1.5}
        return found

    def test_the_gap_is_between_what_was_taught_alike(self) -> None:
        rows = {row["method"]: row for row in summarise(self.cells(), self.METHODS)}
        assert rows["popri"]["distilled_accuracy"]["mean"] == pytest.approx(0.26)
        assert rows["popri"]["gap_closed"]["mean"] == pytest.approx((0.24 - 0.20) / 0.20)
        assert rows["popri"]["distilled_gap"]["mean"] == pytest.approx((0.26 - 0.22) / 0.20)
        # It writes nothing of its own: its one student stands for both.
        assert rows["joint-sketch"]["distilled_accuracy"] is None
        assert rows["joint-sketch"]["distilled_gap"]["mean"] == pytest.approx((0.29 - 0.22) / 0.2)
        assert rows["public-only"]["distilled_gap"] is None
        assert rows["finetune-private"]["distilled_gap"]["mean"] == pytest.approx(1.0)


def test_what_labels_are_worth_is_shown_beside_its_floor_and_ceiling() -> None:
    cells = [cell("popri", 1.0, seed, 0.26) for seed in (0, 1)]
    for one, found in zip(cells, (0.6, 0.7), strict=True):
        one["labels"] = {"synthetic": found, "majority": 0.27, "public": 0.26, "private": 0.9}
    text = table_of(cells)
    assert "| 65.0 ± 5.0 | 27.0 ± 0.0 | 26.0 ± 0.0 | 90.0 ± 0.0 |" in text
    assert "Class found: by logistic regression" in text


def document_of(cells: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "stamp": STAMP,
        "titles": {method.name: method.title for method in METHODS},
        "summary": summarise(cells, METHODS),
        "cells": cells,
        "data": {"name": "x.jsonl", "private_users": 3000, "held_out_users": 500},
        "downstream": "privsyn-tiny",
        "delta": 4.2e-5,
        "seeds": [0, 1],
    }


def table_of(cells: list[dict[str, Any]]) -> str:
    return markdown(document_of(cells))


class TestTable:
    def test_the_stamp_the_figures_and_the_failures(self) -> None:
        text = table_of(CELLS)
        lines = text.splitlines()
        assert lines[0] == f"> {STAMP}"
        row = next(line for line in lines if line.startswith("| POPri |"))
        assert "28.00 ± 2.00" in row
        assert "40 ± 10" in row
        assert "2 kB" in row or "2.0 kB" in row
        assert any(line.startswith("| POPri (1 of 2 seeds, 1 failed) |") for line in lines)
        assert "- POPri, ε = 7, seed 0: it broke | here" in lines
        columns = {line.count("|") for line in lines if line.startswith("|")}
        assert len(columns) == 1

    def test_copies_and_those_of_held_out_text(self) -> None:
        texts = {"copies": 0.002, "copies_held_out": 0.0125}
        cells = [{**one, "texts": texts} if one["method"] == "popri" else one for one in CELLS]
        text = table_of(cells)
        heads, rows = text.splitlines()[2], text.splitlines()
        place = heads.split("|").index(" copies, % ")
        popri = next(line for line in rows if line.startswith("| POPri |"))
        assert popri.split("|")[place].strip() == "0.20 ± 0.00"
        public = next(line for line in rows if line.startswith("| public model |"))
        assert public.split("|")[place].strip() == "-"
        assert "of the held-out texts themselves 1.25 %" in text
