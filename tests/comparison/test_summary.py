"""From cells to rows: means, standard errors, and the gap that was closed."""

import pytest

from flower_privsyn.comparison.summary import summarise
from flower_privsyn.comparison.table import markdown
from flower_privsyn.evaluation.result import STAMP
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


class TestTable:
    def test_the_stamp_the_figures_and_the_failures(self) -> None:
        text = markdown(
            {
                "stamp": STAMP,
                "titles": {method.name: method.title for method in METHODS},
                "summary": summarise(CELLS, METHODS),
                "cells": CELLS,
                "data": {"name": "x.jsonl", "private_users": 3000, "held_out_users": 500},
                "downstream": "privsyn-tiny",
                "delta": 4.2e-5,
                "seeds": [0, 1],
            }
        )
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
