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
    ("other", "word"),
    [
        ({"training": {"max_steps": 400}}, "training"),
        ({"users": "beef"}, "users"),
        ({"delta": 1e-5}, "delta"),
    ],
)
def test_pieces_of_another_comparison_are_refused(
    tmp_path: Path, capsys: Any, other: dict[str, Any], word: str
) -> None:
    file = tmp_path / "cells.jsonl"
    one = piece(tmp_path, "one", cell("dp-ftrl", 0))
    two = piece(tmp_path, "two", cell("dp-ftrl", 1), **other)
    assert main([str(file), str(one), str(two), "--data", DATA]) == 2
    said = capsys.readouterr().err
    assert f"{one} and {two} are of different comparisons: {word} is" in said
    assert not file.exists()


def test_lines_that_are_there_are_held_against_a_piece(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "cells.jsonl"
    assert main([str(file), str(piece(tmp_path, "a", cell("dp-ftrl", 0))), "--data", DATA]) == 0
    other = piece(tmp_path, "b", cell("dp-ftrl", 1), delta=1e-5)
    assert main([str(file), str(other), "--data", DATA]) == 2
    assert "delta is 4e-05 and 1e-05" in capsys.readouterr().err
    assert main([str(file), str(other), "--data", "other text"]) == 0
    assert [line["data"] for line in lines(file)] == [DATA, "other text"]


def test_seeds_of_other_settings_are_no_seeds_of_one_method(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "cells.jsonl"
    first, second = piece(tmp_path, "a", cell("dp-ftrl", 0)), tmp_path / "b"
    piece(tmp_path, "b", cell("dp-ftrl", 1, own_settings={"num-rounds": 64}))
    assert main([str(file), str(first), str(second), "--data", DATA]) == 2
    assert "are of different comparisons: num-rounds is 16 and 64" in capsys.readouterr().err
    assert main([str(file), str(first), "--data", DATA]) == 0
    assert main([str(file), str(second), "--data", DATA]) == 2  # the file says it, too
    assert "the file and" in capsys.readouterr().err
    more = piece(tmp_path, "c", cell("dp-ftrl", 1, own_settings={"num-rounds": 16, "x": 1}))
    assert main([str(file), str(more), "--data", DATA]) == 2
    assert "x is None and 1" in capsys.readouterr().err
    other = piece(tmp_path, "d", cell("popri", 1), downstream="gpt2")
    assert main([str(file), str(other), "--data", DATA]) == 2
    assert "downstream is 'privsyn-tiny' and 'gpt2'" in capsys.readouterr().err
    # Lines of a version that did not say it are taken as they are.
    old = [
        {k: v for k, v in line.items() if k not in ("own_settings", "fixed")}
        for line in lines(file)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in old), encoding="utf-8")
    assert main([str(file), str(more), "--data", DATA]) == 0


def test_a_folder_without_a_comparison_is_named(tmp_path: Path, capsys: Any) -> None:
    assert main([str(tmp_path / "cells.jsonl"), str(tmp_path), "--data", DATA]) == 2
    assert f"{tmp_path} holds no comparison" in capsys.readouterr().err
