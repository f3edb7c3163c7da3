"""Cells of several places stand in one table, each in its own column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from research.across_places import main
from tests.support.compared import CELLS, cell, rows

MORE = [
    cell("hybrid-10", 0, 0.35, epsilon=7.0, distilled={"next_token_accuracy": 0.33}),
    cell("public-only", 0, 0.40, data="speech", users=400),
    cell("joint-sketch", 0, 0.45, data="speech", users=400),
    cell("finetune-private", 0, 0.50, data="speech", users=400),
]


def test_a_column_is_a_place(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "cells.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in CELLS + MORE), encoding="utf-8")
    places = [("abstracts", "3000", "1"), ("abstracts", "3000", "7"), ("speech", "400", "1")]
    assert main([str(file), *(word for place in places for word in ("--place", *place))]) == 0
    found = rows(capsys.readouterr().out)
    assert [end.rstrip(" |") for end in found["method"]] == [
        "abstracts, 3,000, ε = 1",
        "abstracts, 3,000, ε = 7",
        "speech, 400, ε = 1",
    ]
    assert found["public model"][0] == found["public model"][1] == "20.00 (0 %)"
    assert found["hybrid-10"][:2] == ["28.00 ± 2.00 (40 %)", "35.00; 33.00 (75 %)"]
    assert found["hybrid-10"][2].rstrip(" |") == "-"
    assert "joint sketch" not in found  # of one place
    assert main([str(file), "--place", *places[2]]) == 0
    assert rows(capsys.readouterr().out)["joint sketch"][0].rstrip(" |") == "45.00 (50 %)"
    assert main([str(file), "--place", "speech", "9", "1"]) == 2
    assert "no cell is of 9 users of speech" in capsys.readouterr().err
