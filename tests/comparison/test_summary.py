"""From cells to rows: means, standard errors, and the gap that was closed."""

import math
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

    def test_mean_and_standard_error(self) -> None:
        floor, row, _, _ = summarise(CELLS)
        assert row["next_token_accuracy"]["mean"] == pytest.approx(0.28)
        # Two values two hundredths to either side: s = 0.02 sqrt(2), over sqrt(2).
        assert row["next_token_accuracy"]["standard_error"] == pytest.approx(0.02)
        assert floor["next_token_accuracy"]["standard_error"] is None
        assert row["bytes_up"]["mean"] == 2000

    def test_failed_cells_are_counted_and_left_out(self) -> None:
        row = summarise(CELLS)[2]
        assert (row["seeds"], row["failed"], row["planned"]) == (1, 1, 2)
        assert row["next_token_accuracy"]["mean"] == pytest.approx(0.32)


class TestPeople:
    """What two methods differ by in bits, over people who are drawn for both alike."""

    #: Of two users of 100 bytes each, the bits that a byte of theirs takes.
    BITS: ClassVar = {
        "public-only-0.0-0": [2.2, 2.0],
        "random-public-0.0-0": [2.1, 1.9],
        "popri-1.0-0": [1.9, 1.7],
        "popri-1.0-1": [1.7, 1.5],
        "pre-text-1.0-0": [2.2, 1.0],
        "finetune-private-None-0": [1.2, 1.0],
    }

    def rows(self, *without: str) -> dict[str, dict[str, Any]]:
        cells, counts = [], {}
        for folder, bits in self.BITS.items():
            *words, epsilon, seed = folder.rsplit("-", 2)
            if (method := "-".join(words)) not in without:
                table = [[25.0, 5.0, 100 * one * math.log(2), 100.0] for one in bits]
                counts[folder] = np.array(table)
                budget = None if epsilon == "None" else float(epsilon)
                cells.append(cell(method, budget, int(seed), 0.2))
        return {row["method"]: row for row in summarise(cells, counts)}

    def test_one_that_saves_as_much_for_everybody_surely_saves_it(self) -> None:
        rows = self.rows()
        found = rows["popri"]["over_floor"]
        # A fifth and two fifths of a bit below the best floor: 0.3 in the mean, whoever is drawn.
        assert [found[key] for key in ("value", "low", "high")] == pytest.approx([0.3] * 3)
        assert found["of"] == "public text, at random"
        assert rows["public-only"]["over_floor"]["value"] == pytest.approx(-0.1)
        assert rows["random-public"]["over_floor"] is None

    def test_shares_are_of_the_way_from_the_public_model_and_from_the_best_floor(self) -> None:
        rows = self.rows()
        shares = {name: (row["gap_closed"], row["from_floor"]) for name, row in rows.items()}
        assert [one["value"] for one in shares["popri"]] == pytest.approx([0.4, 1 / 3])
        assert [one["value"] for one in shares["public-only"]] == pytest.approx([0, -1 / 9])
        assert [one["value"] for one in shares["finetune-private"]] == pytest.approx([1, 1])
        low, high = (shares["pre-text"][0][key] for key in ("low", "high"))
        assert (low, high) == pytest.approx((0, 1))  # one of the two, drawn twice

    def test_no_share_without_a_ceiling_below_the_floor(self) -> None:
        assert self.rows("finetune-private")["popri"]["gap_closed"] is None

    def test_the_best_at_an_epsilon_is_what_others_are_held_against(self) -> None:
        rows = self.rows()
        found = rows["popri"]["to_best"]
        assert found["of"] == "PrE-Text"
        # Better for one of the two, and worse for the other.
        values = [found[key] for key in ("value", "low", "high")]
        assert values == pytest.approx([-0.1, -0.6, 0.4])
        assert rows["pre-text"]["to_best"] is None
        assert rows["public-only"]["to_best"] is None

    def test_what_was_kept_of_nobody_is_in_no_difference(self) -> None:
        row = summarise(CELLS)[1]
        assert (row["over_floor"], row["to_best"], row["gap_closed"]) == (None, None, None)


def document_of(cells: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "stamp": STAMP,
        "summary": summarise(cells),
        "cells": cells,
        "data": {
            "name": "x.jsonl",
            "private_users": 3000,
            "groups": 2,
            "tuning_users": 300,
            "held_out_users": 500,
        },
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
