"""Pieces of a comparison become lines once, and pieces of another are refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.evaluation.result import STAMP
from research.compared_cells import table_of
from research.gathered_cells import main

DATA = "abstracts"


def cell(method: str, seed: int, **other: Any) -> dict[str, Any]:
    return {
        "method": method,
        "epsilon": {"public-only": 0.0, "finetune-private": None}.get(method, 1.0),
        "seed": seed,
        "status": "finished",
        "error": None,
        "delta": 4e-5 if method == "dp-ftrl" else None,
        "quality": {"next_token_accuracy": 0.2 + seed / 100, "bits_per_byte": 1.9},
        "costs": {"rounds": 3},
        "wall_seconds": 90.0,
        "own_settings": {"num-rounds": 16} if method == "dp-ftrl" else {},
        "spent": [[1, 1.0]],
    } | other


def piece_of(method: str, **other: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A cell, and what its comparison has of its own."""
    own = {key: other.pop(key) for key in ("own_settings",) if key in other}
    return cell(method, 1, **own), other


def piece(tmp_path: Path, name: str, *cells: dict[str, Any], **fixed: Any) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    document = {
        "stamp": STAMP,
        "created": "2026-11-25T03:00:00+00:00",
        "finished": "2026-11-25T03:03:00+00:00",
        "data": {"private_users": 3000, "held_out_users": 300},
        "fixed": {
            "users": "c396",
            "delta": 4e-5,
            "downstream": "privsyn-tiny",
            "training": {"max_steps": 200},
            "max_texts": 1000,
        }
        | fixed,
        "cells": list(cells),
    }
    (folder / "compare.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_pieces_make_one_table(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "cells.jsonl"
    floor, ceiling = (
        cell("public-only", 0),
        cell("finetune-private", 0, costs=None, wall_seconds=None),
    )
    one = piece(tmp_path, "one", cell("dp-ftrl", 0), floor, cell("dp-ftrl", 5, status="failed"))
    two = piece(tmp_path, "two", cell("dp-ftrl", 1), copy.deepcopy(floor))
    alone = piece(tmp_path, "alone", ceiling)
    asked = [str(file), str(one), str(two), str(alone), "--data", DATA]
    assert main(asked) == 0
    found = lines(file)
    assert [(line["method"], line["seed"], line["minutes"]) for line in found] == [
        ("dp-ftrl", 0, 1.5),
        ("public-only", 0, 1.5),
        ("dp-ftrl", 1, 1.5),
        ("finetune-private", 0, None),  # interrupted: nobody knows
    ]
    assert "spent" not in found[0]
    assert main(asked) == 0  # what is there is not added again
    assert lines(file) == found
    assert capsys.readouterr().out.endswith(f"0 cells added, 4 in {file}\n")
    table = table_of(found, data=DATA, users=3000, held_out=300, downstream="privsyn-tiny")
    assert "| DP-FTRL | 1 | 20.50 ± 0.50 |" in table


@pytest.mark.parametrize(
    "other",
    [
        piece_of("dp-ftrl", training={"max_steps": 400}),
        piece_of("dp-ftrl", users="beef"),
        piece_of("popri", delta=1e-5),
        piece_of("dp-ftrl", own_settings={"num-rounds": 64}),
    ],
)
def test_what_belongs_to_another_comparison_is_refused(
    tmp_path: Path, capsys: Any, other: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    file = tmp_path / "cells.jsonl"
    one = str(piece(tmp_path, "one", cell("dp-ftrl", 0)))
    two = str(piece(tmp_path, "two", other[0], **other[1]))
    assert main([str(file), one, two, "--data", DATA]) == 2
    assert "are of different comparisons" in capsys.readouterr().err
    assert not file.exists()
    assert main([str(file), one, "--data", DATA]) == 0
    assert main([str(file), two, "--data", DATA]) == 2  # the file says it, too
    assert main([str(file), two, "--data", "other text"]) == 0
    assert [line["data"] for line in lines(file)] == [DATA, "other text"]


def test_a_folder_without_a_comparison_is_named(tmp_path: Path, capsys: Any) -> None:
    assert main([str(tmp_path / "cells.jsonl"), str(tmp_path), "--data", DATA]) == 2
    assert f"{tmp_path} holds no comparison" in capsys.readouterr().err
