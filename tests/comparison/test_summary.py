"""From cells to rows: means, standard errors, and the gap that was closed."""

from typing import Any, ClassVar

import numpy as np
import pytest

from flower_privsyn.catalogue import compared
from flower_privsyn.comparison.run import summarise
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.report.comparison import markdown


def cell(method, epsilon, seed, accuracy=None, status="finished", **costs):
    return {
        "method": method,
        "title": compared()[method].title,
        "kind": compared()[method].kind,
        "epsilon": epsilon,
        "seed": seed,
        "folder": f"{method}-{epsilon}-{seed}",
        "status": status,
        "error": None if status == "finished" else "it\nbroke | here",
        "quality": None if accuracy is None else {"next_token_accuracy": accuracy},
        "texts": None,
        "costs": costs or None,
    }


CELLS = [
    cell("public-only", 0.0, 0, 0.20),
    cell("popri", 1.0, 0, 0.26, bytes_up=1000),
    cell("popri", 1.0, 1, 0.30, bytes_up=3000),
    cell("popri", 7.0, 0, status="failed"),
    cell("popri", 7.0, 1, 0.32),
    cell("finetune-private", None, 0, 0.38),
    cell("finetune-private", None, 1, 0.42),
]


class TestSummary:
    def test_a_row_per_method_and_epsilon(self) -> None:
        rows = summarise(CELLS)
        assert [(row["method"], row["epsilon"]) for row in rows] == [
            ("public-only", 0.0),
            ("popri", 1.0),
            ("popri", 7.0),
            ("finetune-private", None),
        ]

    def test_rounds_without_a_release_stand_under_the_table(self) -> None:
        """Such a cell had fewer releases than others, and its figures say so nowhere else."""
        cells = [cell("popri", 1.0, 0, 0.26, rounds_lost=2)]
        cells += [cell("popri", 1.0, 1, 0.26, rounds_lost=0)]
        assert "gave nothing: POPri, ε = 1, seed 0 (2)." in table_of(cells)
        assert "gave nothing" not in table_of(CELLS)

    def test_mean_standard_error_and_gap(self) -> None:
        floor, row, _, ceiling = summarise(CELLS)
        assert row["next_token_accuracy"]["mean"] == pytest.approx(0.28)
        # Two values two hundredths to either side: s = 0.02 sqrt(2), over sqrt(2).
        assert row["next_token_accuracy"]["standard_error"] == pytest.approx(0.02)
        assert row["gap_closed"]["mean"] == pytest.approx((0.28 - 0.2) / (0.4 - 0.2))
        assert row["gap_closed"]["standard_error"] == pytest.approx(0.02 / 0.2)
        assert floor["gap_closed"]["mean"] == 0.0
        assert ceiling["gap_closed"]["mean"] == pytest.approx(1.0)
        assert floor["next_token_accuracy"]["standard_error"] is None
        assert row["bytes_up"]["mean"] == 2000

    def test_failed_cells_are_counted_and_left_out(self) -> None:
        row = summarise(CELLS)[2]
        assert (row["seeds"], row["failed"], row["planned"]) == (1, 1, 2)
        assert row["next_token_accuracy"]["mean"] == pytest.approx(0.32)

    def test_no_gap_without_a_ceiling_above_the_floor(self) -> None:
        assert summarise(CELLS[:-2])[1]["gap_closed"] is None
        upside_down = [cell("public-only", 0.0, 0, 0.5), *CELLS[1:]]
        assert summarise(upside_down)[1]["gap_closed"] is None


class TestPeople:
    """What two methods differ by, over people who are drawn for both alike."""

    #: Of two users, tokens and right ones: both methods do better on the second.
    COUNTS: ClassVar = {
        "public-only-0.0-0": [[100.0, 10.0], [100.0, 30.0]],
        "random-public-0.0-0": [[100.0, 12.0], [100.0, 32.0]],
        "popri-1.0-0": [[100.0, 15.0], [100.0, 35.0]],
        "popri-1.0-1": [[100.0, 17.0], [100.0, 37.0]],
        "pre-text-1.0-0": [[100.0, 10.0], [100.0, 50.0]],
    }

    def rows(self) -> dict[str, dict[str, Any]]:
        cells, counts = [], {}
        for folder, table in self.COUNTS.items():
            *words, epsilon, seed = folder.rsplit("-", 2)
            counts[folder] = np.array(table)
            accuracy = counts[folder][:, 1].sum() / 200
            cells.append(cell("-".join(words), float(epsilon), int(seed), accuracy))
        return {row["method"]: row for row in summarise(cells, counts)}

    def test_one_that_is_above_the_floor_for_everybody_is_surely_above_it(self) -> None:
        found = self.rows()["popri"]["over_floor"]
        # 5 and 3 points over the best floor for either user, whoever is drawn: 4 in the mean.
        assert [found[key] for key in ("value", "low", "high")] == pytest.approx([0.04] * 3)
        assert found["of"] == "public text, at random"
        assert self.rows()["public-only"]["over_floor"]["value"] == pytest.approx(-0.02)
        assert self.rows()["random-public"]["over_floor"] is None

    def test_the_best_at_an_epsilon_is_what_others_are_held_against(self) -> None:
        rows = self.rows()
        found = rows["popri"]["to_best"]
        assert found["of"] == "PrE-Text"
        assert found["value"] == pytest.approx(-0.04)
        # Worse for one of the two, and better for the other.
        assert found["low"] == pytest.approx(-0.14)
        assert found["high"] == pytest.approx(0.06)
        assert rows["pre-text"]["to_best"] is None
        assert rows["public-only"]["to_best"] is None

    def test_what_was_kept_of_nobody_is_in_no_difference(self) -> None:
        row = summarise(CELLS)[1]
        assert (row["over_floor"], row["to_best"]) == (None, None)


def document_of(cells: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "stamp": STAMP,
        "summary": summarise(cells),
        "cells": cells,
        "data": {"name": "x.jsonl", "private_users": 3000, "held_out_users": 500},
        "downstream": "privsyn-tiny",
        "delta": 4.2e-5,
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
