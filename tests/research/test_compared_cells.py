"""Cells of pieces of a comparison make its table, and do not mix with others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.evaluation.result import STAMP
from research.compared_cells import main, table_of
from tests.support.compared import CELLS, cell, rows


def test_means_are_of_the_cells_of_one_place(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "cells.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in CELLS), encoding="utf-8")
    assert main([str(file), "--data", "abstracts", "--users", "3000"]) == 0
    table = capsys.readouterr().out
    assert table.startswith(f"> {STAMP}\n")
    found = rows(table)
    assert found["hybrid-10"][:3] == ["1", "28.00 ± 2.00", "40 ± 10"]
    assert found["public model"][1] == "20.00"  # no seed changes it: run once, and not short of one
    assert "private text, no privacy (1 of 2 seeds)" in found
    assert "3,000 users took part" in table


def test_a_method_that_no_settings_are_called_is_named() -> None:
    with pytest.raises(ConfigError, match="are called hybrid-99"):
        table_of(
            [*CELLS, cell("hybrid-99", 0, 0.5)],
            data="abstracts",
            users=3000,
            held_out=300,
            downstream="privsyn-tiny",
        )


def test_what_no_table_can_hold_is_refused(tmp_path: Path, capsys: Any) -> None:
    def of(cells: list[dict[str, Any]]) -> str:
        return table_of(cells, data="abstracts", users=3000, held_out=10, downstream="privsyn-tiny")

    with pytest.raises(ConfigError, match=r"one place: \('hybrid-10', 1.0, 1\)"):
        of([*CELLS, cell("hybrid-10", 1, 0.3)])
    with pytest.raises(ConfigError, match="different comparisons"):
        of([*CELLS, cell("hybrid-10", 2, 0.3, delta=1e-6)])
    with pytest.raises(ConfigError, match="different comparisons"):
        of([*CELLS, cell("hybrid-10", 2, 0.3, stamp="another")])
    file = tmp_path / "cells.jsonl"
    file.write_text(json.dumps(CELLS[0]) + "\n", encoding="utf-8")
    assert main([str(file), "--data", "speech", "--users", "3000"]) == 2
    assert "no cell is of 3000 users of speech" in capsys.readouterr().err
